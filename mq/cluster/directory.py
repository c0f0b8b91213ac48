"""The directory: which node serves the cluster queues now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from mq.errors import NotServed

PATIENCE_SECONDS: Final = 10.0
"""How long a caller waits for a master. A new one is there sooner, if two of three nodes are."""

MOMENT_SECONDS: Final = 0.1
"""Pause before asking a node again after it has refused because it leads no more."""


class Leader(Protocol):
    """A way to the node that serves the cluster queues."""

    @property
    def term(self) -> int:
        """Of the mastership there."""

    async def call(self, method: str, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a method of :class:`~mq.cluster.leadership.Leadership`.

        Raises:
            NotServed: not any more; it may have been done.
        """

    def end_exclusion(self, number: int) -> None:
        """End the exclusion of a consumer. Returns at once, without an answer."""

    def leave(self) -> None:
        """Stop asking there: waiting calls raise ServiceLost."""


class Directory:
    """The leader, as far as this node knows.

    Attributes:
        leader: serves the queues; None while none is known.
    """

    def __init__(self) -> None:
        self.leader: Leader | None = None
        self.term = 0
        self.failovers = 0
        self._changed = trio.Event()
        self._told_failover: Callable[[], None] = _ignore_failover

    def on_failover(self, told: Callable[[], None]) -> None:
        """Call `told` when consumers of these queues have to begin anew."""
        self._told_failover = told

    # What is heard

    def begin(self, leader: Leader) -> None:
        """Note that a node serves, unless a later term has begun."""
        if leader.term < self.term:
            return
        self._lose()
        if 0 < self.term < leader.term:
            self.failovers += 1
        self.term, self.leader = leader.term, leader
        self._news()

    def end(self, leader: Leader) -> None:
        """Note that a node serves no more."""
        if self.leader is leader:
            self._lose()

    # What is asked

    async def serving(self, deadline: float) -> Leader:
        """The leader, once there is one.

        Raises:
            NotServed: there is none until then.
        """
        while self.leader is None:
            with trio.move_on_at(deadline) as patience:
                await self._changed.wait()
            if patience.cancelled_caught:
                raise NotServed(
                    "no node is serving the cluster queues. Check that the nodes are running and can reach each "
                    "other (GET /-/cluster), and that the coordinator is available (for etcd: a majority of its "
                    "members)"
                )
        return self.leader

    async def moved_on(self, leader: Leader) -> None:
        """Wait until another leader is known, or for a moment. Never returns at once."""
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(MOMENT_SECONDS):
            while self.leader is leader:
                await self._changed.wait()

    def _lose(self) -> None:
        if self.leader is not None:
            leader, self.leader = self.leader, None
            leader.leave()
            self._told_failover()
            self._news()

    def _news(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def _ignore_failover() -> None:
    pass
