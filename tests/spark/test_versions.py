"""Older versions of Spark, each from the package index into a folder of its own."""

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
    packages = tmp_path / "packages"
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", str(packages), f"pyspark=={version}", "pandas"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        pytest.skip(f"pip cannot bring Spark {version}: {done.stderr.strip()[-300:]}")
    client.create_queue("copies")
    found = environment()
    settings = {**found, "PYTHONPATH": f"{packages}:{found['PYTHONPATH']}", "SPARK_HOME": str(packages / "pyspark")}
    ended = subprocess.run(
        [sys.executable, TREE / "tests/spark/old_driver.py", url(daemon), tmp_path],
        env=settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.startswith(f"Spark {version[:3]}.")
    assert ended.stdout.endswith(f": {streamed} rows streamed\n")
    assert client.queue("q").ready == 1500 - streamed
