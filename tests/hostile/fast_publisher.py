"""A publisher that is faster than the disk: whether all its messages arrive, and how long others' declares take.

    python -m tests.hostile.fast_publisher [--count 20000] [--syncs 300] [--client pika] [--queue grouped] [--no-log]

The daemon's disk syncs ``--syncs`` times a second. Without a log (``--no-log``), or on a file system on which mq
keeps none, each message takes several syncs, and the command some minutes. Each client publishes persistent messages of
1 KiB without confirms as it is, and closes: to a plain queue, to one with message groups, and to a unique one.
Meanwhile another connection declares and deletes a queue each half second. The command's status is 1 if a message is
missing, or if a declare took more than a second or failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple, Self

import pika

from mq.testing.ports import HeldPort
from tests.e2e.daemon import TREE, Daemon

QUEUE: Final = "flood"
MOST_DECLARE_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 300.0
IN_MEMORY: Final = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""The daemon's folder is there: only the delay makes its disk slow."""

_AIO_PIKA: Final = """
import asyncio, sys, time
import aio_pika

async def main(port, queue, count, kind):
    connection = await aio_pika.connect(f"amqp://127.0.0.1:{port}/")
    channel = await connection.channel(publisher_confirms=False)
    arguments = {"x-groups": True} if kind == "grouped" else None
    await channel.declare_queue(queue, durable=True, arguments=arguments)
    begin = time.monotonic()
    for number in range(count):
        headers = {"x-message-group": f"g{number % 10}"} if kind == "grouped" else None
        message = aio_pika.Message(b"%01024d" % number, headers=headers, delivery_mode=2)
        await channel.default_exchange.publish(message, queue)
    published = time.monotonic()
    await connection.close()
    print(f"{published - begin:.1f} {time.monotonic() - published:.1f}")

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
"""
_PIKA: Final = """
import sys, time
import pika

port, queue, count, kind = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
channel = connection.channel()
channel.queue_declare(queue, durable=True, arguments={"x-groups": True} if kind == "grouped" else None)
begin = time.monotonic()
for number in range(count):
    headers = {"x-message-group": f"g{number % 10}"} if kind == "grouped" else None
    channel.basic_publish("", queue, b"%01024d" % number, pika.BasicProperties(delivery_mode=2, headers=headers))
published = time.monotonic()
connection.close()
print(f"{published - begin:.1f} {time.monotonic() - published:.1f}")
"""
CLIENTS: Final = {"aio-pika": _AIO_PIKA, "pika": _PIKA}
"""Programs: given a port, a queue, how many messages and the queue's kind, they print seconds to publish and to
close."""
KINDS: Final = ("plain", "grouped", "unique")
"""Of queues: each goes its own way through the store."""


class SlowDaemon(Daemon):
    """A daemon on a slow disk.

    Args:
        syncs: of the disk, a second.
    """

    def __init__(self, folder: Path, syncs: float, *arguments: str) -> None:
        self._port = HeldPort()
        self.amqp_port = self._port.number
        self._syncs = syncs
        given = ("--amqp-port", str(self.amqp_port), "MQ_NO_NATIVE=1", *arguments)
        super().__init__(folder / "root", folder / "log", *given)

    def __enter__(self) -> Self:
        self.start()
        return self

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.hostile.slow_daemon", str(self._syncs)]

    def make_unique(self) -> None:
        """Make the queue, so that it takes no two equal bodies."""
        for method, path, body in (("PUT", QUEUE, b""), ("PATCH", QUEUE, b'{"unique": true}')):
            url = f"http://127.0.0.1:{self.port}/{path}"
            urllib.request.urlopen(urllib.request.Request(url, body, method=method)).close()

    def ready(self) -> int:
        """Messages in the queue."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{QUEUE}") as answer:
            count: int = json.loads(answer.read())["ready"]
        return count


class Declares:
    """Declares and deletes a queue again and again, each time on a new connection, in a thread.

    Attributes:
        longest: seconds that one of them took.
    """

    def __init__(self, port: int) -> None:
        self.longest = 0.0
        self.failed = 0
        self._parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.5):
            try:
                connection = pika.BlockingConnection(self._parameters)
                channel = connection.channel()
                begin = time.monotonic()
                channel.queue_declare("stranger", durable=True)
                declared = time.monotonic()
                channel.queue_delete("stranger")
                self.longest = max(self.longest, declared - begin, time.monotonic() - declared)
                connection.close()
            except (OSError, pika.exceptions.AMQPError):
                self.failed += 1

    def end(self) -> None:
        """Stop after the present one."""
        self._is_over.set()
        self._thread.join(PATIENCE_SECONDS)


class Result(NamedTuple):
    """How a publisher fared.

    Attributes:
        published: seconds that it published; "failed" if it failed.
        closed: seconds that its close took.
        took: seconds until all messages were stored.
        longest: seconds that the longest declare of another connection took.
    """

    arrived: int
    published: str
    closed: str
    took: float
    longest: float
    failed: int
    output: str

    @property
    def is_good(self) -> bool:
        """Whether others were served meanwhile, and the client was."""
        return self.published != "failed" and not self.failed and self.longest <= MOST_DECLARE_SECONDS


def measure(client: str, count: int, syncs: float, *arguments: str, kind: str = "plain") -> Result:
    """Let a client publish to a queue of a kind."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder, SlowDaemon(Path(folder), syncs, *arguments) as daemon:
        if kind == "unique":
            daemon.make_unique()
        declares = Declares(daemon.amqp_port)
        begin = time.monotonic()
        command = [sys.executable, "-c", CLIENTS[client], str(daemon.amqp_port), QUEUE, str(count), kind]
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        arrived, changed = 0, time.monotonic()
        while arrived < count and time.monotonic() < changed + 20:  # as long as more come
            time.sleep(0.5)
            now = daemon.ready()
            arrived, changed = now, (changed if now == arrived else time.monotonic())
        took = time.monotonic() - begin
        declares.end()
        published, closed = done.stdout.split() if done.returncode == 0 else ("failed", "-")
        daemon.stop()
    return Result(arrived, published, closed, took, declares.longest, declares.failed, done.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Returns 1 if a message is missing, or a declare took too long or failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.fast_publisher", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--syncs", type=float, default=300, help="of the disk, a second")
    parser.add_argument("--client", choices=CLIENTS, help="only this one")
    parser.add_argument("--queue", choices=KINDS, help="only to one of this kind")
    parser.add_argument("--no-log", action="store_true", help="file by file, where few messages share a sync")
    options = parser.parse_args(arguments)
    columns = f"{'arrived':>15}  {'publish':>7} {'close':>7} {'stored':>8}  declares: longest, failed"
    sys.stdout.write(f"{'client':10} {'queue':8} {columns}\n")
    given = ("MQ_NO_LOG=1",) if options.no_log else ()
    is_good = True
    for client, kind in itertools.product(CLIENTS, KINDS):
        if options.client in (None, client) and options.queue in (None, kind):
            result = measure(client, options.count, options.syncs, *given, kind=kind)
            is_good = is_good and result.is_good and result.arrived == options.count
            sys.stdout.write(_row(client, kind, options.count, result))
            sys.stdout.flush()
    return 0 if is_good else 1


def _row(client: str, kind: str, count: int, result: Result) -> str:
    return (
        f"{client:10} {kind:8} {result.arrived:6} of {count}  {result.published:>7} {result.closed:>7}"
        f" {result.took:8.1f}  {result.longest:8.2f} {result.failed:7}\n{result.output}"
    )


if __name__ == "__main__":
    sys.exit(main())
