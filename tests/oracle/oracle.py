"""Whether the program still does the same: a stored digest of what each seed does to the disk and on the wire.

A change that moves or renames code leaves every digest as it was. One that asks the disk for anything else, in another
order or with other bytes, shows, whether or not it breaks a promise. In a digest are the calls to the disk, with paths,
sizes and a CRC of data, and the frames that AMQP's clients hear: nothing that a name in the code could change.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import logging
import multiprocessing
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from simulation.run import run_seed
from tests.amqp.lives import Lives

TREE: Final = Path(__file__).resolve().parent.parent.parent
PAGE: Final = Path(__file__).with_name("digests.json")
SEEDS: Final = {"simulation": 300, "amqp": 100}
"""Of each kind of run: how many seeds are written down, from 0."""
DIGITS: Final = 10
"""Of a digest. Two runs that differ have the same one in one case of a million million."""
BEFORE: Final = 5
"""So many calls are shown before the first that differs."""


class Run(NamedTuple):
    """One run: ``simulation:17``.

    Attributes:
        kind: of :data:`SEEDS`.
    """

    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.seed}"


Digests = dict[Run, str]


def every_run() -> list[Run]:
    """All that are written down."""
    return [Run(kind, seed) for kind, seeds in SEEDS.items() for seed in range(seeds)]


def calls(run: Run) -> list[str]:
    """What a run does, in order: a line for each call to the disk, and for each frame that a client hears."""
    lines: list[str] = []
    _do(run, lines.append)
    return lines


def digest(run: Run) -> str:
    """The digest of a run's calls."""
    return _digest_of(calls(run))


def digests(runs: Sequence[Run], processes: int) -> Iterator[tuple[Run, str]]:
    """The digest of each of some runs, by several processes."""
    if processes == 1:
        _silence()
        yield from ((run, digest(run)) for run in runs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _silence) as pool:
        yield from zip(runs, pool.imap(digest, runs, chunksize=4), strict=True)


def _do(run: Run, tell: Callable[[str], None]) -> None:
    if run.kind == "simulation":
        run_seed(run.seed, tell)
    else:
        Lives(run.seed, tell).run()


def _digest_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:DIGITS]


def _silence() -> None:
    """What mq logs of repairs and failures is not news here."""
    logging.getLogger("mq").setLevel(logging.CRITICAL)


# What is written down


def stored(page: Path = PAGE) -> Digests:
    """The digests as they were when they were last written down."""
    told: dict[str, dict[str, str]] = json.loads(page.read_text()) if page.exists() else {}
    return {Run(kind, int(seed)): digest for kind, seeds in told.items() for seed, digest in seeds.items()}


def write(found: Mapping[Run, str], page: Path = PAGE) -> None:
    """Write digests down, a line each."""
    told = {kind: {str(run.seed): found[run] for run in sorted(found) if run.kind == kind} for kind in SEEDS}
    page.write_text(json.dumps(told, indent=1) + "\n")


def differing(found: Mapping[Run, str], known: Mapping[Run, str]) -> list[Run]:
    """The runs that do something else than was written down, or are not written down."""
    return [run for run, digest in found.items() if known.get(run) != digest]


# What differs


def describe(differ: Sequence[Run], of: int, known: Mapping[Run, str]) -> str:
    """Which runs differ, where the first of them does, and what to do about it."""
    named = ", ".join(map(str, differ[:10])) + (", …" if len(differ) > 10 else "")
    return "\n".join(
        [
            f"{len(differ)} of {of} runs do something else than was written down: {named}",
            "",
            *_first_difference(differ[0], known.get(differ[0])),
            "",
            f"All of that run: python -m tests.oracle --calls {differ[0]}, in two work trees, and diff.",
            "If the change was meant to change what the disk or a client sees: make oracle-renew.",
            "If it was to move or rename code only, it did more than that.",
        ]
    )


def difference(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The first call that differs, with some before it; nothing where none does."""
    for at, (old, new) in enumerate(itertools.zip_longest(before, now, fillvalue="the end")):
        if old != new:
            same = [f"  {at + 1 - back:6}   {now[at - back]}" for back in range(min(at, BEFORE), 0, -1)]
            return [*same, f"  {at + 1:6} - {old}", f"  {at + 1:6} + {new}"]
    return []


def _first_difference(run: Run, known: str | None) -> list[str]:
    if known is None:
        return [f"{run} is not written down."]
    commit, before = _calls_when_written_down(run)
    if _digest_of(before) != known:
        return [f"{run} cannot be run as it was when it was written down, so its first difference is not shown here."]
    return [f"{run}, at commit {commit[:10]} (-) and now (+):", *difference(before, calls(run))]


def _calls_when_written_down(run: Run) -> tuple[str, list[str]]:
    """The commit that last wrote digests down, and the calls of a run with its code; nothing where there is none."""
    commit = _told(["git", "log", "-1", "--format=%H", "--", str(PAGE)], TREE).decode().strip()
    if not commit:
        return "", []
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(_told(["git", "archive", commit, "mq", "tests"], TREE))) as archive:
            archive.extractall(folder, filter="data")
        return commit, _told([sys.executable, "-m", "tests.oracle", "--calls", str(run)], folder).decode().splitlines()


def _told(command: Sequence[str], folder: str | Path) -> bytes:
    """What a program prints; nothing where it fails, or is not there."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    except OSError:
        return b""
    return done.stdout if done.returncode == 0 else b""
