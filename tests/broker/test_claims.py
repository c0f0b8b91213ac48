"""Claims: batches that are durable before they are leased, and go as a whole."""

from __future__ import annotations

import errno
import itertools
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, open_broker
from mq.broker.claims import LARGEST_CLAIM
from mq.broker.consumers import KIND, MOST_CONSUMERS
from mq.errors import Conflict, InvalidSetting, NoSuchQueue, QueueHeld, ReceiptMismatch, StorageFailed
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take
from tests.storage.disks import MOUNTS, open_disk


async def fill(broker: Broker, count: int, queue: str = "q", start: int = 0) -> list[str]:
    bodies = [f"{number:06d}" for number in range(start, start + count)]
    outcomes = await broker.publish_many(queue, [Draft(body.encode()) for body in bodies])
    assert all(hasattr(outcome, "id") for outcome in outcomes)
    return bodies


async def read(broker: Broker, batch: int, epoch: int, start: int = 0, stop: int = LARGEST_CLAIM) -> list[str]:
    found = []
    while messages := await broker.claims.read("q", "c", batch, epoch, start, stop):
        for sequence, message in messages:
            assert sequence == message.id.time
            found.append((await message.body.read()).decode())
            await message.body.aclose()
        start += len(messages)
    return found


async def test_batch_after_batch_in_order(broker: Broker) -> None:
    bodies = await fill(broker, 25)
    epoch = (await broker.claims.start("q", "c")).epoch
    found = []
    for batch in (1, 2, 3):
        held = await broker.claims.claim("q", "c", batch, epoch, most=10)
        assert held is not None
        assert (held.batch, held.messages, held.lost, held.is_new) == (batch, min(10, 25 - len(found)), 0, True)
        status = await broker.status("q")
        assert (status.leased, status.ready) == (held.messages, 25 - len(found) - held.messages)
        found += await read(broker, batch, epoch)
        await broker.claims.acknowledge("q", "c", batch, epoch)
    assert found == bodies
    assert await broker.claims.claim("q", "c", 4, epoch) is None
    assert (await broker.status("q"))[2:5] == (0, 0, 0)
    standing = await broker.claims.consumer("q", "c")
    assert (standing.acknowledged, standing.batch, standing.messages) == (3, None, 0)


async def test_asked_for_again_it_is_the_same_and_what_comes_meanwhile_is_not_in_it(broker: Broker) -> None:
    bodies = await fill(broker, 5)
    epoch = (await broker.claims.start("q", "c")).epoch
    first = await broker.claims.claim("q", "c", 1, epoch)
    await fill(broker, 5, start=5)
    again = await broker.claims.claim("q", "c", 1, epoch)
    assert first is not None
    assert again == first._replace(is_new=False)
    assert await read(broker, 1, epoch) == await read(broker, 1, epoch) == bodies
    assert await read(broker, 1, epoch, 2, 4) == bodies[2:4]


async def test_nobody_else_gets_what_is_claimed_until_the_lease_ends(broker: Broker, wall_clock: WallClock) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=60)
    await trio.sleep(59.9)
    assert await broker.fetch("q") is None
    await trio.sleep(0.2)
    with pytest.raises(ReceiptMismatch, match="run out"):
        await broker.claims.read("q", "c", 1, epoch, 0, 3)
    assert await take(broker, "q") is not None


async def test_a_claim_is_renewed_but_not_for_nothing(broker: Broker, observer: Any) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=60)
    await trio.sleep(10)
    moves = len(observer.seen)
    await broker.claims.claim("q", "c", 1, epoch, lease=60)
    assert len(observer.seen) == moves
    for _ in range(10):
        await trio.sleep(20)
        await broker.claims.claim("q", "c", 1, epoch, lease=60)
    assert await broker.fetch("q") is None
    assert len(await read(broker, 1, epoch)) == 3


async def test_a_claim_whose_lease_has_ended_is_had_again_but_for_what_others_took(broker: Broker) -> None:
    bodies = await fill(broker, 4)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=1)
    await trio.sleep(2)
    taken = await broker.fetch("q")
    assert taken is not None
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert (held.messages, held.lost) == (3, 1)
    assert await read(broker, 1, epoch) == bodies[1:]
    await broker.claims.acknowledge("q", "c", 1, epoch)
    await broker.requeue("q", taken.id, receipt=taken.receipt)
    assert (await broker.status("q")).ready == 1


async def test_an_acknowledgement_takes_along_what_came_back_unless_somebody_has_it(broker: Broker) -> None:
    await fill(broker, 4)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=1)
    await trio.sleep(2)
    taken = await broker.fetch("q")
    assert taken is not None
    await broker.claims.acknowledge("q", "c", 1, epoch)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)


async def test_whoever_starts_again_shuts_the_one_before_out(broker: Broker) -> None:
    bodies = await fill(broker, 3)
    old = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, old)
    standing = await broker.claims.start("q", "c")
    assert standing.epoch > old
    assert (standing.acknowledged, standing.batch, standing.messages) == (0, 1, 3)
    for call in (
        lambda: broker.claims.claim("q", "c", 1, old),
        lambda: broker.claims.read("q", "c", 1, old, 0, 3),
        lambda: broker.claims.acknowledge("q", "c", 1, old),
    ):
        with pytest.raises(Conflict, match="started again"):
            await call()
    await broker.claims.claim("q", "c", 1, standing.epoch)
    assert await read(broker, 1, standing.epoch) == bodies


async def test_it_is_not_every_batchs_turn(broker: Broker) -> None:
    await fill(broker, 3)
    with pytest.raises(Conflict, match="start it first"):
        await broker.claims.claim("q", "c", 1, 1)
    epoch = (await broker.claims.start("q", "c")).epoch
    with pytest.raises(Conflict, match="batch 1 of consumer c comes first"):
        await broker.claims.claim("q", "c", 2, epoch)
    with pytest.raises(Conflict, match="not open"):
        await broker.claims.acknowledge("q", "c", 1, epoch)
    with pytest.raises(Conflict, match="not open"):
        await broker.claims.read("q", "c", 1, epoch, 0, 1)
    await broker.claims.claim("q", "c", 1, epoch, most=1)
    with pytest.raises(Conflict, match="comes first"):
        await broker.claims.claim("q", "c", 2, epoch)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    with pytest.raises(Conflict, match="was acknowledged"):
        await broker.claims.claim("q", "c", 1, epoch)
    for wrong in ({"most": 0}, {"most": LARGEST_CLAIM + 1}, {"lease": 0}):
        with pytest.raises(InvalidSetting):
            await broker.claims.claim("q", "c", 2, epoch, **wrong)
    with pytest.raises(InvalidSetting, match="consumer"):
        await broker.claims.start("q", "../c")
    with pytest.raises(NoSuchQueue):
        await broker.claims.start("nowhere", "c")


@pytest.mark.parametrize(("most_bytes", "count"), [(1, 1), (6, 1), (12, 2), (17, 2), (10**6, 5)])
async def test_a_claim_has_so_many_bytes(broker: Broker, most_bytes: int, count: int) -> None:
    bodies = await fill(broker, 5)  # of six bytes each
    epoch = (await broker.claims.start("q", "c")).epoch
    held = await broker.claims.claim("q", "c", 1, epoch, most_bytes=most_bytes)
    assert held is not None
    assert held.messages == count
    assert await read(broker, 1, epoch) == bodies[:count]
    assert (await broker.status("q")).ready == 5 - count


async def test_a_claim_goes_up_to_a_sequence(broker: Broker) -> None:
    await fill(broker, 5)
    standing = await broker.claims.start("q", "c")
    await fill(broker, 5, start=5)
    held = await broker.claims.claim("q", "c", 1, standing.epoch, up_to=standing.high)
    assert held is not None
    assert held.messages == 5
    assert held.last is not None
    assert held.last <= standing.high
    await broker.claims.acknowledge("q", "c", 1, standing.epoch)
    assert await broker.claims.claim("q", "c", 2, standing.epoch, up_to=standing.high) is None


async def test_many_messages_are_claimed_slice_by_slice(broker: Broker) -> None:
    bodies = await fill(broker, 1203)
    epoch = (await broker.claims.start("q", "c")).epoch
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert held.messages == 1203
    assert await read(broker, 1, epoch) == bodies


async def test_nothing_is_claimed_of_a_paused_queue_nor_what_has_expired(broker: Broker) -> None:
    await broker.publish("q", b"1", ttl=1)
    await broker.publish("q", b"2")
    await trio.sleep(2)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.change_settings("q", {"paused": True})
    assert await broker.claims.claim("q", "c", 1, epoch) is None
    await broker.change_settings("q", {"paused": False})
    await broker.claims.claim("q", "c", 1, epoch)
    assert await read(broker, 1, epoch) == ["2"]


async def test_what_was_received_too_often_is_lost_to_a_claim(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_receives": 1, "dead_letter_queue": "dead"})
    await fill(broker, 2)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=1)
    await trio.sleep(2)
    held = await broker.claims.claim("q", "c", 1, epoch, lease=1)
    assert held is not None
    assert (held.messages, held.lost) == (0, 2)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    assert (await broker.status("dead")).ready == 2


async def test_a_consumer_that_is_forgotten_gives_back_what_it_has(broker: Broker) -> None:
    await fill(broker, 3)
    old = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, old)
    await broker.claims.forget("q", "c")
    await broker.claims.forget("q", "c")
    assert (await broker.status("q")).ready == 3
    assert await broker.claims.consumers("q") == []
    standing = await broker.claims.start("q", "c")
    assert (standing.acknowledged, standing.batch) == (0, None)
    assert standing.epoch > old


async def test_consumers_have_a_limit_and_a_list(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.consumers.MOST_CONSUMERS", 2)
    assert MOST_CONSUMERS == 1000
    for name in ("b", "a"):
        await broker.claims.start("q", name)
    with pytest.raises(Conflict, match="has 2 consumers"):
        await broker.claims.start("q", "c")
    assert [standing.consumer for standing in await broker.claims.consumers("q")] == ["a", "b"]


async def test_a_queue_of_the_same_name_has_other_consumers(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    await broker.delete_queue("q")
    with pytest.raises(NoSuchQueue):
        await broker.claims.acknowledge("q", "c", 1, epoch)
    await broker.create_queue("q")
    assert await broker.claims.consumers("q") == []
    with pytest.raises(Conflict, match="start it first"):
        await broker.claims.claim("q", "c", 1, epoch)


@pytest.mark.parametrize("config", [{"peers": 1}, {"mover": False}])
async def test_claims_are_refused_where_others_change_the_store(
    opened: Opener, fake_address: str, config: dict[str, Any]
) -> None:
    async with opened(fake_address, **config) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict, match="--peers=0"):
            await broker.claims.start("q", "c")
        with pytest.raises(Conflict, match="--peers=0"):
            await broker.claims.claim("q", "c", 1, 1)


async def test_over_a_restart(opened: Opener, fake_address: str) -> None:
    async with opened(fake_address) as broker:
        await broker.create_queue("q")
        await broker.create_queue("r")
        await broker.claims.start("r", "other")
        bodies = await fill(broker, 5)
        epoch = (await broker.claims.start("q", "c")).epoch
        await broker.claims.claim("q", "c", 1, epoch, most=2)
        await broker.claims.acknowledge("q", "c", 1, epoch)
        await broker.claims.claim("q", "c", 2, epoch, most=2)
    async with opened(fake_address) as broker:
        await broker.delete_queue("r")
        assert await read(broker, 2, epoch) == bodies[2:4]
        assert (await broker.status("q")).leased == 2
        await trio.sleep(1000)
        assert (await broker.status("q")).ready == 3
        held = await broker.claims.claim("q", "c", 2, epoch, most=1000)
        assert held is not None
        assert held.messages == 2
        assert await read(broker, 2, epoch) == bodies[2:4]
        await broker.claims.acknowledge("q", "c", 2, epoch)
    async with opened(fake_address) as broker:
        assert (await broker.claims.consumer("q", "c")).acknowledged == 2
        assert list(await broker._storage.records(KIND)) == ["q/c"]
        assert (await broker.status("q")).ready == 1


async def test_an_acknowledgement_that_was_cut_off_is_finished_at_the_next_start(wall_clock: WallClock) -> None:
    """It is in the record; not one of its messages is removed yet."""
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            await broker.create_queue("q")
            await fill(broker, 3)
            epoch = (await broker.claims.start("q", "c")).epoch
            await broker.claims.claim("q", "c", 1, epoch)
            put = disk.storage.put_record

            async def put_and_die(kind: str, key: str, value: Any) -> bool:
                made = await put(kind, key, value)
                disk.calls.fail("*", errno.EIO, times=None)
                return made

            disk.storage.put_record = put_and_die  # type: ignore[method-assign]
            with pytest.raises(StorageFailed):
                await broker.claims.acknowledge("q", "c", 1, epoch)
            disk.storage.put_record = put  # type: ignore[method-assign]
        disk.heal()
        async with open_broker(await disk.open()) as broker:
            await wait_all_tasks_blocked()
            status = await broker.status("q")
            assert (status.ready, status.leased) == (0, 0)
            await broker.claims.acknowledge("q", "c", 1, epoch)


async def test_a_claim_that_cannot_be_noted_holds_nothing(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        epoch = (await broker.claims.start("q", "c")).epoch

        async def refuse(kind: str, key: str, value: Any) -> bool:
            raise StorageFailed("no")

        put, storage.put_record = storage.put_record, refuse  # type: ignore[method-assign]
        with pytest.raises(StorageFailed):
            await broker.claims.claim("q", "c", 1, epoch)
        storage.put_record = put  # type: ignore[method-assign]
        assert (await broker.status("q")).ready == 3


async def test_browse_shows_by_sequence_and_takes_nothing(broker: Broker) -> None:
    bodies = await fill(broker, 7)
    found, after = [], 0
    while True:
        browsed = await broker.browsing.browse("q", after=after, most=3)
        found += [(await seen.message.body.read()).decode() for seen in browsed.messages]
        if browsed.after is None:
            break
        after = browsed.after
    assert found == bodies
    assert (await broker.status("q")).ready == 7


async def test_ranges_cover_everything_once(broker: Broker) -> None:
    bodies = await fill(broker, 10)
    ranges = await broker.browsing.ranges("q", 3)
    assert (ranges.messages, len(ranges.bounds)) == (10, 3)
    assert ranges.high > ranges.bounds[-1]
    await fill(broker, 2, start=10)
    found, after = [], 0
    for bound in ranges.bounds:
        browsed = await broker.browsing.browse("q", after=after, up_to=bound)
        assert browsed.after is None
        found.append([(await seen.message.body.read()).decode() for seen in browsed.messages])
        after = bound
    assert [len(part) for part in found] == [3, 3, 4]
    assert list(itertools.chain(*found)) == bodies
    assert len((await broker.browsing.ranges("q", 100)).bounds) == 12
    await broker.create_queue("empty")
    assert (await broker.browsing.ranges("empty", 3)).bounds == []


async def test_what_a_connection_holds_is_not_claimed(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, lease=1)
    await trio.sleep(2)
    [held] = await broker.hold("q", 1)
    again = await broker.claims.claim("q", "c", 1, epoch)
    assert again is not None
    assert (again.messages, again.lost) == (2, 1)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    await held.message.body.aclose()
    assert (await broker.status("q")).leased == 1


async def test_a_queue_that_is_one_consumers_alone_has_no_claims(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    exclusion = await broker.exclude("q")
    with pytest.raises(QueueHeld):
        await broker.claims.claim("q", "c", 1, epoch)
    exclusion.end()
    assert await broker.claims.claim("q", "c", 1, epoch) is not None
