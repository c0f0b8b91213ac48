"""The limits of one user: connections, and messages published a second."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from mq.access import User
from mq.access.user_limits import UserLimits
from mq.doors.open_connections import OpenConnections
from mq.doors.quotas import Quotas
from mq.errors import OverLimit


@dataclass
class OpenOne:
    """A connection of a user."""

    user: str | None
    door: str = "http"

    def status(self) -> Any:
        raise NotImplementedError

    def consumers(self) -> Any:
        raise NotImplementedError

    def close(self, why: str) -> None:
        raise NotImplementedError


def limited(**limits: Any) -> User:
    return User("alice", {}, UserLimits(**limits))


async def test_connections_of_a_user_are_counted_over_all_doors() -> None:
    seen = OpenConnections()
    quotas = Quotas(seen)
    with ExitStack() as entries:
        for user, door in (("alice", "http"), ("bob", "http"), ("alice", "amqp"), (None, "amqp")):
            entries.enter_context(seen.entry(OpenOne(user, door)))
        quotas.check_connection(limited(connections=3))
        with pytest.raises(OverLimit, match=r"user alice has reached the maximum of 2 connections \(max_connections\)"):
            quotas.check_connection(limited(connections=2))
    quotas.check_connection(limited(connections=2))
    with pytest.raises(OverLimit):
        quotas.check_connection(limited(connections=0))
    assert quotas.refused == {"connections": 2}


async def test_user_without_limits_is_not_counted() -> None:
    quotas = Quotas()
    for _ in range(1000):
        quotas.check_connection(limited())
        quotas.check_publish(limited(), 1000)
        quotas.check_publish(None, 1000)
    quotas.count_publishes(limited(), 1000)
    assert quotas.pause_seconds(limited()) == 0
    assert not quotas.refused


async def test_messages_of_a_second_may_come_at_once_and_then_at_the_rate(autojump_clock: object) -> None:
    quotas, alice = Quotas(), limited(publish_rate=10.0)
    for _ in range(10):
        quotas.check_publish(alice)
    with pytest.raises(OverLimit) as refusal:
        quotas.check_publish(alice, 3)
    assert refusal.value.seconds == pytest.approx(0.3)
    await trio.sleep(0.31)
    quotas.check_publish(alice, 3)
    published, until = 0, trio.current_time() + 60
    while trio.current_time() < until:
        try:
            quotas.check_publish(alice)
            published += 1
        except OverLimit as error:
            await trio.sleep(error.seconds + 0.001)
    assert published == pytest.approx(600, abs=2)


async def test_batch_that_is_longer_than_a_second_is_taken_and_paid_afterwards(autojump_clock: object) -> None:
    """Else it could never be published."""
    quotas, alice = Quotas(), limited(publish_rate=10.0)
    quotas.check_publish(alice, 1000)
    with pytest.raises(OverLimit) as refusal:
        quotas.check_publish(alice)
    assert refusal.value.seconds == pytest.approx(99.1)


async def test_a_user_does_not_use_up_the_rate_of_another() -> None:
    quotas = Quotas()
    quotas.check_publish(limited(publish_rate=1.0))
    with pytest.raises(OverLimit):
        quotas.check_publish(limited(publish_rate=1.0))
    quotas.check_publish(User("bob", {}, UserLimits(publish_rate=1.0)))


async def test_a_changed_rate_counts_at_once(autojump_clock: object) -> None:
    quotas = Quotas()
    quotas.count_publishes(limited(publish_rate=1.0), 101)
    assert quotas.pause_seconds(limited(publish_rate=1.0)) == pytest.approx(100)
    assert quotas.pause_seconds(limited(publish_rate=100.0)) == pytest.approx(1)
    assert quotas.pause_seconds(limited()) == 0


async def test_refusals_are_logged_once_a_minute(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    quotas = Quotas()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(OverLimit):
                quotas.check_connection(limited(connections=0))
    [line] = caplog.messages
    assert line.startswith("refused a connection of user alice, who already has the maximum number of connections: 0 (")
