"""Older versions of Spark, and Spark Connect, each from the package index into a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from mq.client import Client
from tests.e2e.daemon import TREE, Daemon
from tests.spark.conftest import environment, url

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("version", "streamed"), [("4.0.*", 0), ("4.1.*", 0), ("4.2.*", 1500)])
def test_a_spark_of_before(daemon: Daemon, client: Client, tmp_path: Path, version: str, streamed: int) -> None:
    packages = bring(tmp_path, f"pyspark=={version}", "pandas")
    said = drive(daemon, client, tmp_path, packages, SPARK_HOME=str(packages / "pyspark"))
    assert said.startswith(f"Spark {version[:3]}.")
    assert said.endswith(f": {streamed} rows streamed\n")
    assert client.queue("q").ready == 1500 - streamed


def test_over_spark_connect(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    """The source runs on the server, which takes a free port where Spark is told that this is a test."""
    packages = bring(tmp_path, "grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "pandas<3")
    said = drive(daemon, client, tmp_path, packages, "local[2]", SPARK_TESTING="1")
    assert said.endswith(": 1500 rows streamed\n")
    assert client.queue("q").ready == 0


def bring(folder: Path, *wanted: str) -> Path:
    """Packages from the index, in a folder of their own."""
    packages = folder / "packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), *wanted]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot bring {' '.join(wanted)}: {done.stderr.strip()[-300:]}")
    return packages


def drive(daemon: Daemon, client: Client, folder: Path, packages: Path, *arguments: str, **settings: str) -> str:
    """What the driver says at its end."""
    client.create_queue("copies")
    found = environment()
    ended = subprocess.run(
        [sys.executable, TREE / "tests/spark/old_driver.py", url(daemon), folder, *arguments],
        env={**found, "PYTHONPATH": f"{packages}:{found['PYTHONPATH']}", **settings},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout
