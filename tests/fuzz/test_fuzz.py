"""A short run of the fuzzer over each parser, the same one each time. `make fuzz` has longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import for_each
from tests.fuzz.fuzzing import fuzz, missing
from tests.fuzz.targets import TARGETS

RUNS = {
    "amqp connection": 3000,
    "amqp frames": 5000,
    "request": 1500,
    "record": 1500,
    "settings": 5000,
    "settings file": 5000,
}
USUAL_RUNS = 10_000


@for_each("target", TARGETS)
def test_the_seeds_are_read_or_refused(target: str) -> None:
    for seed in TARGETS[target].seeds:
        TARGETS[target].try_one(seed)


@pytest.mark.proof
@pytest.mark.parametrize("target", TARGETS)
def test_no_bytes_end_a_parser(target: str, tmp_path: Path) -> None:
    if missing():
        pytest.skip(missing())
    result = fuzz(target, tmp_path / "corpus", runs=RUNS.get(target, USUAL_RUNS))
    assert not result.found, result.found
    assert result.runs >= RUNS.get(target, USUAL_RUNS)
