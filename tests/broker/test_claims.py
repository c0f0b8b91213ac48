"""Claims: batches that are durable before they are leased, and go as a whole."""

from __future__ import annotations

import errno
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import pytest
import trio

from mq.broker import Broker, Draft, open_broker
from mq.broker.batch_consumers import KIND, LARGEST_CLAIM, MOST_CONSUMERS
from mq.broker.lost_messages import DeadLettered, LostTo
from mq.errors import (
    Conflict,
    InvalidSetting,
    NoSuchMessage,
    NoSuchQueue,
    QueueHeld,
    ReceiptMismatch,
    StorageFailed,
    StorageFull,
)
from mq.lifecycle import State
from mq.message import Message
from mq.storage.interface import QUEUE, AnyOperation, Entry, Move, Operation, Outcome, Put, Result, Storage, Stored
from mq.storage.memory import MemoryStorage
from mq.storage.records import drop_record, put_record
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import take
from tests.record_hooks import Unhooked, hook_records
from tests.storage.disks import MOUNTS, Disk, open_disk


async def fill(broker: Broker, count: int, queue: str = "q", start: int = 0) -> list[str]:
    bodies = [f"{number:06d}" for number in range(start, start + count)]
    outcomes = await broker.publish_many(queue, [Draft(body.encode()) for body in bodies])
    assert all(hasattr(outcome, "id") for outcome in outcomes)
    return bodies


async def read(broker: Broker, batch: int, epoch: int, start: int = 0, stop: int = LARGEST_CLAIM) -> list[str]:
    found: list[str] = []
    while messages := await broker.claims.read("q", "c", batch, epoch, start, stop):
        for sequence, message in messages:
            assert sequence == message.id.time
            found.append((await message.body.read()).decode())
            await message.body.aclose()
        start += len(messages)
    return found


async def claim_first_batch(broker: Broker, **limits: int) -> int:
    """Start consumer c, and claim its batch 1. Returns its epoch."""
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch, **limits)
    return epoch


async def fetch_and_close(broker: Broker, visibility: float) -> None:
    message = await broker.fetch("q", visibility=visibility)
    assert message is not None
    await message.body.aclose()


def slow_down(storage: Storage, seconds: float) -> None:
    """Each batch takes so long."""
    commit = storage.commit

    async def commit_slowly(operations: Sequence[Operation]) -> list[Outcome]:
        await trio.sleep(seconds)
        return await commit(operations)

    storage.commit = commit_slowly  # type: ignore[method-assign]


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
    epoch = await claim_first_batch(broker, lease=60)
    await trio.sleep(59.9)
    assert await broker.fetch("q") is None
    await trio.sleep(0.2)
    with pytest.raises(ReceiptMismatch, match="lease has expired"):
        await broker.claims.read("q", "c", 1, epoch, 0, 3)
    assert await take(broker, "q") is not None


async def test_a_claim_is_renewed_but_not_for_nothing(broker: Broker, observer: Any) -> None:
    await fill(broker, 3)
    epoch = await claim_first_batch(broker, lease=60)
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
    epoch = await claim_first_batch(broker, lease=1)
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


async def test_an_acknowledgement_removes_what_somebody_else_has_got_meanwhile(broker: Broker) -> None:
    """Fetched, or held by a connection, since the lease ended: it is gone for all of them."""
    await fill(broker, 4)
    epoch = await claim_first_batch(broker, lease=1)
    await trio.sleep(2)
    taken = await broker.fetch("q", visibility=60)
    [held] = await broker.hold("q", 1)
    assert taken is not None
    await broker.claims.acknowledge("q", "c", 1, epoch)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    assert (await broker.status("q"))[2:5] == (0, 0, 0)
    with pytest.raises(NoSuchMessage):
        await broker.extend("q", taken.id, 60, receipt=taken.receipt)
    with pytest.raises(NoSuchMessage):
        await broker.requeue("q", taken.id, receipt=taken.receipt)
    with pytest.raises(NoSuchMessage):
        await broker.remove("q", taken.id, receipt=taken.receipt)
    await broker.put_back([held])
    await held.message.body.aclose()
    await trio.sleep(120)
    assert await broker.fetch("q") is None


async def test_an_acknowledgement_removes_what_another_claim_has_by_now(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = await claim_first_batch(broker, lease=1)
    await trio.sleep(2)
    other = (await broker.claims.start("q", "d")).epoch
    await broker.claims.claim("q", "d", 1, other, most=2)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    again = await broker.claims.claim("q", "d", 1, other)
    assert again is not None
    assert (again.messages, again.lost) == (0, 2)


async def test_an_acknowledgement_removes_what_has_died_meanwhile(broker: Broker) -> None:
    """Received too often for its queue, and for the queue of its dead, too."""
    for queue, target in (("dead", "buried"), ("q", "dead")):
        await broker.create_queue(target)
        await broker.create_queue(queue)
        await broker.change_settings(queue, {"max_receives": 1, "dead_letter_queue": target})
    await fill(broker, 3)
    epoch = await claim_first_batch(broker, most=2, lease=1)
    await trio.sleep(2)
    assert await broker.fetch("dead", visibility=1) is not None
    await trio.sleep(2)
    assert [(await broker.status(queue)).ready for queue in ("q", "dead", "buried")] == [1, 1, 1]
    await broker.claims.acknowledge("q", "c", 1, epoch)
    assert [(await broker.status(queue)).ready for queue in ("q", "dead", "buried")] == [1, 0, 0]


@pytest.mark.parametrize("after", [0.0, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2])
async def test_leases_that_end_during_an_acknowledgement(wall_clock: WallClock, after: float) -> None:
    """Each batch of the store takes a while; the leases of a claim of several slices end one slice after the other."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 1203)
        epoch = (await broker.claims.start("q", "c")).epoch
        slow_down(storage, 0.3)
        await broker.claims.claim("q", "c", 1, epoch, lease=1)
        await trio.sleep(after)
        await broker.claims.acknowledge("q", "c", 1, epoch)
        status = await broker.status("q")
        assert (status.ready, status.leased) == (0, 0)
        assert await broker.claims.claim("q", "c", 2, epoch) is None
        assert await broker.fetch("q") is None


async def claim_anew(broker: Broker) -> None:
    epoch = (await broker.claims.start("q", "d")).epoch
    await broker.claims.claim("q", "d", 1, epoch)


MEANWHILE: Final[dict[str, Callable[[Broker, Message], Awaitable[object]]]] = {
    "purge": lambda broker, taken: broker.purge("q"),
    "redrive": lambda broker, taken: broker.redrive("dead"),
    "fetch": lambda broker, taken: broker.fetch_many("q", 3),
    "take": lambda broker, taken: broker.take("q"),
    "requeue": lambda broker, taken: broker.requeue("q", taken.id, receipt=taken.receipt),
    "extend": lambda broker, taken: broker.extend("q", taken.id, 60, receipt=taken.receipt),
    "remove": lambda broker, taken: broker.remove("q", taken.id),
    "hold": lambda broker, taken: broker.hold("q", 2),
    "claim": lambda broker, taken: claim_anew(broker),
}


@pytest.mark.parametrize("what", MEANWHILE)
@pytest.mark.parametrize("ahead", [0.0, 0.1, 0.3, 0.4])
async def test_whatever_is_done_to_its_messages_during_an_acknowledgement(
    wall_clock: WallClock, what: str, ahead: float
) -> None:
    """One of them has died, one was fetched, the others are ready again; somebody asks for something a moment ahead."""
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        for queue in ("dead", "q"):
            await broker.create_queue(queue)
        await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
        await fill(broker, 4)
        epoch = await claim_first_batch(broker, lease=1)
        await trio.sleep(2)
        await fetch_and_close(broker, visibility=1)
        await trio.sleep(2)
        await broker.change_settings("q", {"max_receives": None})
        taken = await broker.fetch("q")
        assert taken is not None
        assert [(await broker.status(queue))[2:4] for queue in ("q", "dead")] == [(2, 1), (1, 0)]
        acknowledged = everything(broker)
        slow_down(storage, 0.3)

        async def do() -> None:
            with suppress(NoSuchMessage):
                await MEANWHILE[what](broker, taken)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(do)
                await trio.sleep(ahead)
                await broker.claims.acknowledge("q", "c", 1, epoch)
                assert not acknowledged & everything(broker)
        await trio.sleep(100)
        assert not everything(broker)


@pytest.mark.parametrize("ahead", [0.1, 0.3, 0.5, 0.7, 0.9])
async def test_a_queue_that_is_made_anew_during_an_acknowledgement(wall_clock: WallClock, ahead: float) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await fill(broker, 1203)
        epoch = await claim_first_batch(broker, lease=1)
        await trio.sleep(0.8)
        slow_down(storage, 0.3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.claims.acknowledge, "q", "c", 1, epoch)
            await trio.sleep(ahead)
            await broker.delete_queue("q")
            await broker.create_queue("q")
            await fill(broker, 2)
        await trio.sleep(100)
        assert (await broker.status("q"))[2:5] == (2, 0, 0)
        assert len(everything(broker)) == 2


def everything(broker: Broker) -> set[str]:
    return {id for queue in broker.inventory() for id in [*queue.moving, *(entry.id for entry in queue.entries)]}


async def test_a_lease_that_ends_while_it_is_renewed(wall_clock: WallClock) -> None:
    """What a renewal says that the claim has nobody else gets, however long each batch of the store takes."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 1203)
        epoch = (await broker.claims.start("q", "c")).epoch
        slow_down(storage, 0.4)
        for delay in (0.0, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9):
            await broker.claims.claim("q", "c", 1, epoch, lease=1.5)
            await trio.sleep(delay)
            held = await broker.claims.claim("q", "c", 1, epoch, lease=10)
            assert held is not None
            assert (held.messages, held.lost) == (1203, 0)
            assert await broker.fetch("q") is None
            assert len(await read(broker, 1, epoch)) == 1203
            await trio.sleep(11)


async def test_what_is_being_renewed_counts_as_leased(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        epoch = await claim_first_batch(broker, lease=10)
        slow_down(storage, 1.0)
        await trio.sleep(5)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(broker.claims.claim, "q", "c", 1, epoch, lease=10))
            for _ in range(3):
                await trio.sleep(0.3)
                assert (await broker.status("q"))[2:5] == (0, 3, 0)


@pytest.mark.parametrize("turn", range(6))
async def test_two_claims_that_want_the_same_messages_do_not_wait_for_ever(wall_clock: WallClock, turn: int) -> None:
    """Each has them in another order, and which of the two goes on first, when the second message has come back, is up
    to chance."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 2)
        epochs = {name: (await broker.claims.start("q", name)).epoch for name in "cd"}
        await broker.claims.claim("q", "c", 1, epochs["c"], lease=1)
        await trio.sleep(2)
        [first] = await broker.hold("q", 1)
        await broker.put_back([first], to_back=True)
        await first.message.body.aclose()
        await broker.claims.claim("q", "d", 1, epochs["d"], lease=1)
        await trio.sleep(2)
        second = await broker.fetch("q")
        assert second is not None
        slow_down(storage, 0.3)
        found: dict[str, int] = {}

        async def claim(name: str) -> None:
            held = await broker.claims.claim("q", name, 1, epochs[name])
            assert held is not None
            found[name] = held.messages

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(broker.requeue, "q", second.id, receipt=second.receipt))
                await trio.sleep(0.1)
                for name in "dc":
                    nursery.start_soon(claim, name)
        assert sorted(found.values()) in ([0, 2], [1, 1])


async def test_a_claim_goes_if_all_of_it_was_read(broker: Broker) -> None:
    await fill(broker, 6)
    epoch = await claim_first_batch(broker)
    for start, stop, read in ((3, 4, 1), (4, 6, 3), (4, 5, 3), (0, 2, 5), (1, 3, 6)):
        with pytest.raises(Conflict, match=f"only {(await broker.claims.consumer('q', 'c')).read} of the 6 messages"):
            await broker.claims.acknowledge("q", "c", 1, epoch, if_read=True)
        await broker.claims.note_read("q", "c", 1, epoch, start, stop, 6)
        assert (await broker.claims.consumer("q", "c")).read == read
    assert (await broker.status("q")).leased == 6
    for _ in range(2):  # it may be repeated
        await broker.claims.acknowledge("q", "c", 1, epoch, if_read=True)
    assert (await broker.status("q"))[2:5] == (0, 0, 0)
    await fill(broker, 1)
    await broker.claims.claim("q", "c", 2, epoch)
    with pytest.raises(Conflict, match="only 0 of the 1 messages"):  # what was read of the one before does not count
        await broker.claims.acknowledge("q", "c", 2, epoch, if_read=True)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (2, 1), (0, 4), (3, 4)])
async def test_places_that_a_claim_has_not_are_not_noted(broker: Broker, start: int, stop: int) -> None:
    await fill(broker, 3)
    epoch = await claim_first_batch(broker)
    with pytest.raises(
        Conflict, match=f"the range {start} to {stop} is not within batch 1 of consumer c: the batch has 3 messages"
    ):
        await broker.claims.note_read("q", "c", 1, epoch, start, stop, 3)


async def test_places_are_those_of_the_claim_as_it_was_read(broker: Broker) -> None:
    bodies = await fill(broker, 4)
    epoch = await claim_first_batch(broker, lease=1)
    await broker.claims.note_read("q", "c", 1, epoch, 0, 2, 4)
    await trio.sleep(2)
    assert await take(broker, "q") == bodies[0].encode()  # the second one was read, and is the claim's first one now
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert (held.messages, held.lost) == (3, 1)
    for wrong in (
        lambda: broker.claims.read("q", "c", 1, epoch, 2, 4, 4),
        lambda: broker.claims.note_read("q", "c", 1, epoch, 2, 4, 4),
    ):
        with pytest.raises(ReceiptMismatch, match="has 3 messages, but the request expected 4"):
            await wrong()
    assert (await broker.claims.consumer("q", "c")).read == 1
    await broker.claims.note_read("q", "c", 1, epoch, 1, 2, 3)
    with pytest.raises(Conflict, match="only 2 of the 3"):
        await broker.claims.acknowledge("q", "c", 1, epoch, if_read=True)


async def test_a_consumer_goes_with_the_checkpoint_under_which_it_read(broker: Broker) -> None:
    await fill(broker, 2)
    epoch = (await broker.claims.start("q", "c", "lost")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    epoch = (await broker.claims.start("q", "c", "kept")).epoch  # nothing was read under the one before
    await broker.claims.note_read("q", "c", 1, epoch, 0, 2, 2, "kept")
    for other in ("lost", ""):
        with pytest.raises(
            Conflict,
            match=rf"was started with checkpoint kept, but this request has checkpoint {other or 'none'}\."
            ".*take_over",
        ):
            await broker.claims.start("q", "c", other)
    with pytest.raises(Conflict, match="was started with checkpoint kept"):
        await broker.claims.note_read("q", "c", 1, epoch, 0, 2, 2, "lost")
    await broker.claims.claim("q", "c", 1, epoch)  # who was refused has shut nobody out
    standing = await broker.claims.start("q", "c", "kept", take_over=True)
    assert (standing.checkpoint, standing.read) == ("kept", 2)
    standing = await broker.claims.start("q", "c", "other", take_over=True)
    assert (standing.checkpoint, standing.read, standing.messages) == (None, 0, 2)
    with pytest.raises(Conflict, match="only 0 of the 2"):
        await broker.claims.acknowledge("q", "c", 1, standing.epoch, if_read=True)
    await broker.claims.note_read("q", "c", 1, standing.epoch, 0, 2, 2, "other")
    await broker.claims.acknowledge("q", "c", 1, standing.epoch, if_read=True)
    with pytest.raises(Conflict, match="was started with checkpoint other"):
        await broker.claims.start("q", "c", "kept")


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
        with pytest.raises(Conflict, match="another program has started consumer c"):
            await call()
    await broker.claims.claim("q", "c", 1, standing.epoch)
    assert await read(broker, 1, standing.epoch) == bodies


async def test_it_is_not_every_batchs_turn(broker: Broker) -> None:
    await fill(broker, 3)
    with pytest.raises(Conflict, match="Start the consumer first"):
        await broker.claims.claim("q", "c", 1, 1)
    epoch = (await broker.claims.start("q", "c")).epoch
    with pytest.raises(Conflict, match=r"cannot be claimed yet\. Claim batch 1 first"):
        await broker.claims.claim("q", "c", 2, epoch)
    with pytest.raises(Conflict, match="not open"):
        await broker.claims.acknowledge("q", "c", 1, epoch)
    with pytest.raises(Conflict, match="not open"):
        await broker.claims.read("q", "c", 1, epoch, 0, 1)
    await broker.claims.claim("q", "c", 1, epoch, most=1)
    with pytest.raises(Conflict, match=r"cannot be claimed yet\. Claim batch 1 first"):
        await broker.claims.claim("q", "c", 2, epoch)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    with pytest.raises(Conflict, match="was already acknowledged"):
        await broker.claims.claim("q", "c", 1, epoch)
    for wrong in ({"most": 0}, {"most": LARGEST_CLAIM + 1}, {"lease": 0}):
        with pytest.raises(InvalidSetting):
            await broker.claims.claim("q", "c", 2, epoch, **wrong)
    for ask in (broker.claims.start, broker.claims.consumer, broker.claims.forget):
        with pytest.raises(InvalidSetting, match="consumer"):
            await ask("q", "../c")
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
    held = await broker.claims.claim("q", "c", 1, standing.epoch, up_to=standing.high_watermark)
    assert held is not None
    assert held.messages == 5
    assert held.last is not None
    assert held.last <= standing.high_watermark
    await broker.claims.acknowledge("q", "c", 1, standing.epoch)
    assert await broker.claims.claim("q", "c", 2, standing.epoch, up_to=standing.high_watermark) is None


@pytest.mark.slow
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
    epoch = await claim_first_batch(broker, lease=1)
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
    monkeypatch.setattr("mq.broker.batch_consumers.MOST_CONSUMERS", 2)
    assert MOST_CONSUMERS == 1000
    for name in ("b", "a"):
        await broker.claims.start("q", name)
    with pytest.raises(Conflict, match="the maximum of 2 consumers"):
        await broker.claims.start("q", "c")
    assert [standing.consumer for standing in await broker.claims.consumers("q")] == ["a", "b"]


async def test_a_queue_of_the_same_name_has_other_consumers(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = await claim_first_batch(broker)
    await broker.delete_queue("q")
    with pytest.raises(NoSuchQueue):
        await broker.claims.acknowledge("q", "c", 1, epoch)
    await broker.create_queue("q")
    assert await broker.claims.consumers("q") == []
    with pytest.raises(Conflict, match="Start the consumer first"):
        await broker.claims.claim("q", "c", 1, epoch)


@pytest.mark.parametrize("config", [{"peers": 1}, {"mover": False}])
async def test_claims_are_refused_where_others_change_the_store(
    opened: Opener, disk_address: str, config: dict[str, Any]
) -> None:
    async with opened(disk_address, **config) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict, match="without --peers or --no-mover"):
            await broker.claims.start("q", "c")
        with pytest.raises(Conflict, match="without --peers or --no-mover"):
            await broker.claims.claim("q", "c", 1, 1)


async def test_over_a_restart(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.create_queue("r")
        await broker.claims.start("r", "other")
        bodies = await fill(broker, 5)
        epoch = await claim_first_batch(broker, most=2)
        await broker.claims.acknowledge("q", "c", 1, epoch)
        await broker.claims.claim("q", "c", 2, epoch, most=2)
    async with opened(disk_address) as broker:
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
    async with opened(disk_address) as broker:
        assert (await broker.claims.consumer("q", "c")).acknowledged == 2
        assert list(await broker.storage.records(KIND)) == ["q/c"]
        assert (await broker.status("q")).ready == 1


async def test_claim_has_messages_that_a_crash_brought_back_to_their_lease_before(wall_clock: WallClock) -> None:
    """Their move to READY was not durable when the claim was."""
    async with open_disk(MOUNTS["rename"], queues=()) as disk:
        async with open_broker(disk.storage, clock_ns=wall_clock) as broker:
            await broker.create_queue("q")
            bodies = await fill(broker, 2)
            await fetch_and_close(broker, visibility=1)
            [leased] = await disk.storage.scan(State.DELAYED)
            await trio.sleep(4)
            epoch = await claim_first_batch(broker)
        [returned] = [entry for entry in await disk.storage.scan(State.READY, "q") if entry.id == leased.id]
        disk.inner.rename(f"/root/{disk.path(returned)}", f"/root/{disk.path(leased)}")
        async with open_broker(await disk.open(), clock_ns=wall_clock) as broker:
            held = await broker.claims.claim("q", "c", 1, epoch)
            assert held is not None
            assert (held.messages, held.lost) == (2, 0)
            assert sorted(await read(broker, 1, epoch)) == sorted(bodies)


async def test_what_was_read_and_under_which_checkpoint_is_known_after_a_restart(
    opened: Opener, disk_address: str
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await fill(broker, 5)
        epoch = (await broker.claims.start("q", "c", "kept")).epoch
        await broker.claims.claim("q", "c", 1, epoch)
        await broker.claims.note_read("q", "c", 1, epoch, 1, 3, 5, "kept")
    async with opened(disk_address) as broker:
        standing = await broker.claims.consumer("q", "c")
        assert (standing.read, standing.checkpoint) == (2, "kept")
        await broker.claims.note_read("q", "c", 1, epoch, 0, 1, 5, "kept")
        await broker.claims.note_read("q", "c", 1, epoch, 3, 5, 5, "kept")
    async with opened(disk_address) as broker:
        with pytest.raises(Conflict, match="was started with checkpoint kept"):
            await broker.claims.start("q", "c", "other")
        epoch = (await broker.claims.start("q", "c", "kept")).epoch
        await broker.claims.acknowledge("q", "c", 1, epoch, if_read=True)
        assert (await broker.status("q"))[2:5] == (0, 0, 0)


@asynccontextmanager
async def cut_off(disk: Disk) -> AsyncIterator[None]:
    """The next record is the last thing that the disk takes."""
    before = Unhooked(disk.storage)

    async def put_and_die(kind: str, key: str, value: Any) -> bool:
        made = await put_record(before, kind, key, value)  # type: ignore[arg-type]
        disk.calls.fail("*", errno.EIO, times=None)
        return made

    end = hook_records(disk.storage, put=put_and_die)
    with pytest.raises(StorageFailed):
        yield
    end()


@pytest.mark.parametrize("seconds", [0, 20, 100])
async def test_an_acknowledgement_that_was_cut_off_is_finished_before_anybody_is_served(
    wall_clock: WallClock, seconds: float
) -> None:
    """It is in the record; not one of its messages is removed yet. One is leased by somebody else, one is ready and one
    has died; the next start is before, at and after the end of the leases."""
    async with open_disk(MOUNTS["rename"], queues=()) as disk:
        async with open_broker(disk.storage, clock_ns=wall_clock) as broker:
            for queue in ("q", "dead"):
                await broker.create_queue(queue)
            await broker.change_settings("q", {"dead_letter_queue": "dead"})
            await fill(broker, 3)
            epoch = await claim_first_batch(broker, lease=1)
            await trio.sleep(4)
            await broker.change_settings("q", {"max_receives": 2})
            await fetch_and_close(broker, visibility=1)
            await trio.sleep(4)
            await broker.change_settings("q", {"max_receives": None})
            await fetch_and_close(broker, visibility=20)
            assert [(await broker.status(queue))[2:4] for queue in ("q", "dead")] == [(1, 1), (1, 0)]
            async with cut_off(disk):
                await broker.claims.acknowledge("q", "c", 1, epoch)
        disk.heal()
        await trio.sleep(seconds)
        async with open_broker(await disk.open(), clock_ns=wall_clock) as broker:
            for queue in ("q", "dead"):
                assert (await broker.status(queue))[2:5] == (0, 0, 0)
                assert await broker.fetch(queue) is None
            await trio.sleep(100)
            assert await broker.fetch("q") is None
            await broker.claims.acknowledge("q", "c", 1, epoch)


async def test_whoever_hears_of_an_acknowledgement_gets_none_of_its_messages_any_more(wall_clock: WallClock) -> None:
    """It was noted and its removals were refused: so is a start of the consumer, until they have been done."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        epoch = await claim_first_batch(broker)

        async def refuse(operations: Sequence[AnyOperation]) -> list[Outcome]:
            done = Outcome(Result.DONE)
            refused = Outcome(Result.FULL, None, "no room")
            return [done if isinstance(each, Put) else refused for each in operations]

        commit, storage.commit = storage.commit, refuse  # type: ignore[method-assign]
        for call in (lambda: broker.claims.acknowledge("q", "c", 1, epoch), lambda: broker.claims.start("q", "c")):
            with pytest.raises(StorageFull):
                await call()
        storage.commit = commit  # type: ignore[method-assign]
        standing = await broker.claims.start("q", "c")
        assert (standing.acknowledged, (await broker.status("q")).leased) == (1, 0)


async def test_a_start_does_not_hang_where_what_was_acknowledged_has_to_make_room(wall_clock: WallClock) -> None:
    """Its queue holds too much, so the oldest are on their way out when the start looks for them."""
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            await fill(broker, 4)
            epoch = await claim_first_batch(broker, most=2, lease=1)
            await trio.sleep(4)
            async with cut_off(disk):
                await broker.claims.acknowledge("q", "c", 1, epoch)
        disk.heal()
        storage = await disk.open()
        record = (await storage.records(QUEUE))["q"]
        await put_record(storage, QUEUE, "q", {**record, "settings": {"max_messages": 3, "overflow": "drop-head"}})
        with trio.fail_after(60):
            async with open_broker(storage) as broker:
                assert (await broker.status("q")).ready == 2


async def test_a_claim_that_cannot_be_noted_holds_nothing(wall_clock: WallClock) -> None:
    """Nor were its messages received."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 3)
        epoch = (await broker.claims.start("q", "c")).epoch

        async def refuse(operations: Sequence[AnyOperation]) -> list[Outcome]:
            return [Outcome(Result.FULL, None, "no room") for _ in operations]

        commit, storage.commit = storage.commit, refuse  # type: ignore[method-assign]
        with pytest.raises(StorageFull):
            await broker.claims.claim("q", "c", 1, epoch)
        storage.commit = commit  # type: ignore[method-assign]
        assert (await broker.status("q")).ready == 3
        message = await broker.fetch("q")
        assert message is not None
        assert message.receives == 1


async def test_a_claim_and_its_renewal_are_one_record(wall_clock: WallClock) -> None:
    """However many messages it has: none of them moves."""
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 2500)
        epoch = (await broker.claims.start("q", "c")).epoch
        batches: list[list[type]] = []
        commit = storage.commit

        async def note(operations: Sequence[AnyOperation]) -> list[Outcome]:
            if not (isinstance(operations[0], Put) and operations[0].kind == "clock"):
                batches.append([type(each) for each in operations])
            return await commit(operations)

        storage.commit = note  # type: ignore[method-assign]
        assert await broker.claims.claim("q", "c", 1, epoch) is not None
        assert batches == [[Put]]
        await trio.sleep(600)
        assert await broker.claims.claim("q", "c", 1, epoch) is not None
        assert batches == [[Put], [Put]]
        await trio.sleep(600)
        assert len(await read(broker, 1, epoch)) == 2500


async def test_a_message_that_is_gone_keeps_no_other_from_a_claim(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        bodies = await fill(broker, 3)
        [_, gone, _] = sorted(await storage.scan(State.READY, "q"), key=lambda entry: entry.id.key)
        assert [each.result for each in await storage.commit([Move(gone, State.REMOVED)])] == [Result.DONE]
        epoch = (await broker.claims.start("q", "c")).epoch
        assert await broker.claims.claim("q", "c", 1, epoch) is not None
        with pytest.raises(NoSuchMessage, match="has disappeared"):
            await read(broker, 1, epoch)
        assert (await broker.status("q"))[2:4] == (0, 2)
        held = await broker.claims.claim("q", "c", 1, epoch)
        assert held is not None
        assert (held.messages, held.lost) == (2, 1)
        assert await read(broker, 1, epoch) == [bodies[0], bodies[2]]


@pytest.mark.parametrize("again", [False, True])
async def test_a_read_of_a_claim_ends_when_its_queue_is_deleted_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """The store has none of its messages any more, and the index of a deleted queue still has all."""
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    looks = 0
    whole = broker.storage.read

    async def read_late(entries: Sequence[Entry]) -> list[Stored | None]:
        nonlocal looks
        looks += 1
        assert looks == 1, "it looks again for messages of a queue that is deleted"
        await broker.delete_queue("q")
        if again:
            await broker.create_queue("q")
        return await whole(entries)

    monkeypatch.setattr(broker.storage, "read", read_late)
    with pytest.raises(NoSuchQueue):
        await broker.claims.read("q", "c", 1, epoch, 0, 3)


async def test_a_read_of_a_claim_takes_no_message_for_vanished_while_its_queue_is_deleted(
    broker: Broker,
) -> None:
    await fill(broker, 3)
    epoch = (await broker.claims.start("q", "c")).epoch
    await broker.claims.claim("q", "c", 1, epoch)
    before = Unhooked(broker.storage)

    async def drop_and_read(kind: str, key: str) -> bool:
        dropped = await drop_record(before, kind, key)  # type: ignore[arg-type]
        if kind == QUEUE:
            for _ in range(2):  # by two tasks, of which neither finds the other's traces
                with pytest.raises(NoSuchQueue):
                    await broker.claims.read("q", "c", 1, epoch, 0, 3)
        return dropped

    hook_records(broker.storage, drop=drop_and_read)
    await broker.delete_queue("q")


async def test_a_call_waits_for_the_record_of_one_that_was_cancelled(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage, clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        bodies = await fill(broker, 3)
        epoch = (await broker.claims.start("q", "c")).epoch
        slow_down(storage, 0.3)
        with trio.move_on_after(0.1) as cancelled:
            await broker.claims.claim("q", "c", 1, epoch, most=2)
        assert cancelled.cancelled_caught
        held = await broker.claims.claim("q", "c", 1, epoch)
        assert held is not None
        assert (held.messages, held.is_new) == (2, False)
        assert await read(broker, 1, epoch) == bodies[:2]


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
    assert ranges.high_watermark > ranges.bounds[-1]
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
    epoch = await claim_first_batch(broker, lease=1)
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


# What a claim has lost, and gets again


async def lose(broker: Broker, count: int) -> int:
    """A claim whose lease has ended. Returns the epoch."""
    await fill(broker, count)
    epoch = await claim_first_batch(broker, lease=1)
    await trio.sleep(2)
    return epoch


async def test_claim_says_where_each_lost_message_is(broker: Broker) -> None:
    await broker.create_queue("dead")
    epoch = await lose(broker, 4)
    taken = await broker.fetch_many("q", 3, visibility=3600)
    for message in taken:
        await message.body.aclose()
    leased, delayed, removed = taken
    await broker.requeue("q", delayed.id, receipt=delayed.receipt, delay=3600)
    await broker.remove("q", removed.id, receipt=removed.receipt)
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert (held.messages, held.lost, held.lease_expired) == (1, 3, True)
    assert held.missing == {LostTo.LEASED: 1, LostTo.DELAYED: 1, LostTo.REMOVED: 1}
    await broker.requeue("q", leased.id, receipt=leased.receipt)
    again = await broker.claims.claim("q", "c", 1, epoch)
    assert again is not None
    assert (again.messages, again.lost) == (1, 0)
    assert again.missing == {LostTo.READY: 1, LostTo.DELAYED: 1, LostTo.REMOVED: 1}


async def test_claim_says_that_a_lost_message_has_expired(broker: Broker) -> None:
    await broker.publish_many("q", [Draft(b"0", ttl=5.0), Draft(b"1")])
    epoch = await claim_first_batch(broker, lease=1)
    await trio.sleep(20)
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert held.missing == {LostTo.EXPIRED: 1}


async def test_claim_says_which_lost_messages_made_room_and_which_were_rejected(broker: Broker) -> None:
    epoch = await lose(broker, 3)
    await broker.reject(await broker.hold("q", 1))
    await broker.change_settings("q", {"max_messages": 2, "overflow": "drop-head"})
    await broker.publish_many("q", [Draft(b"new")])
    await trio.sleep(1)
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert held.missing == {LostTo.REJECTED: 1, LostTo.DROPPED: 1}


async def test_claim_follows_dead_letters_into_other_queues(broker: Broker) -> None:
    """Into one that is no dead-letter queue any more, and to where they were redriven; with the reason of each."""
    for name in ("dead", "elsewhere"):
        await broker.create_queue(name)
    await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
    await broker.publish_many("q", [Draft(b"0", ttl=5.0), Draft(b"1"), Draft(b"2"), Draft(b"3")])
    epoch = await claim_first_batch(broker, lease=1)
    await trio.sleep(20)
    for message in await broker.fetch_many("q", 2, visibility=1):
        await message.body.aclose()
    await trio.sleep(3)

    async def dead_letters() -> set[DeadLettered]:
        held = await broker.claims.claim("q", "c", 1, epoch, lease=3600)
        assert held is not None
        assert held.missing == {LostTo.DEAD_LETTERED: 3}
        return set(held.dead_letters)

    in_dead = {DeadLettered("dead", "expired", 1), DeadLettered("dead", "receives", 2)}
    assert await dead_letters() == in_dead
    await broker.change_settings("q", {"max_receives": None, "dead_letter_queue": None})
    assert await dead_letters() == in_dead
    assert (await broker.redrive("dead", "elsewhere", 2)).moved == 2
    assert {each.queue for each in await dead_letters()} == {"dead", "elsewhere"}
    await broker.delete_queue("dead")
    held = await broker.claims.claim("q", "c", 1, epoch, lease=3600)
    assert held is not None
    assert held.missing == {LostTo.DEAD_LETTERED: 2, LostTo.QUEUE_DELETED: 1}


async def test_message_removed_during_a_lease_is_missing_though_the_lease_did_not_end(broker: Broker) -> None:
    await fill(broker, 3)
    epoch = await claim_first_batch(broker)
    [(_, first)] = await broker.claims.read("q", "c", 1, epoch, 0, 1)
    await first.body.aclose()
    await broker.remove("q", first.id)
    held = await broker.claims.claim("q", "c", 1, epoch)
    assert held is not None
    assert (held.messages, held.missing, held.lease_expired) == (2, {LostTo.REMOVED: 1}, False)


@pytest.mark.parametrize("lease", [1.0, 3600.0])
async def test_claim_regains_redriven_messages_at_their_places(broker: Broker, lease: float) -> None:
    """While its lease runs, and after it has ended again."""
    await broker.create_queue("dead")
    await broker.change_settings("q", {"max_receives": 2, "dead_letter_queue": "dead"})
    epoch = await lose(broker, 5)
    for message in await broker.fetch_many("q", 2, visibility=1):
        await message.body.aclose()
    await trio.sleep(3)
    await broker.change_settings("q", {"max_receives": 20})
    held = await broker.claims.claim("q", "c", 1, epoch, lease=lease)
    assert held is not None
    assert held.missing == {LostTo.DEAD_LETTERED: 2}
    await broker.claims.note_read("q", "c", 1, epoch, 0, 3, 3)
    assert (await broker.redrive("dead")).moved == 2
    await trio.sleep(2)
    plain = await broker.claims.claim("q", "c", 1, epoch)
    assert plain is not None
    assert (plain.messages, plain.missing) == (3, {LostTo.READY: 2})
    whole = await broker.claims.claim("q", "c", 1, epoch, regain=True)
    assert whole is not None
    assert (whole.messages, whole.lost, whole.missing) == (5, 0, {})
    bodies = []
    for _, message in await broker.claims.read("q", "c", 1, epoch, 0, 5):
        bodies.append((await message.body.read()).decode())
        await message.body.aclose()
    assert bodies == [f"{number:06d}" for number in range(5)]
    assert (await broker.claims.consumer("q", "c")).read == 3  # what has come back was not read
    assert await broker.fetch("q") is None
    with pytest.raises(Conflict, match="only 3 of the 5"):
        await broker.claims.acknowledge("q", "c", 1, epoch, if_read=True)
    await broker.claims.acknowledge("q", "c", 1, epoch)
    assert not everything(broker)


async def test_lost_messages_are_known_after_a_restart(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        epoch = await lose(broker, 4)
        for message in await broker.fetch_many("q", 2, visibility=3600):
            await message.body.aclose()
        held = await broker.claims.claim("q", "c", 1, epoch, lease=3600)
        assert held is not None
        assert held.missing == {LostTo.LEASED: 2}
    async with open_broker(storage) as broker:
        held = await broker.claims.claim("q", "c", 1, epoch, regain=True)
        assert held is not None
        assert (held.messages, held.missing, held.lease_expired) == (2, {LostTo.LEASED: 2}, True)
        assert await read(broker, 1, epoch) == ["000002", "000003"]
        await broker.claims.acknowledge("q", "c", 1, epoch)
        assert len(everything(broker)) == 2  # what was lost is not touched


# Acknowledgements in parts


async def test_acknowledgement_returns_in_time_and_goes_on_when_it_is_repeated(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 9_203)
        epoch = await claim_first_batch(broker)
        slow_down(storage, 0.5)
        begun, left = trio.current_time(), 9_203
        while left:
            before = left
            left = await broker.claims.acknowledge("q", "c", 1, epoch, within=0.1)
            assert left < before
            assert (await broker.claims.consumer("q", "c")).remaining == left
            assert await broker.fetch("q") is None  # what is left is in no other consumer's hands
            position = await broker.claims.start("q", "c", within=0.0)
            epoch, left = position.epoch, position.remaining
        assert trio.current_time() > begun
        assert not everything(broker)
        assert await broker.claims.claim("q", "c", 2, epoch) is None


@pytest.mark.slow
async def test_messages_left_of_an_acknowledgement_are_removed_by_a_restart(wall_clock: WallClock) -> None:
    storage = MemoryStorage()
    async with open_broker(storage) as broker:
        await broker.create_queue("q")
        await fill(broker, 9_203)
        epoch = await claim_first_batch(broker)
        assert await broker.claims.acknowledge("q", "c", 1, epoch, within=0.0) > 0
    async with open_broker(storage) as broker:
        assert not everything(broker)
        assert (await broker.claims.consumer("q", "c")).remaining == 0
