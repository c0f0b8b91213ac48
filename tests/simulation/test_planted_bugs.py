"""The simulation can fail: it finds every bug that is planted in the real code."""

from __future__ import annotations

import sys

import pytest

from tests.cases import for_each
from tests.simulation.hunt import GROUNDS, finds, found_by
from tests.simulation.planted import BUGS, OF_THE_LOG
from tests.simulation.planting import planted

EACH = [*(("simulation", name) for name in BUGS), *(("log", name) for name in OF_THE_LOG)]


@for_each("ground, name", EACH)
def test_a_planted_bug_fits_the_code(ground: str, name: str) -> None:
    """Or else a change of the line is told only by the slow tests."""
    with planted(GROUNDS[ground].bugs[name]):
        pass


@pytest.mark.parametrize("ground", GROUNDS)
def test_each_bug_has_a_seed(ground: str) -> None:
    assert list(found_by(ground)) == list(GROUNDS[ground].bugs), "make planted"


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("ground", "name"), EACH)
def test_a_planted_bug_is_found(ground: str, name: str) -> None:
    seed = found_by(ground)[name]
    broken = finds(ground, name, seed)
    assert broken, f"seed {seed} does not notice any more that {name}: make planted looks for another"
    sys.stdout.write(f"seed {seed} finds that {name}: {broken}\n")
