"""The door and a broker: what is asked for happens, and is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from pamqp import commands, frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from trio.testing import MockClock

from mq.access import UserDirectory
from mq.amqp.model import declared
from mq.amqp.model.declared import Queue as Declared
from mq.amqp.model.vhost import TopologyChange
from mq.amqp.protocol.session import MESSAGE_OVERHEAD
from mq.amqp.server import settling
from mq.amqp.server.publishes import MOST_TOGETHER
from mq.amqp.server.served_consumer import ServedConsumer
from mq.amqp.server.state import UnusedQueues
from mq.amqp.wire.properties import NONE
from mq.broker import Draft, UnackedMessage
from mq.broker.commit import PATIENCE_SECONDS, Done
from mq.doors.budget import PATIENCE_SECONDS as SLOW_SECONDS
from mq.doors.budget import UNCOUNTED_BYTES, Budget
from mq.doors.logins import Logins
from mq.errors import MQError, NotServed, QueueHeld, StorageFull
from mq.message import QueueName
from mq.storage.interface import Operation, Outcome, Result
from mq.storage.memory import MemoryStorage
from tests.access.files import OTHER_TOKEN, TOKEN, write_users
from tests.amqp.dialling import Client, House, open_house
from tests.amqp.talking import words

Basic, Queue, Confirm, Tx, Exchange, Channel = (
    commands.Basic,
    commands.Queue,
    commands.Confirm,
    commands.Tx,
    commands.Exchange,
    commands.Channel,
)


async def confirmed(client: Client, *bodies: bytes, queue: str = "q", **properties: object) -> None:
    """Publish, and wait for the confirms."""
    await client.call(Confirm.Select())
    await client.publish(queue, *bodies, **properties)
    missing = len(bodies)
    last = 0
    while missing:
        ack = await client.hear()
        assert ack.name == "Basic.Ack"
        missing -= ack.delivery_tag - last if ack.multiple else 1
        last = ack.delivery_tag


# Publish, get, consume


async def test_what_is_published_is_got_with_its_properties(autojump_clock: MockClock, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"hello", content_type="text/plain", headers={"n": 1, "s": "x"}, correlation_id="7")
    got = await client.get()
    assert got is not None
    method, properties, body = got
    assert (body, method.routing_key, method.exchange, method.redelivered) == (b"hello", "q", "", False)
    assert (properties.content_type, properties.headers, properties.correlation_id) == (
        "text/plain",
        {"n": 1, "s": "x"},
        "7",
    )
    assert await client.get() is None


@pytest.mark.parametrize("has_confirms", [True, False])
async def test_what_is_too_long_for_its_queue_is_refused_on_its_channel(
    autojump_clock: MockClock, has_confirms: bool
) -> None:
    """Queues of a cluster take less than the door does."""
    async with open_house(max_body=10) as house:
        client = await house.connect()
        await client.declare(durable=True)
        if has_confirms:
            await client.call(Confirm.Select())
        await client.publish("q", b"short", b"much too long", delivery_mode=2)
        told = [await client.hear()]
        while told[-1].name != "Channel.Close":
            told.append(await client.hear())
        assert {method.name for method in told[:-1]} == ({"Basic.Ack", "Basic.Nack"} if has_confirms else set())
        closed = told[-1]
        assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
        assert "1 message was not stored: the body exceeds the maximum of 10 bytes" in closed.reply_text
        await client.open_channel(2)
        assert (await client.call(Queue.Declare(queue="q", passive=True), 2)).message_count == 1


USERS = """
[users.alice]
tokens = ["TOKEN"]
administer = ["*"]
[users.bob]
tokens = ["OTHER_TOKEN"]
administer = ["*"]
"""
ANNOUNCED = 60_000 + MESSAGE_OVERHEAD + len(NONE.raw)
"""What a message with a body of 60,000 bytes reserves."""


def begun(size: int, have: int) -> bytes:
    """A message of which only so many bytes have come."""
    header = frame.marshal(ContentHeader(body_size=size, properties=Basic.Properties()), 1)
    return words(Basic.Publish(routing_key="q")) + header + frame.marshal(ContentBody(bytes(have)), 1)


async def test_what_is_announced_has_its_memory_before_it_comes(autojump_clock: MockClock) -> None:
    """All connections of the daemon share it, with the other doors."""
    async with open_house(memory=Budget(100_000)) as house:
        first, second = [await house.connect() for _ in range(2)]
        await first.declare()
        await first.stream.send_all(begun(60_000, 10))
        assert await first.is_silent()
        assert house.door.memory.free == 100_000 - ANNOUNCED
        await second.stream.send_all(begun(60_000, 10))
        closed = await second.hear()
        assert (closed.name, closed.reply_code) == ("Connection.Close", 506)
        assert f"not enough memory for {ANNOUNCED} bytes" in closed.reply_text
        await first.stream.send_all(frame.marshal(ContentBody(bytes(59_990)), 1))
        assert await first.count() == 1
        assert house.door.memory.free == 100_000


async def test_unfinished_messages_of_all_connections_of_a_user_share_its_quarter(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    access = UserDirectory(write_users(tmp_path / "users", USERS))
    async with open_house(memory=Budget(400_000, has_users=True), logins=Logins(access)) as house:
        first, second = [await house.connect(name="alice", secret=TOKEN) for _ in range(2)]
        other = await house.connect(name="bob", secret=OTHER_TOKEN)
        await first.stream.send_all(begun(60_000, 10))
        assert await first.is_silent()
        await second.stream.send_all(begun(60_000, 10))
        closed = await second.hear()
        assert (closed.name, closed.reply_code) == ("Connection.Close", 506)
        assert "the limit for user alice is 100000" in closed.reply_text
        await other.stream.send_all(begun(60_000, 10))
        assert await other.is_silent()
        assert house.door.memory.used >= 2 * ANNOUNCED
        await first.stream.aclose()
        await trio.sleep(1)
        assert house.door.memory.used < 2 * ANNOUNCED


async def test_a_message_that_comes_slowly_is_given_up_when_others_want_its_memory(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    async with open_house(memory=Budget(100_000)) as house:
        slow, fast = [await house.connect() for _ in range(2)]
        await fast.declare()
        await slow.stream.send_all(begun(60_000, 10))

        async def drip() -> None:
            with suppress(trio.BrokenResourceError):
                while True:
                    await trio.sleep(1)
                    await slow.stream.send_all(frame.marshal(ContentBody(b"x"), 1))

        nursery.start_soon(drip)
        await trio.sleep(SLOW_SECONDS + 2)
        assert house.door.memory.free == 100_000 - ANNOUNCED
        await fast.stream.send_all(begun(60_000, 10))
        assert (await fast.hear()).reply_code == 506
        closed = await slow.hear()
        assert (closed.name, closed.reply_code) == ("Connection.Close", 506)
        assert "arrived more slowly than 128 KiB per second" in closed.reply_text
        assert house.door.memory.free == 100_000
        again = await house.connect()
        await again.stream.send_all(begun(60_000, 60_000))
        assert await again.count() == 1
        nursery.cancel_scope.cancel()


async def test_messages_that_follow_one_another_are_not_slow(autojump_clock: MockClock) -> None:
    async with open_house(memory=Budget(100_000)) as house:
        first, second = [await house.connect() for _ in range(2)]
        await first.declare()
        for _ in range(5):
            await first.stream.send_all(begun(60_000, 10))
            await trio.sleep(SLOW_SECONDS - 1)
            await first.stream.send_all(frame.marshal(ContentBody(bytes(59_990)), 1))
            await trio.lowlevel.checkpoint()
        await first.stream.send_all(begun(60_000, 10))
        await trio.sleep(SLOW_SECONDS - 1)
        await second.stream.send_all(begun(60_000, 10))
        assert (await second.hear()).reply_code == 506
        await first.stream.send_all(frame.marshal(ContentBody(bytes(59_990)), 1))
        assert await first.count() == 6


@pytest.mark.parametrize("is_polite", [True, False])
async def test_a_client_that_goes_leaves_its_memory_to_others(autojump_clock: MockClock, is_polite: bool) -> None:
    async with open_house(memory=Budget(100_000)) as house:
        client = await house.connect()
        await client.stream.send_all(begun(60_000, 10))
        assert await client.is_silent()
        assert house.door.memory.free == 100_000 - ANNOUNCED
        if is_polite:
            await client.say(commands.Connection.Close(200, "bye", 0, 0), channel=0)
        await client.stream.aclose()
        await trio.sleep(1)
        assert house.door.memory.free == 100_000


async def test_a_get_sees_what_its_connection_has_published_just_before(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.declare()
    await client.publish("q", *(b"%d" % n for n in range(50)))
    assert await client.count() == 50
    assert await client.bodies() == [b"%d" % n for n in range(50)]


async def test_what_a_get_that_fails_has_taken_goes_back(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.declare(durable=True)
    await client.publish("q", bytes(UNCOUNTED_BYTES))

    async def look(queue: str) -> None:
        raise NotServed("the node that counts it is gone")

    with monkeypatch.context() as patched:
        patched.setattr(house.broker.declarations, "look", look)
        await client.say(Basic.Get(queue="q"))
        await client.hear()
    status = await house.broker.status("q")
    assert (status.ready, status.leased) == (1, 0)


async def test_a_publish_is_confirmed_once_it_is_stored(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(durable=True)
    await confirmed(client, b"a", b"b", delivery_mode=2)
    assert (await house.broker.status("q")).ready == 2


async def test_consumers_get_messages_in_turn(autojump_clock: MockClock, house: House, client: Client) -> None:
    other = await house.connect()
    await client.declare()
    await client.consume(tag="one", no_ack=True)
    await other.consume(tag="two", no_ack=True)
    await trio.sleep(1)
    for n in range(6):
        await confirmed(client, b"%d" % n) if n == 0 else await client.publish("q", b"%d" % n)
        await trio.sleep(1)
    first = [found async for found in _all(client)]
    second = [found async for found in _all(other)]
    assert sorted(first + second) == [b"%d" % n for n in range(6)]
    assert (len(first), len(second)) == (3, 3)


async def _all(client: Client):
    while not await client.is_silent():
        number, found = client.said.popleft()
        if found.name == "Basic.Ack":
            continue
        client.said.appendleft((number, found))
        yield (await client.delivery())[2]


async def test_prefetch_is_the_most_that_is_unsettled(autojump_clock: MockClock, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"0", b"1", b"2", b"3")
    await client.call(Basic.Qos(prefetch_count=2))
    await client.consume()
    assert [(await client.delivery())[2] for _ in range(2)] == [b"0", b"1"]
    assert await client.is_silent()
    await client.say(Basic.Ack(1))
    assert (await client.delivery())[2] == b"2"
    await client.say(Basic.Ack(3, multiple=True))
    assert (await client.delivery())[2] == b"3"


async def test_consumers_of_a_queue_are_counted_until_they_end(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    other = await house.connect()
    await client.declare()
    for each, tag in ((client, "one"), (client, "two"), (other, "three")):
        await each.consume(tag=tag)
    assert house.door.seen.consumers("q") == 3
    await client.call(Basic.Cancel(consumer_tag="one"))
    assert house.door.seen.consumers("q") == 2
    await other.close()
    await trio.sleep(10)
    assert (house.door.seen.consumers("q"), house.door.seen.consumers("another")) == (1, 0)


async def test_an_acknowledged_message_is_gone(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"0")
    got = await client.get()
    assert got is not None
    await client.say(Basic.Ack(got[0].delivery_tag))
    await client.close()
    await trio.sleep(1)
    other = await house.connect()
    assert await other.count() == 0


class OtherwiseAcknowledging:
    """A broker that acknowledges in another way. The compiled one's methods cannot be replaced."""

    def __init__(self, house: House, acknowledge: Callable[..., Awaitable[None]]) -> None:
        self._broker = house.broker
        self.acknowledge = acknowledge

    def acknowledge_now(self, held: Sequence[UnackedMessage], done: Done) -> bool:
        async def acknowledge() -> None:
            error: MQError | None = None
            try:
                await self.acknowledge(held)
            except MQError as caught:
                error = caught
            done(error)

        trio.lowlevel.spawn_system_task(acknowledge)
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class SlowToAcknowledge:
    """Lets acknowledgements take so many seconds; notes when each began and ended."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        acknowledge = house.broker.acknowledge

        async def slowly(held: Sequence[UnackedMessage], **options: Any) -> None:
            self.begun.append(len(held))
            await trio.sleep(seconds)
            await acknowledge(held, **options)
            self.ended.append(len(held))

        monkeypatch.setattr(house.door, "broker", OtherwiseAcknowledging(house, slowly))


async def test_messages_follow_while_acknowledged_ones_are_being_removed(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.declare()
    await client.publish("q", b"0", b"1")
    await client.call(Basic.Qos(prefetch_count=1))
    await client.consume()
    await client.delivery()
    slow = SlowToAcknowledge(house, monkeypatch, 10)
    await client.say(Basic.Ack(1))
    assert (await client.delivery())[2] == b"1"
    assert (slow.begun, slow.ended) == ([1], [])


async def test_what_follows_acknowledgements_waits_until_they_are_done(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may count what they remove."""
    await client.declare()
    await client.publish("q", b"0", b"1")
    await client.consume()
    await client.delivery()
    await client.delivery()
    slow = SlowToAcknowledge(house, monkeypatch, 10)
    await client.say(Basic.Ack(1), Basic.Nack(2, requeue=False))
    assert await client.count() == 0
    assert slow.ended == [1]


async def test_a_client_that_acknowledges_faster_than_the_store_is_not_read_meanwhile(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is no heartbeat that it missed."""
    monkeypatch.setattr(settling, "LEAST_ACKNOWLEDGING", 2)
    async with open_house() as house:
        client = await house.connect(heartbeat=5)
        await client.declare()
        await client.publish("q", *[b"%d" % number for number in range(5)])
        await client.consume()
        for _ in range(5):
            await client.delivery()
        slow = SlowToAcknowledge(house, monkeypatch, 18)
        for tag in range(1, 6):
            await client.say(Basic.Ack(tag))
            await trio.sleep(0.1)
        await trio.sleep(17)
        assert slow.begun == [1, 1, 1]
        await trio.sleep(1)
        assert slow.begun == [1, 1, 1, 2]
        assert await client.count() == 0


async def test_a_failed_acknowledgement_ends_the_connection(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(held: Sequence[UnackedMessage], **options: Any) -> None:
        raise StorageFull("no room")

    await client.declare()
    await client.publish("q", b"0")
    await client.consume()
    await client.delivery()
    monkeypatch.setattr(house.door, "broker", OtherwiseAcknowledging(house, fail))
    await client.say(Basic.Ack(1))
    closed = await client.hear()
    assert (closed.name, closed.reply_code, closed.reply_text) == ("Connection.Close", 506, "RESOURCE_ERROR - no room")


async def test_an_acknowledgement_that_fails_once_its_client_has_gone_is_logged(
    autojump_clock: MockClock,
    house: House,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(held: Sequence[UnackedMessage], **options: Any) -> None:
        await trio.sleep(1)
        raise StorageFull("no room")

    await client.declare()
    await client.publish("q", b"0")
    await client.consume()
    await client.delivery()
    monkeypatch.setattr(house.door, "broker", OtherwiseAcknowledging(house, fail))
    await client.say(Basic.Ack(1))
    await client.stream.aclose()
    await trio.sleep(2)
    assert "cannot clean up after AMQP client" in caplog.text


async def test_what_is_not_settled_goes_back_to_its_place_when_the_channel_closes(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.declare()
    await client.publish("q", b"0", b"1", b"2")
    assert [(await client.get())[2] for _ in range(2)] == [b"0", b"1"]  # type: ignore[index]
    await client.call(Channel.Close(200, "", 0, 0))
    await client.open_channel(1)
    found = [await client.get(no_ack=True) for _ in range(3)]
    assert [(got[2], got[0].redelivered) for got in found if got] == [(b"0", True), (b"1", True), (b"2", False)]


async def test_what_is_not_settled_goes_back_when_the_connection_breaks(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare()
    await client.publish("q", b"0")
    await client.consume()
    await client.delivery()
    await client.stream.aclose()
    other = await house.connect()
    await other.consume()
    method, _, body = await other.delivery()
    assert (body, method.redelivered) == (b"0", True)


async def test_a_cancelled_consumer_has_given_back_before_it_is_told(
    autojump_clock: MockClock, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else another consumer could get what comes behind those messages."""

    async def never_send(consumer: ServedConsumer, messages: Sequence[UnackedMessage]) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
                await consumer._give_back(messages)

    monkeypatch.setattr(ServedConsumer, "_deliver", never_send)
    await client.declare()
    await confirmed(client, b"1", b"2")
    await client.call(Basic.Consume(queue="q", consumer_tag="c"))
    await trio.sleep(1)
    await client.call(Basic.Cancel(consumer_tag="c"))
    assert await client.bodies() == [b"1", b"2"]


@pytest.mark.parametrize("method", [Basic.Cancel(consumer_tag="c"), Channel.Close(200, "", 0, 0)])
async def test_a_consumer_that_cannot_give_back_in_time_keeps_its_queue_from_nobody(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    """The store does not answer: the client hears of that, and its exclusive consumer has ended all the same."""

    async def give_back_late(consumer: ServedConsumer, messages: Sequence[UnackedMessage]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(2 * PATIENCE_SECONDS)

    monkeypatch.setattr(ServedConsumer, "_give_back", give_back_late)
    await client.declare()
    await client.consume(exclusive=True)
    await client.call(method)
    other = await house.connect()
    assert (await other.consume(exclusive=True)).name == "Basic.ConsumeOk"


async def test_a_nack_puts_back_in_place_or_at_the_back(autojump_clock: MockClock, client: Client) -> None:
    for queue, arguments, order in (("q", {}, [b"0", b"1"]), ("b", {"x-requeue": "back"}, [b"1", b"0"])):
        await client.declare(queue, arguments)
        await client.publish(queue, b"0", b"1")
        got = await client.get(queue)
        assert got is not None
        await client.say(Basic.Nack(got[0].delivery_tag, requeue=True))
        assert await client.bodies(queue) == order


async def test_a_transaction_is_there_when_it_is_committed(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    other = await house.connect()
    await client.declare()
    await client.call(Tx.Select())
    await client.publish("q", b"0", b"1")
    assert await other.count() == 0
    await client.call(Tx.Commit())
    assert await other.count() == 2
    got = await client.get()
    assert got is not None
    await client.say(Basic.Ack(got[0].delivery_tag))
    await client.call(Tx.Rollback())
    await client.say(Basic.Ack(got[0].delivery_tag))
    await client.call(Tx.Commit())
    await client.close()
    assert await other.bodies() == [b"1"]


async def test_an_exclusive_consumer_is_the_only_one(autojump_clock: MockClock, house: House, client: Client) -> None:
    other = await house.connect()
    await client.declare()
    assert (await client.consume(exclusive=True)).name == "Basic.ConsumeOk"
    with pytest.raises(QueueHeld):
        await house.broker.fetch("q")
    refused = await other.consume()
    assert (refused.name, refused.reply_code) == ("Channel.Close", 403)
    await other.say(Channel.CloseOk())
    await other.open_channel(2)
    refused = await other.call(Basic.Get(queue="q"), 2)
    assert (refused.name, refused.reply_code) == ("Channel.Close", 403)
    await client.close()
    await trio.sleep(1)
    assert await house.broker.fetch("q") is None


# Queues that come and go


async def test_a_consumer_hears_that_its_queue_was_deleted(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    other = await house.connect()
    for delete in (lambda: other.call(Queue.Delete(queue="q")), lambda: house.broker.delete_queue("q")):
        await client.declare(durable=True)
        await client.consume()
        await delete()
        cancel = await client.hear()
        assert (cancel.name, cancel.consumer_tag) == ("Basic.Cancel", "c")
        refused = await other.call(Queue.Declare(queue="q", passive=True))
        assert (refused.name, refused.reply_code) == ("Channel.Close", 404)
        await other.say(Channel.CloseOk())
        await other.open_channel(1)


async def test_bindings_go_with_a_queue_that_is_deleted_over_http(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(durable=True)
    await client.call(Queue.Bind(queue="q", exchange="amq.direct", routing_key="k"))
    await house.broker.delete_queue("q")
    await trio.sleep(1)
    await client.declare(durable=True)
    await client.publish("k", b"x", exchange="amq.direct")
    assert await client.count() == 0


async def test_a_queue_that_comes_again_before_it_is_seen_to_have_gone_is_the_new_one(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    """As other nodes of a cluster may tell it."""
    await client.declare("q", durable=True)
    await client.call(Queue.Bind(queue="q", exchange="amq.fanout", routing_key=""))
    declarations = house.door.topology_store
    again = declared.Queue("/", "q", True, arguments={"x-max-priority": 9})
    declarations.closed("q")
    declarations.opened("q", again.record().value)
    await client.call(Confirm.Select())
    await trio.sleep(1)
    assert declarations.queue_of(QueueName("q")) == again
    await client.publish("", b"x", exchange="amq.fanout", mandatory=True)
    assert (await client.hear()).name == "Basic.Return", "what was bound went"


async def test_a_queue_that_comes_again_while_it_goes_is_the_new_one(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with many bindings takes several turns to go."""
    declarations = house.door.topology_store
    again = declared.Queue("/", "q", True, arguments={"x-max-priority": 9})
    applying = house.door.topology.applying

    def opened_meanwhile(change: TopologyChange) -> Iterator[None]:
        for number, _ in enumerate(applying(change)):
            if number == 0 and change.lost_queues:
                declarations.opened("q", again.record().value)
            yield

    await client.declare("q", durable=True)
    monkeypatch.setattr(house.door.topology, "applying", opened_meanwhile)
    declarations.closed("q")
    await trio.sleep(1)
    assert declarations.queue_of(QueueName("q")) == again


async def test_channel_end_returns_messages_and_ends_consumers_if_one_queue_fails(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = house.broker.put_back

    async def put_back(held: Sequence[UnackedMessage], **options: Any) -> None:
        if held[0].message.queue == "bad":
            raise StorageFull("no room")
        await before(held, **options)

    for queue in ("bad", "good"):
        await client.declare(queue)
        await client.publish(queue, b"x")
    for queue in ("bad", "good"):
        assert await client.get(queue) is not None
    assert (await client.consume("good")).name == "Basic.ConsumeOk"
    monkeypatch.setattr(house.broker, "put_back", put_back)
    await client.say(Channel.Close(200, "", 0, 0))
    await trio.sleep(1)
    assert house.door.topology.consumers.count(QueueName("good")) == 0
    other = await house.connect()
    assert await other.count("good") == 1


async def test_exclusive_queues_end_with_their_connection(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    name = await client.declare("", exclusive=True)
    other = await house.connect()
    refused = await other.call(Queue.Declare(queue=name, passive=True))
    assert refused.reply_code == 405
    assert len(await house.broker.queues()) == 1
    await client.close()
    await trio.sleep(1)
    assert await house.broker.queues() == []


async def test_an_auto_delete_queue_goes_with_its_last_consumer(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(auto_delete=True)
    await client.consume(tag="a")
    await client.consume(tag="b")
    await client.call(Basic.Cancel("a"))
    assert await client.count() == 0
    await client.call(Basic.Cancel("b"))
    assert await house.broker.queues() == []


async def test_a_queue_expires_when_nobody_uses_it(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare(arguments={"x-expires": 10_000})
    await trio.sleep(9)
    await client.declare(arguments={"x-expires": 10_000})
    await trio.sleep(9)
    await client.get()
    await trio.sleep(9)
    await client.consume()
    await trio.sleep(30)
    await client.call(Basic.Cancel("c"))
    await trio.sleep(9)
    assert await client.count() == 0
    await trio.sleep(2)
    assert await house.broker.queues() == []


async def test_a_queue_that_is_used_while_another_one_expires_stays(autojump_clock: MockClock) -> None:
    told: list[str] = []
    one, other = (Declared("/", name, arguments={"x-expires": 1000}) for name in ("one", "other"))

    async def expire(queue: Declared) -> None:
        told.append(queue.name)
        unused.note_use(other)  # somebody declares it
        await trio.sleep(0.5)

    unused = UnusedQueues(lambda name: False, expire)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(unused.run)
        unused.note_use(one)
        unused.note_use(other)
        await trio.sleep(1.9)
        assert told == ["one"]
        await trio.sleep(0.2)
        assert told == ["one", "other"]
        nursery.cancel_scope.cancel()


async def test_a_queue_that_is_used_after_it_has_gone_expires_no_more(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(arguments={"x-expires": 1000})
    [queue] = house.door.topology_store.queues()
    await client.call(Queue.Delete(queue="q"))
    house.door.unused.note_use(queue)
    await trio.sleep(2)  # a door that looks for it without end lets no time pass
    assert not house.door.unused.knows(queue)


async def test_a_late_consumer_does_not_take_a_new_queue_of_the_same_name_along(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    other = await house.connect()
    await client.declare(auto_delete=True)
    await client.consume()
    [consumer] = house.door.topology.consumers.of(QueueName("q"))
    assert isinstance(consumer, ServedConsumer)
    await other.call(Queue.Delete(queue="q"))
    await other.declare(auto_delete=True)
    await house.door.consumer_ended(consumer)  # its client cancels it before it has heard that it is over
    assert await other.count() == 0


@pytest.mark.parametrize("exclusive", [False, True])
async def test_nobody_consumes_from_a_queue_that_went_just_before(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch, *, exclusive: bool
) -> None:
    before = house.broker.exclude if exclusive else house.broker.put_back

    async def meanwhile(*args: Any, **named: Any) -> Any:
        done = await before(*args, **named)
        await house.broker.delete_queue("gone")
        await trio.sleep(1)
        return done

    await client.declare("q")
    await client.declare("gone", auto_delete=True)
    await client.publish("q", b"x")
    got = await client.get()
    assert got is not None
    monkeypatch.setattr(house.broker, before.__name__, meanwhile)
    await client.say(
        Basic.Nack(got[0].delivery_tag, requeue=True),
        Basic.Consume(queue="gone", consumer_tag="c", exclusive=exclusive),
    )
    refused = await client.hear()
    assert (refused.name, getattr(refused, "reply_code", None)) == ("Channel.Close", 404)
    monkeypatch.undo()
    other = await house.connect()
    await other.declare("gone", auto_delete=True)
    assert house.door.topology.consumers.count(QueueName("gone")) == 0
    assert (await other.consume("gone", exclusive=True)).name == "Basic.ConsumeOk"


async def test_delete_if_empty_and_if_unused(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"x")
    refused = await client.call(Queue.Delete(queue="q", if_empty=True))
    assert (refused.reply_code, refused.reply_text) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' is not empty",
    )
    await client.say(Channel.CloseOk())
    await client.open_channel(1)
    assert (await client.call(Queue.Purge(queue="q"))).message_count == 1
    await client.consume()
    other = await house.connect()
    assert (await other.call(Queue.Delete(queue="q", if_unused=True))).reply_code == 406


# Limits and the dead


async def test_a_full_queue_refuses_or_drops(autojump_clock: MockClock, client: Client) -> None:
    await client.declare("r", {"x-max-length": 1, "x-overflow": "reject-publish"})
    await client.declare("d", {"x-max-length": 1})
    await client.call(Confirm.Select())
    for queue, answers in (("r", ["Basic.Ack", "Basic.Nack"]), ("d", ["Basic.Ack", "Basic.Ack"])):
        for answer in answers:
            await client.publish(queue, answer.encode())
            assert (await client.hear()).name == answer
    await trio.sleep(1)
    assert await client.bodies("r") == [b"Basic.Ack"]
    assert len(await client.bodies("d")) == 1


async def test_what_is_held_does_not_count_for_the_length(autojump_clock: MockClock, client: Client) -> None:
    await client.declare(arguments={"x-max-length": 1})
    await client.publish("q", b"0")
    await client.get()
    await client.publish("q", b"1")
    await trio.sleep(1)
    assert await client.bodies() == [b"1"]


@pytest.mark.parametrize("cause", ["rejected", "expired", "own time", "maxlen", "refused"])
async def test_the_dead_go_through_their_exchange(autojump_clock: MockClock, client: Client, cause: str) -> None:
    arguments: dict[str, object] = {"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "dead"}
    arguments |= {"expired": {"x-message-ttl": 1000}, "maxlen": {"x-max-length": 1}}.get(cause, {})
    if cause == "refused":
        arguments |= {"x-max-length": 1, "x-overflow": "reject-publish-dlx"}
    await client.call(Exchange.Declare(exchange="dlx", exchange_type="topic"))
    await client.declare("graves")
    await client.call(Queue.Bind(queue="graves", exchange="dlx", routing_key="dead"))
    await client.declare("q", arguments)
    own = {"expiration": "1000"} if cause == "own time" else {}
    await client.publish("q", b"0", headers={"mine": "kept"}, **own)
    if cause == "rejected":
        got = await client.get()
        assert got is not None
        await client.say(Basic.Reject(got[0].delivery_tag, requeue=False))
    if cause in ("maxlen", "refused"):
        await client.publish("q", b"1", headers={"mine": "kept"})
    await trio.sleep(2)
    got = await client.get("graves")
    assert got is not None
    method, properties, body = got
    assert body == (b"1" if cause == "refused" else b"0")
    assert (method.exchange, method.routing_key) == ("dlx", "dead")
    reason = {"own time": "expired", "refused": "maxlen"}.get(cause, cause)
    [death] = properties.headers["x-death"]
    assert (death["queue"], death["reason"], death["count"], death["routing-keys"]) == ("q", reason, 1, ["q"])
    assert properties.headers["mine"] == "kept"
    assert properties.headers["x-first-death-reason"] == reason
    assert properties.expiration is None
    assert await client.count("graves") == 0


async def test_who_was_received_too_often_is_over_the_delivery_limit(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    """`max_receives` is set over HTTP; what dies of it over HTTP, too, goes through the exchange."""
    await client.declare("graves")
    await client.declare(
        "q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"}, durable=True, auto_delete=False
    )
    await house.broker.create_queue("buried")  # asked for by the settings; what was declared comes first
    await house.broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "buried"})
    await client.publish("q", b"x", headers={"mine": "kept"})
    for _ in range(2):
        message = await house.broker.fetch("q", wait=5, visibility=1)
        assert message is not None
        await message.body.aclose()
        await trio.sleep(3)  # the lease ends, and nobody says why
    assert (await client.count("q"), await client.count("buried")) == (0, 0)
    got = await client.get("graves")
    assert got is not None
    [death] = got[1].headers["x-death"]
    assert (death["queue"], death["reason"], death["count"]) == ("q", "delivery_limit", 1)
    assert got[1].headers["x-first-death-reason"] == "delivery_limit"
    assert (got[1].headers["mine"], got[2]) == ("kept", b"x")


@pytest.mark.parametrize(("arguments", "own"), [({"x-message-ttl": 0}, {}), ({}, {"expiration": "0"})])
async def test_a_message_without_time_to_live_is_for_who_consumes(
    autojump_clock: MockClock, client: Client, arguments: dict[str, int], own: dict[str, str]
) -> None:
    await client.declare("q", arguments)
    await client.publish("q", b"nobody", **own)
    await trio.sleep(0.1)
    assert await client.count() == 0
    await client.consume()
    await client.publish("q", b"somebody", **own)
    assert (await client.delivery())[2] == b"somebody"


async def test_a_dead_letter_does_not_go_in_circles(autojump_clock: MockClock, client: Client) -> None:
    await client.declare("a", {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    await client.declare("b", {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    await client.publish("a", b"x")
    await trio.sleep(1.5)
    assert await client.count("b") == 1
    await trio.sleep(10)
    assert (await client.count("a"), await client.count("b")) == (0, 0)


async def test_a_queue_with_priorities_gives_the_highest_first(autojump_clock: MockClock, client: Client) -> None:
    await client.declare(arguments={"x-max-priority": 5})
    for body, priority in ((b"low", 0), (b"mid", 3), (b"high", 5), (b"higher", 9), (b"mid2", 3)):
        await client.publish("q", body, priority=priority)
    assert await client.bodies() == [b"high", b"higher", b"mid", b"mid2", b"low"]


async def test_a_consumer_has_one_message_of_a_group_at_a_time(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(arguments={"x-groups": True})
    for body, group in ((b"a1", "a"), (b"a2", "a"), (b"b1", "b")):
        await client.publish("q", body, headers={"x-message-group": group})
    await client.publish("q", b"lone")
    await client.call(Basic.Qos(prefetch_count=10))
    await client.consume()
    got = [await client.delivery() for _ in range(3)]
    assert [body for _, _, body in got] == [b"a1", b"b1", b"lone"]
    assert got[0][1].headers == {"x-message-group": "a"}
    with trio.move_on_after(5) as scope:
        await client.delivery()
    assert scope.cancelled_caught
    await client.say(Basic.Nack(1, requeue=True))
    method, _, body = await client.delivery()
    assert (body, method.redelivered) == (b"a1", True)
    await client.say(Basic.Ack(method.delivery_tag))
    assert (await client.delivery())[2] == b"a2"


async def test_groups_go_from_door_to_door(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare(arguments={"x-groups": True})
    await client.declare("plain")
    for queue in ("q", "plain"):
        await client.publish(queue, b"x", headers={"x-message-group": "a", "other": "b"})
        await trio.sleep(1)
        message = await house.broker.fetch(queue)
        assert message is not None
        kept = message.properties.attributes
        assert (kept["group"], kept["attributes"]) == ("a", {"other": "b"})
    await house.broker.publish_many("q", [Draft(b"y", {"group": "c"}, group="c")])
    got = await client.get()
    assert got is not None
    assert got[1].headers == {"x-message-group": "c"}


async def test_a_quorum_queue_needs_a_cluster(autojump_clock: MockClock, house: House, client: Client) -> None:
    arguments = {"x-queue-type": "quorum"}
    refused = await client.call(Queue.Declare(queue="q", durable=True, arguments=arguments))
    assert (refused.name, refused.reply_code) == ("Channel.Close", 406)
    assert "is not part of a cluster" in refused.reply_text
    assert not await house.broker.has_queue("q")


async def test_a_mandatory_message_comes_back_from_a_queue_that_is_deleted_meanwhile(
    autojump_clock: MockClock, house: House, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.declare("q", durable=True)
    await client.call(Confirm.Select())
    publish_many = house.broker.publish_many

    async def deleted_first(queue: str, drafts: Any, has_place: Any) -> Any:
        await house.broker.delete_queue(queue)
        return await publish_many(queue, drafts, has_place)

    monkeypatch.setattr(house.broker, "publish_now", lambda *_: False)
    monkeypatch.setattr(house.broker, "publish_many", deleted_first)
    await client.publish("q", b"x", mandatory=True)
    told = [getattr(await client.hear(), "name", "") for _ in range(4)]
    assert told == ["Basic.Return", "ContentHeader", "ContentBody", "Basic.Ack"]


class Stuck(MemoryStorage):
    """A store that does not answer any more once it is told so."""

    is_stuck = False

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        if self.is_stuck:
            await trio.sleep_forever()
        return await super().commit(operations)


async def test_who_waits_too_long_hears_that_it_may_have_been_done(autojump_clock: MockClock) -> None:
    store = Stuck()
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare()
        await client.call(Tx.Select())
        await confirmed_by_tx(client, b"before")
        got = await client.get()
        assert got is not None
        store.is_stuck = True
        await client.say(Basic.Ack(got[0].delivery_tag))
        await client.say(Tx.Commit())
        closed = await client.hear()
        assert (closed.name, closed.reply_code) == ("Connection.Close", 541)
        assert "unknown" in closed.reply_text


async def confirmed_by_tx(client: Client, body: bytes) -> None:
    await client.publish("q", body)
    await client.call(Tx.Commit())


@pytest.mark.parametrize(
    "outcome", [Outcome(Result.UNKNOWN, reason="not connected"), Outcome(Result.FAILED, reason="Input/output error")]
)
async def test_a_publisher_hears_that_it_may_have_been_done(
    autojump_clock: MockClock, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStorage()
    async with open_house(store) as house:
        client = await house.connect()
        await client.declare()

        async def commit(operations: Sequence[Operation]) -> list[Outcome]:
            return [outcome] * len(operations)

        monkeypatch.setattr(store, "commit", commit)
        await client.call(Confirm.Select())
        await client.publish("q", b"x")
        closed = await client.hear()
        assert (closed.name, closed.reply_code) == ("Connection.Close", 541)
        assert "unknown" in closed.reply_text


# HTTP and AMQP


async def test_a_message_from_http_comes_with_its_content_type_and_attributes(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await house.broker.create_queue("h")
    id = await house.broker.publish("h", b"x", {"content_type": "text/plain", "attributes": {"colour": "red"}})
    got = await client.get("h")
    assert got is not None
    _, properties, body = got
    assert (body, properties.content_type, properties.headers) == (b"x", "text/plain", {"colour": "red"})
    assert (properties.message_id, properties.delivery_mode) == (id, 2)


async def test_a_message_of_which_nonsense_is_noted_is_not_delivered_and_ends_nothing(
    autojump_clock: MockClock, house: House, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.declare()
    await house.broker.publish("q", b"bad", {"amqp": {"properties": 7}})
    await house.broker.publish("q", b"good")
    await client.consume(no_ack=True)
    assert (await client.delivery())[2] == b"good"
    assert "the message's stored properties are damaged" in caplog.text


async def test_a_message_of_which_nonsense_is_noted_is_passed_over_by_a_get(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare()
    await house.broker.publish("q", b"bad", {"amqp": 7})
    await house.broker.publish("q", b"good")
    assert await client.bodies() == [b"good"]


async def test_a_dead_letter_of_which_nonsense_is_noted_ends_nothing(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare("graves")
    await client.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "graves"})
    await house.broker.publish("q", b"bad", {"amqp": []}, ttl=1)
    await house.broker.publish("q", b"good", ttl=1)
    await trio.sleep(3)
    assert await client.bodies("graves") == [b"good"]


async def test_a_message_goes_to_http_with_its_content_type_and_headers(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(durable=True)
    await client.publish("q", b"x", content_type="text/plain", headers={"Colour": "red", "n": 1})
    message = await house.broker.fetch("q", wait=5)
    assert message is not None
    attributes = message.properties.attributes
    assert (attributes["content_type"], attributes["attributes"]) == ("text/plain", {"colour": "red"})


async def test_what_is_held_over_amqp_is_not_fetched_over_http(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.declare(durable=True)
    await client.publish("q", b"0", b"1")
    await client.get()
    message = await house.broker.fetch("q")
    assert message is not None
    assert await message.body.read() == b"1"


# Others have their turns


async def test_what_one_client_has_sent_is_stored_in_parts(
    autojump_clock: MockClock, client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    publish_now = house.broker.publish_now

    def count(queue: str, drafts: Sequence[Draft], done: Any) -> bool:
        sizes.append(len(drafts))
        return publish_now(queue, drafts, done)

    monkeypatch.setattr(house.broker, "publish_now", count)
    await client.declare()
    bodies = [b"%d" % number for number in range(2 * MOST_TOGETHER + 100)]
    await confirmed(client, *bodies)
    assert await client.bodies() == bodies
    assert max(sizes) == MOST_TOGETHER
