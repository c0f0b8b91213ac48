"""The promises of a store, checked by mq's own checks."""

from __future__ import annotations

import pytest

from mq.storage.conformance import (
    CHECKS,
    REOPENING_CHECKS,
    Check,
    ReopeningCheck,
    check_storage,
    run_check,
    run_reopening_check,
)


@pytest.mark.slow
async def test_keeps_every_promise(place) -> None:
    await check_storage(place.make, place.reopen)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_promise_is_kept(place, check: Check) -> None:
    await run_check(check, place.make)


@pytest.mark.parametrize("check", REOPENING_CHECKS, ids=lambda check: check.__name__)
async def test_promise_is_kept_over_reopening(place, check: ReopeningCheck) -> None:
    await run_reopening_check(check, place.make, place.reopen)
