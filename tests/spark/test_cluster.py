"""A standalone cluster on loopback: a master and two workers, whose Python has no mq until the driver ships it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from mq.client import Client, Outgoing
from tests.e2e.daemon import TREE, Daemon
from tests.spark.conftest import environment, url

pytestmark = [pytest.mark.proof, pytest.mark.sparkcluster, pytest.mark.timeout(600)]

HOME = Path(pyspark.__file__).parent
NEEDED = ("pyspark", "py4j", "pyarrow", "pyarrow.libs")
UP_SECONDS = 120.0


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that has what Spark needs, and no mq."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for folder in map(Path, site.getsitepackages()):
        for name in NEEDED:
            if (folder / name).exists():
                (packages / name).symlink_to(folder / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    found = subprocess.run([python, "-c", "import mq"], capture_output=True, cwd=tmp_path, env=_bare(), check=False)
    assert b"No module named 'mq'" in found.stderr
    return python


@pytest.fixture
def master(tmp_path: Path, bare_python: Path) -> Iterator[str]:
    """The address of a master with two workers."""
    settings = {
        **_bare(),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOG_DIR": str(tmp_path),
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": str(bare_python),
    }
    program = "org.apache.spark.deploy"
    command = [str(HOME / "bin" / "spark-class")]
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as told:
            running.append(
                subprocess.Popen([*command, *arguments], env=settings, stdout=told, stderr=told, start_new_session=True)
            )
        return log

    try:
        log = start("master", f"{program}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        address = _told(log, r"(spark://127\.0\.0\.1:\d+)")
        for number in (1, 2):
            sizes = ("--cores", "1", "--memory", "600m", "--webui-port", "0")
            worker = start(f"worker{number}", f"{program}.worker.Worker", "--host", "127.0.0.1", *sizes, address)
            _told(worker, r"(Successfully registered with master)")
        yield address
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)


def test_the_package_is_shipped_to_executors_that_do_not_have_it(
    daemon: Daemon, client: Client, master: str, bare_python: Path, tmp_path: Path
) -> None:
    package = tmp_path / "mq.zip"
    shutil.make_archive(str(package.with_suffix("")), "zip", _tree(tmp_path))
    client.publish_many("q", [Outgoing(f"{number}") for number in range(700)])
    client.create_queue("copies")
    settings = {
        **_bare(),
        "PYTHONPATH": str(package),
        "PYSPARK_PYTHON": str(bare_python),
        "PYSPARK_DRIVER_PYTHON": str(bare_python),
        "PYSPARK_SUBMIT_ARGS": f"--py-files {package} pyspark-shell",
    }
    done = subprocess.run(
        [bare_python, TREE / "tests/spark/driver.py", url(daemon), "q", "c", tmp_path, "now:300", master],
        env=settings,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 rows before" in done.stdout
    assert client.queue("q").ready == client.queue("q").leased == 0
    found = sorted(int(message.body) for message in client.browse("copies"))
    assert found == list(range(700))
    executors = list((tmp_path / "work").glob("app-*/*/stderr"))
    assert len(executors) == 2, executors


def _tree(folder: Path) -> Path:
    """What docs/spark.md says to put into the file."""
    tree = folder / "shipped"
    for name in ("mq", "pyspark_mq"):
        shutil.copytree(TREE / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def _bare() -> dict[str, str]:
    return {name: value for name, value in environment().items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def _told(log: Path, pattern: str) -> str:
    """What a program of Spark says when it is up."""
    end = time.monotonic() + UP_SECONDS
    while time.monotonic() < end:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"it did not come up:\n{log.read_text(errors='replace')[-3000:]}")
