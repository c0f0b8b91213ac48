"""What the lifecycle journal costs: its share of a broker's processor time, processor time with and without it, and
bytecodes, which do not wander.

The share is counted within one run, by the clock of the journal's thread and by that of the broker's around each call
of the journal: what else is at work on the machine slows both alike, while turns with and without a journal differ by
more than the journal costs. What reading the clock takes is measured in the same run, and taken off.

A message is published, fetched and removed; that is five transitions. Turns with and without a journal alternate, on
fresh stores. All threads count, the journal's own too. In memory, where a message costs least, the journal weighs most.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import FrameType
from typing import Any, Final

import trio

from benchmarks.embedded import BODY, CLIENTS
from benchmarks.figures import Figure, at_most, median_ratio, spread
from mq.broker import Broker, open_broker
from mq.lifecycle import Kind, Observer, State, Transition
from mq.message import MessageIds
from mq.observers.journal import Journal, open_journal
from mq.observers.journal_segments import Limits
from mq.observers.metrics import Metrics

WANTED: Final = 1.05
_COUNTED: Final = 300
_READINGS: Final = 10_000
_STEPS: Final = (
    (Kind.PUBLISH, None, State.NEW),
    (Kind.DELIVER, State.NEW, State.READY),
    (Kind.LEASE, State.READY, State.DELAYED),
    (Kind.REMOVE, State.DELAYED, State.REMOVED),
    (Kind.REAP, State.REMOVED, None),
)


async def measure(folder: str, rounds: int, messages: int) -> list[Figure]:
    """Ratios, and counts."""
    figures = []
    for name, store in (("files", f"posix:{folder}/journaled"), ("memory", "memory:")):
        without, with_it = [], []
        await _turn(store, folder, messages, journaled=True)  # warms up
        for number in range(rounds * 4):
            for journaled in (True, False) if number % 2 else (False, True):
                seconds = await _turn(store, folder, messages, journaled=journaled)
                (with_it if journaled else without).append(seconds / messages * 1e6)
        note = f"{spread(with_it, 'µs')} against {spread(without, 'µs')}"
        ratio = median_ratio(with_it, without)
        title = f"journal, messages in {name}: processor time a message, against none"
        figures.append(at_most(title, ratio, WANTED, note=note))
        shares = [await _share(store, folder, messages) for _ in range(rounds * 2)]
        note = f"{min(shares):.3f} to {max(shares):.3f} in {len(shares)} runs"
        title = f"journal, messages in {name}: its processor time, as a share of all the rest"
        figures.append(at_most(title, statistics.median(shares), WANTED - 1, note=note))
    alone = [_alone(folder, messages * 4) for _ in range(rounds * 2)]
    cheapest = statistics.median(without)
    note = f"{spread(alone, 'µs')} for five transitions, their encoding and writing; against {cheapest:,.0f} µs"
    title = "journal alone, without a broker: processor time a message, as a share of one in memory"
    figures.append(at_most(title, statistics.median(alone) / cheapest, WANTED - 1, note=note))
    few, many = [await _bytecodes(folder, journaled=journaled) for journaled in (False, True)]
    note = f"{many:,.0f} against {few:,.0f}; what pyarrow does in C is not among them"
    figures.append(
        at_most("journal, messages in memory: bytecodes a message, against none", many / few, WANTED, note=note)
    )
    return figures


async def _turn(store: str, folder: str, messages: int, *, journaled: bool) -> float:
    """Processor seconds of all threads."""
    async with AsyncExitStack() as stack:
        observers = [await stack.enter_async_context(_journal(store, folder))] if journaled else []
        broker = await stack.enter_async_context(_broker(store, folder, *observers))
        begun = time.process_time()
        await _work(broker, messages)
        done = time.process_time() - begun
        begun = time.process_time()
    return done + time.process_time() - begun


async def _share(store: str, folder: str, messages: int) -> float:
    """The journal's processor time, for that of all the rest, in one run."""
    async with _journal(store, folder) as journal:
        timed = _Timed(journal)
        async with _broker(store, folder, timed) as broker:
            await _work(broker, messages // 4)
            begun, before, calls = time.process_time(), timed.seconds(), timed.calls
            await _work(broker, messages)
            total, own, calls = time.process_time() - begun, timed.seconds() - before, timed.calls - calls
    reading = _reading_the_clock()
    total, own = total - 2 * calls * reading, own - calls * reading
    return own / (total - own)


class _Timed:
    """An observer that passes everything on to the journal, and measures how long the journal takes.

    Attributes:
        calls: how often it was told something.
    """

    def __init__(self, journal: Journal) -> None:
        self.calls = 0
        self._journal = journal
        self._told = 0.0

    def saw(self, transitions: Sequence[Transition]) -> None:
        begun = time.thread_time()
        self._journal.saw(transitions)
        self._told += time.thread_time() - begun
        self.calls += 1

    def seconds(self) -> float:
        """Of the thread that tells, and of the journal's own."""
        [own] = [each for each in threading.enumerate() if each.name == "mq journal"]
        assert own.ident is not None
        return self._told + time.clock_gettime(time.pthread_getcpuclockid(own.ident))


def _reading_the_clock() -> float:
    """Seconds of processor time."""
    begun = time.thread_time()
    for _ in range(_READINGS):
        time.thread_time()
    return (time.thread_time() - begun) / _READINGS


def _alone(folder: str, messages: int) -> float:
    """Microseconds of processor time, of all threads, that a message's transitions cost without anything else."""
    id = MessageIds().new()
    told = [
        Transition(kind, "q", id, source, target, time.time_ns(), None, 1, None, "http")
        for kind, source, target in _STEPS
    ]
    journal = open_journal(f"{folder}/journal", Limits(), store="", peers=0, version="")
    journal.start()
    begun = time.process_time()
    for number in range(messages):
        for transition in told:
            journal.saw([transition])
        if number % 1000 == 0:
            time.sleep(0.01)  # as fast as a loop can tell, it would be dropped
    journal.close()
    used = time.process_time() - begun
    shutil.rmtree(f"{folder}/journal", ignore_errors=True)
    return used / messages * 1e6


async def _bytecodes(folder: str, *, journaled: bool) -> float:
    """Bytecodes a message, of all threads."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    threading.settrace(trace)
    try:
        async with AsyncExitStack() as stack:
            observers = [await stack.enter_async_context(_journal("memory:", folder))] if journaled else []
            broker = await stack.enter_async_context(_broker("memory:", folder, *observers))
            sys.settrace(trace)
            await _work(broker, _COUNTED)
            begun = count
            await _work(broker, _COUNTED)
            used = count - begun
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
    return used / _COUNTED


@asynccontextmanager
async def _broker(store: str, folder: str, *observers: Observer) -> AsyncIterator[Broker]:
    try:
        async with open_broker(store, observers=[Metrics(), *observers]) as broker:
            await broker.create_queue("q")
            yield broker
    finally:
        shutil.rmtree(f"{folder}/journaled", ignore_errors=True)


@asynccontextmanager
async def _journal(store: str, folder: str) -> AsyncIterator[Journal]:
    journal = open_journal(f"{folder}/journal", Limits(), store=store, peers=0, version="")
    journal.start()
    try:
        yield journal
    finally:
        await trio.to_thread.run_sync(journal.close)
        shutil.rmtree(f"{folder}/journal", ignore_errors=True)


async def _work(broker: Broker, messages: int) -> None:
    """Publish, fetch and remove so many, by many clients."""
    left = messages

    async def client() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await broker.publish("q", BODY)
            message = await broker.fetch("q", wait=60)
            assert message is not None, "as many were published"
            await message.body.aclose()
            await broker.remove("q", message.id)

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(client)
