"""The verbs: the operations of a broker, and what holds for each.

A row a verb. A node of a cluster passes verbs on, to the broker that has the queue or to the leader, and derives its
methods from the rows. A verb with a method of its own there needs more than passing on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mq.errors import MQError, NoSuchMessage, NoSuchQueue, NotLeased


class Repeat(Enum):
    """Whether a node may repeat a request that got no answer."""

    ALWAYS = "always"
    UNLESS_IT_WAITS = "unless it waits"
    """The lease of a lost answer ends by itself. A client that waits repeats the request itself."""
    NEVER = "never"


class Verb(NamedTuple):
    """One verb.

    Attributes:
        name: the method of :class:`~mq.broker.api.BrokerAPI`, after a dot that of one of its parts.
        repeat: whether a request may be repeated that got no answer.
        finishes: whether it goes to its end also after its client has gone.
        was_done: the error by which a repeated request proves that the first one was carried out.
    """

    name: str
    repeat: Repeat = Repeat.ALWAYS
    finishes: bool = False
    was_done: type[MQError] | None = None

    @property
    def part(self) -> str:
        """The part of the broker that has the method; empty for the broker itself."""
        return self.name.rpartition(".")[0]

    @property
    def method(self) -> str:
        """The method of that part."""
        return self.name.rpartition(".")[2]


_ROWS: Final = (
    Verb("has_queue"),
    Verb("create_queue"),
    Verb("delete_queue", was_done=NoSuchQueue),
    Verb("change_settings"),
    Verb("settings"),
    Verb("status"),
    Verb("queues"),
    Verb("purge"),
    Verb("redrive"),
    Verb("publish_many", finishes=True),
    Verb("contains"),
    Verb("fetch_many", Repeat.UNLESS_IT_WAITS),
    Verb("give_back", Repeat.NEVER),
    Verb("take", Repeat.NEVER),
    Verb("remove", was_done=NoSuchMessage),
    Verb("remove_many"),
    Verb("requeue", was_done=NotLeased),
    Verb("reschedule"),
    Verb("extend"),
    Verb("change_leases"),
    Verb("hold", Repeat.NEVER),
    Verb("exclude", Repeat.NEVER),
    Verb("acknowledge", Repeat.NEVER, finishes=True),
    Verb("put_back", Repeat.NEVER, finishes=True),
    Verb("reject", Repeat.NEVER, finishes=True),
    Verb("show"),
    Verb("peek"),
    Verb("declarations.create", finishes=True),
    *(Verb(f"claims.{name}") for name in ("consumers", "consumer", "start", "claim", "read", "note_read")),
    *(Verb(f"claims.{name}") for name in ("acknowledge", "forget")),
    Verb("writes.add", finishes=True),
    Verb("writes.commit", finishes=True),
    *(Verb(f"writes.{name}") for name in ("abort", "of")),
    *(Verb(f"browsing.{name}") for name in ("browse", "ranges")),
)
VERBS: Final = {verb.name: verb for verb in _ROWS}
"""The verbs by name."""


class Forwarding:
    """A broker, or a part of one, that passes its verbs on. A subclass may define some itself."""

    def __init__(self, part: str, ask: Callable[..., Awaitable[Any]]) -> None:
        for verb in VERBS.values():
            if verb.part == part and not hasattr(type(self), verb.method):
                setattr(self, verb.method, partial(ask, verb))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...
