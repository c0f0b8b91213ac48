"""What requests may take of memory: reserved as a whole or refused, and given back whatever happens."""

from __future__ import annotations

import pytest

from mq.doors.budget import Budget
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
