"""The door and a broker: what is asked for happens, and is told."""

from __future__ import annotations

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.errors import QueueHeld
from tests.amqp.dialling import Client, House

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


async def test_a_get_sees_what_its_connection_has_published_just_before(
    autojump_clock: MockClock, client: Client
) -> None:
    await client.declare()
    await client.publish("q", *(b"%d" % n for n in range(50)))
    assert await client.count() == 50
    assert await client.bodies() == [b"%d" % n for n in range(50)]


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


async def test_delete_if_empty_and_if_unused(autojump_clock: MockClock, house: House, client: Client) -> None:
    await client.declare()
    await client.publish("q", b"x")
    refused = await client.call(Queue.Delete(queue="q", if_empty=True))
    assert (refused.reply_code, refused.reply_text) == (
        406,
        "PRECONDITION_FAILED - queue 'q' in vhost '/' not empty",
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
