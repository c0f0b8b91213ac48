"""The promises of a store, checked by mq's own checks, as a role that may do nothing but make schemas."""

from __future__ import annotations

from mq.storage.conformance import CHECKS, REOPENING_CHECKS, Check, ReopeningCheck, run_check, run_reopening_check
from tests.cases import for_each


@for_each("check", CHECKS)
async def test_promise_is_kept(place, check: Check) -> None:
    await run_check(check, place.make)


@for_each("check", REOPENING_CHECKS)
async def test_promise_is_kept_over_reopening(place, check: ReopeningCheck) -> None:
    await run_reopening_check(check, place.make, place.reopen)
