"""Options and fixtures of the tests that need several hosts."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

CI_MESSAGES = 300
_MESSAGES_A_SECOND = 2


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mq, several hosts")
    group.addoption(
        "--shared-messages", type=int, metavar="N", help=f"messages through a shared root; default {CI_MESSAGES}"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who asks for more messages gets more time."""
    for item in items:
        if "shared_messages" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300 + _messages(config) / _MESSAGES_A_SECOND))


def _messages(config: pytest.Config) -> int:
    given = config.getoption("shared_messages", None)
    return CI_MESSAGES if given is None else given


@pytest.fixture
def shared_messages(request: pytest.FixtureRequest) -> int:
    """How many messages to send through a shared root."""
    return _messages(request.config)


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Says something to whoever runs the tests, captured or not."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}\n")

    return say
