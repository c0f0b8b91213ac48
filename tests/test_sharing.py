"""Tests are shared out among processes as the conftest at the top says; here a few, in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TREE = Path(__file__).resolve().parent.parent

SETTINGS = """
[pytest]
markers =
    slow: as here
    proof: as here
addopts = -p no:cacheprovider -m "not proof"
"""

TWELVE = """
import os, time, pytest

@pytest.mark.MARK
@pytest.mark.parametrize("number", range(12))
def test_it(request, number):
    with open("ran", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], request.node.path.name, file=file)
    time.sleep(0.02)  # until the other process has some, too
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve tests in each of four files."""
    shutil.copy(TREE / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    for name, mark in {
        "e2e/kill": "slow",
        "spark/session": "slow",
        "pipelines/b": "slow",
        "storage/c": "proof",
    }.items():
        path = tmp_path / "tests" / f"{name.replace('/', '/test_')}.py"
        path.parent.mkdir(parents=True)
        path.write_text(TWELVE.replace("MARK", mark))
    return tmp_path


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "--dist=loadfile", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def processes(folder: Path) -> dict[str, set[str]]:
    """By file: in which processes its tests ran."""
    found: dict[str, set[str]] = {}
    for process, file in map(str.split, (folder / "ran").read_text().splitlines()):
        found.setdefault(file, set()).add(process)
    return found


def test_a_group_runs_in_one_process_and_a_long_file_in_all(folder: Path) -> None:
    told = run(folder)
    ran = processes(folder)
    assert sorted(ran) == ["test_b.py", "test_kill.py", "test_session.py"]
    assert len(ran["test_session.py"] | ran["test_b.py"]) == 1
    assert "36 passed" in told.splitlines()[-1]
    (folder / "ran").unlink()
    run(folder, "tests/e2e")
    assert len(processes(folder)["test_kill.py"]) == 2


def test_quick_leaves_out_what_proof_alone_runs_and_proof_runs_all(folder: Path) -> None:
    quick = folder / "tests" / "test_quick.py"
    quick.write_text("def test_it():\n    pass\n")
    assert "1 passed" in run(folder, "-m", "not slow").splitlines()[-1]
    assert "49 passed" in run(folder, "-m", "").splitlines()[-1]


def test_the_slowest_groups_are_named(folder: Path) -> None:
    for number in range(9):
        (folder / "tests" / f"test_more{number}.py").write_text("def test_it():\n    pass\n")
    slowest = run(folder).partition("the 10 slowest groups of 11")[2].splitlines()[1:13]
    assert re.fullmatch(r"without a test before the end: gw0 \d+\.\d s, gw1 \d+\.\d s", slowest.pop())
    assert slowest.pop().endswith(" on a processor: all")
    assert slowest[0].endswith(" on a processor: spark")
    assert slowest[1].endswith(" on a processor: tests/e2e/test_kill.py")
    assert all(" on a processor: tests/test_more" in line for line in slowest[2:])


class Item:
    """A test of a file, marked with ``in_turn(3)``."""

    def __init__(self, number: int) -> None:
        self.nodeid = f"tests/test_d.py::test_it[{number}]"
        self.marks: list[str] = []

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return pytest.mark.in_turn(3).mark if name == "in_turn" else None

    def add_marker(self, name: str) -> None:
        self.marks.append(name)


def test_each_commit_runs_another_part_of_tests_in_turn(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin: Any = request.config.pluginmanager.get_plugin(str(TREE / "conftest.py"))
    seen: list[str] = []
    for commit in range(100, 103):
        monkeypatch.setattr("tests.commit.commit_number", lambda commit=commit: commit)
        items = [Item(number) for number in range(12)]
        plugin.leave_out_of_turn(items)
        ran = [item.nodeid for item in items if not item.marks]
        assert len(ran) == 4
        assert {mark for item in items for mark in item.marks} == {"proof"}
        seen += ran
    assert sorted(seen) == sorted(item.nodeid for item in items)
