"""mq on etcd against bare puts of the same bodies through the same client, from as many tasks: what a publisher could
have if each of its messages were a request of its own. Three members, on one disk of this machine.

And what a message costs: processor time of the members, and of mq.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

import trio
from mq_etcd.client import open_client
from mq_etcd.testing.cluster import PROGRAM, Cluster, running

from benchmarks.figures import Figure, median_ratio, spread
from mq.broker import Broker, open_broker

BODY: Final = os.urandom(1024)
PUBLISHERS: Final = (1, 32, 64)
CONSUMERS: Final = 32

Rates = dict[str, list[float]]


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """The figures; none where there is no etcd.

    Args:
        folder: on the disk that the members use.
        rounds: how often each contender has its turn.
        messages: how many each of them stores in a turn.
    """
    if PROGRAM is None:
        print("benchmarks: etcd is not installed, so nothing is measured on it", file=sys.stderr)
        return []
    with running(3, folder=Path(folder)) as cluster:
        return trio.run(_measure, cluster, rounds, messages)


async def _measure(cluster: Cluster, rounds: int, messages: int) -> list[Figure]:
    rates: Rates = {}
    address = f"etcd:{','.join(cluster.endpoints)}"
    async with open_client(cluster.endpoints) as client, open_broker(address) as broker:
        await broker.create_queue("q")
        for number in range(rounds):
            for together in PUBLISHERS:
                contenders: list[tuple[str, Callable[[], Awaitable[object]]]] = [
                    (f"puts {together}", partial(client.put, f"/bare/{number}/{together}", BODY)),
                    (f"publish {together}", partial(broker.publish, "q", BODY)),
                ]
                for name, job in contenders[number % 2 :] + contenders[: number % 2]:
                    await _timed(rates, name, cluster, together, messages // (1 if together > 1 else 4), job)
            await _timed(rates, "consume", cluster, CONSUMERS, messages, partial(_take_one, broker))
    return _figures(rates)


async def _timed(
    rates: Rates, name: str, cluster: Cluster, together: int, count: int, job: Callable[[], Awaitable[object]]
) -> None:
    """Do a job `count` times, from so many tasks; note how many a second, and what processor time each takes."""
    left = count

    async def work() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await job()

    members, own, began = _members_seconds(cluster), time.process_time(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(together):
            nursery.start_soon(work)
    rates.setdefault(name, []).append(count / (time.perf_counter() - began))
    rates.setdefault(f"{name}, own", []).append((time.process_time() - own) / count * 1e6)
    rates.setdefault(f"{name}, members", []).append((_members_seconds(cluster) - members) / count * 1e6)


def _members_seconds(cluster: Cluster) -> float:
    """Processor time that the members have taken so far."""
    return sum(member.processor_seconds() for member in cluster.members)


async def _take_one(broker: Broker) -> None:
    message = await broker.fetch("q", wait=5)
    if message is not None:
        await broker.remove("q", message.id, receipt=message.receipt)


def _figures(rates: Rates) -> list[Figure]:
    figures = []
    for together in PUBLISHERS:
        publish, puts = rates[f"publish {together}"], rates[f"puts {together}"]
        note = f"{spread(publish, 'a second')} against {spread(puts, 'a second')}"
        who = "1 publisher" if together == 1 else f"{together} publishers"
        figures.append(Figure(f"etcd: publish, {who}, against bare puts", median_ratio(publish, puts), note=note))
    consume, puts = rates["consume"], rates[f"puts {CONSUMERS}"]
    note = f"{spread(consume, 'a second')} against {spread(puts, 'a second')}"
    figures.append(
        Figure(
            f"etcd: fetch and remove, {CONSUMERS} consumers, against bare puts", median_ratio(consume, puts), note=note
        )
    )
    for name in ("puts 64", "publish 64", "consume"):
        note = f"the three members together; mq itself {spread(rates[f'{name}, own'], 'µs')}"
        value = sorted(rates[f"{name}, members"])[len(rates[name]) // 2]
        figures.append(Figure(f"etcd: processor time for {name}", value, "µs", note=note))
    return figures
