"""The verbs backup and restore: what they say. What they do is tested with the store, and end to end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from mq.broker import Draft, open_broker
from mq.broker.clock import Clock
from mq.message import QueueName
from mq.schedules.schedule import Schedule
from mq.schedules.scheduler import Scheduler, ScheduleStatus
from mq.storage.files import backup
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.mount import Mount
from tests.cli.conftest import Mq


@pytest.fixture
def root(temp_root: Path) -> Path:
    async def fill() -> None:
        async with open_broker(f"posix:{temp_root}") as broker:
            await broker.create_queue("a")
            await broker.publish("a", b"one")

    trio.run(fill)
    return temp_root


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def test_a_backup_and_its_restore(mq: Mq, root: Path, backups: Path, tmp_path: Path) -> None:
    done = mq("backup", root, backups)
    assert (done.status, done.error) == (0, "")
    assert done.out.startswith("backup 1 of 20")
    assert done.out.endswith("Z: 1 message in 1 queue, 3 bytes; 1 copied\n")
    [again] = mq("backup", root, backups, "--json", "--keep", 1).json
    assert (again["number"], again["copied"], again["dropped"]) == (2, 0, 1)
    assert [line["number"] for line in mq("restore", backups, "--list", "--json").json] == [2]
    done = mq("restore", backups, tmp_path / "restored")
    assert (done.status, done.error) == (0, "")
    assert done.out.startswith("backup 2 of 20")
    assert mq("doctor", tmp_path / "restored").out == "checked 1 message: no problems found\n"


def test_damaged_backup_is_named_and_the_one_before_it_restored(
    mq: Mq, root: Path, backups: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        mq("backup", root, backups)
    path = backups / "backups" / "000002.jsonl"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = mq("restore", backups, tmp_path / "restored")
    assert done.out.startswith("backup 1 of 20")
    assert f'ignoring damaged backup "{path}"' in caplog.text


def test_schedules_come_back_with_what_has_fired(mq: Mq, temp_root: Path, backups: Path, tmp_path: Path) -> None:
    """An instant whose message was consumed before the backup does not fire again, and the next one does."""
    begin = 1_700_000_000_000_000_000
    made = Schedule(QueueName("s"), QueueName("q"), Draft(b"hello", {"content_type": "text/plain"}), every=60)

    async def serve(root: Path, since: int, seconds: int, told: list[ScheduleStatus]) -> None:
        """Take the message of an instant, from `since` to `seconds` after the schedule was made."""
        now = [begin + since * 10**9]
        clock = Clock(lambda: now[0], lambda: now[0] / 1e9)
        async with open_broker(f"posix:{root}", clock=clock) as broker, trio.open_nursery() as nursery:
            scheduler = Scheduler(broker)
            await scheduler.load()
            if not len(scheduler):
                await broker.create_queue("q")
                await scheduler.put(made)
            told.append(scheduler.status("s"))
            now[0] = begin + seconds * 10**9
            nursery.start_soon(scheduler.run)
            message = await broker.fetch("q", wait=20)
            assert message is not None
            await broker.remove("q", message.id)
            assert (await broker.status("q")).ready == 0
            while not scheduler.status("s").last_ms:
                await trio.sleep(0.01)
            told.append(scheduler.status("s"))
            nursery.cancel_scope.cancel()

    told: list[ScheduleStatus] = []
    trio.run(serve, temp_root, 0, 90, told)
    assert mq("backup", temp_root, backups).status == 0
    assert mq("restore", backups, tmp_path / "restored").status == 0
    trio.run(serve, tmp_path / "restored", 90, 130, told)
    new, fired, restored, fired_again = told
    assert new.last_ms is None
    assert (restored.schedule, restored.last_ms) == (fired.schedule, fired.last_ms)
    assert restored.schedule.draft == made.draft
    assert fired_again.last_ms is not None
    assert fired.last_ms is not None
    assert fired_again.last_ms - fired.last_ms == 60_000


def test_what_is_damaged_is_named(mq: Mq, root: Path, backups: Path, tmp_path: Path) -> None:
    mq("backup", root, backups)
    [body] = (backups / "bodies").glob("*/*")
    body.write_bytes(b"0ne")
    done = mq("restore", backups, tmp_path / "restored")
    assert done.status == 1
    assert (
        done.error
        == f"mq: messages not restored because they are damaged in or missing from the backup: 1 ({body.name})\n"
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("backup", "there", "backups"), "is not an mq root"),
        (("backup", "root", "root/backups"), "choose another folder"),
        (("backup", "root", "there"), "choose an empty folder, a new one, or one with earlier backups"),
        (("restore", "there", "new"), "is not a backup folder"),
        (("restore", "nowhere", "new"), "is not a backup folder"),
        (("restore", "backups", "there"), "is not empty: move it elsewhere"),
        (("restore", "backups", "backups/root"), "choose another root"),
        (
            ("restore", "backups", "new", "--number", 7),
            "does not contain backup 7: list the backups with",
        ),
        (("restore", "backups"), "the argument ROOT"),
    ],
)
def test_what_is_refused_says_what_to_do(
    mq: Mq, root: Path, backups: Path, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    mq("backup", root, backups)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "thing").touch()
    places = {"root": root, "root/backups": root / "backups"}
    given = [places.get(word, tmp_path / word) if index else word for index, word in enumerate(arguments[:3])]
    done = mq(*given, *arguments[3:])
    assert (done.status, done.out) == (2, "")
    assert told in done.error
    assert len(done.error.splitlines()) == 1
    assert os.listdir(tmp_path / "there") == ["thing"]


def test_a_folder_without_a_whole_backup(mq: Mq, root: Path, backups: Path, tmp_path: Path) -> None:
    mq("backup", root, backups)
    (backups / "backups" / "000001.jsonl").write_text("")
    assert "does not contain a complete backup" in mq("restore", backups, tmp_path / "new").error
    assert "is damaged" in mq("restore", backups, tmp_path / "new", "--number", 1).error
    assert mq("restore", backups, "--list").out == ""


def test_another_users_root_is_refused_at_a_restore(
    mq: Mq, root: Path, backups: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mq("backup", root, backups)
    (tmp_path / "new").mkdir()
    (tmp_path / "new").chmod(0o777)
    done = mq("restore", backups, tmp_path / "new")
    assert done.status == 2
    assert "every user of this machine can write to" in done.error


def test_no_room_is_said_and_may_pass(mq: Mq, root: Path, backups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LinuxCalls, "write", full)
    done = mq("backup", root, backups)
    assert done.status == 4
    assert "free some space, or keep fewer backups (--keep). Earlier backups remain complete" in done.error


def test_a_root_of_several_machines_has_to_be_at_rest(
    mq: Mq, root: Path, backups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "mount_of", lambda path: Mount("nfs", remote=True))
    assert mq("backup", root, backups).status == 0


def test_links_to_the_places_are_followed(mq: Mq, root: Path, backups: Path, tmp_path: Path) -> None:
    os.symlink(root, tmp_path / "link")
    assert mq("backup", tmp_path / "link", backups).status == 0
    assert mq("backup", root, backups).status == 0
