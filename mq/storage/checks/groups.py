"""A group is done as a whole or not at all, and a batch keeps and forgets records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mq.lifecycle import State
from mq.storage.checks.batches import MANY
from mq.storage.checks.kit import Check, body_of, bring, is_at, is_not_at, leased, make_queue, new_id
from mq.storage.groups import INTENT, commit
from mq.storage.interface import AnyOperation, Drop, Entry, Group, Move, Put, Result, Storage, Unlink, Write
from mq.storage.records import put_record

KIND: Final = "ledger"


async def a_batch_keeps_and_forgets_records(storage: Storage) -> None:
    """In order, beside what it does with messages."""
    queue = await make_queue(storage)
    await put_record(storage, KIND, "old", {"old": 1})
    id = new_id()
    batch: list[AnyOperation] = [
        Put(KIND, "new", {"n": 1}),
        Put(KIND, "old", {"n": 2}),
        Write(queue, id, b"body"),
        Put(KIND, "gone", {}),
        Drop(KIND, "gone"),
        Drop(KIND, "never"),
    ]
    await _ends(storage, batch, [Result.DONE] * 5 + [Result.GONE])
    await _holds(storage, {"new": {"n": 1}, "old": {"n": 2}})
    await is_at(storage, Entry(queue, id, State.NEW))


async def a_group_is_done_as_a_whole(storage: Storage) -> None:
    """A group has one outcome, in its place among the others."""
    queue = await make_queue(storage)
    await put_record(storage, KIND, "old", {"old": 1})
    ready, first, second = await bring(storage, queue, State.READY), new_id(), new_id()
    lease = Entry(queue, ready.id, State.DELAYED, leased())
    batch: list[AnyOperation] = [
        Write(queue, first, b"1"),
        Group(
            (Write(queue, second, b"2"), Move(ready, lease.state, lease.meta), Put(KIND, "n", {}), Drop(KIND, "old"))
        ),
        Move(Entry(queue, first, State.NEW), State.READY),
        Group((Put(KIND, "alone", {}), Drop(KIND, "never"))),
    ]
    await _ends(storage, batch, [Result.DONE] * 4)
    await _holds(storage, {"n": {}, "alone": {}})
    for entry in (lease, Entry(queue, first, State.READY), Entry(queue, second, State.NEW)):
        await is_at(storage, entry)
    assert await body_of(storage, Entry(queue, second, State.NEW)) == b"2", "the body of a Write in a group"


async def a_group_is_refused_as_a_whole(storage: Storage) -> None:
    """Whatever was refused of it, nothing of it is there, and the rest of the batch is done."""
    queue = await make_queue(storage)
    for number, refused in enumerate((Result.GONE, Result.NO_QUEUE, Result.EXISTS)):
        await put_record(storage, KIND, "old", {"old": 1})
        await put_record(storage, KIND, "going", {})
        ready, other = [await bring(storage, queue, State.READY) for _ in range(2)]
        refusals: dict[Result, Write | Move] = {
            Result.GONE: Move(ready._replace(id=new_id()), State.DELAYED, leased()),
            Result.NO_QUEUE: Move(other, State.READY, queue="nowhere"),
            Result.EXISTS: Write(queue, (await bring(storage, queue, State.NEW)).id, b"again"),
        }
        bad = refusals[refused]
        new, move = Write(queue, new_id(), b"new"), Move(ready, State.DELAYED, leased())
        beside = [new_id(), new_id()]
        for order in ((bad, new, move), (new, move, bad)):
            batch: list[AnyOperation] = [
                Write(queue, beside.pop(), b"beside"),
                Group((*order, Put(KIND, "old", {"n": number}), Put(KIND, "new", {}), Drop(KIND, "going"))),
                Put("other", "beside", {}),
            ]
            await _ends(storage, batch, [Result.DONE, refused, Result.DONE])
            await _holds(storage, {"old": {"old": 1}, "going": {}})
            await is_at(storage, ready)
            await is_not_at(storage, new.entry)
        assert await storage.scan(State.REMOVED) == [], "something of a refused group is in REMOVED"


async def a_group_may_be_large(storage: Storage) -> None:
    """More than any store does by itself is done as a whole, too, and leaves no trace of how."""
    queue = await make_queue(storage)
    ids = [new_id() for _ in range(MANY)]
    writes = tuple(Write(queue, id, b"body") for id in ids)
    absent = Move(Entry(queue, new_id(), State.READY), State.DELAYED, leased())
    for last, result in ((absent, Result.GONE), (Put(KIND, "n", {"text": "x" * 100_000}), Result.DONE)):
        await _ends(storage, [Group((*writes, last))], [result])
        there = {entry.id for entry in await storage.scan(State.NEW, queue)}
        assert there == (set(ids) if result is Result.DONE else set()), f"{len(there)} of {MANY} after {result}"
    await _holds(storage, {"n": {"text": "x" * 100_000}})
    assert await storage.records(INTENT) == {}, "an intent is left of a group that was answered"
    removed = [Entry(queue, id, State.REMOVED) for id in ids]
    await storage.commit([Move(Entry(queue, id, State.NEW), State.REMOVED) for id in ids])
    await storage.commit([Unlink(entry) for entry in removed])


async def _ends(storage: Storage, batch: Sequence[AnyOperation], wanted: Sequence[Result]) -> None:
    outcomes = await commit(storage, batch)
    results = [outcome.result for outcome in outcomes]
    assert results == list(wanted), f"outcomes are {results}, not {wanted}"


async def _holds(storage: Storage, expected: dict[str, dict[str, object]]) -> None:
    found = await storage.records(KIND)
    assert found == expected, f"records are {str(found)[:200]}, not {str(expected)[:200]}"


CHECKS: Final[tuple[Check, ...]] = (
    a_batch_keeps_and_forgets_records,
    a_group_is_done_as_a_whole,
    a_group_is_refused_as_a_whole,
    a_group_may_be_large,
)
