"""Options and fixtures of the tests that run the real daemon."""

from __future__ import annotations

import secrets
import sys

import pytest

CI_FILES = 400
CI_KILLS = 4
_SECONDS_A_KILL = 10
_SECONDS_A_CLAIM_RUN = 600


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mq, end to end")
    group.addoption("--e2e-files", metavar="N|all", help=f"files of the standard library to send; default {CI_FILES}")
    group.addoption("--kills", type=int, metavar="N", help=f"how often to kill a daemon; default {CI_KILLS}")
    group.addoption("--claim-runs", type=int, metavar="N", help="runs of 10,000 claimed messages; default: 2 of fewer")
    group.addoption("--e2e-seed", type=int, metavar="N", help="when to kill, and whom; default: another one each time")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Who asks for more kills, or runs, gets more time."""
    for item in items:
        if "kills" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(120 + _SECONDS_A_KILL * _kills(config)))
        if "claim_runs" in getattr(item, "fixturenames", ()):
            runs = config.getoption("claim_runs", None) or 1
            item.add_marker(pytest.mark.timeout(_SECONDS_A_CLAIM_RUN * runs))


def _kills(config: pytest.Config) -> int:
    given = config.getoption("kills", None)
    return CI_KILLS if given is None else given


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often to kill a daemon."""
    return _kills(request.config)


@pytest.fixture
def claim_runs(request: pytest.FixtureRequest) -> int | None:
    """How many long runs of claims; None for the usual short ones."""
    given: int | None = request.config.getoption("claim_runs", None)
    return given


@pytest.fixture
def files_wanted(request: pytest.FixtureRequest) -> int | None:
    """How many files to send; None for all."""
    given = request.config.getoption("e2e_files", None)
    return None if given == "all" else int(given or CI_FILES)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Says when to kill and whom. Printed, so that a run can be had again, as far as clocks allow."""
    given = request.config.getoption("e2e_seed", None)
    chosen = secrets.randbits(32) if given is None else given
    sys.stdout.write(f"\nseed {chosen}: --e2e-seed={chosen}\n")
    return chosen
