"""Where there is no journal a name, the file that it leads to and what the inode held before reach the disk each on
their own. The orders of calls that a power-cut rig (tests/crash/) found to be needed there.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from mq.lifecycle import State
from mq.storage.files.mount import mount_of
from mq.storage.files.records import Records, encode_record
from mq.storage.interface import QUEUE, Move, Result, Sharing, Unlink, Write
from mq.storage.records import drop_record, put_record
from simulation import disk as simulated
from simulation.faults import Faults, PowerCut
from tests.cases import for_each
from tests.storage.disks import MOUNTS, Disk, new_id, open_disk
from tests.storage.test_batch import chunks, shown, syncing


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    async with open_disk(MOUNTS["link"]) as disk:
        yield disk


@pytest.mark.parametrize(
    "options", [{}, {"sharing": Sharing.PEERS}, {"sharing": Sharing.WATCHED}], ids=["alone", "shared", "watched"]
)
async def test_a_file_is_durable_before_its_name_is_in_new(options: dict[str, bool]) -> None:
    async with open_disk(MOUNTS["link"], **options) as disk:
        entry = await disk.done(Write("q", new_id(), b"body"))
        assert shown(disk) == [
            "open state/stage/ID new",
            "set_attribute state/stage/ID user.mq.sum",
            "write state/stage/ID 4",
            "fsync state/stage/ID",
            "link state/stage/ID new/q:ID",
            "unlink state/stage/ID",
            *syncing("new"),
        ]
        assert await disk.body(entry) == b"body"


async def test_lone_daemon_writes_a_message_where_it_rests(disk: Disk) -> None:
    assert disk.storage.description.places
    entry = await disk.done(Write("q", new_id(), b"body", state=State.READY))
    assert shown(disk) == [
        "open state/stage/ID new",
        "set_attribute state/stage/ID user.mq.sum",
        "write state/stage/ID 4",
        "fsync state/stage/ID",
        "link state/stage/ID queues/q/ID",
        "unlink state/stage/ID",
        *syncing("queues/q"),
    ]
    assert await disk.body(entry) == b"body"


@pytest.mark.slow
@for_each("seed", range(8))
async def test_no_power_cut_leaves_a_partial_message_in_its_queue(seed: int) -> None:
    for call in itertools.count(1):
        odds = Faults(Random(seed), lambda told: None)
        power = simulated.Disk(simulated.Medium.ADVERSARIAL, Random(seed), odds)
        disk = Disk(MOUNTS["link"], power)
        await disk.open()
        await disk.make_queue()
        odds.cut_at = odds.calls + call
        is_cut = False
        try:
            await disk.commit(*(Write("q", new_id(), b"body" * 2000, state=State.READY) for _ in range(3)))
        except PowerCut:
            is_cut = True
        power.crash()
        odds.lift()
        disk._storage = None
        await disk.open()
        messages = await disk.storage.scan(State.READY, "q")
        assert is_cut or len(messages) == 3
        assert {await disk.body(message) for message in messages} <= {b"body" * 2000}
        await disk.check_whole()
        if not is_cut:
            break
    assert call > 20


@pytest.mark.parametrize("sharing", [Sharing.PEERS, Sharing.WATCHED])
async def test_several_processes_write_messages_in_new(sharing: Sharing) -> None:
    async with open_disk(MOUNTS["link"], sharing=sharing) as disk:
        assert not disk.storage.description.places


@pytest.mark.parametrize("mount", ["rename", "unordered"])
async def test_messages_synced_after_their_name_are_written_in_new(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        assert not disk.storage.description.places


async def test_attributes_stand_in_a_side_file(disk: Disk) -> None:
    """An extended attribute that has no room in the inode gets a block of its own, and that a repair can ruin."""
    entry = await disk.done(Write("q", new_id(), b"body", {"a": 1}))
    assert disk.files("state/properties") == {f"state/properties/{entry.id}"}
    said = disk.calls.said("set_attribute", "fsync", "link")
    assert said == [
        f"fsync state/properties/{entry.id}",
        "fsync state/properties",
        f"set_attribute state/stage/{entry.id} user.mq.sum",
        f"fsync state/stage/{entry.id}",
        f"link state/stage/{entry.id} new/q:{entry.id}",
        "fsync new",
    ]
    assert await disk.attributes(entry) == {"a": 1}


async def test_each_file_of_a_batch_is_durable_before_its_name(disk: Disk) -> None:
    await disk.commit(*(Write("q", new_id(), b"body") for _ in range(3)))
    said = [line.partition(" ")[0] for line in shown(disk) if line.startswith(("fsync", "link"))]
    assert said == ["fsync", "link"] * 3 + ["fsync"]


async def test_a_staged_body_is_durable_before_its_name_is_in_new(disk: Disk) -> None:
    staged = await disk.storage.stage(chunks(b"one", b"two"))
    shown(disk)
    entry = await disk.done(Write("q", new_id(), staged))
    said = shown(disk)
    assert said.index("fsync state/stage/ID") < said.index("link state/stage/ID new/q:ID")
    assert await disk.body(entry) == b"onetwo"


async def test_a_message_can_be_moved_in_the_batch_that_writes_it(disk: Disk) -> None:
    id = new_id()
    write = Write("q", id, b"body")
    written = (await disk.commit(write, Write("q", new_id(), b"other")))[0].entry
    assert written is not None
    again = Write("q", new_id(), b"body")
    outcomes = await disk.commit(again, Move(written._replace(id=again.id), State.READY))
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 2


async def test_a_name_that_cannot_be_made_is_refused_and_leaves_nothing(disk: Disk) -> None:
    before = disk.files()
    disk.calls.fail("link", errno.ENOSPC)
    assert await disk.one(Write("q", new_id(), b"body", {"note": "x" * 5000})) is Result.FULL
    assert disk.files() == before
    staged = await disk.storage.stage(chunks(b"one"))
    disk.calls.fail("link", errno.ENOSPC)
    assert await disk.one(Write("q", new_id(), staged)) is Result.FULL
    entry = await disk.done(Write("q", new_id(), staged))  # as it was: it can be tried again
    assert await disk.body(entry) == b"one"


async def test_a_name_that_is_taken_is_left_alone(disk: Disk) -> None:
    entry = await disk.done(Write("q", new_id(), b"first"))
    assert await disk.one(Write("q", entry.id, b"second")) is Result.EXISTS
    assert await disk.body(entry) == b"first"


async def test_files_that_fail_to_be_synced_never_get_a_name(disk: Disk) -> None:
    disk.calls.fail("fsync", errno.EIO)
    assert await disk.one(Write("q", new_id(), b"body")) is Result.FAILED
    assert not disk.files("new")
    opened = [call.verb for call in disk.calls.log]
    assert opened.count("open") == opened.count("close")


@pytest.mark.parametrize("mount", MOUNTS)
async def test_a_queues_folder_is_durable_before_its_name(mount: str) -> None:
    async with open_disk(MOUNTS[mount]) as disk:
        await disk.make_queue("r")
        said = disk.calls.said("mkdir", "fsync")
        made = said.index("mkdir queues/r")
        assert said[made + 1] == "fsync queues/r"
        assert "fsync queues" in said[made + 2 :]


_OF_FILES = {"fsync new", "fsync delay", "fsync remove", "fsync state/stage", "fsync state/properties"}
"""The syncs of all folders whose files may be gone."""


@pytest.mark.parametrize("sharing", [Sharing.ALONE, Sharing.PEERS])
async def test_names_of_files_that_are_gone_are_forgotten_after_a_queue_may_have_got_their_inode(
    sharing: Sharing,
) -> None:
    async with open_disk(MOUNTS["link"], sharing=sharing) as disk:
        await disk.make_queue("r")
        said = disk.calls.said("mkdir", "fsync")
        assert set(said[said.index("mkdir queues/r") :]) >= _OF_FILES


async def test_names_of_files_that_are_gone_are_forgotten_where_a_peer_makes_the_queue_at_this_moment() -> None:
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        await disk.make_queue("r")
        shown(disk)
        await disk.make_queue("r")
        assert set(disk.calls.said("fsync")) >= _OF_FILES


async def test_names_of_files_that_are_gone_are_forgotten_after_the_first_record_of_a_kind(disk: Disk) -> None:
    shown(disk)
    await put_record(disk.storage, "settings", "a", {"n": 1})
    said = disk.calls.said("mkdir", "fsync")
    assert set(said[said.index("mkdir state/records/settings") :]) >= _OF_FILES
    disk.calls.log.clear()
    await put_record(disk.storage, "settings", "b", {"n": 1})
    assert not set(disk.calls.said("fsync")) & _OF_FILES


async def test_names_in_a_deleted_queue_are_forgotten_before_the_folder_goes(disk: Disk) -> None:
    await disk.bring(State.READY)
    await drop_record(disk.storage, QUEUE, "q")
    (deleted,) = await disk.storage.scan(State.REMOVED)
    shown(disk)
    assert await disk.one(Unlink(deleted)) is Result.DONE
    assert shown(disk)[-4:] == ["unlink remove/q:ID/ID", *syncing("remove/q:ID"), "rmdir remove/q:ID"]


async def test_the_name_of_an_old_record_is_forgotten(disk: Disk) -> None:
    await put_record(disk.storage, "settings", "a", {"n": 1})
    disk.calls.log.clear()
    await put_record(disk.storage, "settings", "a", {"n": 2})
    assert disk.calls.said("unlink", "fsync")[-2:] == [
        "unlink state/records/settings/ka.1",
        "fsync state/records/settings",
    ]


async def test_a_record_under_anothers_name_is_none(disk: Disk) -> None:
    """A name whose inode still holds what another record said before the cut."""
    await put_record(disk.storage, "settings", "a", {"n": 1})
    disk.put("state/records/settings/kb.1", encode_record("a", {"n": 0}))
    assert Records(disk.inner, f"{disk.root}/state/records").all("settings") == {"a": {"n": 1}}


@pytest.mark.parametrize(("journal", "serves"), [("loop7-8", True), ("", False)])
def test_syncfs_serves_with_a_journal_only(tmp_path: Path, journal: str, serves: bool) -> None:
    (tmp_path / "journals" / journal).mkdir(parents=True)
    mounts = tmp_path / "mounts"
    mounts.write_text("1 1 7:7 / / rw - ext4 /dev/loop7 rw\n")
    mount = mount_of(str(tmp_path), str(mounts), str(tmp_path / "journals"))
    assert mount.syncfs is serves
    assert mount.atomic_rename is serves
