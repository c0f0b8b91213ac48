"""A file system that is out of reach for a moment: what may be asked twice is, and nothing unconfirmed is believed."""

from __future__ import annotations

import errno
import os

import pytest

from mq.errors import StorageFull, StorageUnsure
from mq.lifecycle import State
from mq.storage.files.calls import OPEN_NEW, RETRY_SECONDS, RetryingCalls
from mq.storage.files.mount import Mount
from mq.storage.files.sync import MOST_MOVED
from mq.storage.interface import QUEUE, Move, Result, Sharing, Write
from mq.storage.records import put_record
from simulation.calls import FaultyCalls
from tests.storage.disks import LEASE, Disk, make_calls, new_id, open_disk

FAR = Mount("far", atomic_rename=True, remote=True, folder_syncs=False)


class Clock:
    """Time that passes only when somebody pauses."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Bench:
    """Patient calls above calls that fail, above a fake file system."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.faulty = FaultyCalls(make_calls())
        self.calls = RetryingCalls(self.faulty, self.clock, self.clock.pause)
        self.calls.mkdir("/d")

    def put(self, name: str) -> None:
        self.calls.close(self.calls.open(f"/d/{name}", OPEN_NEW))

    def answer_is_lost(self, verb: str) -> None:
        """The next call of this verb is carried out, and answered with "not connected"."""
        carry_out = getattr(self.faulty, verb)

        def lose(*args: object, **options: object) -> None:
            setattr(self.faulty, verb, carry_out)
            carry_out(*args, **options)
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

        setattr(self.faulty, verb, lose)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.faulty.names("/d")]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_is_out_of_reach_for_a_moment_is_asked_again(bench: Bench) -> None:
    bench.put("a")
    bench.faulty.fail("rename", errno.ENOTCONN, times=3)
    bench.calls.rename("/d/a", "/d/b")
    assert bench.names == ["b"]
    assert 0 < bench.clock.now < RETRY_SECONDS


def test_patience_ends_for_all_calls_together_and_begins_anew_with_an_answer(bench: Bench) -> None:
    bench.put("a")
    bench.faulty.fail("*", errno.ENOTCONN, times=None)
    for _ in range(20):
        with pytest.raises(OSError, match="not connected"):
            bench.calls.kind("/d/a")
    assert bench.clock.now < 2 * RETRY_SECONDS
    bench.faulty.faults.clear()
    assert bench.calls.kind("/d/a") is not None
    bench.faulty.fail("rename", errno.ENOTCONN, times=3)
    bench.calls.rename("/d/a", "/d/b")
    assert bench.names == ["b"]


def test_a_rename_finds_its_own_work(bench: Bench) -> None:
    bench.put("a")
    bench.answer_is_lost("rename")
    bench.calls.rename("/d/a", "/d/b")
    assert bench.names == ["b"]


def test_a_rename_that_was_not_carried_out_loses_the_race_like_any_other(bench: Bench) -> None:
    bench.put("a")
    bench.faulty.fail("rename", errno.ENOTCONN)
    bench.faulty.just_before("rename", "d/a", lambda: bench.faulty._inner.unlink("/d/a"))
    with pytest.raises(FileNotFoundError):
        bench.calls.rename("/d/a", "/d/b")


def test_a_rename_overwrites_nothing_when_it_is_asked_again(bench: Bench) -> None:
    bench.put("a")
    bench.put("b")
    bench.faulty.fail("rename", errno.ENOTCONN)
    with pytest.raises(FileExistsError):
        bench.calls.rename("/d/a", "/d/b")
    assert bench.names == ["a", "b"]


def test_an_unlink_finds_its_own_work(bench: Bench) -> None:
    bench.put("a")
    bench.answer_is_lost("unlink")
    bench.calls.unlink("/d/a")
    with pytest.raises(FileNotFoundError):
        bench.calls.unlink("/d/a")


def test_a_new_file_that_is_there_when_asked_again_is_nobody_s_to_claim(bench: Bench) -> None:
    bench.answer_is_lost("open")
    with pytest.raises(OSError, match="not connected"):
        bench.calls.open("/d/a", OPEN_NEW)
    with pytest.raises(FileExistsError):
        bench.calls.open("/d/a", OPEN_NEW)


@pytest.mark.parametrize("verb", ["write", "fsync"])
def test_what_may_not_be_repeated_is_not(bench: Bench, verb: str) -> None:
    fd = bench.calls.open("/d/a", OPEN_NEW)
    bench.faulty.fail(verb, errno.ENOTCONN)
    with pytest.raises(OSError, match="not connected"):
        bench.calls.write(fd, b"x") if verb == "write" else bench.calls.fsync(fd)
    assert bench.clock.now == 0


@pytest.mark.parametrize("number", [errno.ENOTCONN, errno.ESTALE])
async def test_a_batch_whose_sync_is_not_answered_is_taken_back_and_the_store_goes_on(number: int) -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        disk.calls.fail("fsync", number)
        assert await disk.one(Write("q", new_id(), b"x")) is Result.UNKNOWN
        assert await disk.storage.scan(State.NEW) == []
        assert await disk.one(Write("q", new_id(), b"x")) is Result.DONE


async def test_a_move_whose_sync_is_not_answered_may_have_been_done() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("fsync", errno.ENOTCONN)
        assert await disk.one(Move(entry, State.DELAYED, LEASE)) is Result.UNKNOWN
        moved = await disk.storage.find("q", entry.id)
        assert moved is not None, "wherever it is, it is there"
        assert await disk.body(moved) == b"body"


async def test_one_that_a_peer_took_away_before_its_sync_costs_the_batch_nothing() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("fsync", errno.ESTALE, path=f"delay/q:{entry.id}*")
        outcomes = await disk.commit(Move(entry, State.DELAYED, LEASE), Write("q", new_id(), b"x"))
        assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.DONE]


async def test_records_and_reading_wait_for_better_times() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.fail("fsync", errno.ENOTCONN)
        with pytest.raises(
            StorageUnsure, match=r"cannot store a record of kind queue: the outcome is unknown \(.*not connected"
        ):
            await put_record(disk.storage, QUEUE, "p", {"created": 1})
        fault = disk.calls.fail("open", errno.ENOTCONN, path="queues/*", times=None)
        with pytest.raises(StorageFull, match="not connected"):
            await disk.storage.read([entry])
        disk.calls.faults.remove(fault)
        assert await disk.body(entry) == b"body"
        assert await put_record(disk.storage, QUEUE, "p", {"created": 1})


async def test_where_the_sync_of_a_folder_does_nothing_the_moved_file_is_synced_instead() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.log.clear()
        moved = await disk.done(Move(entry, State.DELAYED, LEASE))
        said = disk.calls.said("rename", "fsync")
        renamed = next(number for number, line in enumerate(said) if line.startswith("rename"))
        assert said[renamed + 1 :] == [f"fsync {disk.path(moved)}"]


async def test_one_that_was_moved_on_before_its_sync_is_no_failure() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.DELAYED)
        disk.calls.just_before("open", "queues/q/*", lambda: disk.inner.unlink(f"{disk.root}/queues/q/{entry.id},r1"))
        assert await disk.one(Move(entry, State.READY, entry.meta.at_rest())) is Result.DONE
        assert not disk.folders.volume.failure


async def test_a_far_medium_does_not_tell_what_others_do() -> None:
    disk = Disk(FAR, sharing=Sharing.PEERS)
    storage = await disk.open()
    assert storage.changes() is None
    await storage.aclose()


async def test_many_moves_hold_few_handles_and_a_sync_that_fails_fails_the_batch() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entries = [await disk.bring(State.READY) for _ in range(2 * MOST_MOVED + 5)]
        disk.calls.log.clear()
        leases = [Move(entry, State.DELAYED, LEASE) for entry in entries]
        outcomes = await disk.commit(*leases)
        assert {outcome.result for outcome in outcomes} == {Result.DONE}
        synced = {path for path in disk.calls.said("fsync") if "delay/q:" in path}
        assert len(synced) == len(entries)
        held = most = 0
        for call in disk.calls.log:
            held += (call.verb == "open") - (call.verb == "close")
            most = max(most, held)
        assert most <= MOST_MOVED + 1
        back = [Move(outcome.entry, State.READY, LEASE.at_rest()) for outcome in outcomes if outcome.entry is not None]
        disk.calls.fail("fsync", errno.ENOTCONN, path="queues/q/*", nth=3)
        assert {outcome.result for outcome in await disk.commit(*back)} == {Result.UNKNOWN}, "the third is any of them"


async def test_a_move_is_synced_when_no_handle_is_left() -> None:
    async with open_disk(FAR, sharing=Sharing.PEERS) as disk:
        entry = await disk.bring(State.READY)
        disk.calls.log.clear()
        disk.calls.fail("open", errno.EMFILE, path="delay/*")
        moved = await disk.done(Move(entry, State.DELAYED, LEASE))
        assert f"fsync {disk.path(moved)}" in disk.calls.said("fsync")
