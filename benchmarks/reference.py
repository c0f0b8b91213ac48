"""What AMQP costs mq beside a reference server: a synchronous broker in memory, on mq's own protocol without a socket.

The reference does what each operation needs and nothing else: a memory budget, ids, counters, prefetch, fair dispatch.
It has no rights, audit, metrics, priorities, times to live, dead letters or recovery. Its processor time is the unit,
so figures of different machines can be compared. ``python -m benchmarks.reference PORT`` serves it.
"""

from __future__ import annotations

import socket
import statistics
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio
from pamqp import commands as methods

from benchmarks.counts import processor_seconds
from benchmarks.figures import Figure, at_most
from benchmarks.load.amqp import AmqpCodec, marshal
from benchmarks.load.codec import Codec, Steps
from benchmarks.load.driver import Operation, open_session
from benchmarks.systems.mq import MqInMemory
from benchmarks.systems.system import Server, listening
from benchmarks.turns import consume, publish
from mq.amqp.model.topology import Topology
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Arrival, Done, PublishedMessage
from mq.amqp.protocol.connection import Connection
from mq.testing.ports import HeldPort

WANTED: Final = {
    "basic.get, queue empty": 1.6,
    "publish + confirm": 2.0,
    "basic.get without ack, one message": 1.8,
    "delivery + ack, prefetch 1": 2.0,
}
"""At most so many times the reference's processor time."""
_BODY: Final = b"x" * 1024
_GET_OK: Final = struct.pack(">HH", 60, 71)
_MEMORY_BYTES: Final = 1 << 30
_MESSAGE_BYTES: Final = 300


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """Processor time of one operation at a time, on one connection, with the store in memory: mq and the reference in
    turns. The first round warms up."""
    turns: list[list[dict[str, float]]] = [[], []]
    held = HeldPort()
    command = [sys.executable, "-m", "benchmarks.reference", str(held)]
    with MqInMemory().start(Path(folder)) as mq, listening(command, held.number, Path(folder)) as reference:
        for number in range(rounds + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                turns[at].append(trio.run(_take_turn, (mq, reference)[at], f"q{number}", messages))
    return [_figure(name, *(statistics.median(turn[name] for turn in of[1:]) for of in turns)) for name in WANTED]


def _figure(name: str, mq: float, reference: float) -> Figure:
    note = f"{mq * 1e6:.0f} µs of processor time against {reference * 1e6:.0f} µs"
    return at_most(f"AMQP {name}, against the reference server", mq / reference, WANTED[name], note=note)


async def _take_turn(server: Server, queue: str, messages: int) -> dict[str, float]:
    """Processor seconds of each operation."""
    get = marshal(methods.Basic.Get(queue=queue, no_ack=True))

    def getting(codec: Codec) -> Steps:
        _, payload = yield get
        if payload.startswith(_GET_OK):  # a header and a body follow
            yield b""
            yield b""

    async with open_session(lambda: AmqpCodec(queue, _BODY), server.ports, 1) as session:

        async def used(operation: Operation, count: int = messages) -> float:
            before = processor_seconds(server.pids)
            await session.run(operation, 0.0, least=count, most=count)
            return (processor_seconds(server.pids) - before) / count

        found = [await used(getting), await used(publish), await used(getting)]
        await used(publish, messages + 2)
        await session.each(lambda codec: codec.subscribe())
        await used(consume, 1)
        return dict(zip(WANTED, [*found, await used(consume)], strict=True))


# The reference server


class _Queue:
    def __init__(self) -> None:
        self.ready: deque[_Message] = deque()
        self.consumers: deque[_Consumer] = deque()  # those that may have credit; the next one in turn is the first
        self.published = self.delivered = self.removed = 0


class _Message:
    __slots__ = ("message", "number", "queue", "receives", "size")

    def __init__(self, number: int, queue: _Queue, message: PublishedMessage) -> None:
        self.number, self.queue, self.message, self.receives = number, queue, message, 0
        self.size = len(message.body) + len(message.properties.raw) + _MESSAGE_BYTES

    def arrival(self) -> Arrival:
        exchange, key = self.message.exchange, self.message.routing_key
        return Arrival(self, exchange, key, self.message.properties.raw, self.message.body, self.receives > 1)


class _Consumer:
    def __init__(self, server: _Served, command: commands.Consume, queue: _Queue) -> None:
        self.server, self.channel, self.tag, self.queue = server, command.channel, command.tag, queue


class _Broker:
    """Each operation runs to its end in the step that read it."""

    def __init__(self) -> None:
        self.queues: dict[str, _Queue] = {}
        self.touched: set[_Served] = set()  # connections with something to send
        self._memory = 0
        self._number = time.time_ns()

    def publish(self, name: str, message: PublishedMessage) -> bool:
        """Store a message. False when there is no room."""
        queue = self.queues[name]
        stored = _Message(self._number, queue, message)
        if self._memory + stored.size > _MEMORY_BYTES:
            return False
        self._number += 1
        self._memory += stored.size
        queue.published += 1
        queue.ready.append(stored)
        self.dispatch(queue)
        return True

    def take(self, queue: _Queue) -> _Message:
        queue.delivered += 1
        message = queue.ready.popleft()
        message.receives += 1
        return message

    def remove(self, message: _Message) -> None:
        message.queue.removed += 1
        self._memory -= message.size

    def dispatch(self, queue: _Queue) -> None:
        """Deliver ready messages to consumers that have credit, in turns."""
        while queue.ready and queue.consumers:
            consumer = queue.consumers[0]
            connection = consumer.server.connection
            if not connection.credit(consumer.channel, consumer.tag):
                queue.consumers.popleft()  # until it has credit again
                continue
            queue.consumers.rotate(-1)
            connection.deliver(consumer.channel, consumer.tag, [self.take(queue).arrival()])
            self.touched.add(consumer.server)


class _Served:
    """One connection: read, executed and answered in one step. A client that does not read is waited for."""

    def __init__(self, broker: _Broker, topology: Topology, plain: socket.socket) -> None:
        self._broker, self._topology, self._socket = broker, topology, plain
        self.connection = Connection(topology, self, time.monotonic)
        self._consumers: dict[tuple[Any, str], _Consumer] = {}

    async def run(self) -> None:
        with self._socket, suppress(OSError):
            while True:
                await trio.lowlevel.wait_readable(self._socket)
                if not (data := self._socket.recv(65536)):
                    return
                self.connection.receive(data)
                while (command := self.connection.next_command()) is not None:
                    self._execute(command)
                self._broker.touched.add(self)
                while self._broker.touched:
                    await self._broker.touched.pop().flush()

    async def flush(self) -> None:
        data = self.connection.outgoing()
        while data := data[self._socket.send(data) :] if data else b"":
            await trio.lowlevel.wait_writable(self._socket)

    def _execute(self, command: Any) -> None:
        broker, connection = self._broker, self.connection
        match command:
            case commands.PublishMessages():
                for published in command.messages:
                    is_stored = [broker.publish(queue.name, published) for queue in published.queues]
                    connection.published([published], is_stored=all(is_stored))
            case commands.Settle():
                for delivery in command.deliveries:
                    broker.remove(delivery.token)
            case commands.Credit():
                consumer = self._consumers[command.channel, command.tag]
                consumer.queue.consumers.append(consumer)
                broker.dispatch(consumer.queue)
            case commands.Get():
                queue = broker.queues[command.queue.name]
                got = None
                if queue.ready:
                    message = broker.take(queue)
                    broker.remove(message)
                    got = commands.Got(message.arrival(), len(queue.ready))
                connection.answer(command, got)
            case commands.Consume():
                queue = broker.queues[command.queue.name]
                consumer = self._consumers[command.channel, command.tag] = _Consumer(self, command, queue)
                queue.consumers.append(consumer)
                connection.answer(command, Done())
                broker.dispatch(queue)
            case commands.DeclareQueue():
                self._topology.apply(self._topology.declare_queue(command.queue))
                queue = broker.queues.setdefault(command.queue.name, _Queue())
                connection.answer(command, commands.QueueDeclared(command.queue.name, len(queue.ready), 0))
            case _:
                is_login = isinstance(command, commands.Authenticate)
                connection.answer(command, commands.Authenticated(None) if is_login else Done())


async def _serve(port: int) -> None:
    broker, topology = _Broker(), Topology(["/"])
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                plain, _ = listener.accept()
                plain.setblocking(False)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                nursery.start_soon(_Served(broker, topology, plain).run)


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]))
