"""The daemon with a bug planted in it. A program of its own: ``python -m tests.crash.launch MUTANT``, then as mq."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from mq.cli import main
from tests.crash.mutants import planted
from tests.e2e.daemon import START_SECONDS, TREE, Daemon, DaemonFailed

_POLL_SECONDS = 0.02


class Launched(Daemon):
    """A daemon with a bug.

    Args:
        mutant: which one.
        root, log, arguments: as for any daemon.
    """

    def __init__(self, mutant: str, root: Path, log: Path, *arguments: str) -> None:
        super().__init__(root, log, *arguments)
        self._mutant = mutant

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [sys.executable, "-m", "tests.crash.launch", self._mutant]
        command += ["--root", str(self.root), "--port", "0", *self._arguments]
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(command, cwd=TREE, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(begin):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill(by_us=False)
                raise DaemonFailed(f"not ready with {self._mutant!r}:\n{self.last_words()}")
            time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    with planted(sys.argv.pop(1)):
        main(prog_name="mq")
