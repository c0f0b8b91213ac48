"""The simulation can fail: it finds every bug that is planted in the real code."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.planted import BUGS, first_report, planted

FOUND_BY = {
    "a publish is not durable": 1,
    "recovery keeps a torn message that was being leased": 225,
    "a receipt is not compared": 7,
    "a settings change is not durable": 3,
    "a queue's folder is made, and that not synced": 5,
    "an extended lease ends as before": 2,
    "what is offered and not taken is left in NEW": 708,
    "a delay is not kept": 4,
    "a file is thought to bring its name where names have no order": 30,
    "a folder is not synced": 3,
    "an fsync that failed is tried again": 78,
    "a link is not durable before its unlink": 3,
    "the folder that was left is not synced": 17,
    "the folder that was entered is not synced": 5,
    "a file is thought to bring its lease where names have no order": 106,
    "an old name is unlinked, and that not synced": 129,
    "a file is thought to bring what was changed after it": 22,
    "a message is unlinked while an older name can come back": 138,
    "a queue's deletion is not synced": 5,
    "recovery keeps torn messages": 55,
    "recovery prefers older places": 219,
    "a lease is not durable": 7,
    "a lease is counted from before its move": 11,
    "a lease's name leaves no time for its barrier": 4,
    "leases end with the broker": 4,
    "a removal is not durable": 26,
    "ids go back with the clock": 3,
    "a key is not durable before its message": 14,
    "a key is forgotten when its message is removed": 63,
    "what is done at once is not synced": 30,
    "what is written at once is not synced": 30,
    "of two who publish with one key each is stored": 32,
    "a history is not durable before its message moves": 4,
    "a ledger forgets what was put while it was written": 7,
    "what has expired is handed out": 114,
    "what was received too often is handed out": 7,
    "a limit does not count what is being published": 14,
    "a unique queue does not know what is being published": 22,
    "a claim is not durable": 1,
    "the lease of a claim is not durable": 151,
    "a claim is not renewed": 12,
    "a claim has what somebody else has by now": 61,
    "an acknowledgement is not durable": 1,
    "a consumer that was started again shuts nobody out": 2,
}
"""The first seed that found each when this was written, where that is not 0: tried first, then all in order."""


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_fits_the_code(name: str) -> None:
    """Or else whoever changed the line learns of it only from the slow tests."""
    with planted(BUGS[name]):
        pass


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    bug, seed = BUGS[name], FOUND_BY.get(name, 0)
    report = first_report(bug, range(seed, seed + 1)) or first_report(bug, range(2000))
    assert report is not None, f"nobody noticed that {name}"
    sys.stdout.write(f"seed {report.seed} finds that {name}: {report.violations[0]}\n")
