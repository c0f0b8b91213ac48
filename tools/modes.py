"""Counts conditions on a mode in mq's file engine: how many cases a reader has to keep in mind.

``python tools/modes.py`` prints the conditions of each file of ``mq/storage/files``, the most first, and their sum;
``--lines`` prints each condition, too. Other folders or files may be named instead.

A *mode* is what is fixed while a root is open and decides how an operation is done: a trait of the file system, a log,
native calls, other processes on the root, and what follows from these for one batch. :data:`MODES` lists the attributes
and variables that hold one. A *condition* is the test of an ``if``, a ``while``, an ``assert``, a conditional
expression or a comprehension that names one of them; ``a or b`` and ``a and b`` outside of such a test count as well. A
test that names several modes is one condition.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

TREE: Final = Path(__file__).resolve().parent.parent
ENGINE: Final = TREE / "mq" / "storage" / "files"

MODES: Final = {
    # The file system
    "atomic_rename": "a rename is done or not, never half",
    "flushes": "a sync makes the disk write its cache",
    "folder_syncs": "the sync of a folder brings its names",
    "ordered": "changes of names reach the disk in order",
    "persistent": "files outlive a power cut",
    "remote": "other machines change it at the same time",
    "syncfs": "syncfs(2) makes everything durable",
    "xattrs": "files have extended attributes",
    # How a root is used
    "alone": "no other process serves it",
    "log": "batches are made durable by a log",
    "logged": "a log may be used",
    "native": "mq-native does the operations of a batch",
    "native_reads": "mq-native reads messages",
    "published_whole": "other processes look into new/",
    "sharing": "who else serves it",
    "strict": "every step is a move between folders",
    "sync_all": "every operation is durable",
    "has_side_files": "a message may have a side file",
    "wants_log": "a log is to be used",
    # What follows for one batch
    "barrier": "its files are synced one by one",
    "early": "its first outcomes are told before its last ones",
    "is_atomic": "its renames are done or not, never half",
    "links": "some of its messages are moved by a link",
    "must_flush": "all of it is made durable",
    "wants_files": "its files stay open until they are synced",
}
"""The name of each attribute or variable, without leading underscores, and what it says when it is set."""


class Condition(NamedTuple):
    """A condition on a mode.

    Attributes:
        line: its number in the file.
        modes: the modes that it names.
        text: the condition.
    """

    line: int
    modes: tuple[str, ...]
    text: str


def conditions_of(source: str) -> list[Condition]:
    """The conditions on a mode in a module."""
    found: list[Condition] = []
    for test in _tests(ast.parse(source)):
        names = {_name_of(node) for node in ast.walk(test)}
        modes = tuple(sorted(names & MODES.keys()))
        if modes:
            found.append(Condition(test.lineno, modes, ast.unparse(test)))
    return sorted(found)


def _tests(tree: ast.AST) -> Iterator[ast.expr]:
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):  # from the outside in: what is inside of a test is no condition of its own
        tests: list[ast.expr] = []
        if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = node.ifs
        elif isinstance(node, ast.BoolOp):
            tests = [node]
        for test in tests:
            if test not in inside:
                inside.update(ast.walk(test))
                yield test


def _name_of(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr.lstrip("_")
    return node.id.lstrip("_") if isinstance(node, ast.Name) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ENGINE], help="folders or files; default the engine's")
    parser.add_argument("--lines", action="store_true", help="print each condition")
    given = parser.parse_args()
    files = [file for path in given.paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
    found = {file: conditions_of(file.read_text(encoding="utf-8")) for file in files}
    for file, conditions in sorted(found.items(), key=lambda pair: -len(pair[1])):
        if not conditions:
            continue
        print(f"{len(conditions):5}  {file.relative_to(TREE) if file.is_relative_to(TREE) else file}")
        for condition in conditions if given.lines else ():
            print(f"       {condition.line}: {', '.join(condition.modes)}: {condition.text}")
    print(f"{sum(map(len, found.values())):5}  in all")


if __name__ == "__main__":
    main()
