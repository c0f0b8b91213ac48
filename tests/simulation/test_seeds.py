"""The promises P1 to P9, over thousands of lives of the real broker on a disk that forgets."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter

import pytest

from mq.testing.simulate import describe
from mq.testing.simulation import Report, make_plan, run_seed

REGRESSIONS = {
    108: "a message that a peer had moved was fetched while this broker moved it from where it had been",
    126: "a peer delivered what a killed one had not synced",
    **dict.fromkeys((144, 146, 195, 196), "of two leases whose batches ended in one step the second was told first"),
    279: "a queue that a peer had deleted was answered as there",
    362: "a queue half deleted when the medium failed was answered as there",
    524: "a queue's folder was moved, and then no handle was left to sync it",
    565: "after a failed sync a restart believed what the kernel showed",
    1045: "recovery delivered what a killed process had not synced",
    1225: "of two dead letters that two brokers had moved at one instant one was hidden",
}
"""Seeds that found a bug, and which."""


@pytest.mark.parametrize("seed", REGRESSIONS, ids=str)
def test_a_seed_that_found_a_bug_stays_well(seed: int) -> None:
    report = run_seed(seed)
    assert not report.violations, describe(report)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_seed_breaks_a_promise(seeds: int) -> None:
    total: Counter[str] = Counter()
    bad: list[Report] = []
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for report in pool.imap_unordered(run_seed, range(seeds), chunksize=20):
            total.update(seeds=1, calls=report.calls, deliveries=report.deliveries, faults=report.faults)
            total[report.plan.medium.value] += 1
            if report.violations:
                bad.append(report)
    sys.stdout.write(", ".join(f"{count} {what}" for what, count in total.items()) + "\n")
    assert not bad, "\n".join(map(describe, bad[:5]))
    assert total["deliveries"] > seeds
    assert seeds < 100 or total["faults"] > 0


def test_plans_differ() -> None:
    """Each kind of disk, one broker and two, with faults and without, are among any hundred seeds."""
    from random import Random

    plans = [make_plan(Random(seed)) for seed in range(100)]
    assert len({plan.medium for plan in plans}) == 3
    assert {plan.brokers for plan in plans} == {1, 2}
    assert {bool(plan.faults) for plan in plans} == {True, False}
