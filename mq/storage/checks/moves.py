"""A move is compare-and-move: from exactly where the entry says, to a place that is free."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from mq.lifecycle import LEGAL_MOVES, State
from mq.storage.checks.kit import (
    Check,
    body_of,
    bring,
    discard,
    done,
    is_at,
    is_not_at,
    leased,
    make_queue,
    new_id,
    new_receipt,
    one,
    publish,
    publish_twin,
    reap,
    refused,
    removed,
    together,
)
from mq.storage.interface import FRESH, GIVEN_MS, Entry, Meta, Move, Operation, Result, Storage, Unlink

EVERYTHING: Final = Meta(1_700_000_000_123, 12, "f" * 16, 139_000_000_000_000_001, 1_700_000_000_456)
METAS: Final = (
    FRESH,
    Meta(deadline_ms=1_700_000_000_123),
    Meta(deadline_ms=0),
    Meta(deadline_ms=99_999_999_999_999),  # the year 5138
    Meta(deadline_ms=GIVEN_MS),
    Meta(deadline_ms=GIVEN_MS + 1_700_000_000_123, expires_ms=1_700_000_999_456),
    Meta(deadline_ms=GIVEN_MS + 99_999_999_999_999),
    Meta(receives=7),
    Meta(receives=999_999_999),
    Meta(receipt="00000000000000ff"),
    Meta(order=139_000_000_000_000_000),
    Meta(order=0),
    Meta(order=(1 << 60) - 1),  # the last tick that an id can hold
    Meta(expires_ms=0),
    Meta(expires_ms=99_999_999_999_999),
    EVERYTHING,
)
LONGEST_QUEUE: Final = "q" * 100


async def every_legal_move_is_done(storage: Storage) -> None:
    """The message is then where it should be, whole, and no longer where it was."""
    queue = await make_queue(storage)
    for source, target in sorted(LEGAL_MOVES, key=str):
        assert source, "a move from outside the store"
        assert target, "a move to outside the store"
        entry = await bring(storage, queue, source, leased() if source is State.DELAYED else FRESH)
        meta = leased() if source is target or target is State.DELAYED else FRESH
        await is_at(storage, await done(storage, Move(entry, target, meta)))
        await is_not_at(storage, entry)


async def a_move_may_lead_to_another_queue(storage: Storage) -> None:
    """One move, from READY or DELAYED."""
    first, second = await make_queue(storage, "first"), await make_queue(storage, "second")
    for source in (State.READY, State.DELAYED):
        entry = await bring(storage, first, source)
        await is_at(storage, await done(storage, Move(entry, State.READY, Meta(receives=2), second)))
        await is_not_at(storage, entry)


async def meta_comes_back(storage: Storage) -> None:
    """Every field, in DELAYED and in READY, beside the longest name of a queue."""
    queue = await make_queue(storage, LONGEST_QUEUE)
    for meta in METAS:
        entry = await publish(storage, queue)
        for state in (State.DELAYED, State.READY):
            entry = await done(storage, Move(entry, state, meta))
            await is_at(storage, entry)


async def a_move_replaces_all_of_meta(storage: Storage) -> None:
    """What the new meta does not say is not kept."""
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.DELAYED, EVERYTHING)
    await is_at(storage, await done(storage, Move(entry, State.READY)))


async def a_stale_entry_is_gone(storage: Storage) -> None:
    """Wrong in its meta, its state, its queue or its id: GONE, and the message stays where it is."""
    queue, other = await make_queue(storage), await make_queue(storage, "other")
    here = await bring(storage, queue, State.DELAYED, leased())
    stale = (
        here._replace(meta=leased()),
        here._replace(meta=FRESH),
        here._replace(meta=here.meta._replace(receives=2)),
        here._replace(meta=here.meta._replace(deadline_ms=None)),
        here._replace(meta=here.meta._replace(order=1)),
        here._replace(meta=here.meta._replace(expires_ms=1)),
        here._replace(state=State.READY),
        Entry(queue, here.id, State.NEW),
        here._replace(queue=other),
        here._replace(id=new_id()),
    )
    for entry in stale:
        for operation in (Move(entry, State.READY), Move(entry, State.DELAYED, leased()), Move(entry, State.REMOVED)):
            await refused(storage, operation, Result.GONE)
    await is_at(storage, here)


async def a_second_move_is_gone(storage: Storage) -> None:
    """A second move with the same entry has lost the race, wherever it leads."""
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.READY)
    lease = await done(storage, Move(entry, State.DELAYED, leased()))
    await refused(storage, Move(entry, State.DELAYED, leased()), Result.GONE)
    await refused(storage, Move(entry, State.REMOVED), Result.GONE)
    await is_at(storage, lease)


async def of_racing_leases_one_is_done(storage: Storage) -> None:
    """Each racer has a receipt of its own; the one DONE holds the message."""
    await _race(storage, lambda entry: Move(entry, State.DELAYED, leased()))


async def of_racing_extensions_one_is_done(storage: Storage) -> None:
    """From DELAYED to DELAYED too."""
    await _race(storage, lambda entry: Move(entry, State.DELAYED, leased()), State.DELAYED)


async def of_a_lease_and_a_removal_one_is_done(storage: Storage) -> None:
    """Racers need not want the same."""

    def either(entry: Entry) -> Move:
        meta = leased()
        return Move(entry, State.REMOVED if int(meta.receipt or "", 16) % 2 else State.DELAYED, meta)

    await _race(storage, either)


async def of_leases_in_one_batch_one_is_done(storage: Storage) -> None:
    """The first of them."""
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.READY)
    moves = [Move(entry, State.DELAYED, leased()) for _ in range(5)]
    outcomes = await storage.commit(moves)
    results = [outcome.result for outcome in outcomes]
    assert results == [Result.DONE] + [Result.GONE] * 4, f"of five leases of one message in one batch: {results}"
    await is_at(storage, Entry(queue, entry.id, State.DELAYED, moves[0].meta))


async def a_move_overwrites_nothing(storage: Storage) -> None:
    """EXISTS where the target is taken, and both messages stay as they were."""
    queue, other = await make_queue(storage), await make_queue(storage, "other")
    meta = Meta(receives=3, receipt=new_receipt())
    targets = (
        Entry(queue, new_id(), State.READY),
        Entry(queue, new_id(), State.DELAYED, meta),
        Entry(queue, new_id(), State.REMOVED),
    )
    for target in targets:
        first = await publish(storage, queue, b"first", id=target.id)
        taken = await done(storage, Move(first, target.state, target.meta))
        entry = await publish_twin(storage, queue, target.id, b"second")
        if entry is None:
            assert await body_of(storage, taken) == b"first", f"a Write that was refused changed the body at {taken}"
        else:
            await _collides(storage, entry, taken)
    rerouted = await bring(storage, queue, State.READY)
    twin = await publish_twin(storage, other, rerouted.id, b"first")
    if twin is not None:
        await _collides(storage, rerouted, await done(storage, Move(twin, State.READY)))


async def a_move_needs_its_queue(storage: Storage) -> None:
    """NO_QUEUE, and the message stays where it was."""
    queue = await make_queue(storage)
    orphan = await publish(storage, "nowhere")
    await refused(storage, Move(orphan, State.READY), Result.NO_QUEUE)
    await is_at(storage, orphan)
    for state in (State.READY, State.DELAYED):
        entry = await bring(storage, queue, state)
        await refused(storage, Move(entry, State.READY, queue="nowhere"), Result.NO_QUEUE)
        await is_at(storage, entry)


async def an_orphan_can_be_removed(storage: Storage) -> None:
    """A message for a queue that is not there does not stay for ever."""
    await discard(storage, await publish(storage, "nowhere"))


async def an_unlinked_entry_is_gone(storage: Storage) -> None:
    """For good: a second Unlink is GONE, and so is the Unlink of an entry that never was."""
    queue = await make_queue(storage)
    entry = await bring(storage, queue, State.REMOVED)
    await refused(storage, Unlink(entry._replace(id=new_id())), Result.GONE)
    await refused(storage, Unlink(entry._replace(meta=leased())), Result.GONE)
    await is_at(storage, entry)
    await reap(storage, entry)
    await is_not_at(storage, entry)
    await refused(storage, Unlink(entry), Result.GONE)


async def of_racing_unlinks_one_is_done(storage: Storage) -> None:
    """Two reapers do not count one message twice."""
    await _race(storage, Unlink, State.REMOVED)


async def a_removal_in_one_step_takes_it_out_of_its_place(storage: Storage) -> None:
    """In a store that removes: an Unlink takes a message from just where it is, for good."""
    if not storage.description.removes:
        return
    queue = await make_queue(storage)
    for state in (State.NEW, State.READY, State.DELAYED):
        for durable in (True, False):
            beside = await bring(storage, queue, state, leased() if state is State.DELAYED else FRESH)
            entry = await bring(storage, queue, state, leased() if state is State.DELAYED else FRESH)
            for stale in (entry._replace(id=new_id()), entry._replace(meta=leased()), removed(entry)):
                await refused(storage, Unlink(stale, durable=durable), Result.GONE)
            await is_at(storage, entry)
            await refused(storage, Unlink(entry, durable=durable), Result.DONE)
            await is_not_at(storage, entry)
            await is_not_at(storage, removed(entry))
            assert await storage.find(queue, entry.id) is None, f"find still finds the unlinked {entry}"
            await refused(storage, Unlink(entry, durable=durable), Result.GONE)
            await refused(storage, Move(entry, State.REMOVED), Result.GONE)
            await is_at(storage, beside)


async def of_racing_removals_in_one_step_one_is_done(storage: Storage) -> None:
    """Two clients that acknowledge one message are told apart."""
    if storage.description.removes:
        await _race(storage, partial(Unlink, durable=True))


async def _race(storage: Storage, attempt: Callable[[Entry], Operation], state: State = State.READY) -> None:
    queue = await make_queue(storage)
    for _ in range(10):
        entry = await bring(storage, queue, state)
        outcomes = await together([partial(one, storage, attempt(entry)) for _ in range(8)])
        results = [outcome.result for outcome in outcomes]
        assert results.count(Result.DONE) == 1, f"of eight racers {results.count(Result.DONE)} were DONE: {results}"
        assert results.count(Result.GONE) == 7, f"of eight racers seven should be GONE: {results}"
        await is_not_at(storage, entry)


async def _collides(storage: Storage, entry: Entry, taken: Entry) -> None:
    await refused(storage, Move(entry, taken.state, taken.meta, taken.queue), Result.EXISTS)
    for place, body in ((entry, await body_of(storage, entry)), (taken, b"first")):
        assert await body_of(storage, place) == body, f"after EXISTS, another body at {place}"
    await discard(storage, taken)
    await discard(storage, entry)


CHECKS: Final[tuple[Check, ...]] = (
    every_legal_move_is_done,
    a_move_may_lead_to_another_queue,
    meta_comes_back,
    a_move_replaces_all_of_meta,
    a_stale_entry_is_gone,
    a_second_move_is_gone,
    of_racing_leases_one_is_done,
    of_racing_extensions_one_is_done,
    of_a_lease_and_a_removal_one_is_done,
    of_leases_in_one_batch_one_is_done,
    a_move_overwrites_nothing,
    a_move_needs_its_queue,
    an_orphan_can_be_removed,
    an_unlinked_entry_is_gone,
    of_racing_unlinks_one_is_done,
    a_removal_in_one_step_takes_it_out_of_its_place,
    of_racing_removals_in_one_step_one_is_done,
)
