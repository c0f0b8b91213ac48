"""A backup holds what a power cut at its instant would have left: lives that go on from it keep all promises."""

from __future__ import annotations

import pytest

from simulation.__main__ import describe
from tests.commit import commit_number
from tests.simulation.saved_lives import run_saved_lives

SEEDS = 20


def check(seeds: range) -> None:
    runs = [run_saved_lives(seed, log=seed % 2 == 0) for seed in seeds]
    bad = [report for report, _ in runs if report.violations]
    assert not bad, "\n".join(map(describe, bad[:5]))
    assert sum(reached for _, reached in runs) > len(runs) / 2


@pytest.mark.slow
def test_lives_that_go_on_from_a_backup_break_no_promise() -> None:
    first = SEEDS * commit_number()
    check(range(first, first + SEEDS))


@pytest.mark.proof
@pytest.mark.timeout(3600)
def test_thousands_of_them() -> None:
    check(range(2000))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [230, 1146, 30761744232])
def test_a_backup_has_groups_as_a_whole(seed: int) -> None:
    """Its instant would lie between the record of a key and the message of the same group."""
    report, _ = run_saved_lives(seed, log=seed % 2 == 0)
    assert not report.violations, describe(report)


@pytest.mark.slow
def test_a_record_that_is_written_at_the_instant_does_not_pause_its_queue() -> None:
    """Its new version was torn in the backup, which a restored root took for damage."""
    report, _ = run_saved_lives(65622749232, log=True)
    assert not report.violations, describe(report)
