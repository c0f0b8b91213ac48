"""The whole way: real records published by Spark, and streamed back while everything is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from mq.client import Client
from tests.e2e.daemon import TREE, Daemon
from tests.spark.conftest import environment, url
from tests.spark.records import real_records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]

USUAL_ROWS = 12_000
PATIENCE_SECONDS = 120.0


@pytest.fixture
def daemon(tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    """On one port over all its lives."""
    with Daemon(tmp_path / "root", tmp_path / "daemon.log", "--port", str(free_port)) as running:
        with Client(url(running)) as client:
            client.create_queue("index")
        yield running


class Driver:
    """A query in a process of its own, with the Java and the Python processes that it starts."""

    def __init__(self, daemon: Daemon, folder: Path, most: str, queue: str = "index") -> None:
        self._commits = folder / "checkpoint" / "commits"
        command = [
            sys.executable,
            str(TREE / "tests/spark/driver.py"),
            url(daemon),
            queue,
            "nightly",
            str(folder),
            most,
        ]
        self._log = (folder / "driver.log").open("ab")
        self.process = subprocess.Popen(
            command, env=environment(), stdout=self._log, stderr=self._log, start_new_session=True
        )

    def committed(self) -> int:
        """How many micro-batches are in the commit log."""
        with contextlib.suppress(FileNotFoundError):
            return sum(name.name.isdigit() for name in self._commits.iterdir())
        return 0

    def wait_for_more(self) -> None:
        """Until one more micro-batch is committed, or the query has ended."""
        before, end = self.committed(), time.monotonic() + PATIENCE_SECONDS
        while self.committed() == before and self.process.poll() is None:
            assert time.monotonic() < end, "the query does not get on"
            time.sleep(0.02)

    def kill(self) -> None:
        """All of its processes, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        self._log.close()


@pytest.mark.proof
@pytest.mark.parametrize("kills", [2, 5])
def test_real_records_through_kills_of_the_driver_and_of_the_broker(
    spark: Any, daemon: Daemon, tmp_path: Path, request: pytest.FixtureRequest, kills: int
) -> None:
    rows = request.config.getoption("spark_rows", None)
    records = real_records(USUAL_ROWS if rows is None else rows or None)
    pq.write_table(pa.table({"value": pa.array(records, pa.binary())}), tmp_path / "records.parquet")
    begun = time.monotonic()
    frame = spark.read.parquet(str(tmp_path / "records.parquet")).repartition(4)
    frame.write.format("mq").options(url=url(daemon), queue="index").mode("append").save()
    with Client(url(daemon)) as client:
        assert client.queue("index").ready == len(records)
    random, most = Random(len(records)), str(max(20, len(records) // 300))  # so many that no driver comes to the end
    told = [f"{len(records)} records written in {time.monotonic() - begun:.0f} s"]
    for kill in range(kills):
        driver = Driver(daemon, tmp_path, most)
        try:
            driver.wait_for_more()
            if kill in (1, 3):
                time.sleep(random.uniform(0, 0.5))
                daemon.kill()
                daemon.start()
                driver.wait_for_more()
            time.sleep(random.uniform(0, 1.5))
        finally:
            driver.kill()
        told.append(f"killed after {driver.committed()} micro-batches")
    driver = Driver(daemon, tmp_path, "now:10000")
    try:
        assert driver.process.wait(PATIENCE_SECONDS * 3) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    finally:
        driver.kill()
    found = Counter(bytes(row.value) for row in spark.read.parquet(str(tmp_path / "out")).select("value").collect())
    sent = Counter(records)
    assert sum((sent - found).values()) == 0, "records are lost"
    assert sum((found - sent).values()) == 0, "records are there twice"
    with Client(url(daemon)) as client:
        left = client.queue("index")
    assert (left.ready, left.leased, left.delayed) == (0, 0, 0)
    told.append(f"{sum(found.values())} records read in {driver.committed()} micro-batches, none lost, none twice")
    sys.stdout.write("; ".join(told) + "\n")
