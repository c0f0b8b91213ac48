"""The promises of a store, checked by mq's own checks: on one member, and on three."""

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
from tests.cases import for_each


@pytest.mark.proof
async def test_keeps_every_promise_on_three_members(three_place) -> None:
    await check_storage(three_place.make, three_place.reopen)


@for_each("check", CHECKS)
async def test_promise_is_kept(place, check: Check) -> None:
    await run_check(check, place.make)


@for_each("check", REOPENING_CHECKS)
async def test_promise_is_kept_over_reopening(place, check: ReopeningCheck) -> None:
    await run_reopening_check(check, place.make, place.reopen)
