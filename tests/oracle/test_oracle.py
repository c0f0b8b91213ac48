"""Seeds do what is written down of them, and the oracle sees when one does anything else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from tests.commit import commit_number
from tests.oracle import __main__ as program
from tests.oracle import oracle
from tests.oracle.oracle import (
    PAGE,
    SEEDS,
    TREE,
    Run,
    calls,
    describe,
    difference,
    differing,
    digest,
    every_run,
    stored,
    write,
)
from tests.simulation.planting import Bug, planted

SOME: Final = {"simulation": 12, "amqp": 4}
"""So many seeds are compared with each commit; ``make oracle`` compares all."""

IN_A_PROCESS: Final = """
import logging
from tests.oracle.oracle import Run, digest
logging.disable()
print([digest(Run(kind, seed)) for kind in ("simulation", "amqp") for seed in range(5, 8)])
"""

SEEN: Final = {
    "one fsync more": (
        "simulation",
        Bug("sync", "_sync_by(calls.fsync, fd)", "_sync_by(calls.fsync, fd); calls.fsync(fd)"),
        "fsync /",
    ),
    "one fsync less": ("simulation", Bug("make_folder", "sync_folder(calls, path)", "pass"), "fsync /mq/queues"),
    "another order": (
        "simulation",
        Bug("Barrier._sync_folders", "sorted(...)", "sorted(..., reverse=True)"),
        r"(fsync|open) /mq/",
    ),
    "another byte": (
        "simulation",
        Bug("write_message", "folders.calls.write(fd, body)", "folders.calls.write(fd, b'!' + body[1:])"),
        r"write /mq/\S+ \d+ \w{8}",
    ),
    "another name": (
        "simulation",
        Bug("Layout.stage", "f'{self.state}/stage'", "f'{self.state}/staged'"),
        "mkdir /mq/state/staged",
    ),
    "one byte of a frame": (
        "amqp",
        Bug("delivery", "_TAG.pack(..., redelivered)", "_TAG.pack(..., True)"),
        r"frame 1 Basic.Deliver \d+ \w{8}",
    ),
}
"""What is done otherwise: in which runs, the bug that does it, and the first call that differs."""

NOT_SEEN: Final = {
    "other names": Bug("sync", "_sync_by(calls.fsync, fd)", "system, file = calls, fd; _sync_by(system.fsync, file)"),
    "another function": Bug("Batch.run", "self._write_and_move()", "(lambda batch: batch._write_and_move())(self)"),
}


@pytest.fixture
def some_runs() -> list[Run]:
    """Of each kind as many, others with each commit."""
    begin = {kind: commit_number() % seeds for kind, seeds in SEEDS.items()}
    return [Run(kind, (begin[kind] + at) % SEEDS[kind]) for kind, few in SOME.items() for at in range(few)]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_seeds_do_is_what_is_written_down(some_runs: list[Run]) -> None:
    known = stored()
    differ = differing({run: digest(run) for run in some_runs}, known)
    assert not differ, describe(differ, len(some_runs), known)


def test_every_seed_is_written_down() -> None:
    known = stored()
    assert list(known) == every_run()
    assert len(set(known.values())) == len(known), "two runs that do the same"


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("what", SEEN)
def test_what_is_done_otherwise_is_seen(what: str) -> None:
    kind, bug, first = SEEN[what]
    run = next(run for run in (Run(kind, seed) for seed in range(20)) if _differs(run, bug))
    well = calls(run)
    with planted(bug):
        shown = difference(well, calls(run))
    assert re.search(rf" \+ {first}", shown[-1]), shown
    assert calls(run) == well


def _differs(run: Run, bug: Bug) -> bool:
    well = digest(run)
    with planted(bug):
        return digest(run) != well


@pytest.mark.slow
@pytest.mark.parametrize("what", NOT_SEEN)
def test_what_is_only_written_otherwise_is_not_seen(what: str) -> None:
    runs = [Run("simulation", seed) for seed in range(3)]
    well = [digest(run) for run in runs]
    with planted(NOT_SEEN[what]):
        assert [digest(run) for run in runs] == well


@pytest.mark.slow
def test_a_run_does_the_same_in_every_process() -> None:
    """Under two orders of sets and dictionaries of text."""
    told = {
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS],
            cwd=TREE,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=100,
        ).stdout
        for hash_seed in ("0", "4711")
    }
    assert len(told) == 1


# What it says


def test_digests_are_read_as_they_are_written(tmp_path: Path) -> None:
    page = tmp_path / "digests.json"
    write({Run("amqp", 10): "aa", Run("amqp", 9): "bb", Run("simulation", 2): "cc"}, page)
    assert [*stored(page).items()] == [
        (Run("simulation", 2), "cc"),
        (Run("amqp", 9), "bb"),
        (Run("amqp", 10), "aa"),
    ]
    assert stored(tmp_path / "nowhere") == {}


def test_the_first_difference_is_shown_with_what_comes_before_it() -> None:
    before = [f"call {number}" for number in range(20)]
    now = [*before[:10], "fsync /mq", *before[10:]]
    assert difference(before, now) == [
        *(f"  {number + 1:6}   call {number}" for number in range(5, 10)),
        "      11 - call 10",
        "      11 + fsync /mq",
    ]
    assert difference(before, before[:-1])[-1] == "      20 + the end"
    assert difference(before[:1], ["other"]) == ["       1 - call 0", "       1 + other"]
    assert difference(before, before) == []


@pytest.fixture
def two_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An oracle that knows two short runs, and its page."""
    page = tmp_path / PAGE.name
    monkeypatch.setattr(program, "every_run", lambda: [Run("simulation", 1), Run("simulation", 3)])
    monkeypatch.setattr(program, "stored", lambda: stored(page))
    monkeypatch.setattr(program, "write", lambda found: write(found, page))
    return page


def ask(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(program.main, [*arguments, "--processes", "1"], catch_exceptions=False)
    return done.exit_code, done.output


@pytest.mark.slow
def test_digests_are_renewed_and_compared(two_runs: Path) -> None:
    status, told = ask()
    assert status == 1
    assert "2 of 2 runs do something else" in told
    assert "simulation:1 is not written down" in told
    assert ask("--renew") == (0, "2 digests written to digests.json, 2 of them new or changed\n")
    assert ask() == (0, "2 runs do what was written down\n")
    with planted(SEEN["one fsync more"][1]):
        status, told = ask()
    assert status == 1
    assert "2 of 2 runs do something else than was written down: simulation:1, simulation:3\n" in told
    assert "make oracle-renew" in told
    assert "python -m tests.oracle --calls simulation:1" in told


@pytest.mark.slow
def test_the_first_difference_is_that_to_the_code_that_was_written_down(
    two_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit is asked by its own code; here it is that of now, without the bug."""
    ask("--renew")
    archived = calls(Run("simulation", 1))
    monkeypatch.setattr(oracle, "_calls_when_written_down", lambda run: ("0123456789abcdef", archived))
    with planted(SEEN["one fsync more"][1]):
        told = ask()[1].splitlines()
    at = told.index("simulation:1, at commit 0123456789 (-) and now (+):")
    first = next(line for line in told[at:] if " + " in line)
    assert first.split(" + ")[1] == "fsync /"
    assert first.split(" + ")[1] in told[told.index(first) - 2], "the same once more"


def test_the_calls_of_one_run_are_printed() -> None:
    status, told = ask("--calls", "simulation:1")
    assert status == 0
    assert told.splitlines() == calls(Run("simulation", 1))
    assert "fsync /mq\n" in told
