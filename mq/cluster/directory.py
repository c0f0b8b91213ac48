"""Whom to ask for the highly available queues just now, and which of these there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from mq.errors import NotServed

PATIENCE_SECONDS: Final = 10.0
"""How long whoever asks waits for a master. A new one is there sooner, if two of three nodes are."""

MOMENT_SECONDS: Final = 0.1
"""Before somebody is asked again who has just said that he serves no more."""

Declared = Mapping[str, Any] | None
"""What was declared of a queue beyond its settings, by whoever made it."""


class Place(Protocol):
    """Where the highly available queues are served."""

    @property
    def term(self) -> int:
        """Of the mastership there."""

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method of :class:`~mq.cluster.term.Term`.

        Raises:
            NotServed: not any more; it may have been done.
            MQError: what the method raises.
        """

    def end_exclusion(self, number: int) -> None:
        """A consumer that was alone has gone. Nobody waits for that."""

    def leave(self) -> None:
        """Nobody asks there any more: who waits for an answer hears that it will not come."""


class Directory:
    """What a node knows of the cluster's queues.

    Attributes:
        queues: all of them, with what was declared.
        place: who serves them; None while nobody is known.
        term: the highest that was heard of.
    """

    def __init__(self) -> None:
        self.queues: dict[str, Declared] = {}
        self.place: Place | None = None
        self.term = 0
        self._changed = trio.Event()
        self._told_opened: Callable[[str, Mapping[str, Any]], None] = _ignore_opened
        self._told_closed: Callable[[str], None] = _ignore_closed
        self._told_failover: Callable[[Iterable[str]], None] = _ignore_failover

    # Who is told

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Of queues of which something was declared."""
        self._told_opened = told

    def on_closed(self, told: Callable[[str], None]) -> None:
        """Of queues that are no more."""
        self._told_closed = told

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None:
        """Of queues whose consumers have to begin anew."""
        self._told_failover = told

    # What is heard

    def begin(self, place: Place, queues: Mapping[str, Declared]) -> None:
        """Somebody serves. Who says so of a term that is over is not believed."""
        if place.term < self.term:
            return
        self._lose()
        self.term, self.place = place.term, place
        for queue in set(self.queues) - set(queues):
            self.closed(queue)
        for queue, declared in queues.items():
            self.opened(queue, declared)
        self._news()

    def end(self, place: Place) -> None:
        """Somebody does not serve any more."""
        if self.place is place:
            self._lose()

    def opened(self, queue: str, declared: Declared) -> None:
        """There is one more queue."""
        known = self.queues.get(queue)
        self.queues[queue] = declared or known
        if known is None and declared is not None:
            self._told_opened(queue, declared)

    def closed(self, queue: str) -> None:
        """There is one less."""
        if queue in self.queues:
            del self.queues[queue]
            self._told_closed(queue)

    # What is asked

    async def serving(self, deadline: float) -> Place:
        """Who serves, once somebody does.

        Args:
            deadline: by Trio's clock.

        Raises:
            NotServed: nobody, until then.
        """
        while self.place is None:
            with trio.move_on_at(deadline) as patience:
                await self._changed.wait()
            if patience.cancelled_caught:
                raise NotServed("nobody serves the highly available queues just now: two of three nodes must be up")
        return self.place

    async def moved_on(self, place: Place) -> None:
        """Who was asked serves no more: until somebody else does, or for a moment. Never returns at once."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(MOMENT_SECONDS):
            while self.place is place:
                await self._changed.wait()

    def _lose(self) -> None:
        if self.place is not None:
            place, self.place = self.place, None
            place.leave()
            self._told_failover(list(self.queues))
            self._news()

    def _news(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _ignore_opened(queue: str, declared: Mapping[str, Any]) -> None:
    pass


def _ignore_closed(queue: str) -> None:
    pass


def _ignore_failover(queues: Iterable[str]) -> None:
    pass
