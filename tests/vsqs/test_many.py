"""A folder of 100,000 ready messages costs a consumer no more for each than one of 100."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest

from mq.vsqs import Queue

FEW, MANY = 100, 100_000
TURNS = 40

pytestmark = pytest.mark.slow


def fill(folder: Path, messages: int) -> Queue:
    """As many publishers left them, long ago."""
    folder.mkdir()
    for number in range(messages):
        (folder / str(1_000_000 + number)).touch()
    queue = Queue(folder)
    assert queue.size() == messages
    return queue


def test_a_long_backlog_costs_no_more_and_hides_nothing(folder: Path) -> None:
    """Real time, in turns, so that both meet the same weather; and the listings are counted."""
    queues = {FEW: fill(folder / "few", FEW), MANY: fill(folder / "many", MANY)}
    costs: dict[int, list[float]] = {FEW: [], MANY: []}
    for _ in range(TURNS):
        for size, queue in queues.items():
            started = time.perf_counter()
            message = queue.receive(timeout=0)
            costs[size].append(time.perf_counter() - started)
            assert message is not None
            assert message.delete()
    assert statistics.median(costs[MANY]) <= 2 * statistics.median(costs[FEW])
    assert queues[MANY]._look.listings == 1

    many = queues[MANY]
    (folder / "many" / "7").touch()  # another program's, of which the clock was behind
    (folder / "many" / str(1_000_000 + TURNS)).unlink()
    (folder / "many" / str(1_000_001 + TURNS)).rename(folder / "many" / f"{1_000_001 + TURNS}.99999999999999")
    received = [many.receive(timeout=0) for _ in range(2)]
    assert [message.id for message in received if message] == ["7", str(1_000_002 + TURNS)]
    assert many.size() == MANY - TURNS
    assert many._look.listings == 1
    for queue in queues.values():
        queue.close()
