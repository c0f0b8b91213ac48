"""Which engine serves a root, and why."""

from __future__ import annotations

from typing import Any

import pytest

from mq.errors import StorageUnusable
from mq.storage.files.doctor import engine_of
from mq.storage.files.engine import LOGGED, STEPWISE, choose_engine
from mq.storage.files.mount import Mount
from mq.storage.interface import Sharing
from mq.storage.options import StorageOptions
from tests.storage.disks import MOUNTS, Disk

EXT4 = Mount("ext4", atomic_rename=True, ordered=True, syncfs=True, logged=True)
NO_JOURNAL = Mount("ext4")


def choice(mount: Mount = EXT4, *, syncfs: bool = True, xattrs: bool = True, **options: Any) -> tuple[str, str, str]:
    return tuple(choose_engine(mount, StorageOptions(**options), "/root", syncfs=syncfs, xattrs=xattrs))


def test_one_daemon_on_a_journal_gets_the_log() -> None:
    engine, why, faster = choice()
    assert (engine, faster) == (LOGGED, "")
    assert "one disk flush" in why


@pytest.mark.parametrize(
    ("given", "word", "better"),
    [
        ({"mount": NO_JOURNAL}, "has no journal, so each message requires several disk flushes", "ext4 with a journal"),
        ({"mount": Mount("btrfs", atomic_rename=True, syncfs=True)}, "btrfs", "ext4 or xfs"),
        ({"mount": Mount("tmpfs", persistent=False, atomic_rename=True)}, "no log is needed", ""),
        ({"sharing": Sharing.PEERS}, "--peers", "--standby"),
        ({"sharing": Sharing.WATCHED}, "mq-mover", ""),
        ({"log": False}, "disabled", ""),
        ({"syncfs": False}, "syncfs", "Linux 5.8"),
        ({"xattrs": False}, "extended attributes", "user_xattr"),
    ],
)
def test_all_else_is_stepwise_for_a_reason(given: dict[str, Any], word: str, better: str) -> None:
    engine, why, faster = choice(**given)
    assert engine == STEPWISE
    assert word in why
    assert faster.startswith(better) if not better else better in faster


@pytest.mark.parametrize(
    ("mount", "text"),
    [
        (Mount("overlay", flaw="is on a volatile overlay"), "is on a volatile overlay"),
        (Mount("zfs", atomic_rename=True, assumed=True), "--untested-fs"),
    ],
)
def test_a_file_system_that_cannot_be_served_is_refused_with_the_reason(mount: Mount, text: str) -> None:
    with pytest.raises(StorageUnusable, match=text):
        choice(mount)


def test_an_untested_file_system_is_served_when_that_is_allowed() -> None:
    assert choice(Mount("zfs", atomic_rename=True, assumed=True), untested=True)[0] == STEPWISE


@pytest.mark.parametrize(("logged", "engine"), [(True, LOGGED), (False, STEPWISE)])
async def test_an_open_store_knows_its_engine(logged: bool, engine: str) -> None:
    disk = Disk(MOUNTS["rename"]._replace(logged=logged), syncfs=True, log_bytes=1 << 16)
    assert disk.another().engine is None
    storage = await disk.open()
    assert storage.engine is not None
    assert str(storage.engine).startswith(f"engine {engine}: ")
    await disk.check_whole()


def test_the_doctor_names_the_engine_of_a_root() -> None:
    found = engine_of("/", lambda root: NO_JOURNAL)
    assert str(found) == (
        "engine stepwise: this ext4 file system has no journal, so each message requires several disk flushes. "
        "For higher throughput, use ext4 with a journal (tune2fs -O has_journal), or xfs"
    )
