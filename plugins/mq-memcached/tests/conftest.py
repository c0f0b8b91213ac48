"""Servers for tests. Without memcached the tests are skipped, and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from mq_memcached.testing.server import PROGRAM, Server


@pytest.fixture(scope="session")
def installed() -> None:
    """Of every test that needs a server."""
    if PROGRAM is None:
        pytest.skip("memcached is not installed: bash tests/setup-system.sh --yes")


@pytest.fixture(scope="session")
def shared_server(installed: None) -> Iterator[Server]:
    """For tests that need only a prefix of their own."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def serve(installed: None) -> Iterator[Callable[..., Server]]:
    """Starts servers, with flags of the test's own."""
    servers: list[Server] = []

    def start(*flags: str) -> Server:
        servers.append(Server(*flags))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def server(serve: Callable[..., Server]) -> Server:
    """For tests that stop it, fill it, or look at all its keys."""
    return serve()
