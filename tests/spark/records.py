"""Real, unedited data that a machine has anyway: the records of the Debian package index, or the sources of Python."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path


def real_records(count: int | None) -> list[bytes]:
    if shutil.which("apt-cache") is not None:
        index = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=False, timeout=120).stdout
        records = [record for record in index.split(b"\n\n") if record.strip()]
        if records:
            return records[:count]
    return _functions(count)


def _functions(count: int | None) -> list[bytes]:
    """Where there is no package index: the standard library, cut where a definition begins."""
    found: list[bytes] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        found += [b"def " + part for part in path.read_bytes().split(b"\ndef ") if part.strip()]
    return found[:count]
