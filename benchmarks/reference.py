"""What AMQP, HTTP and SQS cost mq in units of :mod:`benchmarks.reference_server`, so that figures of different machines
can be compared."""

from __future__ import annotations

import statistics
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import trio
from pamqp import commands as methods

from benchmarks.counts import processor_seconds
from benchmarks.figures import Figure, at_most
from benchmarks.load.amqp import AmqpCodec, marshal
from benchmarks.load.codec import Codec, Steps
from benchmarks.load.driver import Operation, Session, open_session
from benchmarks.load.http import HttpCodec
from benchmarks.load.sqs import SqsCodec
from benchmarks.systems.mq import MqInMemory
from benchmarks.systems.system import Server, listening
from benchmarks.turns import consume, publish
from mq.testing.ports import HeldPort

WANTED: Final = {
    "AMQP basic.get, queue empty": 1.6,
    "AMQP publish + confirm": 2.0,
    "AMQP basic.get without ack, one message": 1.8,
    "AMQP delivery + ack, prefetch 1": 2.0,
    "HTTP fetch, queue empty": 1.6,
    "HTTP publish": 2.0,
    "HTTP fetch + delete": 2.2,
    "SQS SendMessage": 2.0,
    "SQS ReceiveMessage + DeleteMessage": 2.2,
}
"""At most so many times the reference's processor time."""
REACHED: Final = (1.73, 2.15, 2.32, 2.17, 1.35, 2.43, 2.77, 2.83, 3.15)
"""Ratios that were measured, in the same order, where system calls are cheap. `make proof` allows 1.3 times these."""
_BODY: Final = b"x" * 1024
_GET_OK: Final = struct.pack(">HH", 60, 71)


def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """Processor time of one operation at a time, on one connection, with the store in memory: mq and the reference in
    turns. The first round warms up."""
    turns: list[list[dict[str, float]]] = [[], []]
    held = HeldPort()
    command = [sys.executable, "-m", "benchmarks.reference_server", str(held)]
    with MqInMemory().start(Path(folder)) as mq, listening(command, held.number, Path(folder)) as reference:
        for number in range(rounds + 1):
            for at in (0, 1) if number % 2 else (1, 0):
                turns[at].append(trio.run(_take_turn, (mq, reference)[at], f"q{number}", messages))
    return [_figure(name, *(statistics.median(turn[name] for turn in of[1:]) for of in turns)) for name in WANTED]


def _figure(name: str, mq: float, reference: float) -> Figure:
    note = f"{mq * 1e6:.0f} µs of processor time against {reference * 1e6:.0f} µs"
    return at_most(f"{name}, against the reference server", mq / reference, WANTED[name], note=note)


async def _take_turn(server: Server, queue: str, messages: int) -> dict[str, float]:
    """Processor seconds of each operation."""
    amqp, http = server.ports[:1], server.ports[-1:]
    found = await _take_amqp_turn(server.pids, amqp, queue, messages)
    found += await _take_turn_over_http(server.pids, http, lambda: HttpCodec(f"http-{queue}", _BODY), messages)
    _, *of_sqs = await _take_turn_over_http(server.pids, http, lambda: SqsCodec(f"sqs-{queue}", _BODY), messages)
    return dict(zip(WANTED, found + of_sqs, strict=True))


async def _take_amqp_turn(pids: Sequence[int], ports: Sequence[int], queue: str, messages: int) -> list[float]:
    get = marshal(methods.Basic.Get(queue=queue, no_ack=True))

    def getting(codec: Codec) -> Steps:
        _, payload = yield get
        if payload.startswith(_GET_OK):  # a header and a body follow
            yield b""
            yield b""

    async with open_session(lambda: AmqpCodec(queue, _BODY), ports, 1) as session:
        used = partial(_used, pids, session, messages)
        found = [await used(getting), await used(publish), await used(getting)]
        await _used(pids, session, messages + 2, publish)
        await session.each(lambda codec: codec.subscribe())
        await _used(pids, session, 1, consume)
        return [*found, await used(consume)]


async def _take_turn_over_http(
    pids: Sequence[int], ports: Sequence[int], make: Callable[[], HttpCodec], messages: int
) -> list[float]:
    async with open_session(make, ports, 1) as session:
        used = partial(_used, pids, session, messages)
        return [await used(lambda codec: codec.fetch_nothing()), await used(publish), await used(consume)]


async def _used(pids: Sequence[int], session: Session, count: int, operation: Operation) -> float:
    """Processor seconds of one of `count` operations."""
    before = processor_seconds(pids)
    await session.run(operation, 0.0, least=count, most=count)
    return (processor_seconds(pids) - before) / count
