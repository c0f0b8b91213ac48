"""Finds a seed for each planted bug, and writes it down: ``make planted``, or ``python -m tests.simulation.hunt``.

A seed finds a bug when its run breaks a promise with the bug in the code, and none without it. Tests run only the seed
that is written down, so a bug that it does not find any more is to be hunted again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
from tqdm import tqdm

from mq.errors import StorageUnusable
from simulation.run import run_seed
from tests.amqp import planted as amqp
from tests.amqp.lives import Lives
from tests.simulation import planted as simulation
from tests.simulation.planting import Bug, planted

PAGE: Final = Path(__file__).with_name("found_by.json")
MOST_SEEDS: Final = 4000
"""So many are tried for one bug before it counts as not found."""


class Ground(NamedTuple):
    """Where bugs are hunted.

    Attributes:
        violations: runs a seed; the promises that it broke, in words.
    """

    bugs: Mapping[str, Bug]
    violations: Callable[[int], Sequence[str]]


def _of_the_simulation(seed: int) -> Sequence[str]:
    return run_seed(seed).violations


def _of_the_log(seed: int) -> Sequence[str]:
    try:
        return run_seed(seed, log=True).violations
    except StorageUnusable as error:  # a log that is taken for damaged
        return [str(error)]


def _of_amqp(seed: int) -> Sequence[str]:
    return Lives(seed).run().violations


GROUNDS: Final = {
    "simulation": Ground(simulation.BUGS, _of_the_simulation),
    "log": Ground(simulation.OF_THE_LOG, _of_the_log),
    "amqp": Ground(amqp.BUGS, _of_amqp),
}


class Hunted(NamedTuple):
    """One bug to find.

    Attributes:
        known: the seed that is written down; None for none.
        most: how many seeds to try at the most.
    """

    ground: str
    bug: str
    known: int | None
    most: int


def found_by(ground: str) -> dict[str, int]:
    """The seed that finds each bug, as written down."""
    recorded: dict[str, dict[str, int]] = json.loads(PAGE.read_text()) if PAGE.exists() else {}
    return recorded.get(ground, {})


class Hunt(NamedTuple):
    """What came of hunting one bug.

    Attributes:
        seed: the one that finds it; None for none.
        ill: promises that seeds broke without the bug, in words: those seeds find nothing.
    """

    hunted: Hunted
    seed: int | None
    ill: tuple[str, ...] = ()


def finds(ground: str, bug: str, seed: int) -> str:
    """The first promise that this seed breaks with the bug in the code; empty for none.

    Raises:
        CannotPlant: the bug does not fit the code.
        AssertionError: it breaks one without the bug, too.
    """
    bugs, violations = GROUNDS[ground]
    with planted(bugs[bug]):
        broken = violations(seed)
    if broken:
        assert not _illness(ground, seed), _illness(ground, seed)
    return broken[0] if broken else ""


def hunt(hunted: Hunted) -> Hunt:
    """Look for a seed: that which is known to find the bug, if it still does; else the first that does.

    Raises:
        CannotPlant: the bug does not fit the code.
    """
    bugs, violations = GROUNDS[hunted.ground]
    ill: list[str] = []
    seeds = iter(_in_turn(hunted))
    while True:
        with planted(bugs[hunted.bug]):
            found = next((seed for seed in seeds if violations(seed)), None)
        illness = "" if found is None else _illness(hunted.ground, found)
        if not illness:
            return Hunt(hunted, found, tuple(ill))
        ill.append(illness)


def _illness(ground: str, seed: int) -> str:
    broken = GROUNDS[ground].violations(seed)
    return f"{ground}: seed {seed} breaks a promise without any bug planted: {broken[0]}" if broken else ""


def _in_turn(hunted: Hunted) -> Iterable[int]:
    """What a seed looks for depends on its last digit: those that share it with the one that is known come first."""
    seeds = range(hunted.most)
    if hunted.known is None:
        return seeds
    digit = hunted.known % 10
    return [hunted.known, *sorted(seeds, key=lambda seed: seed % 10 != digit)]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--anew", is_flag=True, help="Look for the first seed of each, also where one is known.")
@click.option("--most", default=MOST_SEEDS, show_default=True, help="Seeds to try for one bug at the most.")
@click.option("--processes", default=os.cpu_count() or 1, show_default=True, help="How many bugs are hunted at a time.")
def main(names: Sequence[str], anew: bool, most: int, processes: int) -> None:
    """Find a seed for each bug, or for those NAMES; exit 1 when one has none, or a seed fails without any."""
    seeds = {ground: found_by(ground) for ground in GROUNDS}
    wanted = [
        Hunted(ground, bug, None if anew else seeds[ground].get(bug), most)
        for ground, (bugs, _) in GROUNDS.items()
        for bug in bugs
        if not names or bug in names
    ]
    missing, ill = [], set[str]()
    for done in tqdm(_results(wanted, processes), total=len(wanted), disable=None, unit=" bugs"):
        hunted, seed, _ = done
        seeds[hunted.ground].pop(hunted.bug, None)
        if seed is None:
            missing.append(hunted.bug)
        else:
            seeds[hunted.ground][hunted.bug] = seed
        if seed != hunted.known:
            tqdm.write(f"{hunted.bug}: {'NOT FOUND' if seed is None else f'seed {seed}'}")
        ill.update(done.ill)
        _write(seeds)
    click.echo(f"{len(wanted) - len(missing)} of {len(wanted)} bugs found, written to {PAGE.name}")
    if missing:
        click.echo("no seed finds these: is each still a bug in today's code? Else write it anew, or remove it")
        click.echo("\n".join(f"  {name}" for name in missing))
    if ill:
        click.echo("the code has bugs of its own")
        click.echo("\n".join(f"  {text}" for text in sorted(ill)))
    sys.exit(1 if missing or ill else 0)


def _results(wanted: Sequence[Hunted], processes: int) -> Iterator[Hunt]:
    if processes == 1:
        _silence()
        yield from map(hunt, wanted)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _silence) as pool:
        yield from pool.imap_unordered(hunt, wanted)


def _silence() -> None:
    """What mq logs of repairs and failures is not news here."""
    logging.getLogger("mq").setLevel(logging.CRITICAL)


def _write(seeds: Mapping[str, Mapping[str, int]]) -> None:
    """In the order of the bugs. What is no bug any more goes."""
    ordered = {
        ground: {bug: seeds[ground][bug] for bug in bugs if bug in seeds[ground]}
        for ground, (bugs, _) in GROUNDS.items()
    }
    PAGE.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
