"""How long ``mq-mover`` lets a message lie, when the clock has been set since its name was written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, cast

import pytest
import trio

from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS
from mq.cli.mover import _Program
from mq.message import MessageIds
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import Entry, Meta, Operation, Outcome, State
from tests.broker.conftest import run_on_virtual_time

YEARS_NS: Final = 2 * 365 * 86_400 * 10**9
DELAY: Final = 30.0


class Folder:
    """A folder whose messages arrived at some instant."""

    def __init__(self, arrived_ns: int = 0) -> None:
        self._arrived_ns = arrived_ns

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        raise AssertionError("nothing is due")

    async def flaw(self, entry: Entry) -> str | None:
        return None

    async def arrived_ns(self, entry: Entry) -> int | None:
        return self._arrived_ns


def due(meta: Meta, folder: Folder) -> float:
    """In how many seconds the message is moved."""

    async def add() -> float:
        program = _Program(cast("SourceFolder", folder), DELAY)
        await program._add(Entry("q", MessageIds().new(), State.DELAYED, meta))
        return program.mover._next_due() - trio.current_time()

    found: float = run_on_virtual_time(add)
    return found


@pytest.mark.parametrize(
    ("ahead_ns", "seconds"),
    [(10 * 10**9, 10.0), (YEARS_NS, LONGEST_LEASE_SECONDS + MARGIN_SECONDS), (-YEARS_NS, 0.0)],
)
def test_a_deadline(ahead_ns: int, seconds: float) -> None:
    """Half a day is the longest lease: a deadline further off is a clock's mistake."""
    meta = Meta(deadline_ms=(time.time_ns() + ahead_ns) // 1_000_000, receives=1, receipt="0" * 16)
    assert due(meta, Folder()) == pytest.approx(seconds, abs=2)


def test_a_delay_of_years_is_waited_for_in_pieces() -> None:
    """No timer is longer than half a day, and no message leaves because one has ended."""

    async def look() -> list[bool]:
        program = _Program(Folder(), DELAY)  # type: ignore[arg-type]
        now_ms = time.time_ns() // 1_000_000
        moved = []
        for meta in (Meta(now_ms + 10**10), Meta(now_ms - 5), Meta(now_ms + 10**10, 1, "0" * 16), Meta()):
            entry = Entry("q", MessageIds().new(), State.DELAYED, meta)
            moved.append(program._is_due(entry))
            assert (
                moved[-1] or program.mover._next_due() - trio.current_time() == LONGEST_LEASE_SECONDS + MARGIN_SECONDS
            )
        return moved

    assert run_on_virtual_time(look) == [False, True, True, True]


@pytest.mark.parametrize(("ahead_ns", "seconds"), [(0, DELAY), (YEARS_NS, DELAY), (-YEARS_NS, 0.0)])
def test_an_arrival(ahead_ns: int, seconds: float) -> None:
    """What has no deadline waits from its arrival: not longer, though that lies in the future."""
    assert due(Meta(), Folder(time.time_ns() + ahead_ns)) == pytest.approx(seconds, abs=2)
