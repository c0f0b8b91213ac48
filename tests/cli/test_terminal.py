"""Output on a terminal: no message, name or error of others commands it; elsewhere every byte is as it is."""

from __future__ import annotations

import ast
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mq.cli
from mq.cli.terminal import aligned, escape
from mq.client import Client, Outgoing
from tests.cases import for_each
from tests.e2e import prepared
from tests.e2e.daemon import Daemon

COMMANDS = "\x00\x07\x08\r\x1b\x7f\x80\x9b\x9d\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041"
PLAIN = "a\tb\nГрад 北京　空白 \u00a0 café 👩\u200d🚀 \U0001f600"


@for_each("character", COMMANDS)
def test_a_character_that_commands_a_terminal_is_escaped_as_json_has_it(character: str) -> None:
    text = escape(f"a{character}b")
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(f'"{text}"') == f"a{character}b"


def test_text_that_commands_nothing_stays_as_it_is() -> None:
    assert escape(PLAIN) == PLAIN


def test_a_cell_of_a_table_stays_on_its_line() -> None:
    assert aligned(("A", "B"), [("x\n\x1b", "\t")]) == ["A          B", "x\\n\\u001b  \\t"]


@for_each("path", sorted(Path(mq.cli.__file__).parent.glob("*.py")))
def test_all_that_is_printed_goes_through_the_terminal_module(path: Path) -> None:
    """But the screen of `mq top`, which is made of escaped cells and clears the terminal itself."""
    if path.stem in ("terminal", "top"):
        return
    tree = ast.parse(path.read_text())
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"click.echo", "click.secho", "print", "sys.stdout.write", "sys.stdout.buffer.write"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("terminal")
    with Daemon(folder / "root", folder / "log") as daemon:
        yield daemon
        daemon.stop()


@pytest.fixture(scope="module")
def message(daemon: Daemon) -> str:
    """The id of one that commands the terminal, in the queue `q`; the schedule `s` publishes the same."""
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.create_queue("q")
        client.put_schedule("s", "q", Outgoing(EVIL.encode()), cron="0 3 * * *")
        return client.publish("q", EVIL, attributes={"kind": "x"}).id


def run(daemon: Daemon, *args: str, body: bytes = b"") -> bytes:
    command = [sys.executable, "-m", "mq", *args, "--url", f"http://127.0.0.1:{daemon.port}"]
    return prepared.run(command, input=body, capture_output=True, check=True, timeout=60).stdout


def run_on_terminal(daemon: Daemon, *args: str) -> str:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mq", *args, "--url", f"http://127.0.0.1:{daemon.port}"]
    done = prepared.run(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, check=False, timeout=60)
    os.close(theirs)
    assert done.returncode in (0, 1)
    found = b""
    try:
        while chunk := os.read(ours, 65536):
            found += chunk
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    return found.decode().replace("\r\n", "\n")


EVIL = "a\u009b2J\u202eb\x1b[31m\u2028c 北京"


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("peek", "q"),
        ("peek", "q", "--json"),
        ("peek", "q", "ID"),
        ("peek", "q", "ID", "--json"),
        ("receive", "q", "--keep", "--json", "--visibility", "1", "--wait", "30"),
        ("receive", "q", "--keep", "--visibility", "1", "--wait", "30"),  # until it is back from the one before
        ("export", "q"),
        ("schedule", "show", "s"),
        ("peek", "\u009bnone"),
    ],
    ids=" ".join,
)
def test_on_a_terminal_no_command_commands_it(daemon: Daemon, message: str, args: tuple[str, ...]) -> None:
    text = run_on_terminal(daemon, *(message if each == "ID" else each for each in args))
    assert text
    assert not [each for each in text if each != "\n" and escape(each) != each]


@pytest.mark.slow
def test_elsewhere_every_byte_is_as_it_is(daemon: Daemon) -> None:
    run(daemon, "queue", "create", "exact")
    body = EVIL.encode() + b"\xff\r\n\x00"
    id = run(daemon, "send", "exact", body=body).decode().strip()
    assert run(daemon, "peek", "exact", id) == body
    assert json.loads(run(daemon, "peek", "exact", "--json"))["id"] == id
    assert run(daemon, "receive", "exact") == body
