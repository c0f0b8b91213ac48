"""The client and what crosses on its way: cancellations, closings, halves of messages."""

from __future__ import annotations

import anyio
import pytest
from pamqp import body, frame, header
from pamqp import commands as methods

from mq.client import Conflict, Interrupted, Unreachable
from mq.client.amqp import UnknownDeliveryTag
from mq.client.amqp.protocol import Arrived
from tests.client.amqp.scripted import begin, cancel_when_blocked, open_publishing, talking
from tests.client.loops import on_both_loops


@on_both_loops
async def test_who_waits_to_publish_hears_of_the_end() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        await server.say(methods.Connection.Blocked("no memory"), 0)
        outcome = begin(tasks, lambda: client.publish("q", b"x"))
        await open_publishing(server)
        await anyio.wait_all_tasks_blocked()
        await server.stream.aclose()
        await anyio.wait_all_tasks_blocked()
        assert isinstance(outcome.error, Unreachable)


@on_both_loops
async def test_an_answer_in_the_very_step_of_the_cancellation_goes_back() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        scope = anyio.CancelScope()

        async def get() -> None:
            with scope:
                await client.get("q")

        tasks.start_soon(get)
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.hear(methods.Basic.Get)
        await anyio.wait_all_tasks_blocked()
        scope.cancel()
        client._link._on(Arrived(1, 7, False, True, b"\0\0", b"x"))
        _, nack = await server.hear(methods.Basic.Nack)
        assert (nack.delivery_tag, nack.requeue) == (7, True)


@on_both_loops
async def test_a_question_that_was_given_up_meets_nobody_else() -> None:
    """Its channel goes, and with it whatever the server says to it."""
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(server.answer, methods.Channel.Open, methods.Channel.OpenOk())
            tasks.start_soon(cancel_when_blocked, scope)
            await client.declare_queue("first")
        await server.hear(methods.Queue.Declare)
        await server.hear(methods.Channel.Close)
        outcome = begin(tasks, lambda: client.declare_queue("second"))
        assert await server.answer(methods.Channel.Open, methods.Channel.OpenOk()) == 2
        await server.say(methods.Queue.DeclareOk("first", 1, 1), 1)
        await server.say(methods.Channel.CloseOk(), 1)
        await server.answer(methods.Queue.Declare, methods.Queue.DeclareOk("second", 2, 2))
        await anyio.wait_all_tasks_blocked()
        assert outcome.value == ("second", 2, 2)


@on_both_loops
async def test_what_comes_on_a_channel_that_closes_is_dropped() -> None:
    """Even where it is the second half of a message."""
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q")
        with anyio.CancelScope() as scope:
            tasks.start_soon(server.open_consumer)
            tasks.start_soon(cancel_when_blocked, scope)
            await anext(consumer)
        tasks.start_soon(consumer.aclose)
        await server.answer(methods.Basic.Cancel, methods.Basic.CancelOk("mq"))
        await server.say(methods.Basic.Deliver("mq", 1, False, "", "q"))
        await server.hear(methods.Channel.Close)
        await server.content(b"x")
        await server.say(methods.Channel.Close(404, "NOT_FOUND - crossing", 0, 0))
        await server.hear(methods.Channel.CloseOk)
        await server.say(methods.Channel.CloseOk())
        outcome = begin(tasks, lambda: client.declare_queue("q"))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.answer(methods.Queue.Declare, methods.Queue.DeclareOk("q", 0, 0))
        await anyio.wait_all_tasks_blocked()
        assert outcome.value == ("q", 0, 0)


@on_both_loops
async def test_what_was_held_on_a_channel_that_the_server_closed_has_no_tag() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q")
        taken = begin(tasks, consumer.__anext__)
        await server.open_consumer()
        await server.deliver(1)
        await anyio.wait_all_tasks_blocked()
        await server.say(methods.Channel.Close(406, "PRECONDITION_FAILED - too slow", 0, 0))
        await server.hear(methods.Channel.CloseOk)
        with pytest.raises(Conflict, match="too slow"):
            await anext(consumer)
        outcome = begin(tasks, lambda: client.ack(taken.value.tag))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.answer(methods.Basic.Ack, methods.Channel.Close(406, "PRECONDITION_FAILED - unknown", 0, 0))
        await server.hear(methods.Basic.Qos)
        await server.hear(methods.Channel.CloseOk)
        await server.answer(methods.Connection.Close, methods.Connection.CloseOk())
        await anyio.wait_all_tasks_blocked()
        assert isinstance(outcome.error, UnknownDeliveryTag)


@on_both_loops
@pytest.mark.parametrize("is_settled_meanwhile", [False, True])
async def test_who_waits_at_a_consumer_that_is_closed_is_let_go(is_settled_meanwhile: bool) -> None:
    """Its channel stays for as long as something that it handed out is not settled."""
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        consumer = client.consume("q")
        got: list[bytes] = []

        async def iterate() -> None:
            got.extend([message.body async for message in consumer])
            got.append(b"the end")

        tasks.start_soon(iterate)
        await server.open_consumer()
        await server.deliver(1)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(consumer.aclose)
        await server.hear(methods.Basic.Cancel)
        if is_settled_meanwhile:
            await client.ack(1)
            await server.hear(methods.Basic.Ack)
        await server.say(methods.Basic.CancelOk("mq"))
        await anyio.wait_all_tasks_blocked()
        assert got == [b"x", b"the end"]
        if not is_settled_meanwhile:
            await client.ack(1)
            await server.hear(methods.Basic.Ack)
        await server.answer(methods.Channel.Close, methods.Channel.CloseOk())
        assert [message async for message in consumer] == []


@pytest.mark.slow
@on_both_loops
async def test_channels_of_gets_do_not_pile_up() -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        is_open: set[int] = set()

        async def serve() -> None:
            while True:
                channel, method = await server.next()
                if isinstance(method, methods.Channel.Open):
                    is_open.add(channel)
                    await server.say(methods.Channel.OpenOk(), channel)
                elif isinstance(method, methods.Channel.Close):
                    is_open.remove(channel)
                    await server.say(methods.Channel.CloseOk(), channel)
                elif method.queue == "held":
                    await server.say(methods.Basic.GetOk(1, False, "", "held", 0), channel)
                    await server.content(b"x", channel)
                else:
                    await server.say(methods.Basic.GetEmpty(), channel)

        tasks.start_soon(serve)
        held = await client.get("held")
        for number in range(200):
            assert await client.get(f"q{number}") is None
        assert len(is_open) <= 64
        assert held is not None
        await client.ack(held.tag)
        tasks.cancel_scope.cancel()


HEADER = frame.marshal(header.ContentHeader(body_size=1), 1)
BODY = frame.marshal(body.ContentBody(b"xy"), 1)
GET_OK = frame.marshal(methods.Basic.GetOk(1, False, "", "q", 0), 1)


@on_both_loops
@pytest.mark.parametrize(
    "said",
    [HEADER, BODY, GET_OK + HEADER + BODY, GET_OK + GET_OK, GET_OK + BODY, GET_OK + HEADER + HEADER, b"\x01" * 20],
    ids=["no method", "no header", "too long", "two methods", "body first", "two headers", "nothing at all"],
)
async def test_messages_that_are_none_end_the_connection(said: bytes) -> None:
    async with talking() as (client, server), anyio.create_task_group() as tasks:
        outcome = begin(tasks, lambda: client.get("q"))
        await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await server.hear(methods.Basic.Get)
        await server.stream.send(said)
        _, close = await server.hear(methods.Connection.Close)
        assert close.reply_code in (501, 505)
        await anyio.wait_all_tasks_blocked()
        assert isinstance(outcome.error, Interrupted)
