"""What becomes of a queue's messages when its record changes or goes."""

from __future__ import annotations

from typing import Final

from mq.lifecycle import State
from mq.storage.checks.kit import (
    Check,
    bring,
    done,
    is_at,
    is_not_at,
    leased,
    make_queue,
    new_id,
    publish,
    reap_all,
    refused,
)
from mq.storage.interface import QUEUE, Entry, Move, Result, Storage
from mq.storage.records import drop_record, put_record


async def new_settings_leave_messages_alone(storage: Storage) -> None:
    """Putting a queue's record again is not making it again."""
    queue = await make_queue(storage)
    entries = [await bring(storage, queue, state) for state in State]
    settings = {**(await storage.records(QUEUE))[queue], "limit": 5}
    assert not await put_record(storage, QUEUE, queue, settings), "a queue that is there was new again"
    for entry in entries:
        await is_at(storage, entry)
    await done(storage, Move(entries[0], State.READY))


async def dropping_a_queue_takes_what_is_ready(storage: Storage) -> None:
    """At once, and of no other queue; whatever is left of it can be unlinked."""
    queue, other = await make_queue(storage), await make_queue(storage, "other")
    ready = [await bring(storage, queue, State.READY) for _ in range(5)]
    kept = await bring(storage, other, State.READY)
    await drop_record(storage, QUEUE, queue)
    for entry in ready:
        await is_not_at(storage, entry)
        await refused(storage, Move(entry, State.DELAYED, leased()), Result.GONE, Result.NO_QUEUE)
    assert await storage.scan(State.READY, queue) == [], "READY of a dropped queue is not empty"
    await is_at(storage, kept)
    await reap_all(storage)
    await is_at(storage, kept)


async def nothing_is_delivered_to_a_dropped_queue(storage: Storage) -> None:
    """NO_QUEUE, from NEW as from DELAYED."""
    for entry in await dropped(storage, await make_queue(storage)):
        await refused(storage, Move(entry, State.READY), Result.NO_QUEUE, Result.GONE)


async def messages_may_come_before_their_queue(storage: Storage) -> None:
    """A queue has them, whenever it was made: that a new queue is empty is the broker's business."""
    entries = [await publish(storage, "orders"), await bring(storage, "orders", State.DELAYED, leased())]
    await put_record(storage, QUEUE, "orders", {"created": new_id().time, "incarnation": 1})
    for entry in entries:
        await is_at(storage, await done(storage, Move(entry, State.READY)))


async def a_queue_made_again_is_empty(storage: Storage) -> None:
    """What is left of the one before it stays where it is, and it works like any other."""
    queue = await make_queue(storage)
    for _ in range(3):  # each is dropped and made again in its turn
        leftovers = await dropped(storage, queue)
        await make_queue(storage, queue)
        await stay_out(storage, leftovers)
        await is_at(storage, await done(storage, Move(await publish(storage, queue), State.READY)))
    await reap_all(storage)


async def a_queue_made_again_can_be_dropped_unreaped(storage: Storage) -> None:
    """However many of one name await the reaper."""
    for _ in range(4):
        queue = await make_queue(storage)
        await bring(storage, queue, State.READY)
        assert await drop_record(storage, QUEUE, queue), "the Drop of a queue that is there was not DONE"
    assert await storage.records(QUEUE) == {}, "a dropped queue is still there"
    await reap_all(storage)


async def leftovers_can_be_removed(storage: Storage) -> None:
    """Messages that are still listed of a dropped queue can be removed and unlinked."""
    queue = await make_queue(storage)
    await dropped(storage, queue)
    for again in (False, True):
        for state in (State.NEW, State.DELAYED):
            for entry in await storage.scan(state, queue):
                await done(storage, Move(entry, State.REMOVED))
        if not again:
            await dropped(storage, await make_queue(storage, queue))
            await make_queue(storage, queue)
    await reap_all(storage)


async def dropped(storage: Storage, queue: str) -> list[Entry]:
    """Drop a queue with a message in NEW, one leased and one delayed; those are its leftovers."""
    leftovers = [
        await publish(storage, queue),
        await bring(storage, queue, State.DELAYED),
        await done(storage, Move(await bring(storage, queue, State.READY), State.DELAYED, leased())),
    ]
    await bring(storage, queue, State.READY)
    assert await drop_record(storage, QUEUE, queue), "the Drop of a queue that is there was not DONE"
    return leftovers


async def stay_out(storage: Storage, leftovers: list[Entry]) -> None:
    """Leftovers of a queue do not come by themselves into the one that was made again under its name: they may be gone,
    or stay where they are."""
    queue = leftovers[0].queue
    came = {entry.id for entry in leftovers} & {entry.id for entry in await storage.scan(State.READY, queue)}
    assert not came, f"messages of a deleted queue came into the one that was made again: {came}"


CHECKS: Final[tuple[Check, ...]] = (
    new_settings_leave_messages_alone,
    messages_may_come_before_their_queue,
    dropping_a_queue_takes_what_is_ready,
    nothing_is_delivered_to_a_dropped_queue,
    a_queue_made_again_is_empty,
    a_queue_made_again_can_be_dropped_unreaped,
    leftovers_can_be_removed,
)
