"""docs/client.md is true: its tables name what exists, its program runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mq.client
from mq.client import AsyncClient, Client, ClientError, amqp
from tests.cases import for_each
from tests.documents import blocks
from tests.e2e.daemon import TREE, Daemon

PAGE = TREE / "docs" / "client.md"
HTTP, _, AMQP = PAGE.read_text().partition("## Over AMQP")
ROWS = re.findall(r"^\| (`.+?) \|", HTTP, re.MULTILINE)
AMQP_ROWS = re.findall(r"^\| `(\w+)", AMQP, re.MULTILINE)


def verbs(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")} - {"close", "aclose"}


def test_it_lists_every_verb() -> None:
    assert verbs(Client) == verbs(AsyncClient) == set(re.findall(r"`(\w+)\(", "\n".join(ROWS)))


def test_it_lists_every_error() -> None:
    errors = {name for name in mq.client.__all__ if issubclass_of_error(getattr(mq.client, name))}
    assert errors - {"ClientError"} <= {row.strip("`") for row in ROWS}


def test_it_lists_what_the_client_of_amqp_has() -> None:
    errors = {name for name in amqp.__all__ if issubclass_of_error(getattr(amqp, name))}
    assert errors | verbs(amqp.AmqpClient) | {"connect"} <= set(AMQP_ROWS)
    assert {row for row in AMQP_ROWS if row[0].islower()} == verbs(amqp.AmqpClient) | {"connect"}


def issubclass_of_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, ClientError)


@for_each("name", sorted(verbs(Client)))
def test_the_two_clients_have_the_same_verbs(name: str) -> None:
    ours, theirs = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Client, AsyncClient))
    assert ours == theirs
    assert inspect.getdoc(getattr(Client, name))


@pytest.mark.slow
def test_its_first_program_runs(temp_root: Path, tmp_path: Path) -> None:
    program = blocks(PAGE, "python")[0]
    with Daemon(temp_root, tmp_path / "log") as daemon:
        source = program.replace("http://127.0.0.1:8080", f"http://127.0.0.1:{daemon.port}")
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "b'hello, world' 1\n"
