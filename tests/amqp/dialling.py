"""A client of a whole door in this process: pamqp speaks over a stream in memory, so time can be virtual."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
from pamqp import base, body, commands, frame, header
from trio.testing import memory_stream_pair

from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.server.served_connection import ServedConnection
from mq.amqp.server.state import AmqpState
from mq.amqp.wire.frames import PROTOCOL_HEADER
from mq.broker import Broker, BrokerConfig, open_broker
from mq.doors.budget import Budget
from mq.doors.connections import Peer
from mq.doors.logins import Logins
from mq.storage.interface import Storage
from tests.amqp.talking import CAPABILITIES, content, words

STORE = "layered:memory:"


class Client:
    """One connection, opened by :meth:`House.connect`.

    Attributes:
        said: frames that came and that nobody has looked at, as (channel, frame).
    """

    def __init__(self, stream: Any, tell: Callable[[int, str, bytes], None] | None = None) -> None:
        self.stream = stream
        self.said: deque[tuple[int, Any]] = deque()
        self._data = b""
        self._tell = tell

    async def say(self, *spoken: base.Frame, channel: int = 1) -> None:
        await self.stream.send_all(b"".join(words(method, channel) for method in spoken))

    async def hear(self) -> Any:
        """The next frame but heartbeats; None at the end."""
        return (await self.hear_of())[1]

    async def hear_of(self) -> tuple[int, Any]:
        while True:
            if self.said:
                return self.said.popleft()
            if len(self._data) >= 7 and len(self._data) >= 8 + int.from_bytes(self._data[3:7]):
                size, channel, found = frame.unmarshal(self._data)
                if self._tell is not None:
                    self._tell(channel, found.name, self._data[:size])
                self._data = self._data[size:]
                if found.name != "Heartbeat":
                    return channel, found
                continue
            more = await self.stream.receive_some()
            if not more:
                return 0, None
            self._data += more

    async def call(self, method: base.Frame, channel: int = 1) -> Any:
        """Say it, and the one answer. What else comes before is kept for later."""
        await self.say(method, channel=channel)
        wanted = {*(method.valid_responses or ()), "Channel.Close", "Connection.Close"}
        kept: list[tuple[int, Any]] = []
        while True:
            number, found = await self.hear_of()
            if found is None or (found.name in wanted and number in (channel, 0)):
                self.said.extendleft(reversed(kept))
                return found
            kept.append((number, found))

    async def open(self, vhost: str = "/", heartbeat: int = 0, frame_max: int = 131072, **who: str) -> Client:
        await self.stream.send_all(PROTOCOL_HEADER)
        assert (await self.hear()).name == "Connection.Start"
        response = f"\0{who.get('name', 'guest')}\0{who.get('secret', 'guest')}"
        start = commands.Connection.StartOk({"capabilities": CAPABILITIES}, "PLAIN", response)
        await self.say(start, channel=0)
        assert (await self.hear()).name == "Connection.Tune"
        await self.say(commands.Connection.TuneOk(2047, frame_max, heartbeat), channel=0)
        answer = await self.call(commands.Connection.Open(vhost), 0)
        assert answer.name == "Connection.OpenOk", answer.name
        await self.open_channel(1)
        return self

    async def open_channel(self, number: int) -> None:
        assert (await self.call(commands.Channel.Open(), number)).name == "Channel.OpenOk"

    async def declare(self, queue: str = "q", arguments: dict[str, Any] | None = None, **given: Any) -> str:
        answer = await self.call(commands.Queue.Declare(queue=queue, arguments=arguments or {}, **given))
        assert answer.name == "Queue.DeclareOk", (answer.reply_code, answer.reply_text)
        return answer.queue

    async def count(self, queue: str = "q") -> int:
        return (await self.call(commands.Queue.Declare(queue=queue, passive=True))).message_count

    async def publish(
        self, key: str, *bodies: bytes, exchange: str = "", mandatory: bool = False, channel: int = 1, **properties: Any
    ) -> None:
        method = words(commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory), channel)
        given = commands.Basic.Properties(**properties)
        await self.stream.send_all(b"".join(method + content(channel, each, given) for each in bodies))

    async def get(self, queue: str = "q", *, no_ack: bool = False) -> tuple[Any, Any, bytes] | None:
        """(method, properties, body)."""
        answer = await self.call(commands.Basic.Get(queue=queue, no_ack=no_ack))
        if answer.name == "Basic.GetEmpty":
            return None
        assert answer.name == "Basic.GetOk", (answer.reply_code, answer.reply_text)
        return answer, *(await self._content())

    async def bodies(self, queue: str = "q") -> list[bytes]:
        found = []
        while (got := await self.get(queue, no_ack=True)) is not None:
            found.append(got[2])
        return found

    async def consume(self, queue: str = "q", tag: str = "c", channel: int = 1, **given: Any) -> Any:
        return await self.call(commands.Basic.Consume(queue=queue, consumer_tag=tag, **given), channel)

    async def delivery(self) -> tuple[Any, Any, bytes]:
        """The next message for a consumer."""
        method = await self.hear()
        assert getattr(method, "name", "the end") == "Basic.Deliver", method
        return method, *(await self._content())

    async def _content(self) -> tuple[Any, bytes]:
        head = await self.hear()
        assert isinstance(head, header.ContentHeader), head
        data = b""
        while len(data) < head.body_size:
            part = await self.hear()
            assert isinstance(part, body.ContentBody), part
            data += part.value
        return head.properties, data

    async def is_silent(self, seconds: float = 1) -> bool:
        """Whether nothing is said for so long; virtual time."""
        with trio.move_on_after(seconds):
            number, found = await self.hear_of()
            self.said.appendleft((number, found))
            return False
        return True

    async def close(self) -> None:
        await self.call(commands.Connection.Close(200, "", 0, 0), 0)
        await self.stream.aclose()


class House:
    """A broker with a door, and its connections.

    Args:
        tell: told of every frame that a client hears: the channel, the frame's name, and its bytes.
    """

    def __init__(
        self,
        broker: Broker,
        door: AmqpState,
        nursery: trio.Nursery,
        tell: Callable[[int, str, bytes], None] | None = None,
    ) -> None:
        self.broker = broker
        self.door = door
        self.nursery = nursery
        self._tell = tell

    def dial(self, address: str = "") -> Client:
        """A connection on which nothing has been said."""
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(ServedConnection(self.door, theirs, Peer(address, 1), "0").run)  # type: ignore[arg-type]
        return Client(ours, self._tell)

    async def connect(self, **given: Any) -> Client:
        return await self.dial().open(**given)


@asynccontextmanager
async def open_house(
    storage: str | Storage = STORE,
    vhosts: tuple[str, ...] = ("blue",),
    logins: Logins | None = None,
    limits: ConnectionLimits = ConnectionLimits(),  # noqa: B008 - frozen
    memory: Budget | None = None,
    **config: Any,
) -> AsyncIterator[House]:
    """A house that a test works in. At its end, connections that are open are dropped."""

    def clock_ns() -> int:
        return int((1_700_000_000 + trio.current_time()) * 1e9)

    async with open_broker(storage, BrokerConfig(**config), clock_ns=clock_ns) as broker:
        door = AmqpState(broker, vhosts, logins, limits, memory)
        await door.load()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(door.run)
            yield House(broker, door, nursery)
            nursery.cancel_scope.cancel()
