"""Readers: a bounded share of work in each pass of the event loop, and the least served connection first."""

from __future__ import annotations

from collections import Counter

import pytest
import trio
from trio.testing import assert_checkpoints, assert_no_checkpoints, wait_all_tasks_blocked

from mq.doors.readers import ACCEPTING, CONNECTION, SHARE, SHORT_TURN, Reader, of_run
from mq.turns import TURN


class Passes(trio.abc.Instrument):
    """Counts the passes of the event loop."""

    number = 0

    def before_io_wait(self, timeout: float) -> None:
        self.number += 1


@pytest.fixture
async def passes() -> Passes:
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    return passes


UNIT = SHARE // 8


async def test_reader_does_not_wait_while_the_pass_has_room() -> None:
    reader = Reader()
    for _ in range(8):
        with assert_no_checkpoints():
            await reader.begin()
        reader.spend(UNIT)
    with assert_checkpoints():
        await reader.begin()


async def test_readers_share_the_work_of_a_pass(passes: Passes) -> None:
    done = Counter[int]()

    async def read(reader: Reader) -> None:
        await reader.pay(UNIT)
        done[passes.number] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(105):
            nursery.start_soon(read, Reader())
    assert done.total() == 105
    assert max(done.values()) == 8
    assert len(done) <= 15


async def test_turns_of_the_size_expected_share_a_pass(passes: Passes) -> None:
    """Readers that have used half a share in their last turns are let in two at a time."""
    done = Counter[int]()

    async def read() -> None:
        reader = Reader()
        for turn in range(6):
            await reader.begin()
            if turn > 1:  # not the first one, of which nothing is known before
                done[passes.number] += 1
            reader.spend(SHORT_TURN)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(read)
    assert max(done.values()) <= 3


async def test_turn_is_short_while_others_wait() -> None:
    alone = Reader()
    await alone.begin()
    assert alone.turn == TURN
    alone.spend(TURN)
    turns = []

    async def read(reader: Reader) -> None:
        await reader.begin()
        turns.append(reader.turn)
        reader.spend(reader.turn)

    async with trio.open_nursery() as nursery:
        for reader in (alone, Reader(), Reader()):
            nursery.start_soon(read, reader)
    assert sorted(turns) == [SHORT_TURN, SHORT_TURN, TURN]


async def test_reader_that_has_used_little_goes_before_those_that_use_much(passes: Passes) -> None:
    order: list[str] = []

    async def flood() -> None:
        reader = Reader()
        while True:
            await reader.begin()
            reader.spend(reader.turn)
            order.append("flood")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(flood)
        while len(order) < 500:
            await trio.lowlevel.checkpoint()
        honest, before = Reader(), []
        for _ in range(10):
            begin = len(order)
            await honest.begin()
            honest.spend(UNIT)
            before.append(len(order) - begin)
            for _ in range(20):
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(before) <= 6


async def test_crowd_that_connects_again_and_again_is_not_ahead() -> None:
    """Each of its connections is new, and ends with its first turn."""
    order: list[str] = []

    async def connect() -> None:
        while True:
            reader = Reader()
            await reader.begin(4 * SHORT_TURN)
            reader.spend(4 * SHORT_TURN)
            order.append("crowd")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(connect)
        while len(order) < 200:
            await trio.lowlevel.checkpoint()
        before = []
        for _ in range(10):
            begin = len(order)
            await Reader().pay(UNIT)
            before.append(len(order) - begin)
        nursery.cancel_scope.cancel()
    assert max(before) <= 3


async def test_readers_that_send_without_end_get_equal_shares() -> None:
    used = Counter[int]()

    async def flood(number: int, units: int) -> None:
        reader = Reader()
        while True:
            await reader.begin()
            reader.spend(units)
            used[number] += units
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(10):
            nursery.start_soon(flood, number, SHORT_TURN if number % 2 else SHORT_TURN // 2)
        while used.total() < 1000 * SHORT_TURN:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(used.values()) <= 1.5 * min(used.values())


async def test_requests_of_one_connection_wait_behind_each_other() -> None:
    order: list[str] = []

    async def ask(reader: Reader, name: str) -> None:
        await reader.pay(SHARE)
        order.append(name)

    many = Reader()
    await Reader().pay(SHARE)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(ask, many, "many")
        await trio.lowlevel.checkpoint()
        nursery.start_soon(ask, Reader(), "one")
    assert order.index("one") <= 4


async def test_reader_that_is_cancelled_keeps_no_other_waiting() -> None:
    await Reader().pay(SHARE)
    with trio.CancelScope() as scope:
        scope.cancel()
        await Reader().pay(1)
    assert scope.cancelled_caught
    await wait_all_tasks_blocked()
    assert not of_run().line
    with trio.fail_after(5):
        for _ in range(3):
            await Reader().pay(SHARE)


async def test_listener_accepts_while_many_connections_flood() -> None:
    accepted, turns = 0, 0

    async def flood() -> None:
        nonlocal turns
        reader = Reader()
        while True:
            await reader.begin()
            reader.spend(reader.turn)
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(50):
            nursery.start_soon(flood)
        listener = Reader(ACCEPTING)
        while turns < 50:
            await trio.lowlevel.checkpoint()
        turns = 0
        while turns < 500:
            await listener.pay(CONNECTION)
            accepted += 1
        nursery.cancel_scope.cancel()
    assert 100 < accepted < 1000  # and those who are connected are served, too
