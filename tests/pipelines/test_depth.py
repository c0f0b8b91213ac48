"""The depth of queues over time, from a journal's transitions and censuses, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from mq.spark.pipelines.depth import QueueChange, Stretch, depths

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def test_depth_is_counted_on_from_a_census() -> None:
    stretches = [Stretch((0, 0), at(0), {"q": 5, "r": 1})]
    changes = [QueueChange((1, 0), at(7), 0, -6), QueueChange((0, 0), at(3), 0, 2)]
    assert list(depths("q", changes, stretches)) == [(at(0), 5), (at(3), 7), (at(7), 1)]


def test_depth_of_a_queue_that_a_census_does_not_have_begins_at_none() -> None:
    stretches = [Stretch((0, 0), at(0), {})]
    assert list(depths("new", [QueueChange((0, 0), at(2), 0, 3)], stretches)) == [(at(0), 0), (at(2), 3)]


def test_depth_is_unknown_behind_a_gap_until_the_next_census() -> None:
    """The next run has the era of the gap: it began after an orderly stop."""
    stretches = [Stretch((0, 0), at(0), {"q": 1}), Stretch((0, 1), at(9), None), Stretch((1, 1), at(20), {"q": 9})]
    changes = [
        QueueChange((0, 0), at(1), 0, 1),
        QueueChange((0, 1), at(10), 0, 1),
        QueueChange((0, 1), at(12), 0, -1),
        QueueChange((1, 1), at(21), 0, -9),
    ]
    assert list(depths("q", changes, stretches)) == [
        (at(0), 1),
        (at(1), 2),
        (at(9), None),
        (at(20), 9),
        (at(21), 0),
    ]


def test_messages_of_a_deleted_queue_are_gone_from_its_depth() -> None:
    stretches = [Stretch((0, 0), at(0), {"q": 5})]
    changes = [(1, 0, 1), (2, 0, -1), (2, 1, 2), (4, 2, 0)]
    found = depths("q", [QueueChange((0, 0), at(second), *rest) for second, *rest in changes], stretches)
    assert list(found) == [(at(0), 5), (at(1), 6), (at(2), 2), (at(4), 0)]


def test_depth_without_a_census_is_unknown() -> None:
    assert list(depths("q", [QueueChange((3, 2), at(5), 0, -1)], [Stretch((3, 2), at(5), None)])) == [(at(5), None)]
