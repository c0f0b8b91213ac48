"""Two worlds that differ in nothing but the lane their requests take, and what is said to both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Final

import pytest
import trio

from mq.access import UserDirectory
from mq.access.certificates import Certificates
from mq.broker import BrokerConfig, Draft, open_broker
from mq.doors.exchanges import Exchanges, NoSuchExchange
from mq.doors.logins import Logins
from mq.doors.open_connections import OpenConnections
from mq.errors import MQError
from mq.storage.memory import MemoryStorage
from mq.web.authorizer import Authorizer
from mq.web.endpoints import Endpoints
from mq.web.exchange import Handler
from mq.web.hypercorn_server import GuardedServer
from tests.web.talking import MAX_BODY, Server, start_server

LAST_ID: Final = "00000000-0000-1000-8000-000000000000"
"""In a request: the last id that came along."""
LAST_RECEIPT: Final = "$RECEIPT"
LAST_EPOCH: Final = "$EPOCH"
LAST_CONNECTION: Final = "$CONNECTION"

_ID: Final = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-1[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_RECEIPT: Final = re.compile(rb'(?:etag|"receipt"): "([0-9a-f]+)"')
_DATE: Final = re.compile(rb"\r\ndate: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r\n")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: \d+\r\n")
_EPOCH: Final = re.compile(rb'"epoch": (\d+)')
_SEQUENCE: Final = re.compile(rb"\b\d{18}\b")
_CONNECTION: Final = re.compile(rb'"id": "([0-9a-f]{6}-\d+)"')
_MEASURED: Final = re.compile(
    rb'"(?:(?:oldest|uptime|open|idle)_seconds|port|(?:received|sent)_bytes)": [0-9.]+|"id": "[0-9a-f]{6}-\d+"'
    rb'|"(?:published|oldest)_ms": ?[0-9]+'
    rb'|"(?:wall|message)_time": "[0-9TZ:.-]+"|"steady_seconds_ahead": -?[0-9.]+'
    rb"|(?m:^(?:process_|mq_queue_oldest_seconds|mq_event_loop_step_seconds)[^ ]* \S+$)"
)
"""Seconds, and what is said of the process: what is never twice the same."""


@dataclass
class World:
    """A server, and what it has been told and has said.

    Attributes:
        handed_on: how many of its connections Hypercorn got to see.
    """

    server: Server
    ids: list[bytes] = field(default_factory=list)
    receipt: bytes = b""
    epoch: bytes = b""
    connection: bytes = b""
    receipts: set[bytes] = field(default_factory=set)
    handed_on: int = 0

    def fill_in(self, request: bytes) -> bytes:
        """The last id, receipt and epoch that came along, where the request has a place for them."""
        id = self.ids[-1] if self.ids else LAST_ID.encode()
        request = request.replace(LAST_ID.encode(), id).replace(LAST_RECEIPT.encode(), self.receipt)
        request = request.replace(LAST_CONNECTION.encode(), self.connection)
        return request.replace(LAST_EPOCH.encode(), self.epoch)

    def masked(self, response: bytes) -> bytes:
        """A response without what is never twice the same."""
        for id in _ID.findall(response):
            if id not in self.ids:
                self.ids.append(id)
        for receipt in _RECEIPT.findall(response):
            self.receipt = receipt
            self.receipts.add(receipt)
        for receipt in self.receipts:
            response = response.replace(receipt, b"~")
        response = _ID.sub(lambda id: b"ID%d" % self.ids.index(id[0]), response)
        for epoch in _EPOCH.findall(response):
            self.epoch = epoch
        for connection in _CONNECTION.findall(response):
            self.connection = connection
        response = _SEQUENCE.sub(b"~", response)
        response, count = _MEASURED.subn(b"~", response)
        if count:
            response = _LENGTH.sub(b"\r\ncontent-length: ~\r\n", response)
        return _DATE.sub(b"\r\ndate: ~\r\n", response)


Worlds = tuple[World, World]


class TakesAll:
    """An AMQP door with the one exchange ``x``."""

    def name_of(self, vhost: str, exchange: str) -> str:
        return exchange

    async def publish(
        self, vhost: str, exchange: str, routing_key: str, drafts: Sequence[Draft]
    ) -> list[bool | MQError]:
        if exchange != "x":
            raise NoSuchExchange("no such exchange")
        return [routing_key == "k"] * len(drafts)


async def make_worlds(
    stack: AsyncExitStack,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    *,
    access: UserDirectory | None = None,
    certificates: Certificates | None = None,
    handler: Handler | None = None,
) -> Worlds:
    """One in the fast lane, and one without. Each has the queue ``q``.

    Args:
        access: for a gate before the endpoints.
        handler: instead of the endpoints.
    """
    found: list[World] = []
    for fast_lane in (True, False):
        store = MemoryStorage()
        await store.open()
        stack.push_async_callback(store.aclose)
        broker = await stack.enter_async_context(open_broker(store, BrokerConfig(max_body=MAX_BODY), random=Random(1)))
        await broker.create_queue("q")
        seen = OpenConnections()
        exchanges = Exchanges()
        exchanges.publisher = TakesAll()
        endpoints = handler or Endpoints(broker, MAX_BODY, connections=seen, exchanges=exchanges)
        gate = endpoints if access is None else Authorizer(endpoints, Logins(access))
        server = await start_server(nursery, gate, fast_lane=fast_lane, certificates=certificates, seen=seen)
        stack.callback(server.stop.set)
        found.append(World(server))

    class Counted(GuardedServer):
        async def run(self) -> None:
            port = self.stream.socket.getsockname()[1]
            next(world for world in found if world.server.port == port).handed_on += 1
            await super().run()

    monkeypatch.setattr("mq.web.serve.GuardedServer", Counted)
    return found[0], found[1]


async def receive_response(stream: trio.abc.ReceiveStream, *, is_head: bool) -> bytes:
    """The next response, as long as it says; what there is when the connection ends before."""
    received = b""
    while not (found := re.search(rb"(?s)\A(.*?\r\n)\r\n", received)):
        data = await stream.receive_some()
        if not data:
            return received + b"<end>"
        received += data
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n", found[1])
    size = found.end() + (0 if is_head or length is None else int(length[1]))
    while len(received) < size:
        data = await stream.receive_some()
        if not data:
            return received + b"<end>"
        received += data
    assert len(received) == size, "more than was announced"
    return received


_COUNTED: Final = re.compile(rb"HEAD /(-/|[^/ ]+ )")
"""Asks how something of the daemon, or a queue, is."""


async def talk(world: World, stream: trio.abc.Stream, script: Iterable[bytes]) -> list[bytes]:
    """The responses to requests that are sent one after the other."""
    responses = []
    with trio.fail_after(20):
        for request in script:
            await stream.send_all(world.fill_in(request))
            response = await receive_response(stream, is_head=request.startswith(b"HEAD"))
            if _COUNTED.match(request):  # the length of a body that counts seconds, and is not shown
                response = _LENGTH.sub(b"\r\ncontent-length: ~\r\n", response)
            responses.append(world.masked(response))
    return responses


async def said_alike(worlds: Worlds, script: Sequence[bytes], *, handed_on: int = 0) -> list[bytes]:
    """Have a script said on one connection to each world. The answers, which are the same."""
    answers = []
    for world in worlds:
        async with await world.server.connect() as stream:
            answers.append(await talk(world, stream, script))
    for request, fast, slow in zip(script, *answers, strict=True):
        assert fast == slow, different(request, fast, slow)
    assert [world.handed_on for world in worlds] == [handed_on, 1]
    return answers[0]


async def ended_alike(worlds: Worlds, data: bytes, *, handed_on: int = 0, half_close: bool = True) -> bytes:
    """All that comes back until the connection ends, which is the same."""
    answers = []
    for world in worlds:
        with trio.fail_after(20):
            answers.append(world.masked(await world.server.exchange(world.fill_in(data), half_close=half_close)))
    assert answers[0] == answers[1], different(data, *answers)
    assert [world.handed_on for world in worlds] == [handed_on, 1]
    return answers[0]


def different(request: bytes, fast: bytes, slow: bytes) -> str:
    """What two answers have to say for themselves."""
    return f"to {request[:200]!r}\nfast lane: {fast[:2000]!r}\nHypercorn: {slow[:2000]!r}"


def statuses(answers: Iterable[bytes]) -> list[int]:
    return [int(status) for answer in answers for status in re.findall(rb"HTTP/1\.1 (\d+)", answer)]


def json_lines(*lines: str) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
