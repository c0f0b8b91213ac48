"""What etcd is asked for a batch: how many transactions, how long they are, and why it refused some of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mq_etcd.client import Client
from mq_etcd.members import Members
from mq_etcd.testing.wire import Times, is_look, wire_to

from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.interface import QUEUE, Entry, Meta, Move, Result, Storage, Unlink, Write
from mq.storage.records import put_record
from mq.storage.registry import open_storage

IDS = MessageIds()
LEASED = Meta(deadline_ms=1_700_000_000_000, receives=1, receipt="00000000000000aa")
MOST = 125
"""Operations in one transaction of etcd, beside the lane's; each has two conditions and does two things."""


class Requests(list[str]):
    """The transactions that were sent to etcd since this was made or cleared, as JSON."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        exchange = Members._exchange

        async def kept(members: Members, member: Any, path: str, body: bytes, *others: Any) -> Any:
            if path == "/v3/kv/txn":
                self.append(body.decode("ascii"))
            return await exchange(members, member, path, body, *others)

        monkeypatch.setattr(Members, "_exchange", kept)


def ready(id: MessageId) -> Entry:
    return Entry("orders", id, State.READY)


async def stored(storage: Storage, count: int) -> list[Entry]:
    entries = [ready(IDS.new()) for _ in range(count)]
    await storage.commit([Write("orders", entry.id, b"body", state=State.READY) for entry in entries])
    return entries


async def results(storage: Storage, *operations: Write | Move | Unlink) -> list[Result]:
    return [outcome.result for outcome in await storage.commit(operations)]


@pytest.mark.parametrize(("count", "transactions"), [(1, 1), (MOST, 1), (MOST + 1, 2), (2 * MOST, 2)])
async def test_batch_takes_as_few_transactions_as_etcd_allows(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, count: int, transactions: int
) -> None:
    requests = Requests(monkeypatch)
    entries = await stored(storage, count)
    assert len(requests) == transactions
    for operations in (
        [Move(entry, State.DELAYED, LEASED) for entry in entries],
        [Move(Entry("orders", entry.id, State.DELAYED, LEASED), State.REMOVED) for entry in entries],
        [Unlink(Entry("orders", entry.id, State.REMOVED)) for entry in entries],
    ):
        requests.clear()
        assert await results(storage, *operations) == [Result.DONE] * count
        assert len(requests) == transactions


async def test_removal_takes_few_bytes(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it needs is both keys, as a condition and as an operation, in base64. With a look at both keys in each
    transaction these were 900 bytes."""
    entries = await stored(storage, 100)
    requests = Requests(monkeypatch)
    await storage.commit([Move(entry, State.REMOVED) for entry in entries])
    assert sum(map(len, requests)) / 100 < 600


async def test_only_refused_operations_are_looked_at(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    there = await stored(storage, 20)
    missing = [ready(IDS.new()) for _ in range(20)]
    requests = Requests(monkeypatch)
    removals = [Move(entry, State.REMOVED) for pair in zip(there, missing, strict=True) for entry in pair]
    assert await results(storage, *removals) == [Result.DONE, Result.GONE] * 20
    assert [request.count("request_range") for request in requests] == [2, 2 * len(missing)]  # two are the lane's


async def test_refused_operations_have_a_cause_each(storage: Storage) -> None:
    [first, second, third] = await stored(storage, 3)
    await storage.commit([Move(third, State.REMOVED)])
    assert await results(
        storage,
        Write("orders", first.id, b"again"),
        Write("orders", third.id, b"again"),
        Move(second, State.DELAYED, LEASED),
        Move(ready(IDS.new()), State.REMOVED),
        Unlink(Entry("orders", IDS.new(), State.REMOVED)),
        Write("orders", IDS.new(), b"new"),
    ) == [Result.EXISTS, Result.EXISTS, Result.DONE, Result.GONE, Result.GONE, Result.DONE]


async def test_refused_without_a_cause_while_etcd_is_silent(place) -> None:
    """What was done is done. What was refused was not done: it may be tried again."""
    place.prefix = "/batches/silent"
    [member] = place.cluster.members
    async with wire_to(member.port) as wire:
        address = f"etcd:{wire.endpoint}?prefix={place.prefix}&patience=0.4&deadline=1"
        async with open_storage(address) as storage:
            await put_record(storage, QUEUE, "orders", {"created": 0})
            [first] = await stored(storage, 1)
            removals = Move(first, State.REMOVED), Move(ready(IDS.new()), State.REMOVED)
            wire.holds = is_look
            outcomes = await storage.commit(removals)
            assert [outcome.result for outcome in outcomes] == [Result.DONE, Result.FULL]
            assert "no etcd member responded within 1 seconds" in outcomes[1].reason
            wire.holds = Times(0)
            assert await results(storage, *removals) == [Result.GONE, Result.GONE]
            assert await results(storage, Write("orders", IDS.new(), b"goes on")) == [Result.DONE]


async def test_cause_is_not_looked_for_under_another_broker(
    place, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That one may have changed what there is since the operation was refused."""
    place.prefix = "/batches/fenced"
    key = f"{place.prefix}-master"
    revision = await client.put(key, b"me")
    async with open_storage(f"{place.address}&fence={key}@{revision}") as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        do_after_the_first(monkeypatch, lambda: client.delete(key))
        outcomes = await storage.commit([Move(ready(IDS.new()), State.REMOVED)])
        assert outcomes[0].result is Result.FENCED
        assert "another daemon has taken over the store" in outcomes[0].reason


def do_after_the_first(monkeypatch: pytest.MonkeyPatch, do: Callable[[], Any]) -> None:
    """Do something else after the next transaction."""
    txn = Client.txn
    left = [do]

    async def followed(client: Client, *args: Any, **named: Any) -> Any:
        outcome = await txn(client, *args, **named)
        if left:
            await left.pop()()
        return outcome

    monkeypatch.setattr(Client, "txn", followed)
