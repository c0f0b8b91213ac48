"""Queues come and go under a pattern while drivers are killed: no row is lost, none comes twice, no query fails.

pytest -m proof tests/spark/test_come_and_go.py -s --spark-seconds 600
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

from mq.client import Client, Outgoing
from tests.e2e.daemon import Daemon
from tests.spark.conftest import url
from tests.spark.test_real_data import Driver

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.filterwarnings("ignore")]

NEW_QUEUE_SECONDS = 0.3
MOST_QUEUES = 60
"""Queues at a time: when there are more, those that were read go."""
LIVES_SECONDS = (0.0, 30.0)
"""A driver is killed after a time between these, from its first plan of a micro-batch on: a busy machine takes long to
start one."""
START_KILLS = 4
"""One of so many drivers is killed while it starts."""
PATIENCE_SECONDS = 300.0
"""A driver that does nothing for so long hangs."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "daemon.log") as running:
        yield running


class Channels:
    """Queues that are made, filled, and deleted once all of their rows were acknowledged."""

    def __init__(self, client: Client, random: Random) -> None:
        self.sent: list[bytes] = []
        self.made = 0
        self.deleted = 0
        self._client = client
        self._random = random
        self._there: list[str] = []
        self._free: list[str] = []

    def make(self) -> None:
        """Make a queue, every second time under a name that another one had, and fill it."""
        name = self._free.pop(0) if self._free and self.made % 2 else f"ch.{self.made}"
        bodies = [b"%d/%d" % (self.made, number) for number in range(self._random.randint(1, 20))]
        self._client.create_queue(name)
        self._client.publish_many(name, map(Outgoing, bodies))
        self._there.append(name)
        self.sent += bodies
        self.made += 1

    def delete_read(self, most: int) -> None:
        """Delete queues of which all was acknowledged, until there are at most so many."""
        counts = {each.name: each.ready + each.leased + each.delayed for each in self._client.queues()}
        for name in list(self._there):
            if len(self._there) <= most:
                return
            if not counts.get(name, 1):
                self._client.delete_queue(name)
                self._there.remove(name)
                self._free.append(name)
                self.deleted += 1

    def left(self) -> int:
        """How many rows were not acknowledged."""
        return sum(each.ready + each.leased + each.delayed for each in self._client.queues())


def plans(folder: Path) -> int:
    """The number of the last micro-batch that Spark has planned; -1 for none."""
    offsets = folder / "checkpoint" / "offsets"
    return max((int(path.name) for path in offsets.glob("[0-9]*")), default=-1)


@pytest.mark.proof
def test_queues_that_come_and_go_while_drivers_are_killed(
    spark: Any, daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    seconds, random = request.config.getoption("spark_seconds", 600.0), Random(47)
    kills = failures = 0
    with Client(url(daemon)) as client:
        channels = Channels(client, random)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            driver = Driver(daemon, tmp_path, "500", "like:ch[.].*")
            try:
                life, planned = random.uniform(*LIVES_SECONDS), plans(tmp_path)
                end = time.monotonic() + life if random.randrange(START_KILLS) == 0 else None
                while (began := time.monotonic()) < min(until, end or until) and driver.process.poll() is None:
                    if end is None and plans(tmp_path) > planned:
                        end = began + life
                    channels.make()
                    channels.delete_read(MOST_QUEUES)
                    time.sleep(max(0.0, NEW_QUEUE_SECONDS - (time.monotonic() - began)))
                failures += driver.process.poll() is not None
            finally:
                driver.kill()
            kills += 1
            assert not failures, (tmp_path / "driver.log").read_text()[-5000:]
        driver = Driver(daemon, tmp_path, "now:500", "like:ch[.].*")
        try:
            while driver.process.poll() is None:
                planned, deadline = plans(tmp_path), time.monotonic() + PATIENCE_SECONDS
                while driver.process.poll() is None and plans(tmp_path) == planned:
                    assert time.monotonic() < deadline, (tmp_path / "driver.log").read_text()[-5000:]
                    time.sleep(0.5)
            assert driver.process.returncode == 0, (tmp_path / "driver.log").read_text()[-5000:]
        finally:
            driver.kill()
        left = channels.left()
    rows = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    sent, found = Counter(channels.sent), Counter(bytes(row.value) for row in rows)
    lost, twice = sum((sent - found).values()), sum((found - sent).values())
    sys.stdout.write(
        f"{channels.made} queues made, {channels.deleted} deleted, {kills} drivers killed in {seconds:g} s, "
        f"{plans(tmp_path) + 1} micro-batches: "
        f"{len(channels.sent)} rows, {lost} lost, {twice} twice, {failures} failures\n"
    )
    assert (lost, twice, left) == (0, 0, 0)
    assert channels.deleted or seconds < 120
