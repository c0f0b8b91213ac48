"""Every store that ships with mq keeps every promise of the interface."""

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
from tests.storage.places import DURABLE_PLACES, Places


@for_each("check", CHECKS)
async def test_promise_is_kept(backend_places: Places, check: Check) -> None:
    await run_check(check, backend_places.make)


@pytest.mark.slow
@pytest.mark.parametrize("backend", DURABLE_PLACES, indirect=True)
@for_each("check", REOPENING_CHECKS)
async def test_promise_is_kept_over_reopening(backend_places: Places, check: ReopeningCheck) -> None:
    await run_reopening_check(check, backend_places.make, backend_places.reopen)


@pytest.mark.parametrize("backend", ["memory"], indirect=True)
async def test_one_call_runs_every_check(backend_places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    async def note(check: Check | ReopeningCheck, *openers: object) -> None:
        ran.append(check.__name__)

    monkeypatch.setattr("mq.storage.conformance.run_check", note)
    monkeypatch.setattr("mq.storage.conformance.run_reopening_check", note)
    await check_storage(backend_places.make)
    assert ran == [check.__name__ for check in CHECKS]
    ran.clear()
    await check_storage(backend_places.make, backend_places.reopen)
    assert ran == [check.__name__ for check in (*CHECKS, *REOPENING_CHECKS)]
