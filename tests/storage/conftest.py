"""Stores for the tests of this room. Every one of them is looked over when its test ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Final

import pytest

from mq.storage.interface import Storage
from tests.storage.places import BACKENDS, MEMORY_FOLDER, Places, places

QUICK: Final = ("posix", "memory")
"""Backends that `make quick` asks: a store of files and one without."""


@pytest.fixture(params=[each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in BACKENDS])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend in turn; a test may parametrize it with fewer."""
    if request.param == "tmpfs" and not MEMORY_FOLDER.is_dir():
        pytest.skip(f"no {MEMORY_FOLDER} on this machine")
    return request.param


@pytest.fixture
def backend_places(backend: str) -> Iterator[Places]:
    """Fresh places of that backend."""
    with places(backend) as found:
        yield found


@pytest.fixture
async def storage(backend_places: Places) -> AsyncIterator[Storage]:
    """An open store of that backend, looked over at the end."""
    async with backend_places.checked() as storage:
        yield storage
