"""What hardly ever happens: branches that `make coverage` found no test in."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.fake import make_calls
from mq.storage.files.hop import inline_hop
from mq.storage.files.posix import FolderStorage
from mq.storage.files.records import Records
from mq.storage.files.stepwise import root
from mq.storage.files.stepwise.engine import StepwiseEngine
from mq.storage.files.stepwise.source import SourceFolder
from mq.storage.interface import FRESH, QUEUE, Meta, Move, Result, Sharing
from mq.storage.options import StorageOptions
from mq.storage.records import put_record
from tests.storage.disks import MOUNTS, open_disk


@pytest.mark.parametrize("refusal", [errno.EINVAL, errno.ENOSYS])
def test_a_system_that_cannot_rename_without_replacing_replaces_nothing_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    calls = LinuxCalls()
    asked = []

    def refuse(returned: int, what: str) -> None:
        asked.append(what)
        raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(calls._libc, "renameat2", lambda *arguments: -1)
    monkeypatch.setattr(calls, "_check", refuse)
    source, taken, free = (str(tmp_path / name) for name in ("source", "taken", "free"))
    Path(source).write_bytes(b"source")
    Path(taken).write_bytes(b"taken")
    with pytest.raises(FileExistsError):
        calls.rename(source, taken)
    calls.rename(source, free)
    assert (Path(taken).read_bytes(), Path(free).read_bytes()) == (b"taken", b"source")
    assert asked == [source]  # it is asked once, and never again
    with pytest.raises(FileNotFoundError):
        calls.rename(source, free)  # a race is lost, though who won it has the same target
    assert Path(free).read_bytes() == b"source"


def test_another_refusal_of_a_rename_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LinuxCalls().rename(str(tmp_path / "missing"), str(tmp_path / "target"))


def test_an_attribute_of_no_file_is_an_error(tmp_path: Path) -> None:
    for calls in (LinuxCalls(), make_calls()):
        with pytest.raises(OSError, match="Bad file descriptor"):
            calls.get_attribute(9999, "user.mq.sum")


def test_the_fake_system_knows_when_a_name_was_changed() -> None:
    calls = make_calls()
    calls.mkdir("/folder")
    assert calls.changed_ns("/folder") > 0


@pytest.mark.slow
async def test_a_store_whose_mount_cannot_be_told_is_refused_in_one_line() -> None:
    def refuse(path: str) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    store = FolderStorage("test:", "/root", make_calls(), StorageOptions(), mount=refuse, hop=inline_hop)
    with pytest.raises(StorageUnusable, match='cannot serve root "/root": '):
        await store.open()


async def test_a_queues_settings_may_leave_out_when_it_was_made() -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        assert not await put_record(disk.storage, QUEUE, "q", {"limit": 5})
        assert await disk.storage.records(QUEUE) == {"q": {"limit": 5}}


def test_records_that_vanish_whenever_they_are_read_end_in_an_error_not_in_a_loop() -> None:
    calls = make_calls()
    calls.mkdir("/records")
    records = Records(calls, "/records")
    records.put("kind", "key", {})
    looks = []

    def vanish(path: str, *arguments: Any) -> int:
        looks.append(path)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    calls.open = vanish  # type: ignore[method-assign]
    with pytest.raises(FileNotFoundError):
        records.all("kind")
    assert len(looks) > 1


def test_a_folder_that_this_user_may_not_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "mq.storage.files.stepwise.source.os.access", lambda path, mode: mode != os.W_OK
    )  # root may write anywhere
    with pytest.raises(StorageUnusable, match="the user running mq cannot write to this folder"):
        SourceFolder(State.NEW, str(tmp_path))


async def test_a_body_that_is_read_in_small_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        entry = await disk.bring(State.READY, b"hello, world")
        read = disk.inner.read
        monkeypatch.setattr(disk.inner, "read", lambda fd, size: read(fd, min(size, 5)))
        assert await disk.body(entry) == b"hello, world"


async def test_only_so_many_writes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a separate mover delivers, nobody here ever asks for them."""
    monkeypatch.setattr(root, "_REMEMBERED_WRITES", 2)
    async with open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk:
        written = [await disk.bring(State.NEW) for _ in range(5)]
        engine = disk.storage._root_open.engine
        assert isinstance(engine, StepwiseEngine)
        assert engine.root.others is not None
        assert engine.root.others.written == {written[4].id}
        for entry in written:
            assert await disk.one(Move(entry, State.READY, durable=False)) is Result.DONE


def test_at_rest_there_is_no_deadline_and_no_claim() -> None:
    assert FRESH.at_rest() == FRESH
    assert Meta(5, 2, "0" * 16, 7, 9).at_rest() == Meta(None, 2, None, 7, 9)
