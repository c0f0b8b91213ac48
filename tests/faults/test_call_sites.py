"""Every storage call of a scripted run fails once in every way. Counted, not sampled.

The script is run once to count its calls; then once more for every call and every fault. After each run all is well
again, the store is opened anew, and what is there is compared with what clients were told.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.commit import commit_number
from tests.faults.runs import VARIANTS, strike

ALWAYS: Final = ("ordered", "link", "shared")
IN_TURN: Final = [name for name in VARIANTS if name not in ALWAYS]
"""These differ in less: each commit has one of them, and `make proof` all."""
PARTS: Final = 54
FEW: Final = 1
"""Parts of a variant that each commit runs; `make proof` runs all of them."""


def parts() -> Iterator[object]:
    """Of each variant, so that processes share them."""
    turn, in_turn = divmod(commit_number(), len(IN_TURN))
    of_this_commit = [*ALWAYS, IN_TURN[in_turn]]
    for name in VARIANTS:
        for part in range(PARTS):
            is_in_turn = name in of_this_commit and (part - turn * FEW) % PARTS < FEW
            marks = () if is_in_turn else pytest.mark.proof
            yield pytest.param(name, part, marks=marks, id=f"{name}-{part}")


@pytest.fixture
def silence() -> Iterator[None]:
    """The broker warns of every fault."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("silence")
@pytest.mark.parametrize(("name", "part"), list(parts()))
def test_every_call_fails_in_every_way(name: str, part: int) -> None:
    report = strike(name, part, PARTS)
    sys.stdout.write(f"\n{report.calls} calls, {report.runs.total()} faults: {dict(report.runs)}\n")
    assert report.runs
    assert not report.broken, f"{len(report.broken)} broken:\n" + "\n".join(report.broken)
