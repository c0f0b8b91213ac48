"""Every storage call of a scripted run fails once in every way. Counted, not sampled.

The script is run once to count its calls; then once more for every call and every fault. After each run all is well
again, the store is opened anew, and what is there is compared with what clients were told.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Final

import pytest

from tests.faults.runs import VARIANTS, strike

QUICK: Final = ("ordered", "link", "shared")
"""The others, which differ in less, are run when time allows."""
PARTS: Final = os.cpu_count() or 1


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    """One for each core, since every run is a world of its own."""
    with ProcessPoolExecutor(PARTS, multiprocessing.get_context("spawn")) as pool:
        yield pool


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VARIANTS]
)
def test_every_call_fails_in_every_way(name: str, processes: Executor) -> None:
    reports = list(processes.map(strike, [name] * PARTS, range(PARTS), [PARTS] * PARTS))
    runs = sum((report.runs for report in reports), Counter[str]())
    broken = [line for report in reports for line in report.broken]
    sys.stdout.write(f"\n{name}: {reports[0].calls} calls, {runs.total()} faults: {dict(runs)}\n")
    assert not broken, f"{len(broken)} broken:\n" + "\n".join(broken)
