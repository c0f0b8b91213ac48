"""A real daemon whose system calls fail when a test says so: libfiu stands between it and its C library.

libfiu does not know renameat2(2), by which mq moves names: a test that wants renames to fail takes a daemon on a C
library without that call. Such a daemon is a program of its own: ``python -m tests.faults.injected``, then as mq.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from mq.cli import main
from mq.storage.files.calls import LinuxCalls
from tests.e2e.daemon import Daemon

_LIBRARIES: Final = [Path("/usr/lib/fiu") / f"fiu_{name}_preload.so" for name in ("run", "posix")]
_CONTROL_SECONDS: Final = 10.0


def missing() -> str:
    """Why no call can be made to fail here; empty when it can."""
    if shutil.which("fiu-ctrl") is None or not all(map(os.path.exists, _LIBRARIES)):
        return "there is no libfiu: the package fiu-utils has it"
    return ""


class Injected(Daemon):
    """A daemon under libfiu.

    Args:
        control: a folder for the pipes by which it is told what fails.
        root, log, arguments: as for any daemon.
    """

    def __init__(self, control: Path, root: Path, log: Path, *arguments: str) -> None:
        super().__init__(root, log, *arguments)
        self._control = control / "fiu"

    def fail(self, point: str, number: int) -> None:
        """Let every call of that name fail with this errno, from now on."""
        self._tell(f"enable name=posix/io/{point},failinfo={number}")

    def heal(self, point: str) -> None:
        """Let it work again."""
        self._tell(f"disable name=posix/io/{point}")

    def _program(self) -> list[str]:
        return [sys.executable, "-m", "tests.faults.injected"]

    def _environment(self) -> dict[str, str]:
        preload = " ".join(map(str, _LIBRARIES))
        return {**super()._environment(), "LD_PRELOAD": preload, "FIU_CTRL_FIFO": str(self._control), "FIU_ENABLE": ""}

    def _tell(self, command: str) -> None:
        told = ["fiu-ctrl", "-f", str(self._control), "-c", command, str(self.pid)]
        subprocess.run(told, check=True, capture_output=True, timeout=_CONTROL_SECONDS)


def _without_renameat2(calls: LinuxCalls, native: object = None) -> None:
    _init(calls)
    calls._rename_noreplace = False


if __name__ == "__main__":
    _init = LinuxCalls.__init__
    LinuxCalls.__init__ = _without_renameat2  # type: ignore[method-assign]
    main(prog_name="mq")
