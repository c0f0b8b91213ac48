"""A store with a log: a batch is one flush, files are as without a log, and a cut takes nothing that was answered."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import with_checksum
from mq.storage.conformance import (
    CHECKS,
    REOPENING_CHECKS,
    Check,
    ReopeningCheck,
    run_check,
    run_reopening_check,
)
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.doctor import FindingKind, open_to_inspect, repair
from mq.storage.files.format import RootUse, note_use, open_moves_lock, read_use
from mq.storage.files.hop import inline_hop
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.layout import Layout
from mq.storage.files.logged.engine import LoggedEngine
from mq.storage.files.logged.log import Log
from mq.storage.files.logged.record import (
    LARGEST_INLINE,
    Forgotten,
    Kept,
    Moved,
    QueueRemoved,
    Refused,
    Removed,
    Saying,
    Wrote,
    decode,
    encode,
)
from mq.storage.files.logged.segments import read_log
from mq.storage.files.mount import Mount, mount_of
from mq.storage.files.movers import unrepaired
from mq.storage.files.posix import FolderStorage
from mq.storage.files.records import Records
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import (
    FRESH,
    QUEUE,
    Entry,
    Group,
    Move,
    Outcome,
    Put,
    Result,
    Sharing,
    Storage,
    Unlink,
    Write,
    damages_of,
)
from mq.storage.options import StorageOptions
from mq.storage.records import drop_record, put_record
from simulation import disk as simulated
from simulation.calls import FaultyCalls, StepByStep
from simulation.faults import DiskFault, Faults, PowerCut
from tests.cases import for_each
from tests.storage.disks import LEASE, MOUNTS, Disk, new_id

SEEDS: Final = range(12)
"""Each loses something else in a power cut."""
LOG_BYTES: Final = 1 << 16
WHOLE: Final = "state/log/whole"
HALF: Final = "state/log/half"
LOGGED: Final = MOUNTS["rename"]._replace(logged=True)


class CutDisk(Disk):
    """A store with a log, on a disk whose power can be cut."""

    def __init__(
        self, seed: int = 0, *, ordered: bool = True, log: bool = True, room: int = 0, told_together: int = 0
    ) -> None:
        random = Random(seed)
        medium = simulated.Medium.ORDERED if ordered else simulated.Medium.UNORDERED
        self.odds = Faults(random, lambda told: None)
        self.power = simulated.Disk(medium, random, self.odds)
        mount = MOUNTS["rename" if ordered else "unordered"]._replace(logged=True, size=room)
        super().__init__(
            mount, self.power, "/root", syncfs=True, told_together=told_together, log=log, log_bytes=LOG_BYTES
        )

    @property
    def log(self) -> Log:
        engine = self.storage._root_open.engine
        assert isinstance(engine, LoggedEngine)
        return engine.root.log

    def pending(self) -> int:
        """How many records count."""
        return len(read_log(self.power, "/root/state/log"))

    async def cut(self, after: int | None = None) -> bool:
        """The power fails, and the store is opened again; where `after` is given, until the power fails once more at
        that call. Whether the store is open.
        """
        self.power.crash()
        self.odds.lift()
        self._storage = None
        self.odds.cut_at = None if after is None else self.odds.calls + after
        try:
            await self.open()
        except PowerCut:
            return False
        self.odds.lift()
        return True


@asynccontextmanager
async def begun(
    seed: int = 0, *, ordered: bool = True, room: int = 0, told_together: int = 0
) -> AsyncIterator[CutDisk]:
    disk = CutDisk(seed, ordered=ordered, room=room, told_together=told_together)
    await disk.open()
    await disk.make_queue()
    disk.calls.log.clear()
    yield disk
    await disk.check_whole()


# The promises


@asynccontextmanager
async def opened(disk: CutDisk) -> AsyncIterator[Storage]:
    storage = disk.another()
    await storage.open()
    try:
        yield storage
    finally:
        await storage.aclose()


@pytest.mark.slow
@for_each("told_together", [0, 1, 16])
@for_each("check", CHECKS)
async def test_promise_is_kept(check: Check, told_together: int) -> None:
    await run_check(check, lambda: opened(CutDisk(told_together=told_together)))


@for_each("check", REOPENING_CHECKS)
async def test_promise_is_kept_over_reopening(check: ReopeningCheck) -> None:
    disks: list[CutDisk] = []

    def make() -> object:
        disks.append(CutDisk())
        return opened(disks[-1])

    await run_reopening_check(check, make, lambda: opened(disks[-1]))


# A batch


async def test_a_batch_is_one_flush_and_no_other_sync() -> None:
    async with begun() as disk:
        await disk.commit(*(Write("q", new_id(), b"body") for _ in range(10)))
        assert len(disk.calls.said("fdatasync")) == 1
        assert disk.calls.said("fsync", "syncfs") == []


async def test_what_is_not_durable_is_in_a_record_and_not_flushed() -> None:
    async with begun() as disk:
        entry = await disk.bring(State.NEW)
        disk.calls.log.clear()
        await disk.done(Move(entry, State.READY, durable=False))
        assert len(disk.calls.said("write_at")) == 1
        assert disk.calls.said("fdatasync", "fsync", "syncfs") == []


async def test_a_message_is_a_plain_file_at_once_and_at_rest_nothing_else_is_there() -> None:
    async with begun() as disk:
        entry = await disk.bring(State.READY, b"hello")
        assert disk.bytes_of(f"queues/q/{entry.id}") == b"hello"
        await disk.storage.aclose()
        disk._storage = None
        assert disk.pending() == 0
        assert disk.files("queues", "new", "delay", "remove") == {f"queues/q/{entry.id}"}


LARGE: Final = LARGEST_INLINE + 1
_BRINGS: Final = ("write_out", "touch", "fsync", "syncfs", "write_at", "fdatasync")


def brought(disk: CutDisk) -> list[str]:
    """The calls by which bytes come to the medium, in order, with the folder they are in."""
    return [" ".join((call.verb, call.path.rpartition("/")[0])) for call in disk.calls.log if call.verb in _BRINGS]


async def test_large_bodies_and_their_record_share_one_flush() -> None:
    async with begun() as disk:
        outcomes = await disk.commit(*(Write("q", new_id(), bytes([number]) * LARGE) for number in range(5)))
        begins = ["write_out state/stage"] * 5
        waits = ["write_out state/stage"] * 5
        log = ["write_at state/log"], ["write_out state/log"]
        assert brought(disk) == [*begins, *log[0], *waits, *log[1], "touch state/stage", "fsync state/stage"]
        assert [call.detail for call in disk.calls.log if call.verb == "write_out"] == ["begin"] * 5 + ["wait"] * 6
        assert all(len(record.payload) < LARGEST_INLINE for record in read_log(disk.power, "/root/state/log"))
        await disk.cut()
        assert [await disk.body(each.entry) for each in outcomes if each.entry] == [
            bytes([n]) * LARGE for n in range(5)
        ]


async def test_a_group_without_a_large_body_costs_the_sync_of_its_record() -> None:
    async with begun() as disk:
        assert await disk.one(Group((Put("kind", "key", {}), Write("q", new_id(), b"small")))) is Result.DONE
        assert brought(disk) == ["write_at state/log", "fdatasync state/log"]


async def test_a_large_body_of_a_group_is_on_the_medium_before_its_record() -> None:
    async with begun() as disk:
        group = Group((Put("kind", "key", {}), Write("q", new_id(), bytes(LARGE))))
        assert await disk.one(group) is Result.DONE
        body = ["write_out state/stage", "touch state/stage", "fsync state/stage"]
        assert brought(disk) == [*body, "write_at state/log", "fdatasync state/log"]


@pytest.mark.parametrize("bodies", [1, 5])
async def test_without_ordered_names_large_bodies_are_on_the_medium_before_their_record(bodies: int) -> None:
    async with begun(ordered=False) as disk:
        outcomes = await disk.commit(*(Write("q", new_id(), bytes([number]) * LARGE) for number in range(bodies)))
        assert [call.split()[0] for call in brought(disk)] == ["syncfs", "write_at", "fdatasync"]
        await disk.cut()
        found = [await disk.body(each.entry) for each in outcomes if each.entry]
        assert found == [bytes([number]) * LARGE for number in range(bodies)]


@pytest.mark.slow
@for_each("grouped", [False, True])
@for_each("ordered", [True, False])
@for_each("seed", [6, 8, 10])
async def test_a_cut_while_large_bodies_are_on_their_way_leaves_each_whole_or_nothing_of_it(
    seed: int, ordered: bool, grouped: bool
) -> None:
    size = LOG_BYTES // 4  # more than a record of so small a log holds
    for call in range(1, 100):
        async with begun(seed, ordered=ordered) as disk:
            kept = await disk.bring(State.READY, b"k" * size)
            writes = [Write("q", new_id(), bytes([number]) * size) for number in range(1, 4)]
            units = [Group((Put("kind", each.id, {}), each)) for each in writes] if grouped else writes
            disk.odds.cut_at = disk.odds.calls + call
            was_cut = False
            try:
                assert [each.result for each in await disk.commit(*units)] == [Result.DONE] * 3
            except PowerCut:
                was_cut = True
            await disk.cut()
            bodies = {entry.id: await disk.body(entry) for entry in await disk.everything()}
            assert bodies.pop(kept.id) == b"k" * size
            assert bodies.items() <= {each.id: each.body for each in writes}.items()
            assert was_cut or len(bodies) == 3
            if grouped:
                assert (await disk.storage.records("kind")).keys() == bodies.keys()
            if not was_cut:
                return
    pytest.fail("the batch makes more calls than there were cuts")


@for_each("seed", SEEDS)
@for_each("verb, where", [("write_out", "wait"), ("fsync", "file")])
async def test_large_bodies_of_a_failed_flush_are_never_half_there(seed: int, verb: str, where: str) -> None:
    """The process is killed before it takes them away. The kernel has them in memory, and takes them for written."""

    def kill() -> None:
        raise PowerCut

    async with begun(seed) as disk:
        disk.odds.active["failed"] = DiskFault(errno.EIO, frozenset({verb}), 1.0, passes=False, where=where)
        disk.calls.just_before("unlink", "state/stage/*", kill)
        writes = [Write("q", new_id(), bytes([number]) * LARGE) for number in range(3)]
        with pytest.raises(PowerCut):
            await disk.commit(*writes)
        disk.odds.lift()
        disk.power.forget_handles()
        disk._storage = None
        await disk.open()
        there = await disk.everything()
        assert len(there) == 3
        await disk.cut()
        assert await disk.everything() == there
        assert {entry.id: await disk.body(entry) for entry in there} == {each.id: each.body for each in writes}


# What is told before the batch ends


@pytest.fixture(params=[False, True], ids=["one by one", "natively"])
def natively(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether stores make many calls in one, as with mq-native."""
    if request.param:
        monkeypatch.setattr(FaultyCalls, "native", property(StepByStep))
    return bool(request.param)


class Told:
    """What a store told of a batch that it did, or did not do to its end."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.portions: list[int] = []

    def hear(self, outcomes: Sequence[Outcome], _: float) -> None:
        self.outcomes += outcomes
        self.portions.append(len(outcomes))


async def test_outcomes_are_told_as_their_file_calls_are_made(natively: bool) -> None:
    async with begun(told_together=2) as disk:
        told = Told()
        kept = [await disk.bring(State.READY) for _ in range(3)]
        writes = [Write("q", new_id(), b"body", state=State.READY) for _ in range(5)]
        moves = [Move(entry, State.DELAYED, LEASE) for entry in kept[:2]]
        returned = await disk.storage.commit_in_parts([*writes, *moves, Unlink(kept[2], durable=True)], told.hear)
        places = [*(write.entry for write in writes), *(move.target for move in moves), None]
        assert [each.entry for each in told.outcomes + returned] == places
        assert all(each.result is Result.DONE for each in told.outcomes + returned)
        assert told.portions in ([2, 2, 2], [2, 2, 2, 2])


@pytest.mark.parametrize("with_native", [False, True])
async def test_what_a_reaper_takes_away_comes_in_the_same_batch(
    with_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, a message that is gone, and a deleted queue with a message in it: each has its own outcome."""
    if with_native:
        monkeypatch.setattr(FaultyCalls, "native", property(StepByStep))
    async with begun(told_together=2) as disk:
        told = Told()
        removed = [await disk.bring(State.REMOVED) for _ in range(2)]
        await put_record(disk.storage, "queue", "other", {})
        await disk.bring(State.READY, queue="other")
        await drop_record(disk.storage, "queue", "other")
        [folder] = [entry for entry in await disk.storage.scan(State.REMOVED) if entry not in removed]
        gone = removed[0]._replace(id=new_id())
        writes = [Write("q", new_id(), b"body", state=State.READY) for _ in range(4)]
        batch = [
            writes[0],
            Unlink(removed[0]),
            Unlink(gone),
            writes[1],
            Unlink(folder),
            Unlink(removed[1]),
            *writes[2:],
        ]
        returned = await disk.storage.commit_in_parts(batch, told.hear)
        outcomes = told.outcomes + returned
        results = [each.result for each in outcomes]
        assert results[2] is Result.GONE
        assert results[:2] + results[3:] == [Result.DONE] * 7
        assert len(told.outcomes) in (0, 2)  # nothing from the one that is gone on
        assert await disk.storage.scan(State.REMOVED) == []
        assert set(await disk.storage.scan(State.READY, "q")) == {write.entry for write in writes}


@pytest.mark.parametrize(("size", "told_of"), [(1, 0), (5, 0), (6, 4)])
async def test_of_a_small_batch_nothing_is_told_before_its_end(natively: bool, size: int, told_of: int) -> None:
    async with begun(told_together=2) as disk:
        told = Told()
        writes = [Write("q", new_id(), b"body") for _ in range(size)]
        returned = await disk.storage.commit_in_parts(writes, told.hear)
        assert [each.entry for each in told.outcomes + returned] == [write.entry for write in writes]
        assert len(told.outcomes) in (told_of, told_of and size)


async def test_of_a_batch_that_needs_several_records_is_told_through_all_of_them(natively: bool) -> None:
    async with begun(told_together=2) as disk:
        told = Told()
        writes = [Write("q", new_id(), bytes(LOG_BYTES // 16)) for _ in range(20)]
        returned = await disk.storage.commit_in_parts(writes, told.hear)
        assert len(disk.calls.said("fdatasync")) > 3
        assert [each.entry for each in told.outcomes + returned] == [write.entry for write in writes]
        assert len(told.outcomes) >= 17


async def test_from_a_refusal_on_nothing_is_told(natively: bool) -> None:
    async with begun(told_together=1) as disk:
        told = Told()
        writes = [Write("q", new_id(), bytes(LOG_BYTES // 16)) for _ in range(20)]
        returned = await disk.storage.commit_in_parts([*writes[:9], writes[0], *writes[9:]], told.hear)
        expected = [Outcome(Result.DONE, write.entry) for write in writes]
        expected.insert(9, Outcome(Result.EXISTS))
        assert told.outcomes + returned == expected
        assert len(told.outcomes) in (8, 9)  # the last of a record is told with the next one's


@pytest.mark.slow
@pytest.mark.in_turn(2)
@for_each("seed", SEEDS)
async def test_a_cut_takes_nothing_that_was_told(natively: bool, seed: int) -> None:
    """At each call of a batch in which one operation is refused: what it told of is there, as it told."""
    for call in itertools.count(1):
        async with begun(seed, told_together=2) as disk:
            told, returned = Told(), list[Outcome]()
            held, gone = await disk.bring(State.READY, b"held"), await disk.bring(State.READY, b"gone")
            writes = [Write("q", new_id(), b"%d" % number) for number in range(8)]
            batch = [
                Unlink(gone, durable=True),
                Move(held, State.DELAYED, LEASE),
                *writes[:6],
                Move(held, State.DELAYED, LEASE),
                *writes[6:],
            ]
            disk.odds.cut_at = disk.odds.calls + call
            with suppress(PowerCut):
                returned = await disk.storage.commit_in_parts(batch, told.hear)
            await disk.cut()
            there = {entry: await disk.body(entry) for entry in await disk.everything()}
            answered = list(zip(batch, told.outcomes + returned, strict=False))
            for operation, outcome in answered:
                if outcome.entry is not None:
                    body = operation.body if isinstance(operation, Write) else b"held"
                    assert there[outcome.entry] == body
                elif isinstance(operation, Unlink):
                    assert gone not in there
            bodies = {b"held", b"gone", *(b"%d" % number for number in range(8))}
            assert set(there.values()) <= bodies
            assert len(there) <= 10
            if returned:
                assert len(answered) == len(batch)
                return


# Cuts


@for_each("ordered", [True, False])
@for_each("seed", SEEDS)
async def test_a_cut_takes_nothing_that_was_answered(seed: int, ordered: bool) -> None:
    async with begun(seed, ordered=ordered) as disk:
        await disk.make_queue("other")
        kept = [await disk.bring(state, b"k" * 10, note="n") for state in (State.NEW, State.READY, State.DELAYED)]
        moved = await disk.done(Move(kept.pop(1), State.READY, queue="other"))
        gone = await disk.bring(State.DELAYED)
        assert await disk.one(Unlink(gone, durable=True)) is Result.DONE
        await disk.cut()
        assert await disk.everything("q", "other") == {*kept, moved}
        assert [await disk.body(entry) for entry in (*kept, moved)] == [b"k" * 10] * 3
        assert await disk.attributes(moved) == {"note": "n"}


@for_each("seed", SEEDS)
@for_each("size", [10, LARGEST_INLINE + 1])
async def test_a_queue_that_was_deleted_and_made_again_is_another_one(seed: int, size: int) -> None:
    """Its folder is emptied while the log still speaks of the first one, and has no large body of the second."""
    async with begun(seed) as disk:
        await disk.bring(State.READY, b"of the first")
        await drop_record(disk.storage, QUEUE, "q")
        [grave] = await disk.storage.scan(State.REMOVED)
        while await disk.one(Unlink(grave)) is not Result.GONE:
            pass
        await disk.make_queue()
        kept = await disk.bring(State.READY, b"2" * size)
        await disk.cut()
        assert set(await disk.storage.records(QUEUE)) == {"q"}
        # The end of the first one's empty folder need not be durable: the reaper takes that away again.
        assert await disk.everything() - {grave} == {kept}
        assert await disk.body(kept) == b"2" * size


async def test_the_end_of_a_deleted_queue_empties_no_log() -> None:
    """The log speaks of its folder, which stays in remove/, empty, until the log does not."""
    async with begun() as disk:
        await disk.bring(State.READY)
        checkpoints = disk.log.checkpoints
        await drop_record(disk.storage, QUEUE, "q")
        [grave] = await disk.storage.scan(State.REMOVED)
        disk.calls.log.clear()
        assert [await disk.one(Unlink(grave)) for _ in range(2)] == [Result.DONE, Result.GONE]
        assert disk.calls.said("fdatasync", "fsync", "syncfs") == []
        assert await disk.storage.scan(State.REMOVED) == []
        assert disk.log.checkpoints == checkpoints
        assert f"remove/{grave.queue}:{grave.id}" in disk.tree()
        disk.log.empty()
        assert f"remove/{grave.queue}:{grave.id}" not in disk.tree()
        await disk.make_queue()


async def test_foreign_things_in_a_deleted_queue_are_said_and_stay() -> None:
    async with begun() as disk:
        disk.put("queues/q/notes.txt", b"mine")
        await drop_record(disk.storage, QUEUE, "q")
        [grave] = await disk.storage.scan(State.REMOVED)
        assert await disk.one(Unlink(grave)) is Result.EXISTS
        disk.log.empty()
        assert disk.bytes_of(f"remove/{grave.queue}:{grave.id}/notes.txt") == b"mine"
        await disk.make_queue()


@for_each("seed", SEEDS)
async def test_what_was_refused_after_its_record_is_not_done_after_a_cut(seed: int) -> None:
    async with begun(seed) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("rename", errno.ENOSPC, times=None)
        outcome = (await disk.commit(Move(entry, State.DELAYED, LEASE)))[0]
        disk.heal()
        assert outcome.result is Result.FULL
        await disk.cut()
        assert await disk.everything() == {entry}


@for_each("seed", SEEDS)
@for_each("ordered", [True, False])
async def test_a_queue_whose_folder_could_not_be_made_is_not_there_after_a_cut(seed: int, ordered: bool) -> None:
    async with begun(seed, ordered=ordered) as disk:
        disk.calls.fail("mkdir", errno.ENOSPC, path="queues/other")
        with pytest.raises(StorageFull):
            await disk.make_queue("other")
        disk.heal()
        await disk.cut()
        assert set(await disk.storage.records(QUEUE)) == {"q"}


@for_each("seed", SEEDS)
async def test_a_queue_whose_new_folder_could_not_be_opened_is_not_there_after_a_cut(seed: int) -> None:
    """Its folder is taken away again, and a power cut must not bring back that name, which alone makes a queue."""
    async with begun(seed, ordered=False) as disk:
        disk.calls.fail("open", errno.EMFILE, path="queues/other")
        with pytest.raises(StorageFull):
            await disk.make_queue("other")
        disk.heal()
        await disk.cut()
        assert set(await disk.storage.records(QUEUE)) == {"q"}


@for_each("seed", SEEDS)
@for_each("ordered", [True, False])
async def test_a_deleted_queue_whose_record_could_not_go_is_not_there_after_a_cut(seed: int, ordered: bool) -> None:
    async with begun(seed, ordered=ordered) as disk:
        disk.calls.fail("unlink", errno.ENOMEM, path="state/records/queue/*", times=None)
        assert await drop_record(disk.storage, QUEUE, "q")
        disk.heal()
        disk.log.empty()
        await disk.cut()
        assert await disk.storage.records(QUEUE) == {}


@for_each("seed", SEEDS)
@for_each("ordered", [True, False])
@for_each("state", [State.READY, State.DELAYED])
async def test_of_a_write_that_was_refused_half_way_nothing_comes_back(seed: int, ordered: bool, state: State) -> None:
    """Not where a cut takes the unlink back and leaves the file; and what was there before stays."""
    async with begun(seed, ordered=ordered) as disk:
        there = await disk.bring(state)
        disk.calls.fail("write", errno.ENOSPC, times=1)
        meta = LEASE if state is State.DELAYED else FRESH
        refused = Write("q", new_id(), b"half of this", state=state, meta=meta)
        again = Write("q", there.id, b"another", state=state, meta=there.meta)
        results = [outcome.result for outcome in await disk.commit(refused, again)]
        disk.heal()
        assert results == [Result.FULL, Result.EXISTS]
        await disk.cut()
        assert await disk.everything() == {there}


@for_each("seed", SEEDS)
@for_each("ordered", [True, False])
@for_each("number", [1, 2])
async def test_of_a_record_that_was_refused_half_way_nothing_comes_back(seed: int, ordered: bool, number: int) -> None:
    """A version whose removal a cut takes back is not reported as damaged, which would pause its queue."""
    async with begun(seed, ordered=ordered) as disk:
        kept = {"r": {"number": 1}} if number > 1 else {}
        for key, value in kept.items():
            await put_record(disk.storage, "ledger", key, value)
        disk.calls.fail("write", errno.ENOSPC, times=1)
        [outcome] = await disk.commit(Put("ledger", "r", {"number": number}))
        disk.heal()
        assert outcome.result is Result.FULL
        await disk.cut()
        assert damages_of(disk.storage) == []
        assert await disk.storage.records("ledger") == kept


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
async def test_a_group_is_whole_or_not_there_after_a_cut_at_any_call(ordered: bool) -> None:
    endings: set[bool] = set()
    for number in range(1, 100):
        async with begun(number, ordered=ordered) as disk:
            entry = await disk.bring(State.READY)
            await put_record(disk.storage, "ledger", "old", {})
            group = Group((Write("q", new_id(), b"new"), Move(entry, State.DELAYED, LEASE), Put("ledger", "new", {})))
            disk.odds.cut_at = disk.odds.calls + number
            try:
                outcomes = await disk.storage.commit([group])
            except PowerCut:
                outcomes = []
            await disk.cut()
            found = (len(await disk.everything()), sorted(await disk.storage.records("ledger")))
            assert found in ((1, ["old"]), (2, ["new", "old"])), number
            assert found[0] == 2 or not outcomes
            endings.add(found[0] == 2)
        if outcomes:
            break
    assert endings == {True, False}


@for_each("ordered", [True, False])
@for_each(
    "verb, path",
    [("open", "state/records/ledger/knew*"), ("open", "queues/q/*"), ("rename", "queues/q/*"), ("rename", "*")],
)
@for_each("seed", range(4))
async def test_of_a_group_that_was_refused_half_way_nothing_comes_back(
    seed: int, ordered: bool, verb: str, path: str
) -> None:
    async with begun(seed, ordered=ordered) as disk:
        entry = await disk.bring(State.READY)
        await put_record(disk.storage, "ledger", "old", {"n": 1})
        write = Write("q", new_id(), b"new", state=State.READY)
        records = (Put("ledger", "old", {"n": 2}), Put("ledger", "new", {}))
        disk.calls.fail(verb, errno.ENOSPC, path=path, times=None)
        [outcome, beside] = await disk.storage.commit(
            [Group((write, Move(entry, State.DELAYED, LEASE), *records)), Put("other", "beside", {})]
        )
        disk.heal()
        assert (outcome.result, beside.result) == (Result.FULL, Result.DONE)
        for _ in range(2):
            assert await disk.everything() == {entry}
            assert await disk.storage.records("ledger") == {"old": {"n": 1}}
            await disk.cut()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
async def test_a_group_is_whole_or_not_there_beside_the_end_of_a_deleted_queue(seed: int) -> None:
    for number in range(1, 200):
        async with begun(seed) as disk:
            await disk.make_queue("gone")
            await drop_record(disk.storage, QUEUE, "gone")
            [grave] = await disk.storage.scan(State.REMOVED)
            ids = {"refused": new_id(), "done": new_id()}
            groups = [
                Group((Put("ledger", name, {}), Write("q", id, b"new", state=state)))
                for (name, id), state in zip(ids.items(), (State.READY, State.NEW), strict=True)
            ]
            disk.calls.fail("open", errno.ENOSPC, path="queues/q/*", times=None)
            disk.odds.cut_at = disk.odds.calls + number
            try:
                outcomes = await disk.storage.commit([*groups, Unlink(grave)])
            except PowerCut:
                outcomes = []
            disk.heal()
            await disk.cut()
            there = {entry.id for entry in await disk.everything()}
            records = await disk.storage.records("ledger")
            assert {name for name, id in ids.items() if id in there} == set(records), number
        if outcomes:
            break
    assert [outcome.result for outcome in outcomes] == [Result.FULL, Result.DONE, Result.DONE]
    assert set(records) == {"done"}


async def test_a_group_that_is_half_done_is_marked_at_every_call() -> None:
    """For a backup, which sees the files and not the log."""
    halves = 0
    for number in range(1, 100):
        async with begun(number) as disk:
            disk.odds.cut_at = disk.odds.calls + number
            try:
                outcomes = await disk.storage.commit([Group((Put("ledger", "new", {}), Write("q", new_id(), b"new")))])
            except PowerCut:
                outcomes = []
            disk.odds.lift()
            names = disk.tree()
            made = [any(name.startswith(start) for name in names) for start in ("state/records/ledger/", "new/")]
            assert made[0] == made[1] or HALF in names, number
            halves += made[0] != made[1]
            await disk.cut()
            assert HALF not in disk.tree(), number
        if outcomes:
            break
    assert halves


@pytest.mark.parametrize("before", [WHOLE, HALF, ""])
async def test_the_mark_of_a_group_may_be_taken_away_by_hand(before: str) -> None:
    async with begun() as disk:
        await disk.storage.commit([Group((Put("ledger", "old", {}), Write("q", new_id(), b"old")))])
        name = f"{disk.root}/{WHOLE}"
        if before == HALF:
            disk.power.rename(name, f"{disk.root}/{HALF}")
        elif not before:
            disk.power.unlink(name)
        marked = disk.calls.just_before("open", "state/records/ledger/*", lambda: looks.append(HALF in disk.tree()))
        looks: list[bool] = []
        await disk.storage.commit([Group((Put("ledger", "new", {}), Write("q", new_id(), b"new")))])
        assert marked
        assert looks[0]
        assert (HALF in disk.tree(), WHOLE in disk.tree()) == (False, True)


async def test_a_start_and_a_group_with_both_marks() -> None:
    """Where names have no order a cut can leave both, and a hand can make them."""
    async with begun() as disk:
        group = Group((Put("ledger", "old", {}), Write("q", new_id(), b"old")))
        await disk.storage.commit([group])
        disk.power.close(disk.power.open(f"{disk.root}/{HALF}", os.O_CREAT | os.O_WRONLY))
        await disk.storage.commit([Group((Put("ledger", "new", {}), Write("q", new_id(), b"new")))])
        assert (HALF in disk.tree(), WHOLE in disk.tree()) == (False, True)
        disk.power.close(disk.power.open(f"{disk.root}/{HALF}", os.O_CREAT | os.O_WRONLY))
        disk.power.fsync(disk.power.open(f"{disk.root}/state/log", os.O_RDONLY | os.O_DIRECTORY))
        assert await disk.cut()
        assert (HALF in disk.tree(), WHOLE in disk.tree()) == (False, True)
        assert set(await disk.storage.records("ledger")) == {"old", "new"}


async def test_a_full_disk_refuses_groups_that_it_cannot_mark_and_nothing_else() -> None:
    async with begun(room=1 << 20) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("rename", errno.ENOSPC, path="state/log/*", times=None)
        group = Group((Put("ledger", "new", {}), Write("q", new_id(), b"new")))
        outcomes = await disk.storage.commit([Unlink(entry), group, Put("other", "beside", {})])
        disk.heal()
        assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.FULL, Result.DONE]
        given_up = [call for call in disk.calls.log if call[:2] == ("unlink", "state/ballast")]
        assert given_up == [], "it is for fetches and removals"
        [outcome] = await disk.storage.commit([group])
        assert outcome.result is Result.DONE
        assert HALF not in disk.tree()


async def test_a_group_is_over_where_a_full_disk_lets_nothing_be_renamed() -> None:
    async with begun() as disk:
        disk.calls.fail("rename", errno.ENOSPC, path=HALF, times=None)
        [outcome] = await disk.storage.commit([Group((Put("ledger", "new", {}), Write("q", new_id(), b"new")))])
        disk.heal()
        assert outcome.result is Result.DONE
        assert HALF not in disk.tree()


async def test_a_group_of_many_reads_no_record_but_its_own() -> None:
    async with begun() as disk:
        await put_record(disk.storage, "ledger", "another", {})
        disk.calls.fail("open", errno.EMFILE, path="state/records/ledger/kanother*", times=None)
        group = Group((*(Write("q", new_id(), b"new") for _ in range(3)), Put("ledger", "new", {})))
        [outcome] = await disk.storage.commit([group])
        disk.heal()
        assert outcome.result is Result.DONE


@pytest.mark.slow
@for_each("seed", SEEDS)
async def test_a_cut_inside_the_recovery_takes_nothing_either(seed: int) -> None:
    """At every fifth call of the recovery from the cut before."""
    async with begun(seed) as disk:
        kept = {await disk.bring(state) for state in (State.NEW, State.READY, State.DELAYED)}
        cuts = 0
        while not await disk.cut(after=1 + 5 * cuts):
            cuts += 1
        assert cuts > 10
        assert await disk.everything() == kept


@pytest.mark.parametrize("survived", [True, False], ids=["known", "unknown"])
async def test_what_a_failed_sync_left_in_memory_is_on_the_medium_after_the_next_start(
    survived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync that failed is told once: to the next one the kernel says that all is well. Whether or not it is known
    that the kernel lives on."""
    monkeypatch.setattr(Log, "survived", property(lambda log: survived))
    async with begun() as disk:
        kept = {await disk.bring(state, b"body of some length") for state in (State.READY, State.DELAYED)}
        await put_record(disk.storage, "kind", "key", {"value": 1})
        disk.odds.active["failed"] = DiskFault(errno.EIO, frozenset({"syncfs"}), 1.0, passes=False)
        with pytest.raises(OSError, match="Input"):
            disk.power.syncfs(disk.folders.volume.syncs.root_fd)  # as at a checkpoint; the process is killed then
        disk.odds.lift()
        disk.power.forget_handles()
        disk._storage = None
        await disk.open()
        assert await disk.everything() == kept
        await disk.cut()
        assert await disk.everything() == kept
        assert {await disk.body(entry) for entry in kept} == {b"body of some length"}
        assert await disk.storage.records("kind") == {"key": {"value": 1}}


# What an operator does


async def test_what_was_taken_away_by_hand_stays_away_once_the_log_is_empty() -> None:
    async with begun() as disk:
        entry = await disk.bring(State.READY)
        disk.log.empty()
        disk.power.unlink(f"/root/{disk.path(entry)}")
        disk.power.syncfs(disk.folders.volume.syncs.root_fd)
        await disk.cut()
        assert await disk.everything() == set()


async def test_what_was_moved_by_hand_stays_where_it_is() -> None:
    async with begun() as disk:
        await disk.make_queue("other")
        entry = await disk.bring(State.READY)
        disk.power.rename(f"/root/queues/q/{entry.id}", f"/root/queues/other/{entry.id}")
        disk.power.syncfs(disk.folders.volume.syncs.root_fd)
        await disk.cut()
        assert await disk.everything("q", "other") == {entry._replace(queue="other")}


# Who opens what


async def test_without_a_log_what_it_says_is_done_and_it_goes() -> None:
    disk = CutDisk(1)
    await disk.open()
    await disk.make_queue()
    kept = await disk.bring(State.READY)
    disk.power.crash()
    disk._storage = None
    plain = FolderStorage(
        "test:/root",
        "/root",
        disk.power,
        StorageOptions(log=False),
        mount=lambda root: disk.mount,
        hop=inline_hop,
        syncfs=True,
    )
    await plain.open()
    assert await plain.scan(State.READY, "q") == [kept]
    await plain.aclose()
    assert not any(path.startswith("state/log") for path in disk.tree())


@pytest.mark.parametrize(
    ("mount", "sharing", "syncfs", "log"),
    [
        (MOUNTS["rename"], Sharing.ALONE, True, True),
        (LOGGED, Sharing.WATCHED, True, True),
        (LOGGED, Sharing.PEERS, True, True),
        (LOGGED, Sharing.ALONE, False, True),
        (LOGGED, Sharing.ALONE, True, False),
    ],
    ids=["where it was not proven", "beside a mover", "among peers", "where syncfs reports no errors", "not wanted"],
)
async def test_no_log(mount: Mount, sharing: Sharing, syncfs: bool, log: bool) -> None:
    disk = Disk(mount, syncfs=syncfs, log=log, sharing=sharing)
    await disk.open()
    assert not disk.has_log
    await disk.storage.aclose()


async def test_a_log_is_the_default_where_it_was_proven() -> None:
    disk = Disk(LOGGED, syncfs=True)
    await disk.open()
    assert disk.has_log
    await disk.storage.aclose()


def test_where_it_was_proven(tmp_path: Path) -> None:
    """In the table of file systems, and by the journal."""
    table, journals = tmp_path / "mountinfo", tmp_path / "jbd2"
    (journals / "vda1-8").mkdir(parents=True)

    def on(kind: str, source: str) -> bool:
        table.write_text(f"1 1 0:0 / / rw - {kind} {source} rw\n")
        return mount_of(str(tmp_path), str(table), str(journals)).logged

    kinds = ("ext4", "xfs", "btrfs", "ext3", "zfs", "tmpfs", "overlay", "nfs4", "fuse.glusterfs")
    assert [kind for kind in kinds if on(kind, "/dev/vda1")] == ["ext4", "xfs"]
    assert not on("ext4", "/dev/vdb1")  # no journal


@for_each("seed", SEEDS)
@for_each("ordered", [True, False])
async def test_a_record_outlives_a_cut_though_its_folder_cannot_be_opened(seed: int, ordered: bool) -> None:
    """What the log has said needs no sync, and so no handle: the old file is gone when one would be missing."""
    disk = CutDisk(seed, ordered=ordered)
    await disk.open()
    await put_record(disk.storage, "key", "k", {"n": 1})
    await disk.open()  # from now on it is in the files alone
    disk.calls.fail("open", errno.EMFILE, path="state/records/key", times=None)
    await put_record(disk.storage, "key", "k", {"n": 2})
    await drop_record(disk.storage, "key", "none")
    disk.calls.faults.clear()
    await disk.cut()
    assert await disk.storage.records("key") == {"k": {"n": 2}}
    await disk.check_whole()


@pytest.mark.slow
@pytest.mark.parametrize("log", [True, False])
async def test_start_that_is_cut_off_at_any_call_reports_no_dropped_record_as_missing(log: bool) -> None:
    for calls in itertools.count(1):
        disk = CutDisk()
        await disk.open()
        await put_record(disk.storage, "key", "kept", {"n": 1})
        await put_record(disk.storage, "key", "dropped", {"n": 2})
        await disk.open()  # the inventory lists both
        await drop_record(disk.storage, "key", "dropped")
        disk.options = replace(disk.options, log=log)
        is_open = await disk.cut(calls)
        if not is_open:
            disk.options = replace(disk.options, log=True)
            await disk.cut()
        assert disk.folders.health.damages == [], calls
        assert await disk.storage.records("key") == {"kept": {"n": 1}}
        if is_open:
            break
    assert calls > 50


async def test_large_body_on_a_failed_disk_makes_no_call() -> None:
    disk = CutDisk()
    await disk.open()
    await disk.make_queue()
    disk.folders.volume.fail(OSError(errno.EIO, "broken"))
    disk.calls.log.clear()
    body = b"x" * (LARGEST_INLINE + 1)
    assert await disk.one(Write("q", new_id(), body)) is Result.FAILED
    assert disk.calls.log == []


async def test_format_says_how_a_root_is_used_and_how_it_was_left() -> None:
    disk = CutDisk()
    await disk.open()
    assert _use(disk) is RootUse.LOG
    await disk.storage.aclose()
    assert _use(disk) is RootUse.CLEAN


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"mq 5 clean     ", "has format 5, according to"),
        (b"mq 4 dirty     ", "is damaged"),
        (b"mq x clean     ", "is damaged"),
        (b"", "is damaged"),
    ],
)
async def test_root_of_another_format_is_refused_with_path(line: bytes, text: str) -> None:
    disk = CutDisk()
    await disk.open()
    disk.power.crash()
    disk.power.unlink("/root/state/format")
    fd = disk.power.open("/root/state/format", os.O_WRONLY | os.O_CREAT)
    disk.power.write(fd, with_checksum(line) + b"\n")
    disk._storage = None
    with pytest.raises(StorageUnusable, match=text) as refused:
        await disk.open()
    assert "/root/state/format" in str(refused.value)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A real one, with a log in which a message is pending that the files have lost."""
    for folder in ("new", "queues/q", "delay", "remove", "state/log", "state/records", "state/properties"):
        (tmp_path / folder).mkdir(parents=True)
    log = Log(LinuxCalls(), str(tmp_path / "state" / "log"), lambda *_: None, lambda error: None, in_thread=False)
    log.forget()
    log.begin()
    with log.lock:
        log.append(encode([Wrote(f"queues/q/{new_id()}", 5, 0x3610A686, b"", b"hello")]))
        log.flush()
    log.close(failed=True)
    layout = Layout.under(str(tmp_path))
    records = Records(LinuxCalls(), layout.records)
    records.keep_names()
    keep_inventory(records)
    note_use(LinuxCalls(), layout, RootUse.LOG)
    return tmp_path


async def test_a_mover_leaves_a_root_with_a_log_alone(root: Path) -> None:
    with pytest.raises(StorageUnusable, match="the daemon on this root uses a write-ahead log"):
        SourceFolder(State.NEW, str(root / "new"), str(root / "queues"))


async def test_a_mover_that_works_when_a_log_is_begun_stops(tmp_path: Path) -> None:
    for folder in ("new", "queues/q", "state"):
        (tmp_path / folder).mkdir(parents=True)
    source = SourceFolder(State.NEW, str(tmp_path / "new"), str(tmp_path / "queues"))
    id = new_id()
    (tmp_path / "new" / f"q:{id}").write_bytes(b"body")
    note_use(LinuxCalls(), Layout.under(str(tmp_path)), RootUse.LOG)
    [outcome] = await source.commit([Move(Entry("q", id, State.NEW), State.READY)])
    assert outcome.result is Result.FULL
    assert (tmp_path / "new" / f"q:{id}").exists()
    source.close()


def test_mover_works_again_once_the_loss_of_a_log_is_accepted(root: Path) -> None:
    shutil.rmtree(root / "state" / "log")
    with pytest.raises(StorageUnusable, match="the daemon on this root uses a write-ahead log"):
        SourceFolder(State.NEW, str(root / "new"), str(root / "queues"))
    with pytest.raises(StorageUnusable, match=r"state/log is missing.*mq doctor --accept-loss"):
        repair(str(root))
    assert next(loss.why for loss in repair(str(root), accept_loss=True)).endswith("state/log is missing")
    SourceFolder(State.NEW, str(root / "new"), str(root / "queues")).close()
    assert read_use(LinuxCalls(), Layout.under(str(root))) is not RootUse.LOG


def test_no_mover_works_while_a_log_is_in_use(root: Path) -> None:
    calls, layout = LinuxCalls(), Layout.under(str(root))
    open_moves_lock(calls, layout, make=True)
    with unrepaired(calls, layout) as free:
        assert not free
    note_use(calls, layout, RootUse.FILES)
    with unrepaired(calls, layout) as free:
        assert free


def test_the_doctor_judges_no_file_before_the_log_is_done_again(root: Path) -> None:
    with open_to_inspect(str(root)) as look:
        seen = look.inspect(bodies=True, pause=lambda: None)
    assert [(found.kind, found.detail) for found in seen.found] == [
        (FindingKind.LOG, "1 log records will be replayed at the next start; run mq doctor again after that")
    ]
    repair(str(root))
    with open_to_inspect(str(root)) as look:
        seen = look.inspect(bodies=True, pause=lambda: None)
    assert (seen.found, seen.messages) == ((), 1)


def test_the_doctor_tells_of_a_damaged_log(root: Path) -> None:
    with (root / "state" / "log" / "0").open("r+b") as file:
        file.write(b"x")
    with open_to_inspect(str(root)) as look:
        [found] = look.inspect(bodies=True, pause=lambda: None).found
    assert found.kind is FindingKind.LOG
    assert "the header of" in found.detail
    with pytest.raises(StorageUnusable, match=r"its write-ahead log is damaged .*Restore the root from a backup"):
        repair(str(root))


# What a record says

PATHS: Final = st.text("abc/:,0123456789-", min_size=1, max_size=40)
KEYS: Final = st.text(min_size=1, max_size=20)
JSON: Final = st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3)


@st.composite
def wrote(draw: st.DrawFn) -> Wrote:
    body = draw(st.binary(max_size=100))
    if draw(st.booleans()):
        return Wrote(draw(PATHS), len(body), draw(st.integers(0, 2**32 - 1)), draw(st.binary(max_size=50)), body)
    return Wrote(draw(PATHS), draw(st.integers(0)), draw(st.integers(0, 2**32 - 1)), b"{}", None, draw(PATHS))


SAYINGS: Final = st.one_of(
    wrote(),
    st.builds(Moved, PATHS, PATHS),
    st.builds(Removed, PATHS),
    st.builds(Kept, st.just("queue"), KEYS, JSON),
    st.builds(Forgotten, st.just("key"), KEYS),
    st.builds(QueueRemoved, PATHS, PATHS),
    st.builds(Refused, st.integers(1), st.lists(st.integers(0, 99), min_size=1, max_size=5).map(tuple)),
)


@given(st.lists(SAYINGS, min_size=1, max_size=10))
def test_what_is_encoded_is_decoded(sayings: list[Saying]) -> None:
    assert decode(encode(sayings)) == sayings


def test_what_a_later_version_says_is_not_passed_over() -> None:
    with pytest.raises(ValueError, match="does not support"):
        decode(encode([Removed("x")]).replace(b"u\t", b"z\t"))


def _use(disk: CutDisk) -> RootUse | None:
    return read_use(disk.power, Layout.under("/root"))


async def test_a_queue_that_was_not_made_for_want_of_a_handle_is_not_made_by_a_start() -> None:
    async with begun(ordered=False) as disk:
        await disk.make_queue("gone")
        assert await drop_record(disk.storage, QUEUE, "gone")
        disk.calls.fail("open", errno.EMFILE, path="queues", times=None)
        with pytest.raises(StorageFull):
            await put_record(disk.storage, QUEUE, "gone", {"created": 1 << 62})
        disk.heal()
        await disk.open()  # after a kill
        assert "gone" not in await disk.storage.records(QUEUE)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("later", [0, 3])
async def test_a_record_that_is_longer_than_the_log_survives_a_power_cut(seed: int, later: int) -> None:
    async with begun(seed) as disk:
        await disk.storage.commit([Put("claim", "c", {"ids": ["old"]})])
        long = {"ids": [str(new_id()) for _ in range(8 * LOG_BYTES // 40)]}
        assert (await disk.storage.commit([Put("claim", "c", long)]))[0].result is Result.DONE
        entries = [await disk.bring(State.READY, b"after") for _ in range(later)]
        await disk.cut()
        assert (await disk.storage.records("claim"))["c"] == long
        assert None not in await disk.storage.read(entries)
        assert not disk.storage.health.damages


@pytest.mark.parametrize("call", [2, 4])
async def test_a_record_that_is_longer_than_the_log_is_refused_by_a_full_disk(call: int) -> None:
    async with begun(0) as disk:
        old, long = {"ids": ["old"]}, {"ids": [str(new_id()) for _ in range(8 * LOG_BYTES // 40)]}
        await disk.storage.commit([Put("claim", "c", old)])
        disk.calls.fail("write_at", errno.ENOSPC, path="state/log/*", nth=call)  # others write headers
        assert (await disk.storage.commit([Put("claim", "c", long)]))[0].result is Result.FULL
        disk.heal()
        assert (await disk.storage.records("claim"))["c"] == old
        assert (await disk.storage.commit([Put("claim", "c", long)]))[0].result is Result.DONE


async def test_a_group_that_the_disk_leaves_half_done_stays_marked_as_that() -> None:
    async with begun(0) as disk:
        entries = [await disk.bring(State.READY, b"x") for _ in range(2)]
        disk.calls.fail("rename", errno.EIO, path="queues/q/*", nth=2)
        moves = tuple(Move(entry, State.DELAYED, LEASE) for entry in entries)
        [outcome] = await disk.storage.commit([Group((*moves, Put("kind", "key", {})))])
        assert outcome.result is Result.FAILED
        assert disk.power.kind(f"/root/{HALF}") is not None  # by which a backup knows
        disk.heal()
