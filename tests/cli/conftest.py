"""A daemon inside this process, and the program's verbs against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from mq import cli
from mq.cli import bench, remote
from mq.client import AsyncClient, Client
from tests.client.inside import Inside, running


class Done(NamedTuple):
    """What a call of the program left."""

    status: int
    out: str
    error: str
    raw: bytes

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


Mq = Callable[..., Done]


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("URL", "TOKEN", "CREDENTIALS", "CA", "PATIENCE", "ROOT"):
        monkeypatch.delenv(f"MQ_{name}", raising=False)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Every client of the program reaches this one."""
    with running() as inside:
        monkeypatch.setattr(remote, "Client", partial(Client, transport=inside))
        monkeypatch.setattr(bench, "AsyncClient", partial(AsyncClient, transport=inside))
        yield inside


@pytest.fixture
def client(daemon: Inside) -> Iterator[Client]:
    """To make and to look at what the program works on."""
    with Client("http://mq.test", transport=daemon) as client:
        client.create_queue("q")
        yield client


@pytest.fixture
def mq() -> Mq:
    """Call the program."""

    def call(*args: object, input: bytes | str | None = None) -> Done:
        result = CliRunner().invoke(cli.main, [str(arg) for arg in args], input=input, prog_name="mq")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Done(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    return call
