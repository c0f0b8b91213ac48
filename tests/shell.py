"""One shell for all the blocks of a page: what is pasted into it goes on where the block before has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

_MARK: Final = "--end-of-block--"
_STOP_SECONDS: Final = 60


class Answer(NamedTuple):
    """What a block printed on standard output, and the exit status of its last command."""

    status: int
    out: str


class Shell:
    """A bash that has ``mq``, ``python3`` and ``curl`` in its path, and lets nothing be installed.

    Args:
        folder: its own; where it stands, and where its standard error goes.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self._errors = folder / "errors"
        programs = folder / "programs"
        programs.mkdir()
        write_program(programs / "mq", f'exec {sys.executable} -m mq "$@"')
        write_program(programs / "python3", f'exec {sys.executable} "$@"')
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                ["bash"],
                cwd=folder,
                env={**kept, "PATH": f"{programs}:{os.environ['PATH']}", **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End it, and all that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=_STOP_SECONDS)

    def paste(self, block: str) -> Answer:
        """Run the lines of a block, as if they had been pasted; wait until the last one has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{block.rstrip()}\necho {_MARK}$?\n")
        self._process.stdin.flush()
        out = ""
        for line in self._process.stdout:
            before, mark, status = line.partition(_MARK)
            out += before
            if mark:
                return Answer(int(status), out)
        raise AssertionError(f"the shell has ended:\n{self.errors}")

    @property
    def errors(self) -> str:
        """What came on standard error until now, from the shell and from all that it has started."""
        return self._errors.read_text()


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
