"""mq's own client through kill -9 of the real daemon, and the program of its page."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import anyio.to_thread
import pytest

from mq.client import Interrupted, Unreachable
from mq.client.amqp import connect
from tests.amqp.clients.servers import Server
from tests.documents import blocks
from tests.e2e.daemon import TREE

pytestmark = pytest.mark.slow

KILLS = 4
LIFE_SECONDS = 0.8
PATIENCE_SECONDS = 90
PRODUCERS = 3
GONE = (Interrupted, Unreachable)


class Load:
    """Producers and a consumer, which come back whenever they lose the server."""

    def __init__(self, server: Server, queue: str) -> None:
        self.server = server
        self.queue = queue
        self.tried: set[int] = set()
        self.confirmed: set[int] = set()
        self.got: Counter[int] = Counter()
        self.is_over = False

    async def produce(self, first: int) -> None:
        numbers = itertools.count(first, PRODUCERS)
        number = next(numbers)
        while not self.is_over:
            try:
                async with connect(self.server.url, role="producer") as client:
                    while not self.is_over:
                        self.tried.add(number)
                        await client.publish(self.queue, b"%d" % number)
                        self.confirmed.add(number)
                        number = next(numbers)
            except GONE:
                await anyio.sleep(0.02)

    async def consume(self) -> None:
        while True:
            try:
                async with connect(self.server.url, role="consumer") as client:
                    async for message in client.consume(self.queue):
                        self.got[int(message.body)] += 1
                        await client.ack(message.tag)
            except GONE:
                await anyio.sleep(0.02)


@pytest.mark.parametrize("loop", ["trio", pytest.param("asyncio", marks=pytest.mark.proof)])
def test_kills_lose_nothing_that_was_confirmed(shared: Callable[[str, bool], Server], queue: str, loop: str) -> None:
    """Real time, and kill -9: what a publish returned for is delivered, and nothing that nobody published."""

    async def main() -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with connect(load.server.url) as client:
                await client.declare_queue(queue)
            async with anyio.create_task_group() as consuming:
                consuming.start_soon(load.consume)
                async with anyio.create_task_group() as producing:
                    for first in range(PRODUCERS):
                        producing.start_soon(load.produce, first)
                    for _ in range(KILLS):
                        before = len(load.confirmed)
                        while len(load.confirmed) < before + 10:
                            await anyio.sleep(LIFE_SECONDS / 10)
                        await anyio.to_thread.run_sync(load.server.kill)
                        await anyio.to_thread.run_sync(load.server.start)
                    load.is_over = True
                while not load.confirmed <= set(load.got):
                    await anyio.sleep(0.05)
                consuming.cancel_scope.cancel()

    load = Load(shared("mq", True), queue)
    anyio.run(main, backend=loop)
    assert set(load.got) <= load.tried
    assert len(load.confirmed) >= 10 * KILLS


def test_the_program_of_the_page_runs(server: Server) -> None:
    (program,) = [block for block in blocks(TREE / "docs" / "client.md", "python") if "mq.client.amqp" in block]
    source = program.replace("amqp://127.0.0.1:5672", server.url)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("b'hello, world' 1\n", "")
