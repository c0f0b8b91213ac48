"""The matrix: each file system with each workload, and every planted bug."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from random import Random
from typing import Final, NamedTuple

from tests.crash.bench import Bench
from tests.crash.failing import fail_disk
from tests.crash.images import Cut, choose_cuts, last_moments
from tests.crash.judge import worst
from tests.crash.mutants import MUTANTS, planted
from tests.crash.rig import FILE_SYSTEMS
from tests.crash.trial import Cost, Verdict, cost, cut_power, cut_recovery, record
from tests.crash.workload import PLANS

SECOND_CUT: Final = "second cut"
"""The workload of clients that do everything, then a cut, then another one inside the recovery from that."""
SECOND_CUT_LOG: Final = "log second cut"
"""The same with a log."""
_CUT_TWICE: Final = {SECOND_CUT: "everything", SECOND_CUT_LOG: "log"}
WORKLOADS: Final = (*PLANS, *_CUT_TWICE)
PROMISED: Final = ("ext4", "xfs", "btrfs", "ext4-nojournal", "overlay")
"""Where mq keeps its promises. On the other file systems of the matrix it cannot."""
FAILURES: Final[Sequence[tuple[str, int | None]]] = (("write", None), ("write", 1), ("flush", None), ("flush", 1))
"""What a disk fails at, and how often; None is for good."""
_AT_A_TIME: Final = 50
_RECORDINGS: Final = 5
"""A planted bug may need clients that meet in a certain way: so often they get the chance."""


class Cell(NamedTuple):
    """What came out for one file system and one workload.

    Attributes:
        bad: at how many of them a promise was broken.
        worst: the worst that was broken; empty for nothing.
        unmountable: after how many cuts the file system itself was beyond repair.
    """

    system: str
    workload: str
    points: int
    bad: int
    worst: str
    unmountable: int
    cost: Cost
    examples: list[Verdict]

    @property
    def is_clean(self) -> bool:
        """Nothing was broken, and something was tried."""
        return self.points > self.unmountable and not self.bad


def try_cell(system: str, workload: str, points: int, seed: int) -> Cell:
    """Record a workload on a file system, cut the power at so many points, and judge them."""
    with Bench() as bench:
        plan = PLANS[_CUT_TWICE.get(workload, workload)]
        recording = record(bench, FILE_SYSTEMS[system], plan, seed)
        if workload in _CUT_TWICE:
            verdicts = cut_recovery(bench, FILE_SYSTEMS[system], recording, points, seed)
        else:
            cuts = choose_cuts(recording, recording.point("begin"), points, Random(seed))
            verdicts = cut_power(bench, FILE_SYSTEMS[system], recording, cuts)
        return _count(system, workload, verdicts, cost(recording))


def _count(system: str, workload: str, verdicts: Iterable[Verdict], cost: Cost) -> Cell:
    seen = list(verdicts)
    bad = [verdict for verdict in seen if verdict.flaws]
    flaws = [flaw for verdict in bad for flaw in verdict.flaws]
    unmountable = sum(bool(verdict.unmountable) for verdict in seen)
    return Cell(system, workload, len(seen), len(bad), worst(flaws), unmountable, cost, bad[:5])


class Found(NamedTuple):
    """What became of a planted bug.

    Attributes:
        points: how many points it took to find it, or were tried in vain.
        how: what it broke; empty when it was not found.
    """

    mutant: str
    system: str
    points: int
    how: str


def hunt(mutant: str, seed: int) -> Found:
    """Plant a bug, and look for what it breaks until something is found."""
    name = MUTANTS[mutant].system
    if MUTANTS[mutant].fails:
        with Bench() as bench:
            wrong = fail_disk(bench, FILE_SYSTEMS[name], "write", 1, mutant=mutant)
            return Found(mutant, name, 1, wrong[-1] if wrong else "")
    points = 0
    for turn in range(_RECORDINGS):
        with closing(_hunt_once(mutant, name, seed + turn)) as verdicts:
            for verdict in verdicts:
                points += 1
                if verdict.flaws:
                    return Found(mutant, name, points, worst(verdict.flaws))
    return Found(mutant, name, points, "")


def _hunt_once(mutant: str, system: str, seed: int) -> Generator[Verdict]:
    """What every last moment of one recording shows."""
    with Bench() as bench:
        recording = record(bench, FILE_SYSTEMS[system], PLANS[MUTANTS[mutant].workload], seed, mutant)
        with planted(mutant):
            cuts = _here_and_there(last_moments(recording, recording.point("begin")), Random(seed))
            yield from cut_power(bench, FILE_SYSTEMS[system], recording, cuts)


def _here_and_there(cuts: list[Cut], random: Random) -> Iterator[Cut]:
    """All of them, some from everywhere first; each time in order, which is cheaper."""
    rest = random.sample(cuts, len(cuts))
    for start in range(0, len(rest), _AT_A_TIME):
        yield from sorted(rest[start : start + _AT_A_TIME], key=lambda cut: cut.k)


def break_disks(systems: Iterable[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(file system, how its disk failed, what was wrong then) for every way to fail."""
    for system in systems:
        for what, times in FAILURES:
            for remount in (True, False):
                with Bench() as bench:
                    wrong = fail_disk(bench, FILE_SYSTEMS[system], what, times, remount=remount)
                how = f"{what} {'once' if times else 'for good'}, {'remounted' if remount else 'restarted only'}"
                yield system, how, wrong
