"""The lease of a claim: it is in the claim's record, and its messages stay where they are."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio

from mq.broker import Broker, Draft, batch_consumers, open_broker
from mq.broker.batch_consumers import KIND
from mq.broker.config import GRACE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.broker.index import QueueIndex
from mq.broker.settings import QueueSettings
from mq.errors import MQError, NotLeased, QueueFull, ReceiptMismatch, StorageFull
from mq.lifecycle import Kind, State
from mq.message import MessageIds
from mq.storage.interface import FRESH, QUEUE, Entry, Move, Outcome, Put, Result, Storage, Unlink
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record
from tests.broker.conftest import START_NS, Legal, Opener, WallClock
from tests.broker.test_claims import fill, read, slow_down
from tests.broker.test_leases import STEPS
from tests.storage.disks import MOUNTS, Disk, open_disk


async def claim(broker: Broker, name: str = "c", **options: Any) -> int:
    """Start a consumer, and claim its first batch. Returns the epoch."""
    epoch = (await broker.claims.start("q", name)).epoch
    assert await broker.claims.claim("q", name, 1, epoch, **options) is not None
    return epoch


async def receives(broker: Broker, most: int = 100) -> list[int]:
    """How often the messages of the queue were received, with the fetch that asks."""
    messages = await broker.fetch_many("q", most, visibility=3600)
    for message in messages:
        await message.body.aclose()
    return [message.receives for message in messages]


def refuse(storage: Storage, which: Callable[[Any], bool], result: Result = Result.FULL) -> Callable[[], None]:
    """Operations of that kind are refused, until the answer is called."""
    commit = storage.commit

    async def refusing(operations: Sequence[Any]) -> list[Outcome]:
        done = iter(await commit([each for each in operations if not which(each)]))
        return [Outcome(result, None, "no room") if which(each) else next(done) for each in operations]

    def heal() -> None:
        storage.commit = commit  # type: ignore[method-assign]

    storage.commit = refusing  # type: ignore[method-assign]
    return heal


# What others see of a claimed message


async def test_what_is_claimed_stays_ready_in_the_store_and_is_leased_to_everybody(
    address: str, opened: Opener, observer: Legal
) -> None:
    async with opened(address) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        await claim(broker, most=2)
        assert Kind.LEASE not in {transition.kind for transition in observer.seen}
        assert {entry.meta for entry in await broker.storage.scan(State.READY, "q")} == {FRESH}
        assert (await broker.status("q"))[2:5] == (1, 2, 0)
        page = await broker.peek("q", state="leased")
        assert [(seen.state, seen.message.receives, seen.message.receipt) for seen in page] == [("leased", 1, "")] * 2
        shown = await broker.show("q", page[0].message.id)
        assert (shown.state, shown.message.receives) == ("leased", 1)
        browsed = (await broker.browsing.browse("q")).messages
        assert [seen.message.id for seen in browsed] == [entry.message.id for entry in await broker.peek("q")]
        assert (await broker.browsing.ranges("q", 2)).messages == len(browsed) == 1
        for seen in [*page, shown, *browsed]:
            await seen.message.body.aclose()


async def test_a_message_of_a_claim_has_no_lease_of_its_own(broker: Broker) -> None:
    await fill(broker, 2)
    epoch = await claim(broker)
    [(_, first), (_, second)] = await broker.claims.read("q", "c", 1, epoch, 0, 2)
    assert (first.receives, first.receipt) == (1, "")
    for message in (first, second):
        await message.body.aclose()
    for act in (broker.requeue, lambda queue, id: broker.extend(queue, id, 60)):
        with pytest.raises(NotLeased, match="was claimed as part of a batch"):
            await act("q", first.id)
    with pytest.raises(ReceiptMismatch):
        await broker.remove("q", first.id, receipt="0123456789abcdef")
    await broker.remove("q", first.id)  # by its id alone it goes, as any leased message does
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert (held.messages, held.lost) == (1, 1)


async def test_no_verb_takes_a_message_from_a_claim(broker: Broker) -> None:
    await broker.create_queue("other")
    await fill(broker, 3)
    epoch = await claim(broker)
    assert await broker.fetch_many("q", 3) == []
    assert await broker.take("q") is None
    assert await broker.hold("q", 3) == []
    assert await broker.purge("q") == 0
    assert (await broker.redrive("q", to="other")).moved == 0
    assert (await broker.claims.start("q", "d")).epoch
    assert await broker.claims.claim("q", "d", 1, (await broker.claims.start("q", "d")).epoch) is None
    assert len(await read(broker, 1, epoch)) == 3


async def test_what_is_claimed_counts_for_the_queues_limit_and_is_not_dropped(broker: Broker) -> None:
    await fill(broker, 2)
    await claim(broker)
    await broker.change_settings("q", {"max_messages": 2})
    with pytest.raises(QueueFull):
        await broker.publish("q", b"x")
    await broker.change_settings("q", {"overflow": "drop-head"})
    await broker.publish("q", b"x")
    await trio.sleep(1)
    assert (await broker.status("q"))[2:5] == (0, 2, 0)


async def test_what_expires_while_it_is_claimed_goes_when_the_lease_ends(broker: Broker) -> None:
    await broker.publish("q", b"x", ttl=10)
    epoch = await claim(broker, lease=60)
    await trio.sleep(30)
    assert await read(broker, 1, epoch) == ["x"]
    await trio.sleep(40)
    assert (await broker.status("q"))[2:5] == (0, 0, 0)


async def test_a_claim_blocks_the_groups_of_its_messages(broker: Broker) -> None:
    await broker.change_settings("q", {"groups": True})
    for body in (b"a1", b"b1", b"a2", b"b2"):
        await broker.publish_many("q", [Draft(body, group=body[:1].decode())])
    epoch = await claim(broker, most=1, lease=60)
    assert await read(broker, 1, epoch) == ["a1"]
    message = await broker.fetch("q")
    assert message is not None
    assert await message.body.read() == b"b1"
    assert await broker.fetch("q") is None
    await trio.sleep(70)
    messages = [await broker.fetch("q", visibility=600) for _ in range(3)]
    assert {await message.body.read() for message in messages if message is not None} == {b"a1", b"b1"}
    assert messages[2] is None


async def test_groups_that_begin_later_are_blocked_by_what_is_claimed(broker: Broker) -> None:
    for body in (b"a1", b"a2"):
        await broker.publish_many("q", [Draft(body, group="a", is_group_hint=True)])
    epoch = await claim(broker, most=1)
    await broker.change_settings("q", {"groups": True})
    assert await broker.fetch("q") is None
    await broker.claims.acknowledge("q", "c", 1, epoch)
    message = await broker.fetch("q")
    assert message is not None
    assert await message.body.read() == b"a2"


async def test_a_removal_that_is_refused_leaves_a_message_in_its_claim(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 1)
        epoch = await claim(broker)
        [(_, message)] = await broker.claims.read("q", "c", 1, epoch, 0, 1)
        heal = refuse(storage, lambda each: isinstance(each, Move | Unlink))
        with pytest.raises(StorageFull):
            await broker.remove("q", message.id)
        heal()
        assert await broker.fetch("q") is None
        assert len(await read(broker, 1, epoch)) == 1


# The end of a lease


async def test_what_a_claim_had_was_received_once_more_when_its_lease_ends(broker: Broker) -> None:
    await fill(broker, 3)
    message = await broker.fetch("q")
    assert message is not None
    await message.body.aclose()
    await broker.requeue("q", message.id, receipt=message.receipt)
    await claim(broker, lease=60)
    await trio.sleep(60.1)
    assert (await broker.status("q"))[2:5] == (3, 0, 0)
    assert await receives(broker) == [3, 2, 2]


async def test_what_ends_a_lease_is_in_the_record_before_a_message_moves(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        await claim(broker, lease=60)
        done: list[Any] = []
        commit = storage.commit

        async def note(operations: Sequence[Any]) -> list[Outcome]:
            done.extend(each for each in operations if not (isinstance(each, Put) and each.kind == "clock"))
            return await commit(operations)

        storage.commit = note  # type: ignore[method-assign]
        slow_down(storage, 0.5)
        await trio.sleep(60.3)
        assert await broker.fetch("q") is None  # nor is one handed out before
        await trio.sleep(3)
        assert [type(each) for each in done] == [Put, Move, Move]
        [_, _, _, deadline_ms, _, returning, _, _] = done[0].value["claim"]
        assert (deadline_ms, returning) == (None, (1, 1))


async def test_a_lease_that_ends_holds_its_messages_back_as_long_as_the_queue_says(broker: Broker) -> None:
    await broker.change_settings("q", {"retry_delay": 100, "retry_jitter": 0})
    await fill(broker, 2)
    await claim(broker, lease=60)
    await trio.sleep(100)
    assert (await broker.status("q"))[2:5] == (0, 0, 2)
    await trio.sleep(70)
    assert await receives(broker) == [2, 2]


async def test_what_a_claim_had_too_often_dies_when_its_lease_ends(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
    await fill(broker, 2)
    epoch = await claim(broker, lease=60)
    await trio.sleep(70)
    assert (await broker.status("q")).ready == 2
    await broker.claims.claim("q", "c", 1, epoch, lease=60)
    await trio.sleep(50)
    assert len(await read(broker, 1, epoch)) == 2
    await trio.sleep(20)
    assert [(await broker.status(queue))[2:5] for queue in ("q", "dead")] == [(0, 0, 0), (2, 0, 0)]
    for message in await broker.fetch_many("dead", 2):
        assert [(death["reason"], death["receives"]) for death in message.dead_letter_history] == [("receives", 2)]
        await message.body.aclose()


async def test_a_lease_that_is_renewed_ends_later(broker: Broker) -> None:
    await fill(broker, 2)
    epoch = await claim(broker, lease=60)
    for _ in range(10):
        await trio.sleep(50)
        await broker.claims.claim("q", "c", 1, epoch, lease=60)
    assert await broker.fetch("q") is None
    await trio.sleep(50)
    assert len(await read(broker, 1, epoch)) == 2
    await trio.sleep(11)
    assert await receives(broker) == [2, 2]


async def test_lease_that_is_renewed_very_often_leaves_few_timers(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = broker.claims._ends
    monkeypatch.setattr(batch_consumers, "_FEW_LEASES", 10)
    ends._most = 10
    await fill(broker, 2)
    epoch = await claim(broker, lease=60)
    for _ in range(100):
        await broker.claims.claim("q", "c", 1, epoch, lease=60)
    assert len(ends._heap) <= 11
    await trio.sleep(61)
    assert await receives(broker) == [2, 2]


async def test_a_forgotten_consumers_messages_were_received(broker: Broker) -> None:
    await fill(broker, 2)
    await claim(broker)
    await broker.claims.forget("q", "c")
    assert await receives(broker) == [2, 2]


@pytest.mark.parametrize("earlier", [0, 8])
@pytest.mark.parametrize("how", ["ends", "forgotten", "renewed"])
async def test_a_store_that_takes_a_claim_takes_its_end(wall_clock: WallClock, how: str, earlier: int) -> None:
    """Records have a length that a store takes; a claim whose end were longer would keep its messages for ever."""
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q", QueueSettings(max_receives=None))
        await fill(broker, 30)
        for _ in range(earlier):
            for message in await broker.fetch_many("q", 100, visibility=60):
                await broker.requeue("q", message.id)
        lengths: list[int] = []

        def is_too_long(each: Any) -> bool:
            if not isinstance(each, Put) or each.kind != KIND:
                return False
            lengths.append(len(json.dumps(each.value)))
            return lengths[-1] > most

        most = 1 << 20
        refuse(storage, is_too_long)
        epoch = await claim(broker, lease=60)
        most = lengths[-1]
        if how == "renewed":
            await trio.sleep(30)
            assert await broker.claims.claim("q", "c", 1, epoch, lease=60) is not None
        if how == "forgotten":
            await broker.claims.forget("q", "c")
        await trio.sleep(200)
        assert await receives(broker) == [earlier + 2] * 30


async def test_a_claim_that_the_store_has_no_room_for_leaves_its_messages(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        heal = refuse(storage, lambda each: isinstance(each, Put) and "claim" in each.value)
        with pytest.raises(StorageFull, match=r"claim record \(messages: 2\) may be too large"):
            await claim(broker)
        heal()
        assert await receives(broker) == [1, 1]


@pytest.mark.parametrize("what", [Put, Move])
async def test_an_end_that_a_full_disk_refuses_is_tried_again(wall_clock: WallClock, what: type) -> None:
    """And until then nobody else gets what the claim had."""
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        await claim(broker, lease=60)
        heal = refuse(storage, lambda each: isinstance(each, what))
        await trio.sleep(70)
        assert (await broker.status("q"))[2:5] == (0, 2, 0)
        assert await broker.fetch("q") is None
        heal()
        await trio.sleep(2 * RETRY_SECONDS)
        assert await receives(broker) == [2, 2]


async def test_a_claim_is_had_again_whose_end_a_full_disk_has_refused_halfway(wall_clock: WallClock) -> None:
    """Nobody had its messages in between: so it is as if it had been renewed a little late."""
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        epoch = await claim(broker, lease=60)
        heal = refuse(storage, lambda each: isinstance(each, Move))
        await trio.sleep(70)
        with pytest.raises(ReceiptMismatch):
            await read(broker, 1, epoch)
        held = await broker.claims.claim("q", "c", 1, epoch, lease=60)
        assert held is not None
        assert (held.messages, held.lost) == (2, 0)
        heal()
        await trio.sleep(50)
        assert len(await read(broker, 1, epoch)) == 2
        await trio.sleep(20)
        assert await receives(broker) == [2, 2]


async def test_a_consumer_is_not_forgotten_before_its_messages_are_back(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        await claim(broker)
        heal = refuse(storage, lambda each: isinstance(each, Move))
        with pytest.raises(StorageFull, match="could not be requeued"):
            await broker.claims.forget("q", "c")
        heal()
        await broker.claims.forget("q", "c")
        assert await broker.claims.consumers("q") == []
        assert await receives(broker) == [2, 2]


async def test_a_renewal_that_is_refused_leaves_what_others_may_get(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        epoch = await claim(broker, lease=60)
        await trio.sleep(70)
        heal = refuse(storage, lambda each: isinstance(each, Put))
        with pytest.raises(StorageFull):
            await broker.claims.claim("q", "c", 1, epoch)
        heal()
        assert (await broker.status("q"))[2:5] == (2, 0, 0)
        assert await receives(broker) == [2, 2]


async def test_a_lease_in_a_queue_that_is_deleted_ends_with_it(broker: Broker) -> None:
    await fill(broker, 2)
    await claim(broker, lease=60)
    await broker.delete_queue("q")
    await broker.create_queue("q")
    await fill(broker, 1)
    await trio.sleep(70)
    assert (await broker.status("q"))[2:5] == (1, 0, 0)
    assert await broker.claims.consumers("q") == []


async def test_what_a_claim_puts_back_is_not_in_another_queue_of_that_name(wall_clock: WallClock) -> None:
    """The queue is deleted, and made anew, while the claim's record is on its way, which is refused then."""
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        epoch = (await broker.claims.start("q", "c")).epoch
        heal = refuse(storage, lambda each: isinstance(each, Put) and each.kind != QUEUE)
        slow_down(storage, 0.3)

        async def claim_in_vain() -> None:
            with pytest.raises(MQError):
                await broker.claims.claim("q", "c", 1, epoch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim_in_vain)
            await trio.sleep(0.1)
            await broker.delete_queue("q")
            await broker.create_queue("q")
        heal()
        assert (await broker.status("q"))[2:5] == (0, 0, 0)


@pytest.mark.parametrize("step", STEPS)
async def test_lease_of_a_claim_counts_elapsed_time_when_the_wall_clock_steps(
    broker: Broker, wall_clock: WallClock, step: float
) -> None:
    await fill(broker, 2)
    epoch = await claim(broker, lease=1000)
    wall_clock.ahead_seconds = step
    await trio.sleep(500)
    assert len(await read(broker, 1, epoch)) == 2
    wall_clock.ahead_seconds = 0
    await trio.sleep(499)
    assert await receives(broker) == []
    await trio.sleep(1.1 + MARGIN_SECONDS)
    assert await receives(broker) == [2, 2]


# Over a restart


async def test_after_a_restart_nobody_gets_what_is_claimed(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        epoch = await claim(broker, most=2, lease=100)
        await trio.sleep(50)
        await broker.claims.claim("q", "c", 1, epoch, lease=100)
    async with opened(disk_address) as broker:
        assert (await broker.status("q"))[2:5] == (1, 2, 0)
        assert await receives(broker) == [1]
        await trio.sleep(99)
        assert len(await read(broker, 1, epoch)) == 2
        assert await receives(broker) == []
        await trio.sleep(1.1 + MARGIN_SECONDS)
        assert await receives(broker) == [2, 2]


async def test_a_lease_that_ended_while_nothing_served_the_store_has_its_grace(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        epoch = await claim(broker, lease=10)
    wall_clock.ahead_seconds = 1000
    async with opened(disk_address) as broker:
        await trio.sleep(GRACE_SECONDS - 0.1)
        assert await receives(broker) == []
        assert len(await read(broker, 1, epoch)) == 2
        await trio.sleep(0.2)
        assert await receives(broker) == [2, 2]


async def test_a_deadline_that_a_clock_has_put_far_away_is_the_longest_lease(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await fill(broker, 1)
        await claim(broker, lease=10)
    wall_clock.ahead_seconds = -10_000_000
    async with opened(disk_address) as broker:
        await trio.sleep(43200 + MARGIN_SECONDS + 1)
        assert await receives(broker) == [2]


async def test_what_was_acknowledged_is_not_handed_out_while_it_cannot_be_removed(wall_clock: WallClock) -> None:
    """Not even after a restart: the start tries to remove it, and then each request of its consumer."""
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage, clock_ns=wall_clock) as broker:
            await fill(broker, 2)
            epoch = await claim(broker, lease=1)
            heal = refuse(disk.storage, lambda each: isinstance(each, Move | Unlink))
            with pytest.raises(StorageFull):
                await broker.claims.acknowledge("q", "c", 1, epoch)
            heal()
        storage = await disk.open()
        heal = refuse(storage, lambda each: isinstance(each, Move | Unlink))
        async with open_broker(storage, clock_ns=wall_clock) as broker:
            await trio.sleep(1000)
            assert await broker.fetch("q") is None
            heal()
            await broker.claims.acknowledge("q", "c", 1, epoch)
            assert (await broker.status("q"))[2:5] == (0, 0, 0)


async def test_of_two_records_with_one_message_the_later_is_true(disk_address: str, opened: Opener) -> None:
    """The earlier may be there of a claim that was refused, where nobody knows whether a store has kept it."""
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        await claim(broker, "a", lease=100)
        unsure = (await broker.storage.records(KIND))["q/a"]
        await broker.claims.forget("q", "a")
        later = await claim(broker, "z", lease=100)
        await put_record(broker.storage, KIND, "q/a", unsure)
    async with opened(disk_address) as broker:
        held = await broker.claims.claim("q", "z", 1, later)
        assert held is not None
        assert (held.messages, held.lost) == (2, 0)
        again = await broker.claims.claim("q", "a", 1, unsure["epoch"])
        assert again is not None
        assert (again.messages, again.lost) == (0, 2)


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("log", [False, True])
async def test_killed_at_any_call_each_message_was_received_as_often_as_it_was(
    wall_clock: WallClock, *, log: bool
) -> None:
    """A claim is made, renewed, ends by itself and is given up, and the disk dies in one call after the other. Whatever
    is left is had by the claim, or was received once for each of its leases that has ended."""
    call, is_over = 0, False
    while not is_over:
        call += 1
        async with open_disk(MOUNTS["rename"], log=log) as disk:
            ends = 0
            async with open_broker(disk.storage, clock_ns=wall_clock) as broker:
                disk.calls.fail("*", errno.EIO, nth=call, times=None)
                try:
                    await fill(broker, 3)
                    epoch = (await broker.claims.start("q", "c")).epoch
                    for ends in range(2):
                        assert await broker.claims.claim("q", "c", 1, epoch, lease=20)
                        await trio.sleep(10)
                        assert await broker.claims.claim("q", "c", 1, epoch, lease=20)
                        await trio.sleep(15)
                        assert len(await read(broker, 1, epoch)) == 3
                        await trio.sleep(10)
                        ends += 1
                    is_over = True
                except (MQError, AssertionError):
                    pass
            await check_after(disk, wall_clock, ends)
    assert call > 50, "the disk was not asked for much"


async def check_after(disk: Disk, wall_clock: WallClock, ends: int) -> None:
    """The disk works again: what is there was received once for each of the `ends`, and perhaps once more."""
    disk.heal()
    storage = await disk.open()
    there = len(await storage.scan(State.READY, "q")) + len(await storage.scan(State.NEW, "q"))
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        standing = await broker.claims.consumer("q", "c")
        await trio.sleep(50)  # a lease that was running is over by then
        found = await receives(broker)
        assert len(found) == there
        assert len(set(found)) <= 1, f"some were received more often than others: {found}"
        assert set(found) <= {ends + 1, ends + 2}
        if ends:
            assert (standing.batch, standing.messages) == (1, 3)


# The index


def test_a_message_that_becomes_ready_in_a_claim_blocks_its_group() -> None:
    """As one that stood in NEW after a power cut, for a claim that was durable before its delivery."""
    index = QueueIndex("q", 0, QueueSettings(groups=True))
    ids = MessageIds(lambda: START_NS)
    first, second = ids.new("a"), ids.new("a")
    index.claim(first, object())
    for id in (first, second):
        index.add(Entry("q", id, State.READY))
    assert index.next() is None
    assert (index.ready, list(index.claimed)) == (1, [first])
