"""What a connection publishes is stored in portions, of which several are under way: in order, and told of in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import ChannelKey, PublishedMessage
from mq.amqp.server.backpressure import Backlog, FullStoreAlarm
from mq.amqp.server.copies import Copy
from mq.amqp.server.publish_pump import MOST_PORTIONS, MOST_TOGETHER, PublisherLink, PublishPump, Unstored
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.properties import NONE
from mq.broker import Draft
from mq.broker.commit import StoreProgress
from mq.doors.budget import Budget, Use
from mq.errors import BodyTooLarge, MQError, NotServed, QueueFull, StorageFailed, StorageFull

Q = Queue("/", "q", durable=True)


class Stores:
    """Stands for the queues. Each portion stays until it is let go; by its number, from 0.

    Attributes:
        begun: the first message of each portion that was given to the store, in order.
        ends: by the number of a portion, how it ends: with an error, or well.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ends: dict[int, MQError | None] = {}
        self.gives_place = True
        self.refusal: MQError | None = None
        self.progress = StoreProgress()
        self._changed = trio.Condition()

    def publish_now(self, queue: str, drafts: Sequence[Draft], done: Callable[[list[MQError]], None]) -> bool:
        """Refuse them at once, or have a task store them."""
        if self.refusal is not None:
            done([self.refusal] * len(drafts))
        return self.refusal is not None

    async def store(self, copies: Sequence[Copy], has_place: Callable[[], object]) -> list[tuple[Copy, MQError | None]]:
        first = int(copies[0].publication.body)
        self.begun.append(first)
        if self.gives_place:
            has_place()
        while first // MOST_TOGETHER not in self.ends:
            async with self._changed:
                await self._changed.wait()
        error = self.ends[first // MOST_TOGETHER]
        return [(copy, error) for copy in copies]

    async def end(self, number: int, error: MQError | None = None) -> None:
        self.ends[number] = error
        async with self._changed:
            self._changed.notify_all()
        await trio.testing.wait_all_tasks_blocked()


class Pump:
    """A pump, its connection, and what this has confirmed."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.stores = Stores()
        self.told: list[int] = []
        self.refusals: list[int] = []
        self.raised: list[Exception] = []
        self.alarm = FullStoreAlarm()
        self.start = nursery.start_soon
        self.lose_publishes = self.end_after_error = self.raised.append
        topology = SimpleNamespace(consumers=SimpleNamespace(count=lambda queue: 0))
        state = SimpleNamespace(
            broker=self.stores, copies=self.stores, topology=topology, alarm=self.alarm, backlog=Backlog()
        )
        room = Budget(1 << 24).client("client").reserve(Use.BACKLOG)
        self.pump = PublishPump(cast("AmqpState", state), cast("PublisherLink", self), room)

    @property
    def connection(self) -> Any:
        """Itself: it notes what is stored."""
        return self

    def published(self, messages: Sequence[PublishedMessage], *, is_stored: bool) -> None:
        """Note that messages are stored."""
        assert is_stored
        self.told += [int(message.body) for message in messages]

    def refused(self, unstored: Unstored) -> None:
        """Note that messages are refused."""
        self.refusals += [int(message.body) for message in unstored.refused()]

    def send_answers(self) -> None:
        """There is no client."""

    def message(self, number: int) -> PublishedMessage:
        return PublishedMessage(ChannelKey(1, 1), number, "", "q", (Q,), NONE, b"%d" % number, None)

    async def put(self, portions: int) -> None:
        self.pump.put([self.message(number) for number in range(portions * MOST_TOGETHER)])
        await trio.testing.wait_all_tasks_blocked()

    def begun(self) -> list[int]:
        """The numbers of the portions that were given to the store."""
        return [first // MOST_TOGETHER for first in self.stores.begun]

    def told_portions(self) -> list[int]:
        """The numbers of the portions that were told of, each whole and in order."""
        assert self.told == list(range(len(self.told)))
        return list(range(len(self.told) // MOST_TOGETHER))


@pytest.fixture
async def pump(nursery: trio.Nursery) -> AsyncIterator[Pump]:
    yield Pump(nursery)
    nursery.cancel_scope.cancel()


async def test_a_portion_begins_once_the_one_before_has_its_place(pump: Pump) -> None:
    await pump.put(3)
    assert pump.begun() == [0, 1, 2]


async def test_without_a_place_it_begins_once_the_one_before_is_stored(pump: Pump) -> None:
    pump.stores.gives_place = False
    await pump.put(3)
    assert pump.begun() == [0]
    await pump.stores.end(0)
    assert pump.begun() == [0, 1]


async def test_what_is_stored_first_is_told_of_in_its_turn(pump: Pump) -> None:
    await pump.put(4)
    await pump.stores.end(2)
    await pump.stores.end(1)
    assert pump.told_portions() == []
    await pump.stores.end(0)
    assert pump.told_portions() == [0, 1, 2]
    await pump.stores.end(3)
    assert pump.told_portions() == [0, 1, 2, 3]


async def test_so_many_portions_are_under_way_and_no_more(pump: Pump) -> None:
    await pump.put(MOST_PORTIONS + 2)
    assert pump.begun() == list(range(MOST_PORTIONS))
    await pump.stores.end(1)
    assert len(pump.begun()) == MOST_PORTIONS
    await pump.stores.end(0)
    assert pump.begun() == list(range(MOST_PORTIONS + 2))


async def test_while_one_waits_for_room_no_other_begins(autojump_clock: MockClock, pump: Pump) -> None:
    pump.stores.gives_place = False
    await pump.put(1)
    await pump.stores.end(0, StorageFull("no room"))
    assert pump.alarm.why == "no room"
    pump.stores.gives_place = True
    await pump.put(3)
    await trio.sleep(10)
    assert set(pump.begun()) == {0}
    pump.stores.ends = {0: None}
    await trio.sleep(2)
    assert pump.begun()[-3:] == [0, 1, 2]
    assert pump.alarm.why == ""


async def test_the_alarm_stays_while_any_waits_for_room(autojump_clock: MockClock, pump: Pump) -> None:
    await pump.put(3)
    await pump.stores.end(0, StorageFull("no room"))
    await pump.stores.end(1)
    assert pump.alarm.why == "no room"
    assert pump.told == []
    pump.stores.ends[0] = None
    await trio.sleep(2)
    assert pump.alarm.why == ""
    assert pump.told_portions() == [0, 1]


async def test_what_is_under_way_when_the_store_fails_is_lost_with_what_waits(pump: Pump) -> None:
    await pump.put(MOST_PORTIONS + 1)
    await pump.stores.end(0)
    failure = StorageFailed("what a pity")
    await pump.stores.end(2, failure)
    await pump.stores.end(1)
    assert pump.raised == [failure]
    assert pump.told_portions() == [0]
    assert (pump.pump.lost, pump.pump.why) == (MOST_PORTIONS * MOST_TOGETHER, "what a pity")
    with pytest.raises(StorageFailed):
        await pump.pump.wait_for_all()


async def test_few_messages_are_stored_while_others_are_under_way(pump: Pump) -> None:
    await pump.put(1)
    pump.pump.put([pump.message(number) for number in range(MOST_TOGETHER, MOST_TOGETHER + 5)])
    await trio.testing.wait_all_tasks_blocked()
    assert pump.begun() == [0, 1]


@pytest.mark.parametrize("refusal", [QueueFull("full"), BodyTooLarge("long"), NotServed("elsewhere")])
async def test_a_refusal_is_answered_in_the_step_that_hears_of_it(pump: Pump, refusal: MQError) -> None:
    pump.stores.refusal = refusal
    pump.pump.put([pump.message(0), pump.message(1)])
    assert (pump.refusals, pump.told, pump.pump.size) == ([0, 1], [], 0)


async def test_a_portion_without_room_waits_in_a_task(autojump_clock: MockClock, pump: Pump) -> None:
    pump.stores.refusal = StorageFull("no room")
    pump.pump.put([pump.message(0)])
    pump.stores.refusal, pump.stores.ends = None, {0: None}
    assert pump.refusals == pump.told == []
    await trio.sleep(2)
    assert (pump.refusals, pump.told) == ([], [0])
