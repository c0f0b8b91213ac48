"""logging: how much a daemon logs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mq import log_lines
from mq.client import Client
from tests.cli.conftest import Mq


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """The daemon is in this process."""
    root = logging.getLogger()
    before = root.level, log_lines.REQUESTS.level
    log_lines.change(requests=False)
    yield
    root.setLevel(before[0])
    log_lines.REQUESTS.setLevel(before[1])


def test_showing_and_changing_it(client: Client, mq: Mq) -> None:
    assert mq("logging", "--level", "error").lines == ["error"]
    assert mq("logging").lines == ["error"]
    assert mq("logging", "--requests").lines == ["error; HTTP requests are logged"]
    assert mq("logging", "--json").json == [{"level": "error", "requests": True}]
    assert mq("logging", "--no-requests", "--level", "warning").lines == ["warning"]
    assert mq("logging", "--level", "loud").status == 2
