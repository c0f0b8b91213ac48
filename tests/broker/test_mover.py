"""The mover: which messages it moves first."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mq.broker.mover import LARGEST_ROUND, Mover
from mq.lifecycle import State
from mq.message import MessageIds, QueueName
from mq.storage.interface import Entry, Operation, Outcome, Result

BACKLOG = 20 * LARGEST_ROUND
IDS = MessageIds(node=1)


class Rounds:
    """Commits what a mover moves, and notes it.

    Attributes:
        moved: the entries, in order.
    """

    def __init__(self) -> None:
        self.moved: list[Entry] = []

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Commit one round, in a step of its own."""
        await trio.lowlevel.checkpoint()
        self.moved += [operation.entry for operation in operations]
        return [Outcome(Result.DONE, operation.entry) for operation in operations]


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[Mover, Rounds]]:
    rounds = Rounds()
    mover = Mover(rounds.commit, lambda _: True, lambda *_: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mover.run)
        yield mover, rounds
        nursery.cancel_scope.cancel()


def entries(queue: str, count: int) -> list[Entry]:
    """So many messages of a queue in NEW."""
    return [Entry(QueueName(queue), IDS.new(), State.NEW) for _ in range(count)]


async def test_a_message_does_not_wait_for_another_queues_backlog() -> None:
    async with moving() as (mover, rounds):
        for entry in entries("long", BACKLOG):
            mover.add(entry)
        [other] = entries("short", 1)
        mover.add(other)
        await mover.caught_up("short")
        assert rounds.moved.index(other) <= 1
        assert len(rounds.moved) < BACKLOG


async def test_a_message_whose_delay_has_ended_does_not_wait_for_a_backlog() -> None:
    async with moving() as (mover, rounds):
        [delayed] = entries("short", 1)
        mover.add(delayed, trio.current_time())
        for entry in entries("long", BACKLOG):
            mover.add(entry)
        await mover.caught_up()
        assert rounds.moved.index(delayed) <= LARGEST_ROUND


async def test_caught_up_waits_for_all_queues_where_none_is_named() -> None:
    async with moving() as (mover, rounds):
        for queue in ("one", "two"):
            for entry in entries(queue, LARGEST_ROUND):
                mover.add(entry)
        await mover.caught_up()
        assert len(rounds.moved) == 2 * LARGEST_ROUND


async def test_the_messages_of_a_queue_keep_their_order() -> None:
    async with moving() as (mover, rounds):
        first, second = entries("one", 100), entries("two", 100)
        for pair in zip(first, second, strict=True):
            for entry in pair:
                mover.add(entry)
        await mover.caught_up()
        assert [entry for entry in rounds.moved if entry.queue == "one"] == first
        assert [entry for entry in rounds.moved if entry.queue == "two"] == second


async def test_an_entry_that_is_cancelled_is_neither_moved_nor_waited_for() -> None:
    async with moving() as (mover, rounds):
        kept, cancelled = entries("one", 2)
        mover.add(cancelled)
        mover.add(kept)
        mover.cancel(cancelled.id)
        await mover.caught_up("one")
        assert rounds.moved == [kept]
