"""What is moved to be read is read in the hop that moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mq.lifecycle import State
from mq.message import DamagedBody
from mq.storage.files.logged.read_ahead import LARGEST_READ_AHEAD, MOST_READ_AHEAD
from mq.storage.interface import Entry, Move
from simulation.calls import StepByStep
from tests.storage.disks import LEASE, MOUNTS, Disk, open_disk


async def leased(disk: Disk, body: bytes = b"body", *, reads: bool = True) -> Entry:
    entry = await disk.bring(State.READY, body)
    [outcome] = await disk.commit(Move(entry, State.DELAYED, LEASE, reads=reads))
    assert outcome.entry is not None
    return outcome.entry


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    async with open_disk(MOUNTS["rename"]._replace(logged=True), syncfs=True, log_bytes=1 << 20) as disk:
        disk.folders.native = StepByStep(disk.calls)
        yield disk


async def read(disk: Disk, *entries: Entry) -> tuple[list[bytes | None], bool]:
    """The bodies, and whether the disk was asked for them."""
    before = len(disk.calls.log)
    found = await disk.storage.read(entries)
    return [each and await each.body.read() for each in found], len(disk.calls.log) > before


async def test_what_was_moved_to_be_read_is_there(disk: Disk) -> None:
    one, other = await leased(disk, b"one"), await leased(disk, b"other")
    assert await read(disk, other, one) == ([b"other", b"one"], False)
    assert await read(disk, one) == ([b"one"], True)


async def test_what_was_only_moved_is_not(disk: Disk) -> None:
    entry = await leased(disk, reads=False)
    assert await read(disk, entry) == ([b"body"], True)


async def test_one_that_was_moved_on_is_looked_for_where_it_is(disk: Disk) -> None:
    entry = await leased(disk)
    [outcome] = await disk.commit(Move(entry, State.READY))
    assert outcome.entry is not None
    assert await read(disk, outcome.entry) == ([b"body"], True)
    assert await read(disk, entry) == ([None], True)


async def test_a_large_one_is_read_when_it_is_asked_for(disk: Disk) -> None:
    entry = await leased(disk, bytes(LARGEST_READ_AHEAD + 1))
    assert await read(disk, entry) == ([bytes(LARGEST_READ_AHEAD + 1)], True)


async def test_a_damaged_one_is_told_as_ever(disk: Disk) -> None:
    entry = await disk.bring(State.READY, b"body")
    disk.overwrite(f"queues/q/{entry.id}", b"bod")
    [outcome] = await disk.commit(Move(entry, State.DELAYED, LEASE, reads=True))
    assert outcome.entry is not None
    [found] = await disk.storage.read([outcome.entry])
    assert found is not None
    assert isinstance(found.body, DamagedBody)
    disk.overwrite(disk.path(outcome.entry), b"body")  # so that the disk is whole at the end


@pytest.mark.slow
async def test_what_nobody_asks_for_makes_room(disk: Disk) -> None:
    first = await leased(disk)
    entries = [await disk.bring(State.READY, b"") for _ in range(MOST_READ_AHEAD)]
    outcomes = await disk.commit(*[Move(entry, State.DELAYED, LEASE, reads=True) for entry in entries])
    assert await read(disk, first) == ([b"body"], True)
    assert (await read(disk, *[outcome.entry for outcome in outcomes if outcome.entry]))[1] is False
