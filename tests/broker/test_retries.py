"""What becomes of a message whose work failed: how long it waits, and what is told of it when it dies."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio

from mq.broker import Broker, QueueSettings
from mq.errors import InvalidSetting, NotLeased, ReceiptMismatch
from mq.lifecycle import Kind, State
from mq.message import Message
from tests.broker.conftest import Legal, Opener

WAITS = {"retry_delay": 10, "retry_jitter": 0}


async def lent(broker: Broker, wait: float = 0.0) -> Message:
    message = await broker.fetch("q", wait=wait)
    assert message is not None
    return message


async def until_it_comes(broker: Broker) -> float:
    """Seconds until the next message of q is handed out; it is leased then."""
    began = trio.current_time()
    await lent(broker, wait=3600)
    return trio.current_time() - began


def test_waits_grow_to_the_longest_and_are_never_negative() -> None:
    settings = QueueSettings(retry_delay=10, retry_factor=3, retry_max=100, retry_jitter=0)
    assert [settings.retry_seconds(receives, Random(1)) for receives in range(5)] == [10, 10, 30, 90, 100]
    assert settings.retry_seconds(10**6, Random(1)) == 100
    assert QueueSettings().retry_seconds(5, Random(1)) == 0


def test_waits_are_spread_by_chance_and_none_is_longer_than_said() -> None:
    settings, random = QueueSettings(retry_delay=10, retry_jitter=0.5), Random(1)
    waits = [settings.retry_seconds(1, random) for _ in range(1000)]
    assert 5 <= min(waits) < 5.1
    assert 9.9 < max(waits) <= 10


async def test_each_failure_waits_longer(broker: Broker, observer: Legal) -> None:
    await broker.change_settings("q", WAITS)
    id = await broker.publish("q", b"x")
    for wait in (10, 40, 160):  # every other time it is given back at once
        message = await lent(broker)
        await broker.requeue("q", id, receipt=message.receipt, delay=None)
        assert (await broker.status("q")).delayed == 1
        assert await until_it_comes(broker) == pytest.approx(wait, abs=0.01)
        await broker.requeue("q", id)
    steps = {(seen.source, seen.target) for seen in observer.seen if seen.kind is Kind.DELAY}
    assert steps == {(State.DELAYED, State.DELAYED)}


async def test_again_in_ninety_seconds(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    message = await lent(broker)
    await broker.requeue("q", id, receipt=message.receipt, delay=90)
    assert await until_it_comes(broker) == pytest.approx(90, abs=0.01)


async def test_who_gave_it_back_has_it_no_more(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    message = await lent(broker)
    await broker.requeue("q", id, receipt=message.receipt, delay=90)
    for change in (broker.requeue, broker.remove):
        with pytest.raises(ReceiptMismatch):
            await change("q", id, receipt=message.receipt)
    with pytest.raises(NotLeased):
        await broker.requeue("q", id, delay=5)
    await broker.remove("q", id)


@pytest.mark.parametrize("delay", [-1, 315_576_001, "soon", True])
async def test_a_delay_that_makes_no_sense_changes_nothing(broker: Broker, delay: Any) -> None:
    id = await broker.publish("q", b"x")
    message = await lent(broker)
    with pytest.raises(InvalidSetting):
        await broker.requeue("q", id, receipt=message.receipt, delay=delay)
    await broker.remove("q", id, receipt=message.receipt)


async def test_an_ended_lease_waits_too(broker: Broker) -> None:
    await broker.change_settings("q", {**WAITS, "visibility": 5})
    await broker.publish("q", b"x")
    await lent(broker)
    assert await until_it_comes(broker) == pytest.approx(15, abs=0.01)
    assert await until_it_comes(broker) == pytest.approx(25, abs=0.01)


async def test_who_comes_too_late_may_remove_while_it_waits(broker: Broker) -> None:
    await broker.change_settings("q", {**WAITS, "visibility": 5})
    id = await broker.publish("q", b"x")
    message = await lent(broker)
    await trio.sleep(12)
    assert await broker.fetch("q") is None
    await broker.remove("q", id, receipt=message.receipt)


async def test_both_waits_outlive_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {**WAITS, "visibility": 100})
        failed = await broker.publish("q", b"failed")
        message = await lent(broker)
        await broker.requeue("q", failed, receipt=message.receipt, delay=None)
        left = await broker.publish("q", b"left")
        await lent(broker)
        began = trio.current_time()
        await trio.sleep(3)
    async with opened(disk_address) as broker:
        first, second = await lent(broker, wait=3600), None
        assert (first.id, first.receives) == (failed, 2)
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)
        await broker.remove("q", failed)
        second = await lent(broker, wait=3600)
        assert second.id == left
        assert trio.current_time() - began == pytest.approx(112, abs=0.5)  # the margin of a lease on disk is in it


async def with_the_dead(broker: Broker, **settings: Any) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead", **settings})


async def test_the_last_reason_is_told_among_the_dead(broker: Broker) -> None:
    await with_the_dead(broker)
    id = await broker.publish("q", b"x")
    for reason in ("the first", "the second"):
        message = await lent(broker)
        await broker.requeue("q", id, receipt=message.receipt, delay=None, reason=reason)
    [seen] = await broker.peek("dead")
    assert [(death["reason"], death["error"]) for death in seen.message.dead_letter_history] == [
        ("receives", "the second")
    ]


async def test_a_reason_is_kept_over_a_restart_until_it_dies_of_a_lease(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await with_the_dead(broker)
        id = await broker.publish("q", b"x")
        message = await lent(broker)
        await broker.requeue("q", id, receipt=message.receipt, reason="out of paper")
    async with opened(disk_address) as broker:
        await lent(broker)
        await trio.sleep(31)
        [seen] = await broker.peek("dead")
        assert [death["error"] for death in seen.message.dead_letter_history] == ["out of paper"]


async def test_a_worn_out_message_dies_at_once_and_does_not_wait(broker: Broker) -> None:
    await with_the_dead(broker, **WAITS, visibility=5)
    await broker.publish("q", b"x")
    await lent(broker)
    assert await until_it_comes(broker) == pytest.approx(15, abs=0.01)
    await trio.sleep(5.1)
    assert (await broker.status("dead")).ready == 1


async def test_the_reason_of_a_removed_message_is_forgotten(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x")
        message = await lent(broker)
        await broker.requeue("q", id, receipt=message.receipt, reason="out of paper")
        await broker.remove("q", id)
        for _ in range(2):
            other = await broker.publish("q", b"y")
            message = await lent(broker)
            await broker.requeue("q", other, receipt=message.receipt, reason="again")
            await broker.remove("q", other)
        records = await broker.declarations.records("death")
        assert all(id not in str(record) for record in records.values())


# Held by a connection


async def test_a_nack_waits_where_the_queue_says_so_and_counts(broker: Broker, observer: Legal) -> None:
    await broker.change_settings("q", WAITS)
    await broker.publish("q", b"x")
    for wait in (10, 20):
        [held] = await broker.hold("q")
        await broker.put_back([held], failed=True)
        began = trio.current_time()
        assert await broker.hold("q") == []
        [held] = await broker.hold("q", wait=3600)
        assert held.redelivered
        assert trio.current_time() - began == pytest.approx(wait, abs=0.01)
        await broker.put_back([held])
    assert (State.READY, State.DELAYED) in {(seen.source, seen.target) for seen in observer.seen}


async def test_a_nack_comes_back_at_once_where_the_queue_says_nothing(broker: Broker) -> None:
    await broker.publish("q", b"x")
    [held] = await broker.hold("q")
    await broker.put_back([held], failed=True)
    [held] = await broker.hold("q")
    assert held.message.receives == 1


@pytest.mark.parametrize("turns", range(12))
async def test_each_nack_is_done_once_when_settings_change_meanwhile(broker: Broker, turns: int) -> None:
    """What counts is asked once, not again when the messages that count were put back."""
    await broker.create_queue("r")
    await broker.change_settings("q", WAITS)
    for queue in ("q", "r"):
        await broker.publish(queue, b"x")
    held = [*await broker.hold("q"), *await broker.hold("r")]

    async with trio.open_nursery() as changing:
        changing.start_soon(broker.change_settings, "q", {"retry_delay": 0})
        changing.start_soon(broker.change_settings, "r", WAITS)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        await broker.put_back(held, failed=True)
    for queue in ("q", "r"):
        assert len(await broker.hold(queue, 2, wait=3600)) == 1
        assert await broker.hold(queue, wait=3600) == []


async def test_nacks_count_for_max_receives(broker: Broker) -> None:
    await with_the_dead(broker, **WAITS)
    await broker.publish("q", b"x")
    for _ in range(2):
        [held] = await broker.hold("q", wait=3600)
        await broker.put_back([held], failed=True)
    assert (await broker.status("dead")).ready == 1
