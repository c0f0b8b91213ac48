"""What a look at the disk told is kept until something contradicts it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from mq.storage.files.calls import LinuxCalls
from mq.storage.files.posix import FolderStorage
from mq.storage.files.records import encode_record
from mq.storage.files.stepwise.watch import GRANULARITY_NS, KeptLook
from mq.storage.interface import QUEUE, Sharing
from mq.storage.options import StorageOptions
from mq.storage.records import drop_record, put_record
from simulation.calls import RecordingCalls
from tests.storage.disks import MOUNTS


class Looks:
    """A folder that is looked at, by a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.later_ns = 2 * GRANULARITY_NS
        self.is_sure = True
        self.kept = KeptLook[list[str]](LinuxCalls(), [str(folder)], lambda: time.time_ns() + self.later_ns)

    def look(self) -> list[str]:
        """What is there."""
        return self.kept.look(lambda: (os.listdir(self.folder), self.is_sure))


def test_it_is_kept_until_the_folder_changes(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    found = looks.look()
    assert looks.kept.get() is found
    (tmp_path / "new").mkdir()
    assert looks.kept.get() is None
    assert looks.look() == ["new"]


def test_what_changed_just_now_or_is_being_written_is_not_kept(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    looks.later_ns = 0
    (tmp_path / "just now").mkdir()
    looks.look()
    assert looks.kept.get() is None, "another change in the same tick of the kernel's clock would not show"
    looks.later_ns = 2 * GRANULARITY_NS
    looks.is_sure = False
    looks.look()
    assert looks.kept.get() is None


def test_a_folder_that_is_not_there_yet_is_a_change_when_it_comes(tmp_path: Path) -> None:
    looks = Looks(tmp_path)
    kept = KeptLook[int](LinuxCalls(), [str(tmp_path), str(tmp_path / "not" / "yet")], looks.kept._clock_ns)
    kept.look(lambda: (1, True))
    assert kept.get() == 1
    (tmp_path / "not").mkdir()
    kept.look(lambda: (2, True))
    (tmp_path / "not" / "yet").mkdir()
    assert kept.get() is None


async def test_the_records_of_queues_are_read_again_when_one_of_them_changes(temp_root: Path) -> None:
    stores, calls = [], RecordingCalls(LinuxCalls(), str(temp_root))
    for made in (LinuxCalls(), LinuxCalls()):
        options = StorageOptions(sharing=Sharing.PEERS)
        stores.append(FolderStorage("x:", str(temp_root), made, options, mount=lambda root: MOUNTS["rename"]))
        await stores[-1].open()
    one, other = stores
    kept = one._queues
    assert kept is not None
    kept._clock_ns = lambda: time.time_ns() + 2 * GRANULARITY_NS
    one._root_open.records._calls = calls
    await put_record(one, QUEUE, "q", {"created": 1})
    seen = await one.records(QUEUE)
    calls.log.clear()
    assert await one.records(QUEUE) is seen
    assert calls.log == [], "nothing was read"
    await put_record(other, QUEUE, "q", {"created": 1, "settings": {"ttl": 5}})
    assert (await one.records(QUEUE))["q"]["settings"] == {"ttl": 5}
    await drop_record(other, QUEUE, "q")
    assert await one.records(QUEUE) == {}
    (temp_root / "queues" / "by-hand").mkdir()
    torn = temp_root / "state" / "records" / QUEUE / "kby-hand.1"
    torn.write_bytes(b'{"key": "by-')
    assert await one.records(QUEUE) == {"by-hand": {}}
    torn.write_bytes(encode_record("by-hand", {"settings": {"ttl": 5}}))  # no folder has changed since
    assert (await one.records(QUEUE))["by-hand"]["settings"] == {"ttl": 5}
    for store in stores:
        await store.aclose()
