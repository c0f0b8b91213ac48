"""Who may change a store just now: batches together, everything else alone."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from mq.storage.files.posix import CommitGate


class Visitors:
    """Who is inside, and who has been."""

    def __init__(self) -> None:
        self.gate = CommitGate()
        self.inside: set[str] = set()
        self.leave = {name: trio.Event() for name in "abcde"}

    async def together(self, name: str) -> None:
        async with self.gate.shared():
            await self._stay(name)

    async def alone(self, name: str) -> None:
        async with self.gate.exclusive():
            await self._stay(name)

    async def _stay(self, name: str) -> None:
        self.inside.add(name)
        await self.leave[name].wait()
        self.inside.remove(name)


async def test_batches_are_inside_together_and_everything_else_is_alone_in_the_order_of_arrival() -> None:
    visitors = Visitors()
    async with trio.open_nursery() as nursery:
        for name, way in zip("abcde", ("together", "together", "alone", "together", "alone"), strict=True):
            nursery.start_soon(getattr(visitors, way), name)
            await wait_all_tasks_blocked()
        assert visitors.inside == {"a", "b"}
        for name, then in (("a", {"b"}), ("b", {"c"}), ("c", {"d"}), ("d", {"e"}), ("e", set())):
            visitors.leave[name].set()
            await wait_all_tasks_blocked()
            assert visitors.inside == then


async def test_whoever_is_cancelled_while_waiting_lets_the_next_one_in() -> None:
    visitors = Visitors()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(visitors.together, "a")
        await wait_all_tasks_blocked()
        with trio.CancelScope() as scope:
            scope.cancel()
            await visitors.alone("b")
        nursery.start_soon(visitors.together, "c")
        await wait_all_tasks_blocked()
        assert visitors.inside == {"a", "c"}
        nursery.cancel_scope.cancel()
