"""A check that nothing can fail checks nothing: stores that break one promise each are caught, by the right check."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq.storage.conformance import CHECKS, REOPENING_CHECKS, check_storage, run_check, run_reopening_check
from mq.storage.interface import Storage
from mq.storage.memory import MemoryStorage
from tests.cases import for_each
from tests.storage.mutants import batches, groups, messages, moves, queues, reads, records, reopening, staging
from tests.storage.mutants.kit import MUTANTS
from tests.storage.mutants.reopening import Kept

ROOMS = (messages, staging, moves, batches, groups, reads, records, queues, reopening)
ALL_CHECKS = {check.__name__: check for check in (*CHECKS, *REOPENING_CHECKS)}


class Openers:
    """The openers of a store that lives in an object."""

    def __init__(self, store: type[MemoryStorage]) -> None:
        self._store = store
        self._latest = store()

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        self._latest = self._store()
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        await self._latest.open()
        yield self._latest
        await self._latest.aclose()


async def fails(store: type[MemoryStorage], check: str) -> bool:
    openers = Openers(store)
    try:
        if ALL_CHECKS[check] in CHECKS:
            await run_check(ALL_CHECKS[check], openers.make)
        else:
            await run_reopening_check(ALL_CHECKS[check], openers.make, openers.reopen)
    except AssertionError:
        return True
    return False


@for_each("check, store", MUTANTS)
async def test_check_catches(check: str, store: type[MemoryStorage]) -> None:
    assert await fails(store, check), f"{store.__name__} passes {check}"


@for_each("check", ALL_CHECKS)
async def test_a_store_without_faults_passes(check: str) -> None:
    """Or else the mutants would prove nothing: the store that they are made from."""
    assert not await fails(Kept, check)


def test_every_check_catches_somebody() -> None:
    assert {check for check, _ in MUTANTS} == set(ALL_CHECKS)


def test_every_room_of_checks_has_its_mutants() -> None:
    for room in ROOMS:
        assert any(store.__module__ == room.__name__ for _, store in MUTANTS), f"no mutants in {room.__name__}"


async def test_one_call_catches_too() -> None:
    openers = Openers(MUTANTS[0][1])
    with pytest.raises(AssertionError):
        await check_storage(openers.make)
