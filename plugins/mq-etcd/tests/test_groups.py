"""A group is one transaction up to what etcd takes in one; a larger one is done by an intent."""

from __future__ import annotations

import math
from typing import Any

import pytest
from mq_etcd.batches import MOST_GROUP_BYTES, MOST_IN_GROUP

from mq.broker import Draft, Published, open_broker
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.groups import INTENT, commit
from mq.storage.interface import (
    AnyOperation,
    Drop,
    Entry,
    Group,
    Meta,
    Move,
    Outcome,
    Put,
    Result,
    Storage,
    Write,
)
from mq.storage.records import put_record
from mq.turns import MESSAGES_A_TURN

IDS = MessageIds()
LEASED = Meta(deadline_ms=1_700_000_000_000, receives=1, receipt="00000000000000aa")
KINDS = ("write", "place", "move", "lease", "put", "drop")


class Counted:
    """What is asked of a store while this stands in its place: transactions, and kinds of records."""

    def __init__(self, storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transactions = 0
        self.kinds: list[str] = []
        txn, commit = storage._client.txn, storage.commit

        async def counted_txn(*args: Any, **options: Any) -> Any:
            self.transactions += 1
            return await txn(*args, **options)

        async def counted_commit(operations: Any) -> Any:
            self.kinds += [each.kind for each in operations if isinstance(each, Put)]
            return await commit(operations)

        monkeypatch.setattr(storage._client, "txn", counted_txn)
        monkeypatch.setattr(storage, "commit", counted_commit)


async def some(storage: Storage, kind: str, count: int) -> tuple[Any, ...]:
    """So many operations of a kind, of what is there now; for "all" some of each."""
    if kind == "all":
        shares = [count // len(KINDS) + (place < count % len(KINDS)) for place in range(len(KINDS))]
        return tuple(
            [each for kind, share in zip(KINDS, shares, strict=True) for each in await some(storage, kind, share)]
        )
    ids = [IDS.new() for _ in range(count)]
    if kind in ("put", "drop"):
        make: Any = (
            (lambda key: Put("ledger", key, {"new": True})) if kind == "put" else (lambda key: Drop("ledger", key))
        )
        for id in ids:
            await put_record(storage, "ledger", f"{kind} {id}", {"old": True})
        return tuple(make(f"{kind} {id}") for id in ids)
    if kind in ("write", "place"):
        return tuple(Write("orders", id, b"body", state=State.NEW if kind == "write" else State.READY) for id in ids)
    await storage.commit([Write("orders", id, b"body", state=State.READY) for id in ids])
    ready = [Entry("orders", id, State.READY) for id in ids]
    if kind == "move":
        return tuple(Move(entry, State.READY, Meta(receives=3)) for entry in ready)
    return tuple(Move(entry, State.DELAYED, LEASED) for entry in ready)


async def one(storage: Storage, group: Group) -> Outcome:
    [outcome] = await commit(storage, [group])
    return outcome


async def everything(storage: Storage) -> tuple[set[Entry], dict[str, Any]]:
    found = {*await storage.scan(State.READY, "orders")}
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        found.update(await storage.scan(state))
    return found, dict(await storage.records("ledger"))


@pytest.mark.parametrize("kind", [*KINDS, "all"])
async def test_the_largest_is_one_transaction(storage: Storage, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert storage.description.groups == MOST_IN_GROUP
    operations = await some(storage, kind, MOST_IN_GROUP)
    counted = Counted(storage, monkeypatch)
    assert await one(storage, Group(operations)) == Outcome(Result.DONE)
    assert (counted.transactions, counted.kinds) == (1, [])
    entries, records = await everything(storage)
    for each in operations:
        match each:
            case Write() as write:
                assert write.entry in entries
            case Move() as move:
                assert move.target in entries
            case Put(_, key, value):
                assert records[key] == value
            case Drop(_, key):
                assert key not in records


async def test_the_largest_has_room_beside_others(storage: Storage) -> None:
    """etcd counts what is nested in a transaction, too."""
    batch: list[AnyOperation] = [Write("orders", IDS.new(), b"beside") for _ in range(20)]
    batch.insert(10, Group(await some(storage, "write", MOST_IN_GROUP)))
    batch.append(Group(await some(storage, "lease", MOST_IN_GROUP)))
    assert {outcome.result for outcome in await commit(storage, batch)} == {Result.DONE}


@pytest.mark.parametrize("kind", ["write", "all"])
async def test_one_more_is_done_by_an_intent(storage: Storage, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operations = await some(storage, kind, MOST_IN_GROUP + 1)
    counted = Counted(storage, monkeypatch)
    assert await one(storage, Group(operations)) == Outcome(Result.DONE)
    assert counted.kinds[0] == INTENT
    assert await storage.records(INTENT) == {}


async def test_so_is_one_with_too_many_bytes(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its bodies were staged or not."""

    async def chunks():
        yield b"x" * (MOST_GROUP_BYTES // 2)

    counted = Counted(storage, monkeypatch)
    for bodies in ([b"x" * (MOST_GROUP_BYTES // 2)] * 2, [await storage.stage(chunks()) for _ in range(2)]):
        counted.kinds.clear()
        writes = tuple(Write("orders", IDS.new(), body) for body in bodies)
        assert await one(storage, Group(writes)) == Outcome(Result.DONE)
        assert counted.kinds == [INTENT]


async def test_groups_and_others_share_a_transaction(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own outcome, in order; what changes a thing a second time comes in another one."""
    batch: list[AnyOperation] = [Write("orders", IDS.new(), b"%d" % number) for number in range(20)]
    ready = await some(storage, "lease", 3)
    new = IDS.new()
    absent = Move(Entry("orders", IDS.new(), State.READY), State.DELAYED, LEASED)
    batch += [
        Group((ready[0], Put("ledger", "a", {"n": 1}), Write("orders", new, b"new"))),
        Group((ready[1], Put("ledger", "b", {"n": 1}), absent)),
        Put("ledger", "a", {"n": 2}),
        Move(Entry("orders", new, State.NEW), State.READY),
        ready[1],
        Drop("ledger", "b"),
    ]
    counted = Counted(storage, monkeypatch)
    outcomes = await commit(storage, batch)
    results = [outcome.result for outcome in outcomes]
    assert results == [Result.DONE] * 21 + [Result.GONE] + [Result.DONE] * 3 + [Result.GONE]
    assert counted.transactions == 4  # and after each a look at what was refused
    _, records = await everything(storage)
    assert records == {"a": {"n": 2}}


async def test_a_publish_with_a_key_is_one_transaction(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_broker(storage) as broker:
        await broker.publish("orders", b"first", key="first")
        counted = Counted(storage, monkeypatch)
        id = await broker.publish("orders", b"x", key="k")
        assert (counted.transactions, counted.kinds) == (1, [])
        assert await broker.publish("orders", b"x", key="k") == id
        outcomes = await broker.publish_many("orders", [Draft(b"y", key=f"{number}") for number in range(150)])
        assert all(isinstance(each, Published) for each in outcomes)
        assert counted.kinds == []
        assert counted.transactions <= 1 + math.ceil(150 / MESSAGES_A_TURN)
        await broker.publish("orders", b"z" * (MOST_GROUP_BYTES // 2), key="large")
        assert counted.kinds == ["key"], "a large body has its key in a record before it"
