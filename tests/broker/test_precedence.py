"""Consumers of one queue with priorities: who gets a message, and for whom it waits."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, Precedence, UnackedMessage
from tests.broker.test_broker import take
from tests.broker.test_unacked import bodies, publish


class Consumers:
    """Calls that hold messages, each one's answers by its name."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self.got: dict[str, list[bytes]] = defaultdict(list)
        self.held: list[UnackedMessage] = []
        self._broker = broker
        self._nursery = nursery

    async def ask(self, name: str, precedence: Precedence | None, most: int = 1) -> None:
        """Let a consumer wait for messages."""

        async def hold() -> None:
            held = await self._broker.hold("q", most, wait=math.inf, precedence=precedence)
            self.held += held
            self.got[name] += await bodies(held)

        self._nursery.start_soon(hold)
        await wait_all_tasks_blocked()

    async def publish(self, *sent: bytes) -> dict[str, list[bytes]]:
        """What they have got once these are published."""
        await publish(self._broker, *sent)
        await wait_all_tasks_blocked()
        return dict(self.got)


@pytest.fixture
async def consumers(autojump_clock: MockClock, broker: Broker, nursery: trio.Nursery) -> Consumers:
    return Consumers(broker, nursery)


async def test_the_highest_gets_what_it_can_take_and_the_next_the_rest(consumers: Consumers) -> None:
    high = Precedence(7)
    await consumers.ask("low", Precedence(-1), 9)
    await consumers.ask("none", None, 2)
    await consumers.ask("high", high, 2)
    assert await consumers.publish(b"1", b"2", b"3", b"4", b"5") == {"high": [b"1", b"2"]}
    high.step_aside()
    await wait_all_tasks_blocked()
    assert consumers.got == {"high": [b"1", b"2"], "none": [b"3", b"4"], "low": [b"5"]}


async def test_equal_ones_have_their_turns(consumers: Consumers) -> None:
    equals = {name: Precedence(3) for name in "ab"}
    for round in range(3):
        for name, precedence in equals.items():
            await consumers.ask(name, precedence)
        await consumers.publish(b"%d" % (2 * round), b"%d" % (2 * round + 1))
    assert consumers.got == {"a": [b"0", b"2", b"4"], "b": [b"1", b"3", b"5"]}


async def test_a_lower_one_waits_while_the_higher_one_is_on_its_way_back(consumers: Consumers, broker: Broker) -> None:
    high, low = Precedence(1), Precedence()
    await consumers.ask("high", high, 9)
    await consumers.ask("low", low)
    assert await consumers.publish(b"1") == {"high": [b"1"]}
    assert await consumers.publish(b"2") == {"high": [b"1"]}
    await consumers.ask("high", high, 9)
    assert consumers.got == {"high": [b"1", b"2"]}
    await consumers.publish(b"3")
    high.step_aside()
    await wait_all_tasks_blocked()
    assert consumers.got == {"high": [b"1", b"2"], "low": [b"3"]}
    high.step_aside()  # again, and of one that nothing is kept for
    low.step_aside()


async def test_what_a_request_that_does_not_wait_finds_it_gets(consumers: Consumers, broker: Broker) -> None:
    """It would be told that the queue is empty, which it is not."""
    await consumers.ask("high", Precedence(1))
    await consumers.publish(b"1", b"2")
    await consumers.ask("low", Precedence())
    assert await take(broker) == b"2"
    assert consumers.got == {"high": [b"1"]}


async def test_a_consumer_that_goes_while_it_is_away_holds_up_nobody(consumers: Consumers, broker: Broker) -> None:
    high = Precedence(1)
    await consumers.ask("high", high)
    await consumers.ask("low", Precedence(-5))
    await consumers.publish(b"1", b"2")
    with trio.move_on_after(1) as scope:
        await broker.hold("q", 1, wait=math.inf, precedence=high)  # it gets the second, and holds its place again
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await consumers.publish(b"3") == {"high": [b"1"]}
    high.step_aside()
    await wait_all_tasks_blocked()
    assert consumers.got == {"high": [b"1"], "low": [b"3"]}


async def test_a_fetch_that_waits_has_the_priority_of_those_that_say_nothing(
    consumers: Consumers, broker: Broker, nursery: trio.Nursery
) -> None:
    fetched = []

    async def fetch() -> None:
        message = await broker.fetch("q", wait=60)
        assert message is not None
        fetched.append(await message.body.read())

    high = Precedence(1)
    await consumers.ask("low", Precedence(-1))
    nursery.start_soon(fetch)
    await consumers.ask("high", high)
    await consumers.publish(b"1", b"2", b"3")
    assert (consumers.got, fetched) == ({"high": [b"1"]}, [])
    high.step_aside()
    await wait_all_tasks_blocked()
    assert (consumers.got, fetched) == ({"high": [b"1"], "low": [b"3"]}, [b"2"])
