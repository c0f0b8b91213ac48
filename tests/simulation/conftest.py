"""How many seeds are run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=1500, help="how many seeds of the simulation are run")


@pytest.fixture(scope="session")
def seeds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seeds"))
