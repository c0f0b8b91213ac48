"""docs/cli.md is true: its tables name what exists, its session happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from mq.cli import VERBS, load_verb
from mq.cli.commands import CANNOT_START, CANNOT_WRITE, EMPTY, FINDINGS, INTERRUPTED, NOT_NOW, REFUSED
from mq.settings import LINES
from mq.storage.files.doctor import FindingKind
from tests.documents import blocks, commands, mask
from tests.e2e.daemon import TREE, Daemon

PAGE = TREE / "docs" / "cli.md"
TEXT = PAGE.read_text()
ROW = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
OURS = [name for name in VERBS if name not in ("serve", "user", "vsqs")]


def test_it_lists_every_verb() -> None:
    assert set(VERBS) <= set(ROW.findall(TEXT))


def test_it_lists_every_finding() -> None:
    assert {finding.value for finding in FindingKind} <= set(ROW.findall(TEXT))


def test_it_lists_every_status() -> None:
    statuses = (0, REFUSED, CANNOT_START, EMPTY, NOT_NOW, FINDINGS, CANNOT_WRITE)
    assert sorted(map(str, statuses)) == sorted(re.findall(r"^\| (\d) \|", TEXT, re.MULTILINE))
    assert f"| {INTERRUPTED}, 143 |" in TEXT


def test_its_flags_exist() -> None:
    others = {"--xattrs", "--unix-socket"}  # of tar, and of curl
    known = {"--help"} | others | {line.flag for line in LINES}
    for name in OURS:
        command = load_verb(name)
        for each in command.commands.values() if isinstance(command, click.Group) else [command]:
            known |= {flag for parameter in each.params for flag in parameter.opts}
    assert set(re.findall(r"(--[a-z][a-z-]+)", TEXT)) <= known


COMMAND = re.compile(r"(?:^|[`(|&;] ?|\\$ )mq(?P<words> (?:[a-z][a-z-]+|--)[^`\n|&;)#]*)", re.MULTILINE)
"""A command of mq in a block or in a line of text."""


def test_commands_on_users_pages_have_flags_that_exist() -> None:
    of_the_daemon = {"--config", "--help", "--version", *(line.flag for line in LINES)}
    wrong, seen = [], 0
    for page in sorted([*(TREE / "docs").glob("*.md"), TREE / "README.md"]):
        for words in COMMAND.findall(page.read_text().replace("\\\n", " ")):
            name = words.split()[0]
            known = flags_of(name) if name in VERBS and name != "serve" else of_the_daemon
            flags = set(re.findall(r"(?<=\s)(--[a-z][a-z-]+)", words.partition(" --exec")[0] + " "))
            seen += bool(flags)
            wrong += [f"{page.name}: mq{words}: {flag}" for flag in sorted(flags - known - {"--users", "--help"})]
    assert wrong == []
    assert seen > 60


def flags_of(name: str) -> set[str]:
    command = load_verb(name)
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    return {flag for each in commands for parameter in each.params for flag in parameter.opts}


@pytest.mark.in_turn(2)
@pytest.mark.slow
def test_its_session_happens(temp_root: Path, tmp_path: Path) -> None:
    (session,) = blocks(PAGE, "console")
    program = tmp_path / "mq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mq "$@"\n')
    program.chmod(0o755)
    with Daemon(temp_root, tmp_path / "log") as daemon:
        here = {"MQ_URL": f"http://127.0.0.1:{daemon.port}", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        for command, printed in commands(session):
            shown = command.replace("/tmp/work.tar", f"{tmp_path}/work.tar")
            done = subprocess.run(
                ["bash", "-c", shown], env=os.environ | here, cwd=TREE, capture_output=True, text=True, timeout=60
            )
            assert done.stderr == ""
            assert mask(done.stdout) == mask(printed), command
