"""No client makes the daemon take more memory than it was given, and none keeps the others waiting."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from mq.broker import BrokerConfig, open_broker
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from tests.e2e.daemon import Daemon
from tests.hostile.gluttons import LINES, Glutton, hang_up, parts, publishes, reads_nothing
from tests.hostile.test_hostile import be_honest, megabytes
from tests.web.talking import http1, start_server

MOST_MEGABYTES = 400
MOST_SECONDS = 0.5
CLIENTS = 12
SIZE = 60 << 20

BATCHES = {name: publishes(make) for name, make in LINES.items()} | {
    "parts": publishes(parts, "multipart/mixed; boundary=b")
}
each_batch = pytest.mark.parametrize("glutton", BATCHES.values(), ids=BATCHES)


@pytest.fixture
def small_heap() -> None:
    """What thousands of tests before left in this process is not the server's to collect."""
    gc.collect()
    gc.freeze()  # for good: to thaw it would thaw all that pytest collected, too


class Steps(trio.abc.Instrument):
    """How long the event loop was with its tasks, from one look at the network to the next, in seconds of processor
    time: this machine has other work, too."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._since = 0.0

    def after_io_wait(self, timeout: float) -> None:
        self._since = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        if self._since:
            self.longest = max(self.longest, time.thread_time() - self._since)


@asynccontextmanager
async def served(max_body: int) -> AsyncIterator[int]:
    """A server in this event loop, with the queue ``q``: its port."""
    store = MemoryStorage()
    await store.open()
    async with open_broker(store, BrokerConfig(max_body=max_body)) as broker, trio.open_nursery() as nursery:
        await broker.create_queue("q")
        server = await start_server(nursery, Endpoints(broker, max_body))
        yield server.port
        server.stop.set()
    await store.aclose()


async def attack(port: int, glutton: Glutton, clients: int, size: int) -> Counter[bytes]:
    """That many at once; how often there was which status."""
    answers: Counter[bytes] = Counter()
    async with trio.open_nursery() as nursery:

        async def one() -> None:
            answers[(await glutton(port, size))[9:12]] += 1

        for _ in range(clients):
            nursery.start_soon(one)
    return answers


@pytest.mark.slow
@pytest.mark.usefixtures("small_heap")
@each_batch
async def test_nobody_waits_long_for_the_event_loop(glutton: Glutton) -> None:
    steps = Steps()
    async with served(16 << 20) as port:
        trio.lowlevel.add_instrument(steps)
        try:
            with trio.fail_after(60):
                answers = await attack(port, glutton, 2, 15 << 20)
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert answers == {b"200": 2}
    assert steps.longest < MOST_SECONDS


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("path", ["/q/peek?max=1000", "/q/messages?max=100"])
async def test_nobody_waits_long_for_answers_that_are_not_read(path: str) -> None:
    steps = Steps()
    async with served(8 << 20) as port:
        await fill(port, 200, 60_000)
        trio.lowlevel.add_instrument(steps)
        try:
            with trio.fail_after(60):
                answers = await attack(port, reads_nothing(path), CLIENTS, 0)
        finally:
            trio.lowlevel.remove_instrument(steps)
        await hang_up()
    assert answers[b"200"] >= 2
    assert steps.longest < MOST_SECONDS


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(temp_root, tmp_path / "log") as daemon:
        yield daemon


async def fill(port: int, count: int, size: int) -> None:
    """Publish so many messages of so many bytes."""
    client = await trio.open_tcp_stream("127.0.0.1", port)
    async with client:
        for request in (http1("PUT", "/q"), *[http1("POST", "/q/messages", b"\xff" * size)] * count):
            await client.send_all(request)
            await client.receive_some()


@pytest.mark.proof
@pytest.mark.parametrize("path", ["/q/peek?max=1000", "/q/messages?max=1000"])
@pytest.mark.parametrize(("count", "size"), [(6000, 60_000), (14, SIZE)], ids=["small", "large"])
async def test_answers_that_are_not_read_take_no_more_than_there_is(
    daemon: Daemon, count: int, size: int, path: str
) -> None:
    await fill(daemon.port, count, size)
    answers = await attack(daemon.port, reads_nothing(path), CLIENTS, 0)
    await trio.sleep(1)  # the daemon's own time: it writes until nobody takes it
    assert answers[b"200"] >= 1
    assert megabytes(daemon, "VmHWM") <= MOST_MEGABYTES
    await be_honest(daemon.port, 1)
    await hang_up()
    daemon.stop()


@pytest.mark.proof
@each_batch
async def test_batches_take_no_more_than_there_is(daemon: Daemon, glutton: Glutton) -> None:
    """Those that are refused keep their bytes; those that are not are stored."""
    async with await trio.open_tcp_stream("127.0.0.1", daemon.port) as stream:
        await stream.send_all(http1("PUT", "/q"))
        await stream.receive_some()
    answers = await attack(daemon.port, glutton, CLIENTS, SIZE)
    assert set(answers) == {b"200", b"503"}
    assert megabytes(daemon, "VmHWM") <= MOST_MEGABYTES
    await be_honest(daemon.port, 1)
    daemon.stop()
