"""What the broker knows of its store: every queue's index, which messages are on their way, and who must be told.

Every move, whoever makes it, is bracketed by :meth:`Catalog.begin` and :meth:`Catalog.end`; nothing else changes an
index.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from mq.broker.index import QueueIndex
from mq.broker.transit import Transit
from mq.lifecycle import Kind, Observer, State, Transition
from mq.message import MessageId
from mq.storage.interface import Entry

logger = logging.getLogger("mq.broker")


class Place(Protocol):
    """Told of an entry that has arrived where it must do something about it."""

    def __call__(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        """`entry` is there, in that queue; `due` is when its lease ends (Trio's clock), where that is known exactly."""


class _Begun(NamedTuple):
    queue: QueueIndex
    is_leaving: bool


class Catalog:
    """The queues, and the messages on their way.

    Args:
        observers: told of every transition.
        clock_ns: wall clock, nanoseconds since 1970.

    Attributes:
        queues: every queue's index, by name.
        transit: the messages on their way.
        arrivals: told of what arrives in a state.
        removed: told of what arrives in REMOVED, whose queue may be no more.
        orphaned: told of messages of deleted queues.
        departed: told of messages that were removed.
        closed: told of queues that are no more.
    """

    def __init__(self, observers: Sequence[Observer], clock_ns: Callable[[], int]) -> None:
        self.queues: dict[str, QueueIndex] = {}
        self.transit = Transit()
        self.arrivals: dict[State, Place] = {}
        self.removed: Callable[[Entry], None] = _ignore
        self.orphaned: Callable[[Entry], None] = _ignore
        self.departed: Callable[[MessageId], None] = _forget
        self.closed: Callable[[str], None] = _close
        self._begun: dict[MessageId, _Begun] = {}
        self._observers = observers
        self._clock_ns = clock_ns

    def begin(self, entry: Entry, *, is_leaving: bool = False) -> None:
        """`entry` leaves its place: out of the index, and locked. One that is to leave its queue counts no more."""
        self.transit.begin(entry.id)
        index = self.queues.get(entry.queue)
        if index is None:
            return
        index.discard(entry.id)
        self._begun[entry.id] = _Begun(index, is_leaving)
        if not is_leaving:
            index.moving += 1
        elif index.bodies is not None:
            index.bodies.leaving(entry.id)

    def end(self, left: Entry, now: Entry | None, kind: Kind, due: float | None = None, door: str = "") -> None:
        """The move is over: the message is at `now`; that is `left` when it did not move, None when it is gone."""
        self.transit.end(left.id)
        begun = self._begun.pop(left.id, None)
        has_left = now is None or now.state is State.REMOVED or now.queue != left.queue
        if begun is not None:
            begun.queue.moving -= not begun.is_leaving
            if has_left:
                begun.queue.returned.discard(left.id)
                if begun.queue.bodies is not None:
                    begun.queue.bodies.left(left.id)
        if now is not None:
            if now.state is State.REMOVED:
                self.departed(left.id)
            self.place(now, due)
            if now is not left and self._observers:
                self.tell(kind, left, now, door=door)

    def on_their_way(self, index: QueueIndex) -> list[MessageId]:
        """The messages of a queue that are on their way from one place to another."""
        return [id for id, begun in self._begun.items() if begun.queue is index]

    def place(self, entry: Entry, due: float | None = None) -> None:
        """`entry` is there: into the index of its queue, and on to whoever has to do something about it."""
        if entry.state is State.REMOVED:
            self.removed(entry)
            return
        index = self.queues.get(entry.queue)
        if index is None or entry.joined < index.created:
            self.orphaned(entry)
            return
        index.add(entry)
        if index.bodies is not None:
            index.bodies.arrived(entry.id)
        arrived = self.arrivals.get(entry.state)
        if arrived is not None:
            arrived(index, entry, due)

    def tell(self, kind: Kind, left: Entry | None, now: Entry | None, size: int | None = None, door: str = "") -> None:
        """Let the observers know."""
        entry = now or left
        if not self._observers or entry is None:
            return
        transition = Transition(
            kind,
            left.queue if left else entry.queue,
            entry.id,
            left.state if left else None,
            now.state if now else None,
            self._clock_ns(),
            size,
            entry.meta.receives,
            entry.queue if left and left.queue != entry.queue else None,
            door,
        )
        for observer in self._observers:
            observer.saw([transition])


def _ignore(entry: Entry) -> None:
    """Nobody takes care of such messages yet."""


def _forget(id: MessageId) -> None:
    """Nobody wants to know yet."""


def _close(queue: str) -> None:
    """Nobody wants to know."""
