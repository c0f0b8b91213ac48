"""What every test may use. What only one room needs lives in that room's own conftest."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("mq", deadline=None)  # how long an example takes says something of the machine only
settings.load_profile("mq")


@pytest.fixture(autouse=True)
def own_log_level() -> Iterator[None]:
    """A test that silences mq's log, as the simulation does, silences no other test."""
    log = logging.getLogger("mq")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture
def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def temp_root() -> Iterator[Path]:
    """A root that does not exist yet, on a real disk, with a path short enough for anything."""
    folder = tempfile.mkdtemp(prefix="mq-")
    try:
        yield Path(folder) / "root"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
