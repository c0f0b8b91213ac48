"""What a message that waits on disk takes of memory: counted where Python allocates it, for what a process has of the
kernel depends on what else is going on."""

from __future__ import annotations

import gc
import os
import tracemalloc

import pytest

from benchmarks import disks
from mq.broker import Broker, Draft, open_broker
from mq.broker.catalog import MOST_BYTES, OVERHEAD
from mq.message import SharedAttributes

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
SIZE = 1024
WAITING = 100_000
WANTED = 500
REMEMBERED = MOST_BYTES // (SIZE + OVERHEAD)
MORE = 6_000
ATTRIBUTES = SharedAttributes({"amqp": {"properties": "EAAC", "exchange": "", "routing_key": "q"}})


async def _bytes_of(broker: Broker, count: int) -> int:
    """How much more there is after so many were published, and delivered."""
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(0, count, 500):
        await broker.publish_many("q", [Draft(bytes([number % 256]) * SIZE, ATTRIBUTES) for number in range(500)])
    await broker.peek("q", most=1)  # after what is being delivered
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    return after - before


@pytest.mark.in_turn(2)
@pytest.mark.slow
async def test_a_hundred_thousand_waiting_messages_take_at_most_500_bytes_each() -> None:
    with disks.plain(IN_MEMORY) as folder:
        async with open_broker(f"posix:{folder}/root") as broker:
            await broker.create_queue("q")
            await broker.publish_many("q", [Draft(b"x")])
            tracemalloc.start()
            try:
                first = await _bytes_of(broker, REMEMBERED + 500)
                each_more = await _bytes_of(broker, MORE) / MORE
            finally:
                tracemalloc.stop()
    assert first <= 1.25 * MOST_BYTES, "what is remembered is counted about right"
    assert (first + each_more * (WAITING - REMEMBERED)) / WAITING <= WANTED
