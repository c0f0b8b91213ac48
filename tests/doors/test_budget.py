"""What requests may take of memory: reserved as a whole or refused, and given back whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from mq.doors.budget import ENOUGH_BYTES_PER_SECOND, PATIENCE_SECONDS, Budget
from mq.errors import BodyTooLarge, NoMemory


def test_what_is_free_is_reserved_and_given_back() -> None:
    budget = Budget(100)
    with budget.reserve(60) as first:
        assert budget.free == 40
        with pytest.raises(NoMemory, match=r"41 bytes .* try again"):
            budget.reserve(41)
        with budget.reserve(40):
            assert budget.free == 0
        first.cover(70)
        first.cover(10)
        assert (first.size, budget.free) == (70, 30)
    assert budget.free == 100


def test_more_than_there_is_is_no_matter_of_time() -> None:
    budget = Budget(100)
    with budget.reserve(1), pytest.raises(BodyTooLarge, match=r"101 bytes .* have 100"):
        budget.reserve(101)
    assert budget.free == 100


def test_what_is_refused_changes_nothing() -> None:
    budget = Budget(100)
    with budget.reserve(50), budget.reserve(10) as room:
        with pytest.raises(NoMemory):
            room.cover(51)
        assert (room.size, budget.free) == (10, 40)


def test_an_error_gives_it_back() -> None:
    budget = Budget(100)
    with pytest.raises(ValueError, match=r"whatever"), budget.reserve(50):
        raise ValueError("whatever")
    assert budget.free == 100


def test_it_shrinks_and_is_given_back_once() -> None:
    budget = Budget(100)
    room = budget.reserve(50)
    room.shrink(60)
    assert budget.free == 50
    room.shrink(20)
    assert budget.free == 80
    room.give_back()
    room.give_back()
    assert budget.free == 100


# Slow clients


class Trickle:
    """The same chunk again and again, with a pause before each."""

    def __init__(self, chunk: bytes, pause: float) -> None:
        self.chunk = chunk
        self.pause = pause

    def __aiter__(self) -> Trickle:
        return self

    async def __anext__(self) -> bytes:
        await trio.sleep(self.pause)
        return self.chunk


async def take(chunks: AsyncIterator[bytes], seconds: float) -> None:
    with trio.move_on_after(seconds):
        async for _ in chunks:
            pass


@pytest.mark.parametrize(("chunk", "is_slow"), [(b"x" * ENOUGH_BYTES_PER_SECOND, False), (b"x", True)])
async def test_who_sends_slowly_makes_room_when_others_want_it(
    autojump_clock: object, chunk: bytes, is_slow: bool
) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room, room.arriving(Trickle(chunk, 0.5), let_go.set) as arrival:
        await take(arrival, PATIENCE_SECONDS - 1)
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert not let_go.is_set()  # it may become faster
        await take(arrival, 2)
        budget.reserve(10).give_back()
        assert not let_go.is_set()  # there is enough
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert let_go.is_set() is is_slow


async def test_time_that_mq_itself_takes_is_not_the_clients(autojump_clock: object) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room, room.arriving(Trickle(b"x", 0), let_go.set) as arrival:
        await anext(arrival)
        await trio.sleep(PATIENCE_SECONDS * 2)
        with pytest.raises(NoMemory):
            budget.reserve(50)
        assert not let_go.is_set()


async def test_what_has_arrived_is_nobodys_to_take(autojump_clock: object) -> None:
    budget, let_go = Budget(100), trio.Event()
    with budget.reserve(90) as room:
        with room.arriving(Trickle(b"x", 1), let_go.set) as arrival:
            await take(arrival, PATIENCE_SECONDS * 2)
        with pytest.raises(NoMemory):
            budget.reserve(50)
    assert not let_go.is_set()
