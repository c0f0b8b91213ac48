"""A broker on a medium that fails when a test says so. Every call site is in tests/faults/; here are the finds."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import BrokerConfig, open_broker
from mq.broker.config import RETRY_SECONDS
from mq.errors import StorageFailed, StorageFull, StorageStopped, StorageUnsure, StorageUnusable
from mq.storage.interface import Operation, Outcome, Result, Sharing
from mq.storage.records import put_record
from tests.broker.conftest import WallClock
from tests.broker.test_broker import take
from tests.record_hooks import Unhooked, hook_records
from tests.storage.disks import MOUNTS, open_disk


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE])
async def test_a_store_that_cannot_be_read_is_refused_in_one_line(wall_clock: WallClock, number: int) -> None:
    """Not as a group of errors, which no program expects."""
    async with open_disk(MOUNTS["rename"]) as disk:
        disk.calls.fail("names", number, path="delay")
        with pytest.raises(StorageUnusable, match="cannot load the queues and messages from storage"):
            async with open_broker(disk.storage):
                pytest.fail("it opened")


@pytest.mark.parametrize(("number", "error"), [(errno.EMFILE, StorageFull), (errno.EIO, StorageFailed)])
async def test_a_fetch_among_peers_that_cannot_look_is_refused_and_the_broker_lives_on(
    wall_clock: WallClock, number: int, error: type[Exception]
) -> None:
    async with (
        open_disk(MOUNTS["rename"], sharing=Sharing.PEERS) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1)) as broker,
    ):
        id = await broker.publish("q", b"x")
        disk.calls.fail("names", number, path="queues/q")
        with pytest.raises(error):
            await broker.fetch("q")
        message = await broker.fetch("q")
        assert message is not None
        assert message.id == id


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
async def test_a_delivery_that_the_disk_refuses_is_tried_again_in_this_life(wall_clock: WallClock, number: int) -> None:
    """It is known to whoever looks meanwhile, and can be fetched without a restart."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        disk.calls.fail("rename", number, path="new/*", times=None)
        id = await broker.publish("q", b"x")
        await trio.sleep(RETRY_SECONDS / 2)
        assert (await broker.status("q")).ready == 1
        seen = await broker.show("q", id)
        assert seen.state == "ready"
        await seen.message.body.aclose()
        disk.heal()
        await trio.sleep(RETRY_SECONDS)
        assert await take(broker) == b"x"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE])
async def test_a_requeue_that_the_disk_refuses_is_tried_again_in_this_life(wall_clock: WallClock, number: int) -> None:
    async with (
        open_disk(MOUNTS["rename"]) as disk,
        open_broker(disk.storage, BrokerConfig(visibility_seconds=5)) as broker,
    ):
        await broker.publish("q", b"x")
        assert await take(broker) == b"x"
        disk.calls.fail("rename", number, path="delay/*", times=None)
        await trio.sleep(5 + RETRY_SECONDS / 2)
        assert (await broker.status("q")).leased == 1
        disk.heal()
        await trio.sleep(RETRY_SECONDS + 1)
        assert await take(broker) == b"x"


@pytest.mark.timeout(10)  # it went round and round, and let nobody else work
async def test_what_the_disk_does_not_let_become_delayed_gets_no_other_time(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        disk.calls.fail("rename", errno.EDQUOT, path="new/*", times=None)
        id = await broker.publish("q", b"x", delay=60)
        with pytest.raises(StorageFull, match="could not be changed"):
            await broker.reschedule("q", id, delay=0)
        disk.heal()
        await trio.sleep(RETRY_SECONDS + 1)
        await broker.reschedule("q", id, delay=0)
        assert await take(broker) == b"x"


async def test_what_was_in_a_deleted_queue_is_unlinked_at_once(wall_clock: WallClock) -> None:
    """Not after the next start: a full disk may wait for that room."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        for _ in range(3):
            await broker.publish("q", b"x")
        await broker.fetch("q")
        await broker.delete_queue("q")
        await wait_all_tasks_blocked()
        assert not [path for path in disk.tree() if path.startswith(("remove/", "queues/", "new/", "delay/"))]


async def test_a_queue_is_deleted_though_its_rest_cannot_be_listed(wall_clock: WallClock) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            disk.calls.fail("names", errno.EMFILE, path="remove")
            await broker.delete_queue("q")
            assert not await broker.has_queue("q")
        async with open_broker(await disk.open()):
            await wait_all_tasks_blocked()
        assert disk.inner.names(f"{disk.root}/remove") == []


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
async def test_what_a_deleted_queue_left_is_tried_again_in_a_while_not_at_once(
    wall_clock: WallClock, number: int
) -> None:
    """The broker did nothing else any more."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        await broker.publish("q", b"x")
        await broker.fetch("q")
        disk.calls.fail("rename", number, path="delay/*", times=None)
        await broker.delete_queue("q")
        await trio.sleep(10.5)
        tries = [call for call in disk.calls.said("rename") if call.startswith("rename delay/")]
        assert len(tries) == (1 if number == errno.EIO else 11)
        disk.heal()
        await trio.sleep(10)
        assert not disk.folders.volume.failure or number == errno.EIO
        assert bool(disk.files("delay")) is (number == errno.EIO)


SAID: Final = {
    Result.UNKNOWN: (StorageUnsure, "cannot store the message: the outcome is unknown (away)"),
    Result.FAILED: (StorageFailed, "the outcome of the request is unknown (away)"),
    Result.FULL: (StorageFull, "cannot store the message: away"),
}


@pytest.mark.parametrize("result", SAID)
async def test_a_publisher_hears_whether_it_may_have_been_stored(
    result: Result, wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:

        async def commit(operations: Sequence[Operation]) -> list[Outcome]:
            return [Outcome(result, reason="away")] * len(operations)

        with monkeypatch.context() as patch:
            patch.setattr(disk.storage, "commit", commit)
            kind, text = SAID[result]
            with pytest.raises(kind, match=re.escape(text)) as caught:
                await broker.publish("q", b"x")
        assert caught.value.is_unsure == (result is not Result.FULL)
        if result is Result.FAILED:
            with pytest.raises(StorageStopped) as stopped:
                await broker.publish("q", b"x")
            assert not stopped.value.is_unsure


async def test_a_dead_letter_of_which_nobody_knows_whether_it_was_noted_is_tried_again(
    wall_clock: WallClock,
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        await broker.create_queue("dead")
        await broker.change_settings("q", {"dead_letter_queue": "dead", "max_receives": 1})
        before, refused = Unhooked(disk.storage), [1, 1]

        async def put(kind: str, key: str, value: Mapping[str, Any]) -> bool:
            if refused:
                refused.pop()
                raise StorageUnsure("it may have been done")
            return await put_record(before, kind, key, value)  # type: ignore[arg-type]

        hook_records(disk.storage, put=put)
        await broker.publish("q", b"x")
        assert await take(broker) == b"x"
        await trio.sleep(40)
        assert not refused
        message = await broker.fetch("dead")
        assert message is not None
        assert [death["reason"] for death in message.dead_letter_history] == ["receives"]
        await message.body.aclose()
