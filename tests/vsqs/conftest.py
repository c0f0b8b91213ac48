"""A folder in memory, and a place on it for each way."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mq.vsqs import Queue
from tests.vsqs import places

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Fast, for what does not ask for a real disk."""
    made = Path(tempfile.mkdtemp(prefix="mq-vsqs-", dir=MEMORY if MEMORY.is_dir() else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture(params=places.WAYS)
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[places.Place]:
    with places.place(folder, request.param) as made:
        yield made


@pytest.fixture
def queue(place: places.Place) -> Queue:
    return place.open()
