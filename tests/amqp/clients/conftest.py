"""One server of each kind for all tests, and servers of a test's own for those that kill them."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.amqp.clients.servers import MqServer, RabbitServer, Server
from tests.amqp.rabbit import is_installed

KINDS = ("mq", "rabbitmq")


def check_is_there(kind: str) -> None:
    """Skip the test where there is no server of this kind."""
    if kind == "rabbitmq" and not is_installed():
        pytest.skip("RabbitMQ is not installed: bash tests/setup-system.sh --yes")


@contextlib.contextmanager
def serving(kind: str) -> Iterator[Server]:
    """A new server of this kind."""
    check_is_there(kind)
    with tempfile.TemporaryDirectory(prefix="mq-", ignore_cleanup_errors=True) as folder:
        made = RabbitServer(Path(folder)) if kind == "rabbitmq" else MqServer(Path(folder))
        with made as server:
            yield server


@pytest.fixture(scope="session")
def shared() -> Iterator[Callable[[str, bool], Server]]:
    """The server of a kind, started when it is first asked for; another one for the tests that kill."""
    running: dict[tuple[str, bool], Server] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str, is_mortal: bool = False) -> Server:
            found = running.get((kind, is_mortal))
            if found is None:
                found = running[kind, is_mortal] = stack.enter_context(serving(kind))
            elif not found.is_running():
                found.start()
            return found

        yield get


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, shared: Callable[[str, bool], Server]) -> Server:
    """One that other tests use, too: take queues of your own."""
    return shared(request.param, False)


@pytest.fixture(params=KINDS)
def mortal_server(request: pytest.FixtureRequest, shared: Callable[[str, bool], Server]) -> Server:
    """One that may be killed."""
    return shared(request.param, True)


@pytest.fixture
def queue() -> str:
    """A name that nobody else uses."""
    return f"queue-{secrets.token_hex(6)}"
