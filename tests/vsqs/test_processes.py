"""Eight processes on one folder, some of which are killed at any moment. Real time, real processes."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from mq.vsqs import Queue
from mq.vsqs.publisher import ALONE_SECONDS
from tests.e2e.prepared import Popen

TREE = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60
VISIBILITY_SECONDS = 0.5

pytestmark = [pytest.mark.slow, pytest.mark.in_turn(2)]


class Published(NamedTuple):
    body: str
    id: str
    begin_ns: int
    end_ns: int


class Crowd:
    """Programs on one folder; each writes a file of what it was answered."""

    def __init__(self, folder: Path, logs: Path, visibility: float) -> None:
        self.folder = folder
        self.visibility = visibility
        self.running: dict[subprocess.Popen[bytes], str] = {}
        self._logs = logs
        self._names = (f"program{number}" for number in itertools.count())

    def start(self, role: str) -> None:
        name = next(self._names)
        with (self._logs / f"{role}.{name}").open("wb") as log:
            process = Popen(
                [sys.executable, "-m", "tests.vsqs.actor", role, self.folder, name, str(self.visibility)],
                cwd=TREE,
                stdin=subprocess.PIPE,
                stdout=log,
            )
        self.running[process] = role

    def kill_one(self, *roles: str) -> None:
        """And start another in its place."""
        process = random.choice([process for process, role in self.running.items() if role in roles])
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdin.close()
        self.start(self.running.pop(process))

    def stop(self, role: str) -> None:
        """All of that role; they end well."""
        stopped = [process for process, its in self.running.items() if its == role]
        for process in stopped:
            process.stdin.close()
        for process in stopped:
            assert process.wait(PATIENCE_SECONDS) == 0
            del self.running[process]

    def published(self) -> list[Published]:
        lines = [line.split() for line in self._lines("publish")]
        return [Published(body, id, int(begin), int(end)) for body, id, begin, end in lines]

    def received(self) -> list[tuple[str, str]]:
        """(body, id), in order where one consumer wrote it all."""
        return [(body, id) for body, id in (line.split() for line in self._lines("consume"))]

    def _lines(self, role: str) -> Iterator[str]:
        for path in self._logs.glob(f"{role}.*"):
            yield from (line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n"))

    def end(self) -> None:
        for process in self.running:
            process.kill()
            process.wait()
            process.stdin.close()


@pytest.fixture(params=["disk", "memory"])
def crowd(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> Iterator[Crowd]:
    """On whatever disk there is, and in memory, where everything is faster."""
    place, logs = tmp_path / "queue", tmp_path / "logs"
    place.mkdir()
    logs.mkdir()
    made = Crowd(place if request.param == "disk" else folder, logs, VISIBILITY_SECONDS)
    yield made
    made.end()


def wait_until_empty(folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with Queue(folder) as queue:
        while queue.size():
            assert time.monotonic() < deadline, os.listdir(folder)[:20]
            time.sleep(0.1)


def test_every_message_is_seen_though_processes_are_killed(crowd: Crowd) -> None:
    for _ in range(4):
        crowd.start("publish")
        crowd.start("consume")
    for _ in range(40):
        time.sleep(random.uniform(0, 0.2))
        crowd.kill_one("publish", "consume")
    crowd.stop("publish")
    wait_until_empty(crowd.folder)
    crowd.stop("consume")
    published, received = crowd.published(), crowd.received()
    assert len(published) > 200
    assert {(one.body, one.id) for one in published} <= set(received)
    assert len({id for _, id in received}) == len(set(received)), "two messages had one id"
    time.sleep(ALONE_SECONDS + 0.5)  # what dead publishers left goes when it was left alone for so long
    with Queue(crowd.folder) as queue:
        assert queue.receive(timeout=0) is None
    assert os.listdir(crowd.folder) == []


def test_one_consumer_sees_them_in_order(crowd: Crowd) -> None:
    """Whatever was answered before another publish began comes before it; and so do all of one publisher."""
    crowd.visibility = 3600
    crowd.start("consume")
    for _ in range(7):
        crowd.start("publish")
    for _ in range(15):
        time.sleep(random.uniform(0, 0.3))
        crowd.kill_one("publish")
    crowd.stop("publish")
    wait_until_empty(crowd.folder)
    crowd.stop("consume")
    times = {one.body: one for one in crowd.published()}
    received = [body for body, _ in crowd.received()]
    assert len(times) > 200
    assert set(times) <= set(received)
    assert len(set(received)) == len(received)
    first_end = float("inf")
    for body in reversed([body for body in received if body in times]):
        assert times[body].begin_ns < first_end, "it came before one that was published before it"
        first_end = min(first_end, times[body].end_ns)
