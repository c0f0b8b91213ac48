"""One turn of one server: publish, fetch and delete, and both mixed, by so many clients with bodies of one size."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Final, NamedTuple

import trio

from benchmarks.counts import SystemCalls, Used
from benchmarks.load.codec import Codec, Steps
from benchmarks.load.driver import Operation, Timed, delete_queue, open_session
from benchmarks.systems.system import Server, System

PUBLISH: Final = "publish"
CONSUME: Final = "fetch+delete"
MIXED: Final = "mixed"
WORKLOADS: Final = (PUBLISH, CONSUME, MIXED)
MOST_BYTES: Final = 96 << 20
"""A phase publishes no more than this: data of other systems is on the same disk."""
_NUMBERS: Final = itertools.count(os.getpid() * 1_000_000)


class Turn(NamedTuple):
    """What one phase of a turn came to. Counts are those of the server, a message.

    Attributes:
        size: of a body, in bytes.
        rate: messages a second.
        p50: milliseconds.
        p99: milliseconds.
        cpu: microseconds of processor time.
        driver: microseconds of processor time of the load generator.
        flushes: of the disk; None where the kernel does not tell.
        writes: requests to the disk.
        written: bytes of them.
        calls: system calls; None where they were not counted.
    """

    system: str
    workload: str
    clients: int
    size: int
    round: int
    rate: float
    p50: float
    p99: float
    cpu: float
    driver: float
    flushes: float | None
    writes: float | None
    written: float | None
    calls: float | None = None


class Load(NamedTuple):
    """What a server is asked to bear.

    Attributes:
        size: of a body, in bytes.
        seconds: length of each phase.
        warm_up: seconds of publishing before, which do not count.
        workloads: which phases; there is always one of publishing.
        counts_calls: whether system calls are counted, which makes all slower.
    """

    clients: int
    size: int
    seconds: float
    warm_up: float = 0.2
    workloads: Sequence[str] = WORKLOADS
    counts_calls: bool = False


def take_turn(system: System, server: Server, folder: Path, load: Load, number: int = 0) -> list[Turn]:
    """Measure one server once."""
    turns: list[Turn] = []

    def measured(workload: str, used: Used, calls: SystemCalls, timed: Timed) -> None:
        turns.append(_turn(system.name, workload, load, number, used, calls, timed))

    trio.run(_take_turn, system.codec, server, folder, load, measured)
    return turns


async def _take_turn(
    codec: type[Codec],
    server: Server,
    folder: Path,
    load: Load,
    measured: Callable[[str, Used, SystemCalls, Timed], None],
) -> None:
    body = os.urandom(load.size)
    queue = f"q{next(_NUMBERS)}"

    def make() -> Codec:
        return codec(queue, body)

    most = max(MOST_BYTES // load.size, 4 * load.clients)
    async with open_session(make, server.ports, load.clients) as session:
        there = await session.run(publish, load.warm_up, least=load.clients, most=most)

        async def phase(workload: str, operation: Operation, most: int, least: int = 0) -> Timed:
            with SystemCalls(server.pids if load.counts_calls else ()) as calls, Used(server.pids, folder) as used:
                timed = await session.run(operation, load.seconds, least=least, most=most)
            measured(workload, used, calls, timed)
            return timed

        # Of two messages for each client, the server has to send at least one meanwhile, however short the phase is.
        published = await phase(PUBLISH, publish, most, least=2 * load.clients)
        if CONSUME in load.workloads:
            await session.each(lambda codec: codec.subscribe())
            waiting = there.operations + published.operations - load.clients
            consumed = await phase(CONSUME, consume, waiting, least=2 * load.clients)
            # so that what is consumed next was published just before, and not when the files of a backlog were written
            rest = waiting - consumed.operations
            await session.run(consume, 0.0, least=rest, most=rest)
        if MIXED in load.workloads:
            await phase(MIXED, publish_and_consume, most, least=load.clients)
    await delete_queue(make, server.ports[0])


publish: Final[Operation] = methodcaller("publish")
consume: Final[Operation] = methodcaller("consume")


def publish_and_consume(codec: Codec) -> Steps:
    """Publish one message, fetch one and delete it."""
    yield from codec.publish()
    yield from codec.consume()


def _turn(system: str, workload: str, load: Load, number: int, used: Used, calls: SystemCalls, timed: Timed) -> Turn:
    def each(count: float | None) -> float | None:
        return None if count is None else count / timed.operations

    device = used.device
    return Turn(
        system,
        workload,
        load.clients,
        load.size,
        number,
        rate=timed.rate,
        p50=timed.percentile(0.5) * 1e3,
        p99=timed.percentile(0.99) * 1e3,
        cpu=used.seconds / timed.operations * 1e6,
        driver=timed.driver_seconds / timed.operations * 1e6,
        flushes=each(device and device.flushes),
        writes=each(device and device.writes),
        written=each(device and device.written_bytes),
        calls=each(calls.count),
    )
