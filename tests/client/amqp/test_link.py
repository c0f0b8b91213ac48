"""The client against a server that goes wrong in every way, on a virtual clock."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from pamqp import commands as methods
from pamqp import frame, header, heartbeat

from mq.client import ClientError, Conflict, Interrupted, NotAllowed, NotFound, UnexpectedResponse, Unreachable
from mq.client.amqp import NoFreeChannel, NotConfirmed, Role, UnknownDeliveryTag
from mq.client.amqp.connection import connected
from mq.client.amqp.link import MOST_UNSENT
from mq.client.amqp.protocol import Login
from tests.client.amqp.scripted import (
    BEGIN,
    PATIENCE_SECONDS,
    Script,
    begin,
    cancel_when_blocked,
    hear_publish,
    open_publishing,
    talking,
)
from tests.client.amqp.streams import MemoryStream, memory_pair
from tests.client.loops import on_both_loops

LOGIN = Login(user="anna", secret="s", vhost="/", role="both", heartbeat_seconds=0, max_body=1000)


@on_both_loops
async def test_a_server_that_says_nothing_is_given_up() -> None:
    ours, _theirs = memory_pair()
    with pytest.raises(Unreachable, match="in time"):
        async with connected(ours, LOGIN, Role.BOTH, anyio.current_time() + PATIENCE_SECONDS):
            pytest.fail("it let us in")
    assert anyio.current_time() < 2 * PATIENCE_SECONDS


@on_both_loops
@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", UnexpectedResponse),
        (BEGIN, UnexpectedResponse),
        (frame.marshal(methods.Connection.Start(mechanisms="EXTERNAL"), 0), UnexpectedResponse),
        (frame.marshal(methods.Connection.OpenOk(), 0), UnexpectedResponse),
        (frame.marshal(methods.Connection.Close(530, "NOT_ALLOWED - no", 0, 0), 0), NotAllowed),
        (b"", Unreachable),
    ],
)
async def test_who_is_no_server_is_left(said: bytes, error: type[ClientError]) -> None:
    ours, theirs = memory_pair()
    await theirs.send(said)
    await theirs.send_eof()
    with pytest.raises(error) as caught:
        async with connected(ours, LOGIN, Role.BOTH, anyio.current_time() + PATIENCE_SECONDS):
            pytest.fail("it let us in")
    assert type(caught.value) is error


@on_both_loops
async def test_an_error_of_the_block_leaves_as_it_is() -> None:
    async def fail() -> None:
        async with connected(ours, LOGIN, Role.BOTH, anyio.current_time() + PATIENCE_SECONDS):
            raise LookupError("mine")

    ours, theirs = memory_pair()
    script = Script(theirs)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(script.begin)
        with pytest.raises(LookupError, match="mine"):
            await fail()


@on_both_loops
async def test_heartbeats_go_out_and_are_waited_for() -> None:
    async with talking(heartbeat=30) as (client, server), anyio.create_task_group() as tasks:
        outcome = begin(tasks, lambda: client.get("q"))
        start = anyio.current_time()
        for _ in range(5):
            await anyio.sleep(20)
            await server.stream.send(heartbeat.Heartbeat().marshal())
        assert not outcome.is_done
        received = await server.stream.receive()
        assert received.count(heartbeat.Heartbeat().marshal()) >= 5
        while not outcome.is_done:
            await anyio.sleep(1)
        assert isinstance(outcome.error, Interrupted)
        assert "two heartbeat intervals" in str(outcome.error)
        assert 160 <= anyio.current_time() - start <= 162


@on_both_loops
async def test_no_heartbeats_where_none_are_wanted() -> None:
    async with talking(heartbeat=0) as (client, server), anyio.create_task_group() as tasks:
        outcome = begin(tasks, lambda: client.declare_queue("q"))
        await anyio.sleep(900)
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.answer(methods.Queue.Declare, methods.Queue.DeclareOk("q", 1, 2))
        await anyio.wait_all_tasks_blocked()
        assert outcome.value == ("q", 1, 2)


@on_both_loops
@pytest.mark.parametrize("way", ["hangs up", "closes", "lies"])
async def test_every_wait_ends_with_the_connection(way: str) -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q")
        outcomes = [begin(tasks, consumer.__anext__)]
        await server.open_consumer()
        outcomes.append(begin(tasks, lambda: client.publish("q", b"x")))
        await open_publishing(server)
        await hear_publish(server)
        outcomes += [begin(tasks, lambda: client.get("q")), begin(tasks, lambda: client.declare_queue("q"))]
        await anyio.wait_all_tasks_blocked()
        assert not any(outcome.is_done for outcome in outcomes)
        if way == "hangs up":
            await server.stream.aclose()
        elif way == "closes":
            await server.say(methods.Connection.Close(320, "CONNECTION_FORCED - bye", 0, 0), 0)
        else:
            await server.stream.send(b"\x01\0\x01\0\0\0\x04\0\x14\0\x0bX")
        await anyio.wait_all_tasks_blocked()
        assert [type(outcome.error) for outcome in outcomes] == [Interrupted] * 4
        why = {
            "hangs up": "closed the connection",
            "closes": "CONNECTION_FORCED - bye",
            "lies": "ends with byte",
        }
        with pytest.raises(Unreachable, match=why[way]):
            await client.get("q")


@on_both_loops
async def test_a_blocked_connection_publishes_nothing_and_acknowledges() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q")
        taken = begin(tasks, consumer.__anext__)
        await server.open_consumer()
        await server.deliver(1)
        await server.say(methods.Connection.Blocked("no memory"), 0)
        await anyio.wait_all_tasks_blocked()
        assert client.blocked == "no memory"
        published = begin(tasks, lambda: client.publish("q", b"x"))
        await open_publishing(server)
        await anyio.sleep(100)
        await client.ack(taken.value.tag)
        await server.hear(methods.Basic.Ack)  # and not publish
        await server.say(methods.Connection.Unblocked(), 0)
        await hear_publish(server)
        await server.say(methods.Basic.Ack(1, False), 2)
        await anyio.wait_all_tasks_blocked()
        assert published.value
        assert client.blocked is None


@on_both_loops
async def test_a_channel_that_is_stopped_publishes_nothing() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        first = begin(tasks, lambda: client.publish("q", b"x"))
        await open_publishing(server)
        await hear_publish(server)
        await server.say(methods.Basic.Ack(1, False))
        await server.say(methods.Channel.Flow(active=False))
        assert (await server.hear(methods.Channel.FlowOk))[1].active is False
        second = begin(tasks, lambda: client.publish("q", b"x"))
        await anyio.sleep(100)
        assert (first.is_done, second.is_done) == (True, False)
        await server.say(methods.Channel.Flow(active=True))
        await server.hear(methods.Channel.FlowOk)
        await hear_publish(server)
        await server.say(methods.Basic.Ack(2, False))


@on_both_loops
async def test_confirms_of_many_go_to_whom_they_are_for() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        outcomes = []
        for number in range(6):
            outcomes.append(begin(tasks, lambda number=number: client.publish(f"q{number}", b"")))
            if number == 0:
                await open_publishing(server)
            message_id = await hear_publish(server)
        await server.say(methods.Basic.Ack(2, False))
        await server.say(methods.Basic.Nack(3, False))
        await anyio.wait_all_tasks_blocked()
        assert [outcome.is_done for outcome in outcomes] == [False, True, True, False, False, False]
        await server.say(methods.Basic.Ack(5, True))
        await server.say(methods.Basic.Return(312, "NO_ROUTE", "", "q5"))
        await server.content(b"", 1, message_id)
        await server.say(methods.Basic.Ack(77, True))
        await anyio.wait_all_tasks_blocked()
        errors = [type(outcome.error) for outcome in outcomes]
        assert errors == [type(None), type(None), NotConfirmed, type(None), type(None), NotFound]


@on_both_loops
async def test_a_refusal_is_told_to_whom_it_is_for_where_that_is_known() -> None:
    for count, expected in ((1, Conflict), (2, Interrupted)):
        async with talking() as (client, server), anyio.create_task_group() as tasks:
            outcomes = []
            for number in range(count):
                outcomes.append(begin(tasks, lambda: client.publish("q", b"x")))
                if number == 0:
                    await open_publishing(server)
                await hear_publish(server)
            await server.say(methods.Channel.Close(406, "PRECONDITION_FAILED - too long", 60, 40))
            await server.hear(methods.Channel.CloseOk)
            await anyio.wait_all_tasks_blocked()
            assert [type(outcome.error) for outcome in outcomes] == [expected] * count
            again = begin(tasks, lambda: client.publish("q", b"x"))
            await open_publishing(server)
            await hear_publish(server)
            await server.say(methods.Basic.Ack(1, False))
            await anyio.wait_all_tasks_blocked()
            assert again.value


@on_both_loops
async def test_who_was_cancelled_gets_nothing_and_keeps_nothing() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(server.answer, methods.Channel.Open, methods.Channel.OpenOk())
            tasks.start_soon(cancel_when_blocked, scope)
            await client.get("q")
        assert scope.cancelled_caught
        await server.hear(methods.Basic.Get)
        later = begin(tasks, lambda: client.get("q"))
        await server.hear(methods.Basic.Get)
        for number in (1, 2):
            await server.say(methods.Basic.GetOk(number, False, "", "q", 0))
            await server.content(b"%d" % number)
        _, nack = await server.hear(methods.Basic.Nack)
        assert (nack.delivery_tag, nack.requeue, nack.multiple) == (1, True, False)
        await anyio.wait_all_tasks_blocked()
        assert (later.value.body, later.value.tag) == (b"2", 1)


@on_both_loops
async def test_more_than_was_asked_for_ends_the_connection() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q", prefetch=2)
        first = begin(tasks, consumer.__anext__)
        await server.open_consumer()
        for number in range(1, 5):
            await server.deliver(number)
        await anyio.wait_all_tasks_blocked()
        assert first.value.tag == 1
        with pytest.raises(Interrupted, match="more than the 2 messages"):
            await anext(consumer)


@on_both_loops
async def test_a_body_longer_than_anybody_needs_ends_the_connection() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        outcome = begin(tasks, lambda: client.get("q"))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.hear(methods.Basic.Get)
        await server.say(methods.Basic.GetOk(1, False, "", "q", 0))
        await server.stream.send(frame.marshal(header.ContentHeader(body_size=1_000_001), 1))
        _, close = await server.hear(methods.Connection.Close)
        assert close.reply_code == 501
        await anyio.wait_all_tasks_blocked()
        assert isinstance(outcome.error, Interrupted)


@on_both_loops
async def test_what_a_server_does_not_take_is_not_piled_up() -> None:
    """It reads nothing: publishers wait, each with the message in its hand."""
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        begin(tasks, lambda: client.publish("q", b"x"))
        await open_publishing(server)
        stopped = anyio.Event()
        client._link._stream = Stuck(client._link._stream, stopped)
        for _ in range(64):
            begin(tasks, lambda: client.publish("q", bytes(MOST_UNSENT // 8)))
        await anyio.wait_all_tasks_blocked()
        assert client._link.protocol.waiting + client._link._sending < 2 * MOST_UNSENT
        stopped.set()
        tasks.cancel_scope.cancel()


class Stuck:
    """A stream that takes nothing until told."""

    def __init__(self, stream: MemoryStream, until: anyio.Event) -> None:
        self._stream = stream
        self._until = until

    async def send(self, data: bytes) -> None:
        await self._until.wait()
        await self._stream.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@on_both_loops
async def test_all_channels_in_use() -> None:
    async with talking(channel_max=1) as (client, server), anyio.create_task_group() as tasks:
        begin(tasks, lambda: client.declare_queue("q"))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.answer(methods.Queue.Declare, methods.Queue.DeclareOk("q", 0, 0))
        with pytest.raises(NoFreeChannel, match="all 1 channels"):
            await client.get("q")


@on_both_loops
async def test_channels_are_used_again() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        for _ in range(3):
            outcome = begin(tasks, lambda: client.get("q"))
            assert await server.answer(methods.Channel.Open, methods.Channel.OpenOk()) == 1
            await server.hear(methods.Basic.Get)
            await server.say(methods.Channel.Close(404, "NOT_FOUND - no queue", 60, 70))
            await server.hear(methods.Channel.CloseOk)
            await anyio.wait_all_tasks_blocked()
            assert isinstance(outcome.error, NotFound)


@on_both_loops
async def test_an_unknown_tag_asks_the_server_and_then_ends() -> None:
    """Even where the server does not mind."""
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        outcome = begin(tasks, lambda: client.nack(5))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        assert (await server.hear(methods.Basic.Ack))[1].delivery_tag == 5
        await server.answer(methods.Basic.Qos, methods.Basic.QosOk())
        await server.answer(methods.Connection.Close, methods.Connection.CloseOk())
        await anyio.wait_all_tasks_blocked()
        assert isinstance(outcome.error, UnknownDeliveryTag)
        assert "did not object" in str(outcome.error)


@on_both_loops
async def test_a_server_without_manners_does_not_hold_us() -> None:
    """It never answers our goodbye."""
    ours, theirs = memory_pair()
    script = Script(theirs)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(script.begin)
        async with connected(ours, LOGIN, Role.BOTH, anyio.current_time() + PATIENCE_SECONDS):
            began = anyio.current_time()
        assert 1 < anyio.current_time() - began < 20
