"""Every verb of the program over an output that is full, closed, or whose reader has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click
import pytest

from mq import cli
from mq.client import Client
from tests.e2e import prepared
from tests.e2e.daemon import TREE, Daemon

pytestmark = pytest.mark.slow

DRIVER: Final = """
import importlib, json, os, sys

cases, kind = json.loads(sys.argv[1]), sys.argv[2]
from mq import cli
for name in cli.VERBS:
    cli.load_verb(name)
done = []
for args in cases:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(writing, 2)
        os.close(reading)
        match kind:
            case "full":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
            case "closed":
                os.close(1)
                sys.stdout = sys.__stdout__ = None
            case "gone":
                nobody, pipe = os.pipe()
                os.close(nobody)
                os.dup2(pipe, 1)
            case "mute":
                os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
                os.close(2)
                sys.stderr = sys.__stderr__ = None
        try:
            cli.main(args, prog_name="mq")
        except SystemExit as end:
            sys.stdout.flush()  # as the interpreter does
            sys.stderr.flush()
            os._exit(end.code or 0)
        os._exit(99)
    os.close(writing)
    with open(reading) as errors:
        text = errors.read()
    done.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), text])
print(json.dumps(done))
"""
"""Calls the program with one kind of output for each list of arguments, each in a process of its own."""

ENDS: Final = {
    "full": (6, "mq: cannot write to standard output: No space left on device\n"),
    "closed": (6, "mq: cannot write to standard output: Bad file descriptor\n"),
    "gone": (141, ""),
    "mute": (6, ""),
}
"""Kind of output -> the exit status, and what standard error has."""

PRINTING: Final = [
    "send q -m x",
    "send q --json -m x",
    "receive q",
    "receive q --json",
    "receive q --keep",
    "peek q",
    "peek q --json",
    "purge dead --yes",
    "queues",
    "queues --json",
    "queue show q",
    "queue show q --json",
    "redrive dead",
    "move dead q",
    "schedule list",
    "schedule show often",
    "export q -",
    "export q - --format tar",
    "import dead FOLDER/archive",
    "top --once",
    "connections",
    "connections --json",
    "logging",
    "clock",
    "bench --duration 0.1 --clients 1",
    "user add NEW --users FOLDER/users.toml",
    "user aws-key me --users FOLDER/users.toml",
    "user limit me --users FOLDER/users.toml",
    "user list --users FOLDER/users.toml",
    "user token me --users FOLDER/users.toml",
    "certificate FOLDER/NEW",
    "doctor ROOT --pause 0",
    "backup ROOT FOLDER/NEW",
    "restore FOLDER/backup --list",
    "restore FOLDER/backup FOLDER/NEW",
    "vsqs send FOLDER/vsqs --create",
    "vsqs receive FOLDER/vsqs",
    "vsqs size FOLDER/vsqs",
]
"""Commands that print something when all goes well."""

SILENT: Final = {
    *("delete", "reschedule", "pause", "resume", "queue create", "queue delete", "queue set", "schedule delete"),
    *("schedule put", "user remove", "user retire", "vsqs delete"),
    "consumers",  # prints nothing if there are none
    "serve",  # what it says is for standard error
    *("cluster check", "cluster drain", "cluster replace", "cluster status"),  # they print, and need a cluster
}
"""The others: only what ``--help`` prints is looked at."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command that does something."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


COMMANDS: Final = list(leaves(cli.main))


def ends(cases: list[list[str]], kind: str, **environment: str) -> list[tuple[int, str]]:
    """How each call ended: its exit status, and what it wrote to standard error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")} | environment
    command = [sys.executable, "-c", DRIVER, json.dumps(cases), kind]
    ran = subprocess.run(command, cwd=TREE, env=env, input=b"x", capture_output=True, timeout=200, check=False)
    assert ran.returncode == 0, ran.stderr
    found: list[Any] = json.loads(ran.stdout)
    return [(status, error) for status, error in found]


def test_every_command_prints_or_is_silent() -> None:
    printing = {" ".join(path) for path in COMMANDS for line in PRINTING if [*path] == line.split()[: len(path)]}
    assert printing.isdisjoint(SILENT)
    assert printing | SILENT == {" ".join(path) for path in COMMANDS}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", ENDS)
def test_help_that_cannot_be_written_is_one_line(kind: str) -> None:
    cases = [["--help"], ["--version"], *([*path, "--help"] for path in COMMANDS)]
    assert ends(cases, kind) == [ENDS[kind]] * len(cases)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", ENDS)
def test_output_that_cannot_be_written_is_one_line(kind: str, tmp_path: Path) -> None:
    with Daemon(tmp_path / "root", tmp_path / "log") as daemon, Client(f"http://127.0.0.1:{daemon.port}") as client:
        _prepare(client, daemon, tmp_path)
        words = {"ROOT": str(daemon.root), "FOLDER": str(tmp_path)}
        cases = [_filled(line, number, words) for number, line in enumerate(PRINTING)]
        done = ends(cases, kind, MQ_URL=f"http://127.0.0.1:{daemon.port}")
        done = [(status, _without_notes(error)) for status, error in done]
        assert dict(zip(PRINTING, done, strict=True)) == dict.fromkeys(PRINTING, ENDS[kind])
        bodies = [client.stream("q") for _ in range(2)]
        assert all(bodies), "what could not be printed was not removed"


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_shell_sees_one_line(redirection: str) -> None:
    command = f"{sys.executable} -m mq --help {redirection}"
    done = subprocess.run(["sh", "-c", command], cwd=TREE, capture_output=True, text=True, timeout=60, check=False)
    kind = "closed" if redirection == ">&-" else "full"
    assert (done.returncode, done.stderr) == ENDS[kind]


def test_a_pipe_that_is_full_for_now_is_waited_for() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as reader, open(writing, "wb", buffering=0) as writer:
        os.set_blocking(writing, False)
        with suppress(BlockingIOError):
            while True:
                os.write(writing, bytes(4096))
        command = [sys.executable, "-m", "mq", "--help"]
        with subprocess.Popen(command, cwd=TREE, stdout=writer, stderr=subprocess.PIPE) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            writer.close()
            text = reader.read()
            assert process.stderr is not None
            assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert text.strip(b"\0").startswith(b"Usage: mq")


def test_a_body_is_not_read_from_a_closed_input() -> None:
    command = f"{sys.executable} -m mq send q <&-"
    done = subprocess.run(["sh", "-c", command], cwd=TREE, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, "mq: standard input is closed. See mq send --help\n")


def _prepare(client: Client, daemon: Daemon, folder: Path) -> None:
    for queue in ("q", "dead"):
        client.create_queue(queue)
    for _ in range(2):
        client.publish("q", "hello\n")
    (folder / "archive").write_text('{"body": "x"}\n')
    (folder / "vsqs").mkdir()
    url = f"http://127.0.0.1:{daemon.port}"
    for line in (
        f"schedule put often q --every 3600 -m x --url {url}",
        f"user add me --right administer=* --users {folder}/users.toml",
        f"backup {daemon.root} {folder}/backup",
        f"vsqs send {folder}/vsqs",
    ):
        command = [sys.executable, "-m", "mq", *line.split()]
        prepared.run(command, cwd=TREE, input=b"x", capture_output=True, timeout=60, check=True)


def _without_notes(error: str) -> str:
    """Standard error without what a verb says of a folder or a user."""
    notes = ("is on ext4", "has no rights yet")
    return "".join(line for line in error.splitlines(keepends=True) if not any(note in line for note in notes))


def _filled(line: str, number: int, words: dict[str, str]) -> list[str]:
    for word, meaning in (words | {"NEW": f"new{number}"}).items():
        line = line.replace(word, meaning)
    return line.split()
