"""Idempotency keys: what is published again with its key is the same message."""

from __future__ import annotations

import errno
import gc
import json
import tracemalloc
from contextlib import suppress
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.broker.ledger import LARGEST_SEGMENT
from mq.errors import Conflict, NoMemory, NoSuchQueue, StorageFailed, StorageFull, StorageStopped
from mq.storage.interface import Description
from mq.storage.memory import MemoryStorage
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of, wiring_of
from tests.broker.test_broker import take
from tests.broker.test_leases import STEPS
from tests.record_hooks import RecordHooks
from tests.storage.disks import MOUNTS, open_disk

DAY_SECONDS: Final = 86_400
WAYS: Final = {"two barriers": MOUNTS["rename"], "one group": MOUNTS["rename"]._replace(logged=True)}
"""Roots on which a key is durable before its message, and with it."""


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


@pytest.mark.slow
@pytest.mark.parametrize("way", ["leave", "remove", "take", "acknowledge", "purge", "expire", "die", "redrive"])
@pytest.mark.parametrize("ends", ["well", "killed"])
@pytest.mark.parametrize("mount", WAYS)
async def test_over_a_restart_and_after_the_message_has_gone(
    wall_clock: WallClock, way: str, ends: str, mount: str
) -> None:
    """However it went, and though the process was killed at once: nothing that was not flushed is there then."""
    async with open_disk(WAYS[mount], syncfs=True) as disk:
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
        while catalog_of(broker).queues["p"].total:
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


@pytest.mark.parametrize("step", STEPS)
async def test_window_counts_elapsed_time_when_the_wall_clock_steps(
    broker: Broker, wall_clock: WallClock, step: float
) -> None:
    await broker.change_settings("q", {"key_window": 1000})
    id = await broker.publish("q", b"x", key="k")
    wall_clock.ahead_seconds = step
    await trio.sleep(500)
    assert await broker.publish("q", b"x", key="k") == id
    wall_clock.ahead_seconds = 0
    await trio.sleep(499)
    assert await broker.publish("q", b"x", key="k") == id
    await trio.sleep(2)
    assert await broker.publish("q", b"x", key="k") != id


async def test_key_is_refused_when_as_many_are_remembered_as_may_be(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, most_keys=10) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"key_window": 60})
        first = await broker.publish("q", b"x", key="0")
        for number in range(1, 10):
            await broker.publish("q", b"x", key=str(number))
        with pytest.raises(NoMemory, match="the maximum of 10 idempotency keys has been reached"):
            await broker.publish("q", b"x", key="10")
        assert await broker.publish("q", b"x", key="0") == first
        await broker.publish("q", b"x")
        outcomes = await broker.publish_many("q", [Draft(b"x", key="11"), Draft(b"x")])
        assert [type(outcome) for outcome in outcomes] == [NoMemory, Published]
        await trio.sleep(61)
        assert await broker.publish("q", b"x", key="10") != first


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
        with pytest.raises(Conflict, match="when other programs share the root folder"):
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


@pytest.mark.slow
@pytest.mark.parametrize("mount", WAYS)
async def test_a_crash_at_every_call_between_the_key_and_the_message_leaves_one_message(
    wall_clock: WallClock, mount: str
) -> None:
    """The client asks again with its key until it is answered: the message is there once, by one id."""
    number, died = 0, True
    while died:
        number += 1
        async with open_disk(WAYS[mount], syncfs=True) as disk:
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
    assert number > 5


@pytest.mark.parametrize("path", ["state/records/key/*", "new/*", "queues/q/*"])
@pytest.mark.parametrize("mount", WAYS)
@pytest.mark.parametrize("before", [0, 1])
async def test_a_key_whose_message_is_refused_stands_for_nothing(
    wall_clock: WallClock, path: str, mount: str, before: int
) -> None:
    """Nothing of it is left, and the keys before it stand as they did."""
    async with open_disk(WAYS[mount], syncfs=True) as disk:
        async with open_broker(disk.storage) as broker:
            for number in range(before):
                await broker.publish("q", b"before", key=f"{number}")
            disk.calls.fail("open", errno.ENOSPC, path=path)
            with suppress(StorageFull):  # one of the paths is not taken
                await broker.publish("q", b"x", key="k")
            again = await broker.publish("q", b"x", key="k")
        async with open_broker(await disk.open()) as broker:
            assert await broker.publish("q", b"x", key="k") == again
            for number in range(before):
                await broker.publish("q", b"other", key=f"{number}")
            assert [await take(broker) for _ in range(before + 2)] == [b"before"] * before + [b"x", None]


async def test_a_key_and_its_message_wait_for_one_flush(wall_clock: WallClock) -> None:
    async with open_disk(WAYS["one group"], syncfs=True) as disk, open_broker(disk.storage) as broker:
        await broker.publish("q", b"before", key="before")
        disk.calls.log.clear()
        await broker.publish("q", b"x", key="k")
        assert [what for what, *_ in disk.calls.log if "sync" in what] == ["fdatasync"]


async def test_the_same_key_at_once_and_in_a_later_batch_of_many_groups(wall_clock: WallClock) -> None:
    """More messages than one group takes: each is there once."""
    async with open_disk(WAYS["one group"], syncfs=True) as disk, open_broker(disk.storage) as broker:
        drafts = [Draft(bytes(900), key=f"{number % 400}") for number in range(500)]
        outcomes = await broker.publish_many("q", drafts)
        published = [each for each in outcomes if isinstance(each, Published)]
        assert len(published) == 500
        assert sum(each.is_new for each in published) == 400
        assert await broker.publish_many("q", drafts[:400]) == [each._replace(is_new=False) for each in published[:400]]
        assert (await broker.status("q")).ready == 400


@pytest.mark.parametrize("log_bytes", [1 << 20, 4 << 20])
async def test_what_the_ledger_keeps_of_many_keys_fits_their_group(wall_clock: WallClock, log_bytes: int) -> None:
    """Long keys fill many segments of the ledger, each of which is an operation of the group. A group too large for the
    store would be done by an intent, with a barrier for each step."""
    async with (
        open_disk(WAYS["one group"], syncfs=True, log_bytes=log_bytes) as disk,
        open_broker(disk.storage) as broker,
    ):
        await broker.publish("q", b"x", key="before")
        disk.calls.log.clear()
        await broker.publish_many("q", [Draft(b"x", key=f"{number:085}") for number in range(1000)])
        assert [each for each in disk.calls.log if "records/intent" in each.path] == []
        assert (await broker.status("q")).ready == 1001


@pytest.mark.slow
async def test_groups_are_larger_once_the_log_has_grown(wall_clock: WallClock) -> None:
    async with open_disk(WAYS["one group"], syncfs=True) as disk, open_broker(disk.storage) as broker:

        def flushes() -> list[str]:
            return [path for what, path, *_ in disk.calls.log if what == "fdatasync" and "state/log/" in path]

        drafts = [Draft(b"x", key=f"{number}") for number in range(LARGEST_SEGMENT)]
        disk.calls.log.clear()
        await broker.publish_many("q", drafts)
        assert len(flushes()) > 1
        for _ in range(20):  # each fills the segment, which is longer when it is used again
            await broker.publish_many("q", [Draft(bytes(60_000)) for _ in range(30)])
        disk.calls.log.clear()
        await broker.publish_many("q", [draft._replace(key=f"again {draft.key}") for draft in drafts])
        assert len(flushes()) == 1


async def test_a_message_whose_queue_has_gone_takes_no_other_with_it(wall_clock: WallClock) -> None:
    """They were one group; the one that is refused is refused alone."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        for queue in ("p", "q", "r"):
            await broker.create_queue(queue)
        del storage._records["queue"]["q"]
        results: dict[str, str] = {}

        async def publish(queue: str) -> None:
            try:
                results[queue] = await broker.publish(queue, b"x", key="k")
            except NoSuchQueue:
                results[queue] = "no queue"

        async with trio.open_nursery() as nursery:
            for queue in ("p", "q", "r"):
                nursery.start_soon(publish, queue)
        assert results["q"] == "no queue"
        for queue in ("p", "r"):
            assert [str(message.id) for message in await broker.fetch_many(queue, 2)] == [results[queue]]
            assert await broker.publish(queue, b"x", key="k") == results[queue]


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
        keys = wiring_of(broker)._keys
        assert keys is not None
        assert len(keys.ledger) < 300
        assert sum(len(segment._packed.ends) for segment in keys.ledger._segments.values()) < 1000
        assert not keys._noted
        records = await store.records("key")
        assert sum(len(record["entries"]) for record in records.values()) < 3000


async def test_a_ledger_whose_keys_were_all_given_up_goes_on(wall_clock: WallClock) -> None:
    """A segment that had been filled and emptied while another was written was looked for in vain."""

    class Slow(RecordHooks, MemoryStorage):
        @property
        def description(self) -> Description:
            return super().description._replace(groups=0)

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


async def test_a_segment_that_cannot_be_dropped_fails_no_publish(wall_clock: WallClock) -> None:
    """The store takes no more changes from then on; the broker says so, and is not ended."""

    class Broken(RecordHooks, MemoryStorage):
        dropped = 0

        async def drop_record(self, kind: str, key: str) -> bool:
            self.dropped += 1
            raise StorageFailed("broken")

    store = Broken()
    async with open_broker(store, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"key_window": 1})
        for turn in range(40):
            outcomes = await broker.publish_many("q", [Draft(b"", key=f"{turn}-{number:0200}") for number in range(40)])
            assert all(isinstance(outcome, Published) for outcome in outcomes)
            await wait_all_tasks_blocked()
            if store.dropped:
                break
            await trio.sleep(2)
        assert store.dropped
        with pytest.raises(StorageStopped):
            await broker.publish("q", b"x", key="k")
