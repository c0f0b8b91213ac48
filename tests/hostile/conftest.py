"""Daemons under attack."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.hostile.cheap_frames import House, open_houses


@pytest.fixture(scope="module")
def house_for(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    """Find the daemon for a kind of attack: one for each kind."""
    with open_houses(tmp_path_factory.mktemp("houses")) as find:
        yield find
