"""A crowd that the gate has time for. The whole one: ``make crowd``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.daemon import Daemon
from tests.hostile.crowd import LEAST_FETCHED, crowd_elsewhere, make_queue, more_files

HTTP_CLIENTS = 200
AMQP_CLIENTS = 50
SECONDS = 3.0

pytestmark = pytest.mark.slow


@pytest.fixture(params=["memory", ""], ids=["in memory", "in a folder"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    more_files()
    with Daemon(tmp_path / "root", tmp_path / "log", "--hosts", "mq", "--amqp-port", str(free_port)) as daemon:
        make_queue(daemon.port, request.param)
        yield daemon
        daemon.stop()


def test_what_a_crowd_publishes_is_fetched(daemon: Daemon, free_port: int) -> None:
    tally = crowd_elsewhere(daemon.port, free_port, HTTP_CLIENTS, AMQP_CLIENTS, SECONDS)
    assert tally.published >= HTTP_CLIENTS + AMQP_CLIENTS  # each came to its turn
    assert tally.fetched >= LEAST_FETCHED * tally.published, tally
    assert (tally.without_retry_after, tally.left, tally.failed) == (0, 0, {}), tally
