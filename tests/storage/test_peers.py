"""Who shares a root, who is dead, and what is cleared of what they left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files import posix, start
from mq.storage.files.calls import OPEN_NEW, LinuxCalls
from mq.storage.files.fake import FakeCalls, make_calls
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.files.stepwise.peers import EXPIRY_SECONDS, PeerLease
from mq.storage.interface import QUEUE, Result, Sharing, Write
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from tests.storage.disks import new_id

LOCAL = Mount("local", atomic_rename=True, ordered=True)
FAR = Mount("far", atomic_rename=True, remote=True)


class Hall:
    """A root that some share. Time passes when it is told to."""

    def __init__(self) -> None:
        self.calls: FakeCalls = make_calls()
        self.layout = Layout.under("/root")
        self.now_ns = 1_700_000_000_000_000_000
        self.ahead_ns = 0
        self.calls.mkdir("/root")
        for folder in self.layout.all():
            self.calls.mkdir(folder)

    def enter(self, *, expires: bool = False) -> PeerLease:
        presence = PeerLease(
            self.calls,
            self.layout,
            expires=expires,
            clock_ns=lambda: self.now_ns + self.ahead_ns,
            seconds=lambda: self.now_ns / 1e9,
        )
        presence.announce()
        return presence

    def arrive(self, presence: PeerLease) -> str:
        """A body of theirs that is arriving."""
        path = f"{presence.stage}/{new_id()}"
        self.calls.close(self.calls.open(path, OPEN_NEW))
        return path

    def kill(self, presence: PeerLease) -> None:
        """Its locks go, and nothing else."""
        presence._let_go()

    def there(self, folder: str) -> int:
        return len(self.calls.names(folder))


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_what_a_dead_one_left_is_cleared_and_what_a_living_one_has_is_not(hall: Hall) -> None:
    one, dead, living = hall.enter(), hall.enter(), hall.enter()
    left, arriving = hall.arrive(dead), hall.arrive(living)
    hall.kill(dead)
    assert one.sweep() == 1
    assert hall.calls.kind(left) is None
    assert hall.calls.kind(arriving) is not None
    assert hall.there(hall.layout.peers) == 2
    assert hall.there(hall.layout.stage) == 2


def test_where_a_lock_can_be_lost_nobody_is_dead_before_their_time_is_over(hall: Hall) -> None:
    one, cut_off = hall.enter(expires=True), hall.enter(expires=True)
    arriving = hall.arrive(cut_off)
    hall.kill(cut_off)
    hall.now_ns += round((EXPIRY_SECONDS - 1) * 1e9)
    assert one.sweep() == 1
    cut_off.beat()
    hall.now_ns += round((EXPIRY_SECONDS - 1) * 1e9)
    assert one.sweep() == 1
    assert hall.calls.kind(arriving) is not None
    hall.now_ns += round(2e9)
    assert one.sweep() == 0
    assert hall.calls.kind(arriving) is None


def test_one_whose_clock_was_ahead_is_dead_when_it_says_nothing_new(hall: Hall) -> None:
    """Or it would be taken for alive for years, and no broker alone be let in."""
    hall.ahead_ns = 2 * 365 * 86_400 * 10**9
    dead, cut_off = hall.enter(expires=True), hall.enter(expires=True)
    hall.kill(dead)
    hall.kill(cut_off)
    hall.ahead_ns = 0
    one = hall.enter(expires=True)
    assert one.sweep() == 2
    for _ in range(3):
        hall.now_ns += round(EXPIRY_SECONDS / 2 * 1e9)
        cut_off.beat()
        living = one.sweep()
    assert living == 1
    assert hall.calls.kind(dead.stage) is None
    assert hall.calls.kind(cut_off.stage) is not None


@pytest.mark.parametrize("is_alive", [True, False])
def test_who_wants_to_be_alone_waits_for_one_whose_clock_was_ahead(hall: Hall, is_alive: bool) -> None:
    hall.ahead_ns = 2 * 365 * 86_400 * 10**9
    other = hall.enter(expires=True)
    hall.kill(other)
    hall.ahead_ns = 0
    waited = 0.0

    def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        hall.now_ns += round(seconds * 1e9)
        if is_alive and waited > 3:
            other.beat()

    one = hall.enter(expires=True)
    assert one.outwait(alone=True, pause=pause) == is_alive
    assert waited == (4 if is_alive else EXPIRY_SECONDS)


def test_one_that_holds_its_lock_lives_however_long_it_says_nothing(hall: Hall) -> None:
    one, quiet = hall.enter(expires=True), hall.enter(expires=True)
    hall.now_ns += round(100 * EXPIRY_SECONDS * 1e9)
    assert one.sweep() == 1
    assert hall.calls.kind(quiet.stage) is not None


def test_one_that_was_taken_for_dead_is_there_again_with_its_next_beat(hall: Hall) -> None:
    one, other = hall.enter(expires=True), hall.enter(expires=True)
    hall.kill(other)
    hall.now_ns += round(2 * EXPIRY_SECONDS * 1e9)
    assert one.sweep() == 0
    other.beat()
    assert one.sweep() == 1
    assert hall.calls.kind(hall.arrive(other)) is not None


def test_one_that_is_just_beginning_is_not_judged(hall: Hall) -> None:
    one = hall.enter()
    hall.calls.close(hall.calls.open(f"{hall.layout.peers}/{'0' * 16}", OPEN_NEW))
    assert one.sweep() == 1
    assert one.sweep(alone=True) == 0, "nobody begins while somebody else has the root's lock"


def test_who_leaves_leaves_nothing(hall: Hall) -> None:
    one, other = hall.enter(), hall.enter()
    hall.arrive(other)
    other.leave()
    assert one.sweep() == 0
    assert (hall.there(hall.layout.peers), hall.there(hall.layout.stage)) == (1, 1)


def test_foreign_names_are_left_alone(hall: Hall) -> None:
    one = hall.enter()
    hall.calls.close(hall.calls.open(f"{hall.layout.peers}/notes", OPEN_NEW))
    assert one.sweep(alone=True) == 0
    assert hall.there(hall.layout.peers) == 2


def store(root: Path, mount: Mount = LOCAL, *, sharing: Sharing = Sharing.PEERS) -> FolderStorage:
    """A real one."""
    return FolderStorage("test:", str(root), LinuxCalls(), StorageOptions(sharing=sharing), mount=lambda root: mount)


async def kill(storage: FolderStorage) -> None:
    """What becomes of a root when a process on it is killed: its handles are closed."""
    opened, storage._open = storage._open, None
    assert opened is not None
    assert opened.heartbeat is not None
    opened.heartbeat._stopped.set()
    opened.heartbeat._thread.join()
    opened.heartbeat._peer_lease._let_go()
    opened._replace(heartbeat=None).close()
    await storage.aclose()


async def a_few_bytes() -> AsyncIterator[bytes]:
    yield b"x" * 100


async def test_a_store_clears_a_dead_peer_s_bodies_and_no_other_s(temp_root: Path) -> None:
    living, dead, later = store(temp_root), store(temp_root), store(temp_root)
    await living.open()
    await dead.open()
    await put_record(living, QUEUE, "q", {"created": 1})
    mine = await living.stage(a_few_bytes())
    await dead.stage(a_few_bytes())
    await kill(dead)
    await later.open()
    staged = [path for path in (temp_root / "state/stage").rglob("*") if path.is_file()]
    assert [str(path) for path in staged] == [mine.file.path]
    assert (await living.commit([Write("q", new_id(), mine)]))[0].result is Result.DONE
    await later.aclose()
    await living.aclose()
    assert not os.listdir(temp_root / "state/peers")
    assert not os.listdir(temp_root / "state/stage")


async def test_whoever_starts_alone_repairs_all_and_whoever_may_not_be_repairs_nothing(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is cut off has lost its locks, and lives."""
    repaired = []
    recover = start.recover
    monkeypatch.setattr(start, "recover", lambda *args, **named: (repaired.append(1), recover(*args, **named)))
    first, second, third = store(temp_root, FAR), store(temp_root, FAR), store(temp_root)
    await first.open()
    assert len(repaired) == 1
    await kill(first)
    await second.open()
    assert len(repaired) == 1, "the first may be alive"
    await kill(second)
    await third.open()
    assert len(repaired) == 2, "on a local disk its lock would have told"
    await third.aclose()


async def test_a_root_on_which_a_peer_may_be_alive_is_nobody_s_alone(
    temp_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix, "_BUSY_TRIES", 2)
    first = store(temp_root, FAR)
    await first.open()
    await kill(first)
    with pytest.raises(StorageUnusable, match="may still be running"):
        await store(temp_root, FAR, sharing=Sharing.ALONE).open()
    alone = store(temp_root, sharing=Sharing.ALONE)
    await alone.open()
    await alone.aclose()


async def test_a_message_whose_peer_was_taken_for_dead_is_refused_and_the_store_goes_on(temp_root: Path) -> None:
    storage = store(temp_root)
    await storage.open()
    await put_record(storage, QUEUE, "q", {"created": 1})
    heart = storage._root_open.heartbeat
    assert heart is not None
    staged = await storage.stage(a_few_bytes())
    heart._peer_lease._clear(Path(heart._peer_lease.stage).name)
    for body in (staged, b"small"):
        assert (await storage.commit([Write("q", new_id(), body)]))[0].result is Result.FULL
    heart._peer_lease.beat()
    assert (await storage.commit([Write("q", new_id(), b"again")]))[0].result is Result.DONE
    assert len(await storage.scan(State.NEW)) == 1
    await storage.aclose()
