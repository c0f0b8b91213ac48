"""A trial: clients work on a real daemon on a recorded disk; then the power goes, many times, and each time the real
recovery has to bring back what the clients were told.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.crash.bench import Bench, CommandFailed
from tests.crash.images import CrashImages, Cut, choose_cuts, mounted
from tests.crash.judge import Flaw, judge, recover
from tests.crash.launch import Launched
from tests.crash.ledger import Ledger
from tests.crash.recording import Recording
from tests.crash.rig import FileSystem, Rig
from tests.crash.workload import ALONE, LEASE_SECONDS, Plan, Workload
from tests.e2e.daemon import Daemon

ROOT: Final = "root"
"""The root's folder in a recorded file system."""
ONE: Final = Plan()
_ANSWERS: Final = frozenset({"published", "leased", "removed", "created", "deleted"})
_CUTS_A_RECOVERY: Final = 10
STEPS_YEARS: Final = (0, -40, -2, 2, 30)
"""By so many the clock is ahead after a cut. Leases that run are held to what was said where it is not."""
YEAR_NS: Final = 365 * 86_400 * 10**9

Promised = Callable[[Cut], tuple[Ledger, int]]
"""What holds at a cut, and when that was: nanoseconds since 1970."""


class Verdict(NamedTuple):
    """What one cut has shown.

    Attributes:
        unmountable: why the file system itself did not survive; empty when it did.
    """

    cut: str
    flaws: list[Flaw]
    unmountable: str = ""


class Cost(NamedTuple):
    """How often the disk was flushed.

    Attributes:
        alone: times a message, published by one client alone; the move to its queue is included.
        crowd: times an acknowledged change, with all clients at work.
    """

    alone: float
    crowd: float


def record(bench: Bench, system: FileSystem, plan: Plan, seed: int, mutant: str = "") -> Recording:
    """Let the clients of a plan work on a recorded disk."""
    with Rig(bench.folder / "rig", system) as rig:
        with contextlib.ExitStack() as stack:
            daemons = [stack.enter_context(serve(bench, rig, plan, mutant)) for _ in range(plan.daemons)]
            Workload(plan, [daemon.port for daemon in daemons], rig.mark, Random(seed)).run()
        recording = rig.recording()
    return _keep(bench, rig, recording)


@contextlib.contextmanager
def serve(bench: Bench, rig: Rig, plan: Plan = ONE, mutant: str = "") -> Iterator[Daemon]:
    """A daemon on the rig's file system. It ends by kill -9."""
    arguments = ("--visibility", str(LEASE_SECONDS), "--peers", str(plan.daemons - 1))
    arguments += () if plan.has_log else ("MQ_NO_LOG=1",)
    root, log = rig.mountpoint / ROOT, bench.folder / "daemon.log"
    with Launched(mutant, root, log, *arguments) if mutant or plan.has_log else Daemon(root, log, *arguments) as daemon:
        bench.end_with(daemon.pid)
        yield daemon


def cost(recording: Recording) -> Cost:
    """What the clients of a recording made the disk do."""
    begin, crowd, end = (recording.point(mark) for mark in ("begin", "crowd", "end"))
    answers = [mark for mark in recording.marks(end)[len(recording.marks(crowd)) :] if mark.split()[0] in _ANSWERS]
    return Cost(recording.flushes(begin, crowd) / ALONE, recording.flushes(crowd, end) / max(len(answers), 1))


def cut_power(bench: Bench, system: FileSystem, recording: Recording, cuts: Iterable[Cut]) -> Iterator[Verdict]:
    """Cut the power at each of these points of a recording, and judge what the recovery brings back."""

    def promised(cut: Cut) -> tuple[Ledger, int]:
        return Ledger(recording.marks(cut.k)), recording.time_ns(cut.k)

    yield from _judge_each(bench, system, recording, cuts, promised)


def cut_recovery(bench: Bench, system: FileSystem, recording: Recording, count: int, seed: int) -> Iterator[Verdict]:
    """Cut the power once, and again inside the recovery from that, at `count` points. What clients were told before
    the first cut still holds after the second.
    """
    random = Random(seed)
    recoveries = -(-count // _CUTS_A_RECOVERY)
    images = CrashImages(recording, system.atom, bench.folder / "first")
    for first in choose_cuts(recording, recording.point("begin"), recoveries, random):
        image = bench.folder / "first" / "image"
        images.build(first, image)
        ledger, now_ns = Ledger(recording.marks(first.k)), recording.time_ns(first.k)
        try:
            recovery = _record_recovery(bench, system, image, now_ns)
        except CommandFailed as error:
            yield Verdict(str(first), [], str(error))
            continue
        cuts = choose_cuts(recovery, recovery.point("begin"), _CUTS_A_RECOVERY, random)
        for verdict in _judge_each(bench, system, recovery, cuts, partial(_always, ledger, now_ns)):
            yield verdict._replace(cut=f"{first}, then {verdict.cut}")


def _always(ledger: Ledger, now_ns: int, cut: Cut) -> tuple[Ledger, int]:
    """What clients were told before the first cut: after it they were told nothing."""
    return ledger, now_ns


def _record_recovery(bench: Bench, system: FileSystem, image: Path, now_ns: int) -> Recording:
    with Rig(bench.folder / "rig", system, image) as rig:
        rig.mark("begin")
        recover(rig.mountpoint / ROOT, now_ns)
        recording = rig.recording()
    return _keep(bench, rig, recording)


def _keep(bench: Bench, rig: Rig, recording: Recording) -> Recording:
    """The recording without what is not needed any more."""
    base = bench.folder / f"base-{id(recording)}"
    shutil.move(rig.base, base)
    shutil.rmtree(rig.folder)
    return Recording(base, recording.records)


def step_ns(cut: Cut) -> int:
    """By so much the clock is set while the power is off, in nanoseconds."""
    return Random(str(cut)).choice(STEPS_YEARS) * YEAR_NS


def _judge_each(
    bench: Bench, system: FileSystem, recording: Recording, cuts: Iterable[Cut], promised: Promised
) -> Iterator[Verdict]:
    folder = bench.folder / "cuts"
    images = CrashImages(recording, system.atom, folder)
    for cut in cuts:
        images.build(cut, folder / "image")
        try:
            with mounted(system, folder / "image", folder / "mounted") as place:
                flaws = judge(place / ROOT, *promised(cut), step_ns(cut))
        except CommandFailed as error:
            yield Verdict(str(cut), [], str(error))
        else:
            yield Verdict(str(cut), flaws)
