"""Messages of a connection are stored in batches, of which several are under way: in order, and answered in order."""

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
from mq.amqp.server.backlog import Backlog, FullStoreAlarm
from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.server.copies import Copy
from mq.amqp.server.publishes import MOST_BATCHES, MOST_TOGETHER, PublishQueue
from mq.amqp.wire.properties import NONE
from mq.broker import Draft
from mq.broker.commit import StoreProgress
from mq.doors.budget import Budget
from mq.errors import BodyTooLarge, MQError, NotServed, QueueFull, StorageFailed, StorageFull

Q = Queue("/", "q", durable=True)


class Stores:
    """Stands for the queues. Each batch stays until it is let go; by its number, from 0.

    Attributes:
        begun: the first message of each batch that was given to the store, in order.
        ends: by the number of a batch, how it ends: with an error, or well.
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


class StubConnection:
    """A connection, and what it has confirmed."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.stores = Stores()
        self.told: list[int] = []
        self.refusals: list[int] = []
        self.raised: list[Exception] = []
        self.alarm = FullStoreAlarm()
        self.start = nursery.start_soon
        self.fail = self.end_after_error = self.raised.append
        topology = SimpleNamespace(consumers=SimpleNamespace(count=lambda queue: 0))
        self.state = SimpleNamespace(
            broker=self.stores, copies=self.stores, topology=topology, alarm=self.alarm, backlog=Backlog()
        )
        self.memory = Budget(1 << 24).client("client")
        self.now = trio.current_time
        self.queue = PublishQueue(cast("ClientConnection", self))

    @property
    def connection(self) -> Any:
        """Itself: it notes what is stored."""
        return self

    def published(self, messages: Sequence[PublishedMessage], *, is_stored: bool) -> None:
        """Note that messages are stored, or refused."""
        (self.told if is_stored else self.refusals).extend(int(message.body) for message in messages)

    def block(self, why: str) -> None:
        """Nothing is sent."""

    def unblock(self) -> None:
        """Nothing is sent."""

    def channel(self, key: ChannelKey) -> None:
        """None is open any more."""

    async def work_again(self) -> None:
        """There is nothing left to do."""

    peer = "a client"

    def send_answers(self) -> None:
        """There is no client."""

    def message(self, number: int) -> PublishedMessage:
        return PublishedMessage(ChannelKey(1, 1), number, "", "q", (Q,), NONE, b"%d" % number, None)

    async def put(self, batches: int) -> None:
        self.queue.put([self.message(number) for number in range(batches * MOST_TOGETHER)])
        await trio.testing.wait_all_tasks_blocked()

    def begun(self) -> list[int]:
        """The numbers of the batches that were given to the store."""
        return [first // MOST_TOGETHER for first in self.stores.begun]

    def answered_batches(self) -> list[int]:
        """The numbers of the batches that were told of, each whole and in order."""
        assert self.told == list(range(len(self.told)))
        return list(range(len(self.told) // MOST_TOGETHER))


@pytest.fixture
async def client(nursery: trio.Nursery) -> AsyncIterator[StubConnection]:
    yield StubConnection(nursery)
    nursery.cancel_scope.cancel()


async def test_a_batch_begins_once_the_one_before_has_its_place(client: StubConnection) -> None:
    await client.put(3)
    assert client.begun() == [0, 1, 2]


async def test_without_a_place_it_begins_once_the_one_before_is_stored(client: StubConnection) -> None:
    client.stores.gives_place = False
    await client.put(3)
    assert client.begun() == [0]
    await client.stores.end(0)
    assert client.begun() == [0, 1]


async def test_what_is_stored_first_is_told_of_in_its_turn(client: StubConnection) -> None:
    await client.put(4)
    await client.stores.end(2)
    await client.stores.end(1)
    assert client.answered_batches() == []
    await client.stores.end(0)
    assert client.answered_batches() == [0, 1, 2]
    await client.stores.end(3)
    assert client.answered_batches() == [0, 1, 2, 3]


async def test_so_many_batches_are_under_way_and_no_more(client: StubConnection) -> None:
    await client.put(MOST_BATCHES + 2)
    assert client.begun() == list(range(MOST_BATCHES))
    await client.stores.end(1)
    assert len(client.begun()) == MOST_BATCHES
    await client.stores.end(0)
    assert client.begun() == list(range(MOST_BATCHES + 2))


async def test_while_one_waits_for_room_no_other_begins(autojump_clock: MockClock, client: StubConnection) -> None:
    client.stores.gives_place = False
    await client.put(1)
    await client.stores.end(0, StorageFull("no room"))
    assert client.alarm.why == "no room"
    client.stores.gives_place = True
    await client.put(3)
    await trio.sleep(10)
    assert set(client.begun()) == {0}
    client.stores.ends = {0: None}
    await trio.sleep(2)
    assert client.begun()[-3:] == [0, 1, 2]
    assert client.alarm.why == ""


async def test_the_alarm_stays_while_any_waits_for_room(autojump_clock: MockClock, client: StubConnection) -> None:
    await client.put(3)
    await client.stores.end(0, StorageFull("no room"))
    await client.stores.end(1)
    assert client.alarm.why == "no room"
    assert client.told == []
    client.stores.ends[0] = None
    await trio.sleep(2)
    assert client.alarm.why == "no room"  # one is under way, and might be stored before it
    await client.stores.end(2)
    await trio.sleep(2)
    assert client.alarm.why == ""
    assert client.answered_batches() == [0, 1, 2]


async def test_what_is_under_way_when_the_store_fails_is_lost_with_what_waits(client: StubConnection) -> None:
    await client.put(MOST_BATCHES + 1)
    await client.stores.end(0)
    failure = StorageFailed("what a pity")
    await client.stores.end(2, failure)
    await client.stores.end(1)
    assert [str(refusal) for refusal in client.raised] == ["what a pity"]
    assert client.queue.failure is failure
    assert client.answered_batches() == [0]
    assert (client.queue.lost, str(client.queue.failure)) == (MOST_BATCHES * MOST_TOGETHER, "what a pity")
    with pytest.raises(StorageFailed):
        await client.queue.wait_until_empty()


async def test_few_messages_are_stored_while_others_are_under_way(client: StubConnection) -> None:
    await client.put(1)
    client.queue.put([client.message(number) for number in range(MOST_TOGETHER, MOST_TOGETHER + 5)])
    await trio.testing.wait_all_tasks_blocked()
    assert client.begun() == [0, 1]


@pytest.mark.parametrize("refusal", [QueueFull("full"), BodyTooLarge("long"), NotServed("elsewhere")])
async def test_a_refusal_is_answered_in_the_step_that_hears_of_it(client: StubConnection, refusal: MQError) -> None:
    client.stores.refusal = refusal
    client.queue.put([client.message(0), client.message(1)])
    assert (client.refusals, client.told, client.queue.size) == ([0, 1], [], 0)


async def test_a_batch_without_room_waits_in_a_task(autojump_clock: MockClock, client: StubConnection) -> None:
    client.stores.refusal = StorageFull("no room")
    client.queue.put([client.message(0)])
    client.stores.refusal, client.stores.ends = None, {0: None}
    assert client.refusals == client.told == []
    await trio.sleep(2)
    assert (client.refusals, client.told) == ([], [0])
