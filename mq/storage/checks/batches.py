"""A batch is not a transaction: every operation has its own outcome, in order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from mq.lifecycle import State
from mq.storage.checks.kit import Check, body_of, bring, is_at, leased, make_queue, new_id, publish, together
from mq.storage.interface import (
    FRESH,
    Entry,
    Move,
    Operation,
    Outcome,
    Result,
    Storage,
    Stored,
    Unlink,
    Write,
    is_instant,
    tells,
)

MANY: Final = 300
"""More than any store that splits a batch does at once."""


async def outcomes_stand_in_order(storage: Storage) -> None:
    """One for each operation; a bad one does not disturb the others."""
    queue = await make_queue(storage)
    ready, removed = await bring(storage, queue, State.READY), await bring(storage, queue, State.REMOVED)
    first, second = new_id(), new_id()
    batch: list[tuple[Operation, Result]] = [
        (Unlink(removed), Result.DONE),
        (Write(queue, first, b"1"), Result.DONE),
        (Write(queue, first, b"again"), Result.EXISTS),
        (Move(ready._replace(id=new_id()), State.DELAYED, leased()), Result.GONE),
        (Move(ready, State.READY, queue="nowhere"), Result.NO_QUEUE),
        (Unlink(removed._replace(id=new_id())), Result.GONE),
        (Move(ready, State.DELAYED, leased()), Result.DONE),
        (Move(ready, State.DELAYED, leased()), Result.GONE),
        (Write(queue, second, b"2"), Result.DONE),
    ]
    outcomes = await storage.commit([operation for operation, _ in batch])
    results = [outcome.result for outcome in outcomes]
    assert results == [result for _, result in batch], f"outcomes are {results}, not {[r for _, r in batch]}"
    assert await body_of(storage, Entry(queue, first, State.NEW)) == b"1", "the body of the first Write"
    assert await body_of(storage, Entry(queue, second, State.NEW)) == b"2", "the body of the last Write"


async def outcomes_carry_their_own_entry(storage: Storage) -> None:
    """Also in a batch that is larger than a store would do at once."""
    queue = await make_queue(storage)
    ids = [new_id() for _ in range(MANY)]
    written = await storage.commit([Write(queue, id, id.encode()) for id in ids])
    assert [outcome.result for outcome in written] == [Result.DONE] * MANY, "not every Write of a large batch is DONE"
    entries = [outcome.entry for outcome in written if outcome.entry is not None]
    assert [entry.id for entry in entries] == ids, "the entries of a large batch are not in the order of its Writes"
    moved = await storage.commit([Move(entry, State.READY) for entry in entries])
    targets = [outcome.entry for outcome in moved]
    assert targets == [Entry(queue, id, State.READY) for id in ids], "the entries of a large batch of Moves"
    for entry in (entries[0], entries[-1]):
        ready = entry._replace(state=State.READY)
        assert await body_of(storage, ready) == entry.id.encode(), f"the body of another message at {ready}"


async def operations_see_those_before_them(storage: Storage) -> None:
    """A message may be written and moved in one batch."""
    queue = await make_queue(storage)
    id = new_id()
    path = (State.NEW, State.READY, State.DELAYED, State.READY, State.REMOVED)
    places = [Entry(queue, id, state, leased()) for state in path]
    places[0] = Entry(queue, id, State.NEW)
    moves = [Move(source, target.state, target.meta) for source, target in itertools.pairwise(places)]
    outcomes = await storage.commit([Write(queue, id, b"body"), *moves])
    assert [outcome.entry for outcome in outcomes] == places, f"outcomes of a chain of moves: {outcomes}"
    await is_at(storage, places[-1])


async def operations_may_wait_for_the_next_barrier(storage: Storage) -> None:
    """``durable=False`` changes what a loss of power may take, nothing that can be seen without one."""
    queue = await make_queue(storage)
    id = new_id()
    new, ready = Entry(queue, id, State.NEW), Entry(queue, id, State.READY)
    lease = Entry(queue, id, State.DELAYED, leased())
    removed = Entry(queue, id, State.REMOVED)
    batches: list[list[Operation]] = [
        [Write(queue, id, b"body", durable=False), Move(new, State.READY, durable=False)],
        [Move(ready, State.DELAYED, lease.meta, durable=True)],
        [Move(lease, State.REMOVED, durable=False)],
        [Unlink(removed, durable=True)],
    ]
    for batch, place in zip(batches, (ready, lease, removed, None), strict=True):
        results = [outcome.result for outcome in await storage.commit(batch)]
        assert results == [Result.DONE] * len(batch), f"{results} of {batch}"
        if place is not None:
            await is_at(storage, place)


async def a_removal_and_its_unlink_may_come_together(storage: Storage) -> None:
    """Nothing is left of those that were there; one that was elsewhere stays."""
    queue = await make_queue(storage)
    ready, new = await bring(storage, queue, State.READY), await bring(storage, queue, State.NEW)
    lost = await bring(storage, queue, State.DELAYED)
    entries = [ready, new, lost._replace(state=State.READY, meta=FRESH)]
    removed = [Entry(queue, entry.id, State.REMOVED) for entry in entries]
    moves = [Move(entry, State.REMOVED, durable=False) for entry in entries]
    outcomes = await storage.commit([*moves, *map(Unlink, removed)])
    results = [outcome.result for outcome in outcomes]
    assert results == [Result.DONE, Result.DONE, Result.GONE] * 2, f"{results} of removals and their unlinks"
    assert [outcome.entry for outcome in outcomes[:2]] == removed[:2], f"removals ended with {outcomes[:2]}"
    assert await storage.scan(State.REMOVED) == [], "what was unlinked is in REMOVED"
    assert await storage.scan(State.READY, queue) == [], "what was removed is READY"
    assert await storage.scan(State.NEW) == [], "what was removed is in NEW"
    await is_at(storage, lost)


async def an_empty_batch_is_nothing(storage: Storage) -> None:
    """No operations, no outcomes."""
    assert await storage.commit([]) == [], "outcomes of an empty batch"


async def batches_run_side_by_side(storage: Storage) -> None:
    """What many tasks commit at once is all there, each with its own outcomes."""
    queue = await make_queue(storage)
    batches: list[list[Operation]] = []
    for number in range(40):
        ids = [new_id() for _ in range(4)]
        writes = [Write(queue, id, b"%d" % number) for id in ids]
        batches.append([*writes, *(Move(Entry(queue, id, State.NEW), State.READY) for id in ids)])
    ready = []
    answers = await together(partial(storage.commit, batch) for batch in batches)
    for batch, outcomes in zip(batches, answers, strict=True):
        expected = [Entry(queue, write.id, State.READY) for write in batch if isinstance(write, Write)]
        moved = [outcome.entry for outcome in outcomes[4:]]
        assert moved == expected, f"a batch beside others ended with {outcomes}"
        ready += expected
    listed = await storage.scan(State.READY, queue)
    assert sorted(listed) == sorted(ready), f"{len(ready)} messages were published, {len(listed)} are there"


async def a_cancelled_commit_leaves_the_store_in_order(storage: Storage) -> None:
    """Each operation is done or it is not, and the store goes on."""
    queue = await make_queue(storage)
    entry = Entry(queue, new_id(), State.NEW)
    with trio.CancelScope() as scope:
        scope.cancel()
        await storage.commit([Write(queue, entry.id, b"body")])
    if await storage.find(queue, entry.id) is None:
        entry = await publish(storage, queue, id=entry.id)
    await is_at(storage, entry)
    assert await body_of(storage, entry) == b"body", "a cancelled Write left something else"


async def what_is_told_early_is_so(storage: Storage) -> None:
    """What is heard of and what is returned are the outcomes of all operations, in order; what is heard of is there.
    For stores that tell."""
    if not tells(storage):
        return
    queue = await make_queue(storage)
    writes = [Write(queue, id, id.encode()) for id in [new_id() for _ in range(MANY)]]
    taken = MANY - MANY // 10  # so much may be told before one is refused
    batch = [*writes[:taken], writes[0], *writes[taken:]]
    expected = [Outcome(Result.DONE, write.entry) for write in writes]
    expected.insert(taken, Outcome(Result.EXISTS))
    heard: list[Outcome] = []
    late: list[float] = []
    found: list[Stored | None] = []
    news, hears = trio.open_memory_channel[Outcome](len(batch))

    def hear(outcomes: Sequence[Outcome], late_seconds: float) -> None:
        heard.extend(outcomes)
        late.append(late_seconds)
        news.send_nowait(outcomes[-1])

    async def look() -> None:
        async for outcome in hears:
            found.extend(await storage.read([outcome.entry] if outcome.entry is not None else []))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        returned = await storage.commit_in_parts(batch, hear)
        news.close()
    assert [*heard, *returned] == expected, (
        f"{len(heard)} outcomes were heard, {len(returned)} returned: not those of all"
    )
    assert all(seconds >= 0 for seconds in late), f"seconds since outcomes were there: {late}"
    assert len(found) == len(late), f"told early: {heard}"
    for each in found:
        assert each is not None, "what was told of was not there"
        await each.body.aclose()


async def a_batch_in_one_step_is_done(storage: Storage) -> None:
    """Its outcomes are those of a commit, and what they say is so. For stores whose batches wait for nothing."""
    if not is_instant(storage):
        return
    queue = await make_queue(storage)
    ready = await bring(storage, queue, State.READY)
    write = Write(queue, new_id(), b"body")
    move = Move(ready, State.DELAYED, leased())
    outcomes = storage.commit_now([write, write, move, move])
    assert outcomes is not None, "a batch that waits for nothing was not done"
    results = [outcome.result for outcome in outcomes]
    expected = [Result.DONE, Result.EXISTS, Result.DONE, Result.GONE]
    assert results == expected, f"outcomes are {results}, not {expected}"
    for outcome, entry in ((outcomes[0], write.entry), (outcomes[2], move.target)):
        assert outcome.entry == entry, f"{entry} is said to be {outcome.entry}"
        await is_at(storage, entry)
    assert await body_of(storage, write.entry) == b"body", "a Write in one step left something else"


CHECKS: Final[tuple[Check, ...]] = (
    outcomes_stand_in_order,
    outcomes_carry_their_own_entry,
    operations_see_those_before_them,
    operations_may_wait_for_the_next_barrier,
    a_removal_and_its_unlink_may_come_together,
    an_empty_batch_is_nothing,
    batches_run_side_by_side,
    a_cancelled_commit_leaves_the_store_in_order,
    what_is_told_early_is_so,
    a_batch_in_one_step_is_done,
)
