"""mq on memcached against the round trip, which is the limit: no client can do more than one thing at a time faster.

Two round trips are measured: pymemcache's, a ``set`` of the same body, alone; and that of many ``set`` on one wire,
which is what a batch is made of. The third is what a backend would cost that hops to a thread with pymemcache and has
its commands answered one by one: it decides that this one speaks the protocol itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import trio
from mq_memcached import SimpleMessageQueue, protocol
from mq_memcached.link import Link
from mq_memcached.server import Address
from mq_memcached.testing.server import PROGRAM, Server
from pymemcache.client.base import Client

from benchmarks.figures import Figure, median_ratio, spread
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Move, Operation, Storage, Unlink, Write
from mq.storage.registry import open_storage

BODY: Final = os.urandom(1024)
TOGETHER: Final = 64
_THREADED: Final = 4
"""Commands that a publish takes: a number, a slot, a body, an entry."""

Rates = dict[str, list[float]]


def measure(rounds: int, messages: int) -> list[Figure]:
    """The figures; none where there is no memcached."""
    if PROGRAM is None:
        print("benchmarks: memcached is not installed, so nothing is measured on it", file=sys.stderr)
        return []
    server = Server("-M", "-m", "1024")
    try:
        return trio.run(_measure, server, rounds, messages)
    finally:
        server.stop()


async def _measure(server: Server, rounds: int, messages: int) -> list[Figure]:
    rates: Rates = {}
    for number in range(rounds):
        async with open_storage(f"{server.address}/{number}") as storage:
            await storage.put_record(QUEUE, "q", {"created": 0})
            contenders: list[tuple[str, Callable[[], Awaitable[int]]]] = [
                ("trip", partial(_trips, server, messages // 4)),
                ("wire", partial(_wire, server, messages)),
                ("threaded", partial(_threaded, server, messages // 4)),
                ("simple", partial(_simple, server, number, messages // 8)),
                ("alone", partial(_publish, storage, 1, messages // 4)),
                ("together", partial(_publish, storage, TOGETHER, messages)),
            ]
            for name, contender in contenders[number % 2 :] + contenders[: number % 2]:
                began = time.perf_counter()
                done = await contender()
                rates.setdefault(name, []).append(done / (time.perf_counter() - began))
            began = time.perf_counter()
            done = await _consume(storage)
            rates.setdefault("consume", []).append(done / (time.perf_counter() - began))
    return _figures(rates)


def _figures(rates: Rates) -> list[Figure]:
    def figure(text: str, name: str, limit: str) -> Figure:
        note = f"{spread(rates[name], 'a second')} against {spread(rates[limit], 'a second')}"
        return Figure(f"memcached: {text}", median_ratio(rates[name], rates[limit]), note=note)

    return [
        figure("publish, 1 client, against a round trip of pymemcache", "alone", "trip"),
        figure(f"publish, {TOGETHER} clients, against a round trip of pymemcache", "together", "trip"),
        figure(f"publish, {TOGETHER} clients, against as many bare sets on one wire", "together", "wire"),
        figure(f"fetch and remove, {TOGETHER} clients, against a round trip of pymemcache", "consume", "trip"),
        figure(f"publish, {TOGETHER} clients, against {_THREADED} commands each in a thread", "together", "threaded"),
        figure("SimpleMessageQueue: put and get, against a round trip of pymemcache", "simple", "trip"),
    ]


async def _trips(server: Server, count: int) -> int:
    client = Client(("127.0.0.1", server.port), no_delay=True, default_noreply=False)
    for _ in range(count):
        client.set("trip", BODY)
    client.close()
    return count


async def _wire(server: Server, count: int) -> int:
    link = Link(Address("127.0.0.1", server.port))
    for _ in range(0, count, TOGETHER):
        await link.ask([protocol.put(b"wire", BODY)] * TOGETHER)
    await link.aclose()
    return count


async def _threaded(server: Server, count: int) -> int:
    client = Client(("127.0.0.1", server.port), no_delay=True, default_noreply=False)

    def batch() -> None:
        for number in range(TOGETHER * _THREADED):
            client.set("threaded", BODY if number % _THREADED == 0 else b"x" * 100)

    for _ in range(0, count, TOGETHER):
        await trio.to_thread.run_sync(batch)
    client.close()
    return count


async def _simple(server: Server, number: int, count: int) -> int:
    with SimpleMessageQueue(f"simple{number}", f"127.0.0.1:{server.port}") as queue:
        for _ in range(count):
            queue.put(BODY)
            queue.get()
    return count


async def _publish(storage: Storage, together: int, count: int) -> int:
    """Written and delivered: the publish of a broker, in batches as its committer makes them."""
    ids = MessageIds()
    for _ in range(0, count, together):
        await _commit(storage, [Write("q", ids.new(), BODY) for _ in range(together)])
    return count


async def _consume(storage: Storage) -> int:
    """Delivered, leased, read, removed and unlinked."""
    entries = await storage.scan(State.NEW)
    for start in range(0, len(entries), TOGETHER):
        some = entries[start : start + TOGETHER]
        for state in (State.READY, State.DELAYED):
            some = await _commit(storage, [Move(entry, state) for entry in some])
        await storage.read(some)
        some = await _commit(storage, [Move(entry, State.REMOVED) for entry in some])
        await storage.commit([Unlink(entry) for entry in some])
    return len(entries)


async def _commit(storage: Storage, operations: Sequence[Operation]) -> list:
    return [outcome.entry for outcome in await storage.commit(operations)]
