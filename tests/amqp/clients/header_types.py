"""The types of all header fields that a server itself writes, as they are on the wire.

``python -m tests.amqp.clients.header_types`` asks RabbitMQ, and writes ``header_types.json``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio
from pamqp import commands

from mq.amqp.wire import tables
from tests.amqp.dialling import Client
from tests.amqp.rabbit import Rabbit, version

FILE: Final = Path(__file__).with_suffix(".json")
WAIT_SECONDS: Final = 60
PERSISTENT: Final = 2
_FRAME_HEAD: Final = 7
_BEFORE_PROPERTIES: Final = 12  # class, weight, size of the body
_FLAGS: Final = 2
_HEADERS_ALONE: Final = 0x2000 | 0x1000  # headers, and the delivery mode behind them

Types = Any
"""Of a value: the letter of its type; of a table a dictionary of them, of an array a list."""


class Wire:
    """A client that keeps the last table of headers as it came.

    Args:
        stream: an open connection.
        queue_type: of the queues that it declares.
    """

    def __init__(self, stream: trio.abc.Stream, queue_type: str) -> None:
        self.client = Client(stream, self._tell)
        self._queue_type = queue_type
        self._last = b""

    async def declare(self, queue: str, **arguments: Any) -> None:
        given = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
        await self.client.call(commands.Queue.Delete(queue=queue))
        await self.client.declare(queue, given | {"x-queue-type": self._queue_type}, durable=True)

    async def publish(self, queue: str, headers: dict[str, Any] | None = None, expiration: str | None = None) -> None:
        await self.client.publish(queue, b"x", headers=headers, delivery_mode=PERSISTENT, expiration=expiration)

    async def get(self, queue: str) -> tuple[int, Types]:
        """The tag of the next message, which has to come, and the types of its headers."""
        with trio.fail_after(WAIT_SECONDS):
            while (got := await self.client.get(queue)) is None:
                await trio.sleep(0.02)
        return got[0].delivery_tag, self.types()

    async def delivery(self) -> tuple[int, Types]:
        with trio.fail_after(WAIT_SECONDS):
            method, _, _ = await self.client.delivery()
        return method.delivery_tag, self.types()

    async def nack(self, tag: int, *, requeue: bool) -> None:
        await self.client.say(commands.Basic.Nack(tag, requeue=requeue))

    async def ack(self, tag: int) -> None:
        await self.client.say(commands.Basic.Ack(tag))

    def types(self) -> Types:
        """Of the headers of the last content that came."""
        at = _FRAME_HEAD + _BEFORE_PROPERTIES
        flags = int.from_bytes(self._last[at : at + _FLAGS])
        assert not flags & ~_HEADERS_ALONE, f"these properties have more than headers: {flags:#x}"
        if not flags & 0x2000:
            return {}
        at += _FLAGS
        return _of_table(self._last[at : at + 4 + int.from_bytes(self._last[at : at + 4])])

    def _tell(self, _: int, name: str, data: bytes) -> None:
        if name == "ContentHeader":
            self._last = data


def _of_table(table: bytes) -> Types:
    return {
        entry.key.decode(): _of_value(table[entry.start + 1 + len(entry.key) : entry.end])
        for entry in tables.entries(table)
    }


def _of_value(value: bytes) -> Types:
    kind = chr(value[0])
    if kind == "F":
        return _of_table(value[1:])
    if kind != "A":
        return kind
    found, at = [], 5
    while at < len(value):
        end = tables._value_end(value, at, len(value))
        found.append(_of_value(value[at:end]))
        at = end
    return found


def _dying(dead: str, **more: Any) -> dict[str, Any]:
    return {"dead_letter_exchange": "", "dead_letter_routing_key": dead, **more}


async def _rejected(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue)
    await wire.nack((await wire.get(queue))[0], requeue=False)
    return (await wire.get(dead))[1]


async def _rejected_with_keys(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue, {"CC": ["elsewhere"], "BCC": ["hidden"], "mine": "x"})
    await wire.nack((await wire.get(queue))[0], requeue=False)
    return (await wire.get(dead))[1]


async def _delivered_with_keys(wire: Wire, queue: str) -> Types:
    await wire.declare(queue)
    await wire.client.consume(queue)
    await wire.publish(queue, {"CC": ["elsewhere"], "BCC": ["hidden"]})
    return (await wire.delivery())[1]


async def _rejected_twice(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead, **_dying(queue))
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue)
    for where in (queue, dead, queue):
        await wire.nack((await wire.get(where))[0], requeue=False)
    return (await wire.get(dead))[1]


async def _expired(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue, expiration="1")
    return (await wire.get(dead))[1]


async def _expired_in_its_queue(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead, message_ttl=1))
    await wire.publish(queue)
    return (await wire.get(dead))[1]


async def _had_to_make_room(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead, max_length=1))
    await wire.publish(queue)
    await wire.publish(queue)
    return (await wire.get(dead))[1]


async def _died_before(wire: Wire, queue: str) -> Types:
    """Its history came with it, as from a program that moves messages from one server to another."""
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue, {"x-death": []})
    await wire.nack((await wire.get(queue))[0], requeue=False)
    return (await wire.get(dead))[1]


async def _first_death_was_claimed(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead))
    await wire.publish(queue, {"x-first-death-reason": 1})
    await wire.nack((await wire.get(queue))[0], requeue=False)
    return (await wire.get(dead))[1]


async def _redelivered(wire: Wire, queue: str) -> Types:
    await wire.declare(queue)
    await wire.client.consume(queue)
    await wire.publish(queue, {"mine": "x"})
    tag, first = await wire.delivery()
    await wire.nack(tag, requeue=True)
    tag, second = await wire.delivery()
    await wire.ack(tag)
    return [first, second]


async def _got(wire: Wire, queue: str) -> Types:
    await wire.declare(queue)
    await wire.publish(queue, {"mine": "x"})
    tag, first = await wire.get(queue)
    await wire.nack(tag, requeue=True)
    return [first, (await wire.get(queue))[1]]


async def _delivered_too_often(wire: Wire, queue: str) -> Types:
    dead = f"{queue}.dead"
    await wire.declare(dead)
    await wire.declare(queue, **_dying(dead, delivery_limit=1))
    await wire.publish(queue)
    for _ in range(2):
        await wire.nack((await wire.get(queue))[0], requeue=True)
    return (await wire.get(dead))[1]


SCENARIOS: Final[Mapping[str, Callable[[Wire, str], Awaitable[Types]]]] = {
    "rejected": _rejected,
    "rejected with CC": _rejected_with_keys,
    "delivered with CC": _delivered_with_keys,
    "rejected twice": _rejected_twice,
    "expired": _expired,
    "expired in its queue": _expired_in_its_queue,
    "had to make room": _had_to_make_room,
    "died before": _died_before,
    "first death was claimed": _first_death_was_claimed,
    "redelivered": _redelivered,
    "got": _got,
}
OF_QUORUM: Final = {**SCENARIOS, "delivered too often": _delivered_too_often}


async def types_of(
    connect: Callable[[], Awaitable[trio.abc.Stream]], queue_type: str, scenario: str, queue: str
) -> Types:
    """Of the headers in one scenario, over a connection of its own.

    Args:
        connect: opens a stream to the server.
        queue_type: ``classic`` or ``quorum``.
        scenario: of :data:`OF_QUORUM`.
        queue: a name that nothing else uses.
    """
    wire = Wire(await connect(), queue_type)
    await wire.client.open()
    try:
        return await OF_QUORUM[scenario](wire, queue)
    finally:
        await wire.client.stream.aclose()


def recorded() -> Mapping[str, Any]:
    """Queue type -> scenario -> what RabbitMQ wrote."""
    found: Mapping[str, Any] = json.loads(FILE.read_text())
    return found


async def _ask(port: int) -> Mapping[str, Any]:
    async def connect() -> trio.abc.Stream:
        return await trio.open_tcp_stream("127.0.0.1", port)

    return {
        queue_type: {name: await types_of(connect, queue_type, name, "q") for name in scenarios}
        for queue_type, scenarios in (("classic", SCENARIOS), ("quorum", OF_QUORUM))
    }


def main() -> None:
    """Ask RabbitMQ, and write down what it says."""
    temporary = tempfile.TemporaryDirectory(prefix="mq-", ignore_cleanup_errors=True)
    with temporary as folder, Rabbit(Path(folder)) as rabbit:
        found = trio.run(_ask, rabbit.port)
    FILE.write_text(json.dumps({"rabbitmq": version(), **found}, indent=1) + "\n")
    sys.stdout.write(f"{FILE}: {sum(map(len, found.values()))} scenarios\n")


if __name__ == "__main__":
    main()
