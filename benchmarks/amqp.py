"""``python -m benchmarks.amqp``: one connection over AMQP, against RabbitMQ's classic queue, turn by turn in one run.

A thousand confirms are outstanding while messages of 1 KiB are published, persistent, to a durable queue; then they are
consumed with a prefetch of a thousand, each acknowledged by itself. The client is raw frames, so that it costs little.
With ``--waiting 100000`` it tells instead how much memory mq takes for each of so many messages that wait on disk.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from pamqp import base, commands, frame, header

from benchmarks.counts import processor_seconds
from benchmarks.systems.mq import MqAmqp
from benchmarks.systems.rabbitmq import RabbitClassic
from benchmarks.systems.system import Server, System

WINDOW: Final = 1000
SIZE: Final = 1024
TOGETHER: Final = 100
"""Messages that the client sends with one call."""
PUBLISH: Final = "publish and confirm"
CONSUME: Final = "consume and acknowledge"
_ACK, _DELIVER = (60, 80), (60, 60)


REMEMBERED: Final = 9_000
"""More messages than those whose bodies are remembered."""


class Turn(NamedTuple):
    """Messages a second, and processor time of the server for each, in microseconds."""

    rate: float
    cost: float


class Client:
    """One connection with one channel.

    Args:
        port: of 127.0.0.1.
        window: how many confirms are outstanding, and how many messages unacknowledged.
        arguments: of its queue.
    """

    def __init__(self, port: int, window: int = WINDOW, arguments: Mapping[str, Any] | None = None) -> None:
        self._window = window
        self._together = min(TOGETHER, max(1, window // 10))
        self._declaration = commands.Queue.Declare(queue="q", durable=True, arguments=dict(arguments or {}))
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._at = 0
        self._published = 0
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect()
        self._say(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0)
        self._expect()
        self._say(commands.Connection.TuneOk(2047, 131072, 0), 0)
        self._call(commands.Connection.Open("/"), 0)
        self._call(commands.Channel.Open())
        self._call(self._declaration)

    def publish(self, count: int) -> float:
        """Seconds until all of them are confirmed."""
        self._call(commands.Confirm.Select())
        properties = commands.Basic.Properties(delivery_mode=2)
        head = header.ContentHeader(body_size=SIZE, properties=properties)
        body = os.urandom(SIZE)
        one = frame.marshal(commands.Basic.Publish(routing_key="q"), 1) + frame.marshal(head, 1)
        one += struct.pack(">BHI", 3, 1, SIZE) + body + b"\xce"
        sent = confirmed = self._published
        self._published += count
        begin = time.perf_counter()
        while confirmed < self._published:
            while sent < self._published and sent - confirmed <= self._window - self._together:
                self._socket.sendall(one * self._together)
                sent += self._together
            confirmed = self._confirmed(confirmed)
        return time.perf_counter() - begin

    def consume(self, count: int) -> float:
        """Seconds until all of them are delivered and acknowledged."""
        self._call(commands.Basic.Qos(prefetch_count=self._window))
        begin = time.perf_counter()
        self._call(commands.Basic.Consume(queue="q", consumer_tag="c"))
        left, acks = count, []
        while left:
            kind, payload = self._frame()
            if kind == 1 and struct.unpack_from(">HH", payload) == _DELIVER:
                tag = payload[4 + 2 : 4 + 2 + 8]
                acks.append(struct.pack(">BHI", 1, 1, 13) + b"\0\x3c\0\x50" + tag + b"\0\xce")
                left -= 1
                if len(acks) == self._together or not left:
                    self._socket.sendall(b"".join(acks))
                    acks = []
        self._call(commands.Basic.Cancel("c"))
        found = self._call(self._declaration)
        seconds = time.perf_counter() - begin
        assert not found, f"{found} messages are left"
        return seconds

    def purge(self) -> None:
        """Remove what waits."""
        self._call(commands.Queue.Purge(queue="q"))

    def _confirmed(self, confirmed: int) -> int:
        _, payload = self._frame()
        method = struct.unpack_from(">HH", payload)
        assert method == _ACK, f"a publish came to {method}"
        tag, multiple = struct.unpack_from(">QB", payload, 4)
        return tag if multiple else confirmed + 1

    def _say(self, method: base.Frame, channel: int = 1) -> None:
        self._socket.sendall(frame.marshal(method, channel))

    def _expect(self) -> bytes:
        while True:
            kind, payload = self._frame()
            if kind == 1 and struct.unpack_from(">HH", payload) not in (_ACK, _DELIVER):
                return payload

    def _call(self, method: base.Frame, channel: int = 1) -> int:
        """The number of messages that the answer tells, where it does."""
        self._say(method, channel)
        payload = self._expect()
        is_declared = struct.unpack_from(">HH", payload) == (50, 11)
        return struct.unpack(">II", payload[-8:])[0] if is_declared else 0

    def _frame(self) -> tuple[int, bytes]:
        self._need(7)
        kind, _, size = struct.unpack_from(">BHI", self._data, self._at)
        self._need(size + 8)
        payload = self._data[self._at + 7 : self._at + 7 + size]
        self._at += size + 8
        return kind, payload

    def _need(self, size: int) -> None:
        while len(self._data) - self._at < size:
            more = self._socket.recv(1 << 18)
            assert more, "the server has hung up"
            self._data = self._data[self._at :] + more
            self._at = 0


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=10_000, help="in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--root", default=tempfile.gettempdir(), help="folder for both servers' data")
    parser.add_argument("--waiting", type=int, metavar="N", help="measure the memory of N waiting messages only")
    options = parser.parse_args(words)
    if options.waiting:
        with tempfile.TemporaryDirectory(dir=options.root, prefix="amqp-") as folder:
            each, more = measure_waiting(Path(folder), options.waiting)
        print(f"each of {options.waiting:,} waiting messages: {each:,.0f} bytes; of each one more: {more:,.0f} bytes")
        return
    systems: list[System] = [MqAmqp(), RabbitClassic()]
    turns: dict[tuple[str, str], list[Turn]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.root, prefix="amqp-")))
        servers: dict[str, Server] = {}
        for system in systems:
            if system.absence():
                raise SystemExit(f"{system.title}: {system.absence()}")
            place = folder / system.name
            place.mkdir()
            servers[system.title] = stack.enter_context(system.start(place))
        for turn in range(options.turns + 1):  # the first one warms up
            for title, server in servers.items():
                for what, work in ((PUBLISH, Client.publish), (CONSUME, Client.consume)):
                    measured = _measure(server, work, options.messages)
                    if turn:
                        turns.setdefault((title, what), []).append(measured)
    _print(turns, [system.title for system in systems])


def publish_stream(port: int, count: int) -> float:
    """Seconds in which one connection publishes so many, a thousand confirms outstanding."""
    client = Client(port)
    seconds = client.publish(count)
    client.purge()
    return seconds


def consume_stream(port: int, count: int) -> float:
    """Seconds in which one connection consumes and acknowledges so many; it has published them before."""
    client = Client(port)
    client.publish(count)
    return client.consume(count)


WORKS: Final = (
    ("publish, 1,000 confirms outstanding,", publish_stream, 0.8, 10_000),
    ("consume, prefetch 1,000,", consume_stream, 0.8, 10_000),
)
"""What is held to RabbitMQ: a name, what does so many and returns the seconds, the least ratio, messages a turn."""


def measure_waiting(folder: Path, count: int) -> tuple[float, float]:
    """Bytes of the daemon's memory that each of so many waiting messages takes; and each of those among them that come
    when there is no more room for remembering bodies."""
    with MqAmqp().start(folder) as server:
        [pid] = server.pids
        warm = Client(server.ports[0])
        warm.publish(WINDOW)
        warm.consume(WINDOW)
        client = Client(server.ports[0])
        empty = _resident_bytes(pid)
        client.publish(REMEMBERED)
        full = _resident_bytes(pid)
        client.publish(count - REMEMBERED)
        now = _resident_bytes(pid)
    return (now - empty) / count, (now - full) / (count - REMEMBERED)


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _measure(server: Server, work: Callable[[Client, int], float], count: int) -> Turn:
    before = processor_seconds(server.pids)
    seconds = work(Client(server.ports[0]), count)
    return Turn(count / seconds, (processor_seconds(server.pids) - before) / count * 1e6)


def _print(turns: dict[tuple[str, str], list[Turn]], titles: Sequence[str]) -> None:
    ours, theirs = titles
    for what in (PUBLISH, CONSUME):
        rates = {title: statistics.median(turn.rate for turn in turns[title, what]) for title in titles}
        costs = {title: statistics.median(turn.cost for turn in turns[title, what]) for title in titles}
        told = ", ".join(f"{title} {rates[title]:,.0f}/s at {costs[title]:,.0f} µs" for title in titles)
        ratios = f"rates {rates[ours] / rates[theirs]:.2f}, processor time {costs[theirs] / costs[ours]:.2f}"
        print(f"{what}: {told}; ratios of the medians: {ratios}")


if __name__ == "__main__":
    main()
