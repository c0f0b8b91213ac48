"""The daemon over HTTP, to one client beside it: how soon a waiting fetch wakes up, what a batch gains, and what ten
thousand waiting fetches cost.

The client is bare sockets: a client library would be measured, too. A wake-up is held against a round trip of as many
bytes between two bare sockets of another process, turn about in one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Final

from benchmarks.figures import Figure, at_least, at_most, median_ratio, spread
from benchmarks.idle import port_of

BATCH: Final = 100
BODY: Final = b"x" * 100
WAITERS: Final = 10_000
WATCHED_SECONDS: Final = 10.0
_OTHER_FILES: Final = 500
_SOURCES: Final = 50
_ECHO: Final = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
stream, _ = listener.accept()
stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := stream.recv(65536):
    stream.sendall(data)
"""


class Client:
    """One connection that is kept.

    Args:
        port: of the daemon, on 127.0.0.1.
    """

    def __init__(self, port: int, source: str = "127.0.0.1") -> None:
        self._stream = socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(source, 0))
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method: str, path: str, body: bytes = b"", *lines: str) -> None:
        """A request."""
        head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines, "", ""]
        self._stream.sendall("\r\n".join(head).encode() + body)

    def receive(self) -> bytes:
        """The body of the next response, which must be a good one."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._some()
        head, _, body = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(head.decode())
        length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
        while length and len(body) < int(length[1]):
            body += self._some()
        return body

    def ask(self, method: str, path: str, body: bytes = b"", *lines: str) -> bytes:
        """A request and the body of its response."""
        self.send(method, path, body, *lines)
        return self.receive()

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def _some(self) -> bytes:
        data = self._stream.recv(1 << 20)
        if not data:
            raise RuntimeError("the daemon has ended the connection")
        return data


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """Wake-ups, batches, waiters.

    Args:
        folder: where roots are made.
        rounds: turns of each kind.
        messages: in a turn; ten times as many clients wait, up to ten thousand.
    """
    with _daemon(folder) as (port, pid):
        return [
            *_wake_ups(port, rounds * 100),
            *_batches(port, rounds, messages),
            *_waiters(port, pid, min(WAITERS, messages * 10)),
        ]


def _wake_ups(port: int, count: int) -> list[Figure]:
    """From the start of a publish to the end of the fetch that waited for it, both by this process."""
    waiter, publisher = Client(port), Client(port)
    publisher.ask("PUT", "/wake")
    wakes, trips = [], []
    with _echo() as echo:
        for _ in range(count):
            trips.append(_timed(lambda: _round_trip(echo)))
            waiter.send("POST", "/wake/take?wait=60")
            publisher.ask("GET", "/-/live")  # by then the other one waits
            answered = [0.0]

            def wake(answered: list[float] = answered) -> None:
                publisher.send("POST", "/wake/messages", BODY)
                publisher.receive()
                answered[0] = time.perf_counter()
                waiter.receive()

            started = time.perf_counter()
            wake()
            wakes.append((answered[0] - started, time.perf_counter() - answered[0]))
    waiter.close()
    publisher.close()
    woken = [after for _, after in wakes]
    bare = spread([trip * 1e6 for trip in trips], "µs")
    note = f"{spread([wake * 1e6 for wake in woken], 'µs')} after the publisher's answer, against {bare}"
    both = [first + second for first, second in wakes]
    return [
        at_most(
            "wake-up of a waiting fetch, against a round trip between sockets", median_ratio(woken, trips), 5, note=note
        ),
        Figure(
            "publish and wake-up together, against the same",
            median_ratio(both, trips),
            note=spread([each * 1e6 for each in both], "µs"),
        ),
    ]


def _batches(port: int, rounds: int, messages: int) -> list[Figure]:
    """One connection: message by message, and a hundred at a time. Publish, fetch and remove, each in its turn."""
    client = Client(port)
    client.ask("PUT", "/many")
    rates: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in ("publish", "fetch and remove")}
    for number in range(rounds + 1):
        for kind in (0, 1) if number % 2 else (1, 0):
            size = messages if kind else max(messages // 20, 1)
            publish, consume = (_publish_batches, _consume_batches) if kind else (_publish_each, _consume_each)
            for name, work in (("publish", publish), ("fetch and remove", consume)):
                seconds = _timed(lambda work=work, size=size: work(client, size))
                if number:  # the first round warms up
                    rates[name][kind].append(size / seconds)
    client.close()
    return [
        at_least(
            f"{name} over HTTP, one connection: {BATCH} at a time against one by one",
            median_ratio(batched, single),
            10,
            note=f"{spread(batched, 'a second')} against {spread(single, 'a second')}",
        )
        for name, (single, batched) in rates.items()
    ]


def _publish_each(client: Client, count: int) -> None:
    for _ in range(count):
        client.ask("POST", "/many/messages", BODY)


def _consume_each(client: Client, count: int) -> None:
    for _ in range(count):
        line = json.loads(client.ask("GET", "/many/messages?max=1&wait=10"))
        client.ask("DELETE", f"/many/messages/{line['id']}")


def _publish_batches(client: Client, count: int) -> None:
    line = json.dumps({"body": BODY.decode()}).encode() + b"\n"
    for start in range(0, count, BATCH):
        client.ask(
            "POST", "/many/messages/batch", line * min(BATCH, count - start), "Content-Type: application/x-ndjson"
        )


def _consume_batches(client: Client, count: int) -> None:
    while count > 0:
        lines = client.ask("GET", f"/many/messages?max={BATCH}&wait=10").splitlines()
        ids = b"".join(json.dumps({"id": json.loads(line)["id"]}).encode() + b"\n" for line in lines)
        client.ask("POST", "/many/messages/delete", ids, "Content-Type: application/x-ndjson")
        count -= len(lines)


def _waiters(port: int, pid: int, count: int) -> list[Figure]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = min(count, most - _OTHER_FILES)
    first = Client(port)
    first.ask("PUT", "/idle")
    before = _kibibytes(pid)
    clients = []
    for number in range(count):
        clients.append(Client(port, f"127.0.0.{2 + number % _SOURCES}"))
        clients[-1].send("GET", "/idle/messages?wait=3600")
    while _seconds_used(pid, over=1.0) > 0:
        pass  # it is still busy with them
    each = (_kibibytes(pid) - before) / count
    core = _seconds_used(pid, over=WATCHED_SECONDS) / WATCHED_SECONDS
    for client in (first, *clients):
        client.close()
    return [
        at_most(f"memory of each of {count:,} waiting fetches", each, 40, "KiB", "resident memory of the daemon"),
        at_most(
            "processor time that they take together", core * 100, 1, "% of a core", f"over {WATCHED_SECONDS:.0f} s"
        ),
    ]


def _seconds_used(pid: int, over: float) -> float:
    """Processor time of a process in the next so many seconds."""
    before = _processor_seconds(pid)
    time.sleep(over)
    return _processor_seconds(pid) - before


def _processor_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _kibibytes(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _round_trip(echo: socket.socket) -> None:
    echo.sendall(BODY)
    received = 0
    while received < len(BODY):
        received += len(echo.recv(65536))


@contextlib.contextmanager
def _echo() -> Iterator[socket.socket]:
    """A connection to a process that says back what it is told."""
    with subprocess.Popen([sys.executable, "-c", _ECHO], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        stream = socket.create_connection(("127.0.0.1", int(process.stdout.readline())))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield stream
        stream.close()


@contextlib.contextmanager
def _daemon(folder: str) -> Iterator[tuple[int, int]]:
    """A daemon that may have as many files open as there can be: its port and its process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    root, log = f"{folder}/http", f"{folder}/http.log"
    with open(log, "w+", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mq", "--root", root, "--port", "0", "--amqp-port", "0"], stderr=output
        )
        try:
            yield port_of(process, log), process.pid
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            shutil.rmtree(root, ignore_errors=True)
