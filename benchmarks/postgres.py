"""PostgreSQL over a long time, and with a long queue: what vacuum leaves of a million messages that came and went, and
what a message costs beside a million that wait.

The store alone, in batches of the size that a busy broker makes; one server of this machine, as it is installed, with
its autovacuum.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import trio
from mq_postgres.testing.server import PROGRAMS, ROLE, Server, running

from benchmarks.figures import Figure
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Entry, Meta, Move, Operation, Result, Storage, Unlink, Write
from mq.storage.registry import open_storage

BODY: Final = os.urandom(1024)
BATCH: Final = 1000
WAITING: Final = 1000
"""Messages that are in the queue while others come and go."""
PARTS: Final = 10
TURNS: Final = 50
SIZES: Final = """
SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'
"""
SCHEMA: Final = "bench"

_ids = MessageIds()


class Part(NamedTuple):
    """A tenth of the churn.

    Attributes:
        seconds: that it took.
        processor_us: that the server took for a message, all its processes together, vacuum too.
        megabytes: of tables and indexes at its end.
    """

    seconds: float
    processor_us: float
    megabytes: float


def measure(folder: str, messages: int) -> list[Figure]:
    """The figures; none where there is no PostgreSQL.

    Args:
        folder: on the disk that the server uses.
        messages: how many come and go, and then how many wait.
    """
    if PROGRAMS is None:
        print("benchmarks: PostgreSQL is not installed, so nothing is measured on it", file=sys.stderr)
        return []
    settings = ("autovacuum=on", "autovacuum_naptime=5s", "max_wal_size=1GB", "shared_buffers=128MB")
    flags = [part for setting in settings for part in ("-c", setting)]
    Path(folder).chmod(0o755)
    with running(*flags, folder=Path(folder)) as server:
        return trio.run(_measure, server, messages)


async def _measure(server: Server, messages: int) -> list[Figure]:
    address = f"postgres://{ROLE}@127.0.0.1:{server.port}/{ROLE}?schema={SCHEMA}&deadline=60"
    async with open_storage(address) as storage:
        await storage.put_record(QUEUE, "q", {"created": 0})
        short = await _lives(storage)
        parts = await _churn(storage, server, messages)
        base = _megabytes(server)
        await _fill(storage, messages)
        size = (_megabytes(server) - base) * 2**20 / messages
        long = await _lives(storage)
    began = time.perf_counter()
    async with open_storage(address) as storage:
        found = len(await storage.scan(State.READY, "q"))
        took = time.perf_counter() - began
    assert found == messages + WAITING, f"{found} wait"
    first, last = parts[0], parts[-1]
    largest = max(part.megabytes for part in parts)
    return [
        Figure("postgres: time for the last tenth of the churn, against the first", last.seconds / first.seconds),
        Figure(
            "postgres: processor time of the server for the last tenth, against the first",
            last.processor_us / first.processor_us,
            note=f"{last.processor_us:,.0f} and {first.processor_us:,.0f} µs a message's life",
        ),
        Figure(
            "postgres: tables and indexes after the churn", last.megabytes, "MB", note=f"{largest:,.0f} at the most"
        ),
        Figure("postgres: bytes of a message that waits", size, "B", note=f"{messages:,} of 1 KiB"),
        Figure("postgres: a batch of lives beside the long queue, against the short one", long / short),
        Figure("postgres: to open it and list the long queue", took, "s"),
    ]


async def _churn(storage: Storage, server: Server, messages: int) -> list[Part]:
    waiting = await _published(storage, WAITING)
    parts = []
    for _ in range(PARTS):
        processor, began = server.processor_seconds(), time.perf_counter()
        for _ in range(messages // PARTS // BATCH):
            waiting += await _published(storage, BATCH)
            await _consumed(storage, waiting[:BATCH])
            del waiting[:BATCH]
        seconds = time.perf_counter() - began
        used = (server.processor_seconds() - processor) / (messages / PARTS) * 1e6
        parts.append(Part(seconds, used, _megabytes(server)))
        print(f"benchmarks: postgres: {parts[-1]}", file=sys.stderr, flush=True)
    return parts


async def _fill(storage: Storage, messages: int) -> None:
    for _ in range(messages // BATCH):
        await _published(storage, BATCH)


async def _lives(storage: Storage) -> float:
    """Seconds for a batch that comes and goes, the median of some."""
    took = []
    for _ in range(TURNS):
        began = time.perf_counter()
        await _consumed(storage, await _published(storage, BATCH))
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def _published(storage: Storage, count: int) -> list[Entry]:
    entries: list[Entry] = []
    for start in range(0, count, BATCH):
        ids = [_ids.new() for _ in range(min(BATCH, count - start))]
        new = await _done(storage, [Write("q", id, BODY) for id in ids])
        entries += await _done(storage, [Move(entry, State.READY, entry.meta) for entry in new])
    return entries


async def _consumed(storage: Storage, entries: list[Entry]) -> None:
    lease = Meta(receives=1, deadline_ms=2**41, receipt="0123456789abcdef")
    leased = await _done(storage, [Move(entry, State.DELAYED, lease) for entry in entries])
    removed = await _done(storage, [Move(entry, State.REMOVED, entry.meta) for entry in leased])
    await _done(storage, [Unlink(entry) for entry in removed])


async def _done(storage: Storage, operations: list[Operation]) -> list[Entry]:
    outcomes = await storage.commit(operations)
    assert all(outcome.result is Result.DONE for outcome in outcomes), outcomes[:3]
    return [outcome.entry for outcome in outcomes if outcome.entry is not None]


def _megabytes(server: Server) -> float:
    with server.admin() as admin:
        row = admin.execute(SIZES, (SCHEMA,)).fetchone()
    assert row is not None, "a sum without a row"
    return float(row[0]) / 2**20
