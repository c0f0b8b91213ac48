"""The states of a message, and every move between them that is legal.

The table is data: the simulator checks against it, observers receive it as events, and the picture in
``docs/dev/architecture.md`` is drawn from it by :func:`diagram`.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple, Protocol

from mq.message import MessageId


class State(enum.Enum):
    """Where a message is. The value is the name of its folder on a POSIX root."""

    NEW = "new"
    READY = "queues"
    DELAYED = "delay"
    REMOVED = "remove"

    __hash__ = object.__hash__  # by identity, as it is compared; Enum's own is a call in Python


class Kind(enum.Enum):
    """What happened to a message."""

    PUBLISH = "publish"
    DELIVER = "deliver"
    DELAY = "delay"
    LEASE = "lease"
    REQUEUE = "requeue"
    EXTEND = "extend"
    REMOVE = "remove"
    REAP = "reap"
    REROUTE = "reroute"
    EXPIRE = "expire"
    DEAD_LETTER = "dead_letter"

    __hash__ = object.__hash__  # as above


class Span(enum.Enum):
    """What a broker takes time for."""

    PUBLISH = "publish"
    """From a server's call to its answer, of one message or a batch of them."""
    COMMIT = "commit"
    """From giving a batch to the store until all of it is durable."""


Step = tuple[State | None, State | None]

TRANSITIONS: Final[Mapping[Kind, frozenset[Step]]] = {
    Kind.PUBLISH: frozenset({(None, State.NEW), (None, State.READY), (None, State.DELAYED)}),
    Kind.DELIVER: frozenset({(State.NEW, State.READY)}),
    Kind.DELAY: frozenset({(state, State.DELAYED) for state in (State.NEW, State.READY, State.DELAYED)}),
    Kind.LEASE: frozenset({(State.READY, State.DELAYED), (State.NEW, State.DELAYED)}),
    Kind.REQUEUE: frozenset({(State.DELAYED, State.READY), (State.READY, State.READY)}),
    Kind.EXTEND: frozenset({(State.DELAYED, State.DELAYED)}),
    Kind.REMOVE: frozenset({(state, State.REMOVED) for state in (State.NEW, State.READY, State.DELAYED)}),
    Kind.REAP: frozenset({(State.REMOVED, None)}),
    Kind.REROUTE: frozenset({(State.READY, State.READY), (State.DELAYED, State.READY)}),
    Kind.EXPIRE: frozenset({(state, State.REMOVED) for state in (State.NEW, State.READY, State.DELAYED)}),
    Kind.DEAD_LETTER: frozenset({(state, State.READY) for state in (State.NEW, State.READY, State.DELAYED)}),
}
"""Kind -> the (from, to) pairs it may take; None is outside the store. REROUTE and DIE also change the queue: the one
at a user's request, the other to a dead-letter queue. EXPIRE removes a message that has no such queue. Both begin in
NEW where a message has to make room before it is delivered. REQUEUE from
READY sends a message to the back of its queue. DELAY from READY or DELAYED holds one back after its work failed. LEASE
from NEW hands a message to a request that was waiting for it."""

LEGAL_MOVES: Final[frozenset[Step]] = frozenset(
    step for steps in TRANSITIONS.values() for step in steps if None not in step
)
"""Every pair of states between which a store may be asked to move a message."""


PROTOCOL: Final[ContextVar[str]] = ContextVar("protocol", default="")
"""The server through which the current work was requested (``http``, ``amqp``, ``sqs``); empty inside a program, and
for the broker's own work. A server sets it where it starts its tasks, which inherit it; ``sqs`` sets it for each
request."""


class QueueOwner(NamedTuple):
    """The user for whom queues are made. The name is kept with each queue, so that those of a user can be counted.

    Attributes:
        most_queues: how many queues the user may have; None for any number.
    """

    name: str
    most_queues: int | None = None


OWNER: Final[ContextVar[QueueOwner | None]] = ContextVar("owner", default=None)
"""The user for whom the present work makes queues; None where there are no users, and for the broker's own work."""


@contextmanager
def made_for(owner: QueueOwner | None) -> Iterator[None]:
    """A block in which queues are made for a user; None for no user."""
    token = OWNER.set(owner)
    try:
        yield
    finally:
        OWNER.reset(token)


class Transition(NamedTuple):
    """One thing that happened to one message, told to observers after it is done.

    Attributes:
        source: the state it left; None for a publish.
        target: the state it entered; None for a reap.
        size: length of the body in bytes, where the broker knows it.
        destination: the queue it went to, when that is another one.
        protocol: by which protocol it was asked for; see :data:`PROTOCOL`.
    """

    kind: Kind
    queue: str
    id: MessageId
    source: State | None
    target: State | None
    time_ns: int
    size: int | None = None
    receives: int = 0
    destination: str | None = None
    protocol: str = ""


class Histogram:
    """Counts of values, each up to a bound and over the one before. Where a call for each message would cost too much,
    a caller counts a value as :meth:`observe` does.

    Attributes:
        counts: for each bound, and at last for none.
        total: the sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.total = 0.0
        self.counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, int]]:
        """For each bound, and at last for none: how many values are not greater."""
        found, so_far = [], 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


class Observer(Protocol):
    """Is told of transitions, each in full: for the journal. What only counts them is a :class:`Meter`."""

    def saw(self, transitions: Sequence[Transition]) -> None:
        """These are done. Must not block and must not raise."""


class Meter(Protocol):
    """Counts transitions, and is told no more of them. An object with these methods can be given as an observer. They
    must not block and must not raise."""

    def counted(
        self,
        kind: Kind,
        queue: str,
        count: int = 1,
        size: int = 0,
        destination: str | None = None,
        *,
        is_reaped: bool = False,
    ) -> None:
        """Messages of a queue made such a transition; or they were handed out (LEASE), or came back (REQUEUE), in
        memory alone, of which the store knows nothing.

        Args:
            size: bytes of their bodies together, where they were published.
            destination: the queue they went to, when that is another one.
            is_reaped: whether they were unlinked after it, which is another transition.
        """

    def handed_out(self, times: Sequence[int], now_ns: int) -> None:
        """Messages were handed out. Called after :meth:`counted` for them.

        Args:
            times: when their ids were made, in UUID ticks.
            now_ns: the time by the clock that dates ids, in nanoseconds since 1970.
        """

    def histogram(self, span: Span) -> Histogram:
        """Return where to count the seconds that something takes."""


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for kind, steps in TRANSITIONS.items():
        for source, target in sorted(steps, key=str):
            lines.append(f"    {_name(source)} --> {_name(target)}: {kind.value}")
    return "\n".join(lines) + "\n"


def _name(state: State | None) -> str:
    return "[*]" if state is None else state.name
