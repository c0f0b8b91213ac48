"""The tool that counts conditions on a mode finds them, and mq's file engine gets no more of them."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tools.modes import ENGINE, TREE, conditions_of

MOST: Final = 160
MOST_OF_A_FILE: Final = 55
"""As counted when the tool was written. Lower both when conditions go."""


def test_conditions_on_a_mode_are_counted_once_each() -> None:
    source = """
if self._folders.log is None or self._is_atomic:
    x = 1 if queue else 2
while early.is_over and queue:
    pass
y = [a for a in b if mount.ordered and a]
z = sync or mount.remote
assert self._names
"""
    assert [(found.line, found.modes) for found in conditions_of(source)] == [
        (2, ("is_atomic", "log")),
        (4, ("early",)),
        (6, ("ordered",)),
        (7, ("remote",)),
    ]


def test_the_file_engine_gets_no_more_modes() -> None:
    counts = {file.name: len(conditions_of(file.read_text(encoding="utf-8"))) for file in sorted(ENGINE.rglob("*.py"))}
    assert counts
    assert max(counts.values()) <= MOST_OF_A_FILE, counts
    assert sum(counts.values()) <= MOST, counts


def test_the_table_ends_with_the_sum() -> None:
    command = [sys.executable, str(TREE / "tools" / "modes.py"), "mq/storage/files/batch.py", "--lines"]
    printed = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=True).stdout
    *rows, last = printed.splitlines()
    conditions = [row for row in rows if row.startswith("       ")]
    assert conditions
    assert last == f"{len(conditions):5}  in all"
