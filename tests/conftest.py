"""What every test may use. What only one room needs lives in that room's own conftest."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from trio.testing import MockClock

from mq.testing.ports import HeldPort

os.umask(0o022)  # whoever has 002: what tests make is served
settings.register_profile("mq", deadline=None)  # how long an example takes says something of the machine only
settings.load_profile("mq")


@pytest.fixture(autouse=True)
def own_log_level(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that silences mq's log, as the simulation does, silences no other test; nor does Spark write its JSON.
    That a step of the event loop took long says something of the machine only: a test that wants to know asks for it.
    """
    log = logging.getLogger("mq")
    level = log.level
    logging.getLogger("mq.turns").setLevel(logging.ERROR)
    yield
    log.setLevel(level)
    made = logging.Logger.manager.loggerDict
    for name in [name for name, its in made.items() if type(its).__name__ == "PySparkLogger"]:
        del made[name]  # it gives its JSON to every handler that pytest adds to it, and so to all that is caught later
    plugin = request.config.pluginmanager.get_plugin("logging-plugin")
    if plugin is not None:
        for handler in (plugin.caplog_handler, plugin.report_handler):
            handler.setFormatter(plugin.formatter)


@pytest.fixture
def quick_clock() -> MockClock:
    """Seconds pass once both ends of the test's sockets wait. The kernel passes bytes on in much less time than this
    clock waits for them."""
    return MockClock(autojump_threshold=0.05)


@pytest.fixture
def free_port() -> Iterator[int]:
    """A TCP port of 127.0.0.1 that is this test's for as long as it runs."""
    held = HeldPort()
    yield held.number
    held.close()


@pytest.fixture
def temp_root() -> Iterator[Path]:
    """A root that does not exist yet, on a real disk, with a path short enough for anything."""
    folder = tempfile.mkdtemp(prefix="mq-")
    try:
        yield Path(folder) / "root"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
