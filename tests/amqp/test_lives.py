"""Seeded lives of the AMQP door: none breaks a promise, and bugs that are planted in it are found."""

from __future__ import annotations

from typing import Final

import pytest

from tests.amqp.lives import Lives
from tests.amqp.planted import BUGS
from tests.cases import proof
from tests.simulation.hunt import finds, found_by
from tests.simulation.planting import planted

SEEDS: Final = [16, proof(60)]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", SEEDS)
def test_no_seed_breaks_a_promise(seeds: int) -> None:
    deliveries = 0
    for seed in range(seeds):
        lives = Lives(seed).run()
        assert not lives.violations, (seed, lives.violations)
        deliveries += lives.deliveries
    assert deliveries > 20 * seeds  # they do something


def test_a_few_seeds() -> None:
    for seed in range(1000, 1010):
        lives = Lives(seed).run()
        assert not lives.violations, (seed, lives.violations)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_fits_the_code(name: str) -> None:
    with planted(BUGS[name]):
        pass


@pytest.mark.slow
@pytest.mark.in_turn(3)
@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    seed = found_by("amqp")[name]
    assert finds("amqp", name, seed), (
        f"seed {seed} does not notice any more that {name}: make planted looks for another"
    )
