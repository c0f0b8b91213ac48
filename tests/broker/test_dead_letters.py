"""Dead letters: where a message goes that was received too often, that expired or had to make room, and back."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, open_broker
from mq.errors import Conflict, InvalidSetting, NoSuchMessage, NoSuchQueue
from mq.lifecycle import Kind
from mq.message import Message
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import START_NS, Legal, Opener, WallClock
from tests.broker.inside import wiring_of
from tests.broker.test_broker import take
from tests.record_hooks import RecordHooks
from tests.storage.disks import MOUNTS, open_disk


async def make(broker: Broker, **settings: Any) -> None:
    """A queue q whose dead go to `dead`."""
    for queue in ("q", "dead"):
        await broker.create_queue(queue)
    await broker.change_settings("q", {"dead_letter_queue": "dead", **settings})


async def dead(broker: Broker, queue: str = "dead") -> Message:
    message = await broker.fetch(queue, wait=5)
    assert message is not None
    return message


def told(message: Message) -> list[tuple[str, str, int]]:
    return [(death["queue"], death["reason"], death["receives"]) for death in message.dead_letter_history]


@pytest.mark.parametrize("way", ["timer", "nack", "extend"])
@pytest.mark.parametrize("most", [1, 3])
async def test_a_message_dies_after_so_many_leases(broker: Broker, way: str, most: int) -> None:
    await make(broker, max_receives=most)
    id = await broker.publish("q", b"x", {"n": 1})
    for number in range(most):
        message = await broker.fetch("q", wait=1)
        assert message is not None
        assert message.receives == number + 1
        if way == "nack":
            await broker.requeue("q", id, receipt=message.receipt)
        elif way == "extend":
            await broker.extend("q", id, 0.001, receipt=message.receipt)
            await trio.sleep(0.01)
        else:
            await trio.sleep(31)
        await wait_all_tasks_blocked()
    assert await take(broker) is None
    message = await dead(broker)
    assert (message.id, message.receives, await message.body.read()) == (id, 1, b"x")
    assert message.properties.attributes == {"n": 1}
    assert told(message) == [("q", "receives", most)]
    assert message.dead_letter_history[0]["time"] == pytest.approx(START_NS / 1e9 + trio.current_time(), abs=1)


async def test_what_expires_dies_where_there_is_a_queue_for_the_dead(broker: Broker, observer: Legal) -> None:
    await make(broker)
    await broker.create_queue("alone")
    for queue in ("q", "alone"):
        await broker.publish(queue, b"x", ttl=5)
    await trio.sleep(6)
    assert told(await dead(broker)) == [("q", "expired", 0)]
    assert await take(broker, "alone") is None
    kinds = [(seen.kind, seen.destination) for seen in observer.seen]
    assert (Kind.DEAD_LETTER, "dead") in kinds
    assert (Kind.EXPIRE, None) in kinds


async def test_a_history_goes_on_over_queues_and_restarts(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await make(broker, max_receives=1)
        await broker.create_queue("crypt")
        await broker.change_settings("dead", {"dead_letter_queue": "crypt", "ttl": 100})
        id = await broker.publish("q", b"x")
        assert await take(broker) == b"x"
        await broker.requeue("q", id)
    async with opened(disk_address) as broker:
        [seen] = await broker.peek("dead")
        assert told(seen.message) == [("q", "receives", 1)]
        await trio.sleep(101)
    async with opened(disk_address) as broker:
        message = await dead(broker, "crypt")
        assert told(message) == [("dead", "expired", 0), ("q", "receives", 1)]
        assert told((await broker.show("crypt", id)).message) == told(message)
        await broker.remove("crypt", id)
    async with opened(disk_address) as broker:
        assert len(wiring_of(broker)._dead_letters._ledger) == 0


async def test_without_a_queue_for_the_dead_a_message_is_received_for_ever(broker: Broker) -> None:
    await make(broker, max_receives=1)
    await broker.publish("q", b"x")
    await broker.delete_queue("dead")
    for _ in range(5):
        assert await take(broker) == b"x"
        await trio.sleep(31)


async def _nack(broker: Broker, id: str) -> None:
    with suppress(Conflict, NoSuchQueue, NoSuchMessage):
        await broker.requeue("q", id)


class SlowToNote(RecordHooks, MemoryStorage):
    """A store that takes its time to keep a history."""

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        await trio.sleep(5 if kind == "death" else 0)
        return await super().put_record(kind, key, value)


async def test_no_message_is_lost_when_the_queue_for_the_dead_is_deleted_just_then(wall_clock: WallClock) -> None:
    """Neither the one that is about to move there nor the one that is next."""
    async with open_broker(SlowToNote(), clock_ns=wall_clock) as broker:
        await make(broker, max_receives=1)
        ids = [await broker.publish("q", b"x") for _ in range(2)]
        assert len(await broker.fetch_many("q", 2)) == 2
        async with trio.open_nursery() as nursery:
            for id in ids:
                nursery.start_soon(_nack, broker, id)
                await wait_all_tasks_blocked()
            await broker.delete_queue("dead")
        await trio.sleep(50)
        assert [message.id for message in await broker.fetch_many("q", 10)] == ids


async def test_what_was_to_die_in_a_queue_that_was_deleted_is_no_dead_letter(wall_clock: WallClock) -> None:
    async with open_broker(SlowToNote(), clock_ns=wall_clock) as broker:
        await make(broker, max_receives=1)
        first, second = [await broker.publish("q", b"x") for _ in range(2)]
        assert len(await broker.fetch_many("q", 2)) == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.requeue, "q", first)  # its history is being noted for seconds
            await wait_all_tasks_blocked()
            nursery.start_soon(_nack, broker, second)
            await wait_all_tasks_blocked()
            await broker.delete_queue("q")
            await make(broker, max_receives=1)
        assert (await dead(broker)).id == first
        await trio.sleep(50)
        assert (await broker.status("q")).ready == 0
        assert [each.id for each in await broker.fetch_many("dead", 10)] == [first]


async def test_dead_letters_go_back_to_where_they_died(broker: Broker) -> None:
    await make(broker)
    await broker.create_queue("p")
    await broker.change_settings("p", {"dead_letter_queue": "dead"})
    ids = [await broker.publish(queue, b"x", ttl=1) for queue in ("q", "p", "q", "p")]
    await trio.sleep(2)
    own = await broker.publish("dead", b"never died")
    assert await broker.redrive("dead") == (4, 1)
    for queue, wanted in (("q", ids[::2]), ("p", ids[1::2])):
        messages = await broker.fetch_many(queue, 10)
        assert [message.id for message in messages] == wanted
        assert [message.receives for message in messages] == [1, 1]
        assert told(messages[0]) == [(queue, "expired", 0)]
    assert (await dead(broker)).id == own


async def test_some_dead_letters_go_back_and_others_elsewhere(broker: Broker) -> None:
    await make(broker)
    await broker.create_queue("other")
    ids = [await broker.publish("q", b"x", ttl=1) for _ in range(5)]
    await trio.sleep(2)
    assert await broker.redrive("dead", ids=[]) == (0, 5)
    assert await broker.redrive("dead", ids=[ids[3], ids[4]]) == (2, 3)
    assert await broker.redrive("dead", most=1) == (1, 2)
    assert await broker.redrive("dead", "other") == (2, 0)
    assert [message.id for message in await broker.fetch_many("other", 10)] == ids[1:3]
    assert [message.id for message in await broker.fetch_many("q", 10)] == [ids[3], ids[4], ids[0]]
    with pytest.raises(InvalidSetting, match="queue dead is both"):
        await broker.redrive("dead", "dead")
    with pytest.raises(NoSuchQueue):
        await broker.redrive("dead", "nowhere")


async def test_what_never_died_does_not_hide_the_dead_behind_it(broker: Broker) -> None:
    await make(broker)
    for _ in range(5):
        await broker.publish("dead", b"never died")
    await broker.publish("q", b"x", ttl=1)
    await trio.sleep(2)
    assert await broker.redrive("dead", most=3) == (1, 5)


async def test_a_death_that_the_disk_refuses_is_noted_once(wall_clock: WallClock) -> None:
    """It was noted again with every try, until the real history was pushed out."""
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        await make(broker, max_receives=1)
        id = await broker.publish("q", b"x")
        assert await take(broker) == b"x"
        disk.calls.fail("rename", errno.EMFILE, path="delay/*", times=None)
        await trio.sleep(40)
        seen = await broker.show("q", id)
        assert told(seen.message) == []
        await seen.message.body.aclose()
        disk.heal()
        await trio.sleep(5)
        assert told(await dead(broker)) == [("q", "receives", 1)]


@pytest.mark.parametrize("verb", ["fsync", "rename"])
async def test_a_broker_that_dies_between_a_history_and_the_move_tells_of_one_death(
    wall_clock: WallClock, verb: str
) -> None:
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            await make(broker, max_receives=1)
            id = await broker.publish("q", b"x")
            assert await take(broker) == b"x"
            disk.calls.fail(verb, errno.EIO, path="delay*", times=None)
            await trio.sleep(31)
            assert not broker.ready
        disk.heal()
        async with open_broker(await disk.open()) as broker:
            await trio.sleep(40)
            message = await dead(broker)
            assert message.id == id
            assert told(message) == [("q", "receives", 1)]


async def test_histories_of_what_was_removed_take_no_room(wall_clock: WallClock) -> None:
    store = MemoryStorage()
    async with open_broker(store, clock_ns=wall_clock) as broker:
        await make(broker)
        for _ in range(3):
            for _ in range(600):
                await broker.publish("q", b"x", ttl=1)
            await trio.sleep(2)
            await broker.purge("dead")
            assert len(wiring_of(broker)._dead_letters._ledger) == 0
        assert len(await store.records("death")) <= 3


async def test_peers_tell_of_each_others_dead(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await make(one, max_receives=1)
        await other.create_queue("crypt")
        await other.change_settings("dead", {"dead_letter_queue": "crypt", "max_receives": 1})
        id = await one.publish("q", b"x")
        await wait_all_tasks_blocked()
        assert await take(one) == b"x"
        await one.requeue("q", id)
        await wait_all_tasks_blocked()
        message = await dead(other)
        assert told(message) == [("q", "receives", 1)]
        await other.requeue("dead", id)
        await wait_all_tasks_blocked()
        message = await dead(one, "crypt")
        assert told(message) == [("dead", "receives", 1), ("q", "receives", 1)]


async def test_a_peer_that_starts_takes_nobodys_histories_away(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one:
        await make(one, max_receives=1)
        for _ in range(2):
            id = await one.publish("q", b"x")
            await wait_all_tasks_blocked()
            assert await take(one) == b"x"
            await one.requeue("q", id)
            await wait_all_tasks_blocked()
            async with opened(disk_address, peers=1) as other:
                await one.remove("dead", (await dead(other)).id)
                last = await one.publish("q", b"y", ttl=1)
                await trio.sleep(2)
    async with opened(disk_address) as alone:
        assert told((await alone.show("dead", last)).message) == [("q", "expired", 0)]
