"""What stands between a master's broker and the cluster's store."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from mq.cluster.grace_storage import GRACE_SECONDS, GraceStorage
from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.interface import QUEUE, Entry, Meta, Move, Outcome, Result, Unlink, Write
from mq.storage.memory import MemoryStorage

IDS = MessageIds()


async def written(store: MemoryStorage, state: State, meta: Meta = Meta()) -> Entry:  # noqa: B008 - a tuple
    [outcome] = await store.commit([Write("q", IDS.new(), b"x")])
    assert outcome.entry is not None
    if state is not State.NEW:
        [outcome] = await store.commit([Move(outcome.entry, state, meta)])
        assert outcome.entry is not None
    return outcome.entry


@pytest.fixture
async def store() -> MemoryStorage:
    store = MemoryStorage()
    await store.put_record(QUEUE, "q", {"created": 0})
    return store


async def test_what_was_leased_is_ready_at_once_and_what_was_delayed_is_not(store: MemoryStorage) -> None:
    await written(store, State.DELAYED, Meta(deadline_ms=10**13, receives=3, receipt="00" * 8))
    await written(store, State.DELAYED, Meta(deadline_ms=10**13))
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    [ready] = await kept.scan(State.READY, "q")
    assert ready.meta == Meta(receives=3)
    [delayed] = await kept.scan(State.DELAYED)
    assert delayed.meta.deadline_ms == 10**13


async def test_what_was_removed_is_known_for_a_while_over_masters_too(
    store: MemoryStorage, autojump_clock: MockClock
) -> None:
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    new = await written(store, State.NEW)
    [removed] = await kept.commit([Move(new, State.REMOVED)])
    assert removed.entry is not None
    assert await kept.commit([Unlink(removed.entry)]) == [Outcome(Result.DONE)]
    again = GraceStorage(store, pytest.fail)
    await again.open()
    for each in (kept, again):
        assert await each.knows("q", new.id)
        assert not await each.knows("q", IDS.new())
    with trio.move_on_after(GRACE_SECONDS + 5):
        await again.run()
    assert not await again.knows("q", MessageId(new.id))
    assert await store.scan(State.REMOVED) == []


@pytest.mark.parametrize("result", [Result.FENCED, Result.UNKNOWN, Result.FAILED])
async def test_what_leaves_the_store_unknown_is_told(
    result: Result, store: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    kept = GraceStorage(store, reasons.append)
    await kept.open()

    async def commit(operations: list[object]) -> list[Outcome]:
        return [Outcome(result, reason="why")] * len(operations)

    monkeypatch.setattr(store, "commit", commit)
    await kept.commit([Write("q", IDS.new(), b"x")])
    assert reasons == ["why"]
