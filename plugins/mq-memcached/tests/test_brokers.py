"""Four brokers, each a process of its own, on one server; and a daemon whose server goes away and comes back."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack

import pytest
from mq_memcached.testing.server import Server

from mq.lifecycle import State
from mq.storage.conformance import check_whole
from mq.storage.registry import open_storage

logger = logging.getLogger("test_brokers")

BROKERS = 4
MANY = 20_000
FEW = 4_000
LEASE_SECONDS = 30

WORKER = """
import sys
import time
import trio
from mq.broker import BrokerConfig, Draft, Published, open_broker
from mq.errors import StorageSlow

address, number, messages, peers, lease = sys.argv[1], *map(int, sys.argv[2:])
said = []

async def publish(broker):
    for start in range(0, messages, 50):
        drafts = [Draft(b"%d %d" % (number, start + index)) for index in range(50)]
        for done in await broker.publish_many("orders", drafts):
            assert isinstance(done, Published), done
            said.append(f"published {done.id}")

async def consume(broker):
    misses = 0
    while misses < 3:
        try:
            message = await broker.fetch("orders", wait=2)
        except StorageSlow:  # a busy machine: nothing was handed out
            continue
        if message is None:
            misses += 1
            continue
        began = time.monotonic()
        said.append(f"fetched {message.id} {(await message.body.read()).decode()}")
        await message.body.aclose()
        await broker.remove("orders", message.id, receipt=message.receipt)
        said.append(f"removed {message.id} {time.monotonic() - began}")

async def main():
    async with open_broker(address, BrokerConfig(peers=peers, delay_seconds=lease)) as broker:
        await broker.create_queue("orders")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, broker)
            for _ in range(32):
                nursery.start_soon(consume, broker)

began = time.monotonic()
trio.run(main)
print("\\n".join(said))
print(f"seconds {time.monotonic() - began}")
"""


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("messages", [FEW, pytest.param(MANY, marks=pytest.mark.proof)])
async def test_four_brokers_lose_nothing_and_deliver_nothing_twice(serve, messages: int) -> None:
    """Messages that are published and consumed by all of them at the same time."""
    server: Server = serve("-M", "-m", "256")
    arguments = [server.address, *map(str, (0, messages // BROKERS, BROKERS - 1, LEASE_SECONDS))]
    said: list[list[str]] = []
    with ExitStack() as stack:
        workers = []
        for number in range(BROKERS):
            arguments[1] = str(number)
            workers.append(stack.enter_context(start(arguments)))
            stack.callback(workers[-1].kill)
        for worker in workers:
            text, _ = worker.communicate(timeout=280)
            assert worker.returncode == 0
            said += [line.split() for line in text.splitlines()]
    published = [words[1] for words in said if words[0] == "published"]
    fetched = Counter(words[1] for words in said if words[0] == "fetched")
    removed = Counter(words[1] for words in said if words[0] == "removed")
    held = max(float(words[2]) for words in said if words[0] == "removed")
    bodies = {" ".join(words[2:]) for words in said if words[0] == "fetched"}
    logger.info("%s; held %.1f s at the most", [words[1] for words in said if words[0] == "seconds"], held)
    assert len(published) == len(set(published)) == messages
    assert held < LEASE_SECONDS, "no lease ran out, so none may be delivered twice"
    assert fetched == Counter(published)
    assert removed == Counter(published)
    assert len(bodies) == messages
    async with open_storage(server.address) as storage:
        await check_whole(storage)
        for state in (State.NEW, State.DELAYED):
            assert await storage.scan(state) == []
        assert await storage.scan(State.READY, "orders") == []
