"""Which seeds are run: thirty, others with each commit."""

from __future__ import annotations

from typing import Final

import pytest

from tests.commit import commit_number

AT_A_TIME: Final = 15


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=30, metavar="N", help="how many seeds of the simulation are run")
    parser.addoption("--first-seed", type=int, metavar="N", help="the first of them; default: the commit's own")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Some seeds at a time, so that processes share them."""
    if "window" in metafunc.fixturenames:
        wanted = metafunc.config.getoption("--seeds", 30)
        first = metafunc.config.getoption("--first-seed", None)
        begin = wanted * commit_number() if first is None else first
        windows = [range(at, min(at + AT_A_TIME, begin + wanted)) for at in range(begin, begin + wanted, AT_A_TIME)]
        metafunc.parametrize("window", windows, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
