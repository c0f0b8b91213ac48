"""Rates: what a ring tells is what happened, and it stays as small and as quick as it says."""

from __future__ import annotations

import time
import tracemalloc
from random import Random

import pytest

from mq.broker import BrokerConfig, open_broker
from mq.lifecycle import Kind, Span
from mq.message import MessageIds
from mq.observers import metrics as metrics_module
from mq.observers.metrics import Metrics
from mq.observers.rates import FLOW_OF, MINUTES, SLOT_SECONDS, SLOTS, Flow, Ring

KINDS = (Kind.PUBLISH, Kind.REQUEUE, Kind.REMOVE)  # what LEASE costs beside a count is timed below
ID = MessageIds().new()

figures = pytest.mark.parametrize("room", [pytest.param(1, marks=pytest.mark.proof, id="the figure"), 5])
"""Tests with each commit share their processor, and hold five times the figure."""


class Clock:
    """Seconds that a test counts."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ring_of(metrics: Metrics, queue: str) -> Ring:
    metrics.catch_up()
    ring = metrics.ring(queue)
    assert ring is not None
    return ring


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_ring_tells_what_happened(seed: int) -> None:
    """Against a list of all that happened, with pauses from none to hours."""
    random, ring, events, slot = Random(seed), Ring(0), [], 0
    for _ in range(80):
        slot += random.choice((0, 0, 1, 1, 2, 11, 12, 13, 100, 719, 720, 721))
        flow = random.choice(list(Flow))
        ring.add(slot, flow, 1 + len(events))
        events.append((slot, flow, 1 + len(events)))
        seen = slot + random.choice((0, 0, 1, 12, 720))
        ring.advance(seen)
        slot = seen
        for asked in Flow:
            slots = [sum(n for at, f, n in events if (at, f) == (seen - back, asked)) for back in range(SLOTS)]
            assert ring.slots(asked) == slots[::-1]
            assert ring.in_a_minute(asked) == sum(slots)
            minutes = [
                sum(n for at, f, n in events if (at // SLOTS, f) == (seen // SLOTS - back, asked))
                for back in range(MINUTES)
            ]
            assert ring.minutes(asked) == minutes[::-1]


def test_rates_are_averages_over_the_time_that_there_was() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.counted(Kind.PUBLISH, "q", 4)
    clock.now += 2
    assert ring_of(metrics, "q").rates(Flow.PUBLISH, metrics.uptime) == (2, 2, 2)
    clock.now += 6  # in the second slot
    metrics.counted(Kind.PUBLISH, "q", 12)
    assert ring_of(metrics, "q").rates(Flow.PUBLISH, metrics.uptime) == (4 / SLOT_SECONDS, 2, 2)
    clock.now += 92  # 100 seconds after the start
    assert ring_of(metrics, "q").rates(Flow.PUBLISH, metrics.uptime) == (0, 0, 16 / 100)
    clock.now += 3600
    assert ring_of(metrics, "q").rates(Flow.PUBLISH, metrics.uptime) == (0, 0, 0)


def test_what_nobody_looked_at_counts_when_it_happened() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.counted(Kind.PUBLISH, "q")
    clock.now += 600
    minutes = ring_of(metrics, "q").minutes(Flow.PUBLISH)
    assert (minutes[-11], sum(minutes)) == (1, 1)


def test_how_many_there_were_is_reckoned_back() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    metrics.counted(Kind.PUBLISH, "q", 5)
    clock.now += 60
    metrics.counted(Kind.REMOVE, "q")
    metrics.counted(Kind.DEAD_LETTER, "q", destination="dead")
    metrics.counted(Kind.EXPIRE, "q")
    clock.now += 60
    metrics.counted(Kind.REROUTE, "dead", destination="q")
    assert ring_of(metrics, "q").messages(3)[-4:] == [0, 5, 2, 3]
    assert ring_of(metrics, "dead").messages(0)[-3:] == [0, 1, 0]


def test_ten_thousand_queues_fit_into_memory() -> None:
    names = [f"queue{number}" for number in range(10_000)]
    metrics = Metrics(Clock())
    metrics.counted(Kind.PUBLISH, "other")
    metrics.catch_up()
    tracemalloc.start()
    try:
        for name in names:
            metrics.counted(Kind.PUBLISH, name)
        metrics.catch_up()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(metrics._rings) == 10_001
    assert taken <= 40 << 20
    assert taken / 10_000 <= 4096


@figures
def test_a_message_costs_little_and_no_slot_stalls(room: int) -> None:
    """Timed alone, on the processor; the best of some rounds, as others use it, too."""
    clock = Clock()
    metrics = Metrics(clock)
    events = [(kind, f"queue{number}") for number in range(10_000) for kind in KINDS]
    few = [(kind, f"queue{number % 100}") for number in range(10_000) for kind in KINDS]
    counting, putting_away = [], []
    for _ in range(4):
        begun = time.thread_time()
        for kind, queue in few:
            metrics.counted(kind, queue)
        counting.append(time.thread_time() - begun)
        for kind, queue in events:
            metrics.counted(kind, queue)
        clock.now += SLOT_SECONDS
        begun = time.thread_time()
        metrics.catch_up()
        putting_away.append(time.thread_time() - begun)
    assert min(counting) / 10_000 <= room * 3e-6
    assert min(putting_away) <= room * 0.05  # every 5 s, where all ten thousand queues are busy


@figures
def test_the_age_of_what_is_handed_out_costs_little(room: int) -> None:
    metrics, ids = Metrics(Clock()), MessageIds()
    leased = [ids.new() for _ in range(10_000)]
    taken = []
    for _ in range(4):
        begun = time.thread_time()
        for id in leased:
            metrics.counted(Kind.LEASE, "q")
            metrics.handed_out([id.time], time.time_ns())
            metrics.histogram(Span.PUBLISH).observe(0.01)
        taken.append(time.thread_time() - begun)
    assert min(taken) / 10_000 <= room * 3e-6
    assert metrics.durations()["delivery_age"].buckets[-1] == ("+Inf", 40_000)


def test_queues_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MOST_RINGS", 10)
    monkeypatch.setattr(metrics_module, "_SMALLEST_SWEEP", 50)
    clock = Clock()
    metrics = Metrics(clock)
    metrics._sweep_at = 50
    metrics.knows = lambda queue: queue == "stays"
    for number in range(1000):
        metrics.counted(Kind.PUBLISH, "stays")
        metrics.counted(Kind.PUBLISH, f"passes{number}")
        clock.now += SLOT_SECONDS
    assert len(metrics._rings) <= 10
    assert len(metrics._counts[Kind.PUBLISH]) <= 60
    assert ring_of(metrics, "stays").in_a_minute(Flow.PUBLISH) == 11
    assert metrics.summary({"stays"})["counts"]["publish"] == 2000


async def test_what_a_connection_holds_counts_as_delivered_and_as_come_back() -> None:
    metrics = Metrics()
    async with open_broker("memory:", BrokerConfig(), observers=[metrics]) as broker:
        await broker.create_queue("q")
        for _ in range(3):
            await broker.publish("q", b"x")
        held = await broker.hold("q", 3)
        await broker.put_back(held[:2])
        await broker.acknowledge(held[2:])
        assert {flow: ring_of(metrics, "q").in_a_minute(flow) for flow in Flow} == {
            Flow.PUBLISH: 3,
            Flow.DELIVER: 3,
            Flow.REDELIVER: 2,
            Flow.ACKNOWLEDGE: 1,
            Flow.EXPIRE: 0,
            Flow.DEAD_LETTER: 0,
            Flow.LEAVE: 0,
            Flow.ARRIVE: 0,
        }


def test_every_flow_has_its_kind() -> None:
    assert set(FLOW_OF.values()) | {Flow.ARRIVE} == set(Flow)
