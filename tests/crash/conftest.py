"""Where no disk can be recorded, tests that need one are skipped, and say why."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.crash.bench import Bench
from tests.crash.rig import missing

Report = Callable[[str], None]

_missing = cache(missing)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A place for disks, empty before and after."""
    need_disks("ext4", "ext4-nojournal")
    with Bench() as bench:
        yield bench


def need_disks(*systems: str) -> None:
    """Skip the test where these file systems cannot be recorded."""
    reason = _missing(*systems)
    if reason:
        pytest.skip(f"no power can be cut here: {reason}")


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str]) -> Report:
    """Says something to whoever runs the tests, captured or not."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n  {text}")

    return say
