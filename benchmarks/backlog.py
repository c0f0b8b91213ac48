"""What a fetch costs in front of a short and of a long backlog: one from this and one from that, on one broker.

Fetched messages are requeued afterwards, out of the measured time, so the backlogs keep their lengths.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import trio

from benchmarks.figures import Figure, at_most, median_ratio, spread
from benchmarks.recorded import CountingCalls, open_recorded
from mq.broker import Broker, BrokerConfig, open_broker
from mq.message import MessageId, MessageIds

SHORT: Final = 200
LONG: Final = 200_000
FETCHES: Final = 50
WANTED: Final = 1.3
_PUBLISHERS: Final = 1000
_LEASE_SECONDS: Final = 3600.0


class Costs:
    """What the fetches of one queue cost, in microseconds each."""

    def __init__(self) -> None:
        self.elapsed: list[float] = []
        self.computed: list[float] = []


async def measure(folder: str, rounds: int, long: int = LONG, short: int = SHORT) -> list[Figure]:
    """The ratio of the costs of a fetch.

    Args:
        folder: where the root is made.
        rounds: turns of FETCHES fetches from each.
        long: messages in the long backlog.
        short: messages in the short one.
    """
    calls = CountingCalls()
    costs = {"short": Costs(), "long": Costs()}
    listings = 0
    try:
        async with (
            open_recorded(f"{folder}/backlog", calls) as storage,
            open_broker(storage, BrokerConfig(delay_seconds=_LEASE_SECONDS)) as broker,
        ):
            await _fill(broker, "short", short)
            await _fill(broker, "long", long)
            for turn in range(rounds + 1):
                before = calls.counts["names"]
                await _take_turn(broker, costs if turn else {queue: Costs() for queue in costs})
                listings += calls.counts["names"] - before
    finally:
        shutil.rmtree(f"{folder}/backlog", ignore_errors=True)
    near, far = costs["short"], costs["long"]
    return [
        at_most(
            f"fetch at a backlog of {long:,} against {short:,}",
            median_ratio(far.elapsed, near.elapsed),
            WANTED,
            note=f"{spread(far.elapsed, 'µs')} against {spread(near.elapsed, 'µs')}",
        ),
        at_most(
            "the same in processor time",
            median_ratio(far.computed, near.computed),
            WANTED,
            note=f"{spread(far.computed, 'µs')} against {spread(near.computed, 'µs')}",
        ),
        at_most("folders listed by these fetches", listings, 0, note=f"{2 * rounds * FETCHES + 2 * FETCHES} fetches"),
    ]


async def measure_lengths(folder: str, rounds: int, lengths: Sequence[int]) -> list[Figure]:
    """The ratio of the costs of a fetch in front of ever more messages, which are made as files before the start.

    Args:
        folder: where the root is made.
        rounds: turns of FETCHES fetches from each.
        lengths: of the backlogs; the first one is what the others are held against.
    """
    root, ids = Path(folder, "backlogs"), MessageIds()
    costs = {f"q{length}": Costs() for length in lengths}
    try:
        for length in lengths:
            queue = root / "queues" / f"q{length}"
            queue.mkdir(parents=True)
            for _ in range(length):
                (queue / str(ids.new())).touch()
        config = BrokerConfig(delay_seconds=_LEASE_SECONDS)
        async with open_recorded(str(root)) as storage, open_broker(storage, config) as broker:
            for turn in range(rounds + 1):
                await _take_turn(broker, costs if turn else {queue: Costs() for queue in costs})
    finally:
        shutil.rmtree(root, ignore_errors=True)
    first, *others = costs.values()
    return [
        at_most(
            f"fetch at {length:,} waiting, against {lengths[0]:,}",
            median_ratio(cost.elapsed, first.elapsed),
            WANTED,
            note=f"{spread(cost.elapsed, 'µs')} against {spread(first.elapsed, 'µs')}",
        )
        for length, cost in zip(lengths[1:], others, strict=True)
    ]


async def _fill(broker: Broker, queue: str, messages: int) -> None:
    await broker.create_queue(queue)
    left = messages

    async def publisher() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await broker.publish(queue, b"body")

    async with trio.open_nursery() as nursery:
        for _ in range(min(_PUBLISHERS, messages)):
            nursery.start_soon(publisher)


async def _take_turn(broker: Broker, costs: Mapping[str, Costs]) -> None:
    """FETCHES from each queue, one from this and one from that; then all of them go back."""
    fetched: list[tuple[str, MessageId]] = []
    for _ in range(FETCHES):
        for queue, cost in costs.items():
            fetched.append((queue, await _fetch(broker, queue, cost)))
    async with trio.open_nursery() as nursery:
        for queue, id in fetched:
            nursery.start_soon(broker.requeue, queue, id)


async def _fetch(broker: Broker, queue: str, costs: Costs) -> MessageId:
    computed, started = time.process_time(), time.perf_counter()
    message = await broker.fetch(queue)
    costs.elapsed.append((time.perf_counter() - started) * 1e6)
    costs.computed.append((time.process_time() - computed) * 1e6)
    assert message is not None, "the backlog was filled"
    await message.body.aclose()
    return message.id
