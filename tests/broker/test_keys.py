"""Idempotency keys: what is published again with its key is the same message."""

from __future__ import annotations

import errno
import gc
import json
import tracemalloc
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.broker.ledger import LARGEST_SEGMENT
from mq.errors import Conflict, StorageFailed, StorageFull
from mq.storage.memory import MemoryStorage
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take
from tests.storage.disks import MOUNTS, open_disk

DAY_SECONDS: Final = 86_400


async def test_the_same_key_is_the_same_message(broker: Broker) -> None:
    id = await broker.publish("q", b"x", key="k")
    assert await broker.publish("q", b"another body", key="k") == id
    await broker.create_queue("other")
    assert await broker.publish("other", b"x", key="k") != id
    assert await broker.publish("q", b"x", key="l") != id
    assert (await broker.status("q")).ready == 2


async def test_once_in_one_batch_and_among_many_who_publish_at_once(broker: Broker) -> None:
    outcomes = await broker.publish_many("q", [Draft(b"1", key="k"), Draft(b"2"), Draft(b"3", key="k")])
    assert [outcome.is_new for outcome in outcomes if isinstance(outcome, Published)] == [True, True, False]
    ids = set()

    async def publish() -> None:
        ids.add(await broker.publish("q", b"x", key="l"))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(publish)
    assert len(ids) == 1
    assert (await broker.status("q")).ready == 3


@pytest.mark.parametrize("way", ["leave", "remove", "take", "acknowledge", "purge", "expire", "die", "redrive"])
@pytest.mark.parametrize("ends", ["well", "killed"])
async def test_over_a_restart_and_after_the_message_has_gone(wall_clock: WallClock, way: str, ends: str) -> None:
    """However it went, and though the process was killed at once: nothing that was not flushed is there then."""
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            for queue in ("p", "dead"):
                await broker.create_queue(queue)
            if way == "die":
                await broker.change_settings("p", {"dead_letter_queue": "dead"})
            id = await broker.publish("p", b"x", key="k", ttl=0.001 if way in ("expire", "die") else None)
            await _go(broker, way, id)
            if ends == "killed":
                disk.calls.fail("*", errno.EIO, times=None)
        disk.heal()
        async with open_broker(await disk.open()) as broker:
            assert await broker.publish("p", b"x", key="k") == id


async def _go(broker: Broker, way: str, id: str) -> None:
    if way == "remove":
        await broker.remove("p", id)
    elif way == "take":
        assert await broker.take("p") is not None
    elif way == "acknowledge":
        await broker.acknowledge(await broker.hold("p"))
    elif way == "purge":
        assert await broker.purge("p") == 1
    elif way == "redrive":
        assert await broker.redrive("p", "dead") == (1, 0)
    elif way in ("expire", "die"):
        while broker._catalog.queues["p"].total:
            await trio.sleep(0.01)
    await wait_all_tasks_blocked()


async def test_for_as_long_as_the_window_says(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.create_queue("short")
        await broker.change_settings("short", {"key_window": 60})
        ids = {queue: await broker.publish(queue, b"x", key="k") for queue in ("q", "short")}
        await trio.sleep(59)
        assert await broker.publish("short", b"x", key="k") == ids["short"]
        await trio.sleep(2)
        assert await broker.publish("short", b"x", key="k") != ids["short"]
    async with opened(disk_address) as broker:
        await trio.sleep(DAY_SECONDS - 62)
        assert await broker.publish("q", b"x", key="k") == ids["q"]
        await trio.sleep(2)
        assert await broker.publish("q", b"x", key="k") != ids["q"]


async def test_not_for_a_queue_that_is_made_anew(broker: Broker) -> None:
    id = await broker.publish("q", b"x", key="k")
    await broker.delete_queue("q")
    await broker.create_queue("q")
    assert await broker.publish("q", b"x", key="k") != id


async def test_a_key_for_a_body_that_was_there_already_stands_for_that_message(
    disk_address: str, opened: Opener
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"unique": True})
        id = await broker.publish("q", b"x")
        assert await broker.publish("q", b"x", key="k") == id
        await broker.remove("q", id)
        assert await broker.publish("q", b"x", key="k") == id
    async with opened(disk_address) as broker:
        assert await broker.publish("q", b"x", key="k") == id


@pytest.mark.parametrize("config", [{"peers": 1}, {"mover": False, "reaper": False}])
async def test_they_are_refused_where_others_publish(disk_address: str, opened: Opener, config: dict[str, int]) -> None:
    async with opened(disk_address, **config) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict, match="among peers"):
            await broker.publish("q", b"x", key="k")


@pytest.mark.parametrize("steps", range(25))
async def test_who_publishes_again_is_not_refused_for_the_first_one_who_went(broker: Broker, steps: int) -> None:
    first = trio.CancelScope()

    async def publish_and_go() -> None:
        with first:
            await broker.publish("q", b"x", key="k")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish_and_go)
        await trio.lowlevel.checkpoint()
        ids: list[str] = []

        async def publish_again() -> None:
            ids.append(await broker.publish("q", b"x", key="k"))

        nursery.start_soon(publish_again)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        first.cancel()
    await wait_all_tasks_blocked()
    assert [message.id for message in await broker.fetch_many("q", 10)] == ids


async def test_a_crash_at_every_call_between_the_key_and_the_message_leaves_one_message(wall_clock: WallClock) -> None:
    """The client asks again with its key until it is answered: the message is there once, by one id."""
    number, died = 0, True
    while died:
        number += 1
        async with open_disk(MOUNTS["rename"]) as disk:
            async with open_broker(disk.storage) as broker:
                await broker.publish("q", b"before", key="before")
                await wait_all_tasks_blocked()
                disk.calls.log.clear()
                disk.calls.fail("*", errno.EIO, nth=number, times=None)
                try:
                    first = await broker.publish("q", b"x", key="k")
                    died = False
                except StorageFailed:
                    first = None
            disk.heal()
            async with open_broker(await disk.open()) as broker:
                again = await broker.publish("q", b"x", key="k")
                assert first in (None, again)
                bodies = [await message.body.read() for message in await broker.fetch_many("q", 10)]
                assert bodies == [b"before", b"x"], number
    assert number > 10


@pytest.mark.parametrize("path", ["state/records/key/*", "new/*"])
async def test_a_key_whose_message_is_refused_stands_for_nothing(wall_clock: WallClock, path: str) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        disk.calls.fail("open", errno.ENOSPC, path=path)
        with pytest.raises(StorageFull):
            await broker.publish("q", b"x", key="k")
        await broker.publish("q", b"x", key="k")
        assert await take(broker) == b"x"
        assert await take(broker) is None


async def test_keys_that_are_over_take_no_room_though_others_are_not(wall_clock: WallClock) -> None:
    store = MemoryStorage()
    async with open_broker(store, clock_ns=wall_clock) as broker:
        for queue, window in (("long", 2_592_000), ("short", 1)):
            await broker.create_queue(queue)
            await broker.change_settings(queue, {"key_window": window})
        await broker.publish_many("long", [Draft(b"", key=f"{number}") for number in range(100)])
        for turn in range(200):
            await broker.publish_many("short", [Draft(b"", key=f"{turn}-{number}") for number in range(20)])
            await broker.purge("short")
            await trio.sleep(2)
        keys = broker._wiring._keys
        assert keys is not None
        assert len(keys._ledger) < 300
        assert sum(len(segment._packed.ends) for segment in keys._ledger._segments.values()) < 1000
        assert not keys._noted
        records = await store.records("key")
        assert sum(len(record["entries"]) for record in records.values()) < 3000


async def test_a_ledger_whose_keys_were_all_given_up_goes_on(wall_clock: WallClock) -> None:
    """A segment that had been filled and emptied while another was written was looked for in vain."""

    class Slow(MemoryStorage):
        async def put_record(self, kind: str, key: str, value: object) -> bool:
            await trio.sleep(1 if kind == "key" else 0)
            return await super().put_record(kind, key, json.loads(json.dumps(value)))

    async with open_broker(Slow(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_one, broker, "first")
            await trio.sleep(0.5)
            with trio.move_on_after(0.25):
                await broker.publish_many("q", [Draft(b"", key=f"{number}") for number in range(1200)])
        await publish_one(broker, "last")
        assert len(await broker.fetch_many("q", 10)) == 2


async def publish_one(broker: Broker, key: str) -> None:
    await broker.publish("q", b"x", key=key)


@pytest.mark.proof
async def test_a_key_whose_message_has_gone_takes_little_memory() -> None:
    """SQS's deduplication is made of such: a million of them in five minutes, 150 bytes each at the most. What the
    first 20,000 take besides, in tables of a size that does not grow, is left out."""
    files = [tracemalloc.Filter(True, f"*/mq/broker/{name}.py") for name in ("keys", "ledger")]
    sizes: list[int] = []
    async with open_storage("memory:") as store, open_broker(store) as broker:
        await broker.create_queue("q")
        tracemalloc.start()
        try:
            for start in range(0, 60 * LARGEST_SEGMENT, LARGEST_SEGMENT):
                drafts = [Draft(b"x", key=f"key {start + number}") for number in range(LARGEST_SEGMENT)]
                await broker.publish_many("q", drafts)
                await broker.purge("q")
                if start + LARGEST_SEGMENT in (40 * LARGEST_SEGMENT, 60 * LARGEST_SEGMENT):
                    gc.collect()
                    seen = tracemalloc.take_snapshot().filter_traces(files)
                    sizes.append(sum(trace.size for trace in seen.traces))
        finally:
            tracemalloc.stop()
        await broker.publish("q", b"y", key="key 7")
        assert (await broker.status("q")).ready == 0, "each key is known still"
    assert (sizes[1] - sizes[0]) / (20 * LARGEST_SEGMENT) < 150
