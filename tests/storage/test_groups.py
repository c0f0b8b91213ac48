"""A group in a store that knows none: all of it or nothing, wherever it is cut off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mq.errors import StorageFailed, StorageFull
from mq.lifecycle import State
from mq.storage.checks.kit import bring, leased, make_queue, new_id, publish
from mq.storage.groups import INTENT, commit, redo
from mq.storage.interface import (
    AnyOperation,
    Description,
    Drop,
    Entry,
    Group,
    Move,
    Outcome,
    Put,
    Result,
    Storage,
    Write,
)
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record


class Dying(MemoryStorage):
    """A store without groups that fails before its `left`-th change, and stays so."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None
        self.fault: type[Exception] = StorageFailed

    @property
    def description(self) -> Description:
        return super().description._replace(groups=0)

    def _change(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise self.fault("dead")

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        outcomes = []
        for operation in operations:
            assert not isinstance(operation, Group)
            try:
                self._change()
                outcomes += await super().commit([operation])
            except StorageFailed:
                outcomes.append(Outcome(Result.FAILED))
            except StorageFull as error:
                outcomes.append(Outcome(Result.FULL, reason=str(error)))
        return outcomes


async def everything(storage: Storage) -> tuple[set[Entry], Mapping[str, Any]]:
    found = {
        entry for state in (State.NEW, State.READY, State.DELAYED) for entry in await storage.scan(state, "orders")
    }
    return found, await storage.records("ledger")


async def group_of(storage: Storage, kinds: str) -> Group:
    """One that writes, moves, puts and drops as the letters say."""
    operations: list[Write | Move | Put | Drop] = []
    for kind in kinds:
        match kind:
            case "w":
                operations.append(Write("orders", new_id(), b"body"))
            case "m":
                operations.append(Move(await bring(storage, "orders", State.READY), State.DELAYED, leased()))
            case "p":
                await put_record(storage, "ledger", f"p{len(operations)}", {"old": True})
                operations.append(Put("ledger", f"p{len(operations)}", {"new": True}))
            case "d":
                await put_record(storage, "ledger", f"d{len(operations)}", {"old": True})
                operations.append(Drop("ledger", f"d{len(operations)}"))
    return Group(tuple(operations))


@pytest.mark.parametrize("kinds", ["wp", "wwp", "mp", "mmp", "wmppd", "ppd"])
async def test_cut_off_anywhere_it_is_done_or_not_done(kinds: str) -> None:
    endings: set[bool] = set()
    for number in range(100):
        storage = Dying()
        await make_queue(storage)
        await publish(storage, "orders")
        group = await group_of(storage, kinds)
        before = await everything(storage)
        storage.left = number
        [outcome] = await commit(storage, [group])
        storage.left = None
        await redo(storage)
        assert await storage.records(INTENT) == {}
        after = await everything(storage)
        untouched = after == before
        whole = len(after[0] - before[0]) == kinds.count("w") + kinds.count("m") and (
            after[1] == {f"p{at}": {"new": True} for at, kind in enumerate(kinds) if kind == "p"}
        )
        assert untouched or whole, (number, before, after)
        assert whole or outcome.result is not Result.DONE
        endings.add(whole)
        if outcome.result is Result.DONE:
            break
    assert endings == {True, False}


@pytest.mark.parametrize("kinds", ["wp", "mmp", "wmppd"])
async def test_refused_anywhere_for_want_of_room_it_is_not_done(kinds: str) -> None:
    for number in range(100):
        storage = Dying()
        storage.fault = StorageFull
        await make_queue(storage)
        group = await group_of(storage, kinds)
        before = await everything(storage)
        real = storage._change

        def full_once(at: int = number, storage: Dying = storage, real: object = real) -> None:
            storage.left = storage.left if storage.left is not None else at
            storage.left -= 1
            if storage.left == -1:
                raise StorageFull("no room")

        storage._change = full_once  # type: ignore[method-assign]
        [outcome] = await commit(storage, [group])
        if outcome.result is Result.DONE:
            break
        if outcome.result is Result.FULL:
            assert outcome.reason == "no room"
            assert await everything(storage) == before, number
            assert await storage.records(INTENT) == {}
        else:  # the intent itself cannot go: the next start ends what it says
            assert outcome.result is Result.UNKNOWN
            await redo(storage)
            assert await storage.records(INTENT) == {}
    assert number > 3


async def test_what_is_not_in_a_group_goes_in_one_batch() -> None:
    storage = Dying()
    await make_queue(storage)
    first, second = Write("orders", new_id(), b""), Write("orders", new_id(), b"")
    outcomes = await commit(storage, [first, second, Group((Put("ledger", "k", {}),)), Drop("ledger", "never")])
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 3 + [Result.GONE]
    assert outcomes[0].entry == first.entry
