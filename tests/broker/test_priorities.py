"""Messages of a higher priority first, where the queue has priorities."""

from __future__ import annotations

from mq.broker import Broker, Draft
from tests.broker.test_broker import take


async def publish(broker: Broker, *priorities: int) -> None:
    await broker.publish_many("q", [Draft(b"%d" % priority, priority=priority) for priority in priorities])


async def all_of(broker: Broker) -> list[bytes]:
    found = []
    while (body := await take(broker)) is not None:
        found.append(body)
    return found


async def test_a_higher_one_is_handed_out_first(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 9})
    await publish(broker, 0, 5, 9, 5, 1)
    assert await all_of(broker) == [b"9", b"5", b"5", b"1", b"0"]


async def test_a_priority_over_the_highest_is_the_highest(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 1})
    await publish(broker, 0, 1, 255)
    assert await all_of(broker) == [b"1", b"255", b"0"]


async def test_a_queue_without_priorities_keeps_its_order(broker: Broker) -> None:
    await publish(broker, 0, 255, 1)
    assert await all_of(broker) == [b"0", b"255", b"1"]
