"""``python -m benchmarks compare``: mq and every peer that is installed, by the same driver, taking turns.

All servers run all the time; one of them is busy. In each round every server has its turn at a load before the next
load comes, and each round begins with another server. Peers that are not there are named and left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from tqdm import tqdm

from benchmarks.results import Results
from benchmarks.systems import SYSTEMS
from benchmarks.systems.system import System
from benchmarks.turns import Load, count_calls, take_turn

Key = tuple[str, int, int, int]
"""System, clients, size, round."""


class Plan(NamedTuple):
    """What to measure.

    Attributes:
        clients: how many at once.
        sizes: of bodies, in bytes.
        rounds: repetitions.
        seconds: length of a phase.
        warm_up: seconds before each turn that do not count.
        calls: whether to count system calls, too.
    """

    clients: Sequence[int]
    sizes: Sequence[int]
    rounds: int
    seconds: float
    warm_up: float = 0.2
    calls: bool = True


QUICK: Final = Plan(clients=(1, 32, 256), sizes=(1024,), rounds=3, seconds=0.5)
FULL: Final = Plan(clients=(1, 32, 256), sizes=(100, 1024, 65_536), rounds=3, seconds=0.8)
TINY: Final = Plan(clients=(1, 32), sizes=(1024,), rounds=1, seconds=0.05, warm_up=0.05)
CALLS_LOAD: Final = Load(32, 1024, 1.0)


class Comparison(NamedTuple):
    """What came out.

    Attributes:
        results: all turns, and where they were taken.
        calls: system calls a message, by system and workload, and who counted.
    """

    results: Results
    calls: Mapping[str, Mapping[str, tuple[float, str]]]


def present(names: Sequence[str] = ()) -> tuple[list[System], dict[str, str]]:
    """The systems that can be measured, and why the others cannot."""
    reasons = {name: SYSTEMS[name].absence() for name in names or SYSTEMS}
    absent = {name: why for name, why in reasons.items() if why}
    return [SYSTEMS[name] for name in reasons if name not in absent], absent


def compare(systems: Sequence[System], plan: Plan, folder: Path, state: Path, header: Mapping[str, Any]) -> Comparison:
    """Measure what has not been measured yet.

    Args:
        systems: in the order in which they take turns.
        plan: what to measure.
        folder: where data is kept.
        state: the file of what was measured so far.
        header: what must be the same for going on.
    """
    results = Results(state, {**header, "plan": plan._asdict(), "systems": [system.name for system in systems]})
    calls: dict[str, dict[str, tuple[float, str]]] = {}
    with ExitStack() as stack:
        servers = {system.name: stack.enter_context(_started(system, folder)) for system in systems}
        keys = [key for key in _keys(systems, plan) if key not in results]
        with tqdm(total=len(keys), unit="turn", disable=None) as bar:
            for key in keys:
                name, clients, size, number = key
                bar.set_postfix_str(f"{name}, {clients} clients, {size} bytes")
                load = Load(clients, size, plan.seconds, plan.warm_up)
                results.add(key, take_turn(SYSTEMS[name], servers[name], folder, load, number))
                bar.update()
        if plan.calls:
            calls = {system.name: count_calls(system, servers[system.name], CALLS_LOAD) for system in systems}
    return Comparison(results, calls)


def _started(system: System, folder: Path) -> Any:
    own = folder / system.name
    own.mkdir()
    return system.start(own)


def _keys(systems: Sequence[System], plan: Plan) -> Iterator[Key]:
    for number, size, clients in itertools.product(range(plan.rounds), plan.sizes, plan.clients):
        shift = number % len(systems)
        for system in (*systems[shift:], *systems[:shift]):
            yield system.name, clients, size, number
