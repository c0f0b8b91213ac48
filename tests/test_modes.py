"""The tool that counts conditions on a mode finds them, and mq's file engine gets no more of them."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Final

from tools.modes import ENGINE, TREE, conditions_of

MOST: Final = 40
MOST_OF_AN_ENGINE: Final = 15
MOST_OF_A_FILE_OF_AN_ENGINE: Final = 4
MOST_LINES: Final = 400


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
    counts = {file: len(conditions_of(file.read_text(encoding="utf-8"))) for file in sorted(ENGINE.rglob("*.py"))}
    assert sum(counts.values()) <= MOST, counts
    for engine in ("logged", "stepwise"):
        of_engine = {file.name: count for file, count in counts.items() if file.parent.name == engine}
        assert of_engine
        assert max(of_engine.values()) <= MOST_OF_A_FILE_OF_AN_ENGINE, of_engine
        assert sum(of_engine.values()) <= MOST_OF_AN_ENGINE, of_engine


def test_the_table_ends_with_the_sum() -> None:
    command = [sys.executable, str(TREE / "tools" / "modes.py"), "mq/storage/files/logged/steps.py", "--lines"]
    printed = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=60, check=True).stdout
    *rows, last = printed.splitlines()
    conditions = [row for row in rows if row.startswith("       ")]
    assert conditions
    assert last == f"{len(conditions):5}  in all"


def test_the_folders_of_a_root_have_few_attributes() -> None:
    source = (ENGINE / "folders.py").read_text(encoding="utf-8")
    init = source[source.index("    def __init__(", source.index("class Folders:")) :]
    init = init[: init.index("\n    def ")]
    attributes = set(re.findall(r"^        self\.(\w+)", init, re.MULTILINE))
    assert "layout" in attributes
    assert len(attributes) <= 10, attributes


def test_each_module_of_an_engine_is_short() -> None:
    lengths = {
        f"{engine}/{file.name}": len(file.read_text(encoding="utf-8").splitlines())
        for engine in ("logged", "stepwise")
        for file in (ENGINE / engine).glob("*.py")
    }
    assert {"logged/record.py", "logged/log.py", "stepwise/batch.py"} <= set(lengths)
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}
