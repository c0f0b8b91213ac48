"""A browser, started once for a file of tests, and a daemon beside it."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mq.testing.ports import HeldPort
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.e2e.daemon import Daemon
from tests.page.hand import Hand, started_browser

USERS = """
[users.reader]
password = "PASSWORD"
consume = ["shop"]
[users.publisher]
password = "PASSWORD"
publish = ["shop"]
[users.pauser]
password = "PASSWORD"
pause = ["sho?"]
[users.maker]
password = "PASSWORD"
configure = ["s*"]
[users.watcher]
password = "PASSWORD"
monitor = ["*"]
[users.boss]
password = "PASSWORD"
tokens = ["TOKEN"]
administer = ["*"]
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with started_browser() as browser:
        yield browser


class Open(Daemon):
    """One without users, with its door of AMQP."""

    amqp_port = 0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    """One without users, for all tests of a file. Each has queues of its own."""
    with started_daemon(tmp_path_factory.mktemp("page")) as daemon:
        yield daemon


@contextmanager
def started_daemon(folder: Path) -> Iterator[Open]:
    """One without users, with its root and its log in a folder."""
    held = HeldPort()
    with Open(folder / "root", folder / "log", "--amqp-port", str(held.number)) as daemon:
        daemon.amqp_port = held.number
        yield daemon
        daemon.stop()
    held.close()
    said = (folder / "log").read_text()
    assert "Traceback" not in said
    # The audit log is there, too, with the names that the tests give to exchanges.
    assert not re.search(r"^\S+ \S+ (error|critical) ", said, re.MULTILINE)


class Guarded(Daemon):
    """One with users: `reader` may consume from `shop`, and `boss` may do everything."""

    password = PASSWORD


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    users = write_users(folder / "users.toml", USERS)
    with Guarded(folder / "root", folder / "log", "--users", users) as daemon:
        for method, path, body in (
            ("PUT", "/shop", b""),
            ("PUT", "/secret", b""),
            ("POST", "/shop/messages", b"an order"),
        ):
            asked = urllib.request.Request(f"http://127.0.0.1:{daemon.port}{path}", body, method=method)
            asked.add_header("Authorization", f"Bearer {TOKEN}")
            urllib.request.urlopen(asked, timeout=10).close()
        yield daemon
        daemon.stop()


@pytest.fixture
def hand(browser: Any, daemon: Daemon) -> Iterator[Hand]:
    """Somebody at the page of the daemon without users."""
    with Hand.at(browser, f"http://127.0.0.1:{daemon.port}") as hand:
        hand.open()
        yield hand
