"""Which syncs make one durability barrier, and that none of them is forgotten, repeated or believed unchecked."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Final

import pytest

from mq.storage.files.calls import OPEN_FOLDER, OPEN_NEW
from mq.storage.files.sync import Barrier, WholeSyncs, make_syncs, sync_folder
from simulation.calls import FaultyCalls
from tests.cases import for_each
from tests.storage.disks import make_calls

FOLDERS: Final = tuple("abcdefgh")


class Medium(FaultyCalls):
    """Folders a to h below a root, and new files in the first."""

    def __init__(self) -> None:
        super().__init__(make_calls(), "/root")
        self.mkdir("/root")
        for name in FOLDERS:
            self.mkdir(f"/root/{name}")
        self.root_fd = self.open("/root", OPEN_FOLDER)

    def barrier(self, *, syncfs: bool, files: int = 0, folders: int = 0) -> Barrier:
        """A barrier with so many files and folders; nothing is written down before."""
        syncs = make_syncs(self, self.root_fd, syncfs=syncfs)
        barrier = Barrier(syncs, files)
        opened = [self.open(f"/root/a/{number}", OPEN_NEW) for number in range(files)]
        self.log.clear()
        for fd in opened:
            barrier.add_file(fd)
        barrier.add_folders(*(f"/root/{name}" for name in FOLDERS[:folders]))
        return barrier

    def left_open(self) -> int:
        """How many files and folders are open, the root left out."""
        return len(self.opened) - 1


@pytest.fixture
def medium() -> Iterator[Medium]:
    medium = Medium()
    yield medium
    assert medium.left_open() == 0


@for_each("syncfs", [False, True])
@for_each("files", range(2))
@for_each("folders", range(1, WholeSyncs.most_folders + 1), medium=Medium)
def test_a_few_are_synced_one_by_one_the_files_first(medium: Medium, syncfs: bool, files: int, folders: int) -> None:
    synced = medium.barrier(syncfs=syncfs, files=files, folders=folders).flush()
    expected = [*(f"fsync a/{number}" for number in range(files)), *(f"fsync {name}" for name in FOLDERS[:folders])]
    assert medium.said("fsync", "syncfs") == expected
    assert synced == {f"/root/{name}" for name in FOLDERS[:folders]}
    assert medium.left_open() == 0


@pytest.mark.parametrize(
    ("files", "folders"), [(2, 1), (0, WholeSyncs.most_folders + 1), (1, WholeSyncs.most_folders + 1)]
)
def test_many_are_synced_by_one_call(medium: Medium, files: int, folders: int) -> None:
    assert medium.barrier(syncfs=True, files=files, folders=folders).flush() is None
    assert medium.said("fsync", "syncfs") == ["syncfs ."]


def test_where_that_call_is_not_to_be_had_many_are_synced_one_by_one(medium: Medium) -> None:
    medium.barrier(syncfs=False, files=6, folders=8).flush()
    expected = [*(f"fsync a/{number}" for number in range(6)), *(f"fsync {name}" for name in FOLDERS)]
    assert medium.said("fsync", "syncfs") == expected


def test_files_of_a_large_batch_are_not_kept_open(medium: Medium) -> None:
    barrier = medium.barrier(syncfs=True, files=20, folders=1)
    assert medium.left_open() == 0
    barrier.flush()


def test_nothing_added_is_nothing_synced(medium: Medium) -> None:
    assert medium.barrier(syncfs=True).flush() == frozenset()
    assert medium.said("fsync", "syncfs") == []


@for_each("nth", range(1, 5))
@for_each("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR])
@for_each("syncfs", [False, True], medium=Medium)
def test_a_failed_sync_is_raised_and_nothing_is_synced_after_it(
    medium: Medium, nth: int, number: int, syncfs: bool
) -> None:
    barrier = medium.barrier(syncfs=syncfs, files=1, folders=3)
    medium.fail("fsync", number, nth=nth)
    with pytest.raises(OSError, match=r"\[Errno") as caught:
        barrier.flush()
    assert caught.value.errno == number
    assert len(medium.said("fsync", "syncfs")) == nth
    assert medium.left_open() == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_of_everything_is_raised(medium: Medium, number: int) -> None:
    barrier = medium.barrier(syncfs=True, files=9, folders=9)
    medium.fail("syncfs", number)
    with pytest.raises(OSError, match=r"\[Errno"):
        barrier.flush()
    assert medium.said("fsync", "syncfs") == ["syncfs ."]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("nth", [1, 2])
def test_without_handles_for_a_folder_everything_is_synced(medium: Medium, number: int, nth: int) -> None:
    barrier = medium.barrier(syncfs=True, files=1, folders=2)
    medium.fail("open", number, nth=nth)
    assert barrier.flush() is None
    assert medium.said("fsync", "syncfs") == ["fsync a/0", *["fsync a"] * (nth - 1), "syncfs ."]


def test_without_handles_and_without_syncfs_it_fails(medium: Medium) -> None:
    barrier = medium.barrier(syncfs=False, files=1, folders=2)
    medium.fail("open", errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        barrier.flush()


def test_a_failure_of_what_stands_in_for_a_folder_is_raised(medium: Medium) -> None:
    barrier = medium.barrier(syncfs=True, folders=1)
    medium.fail("open", errno.EMFILE)
    medium.fail("syncfs", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        barrier.flush()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOTDIR, errno.ELOOP])
def test_a_folder_that_cannot_be_opened_is_raised(medium: Medium, number: int) -> None:
    barrier = medium.barrier(syncfs=True, folders=2)
    medium.fail("open", number)
    with pytest.raises(OSError, match=r"\[Errno"):
        barrier.flush()
    assert medium.said("fsync", "syncfs") == []


def test_a_folder_that_is_no_more_has_nothing_to_keep(medium: Medium) -> None:
    barrier = medium.barrier(syncfs=True, folders=2)
    medium.rmdir("/root/b")
    assert barrier.flush() == {"/root/a", "/root/b"}
    assert medium.said("fsync") == ["fsync a"]


def test_closing_unsettled_closes_the_files_and_syncs_nothing(medium: Medium) -> None:
    barrier = medium.barrier(syncfs=False, files=3, folders=1)
    barrier.close()
    barrier.close()
    assert medium.said("close", "fsync") == [f"close a/{number}" for number in range(3)]


@pytest.mark.parametrize("verb", ["open", "fsync"])
def test_one_folder_is_synced_and_its_errors_are_raised(medium: Medium, verb: str) -> None:
    medium.log.clear()
    sync_folder(medium, "/root/a")
    assert medium.said() == ["open a", "fsync a", "close a"]
    medium.fail(verb, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        sync_folder(medium, "/root/a")
