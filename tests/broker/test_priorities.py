"""Messages of a higher priority first, where the queue has priorities."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft
from tests.broker.conftest import START_NS
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


async def test_the_next_one_tells_how_long_it_has_been_there(broker: Broker) -> None:
    """Its place in the order is years ahead for a low priority: as an age that was none at all."""
    await broker.change_settings("q", {"max_priority": 9})
    begin_ns = START_NS + round(trio.current_time() * 1e9)
    await publish(broker, 0)
    await trio.sleep(100)
    assert (await broker.status("q")).oldest_ns == pytest.approx(begin_ns, abs=1e7)
    await publish(broker, 5)
    await wait_all_tasks_blocked()
    assert (await broker.status("q")).oldest_ns == pytest.approx(begin_ns + 100e9, abs=1e7)


async def test_a_priority_over_the_highest_is_the_highest(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 1})
    await publish(broker, 0, 1, 255)
    assert await all_of(broker) == [b"1", b"255", b"0"]


async def test_a_queue_without_priorities_keeps_its_order(broker: Broker) -> None:
    await publish(broker, 0, 255, 1)
    assert await all_of(broker) == [b"0", b"255", b"1"]


@pytest.mark.parametrize("wait", [0.0, 1.0])
async def test_a_confirmed_message_comes_before_all_of_a_lower_priority(broker: Broker, wait: float) -> None:
    """Also while the earlier one is delivered and the later one is not: the mover takes them batch by batch."""
    await broker.change_settings("q", {"max_priority": 9})
    for steps in range(30):
        await publish(broker, 0)
        await publish(broker, 5)
        for _ in range(steps % 10):
            await trio.lowlevel.checkpoint()
        [first] = await broker.hold("q", wait=wait)
        [second] = await broker.hold("q", wait=wait)
        assert [await each.message.body.read() for each in (first, second)] == [b"5", b"0"]
        await broker.acknowledge([first, second])
