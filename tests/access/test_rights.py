"""What a user may do, and where."""

from __future__ import annotations

import time

import pytest

from mq.access.rights import Right, User
from tests.cases import for_each


def user(**rights: str) -> User:
    return User("alice", {Right(word): tuple(patterns.split()) for word, patterns in rights.items()})


@for_each(
    "pattern, queue, fits",
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "my-orders", False),
        ("orders", "Orders", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.north", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("orders.*", "ordersXeu", False),
        ("*.eu", "orders.eu", True),
        ("*", "anything", True),
        ("*", "two\nlines", True),
        ("q?", "q1", True),
        ("q?", "q", False),
        ("q[12]", "q1", False),
        ("q[12]", "q[12]", True),
        ("q", "q\n", False),
    ],
)
def test_patterns(pattern: str, queue: str, fits: bool) -> None:
    assert user(publish=pattern).may(Right.PUBLISH, queue) is fits


def test_one_right_is_not_another() -> None:
    alice = user(publish="a", consume="b c")
    assert alice.may(Right.PUBLISH, "a")
    assert alice.may(Right.CONSUME, "c")
    assert not alice.may(Right.CONSUME, "a")
    assert not alice.may(Right.CONFIGURE, "a")
    assert not alice.may(Right.ADMINISTER, "a")


def test_any_right_is_something() -> None:
    alice = user(publish="a", consume="b", configure="c", administer="d")
    assert all(alice.may_something(queue) for queue in "abcd")
    assert not alice.may_something("e")


def test_who_may_administer_a_queue_may_do_everything_with_it() -> None:
    alice = user(administer="a*")
    assert all(alice.may(right, "a1") for right in Right)
    assert not any(alice.may(right, "b1") for right in Right)


@pytest.mark.parametrize(("patterns", "may"), [("*", True), ("a* b* *", True), ("?*", False), ("a*", False)])
def test_the_broker_as_a_whole_takes_every_queue(patterns: str, may: bool) -> None:
    assert user(administer=patterns).may(Right.ADMINISTER, None) is may


def test_without_rights_nothing_is_allowed() -> None:
    assert not any(user().may(right, queue) for right in Right for queue in ("q", "*", None))


def test_a_pattern_of_many_stars_takes_no_time() -> None:
    """Real time: a matcher that tries every way would take years."""
    since = time.monotonic()
    assert not user(publish="*a" * 100).may(Right.PUBLISH, "a" * 99 + "b")
    assert time.monotonic() - since < 5
