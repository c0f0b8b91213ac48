"""The examples run, and do what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
def test_the_embedded_example_does_every_job_once(temp_root: Path) -> None:
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, EXAMPLES / "embedded.py", temp_root],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stdout.startswith("20 jobs done; ")
        assert "'requeue': 2" in ended.stdout
    assert not list((temp_root / "queues" / "work").iterdir())


@pytest.fixture
def url(temp_root: Path, tmp_path: Path) -> Iterator[str]:
    with Daemon(temp_root, tmp_path / "log") as daemon:
        yield f"http://127.0.0.1:{daemon.port}"


def run(name: str, *args: str) -> str:
    command = [sys.executable, EXAMPLES / name, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.slow
def test_the_example_with_threads(url: str) -> None:
    said = run("threads.py", url).splitlines()
    tries = [f"given back: job 7, try {number}" for number in (1, 2, 3)]
    assert said == [*tries, "put aside: job 7, receives", "19 jobs done"]


@pytest.mark.slow
def test_the_example_with_tasks(url: str) -> None:
    assert run("tasks.py", url) == "100 jobs done\n"
