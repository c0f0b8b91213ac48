"""One run of the script with a fault in it, and all of them for one kind of store."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, NamedTuple

import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker.config import RETRY_SECONDS, STRANDED_SECONDS
from mq.storage.files.calls import FileKind
from mq.storage.files.mount import Mount
from mq.storage.interface import Sharing
from simulation.calls import RecordedCall, StepByStep
from simulation.disk import Disk, Medium
from simulation.faults import Faults, PowerCut
from simulation.run import seeded_clock
from tests.faults.actor import ROOT, Actor, Variant
from tests.faults.ledger import Broken, Ledger
from tests.faults.script import LIVES, litter
from tests.faults.striking import Fault, Kind, StrikingCalls, faults

Life = Callable[[Actor], Awaitable[None]]

SMALL: Final = 1 << 16
"""Bytes. So small a disk has a reserve of one write."""

VARIANTS: Final = {
    "ordered": Variant(Mount("ordered", atomic_rename=True, ordered=True, size=SMALL)),
    "unordered": Variant(Mount("unordered", atomic_rename=True, size=SMALL), syncfs=False),
    "link": Variant(Mount("link", size=SMALL)),
    "bare": Variant(Mount("bare", size=SMALL), attributes=False, syncfs=False),
    "log": Variant(Mount("log", atomic_rename=True, ordered=True, logged=True, size=SMALL), log=True),
    "at once": Variant(Mount("at once", atomic_rename=True, ordered=True, size=SMALL), at_once=True),
    "shared": Variant(Mount("shared", atomic_rename=True, size=SMALL), sharing=Sharing.PEERS),
    "shared at once": Variant(
        Mount("shared at once", atomic_rename=True, ordered=True, size=SMALL), sharing=Sharing.PEERS, at_once=True
    ),
    "shared link": Variant(Mount("shared link", size=SMALL), sharing=Sharing.PEERS, syncfs=False),
}


class World(NamedTuple):
    """Where a run begins.

    Attributes:
        disk: what is stored.
        ledger: what clients know of it.
        seconds: what Trio's clock says.
        torn: the id of a message that was half written.
    """

    disk: Disk
    ledger: Ledger
    seconds: float
    torn: str = ""

    def copy(self) -> World:
        """Another world just like this one."""
        return copy.deepcopy(self, {id(self.disk.trace): self.disk.trace})


def run(world: World, main: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run `main` in that world, the same way each time."""
    return trio.run(main, world, *args, clock=seeded_clock(0, world.seconds))


async def live(world: World, variant: Variant, life: Life, fault: Fault | None) -> tuple[list[RecordedCall], float]:
    """One life of a broker, perhaps with a fault. The calls it made, and what the clock says after it."""
    calls = StrikingCalls(world.disk, ROOT, fault, attributes=variant.attributes)
    if variant.at_once:
        calls.native = StepByStep(calls)
    try:
        await Actor(variant, calls, world.ledger, fault).live(life)
        _check_nothing_open(world.disk)
    except* PowerCut:
        world.disk.forget_handles()
    return calls.log, trio.current_time()


async def live_and_look(world: World, variant: Variant, life: Life, fault: Fault | None) -> None:
    """One life with a fault, then another one in which all is well and everything must be found.

    Raises:
        Broken: a promise was.
    """

    # What a dead peer left in remove/ is another's once it has lain there for long.
    patience = 3 * STRANDED_SECONDS if variant.sharing is Sharing.PEERS else 0.0

    async def find_on(client: Actor) -> None:
        await _find_everything(client)
        await trio.sleep(patience)
        await wait_all_tasks_blocked()

    async def live_on(client: Actor) -> None:
        await life(client)
        await trio.sleep(RETRY_SECONDS)  # what goes on by itself tries again
        await trio.sleep(patience)
        await wait_all_tasks_blocked()

    await live(world, variant, live_on, fault)
    if fault is None or fault.passes:
        _check_nothing_half_done(world.disk)
    await live(world, variant, find_on, None)
    left = _left(world.disk)
    if fault is not None and fault.kind is Kind.EIO:  # what cannot be read may be whole, and is kept
        left = [path for path in left if not world.torn or world.torn not in path]
    if left:
        raise Broken(f"left behind, though everything was removed: {left}")


async def _find_everything(client: Actor) -> None:
    """What was leased stays so until its lease ends; then all that must be there is there, and is removed."""
    for queue in client.ledger.queues:
        if await client.has_queue(queue):
            await client.drain(queue)
    await client.let_leases_end()
    seen = []
    for queue in client.ledger.queues:
        if await client.has_queue(queue):
            seen += await client.drain(queue)
    client.ledger.check_all_seen(seen)
    async with trio.open_nursery() as nursery:
        for thing in seen:
            nursery.start_soon(client.remove, thing)
    await wait_all_tasks_blocked()


def _check_nothing_open(disk: Disk) -> None:
    if disk._open:
        raise Broken(f"{len(disk._open)} handles were never closed")


def _check_nothing_half_done(disk: Disk) -> None:
    """When all is well again no message is on its way, even without a restart. A deleted queue may be, if it could not
    be told to the reaper."""
    there = [item for folder in ("new", "remove", "state/stage") for item in disk.names(f"{ROOT}/{folder}")]
    half_done = [name for name, kind in there if kind is FileKind.FILE]
    if half_done:
        raise Broken(f"half done: {half_done}")


def _left(disk: Disk) -> list[str]:
    """The files that are there, but for records."""
    folders = ["new", "delay", "remove", "state/stage", "state/properties"]
    folders += [f"queues/{queue}" for queue, _ in disk.names(f"{ROOT}/queues")]
    return [f"{folder}/{name}" for folder in folders for name, _ in disk.names(f"{ROOT}/{folder}")]


class Report(NamedTuple):
    """What came of some runs.

    Attributes:
        calls: the script makes so many.
        runs: how many there were, by what went wrong.
        broken: promises that were not kept, one line each.
    """

    calls: int
    runs: Counter[str]
    broken: list[str]


def strike(name: str, part: int, parts: int) -> Report:
    """Every `parts`-th fault of a variant, beginning with number `part`."""
    variant = VARIANTS[name]
    world = World(Disk(Medium.ORDERED, Random(0), Faults(Random(0), _say_nothing)), Ledger(), 0.0)
    world.disk.mkdir(ROOT)
    calls, runs, broken = 0, Counter[str](), []
    for life in LIVES:
        after = world.copy()
        log, seconds = run(after, live, variant, life, None)
        calls += len(log)
        run(world.copy(), live_and_look, variant, life, None)
        for fault in itertools.islice(faults(log), part, None, parts):
            runs[fault.kind.value] += 1
            try:
                run(world.copy(), live_and_look, variant, life, fault)
            except* Exception as errors:  # noqa: BLE001 - whatever it is, a promise is broken
                broken.append(f"{fault}, in {life.__name__}: {_first(errors)!r}")
        torn = litter(after.disk, after.ledger, seconds, attributes=variant.attributes, log=variant.log)
        world = after._replace(seconds=seconds, torn=torn)
    return Report(calls, runs, broken)


def _say_nothing(text: str) -> None:
    pass


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
