"""The daemon with a bug planted in it, or with a small log: ``python -m tests.crash.launch MUTANT``, then as mq."""

from __future__ import annotations

import sys
from pathlib import Path

import mq.storage.files.start
from mq.cli import main
from tests.crash.mutants import planted
from tests.crash.workload import LOG_BYTES
from tests.e2e.daemon import Daemon


class Launched(Daemon):
    """A daemon with a bug, whose log, where it has one, is so small that there are many checkpoints.

    Args:
        mutant: which one; empty for none.
    """

    def __init__(self, mutant: str, root: Path, log: Path, *arguments: str) -> None:
        super().__init__(root, log, *arguments)
        self._mutant = mutant

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.crash.launch", self._mutant]


if __name__ == "__main__":
    mq.storage.files.start.SMALLEST = mq.storage.files.start.LARGEST = LOG_BYTES  # type: ignore[misc]
    with planted(sys.argv.pop(1)):
        main(prog_name="mq")
