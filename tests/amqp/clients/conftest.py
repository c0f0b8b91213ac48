"""One server of each kind for all tests, and servers of a test's own for those that kill them."""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.amqp.clients.servers import MqServer, RabbitServer, Server
from tests.amqp.clients.verdicts import Judge
from tests.amqp.rabbit import is_installed, version

KINDS = ("mq", pytest.param("rabbitmq", marks=pytest.mark.proof))
"""RabbitMQ says whether a test is right. What it said is written down; `make judge` asks it anew."""
_SECONDS_A_CLOSE = 120


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--judge", action="store_true", help="write down what RabbitMQ says to the tests here")
    parser.addoption(
        "--closes", type=int, default=1, metavar="N", help="how often 20,000 messages and a close follow; one: 8,000"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--judge", False):
        config.pluginmanager.register(Judge(version()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who asks for more rounds gets more time."""
    for item in items:
        if "closes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(120 + _SECONDS_A_CLOSE * config.getoption("closes", 1)))


@pytest.fixture
def closes(request: pytest.FixtureRequest) -> int:
    """How many rounds of publishing and closing."""
    return request.config.getoption("closes", 1)


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


@pytest.fixture
def mq_server(shared: Callable[[str, bool], Server]) -> Server:
    """mq alone, where RabbitMQ does not say how it should be."""
    return shared("mq", False)


@pytest.fixture
def rabbitmq_server(shared: Callable[[str, bool], Server]) -> Server:
    """RabbitMQ alone, for what takes a cluster of mq."""
    return shared("rabbitmq", False)


@pytest.fixture(params=KINDS)
def mortal_server(request: pytest.FixtureRequest, shared: Callable[[str, bool], Server]) -> Server:
    """One that may be killed."""
    return shared(request.param, True)


@pytest.fixture
def queue() -> str:
    """A name that nobody else uses."""
    return f"queue-{secrets.token_hex(6)}"
