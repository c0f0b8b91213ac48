"""A server of few words: the other side of a client, in memory. It reads and writes by pamqp, not by our own code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from anyio.abc import TaskGroup
from pamqp import base, body, exceptions, frame, header
from pamqp import commands as methods

from mq.client import ClientError
from mq.client.amqp import AmqpClient, Role
from mq.client.amqp.connection import connected
from mq.client.amqp.protocol import Login
from tests.client.amqp.streams import MemoryStream, memory_pair

T = TypeVar("T")
BEGIN = b"AMQP\0\0\x09\x01"
PATIENCE_SECONDS = 10.0


class Script:
    """The server's side of one connection."""

    def __init__(self, stream: MemoryStream) -> None:
        self.stream = stream
        self._held = b""

    async def begin(self, *, channel_max: int = 2047, frame_max: int = 131_072, heartbeat: int = 0) -> None:
        """Let the client in."""
        while len(self._held) < len(BEGIN):
            self._held += await self.stream.receive()
        assert self._held.startswith(BEGIN)
        self._held = self._held[len(BEGIN) :]
        await self.say(methods.Connection.Start(server_properties={}, mechanisms="AMQPLAIN PLAIN", locales="en_US"), 0)
        await self.hear(methods.Connection.StartOk)
        await self.say(methods.Connection.Tune(channel_max, frame_max, heartbeat), 0)
        await self.hear(methods.Connection.TuneOk)
        await self.hear(methods.Connection.Open)
        await self.say(methods.Connection.OpenOk(), 0)

    async def next(self) -> tuple[int, Any]:
        """(channel, frame), without heartbeats."""
        while True:
            try:
                size, channel, found = frame.unmarshal(self._held)
            except (exceptions.UnmarshalingException, ValueError):
                more = await self.stream.receive()
                assert more, "the client hung up"
                self._held += more
                continue
            self._held = self._held[size:]
            if type(found).__name__ != "Heartbeat":
                return channel, found

    async def hear(self, kind: type[T]) -> tuple[int, T]:
        """The next frame, which has to be of this kind, and its channel."""
        channel, found = await self.next()
        assert isinstance(found, kind), found
        return channel, found

    async def say(self, method: base.Frame, channel: int = 1) -> None:
        await self.stream.send(frame.marshal(method, channel))

    async def content(self, payload: bytes, channel: int = 1, message_id: str = "") -> None:
        properties = methods.Basic.Properties(message_id=message_id)
        parts = [frame.marshal(header.ContentHeader(body_size=len(payload), properties=properties), channel)]
        if payload:
            parts.append(frame.marshal(body.ContentBody(payload), channel))
        await self.stream.send(b"".join(parts))

    async def answer(self, kind: type[base.Frame], reply: base.Frame) -> int:
        """Hear a question and answer it. Its channel."""
        channel, _ = await self.hear(kind)
        await self.say(reply, channel)
        return channel

    async def open_consumer(self, channel: int = 1) -> None:
        await self.answer(methods.Channel.Open, methods.Channel.OpenOk())
        await self.answer(methods.Basic.Qos, methods.Basic.QosOk())
        await self.answer(methods.Basic.Consume, methods.Basic.ConsumeOk("mq"))

    async def deliver(self, number: int, payload: bytes = b"x", channel: int = 1) -> None:
        await self.say(methods.Basic.Deliver("mq", number, False, "", "q"), channel)
        await self.content(payload, channel)

    async def end(self) -> None:
        """Agree to the client's end."""
        while True:
            channel, found = await self.next()
            if isinstance(found, methods.Connection.Close):
                await self.say(methods.Connection.CloseOk(), 0)
                return
            if isinstance(found, methods.Channel.Close):
                await self.say(methods.Channel.CloseOk(), channel)


@asynccontextmanager
async def talking(
    *, heartbeat: int = 0, role: Role = Role.BOTH, **tuned: int
) -> AsyncIterator[tuple[AmqpClient, Script]]:
    """A client, and the server that it is connected to."""
    ours, theirs = memory_pair()
    login = Login(user="anna", secret="s", vhost="/", role="both", heartbeat_seconds=heartbeat, max_body=1_000_000)
    script = Script(theirs)
    with anyio.fail_after(1000):  # on the virtual clock
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: script.begin(**tuned))
            async with connected(ours, login, Role.BOTH, anyio.current_time() + PATIENCE_SECONDS) as client:
                yield client, script
                tasks.start_soon(script.end)
            tasks.cancel_scope.cancel()


class Outcome:
    """Of a verb that runs beside a test."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: ClientError | None = None
        self.is_done = False

    async def of(self, verb: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.value = await verb()
        except ClientError as error:
            self.error = error
        self.is_done = True


def begin(tasks: TaskGroup, verb: Callable[[], Awaitable[Any]]) -> Outcome:
    outcome = Outcome()
    tasks.start_soon(outcome.of, verb)
    return outcome


async def open_publishing(server: Script) -> int:
    await server.answer(methods.Channel.Open, methods.Channel.OpenOk())
    return await server.answer(methods.Confirm.Select, methods.Confirm.SelectOk())


async def hear_publish(server: Script) -> str:
    """Its message id."""
    await server.hear(methods.Basic.Publish)
    _, head = await server.hear(header.ContentHeader)
    if head.body_size:
        await server.next()
    return str(head.properties.message_id)


async def cancel_when_blocked(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()
