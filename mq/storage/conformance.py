"""Whether a store keeps the promises of :mod:`mq.storage.interface`.

For the test of every backend::

    @asynccontextmanager
    async def make():
        async with open_storage("template:" + fresh_place()) as storage:
            yield storage

    async def test_keeps_the_promises_of_a_store():
        await check_storage(make)

To see each promise as a test of its own, parametrize over :data:`CHECKS` and call :func:`run_check`; for a store that
outlives its process, over :data:`REOPENING_CHECKS` and :func:`run_reopening_check` too. The checks use the public verbs
only. They know nothing of power cuts and failing media: those need a hand inside the medium.

``mq.storage.checks`` holds them, one subject a module.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from mq.storage.checks import batches, groups, messages, moves, queues, reads, records, reopening, staging
from mq.storage.checks.kit import Check, Opener, ReopeningCheck
from mq.storage.checks.whole import check_whole
from mq.storage.interface import Storage

__all__ = [
    "CHECKS",
    "REOPENING_CHECKS",
    "Check",
    "Opener",
    "ReopeningCheck",
    "check_storage",
    "check_whole",
    "run_check",
    "run_reopening_check",
]

CHECKS: Final[tuple[Check, ...]] = (
    *messages.CHECKS,
    *staging.CHECKS,
    *moves.CHECKS,
    *batches.CHECKS,
    *groups.CHECKS,
    *reads.CHECKS,
    *records.CHECKS,
    *queues.CHECKS,
)
"""Every promise that can be seen in one opening. The name of each says what it is."""

REOPENING_CHECKS: Final[tuple[ReopeningCheck, ...]] = reopening.CHECKS
"""Every promise that takes closing the store and opening it again."""


async def check_storage(make: Opener, reopen: Opener | None = None) -> None:
    """Run all checks, each on a place of its own.

    Args:
        make: gives, for the length of a block, an open store on a fresh place.
        reopen: gives an open store on the place that `make` made last; for stores that outlive their process.

    Raises:
        AssertionError: a promise is broken; the text says which.
    """
    for check in CHECKS:
        await run_check(check, make)
    if reopen is not None:
        for reopening_check in REOPENING_CHECKS:
            await run_reopening_check(reopening_check, make, reopen)


async def run_check(check: Check, make: Opener) -> None:
    """Run one of :data:`CHECKS`, then look over the whole store and close it, twice."""
    async with _looked_over(make) as storage:
        await check(storage)


async def run_reopening_check(check: ReopeningCheck, make: Opener, reopen: Opener) -> None:
    """Run one of :data:`REOPENING_CHECKS`; the whole store is looked over at the end of each opening."""
    await check(partial(_looked_over, make), partial(_looked_over, reopen))


@asynccontextmanager
async def _looked_over(opener: Opener) -> AsyncIterator[Storage]:
    async with opener() as storage:
        yield storage
        await check_whole(storage)
        await storage.aclose()  # and a second time by the opener, which must be safe
