"""The reference server: a synchronous broker in memory, over AMQP on mq's own protocol without a socket, and over HTTP.

Each operation is read, executed and answered in one step; a client that does not read is waited for. The server has
what each operation needs and nothing else: a memory budget, ids, counters, prefetch, fair dispatch, leases. It has no
rights, audit, metrics, priorities, times to live, dead letters or recovery. Its processor time is the unit of
:mod:`benchmarks.reference`. ``python -m benchmarks.reference_server PORT`` serves both protocols on one port.
"""

from __future__ import annotations

import hashlib
import json
import re
import socket
import sys
import time
from collections import defaultdict, deque
from contextlib import suppress
from typing import Any, Final

import trio

from mq.amqp.model.topology import Topology
from mq.amqp.protocol import commands
from mq.amqp.protocol.commands import Arrival, Done, PublishedMessage
from mq.amqp.protocol.connection import Connection

_MEMORY_BYTES: Final = 1 << 30
_MESSAGE_BYTES: Final = 300
_LEASE_SECONDS: Final = 30.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TARGET: Final = re.compile(rb"\r\nx-amz-target: *AmazonSQS\.(\w+)", re.IGNORECASE)


class _Queue:
    def __init__(self) -> None:
        self.ready: deque[_Message] = deque()
        self.leased: dict[str, tuple[float, _Message]] = {}  # by id, the first one to end first
        self.consumers: deque[tuple[_AmqpConnection, Any, str]] = deque()  # may have credit; the next in turn is first
        self.published = self.delivered = self.removed = 0


class _Message:
    __slots__ = ("body", "id", "published", "queue", "receives", "size")

    def __init__(self, number: int, queue: _Queue, body: bytes, published: PublishedMessage | None) -> None:
        self.id, self.queue, self.body, self.published, self.receives = f"{number:036x}", queue, body, published, 0
        self.size = len(body) + _MESSAGE_BYTES + (0 if published is None else len(published.properties.raw))

    def arrival(self) -> Arrival:
        published = self.published
        assert published is not None, "a queue serves one protocol"
        exchange, key = published.exchange, published.routing_key
        return Arrival(self, exchange, key, published.properties.raw, self.body, self.receives > 1)


class _Broker:
    def __init__(self) -> None:
        self.queues: defaultdict[str, _Queue] = defaultdict(_Queue)
        self.touched: set[_AmqpConnection] = set()  # connections with something to send
        self._memory = 0
        self._number = time.time_ns()

    def publish(self, queue: _Queue, body: bytes, published: PublishedMessage | None = None) -> _Message | None:
        stored = _Message(self._number, queue, body, published)
        if self._memory + stored.size > _MEMORY_BYTES:
            return None
        self._number += 1
        self._memory += stored.size
        queue.published += 1
        queue.ready.append(stored)
        self.dispatch(queue)
        return stored

    def take(self, queue: _Queue) -> _Message:
        queue.delivered += 1
        message = queue.ready.popleft()
        message.receives += 1
        return message

    def remove(self, message: _Message) -> None:
        message.queue.removed += 1
        self._memory -= message.size

    def lease(self, queue: _Queue) -> _Message | None:
        """Lease the next message; None without one."""
        now = time.monotonic()
        while queue.leased and (first := next(iter(queue.leased.values())))[0] <= now:
            del queue.leased[first[1].id]
            queue.ready.appendleft(first[1])
        if not queue.ready:
            return None
        message = self.take(queue)
        queue.leased[message.id] = now + _LEASE_SECONDS, message
        return message

    def settle(self, queue: _Queue, id: str) -> bool:
        """Remove a leased message. False if it is not leased."""
        is_leased = id in queue.leased
        if is_leased:
            self.remove(queue.leased.pop(id)[1])
        return is_leased

    def dispatch(self, queue: _Queue) -> None:
        while queue.ready and queue.consumers:
            served, channel, tag = queue.consumers.popleft()
            found = served.connection.channel(channel)
            if found is not None and found.deliveries.credit(tag):  # else it comes back when it has credit again
                queue.consumers.append((served, channel, tag))
                served.connection.deliver(channel, tag, [self.take(queue).arrival()])
                self.touched.add(served)


class _AmqpConnection:
    def __init__(self, broker: _Broker, topology: Topology, plain: socket.socket) -> None:
        self._broker, self._topology, self._socket = broker, topology, plain
        self.connection = Connection(topology, self, time.monotonic)
        self._consumers: dict[tuple[Any, str], _Queue] = {}

    async def run(self) -> None:
        while data := await _receive(self._socket):
            self.connection.receive(data)
            while (command := self.connection.next_command()) is not None:
                self._execute(command)
            self._broker.touched.add(self)
            while self._broker.touched:
                touched = self._broker.touched.pop()
                await _send(touched._socket, touched.connection.outgoing())

    def _execute(self, command: Any) -> None:
        broker, connection = self._broker, self.connection
        match command:
            case commands.PublishMessages():
                for published in command.messages:
                    body, queues = published.body, [broker.queues[queue.name] for queue in published.queues]
                    is_stored = all(broker.publish(queue, body, published) is not None for queue in queues)
                    connection.published([published], is_stored=is_stored)
            case commands.Settle():
                for delivery in command.deliveries:
                    broker.remove(delivery.token)
            case commands.Credit():
                queue = self._consumers[command.channel, command.tag]
                queue.consumers.append((self, command.channel, command.tag))
                broker.dispatch(queue)
            case commands.Get():
                queue = broker.queues[command.queue.name]
                got = None
                if queue.ready:
                    broker.remove(message := broker.take(queue))
                    got = commands.Got(message.arrival(), len(queue.ready))
                connection.answer(command, got)
            case commands.Consume():
                queue = broker.queues[command.queue.name]
                self._consumers[command.channel, command.tag] = queue
                queue.consumers.append((self, command.channel, command.tag))
                connection.answer(command, Done())
                broker.dispatch(queue)
            case commands.DeclareQueue():
                self._topology.apply(self._topology.declare_queue(command.queue))
                connection.answer(command, commands.QueueDeclared(command.queue.name, 0, 0))
            case _:
                is_login = isinstance(command, commands.Authenticate)
                connection.answer(command, commands.Authenticated(None) if is_login else Done())


async def _serve_http(broker: _Broker, plain: socket.socket) -> None:
    received = b""
    while data := await _receive(plain):
        received += data
        answers = []
        while (end := received.find(b"\r\n\r\n")) >= 0:
            found = _LENGTH.search(received, 0, end)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(received) < whole:
                break
            answers.append(_answer(broker, received[:end], received[end + 4 : whole]))
            received = received[whole:]
        await _send(plain, b"".join(answers))


def _answer(broker: _Broker, head: bytes, body: bytes) -> bytes:
    if (action := _TARGET.search(head)) is not None:
        return _response(200, json.dumps(_act(broker, action[1], json.loads(body))).encode())
    method, target, _ = head[: head.find(b"\r\n")].decode("ascii").split(" ")
    name, *rest = target.partition("?")[0][1:].split("/")
    queue = broker.queues[name]
    if method == "PUT":
        return _response(201)
    if method == "POST":
        stored = broker.publish(queue, body)
        return _response(503) if stored is None else _response(201, b"", f"x-message-id: {stored.id}\r\n")
    if method == "DELETE":
        return _response(202 if broker.settle(queue, rest[1]) else 404)
    if (message := broker.lease(queue)) is None:
        return _response(204)
    return _response(200, message.body, f"x-message-id: {message.id}\r\nx-message-receives: {message.receives}\r\n")


def _act(broker: _Broker, action: bytes, given: dict[str, Any]) -> dict[str, Any]:
    queue = broker.queues[given.get("QueueUrl", "").rpartition("/")[2]]
    if action == b"SendMessage":
        stored = broker.publish(queue, given["MessageBody"].encode())
        return {} if stored is None else {"MessageId": stored.id, "MD5OfMessageBody": _md5(stored.body)}
    if action == b"DeleteMessage":
        broker.settle(queue, given["ReceiptHandle"])
    elif action == b"ReceiveMessage" and (message := broker.lease(queue)) is not None:
        shown = {"MessageId": message.id, "ReceiptHandle": message.id, "MD5OfBody": _md5(message.body)}
        return {"Messages": [{**shown, "Body": message.body.decode()}]}
    return {}


def _md5(body: bytes) -> str:
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def _response(status: int, body: bytes = b"", headers: str = "") -> bytes:
    length = "" if status == 204 else f"content-length: {len(body)}\r\n"
    return f"HTTP/1.1 {status} \r\n{headers}{length}\r\n".encode("ascii") + body


async def _receive(plain: socket.socket) -> bytes:
    await trio.lowlevel.wait_readable(plain)
    return plain.recv(65536)


async def _send(plain: socket.socket, data: bytes) -> None:
    while data := data[plain.send(data) :] if data else b"":
        await trio.lowlevel.wait_writable(plain)


async def _serve_connection(broker: _Broker, topology: Topology, plain: socket.socket) -> None:
    with plain, suppress(OSError):
        plain.setblocking(False)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await trio.lowlevel.wait_readable(plain)
        is_amqp = plain.recv(4, socket.MSG_PEEK) == b"AMQP"
        await (_AmqpConnection(broker, topology, plain).run() if is_amqp else _serve_http(broker, plain))


async def _serve(port: int) -> None:
    broker, topology = _Broker(), Topology(["/"])
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setblocking(False)
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.wait_readable(listener)
                nursery.start_soon(_serve_connection, broker, topology, listener.accept()[0])


if __name__ == "__main__":
    trio.run(_serve, int(sys.argv[1]))
