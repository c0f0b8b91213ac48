"""The simulation can fail: it finds every bug that is planted in the real code."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.planted import BUGS, first_report

FOUND_BY = {
    "a folder is not synced": 0,
}
"""The first seed that found each, when this was written: tried first, then all of them in order."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, seed = BUGS[name], FOUND_BY.get(name, 0)
    report = first_report(bug, range(seed, seed + 1)) or first_report(bug, range(2000))
    assert report is not None, f"nobody noticed that {name}"
    sys.stdout.write(f"seed {report.seed} finds that {name}: {report.violations[0]}\n")
