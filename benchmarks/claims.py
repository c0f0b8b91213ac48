"""What batch consumers, as Spark makes them, and readers of columns cost the daemon: its processor time for a message.

The requests are the data source's own, over one connection and without Spark. Each turn browses a queue of 10,000
messages in columns, claims it as one batch, reads the claim, notes it as read and acknowledges it. The processor time
is what the kernel says of the daemon's process, so it has the file system's in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Figure, at_most, spread
from benchmarks.http import _daemon, _processor_seconds
from mq.client import Client, Outgoing
from mq.spark import calls
from mq.spark.connection import DaemonConnection
from mq.spark.options import Options

BODY: Final = 200
ROWS: Final = 10_000
"""Of one claim: the most that it may have."""
PARTS: Final = 4
"""Slices that are read and noted, as by so many tasks."""
PAGE: Final = 1000
BROWSED, CLAIMED, READ, NOTED, ACKNOWLEDGED = "browsed", "claimed", "read of a claim", "noted as read", "acknowledged"
WHOLE: Final = "claimed and acknowledged"
WANTED: Final = {BROWSED: 15.0, WHOLE: 60.0}


def measure(folder: str, rounds: int) -> list[Figure]:
    """Microseconds of the daemon's processor time for a row, by what was asked; and its memory with 200,000 waiting.

    Args:
        folder: where the root is made.
        rounds: turns to count; one more warms up.
    """
    costs: dict[str, list[float]] = {}
    with _daemon(folder) as (port, pid), Client(f"http://127.0.0.1:{port}") as client:
        url = f"http://127.0.0.1:{port}"
        for turn in range(rounds + 1):
            queue = f"q{turn}"
            client.create_queue(queue)
            client.publish_many(queue, (Outgoing(b"%0*d" % (BODY, number)) for number in range(ROWS)))
            _wait_for_rest(pid)
            for name, cost in _Turn(url, queue, pid).costs().items():
                costs.setdefault(name, []).extend([cost] if turn else [])
        costs[WHOLE] = [made + gone for made, gone in zip(costs[CLAIMED], costs[ACKNOWLEDGED], strict=True)]
        figures = [_figure(name, values) for name, values in costs.items()]
        client.create_queue("long")
        client.publish_many("long", (Outgoing(b"%0*d" % (BODY, number)) for number in range(200_000)))
        memory = _resident(pid)
    return [*figures, at_most("the daemon's memory with 200,000 waiting", memory / 1e6, 200, "MB")]


class _Turn:
    def __init__(self, url: str, queue: str, pid: int) -> None:
        self._queue = queue
        self._pid = pid
        self._connection = DaemonConnection(Options(url=url, queue=queue, consumer="c"))

    def costs(self) -> dict[str, float]:
        """Microseconds for a row of each kind of request."""
        run, queue = self._connection.run, self._queue
        costs = {BROWSED: self._cost(lambda: self._pages(calls.browse(queue, 0, 2**62, PAGE)))}
        epoch = run(calls.start(queue, "c", "checkpoint", take_over=False, within=60.0))["epoch"]
        place = (queue, "c", 1, epoch)
        costs[CLAIMED] = self._cost(lambda: run(calls.claim(*place, lease=300.0, most=ROWS)))
        step = ROWS // PARTS
        slices = [(start, start + step) for start in range(0, ROWS, step)]

        def read() -> int:
            return sum(self._pages(calls.read_claim(*place, *each, PAGE, of=ROWS)) for each in slices)

        def note() -> None:
            for each in slices:
                run(calls.note_read(*place, *each, of=ROWS, checkpoint="checkpoint"))

        costs[READ] = self._cost(read)
        costs[NOTED] = self._cost(note)
        costs[ACKNOWLEDGED] = self._cost(lambda: run(calls.acknowledge(*place, within=60.0)))
        self._connection.close()
        return costs

    def _pages(self, first: Any) -> int:
        rows = sum(len(page.messages) for page in self._connection.pages(first))
        assert rows in (ROWS, ROWS // PARTS), f"{rows} rows came"
        return rows

    def _cost(self, work: Callable[[], object]) -> float:
        before = _processor_seconds(self._pid)
        work()
        _wait_for_rest(self._pid)  # what is done after the answer counts, too
        return (_processor_seconds(self._pid) - before) / ROWS * 1e6


def _wait_for_rest(pid: int) -> None:
    """Until the daemon has nothing to do."""
    before = -1.0
    while (now := _processor_seconds(pid)) - before > 0.01:
        before = now
        time.sleep(0.25)


def _resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def _figure(name: str, values: list[float]) -> Figure:
    title, note = f"a row {name}: the daemon's processor time", spread(values, "µs")
    value = sorted(values)[len(values) // 2]
    return at_most(title, value, WANTED[name], "µs", note) if name in WANTED else Figure(title, value, "µs", note=note)
