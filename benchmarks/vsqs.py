"""VSQS beside other queues that need no daemon, at the same durability; and in front of a short and a long backlog.

In each round every queue takes its turn on a fresh folder of the same file system: it publishes the messages, one at a
time, and then consumes them. The order changes with every round, and no queue finds dirty pages of another.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure, at_least, at_most, median_ratio, spread
from benchmarks.machine import write_back
from benchmarks.peers import PEERS, Maker, Vsqs
from mq.vsqs import Queue

BODY: Final = os.urandom(1024)
NAMES_A_SECOND: Final = 1000
"""A message's name is its millisecond."""
OF_THE_NAMES: Final = 0.9
SHORT: Final = 100
LONG: Final = 100_000
DEARER: Final = 2.0
_TAKEN: Final = 40
_OURS: Final = "VSQS"


def measure(folder: str, rounds: int, messages: int, long: int = LONG) -> list[Figure]:
    """All figures.

    Args:
        folder: where queues are made, one after another.
        rounds: how many to count; one more warms up.
        messages: in each turn.
        long: messages in the long backlog.
    """
    makers: dict[str, Maker] = {_OURS: Vsqs, **PEERS}
    publish: dict[str, list[float]] = {name: [] for name in makers}
    consume: dict[str, list[float]] = {name: [] for name in makers}
    for number in range(rounds + 1):
        names = list(makers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rates = _take_turn(f"{folder}/turn", makers[name], messages)
            if number:
                publish[name].append(rates[0])
                consume[name].append(rates[1])
    return [*_publishing(publish), *_consuming(consume), *_backlogs(folder, rounds, long)]


def _take_turn(folder: str, make: Maker, messages: int) -> tuple[float, float]:
    """Messages published, and then consumed, in a second."""
    os.mkdir(folder)
    queue = make(folder)
    write_back(folder)
    started = time.perf_counter()
    for _ in range(messages):
        queue.publish(BODY)
    published = time.perf_counter()
    for _ in range(messages):
        assert queue.consume() == BODY
    consumed = time.perf_counter()
    shutil.rmtree(folder)
    return messages / (published - started), messages / (consumed - published)


def _publishing(rates: dict[str, list[float]]) -> list[Figure]:
    ours = rates[_OURS]
    of_names = median_ratio(ours, [NAMES_A_SECOND])
    note = spread(ours, "a second")
    figures = [at_least("VSQS: durable publish, against what millisecond names allow", of_names, OF_THE_NAMES, note)]
    for name in PEERS:
        ratio = median_ratio(ours, rates[name])
        reached = ratio >= 1 or of_names >= OF_THE_NAMES
        wanted = f"≥ 1, or ≥ {OF_THE_NAMES:g} of what its names allow"
        note = f"{spread(ours, 'a second')} against {spread(rates[name], 'a second')}"
        figures.append(Figure(f"VSQS: durable publish, against {name}", ratio, "", wanted, reached, note))
    return figures


def _consuming(rates: dict[str, list[float]]) -> list[Figure]:
    ours = rates[_OURS]
    return [
        Figure(
            f"VSQS: consume, against {name}",
            median_ratio(ours, rates[name]),
            note=f"{spread(ours, 'a second')} against {spread(rates[name], 'a second')}",
        )
        for name in PEERS
    ]


def _backlogs(folder: str, rounds: int, long: int) -> list[Figure]:
    queues = {length: _backlog(f"{folder}/{length}", length) for length in (SHORT, long)}
    costs: dict[int, list[float]] = {length: [] for length in queues}
    for _ in range(rounds * _TAKEN):
        for length, queue in queues.items():
            started = time.perf_counter()
            with queue.receive(timeout=0) as message:
                body = message.body
            costs[length].append((time.perf_counter() - started) * 1e6)
            queue.publish(body)
    for length, queue in queues.items():
        queue.close()
        shutil.rmtree(f"{folder}/{length}")
    ratio = median_ratio(costs[long], costs[SHORT])
    note = f"{spread(costs[long], 'µs')} against {spread(costs[SHORT], 'µs')}"
    return [at_most(f"VSQS: consume in front of {long:,} against {SHORT:,}", ratio, DEARER, note=note)]


def _backlog(folder: str, length: int) -> Queue:
    os.mkdir(folder)
    for number in range(length):
        Path(folder, str(number)).touch()
    queue = Queue(folder)
    assert queue.size() == length
    write_back(folder)
    return queue
