"""The rate of the last minute, against all that happened, looked through."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.doors.open_connections import SLOT_SECONDS, SLOTS, RecentRate


def test_before_anything_happens_it_is_none() -> None:
    assert RecentRate(7.0).per_second(7.0) == 0


def test_a_beginner_is_not_held_to_a_whole_minute() -> None:
    rate = RecentRate(100.0)
    rate.add(101.0, 6)
    assert rate.per_second(103.0) == 2
    assert rate.per_second(110.0) == pytest.approx(0.6)


def test_what_is_over_a_minute_ago_counts_no_more() -> None:
    rate = RecentRate(0.0)
    rate.add(1.0, 600)
    assert rate.per_second(59.9) == pytest.approx(600 / 59.9)
    assert rate.per_second(60.0) == 0
    rate.add(10_000.0, 55)
    assert rate.per_second(10_000.0) == 1


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(1, 50)), max_size=30), st.floats(0, 90))
def test_it_is_what_happened_since_the_first_slot_of_the_minute(steps: list[tuple[float, int]], wait: float) -> None:
    rate, now, happened = RecentRate(0.0), 0.0, []
    for pause, number in steps:
        now += pause
        rate.add(now, number)
        happened.append((now, number))
    now += wait
    first = max(now // SLOT_SECONDS - SLOTS + 1, 0) * SLOT_SECONDS
    recent = sum(number for when, number in happened if when >= first)
    assert rate.per_second(now) == pytest.approx(recent / max(now - first, 1.0))
