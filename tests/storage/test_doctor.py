"""A look through a root finds what is wrong with it, changes nothing, and is not fooled by what moves."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from mq.broker import open_broker
from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.files.doctor import Finding, FindingKind, Inspection, confirmed, open_to_inspect, quarantine, repair
from mq.storage.files.layout import flat_name
from mq.storage.interface import WRITE_JOBS, Entry

IDS = MessageIds()


@pytest.fixture
def root(temp_root: Path) -> Path:
    """A root with two queues, three messages (one leased, one long), and no daemon."""

    async def fill() -> None:
        async with open_broker(f"posix:{temp_root}") as broker:
            await broker.create_queue("a")
            await broker.create_queue("b")
            for body in (b"one", b"two", bytes(400_000)):
                await broker.publish("a", body)
            assert await broker.fetch("a") is not None

    trio.run(fill)
    return temp_root


@contextmanager
def served(root: Path) -> Iterator[None]:
    """As by a daemon: somebody else holds the lock."""
    with (root / "state" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def look(root: Path, *, bodies: bool = True, pause: Callable[[], object] = lambda: None) -> Inspection:
    with open_to_inspect(str(root)) as opened:
        return opened.inspect(bodies=bodies, pause=pause)


def findings(seen: Inspection) -> set[tuple[FindingKind, str]]:
    return {(found.kind, os.path.basename(found.path)) for found in seen.found}


def ready(root: Path) -> list[Path]:
    return sorted((root / "queues" / "a").iterdir())


def tree(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in root.rglob("*")}


def test_root_without_state_has_lost_it(root: Path) -> None:
    shutil.rmtree(root / "state")
    seen = look(root)
    [lost] = [found for found in seen.found if found.kind is FindingKind.LOST]
    assert lost.path == str(root / "state")
    assert "idempotency keys, schedules" in lost.detail


def test_a_sound_root(root: Path) -> None:
    before = tree(root)
    assert look(root) == Inspection((), 3, 0)
    assert tree(root) == before


def test_a_message_of_which_nonsense_is_noted_is_damaged_also_in_new(root: Path) -> None:
    """Not torn: a start takes torn ones away."""
    first, _ = ready(root)
    new = root / "new" / f"a:{IDS.new()}"
    new.write_bytes(b"body")
    for path in (first, new):
        os.setxattr(path, "user.mq.sum", b"nonsense")
    assert findings(look(root)) == {(FindingKind.DAMAGED, first.name), (FindingKind.DAMAGED, new.name)}


def test_what_is_damaged_or_foreign(root: Path) -> None:
    first, second = ready(root)
    with first.open("r+b") as file:
        file.write(b"X")
    foreign = root / "queues" / "a" / "notes.txt"
    foreign.write_text("hi")
    (root / "delay" / "link").symlink_to("/etc/passwd")
    (root / "queues" / ".hidden").mkdir()
    os.mkfifo(root / "new" / f"a:{IDS.new()}")
    seen = look(root)
    assert (FindingKind.DAMAGED, first.name) in findings(seen)
    assert {finding for finding, _ in findings(seen)} == {FindingKind.DAMAGED, FindingKind.FOREIGN}
    assert len(seen.found) == 5
    assert second.exists()
    assert FindingKind.DAMAGED not in {finding for finding, _ in findings(look(root, bodies=False))}


def test_what_is_foreign_elsewhere(root: Path) -> None:
    (root / "remove" / "x").touch()
    (root / "remove" / flat_name("a", IDS.new())).touch()  # it waits to be reaped
    (root / "state" / "properties" / "x").touch()
    (root / "state" / "stage" / "x").mkdir()
    (root / "state" / "records" / "queue" / "x").mkdir()
    seen = look(root)
    assert {(found.kind, os.path.relpath(found.path, root)) for found in seen.found} == {
        (FindingKind.FOREIGN, "remove/x"),
        (FindingKind.FOREIGN, "state/properties/x"),
        (FindingKind.FOREIGN, "state/stage/x"),
        (FindingKind.RECORD, "state/records/queue/x"),
    }
    assert seen.messages == 3


def test_a_file_by_hand_is_a_message_without_a_checksum(root: Path) -> None:
    (root / "queues" / "b" / IDS.new()).write_text("by hand")
    assert look(root) == Inspection((), 4, 1)


def test_what_a_crash_leaves_is_found_and_repaired(root: Path) -> None:
    torn = root / "new" / f"a:{IDS.new()}"
    torn.write_bytes(b"")
    first = ready(root)[0]
    twice = root / "new" / f"a:{first.name}"
    os.link(first, twice)
    shutil.rmtree(root / "queues" / "b")
    staged = root / "state" / "stage" / "x"
    staged.write_text("half")
    side = root / "state" / "properties" / IDS.new()
    side.write_text("{}")
    seen = look(root)
    assert {
        (FindingKind.TORN, torn.name),
        (FindingKind.DOUBLED, first.name),
        (FindingKind.DOUBLED, twice.name),
    } < findings(seen)
    assert {(FindingKind.STAGED, "x"), (FindingKind.SIDE, side.name), (FindingKind.MISSING, "b")} < findings(seen)
    assert len(seen.found) == 6
    repair(str(root))
    assert look(root) == Inspection((), 3, 0)
    assert first.exists()


def test_a_format_that_is_gone_is_found_as_long_as_a_start_refuses_the_root(root: Path) -> None:
    assert any((root / "state" / "records").glob("*/*"))
    (root / "state" / "format").unlink()
    assert findings(look(root)) == {(FindingKind.LOST, "format")}
    with pytest.raises(StorageUnusable, match=r"state/format is missing.*mq doctor --accept-loss"):
        repair(str(root))
    repair(str(root), accept_loss=True)
    assert look(root) == Inspection((), 3, 0)


@pytest.mark.parametrize("folder", ["state", "state/records"])
def test_a_root_without_records_can_be_looked_at(root: Path, folder: str) -> None:
    (root / "state" / "format").unlink()
    shutil.rmtree(root / folder)
    assert look(root).messages == 3


def test_messages_of_deleted_and_of_missing_queues(root: Path) -> None:
    deleted = root / "remove" / flat_name("gone", IDS.new())
    deleted.mkdir()
    (deleted / "foreign").write_text("")
    orphan = root / "new" / flat_name("gone", IDS.new())
    waiting = root / "new" / flat_name("nowhere", IDS.new())
    shutil.copy(ready(root)[0], orphan)
    shutil.copy(ready(root)[0], waiting)
    shutil.copy(ready(root)[0], root / "new" / flat_name(WRITE_JOBS, IDS.new()))  # held back, which is as it should be
    assert findings(look(root, bodies=False)) == {
        (FindingKind.ORPHAN, orphan.name),
        (FindingKind.WAITING, waiting.name),
        (FindingKind.FOREIGN, "foreign"),
    }


def test_a_torn_record(root: Path) -> None:
    (record,) = (root / "state" / "records" / "queue").glob("ka.*")
    record.with_name("ka.999").write_text('{"key": "a"')
    assert findings(look(root)) == {(FindingKind.RECORD, "ka.999")}


def test_while_a_daemon_serves_it_looks_twice(root: Path) -> None:
    passing = root / "new" / f"a:{IDS.new()}"
    passing.write_bytes(b"")
    staying = root / "new" / "staying"
    staying.write_bytes(b"")
    with served(root):
        assert findings(look(root, pause=passing.unlink)) == {(FindingKind.FOREIGN, "staying")}


def test_a_message_that_moves_all_the_time_is_not_two(root: Path) -> None:
    """Seen twice in each of two looks, by one name in common: it was never in two places at once."""
    id = IDS.new()
    entries = [Entry("a", id, state) for state in (State.NEW, State.READY, State.DELAYED)]
    with served(root), open_to_inspect(str(root)) as opened:
        paths = [opened.folders.layout.path(entry) for entry in entries]
        Path(paths[1]).write_text("here")
        before = [Finding(FindingKind.DOUBLED, path, "", id) for path in paths[:2]]
        after = [Finding(FindingKind.DOUBLED, path, "", id) for path in paths[1:]]
        assert confirmed(opened.folders, before, after) == ()
        assert confirmed(opened.folders, before, before) == ()  # one of them is not there any more
        Path(paths[0]).write_text("and here")
        assert confirmed(opened.folders, before, before) == tuple(before)


def test_nothing_is_repaired_or_moved_while_a_daemon_serves(root: Path, tmp_path: Path) -> None:
    (root / "new" / "foreign").write_text("")
    with served(root):
        with pytest.raises(StorageUnusable, match="already served"):
            repair(str(root))
        with open_to_inspect(str(root)) as opened, pytest.raises(StorageUnusable, match="Stop the daemon"):
            list(quarantine(opened, opened.inspect(bodies=True, pause=lambda: None).found, str(tmp_path)))
    assert (root / "new" / "foreign").exists()


def test_no_daemon_starts_while_it_is_looked_at(root: Path) -> None:
    with open_to_inspect(str(root)) as opened:
        assert opened.unserved
        with pytest.raises(StorageUnusable, match="already served"):
            repair(str(root))


def test_quarantine_keeps_places_and_contents(root: Path, tmp_path: Path) -> None:
    damaged = ready(root)[0]
    damaged.write_bytes(b"XXX")
    (root / "new" / "link").symlink_to("/etc/passwd")
    with open_to_inspect(str(root)) as opened:
        found = opened.inspect(bodies=True, pause=lambda: None).found
        moved = dict(quarantine(opened, found, str(tmp_path / "q")))
    assert set(moved) == {str(damaged), str(root / "new" / "link")}
    assert (tmp_path / "q" / "queues" / "a" / damaged.name).read_bytes() == b"XXX"
    assert (tmp_path / "q" / "new" / "link").is_symlink()
    assert look(root).found == ()


def test_quarantine_is_its_owners_alone_whatever_the_umask_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = os.umask(0)
    try:
        ready(root)[0].write_bytes(b"XXX")
        with open_to_inspect(str(root)) as opened:
            found = opened.inspect(bodies=True, pause=lambda: None).found
            moved = dict(quarantine(opened, found, "quarantine"))
    finally:
        os.umask(before)
    assert moved
    folders = {Path(target).parent for target in moved.values()} | {Path("quarantine")}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}


def test_quarantine_overwrites_nothing_and_stays_out_of_the_root(root: Path, tmp_path: Path) -> None:
    (root / "new" / "foreign").write_text("1")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "foreign").write_text("2")
    with open_to_inspect(str(root)) as opened:
        found = opened.inspect(bodies=True, pause=lambda: None).found
        with pytest.raises(StorageUnusable, match="the target already exists"):
            list(quarantine(opened, found, str(tmp_path)))
        with pytest.raises(StorageUnusable, match="is inside the root"):
            list(quarantine(opened, found, str(root / "state" / "q")))
    assert (tmp_path / "new" / "foreign").read_text() == "2"


def test_what_is_no_root_is_not_touched(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(StorageUnusable, match="is not an mq root"), open_to_inspect(str(place)):
            pass
    assert list(tmp_path.iterdir()) == []
