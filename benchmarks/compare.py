"""``python -m benchmarks compare``: mq and every peer that is installed, by the same load generator, taking turns.

All servers run all the time; one of them is busy. In each round every server has its turn at a load before the next
load comes, and each round begins with another server. Peers that are not there are named and left out.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from benchmarks.systems import SYSTEMS
from benchmarks.systems.system import System
from benchmarks.turns import CONSUME, PUBLISH, Load, Turn, take_turn

Medians = Mapping[tuple[str, str, int, int], Turn]
"""By system, workload, clients and size."""


class Plan(NamedTuple):
    """How much to measure.

    Attributes:
        sizes: of bodies, in bytes.
        rounds: repetitions.
        seconds: length of a phase.
        warm_up: seconds before each turn that do not count.
        operations: of each kind a round against the reference server.
    """

    clients: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    seconds: float
    warm_up: float = 0.2
    operations: int = 800


CALLS_LOAD: Final = Load(32, 1024, 1.0, workloads=(PUBLISH, CONSUME), counts_calls=True)


def present(names: Sequence[str] = ()) -> tuple[list[System], dict[str, str]]:
    """The systems that can be measured, and why the others cannot."""
    reasons = {name: SYSTEMS[name].absence() for name in names or SYSTEMS}
    absent = {name: why for name, why in reasons.items() if why}
    return [SYSTEMS[name] for name in reasons if name not in absent], absent


def compare(systems: Sequence[System], plan: Plan, folder: Path) -> tuple[list[Turn], dict[str, dict[str, float]]]:
    """Measure all systems, in the order in which they take turns, with their data in `folder`: each phase of each turn,
    and the system calls a message, by system and workload."""
    turns: list[Turn] = []
    with ExitStack() as stack:
        for system in systems:
            (folder / system.name).mkdir()
        servers = {system.name: stack.enter_context(system.start(folder / system.name)) for system in systems}
        with tqdm(list(_turns(systems, plan)), unit="turn", disable=None) as bar:
            for system, clients, size, number in bar:
                bar.set_postfix_str(f"{system.name}, {clients} clients, {size} bytes")
                load = Load(clients, size, plan.seconds, plan.warm_up)
                turns += take_turn(system, servers[system.name], folder, load, number)
        counted = {system.name: take_turn(system, servers[system.name], folder, CALLS_LOAD) for system in systems}
        calls = {name: {turn.workload: turn.calls for turn in of if turn.calls} for name, of in counted.items()}
    return turns, calls


def _turns(systems: Sequence[System], plan: Plan) -> Iterator[tuple[System, int, int, int]]:
    """Each system's turns: connections, bytes of a body, number of the round."""
    for number, size, clients in itertools.product(range(plan.rounds), plan.sizes, plan.clients):
        shift = number % len(systems)
        for system in (*systems[shift:], *systems[:shift]):
            yield system, clients, size, number


def medians(turns: Iterable[Turn]) -> dict[tuple[str, str, int, int], Turn]:
    """Medians over the rounds, by (system, workload, clients, size)."""
    groups: dict[tuple[str, str, int, int], list[Turn]] = {}
    for turn in turns:
        groups.setdefault(turn[:4], []).append(turn)
    return {key: _median(group) for key, group in groups.items()}


def _median(turns: Sequence[Turn]) -> Turn:
    numbers: list[Any] = [  # a count is None in all rounds or in none
        None if None in column else statistics.median(column)
        for column in zip(*(turn[5:] for turn in turns), strict=True)
    ]
    return Turn(*turns[0][:4], len(turns), *numbers)
