"""The verbs of the client, on a real etcd."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from mq_etcd.client import Client, open_client
from mq_etcd.connection import Connection
from mq_etcd.errors import Absent, Compacted, EtcdError, Rejected, TooLarge
from mq_etcd.testing.cluster import Cluster
from mq_etcd.values import (
    Delete,
    Get,
    Outcome,
    Page,
    Put,
    absent,
    created_at,
    end_of_prefix,
    modified_at,
    present,
    value_is,
)


async def test_a_key_is_put_got_and_deleted(client: Client, prefix: str) -> None:
    key = prefix + "ünï→😀\x01"
    assert await client.get(key) is None
    value = bytes(range(256))
    first = await client.put(key, value)
    second = await client.put(key, b"")
    found = await client.get(key)
    assert found is not None
    assert found[:5] == (key, b"", first, second, 2)
    assert (await client.range(key, revision=first)).found[0].value == value
    assert [await client.delete(key), await client.delete(key)] == [1, 0]


async def test_a_transaction_does_one_of_two_things(client: Client, prefix: str) -> None:
    key = prefix + "key"
    made = await client.txn([absent(key)], [Put(key, b"1"), Get(key)], [Delete(key)])
    assert made.succeeded
    [nothing, page] = made.answers
    assert nothing is None
    assert isinstance(page, Page)
    assert page.found[0].value == b"1"
    at = page.found[0].modified
    assert made.revision == at
    for compare in (absent(key), modified_at(key, at + 1), created_at(key, at + 1), value_is(key, b"2")):
        assert not (await client.txn([compare, present(key)], [Delete(key)])).succeeded
    held = [present(key), modified_at(key, at), created_at(key, at), value_is(key, b"1")]
    assert await client.txn(held, [Delete(key)]) == Outcome(True, at + 1, [1])


async def test_ranges_come_whole_or_page_by_page(client: Client, prefix: str) -> None:
    names = [f"{prefix}{number:03}" for number in range(100)]
    for name in reversed(names):
        await client.put(name, name.encode())
    end = end_of_prefix(prefix)
    whole = await client.range(prefix, end)
    assert [(found.key, found.value) for found in whole.found] == [(name, name.encode()) for name in names]
    oldest = await client.range(prefix, end, limit=1, by_creation=True, keys_only=True)
    assert ([found.key for found in oldest.found], oldest.more, oldest.total) == (names[-1:], True, 100)
    assert (await client.range(prefix, end, count_only=True))[:3] == ([], 100, False)
    seen = []
    async for page in client.pages(prefix, end, size=30):
        seen += [found.key for found in page.found]
        await client.put(prefix + "zzz", b"comes too late to be seen")
    assert seen == names


async def test_a_large_reply_comes_in_chunks(client: Client, prefix: str) -> None:
    for number in range(8):
        await client.put(f"{prefix}{number}", bytes([number]) * 1_000_000)
    page = await client.range(prefix, end_of_prefix(prefix))
    assert [found.value for found in page.found] == [bytes([number]) * 1_000_000 for number in range(8)]
    await client.delete(prefix, end_of_prefix(prefix))


async def test_a_lease_ends_with_its_keys(client: Client, prefix: str) -> None:
    lease = await client.grant(60)
    assert lease.seconds == 60
    await client.put(prefix + "mine", b"", lease=lease.id)
    found = await client.get(prefix + "mine")
    assert found is not None
    assert found.lease == lease.id
    assert await client.keep_alive(lease.id) == 60
    assert [await client.revoke(lease.id), await client.revoke(lease.id)] == [True, False]
    assert await client.get(prefix + "mine") is None
    with pytest.raises(Absent, match="request a new lease"):
        await client.keep_alive(lease.id)
    with pytest.raises(Absent, match="Request a new lease"):
        await client.put(prefix + "mine", b"", lease=lease.id)


async def test_a_watch_tells_what_happens(client: Client, prefix: str) -> None:
    end = end_of_prefix(prefix)
    with trio.fail_after(20):
        before = await client.put(prefix + "before", b"1")
        async with client.watch(prefix, end) as late, client.watch(prefix, end, revision=before) as early:
            await client.txn([], [Put(prefix + "a", b"1"), Put(prefix + "b", b"2")])
            await client.delete(prefix + "a")
            told = [await anext(late) for _ in range(3)]
            assert [(event.key, event.current and event.current.value) for event in told] == [
                (prefix + "a", b"1"),
                (prefix + "b", b"2"),
                (prefix + "a", None),
            ]
            assert [event.revision - before for event in told] == [1, 1, 2]
            assert (await anext(early)).key == prefix + "before"
            assert [await anext(early) for _ in range(3)] == told
        async with client.watch(prefix + "a") as one:
            await client.put(prefix + "aa", b"")
            await client.put(prefix + "a", b"")
            assert (await anext(one)).key == prefix + "a"


async def test_what_was_thrown_away_is_said(client: Client, prefix: str) -> None:
    old = await client.put(prefix + "key", b"1")
    new = await client.put(prefix + "key", b"2")
    await client.compact(new)
    await client.compact(new)  # which may be asked for twice
    with pytest.raises(Compacted, match="Read the data again"):
        await client.range(prefix + "key", revision=old)
    with pytest.raises(Compacted, match=f"revisions before {new}") as raised:
        async with client.watch(prefix, end_of_prefix(prefix), revision=old) as events:
            await anext(events)
    assert raised.value.revision == new


async def test_says_what_is_too_large(client: Client, prefix: str) -> None:
    for size in (1_600_000, 3_000_000):
        with pytest.raises(TooLarge, match="--max-request-bytes"):
            await client.put(prefix, bytes(size))
    with pytest.raises(TooLarge, match="--max-txn-ops"):
        await client.txn([], [Put(f"{prefix}{number}", b"") for number in range(129)])
    with pytest.raises(Rejected, match="future revision"):
        await client.range(prefix, revision=1 << 40)
    assert (await client.range(prefix, end_of_prefix(prefix))).found == []


async def test_each_member_says_how_it_is(three: Cluster) -> None:
    async with open_client(three.endpoints) as client:
        states = [await client.status(endpoint) for endpoint in client.endpoints]
    assert len({state.member for state in states}) == 3
    assert {state.leader for state in states} <= {state.member for state in states}
    assert all(state.version >= "3.4" and state.size >= state.used > 0 for state in states)


async def test_requests_wait_for_their_turn(single: Cluster, prefix: str) -> None:
    async with open_client(single.endpoints, connections=2) as client:
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(client.put, f"{prefix}{number}", b"")
        assert (await client.range(prefix, end_of_prefix(prefix), count_only=True)).total == 20


async def test_it_is_closed_while_others_still_ask(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks another member meanwhile leaves a connection to it."""
    async with open_client(three.endpoints) as client:
        await client.get("x")
        aclose = Connection.aclose

        async def asks_meanwhile(connection: Connection) -> None:
            monkeypatch.undo()
            with suppress(EtcdError):
                await client.status(client.endpoints[1])
            await aclose(connection)

        monkeypatch.setattr(Connection, "aclose", asks_meanwhile)
        await client.aclose()
