"""What an address may say, what a store refuses, and another program's fence."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import trio
from mq_etcd import owner
from mq_etcd.address import Fence, parse_address
from mq_etcd.bodies import LARGEST_BODY
from mq_etcd.client import Client
from mq_etcd.keys import Keys, decode_meta, encode_meta, id_at

from mq.errors import CorruptMessage, StorageFenced, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Entry, Meta, Move, Result, Storage, Unlink, Write
from mq.storage.records import drop_record, put_record
from mq.storage.registry import open_storage
from tests.cases import for_each

IDS = MessageIds()


def test_an_address_says_all_there_is_to_say(tmp_path) -> None:
    (tmp_path / "password").write_text("secret\n")
    address = parse_address(
        "http://127.0.0.1:2379,https://[::1]:2479?prefix=/a/b&user=mq&password-file="
        f"{tmp_path / 'password'}&quota=4GiB&patience=500ms&deadline=3s&fence=/mq/master@17"
    )
    assert address.endpoints == ("http://127.0.0.1:2379", "https://[::1]:2479")
    assert (address.prefix, address.user, address.quota) == ("/a/b/", ("mq", "secret"), 4 << 30)
    assert (address.patience, address.deadline, address.fence) == (0.5, 3.0, Fence("/mq/master", 17))
    assert parse_address("http://127.0.0.1")[1:5] == ("/mq/", None, None, 2 << 30)


@for_each(
    "rest, text",
    [
        ("", "requires an address, such as etcd:http"),
        ("?prefix=/mq", "requires an address"),
        ("127.0.0.1:2379", "invalid etcd member address"),
        ("http://127.0.0.1,ftp://127.0.0.1", "invalid etcd member address"),
        ("http://127.0.0.1?prefx=/mq", 'unknown option "prefx" for the storage backend "etcd"'),
        ("http://127.0.0.1?prefix=", "invalid key prefix"),
        ("http://127.0.0.1?prefix=/ü", "invalid key prefix"),
        ("http://127.0.0.1?quota=2XB", 'option "quota".*quota=4GiB'),
        ("http://127.0.0.1?quota=0", 'option "quota"'),
        ("http://127.0.0.1?patience=soon", "patience must be a duration.*such as patience=2"),
        ("http://127.0.0.1?deadline=0", "deadline must be a duration"),
        ("http://127.0.0.1?fence=/mq/master", 'option "fence".*KEY@REVISION'),
        ("http://127.0.0.1?user=mq", "options user and password-file must be used together"),
        ("http://127.0.0.1?user=mq&password-file=/no/such/file", "cannot read"),
        ("https://127.0.0.1?ca=/no/such/file", "cannot load the files"),
    ],
)
def test_says_what_is_wrong_with_an_address(rest: str, text: str) -> None:
    with pytest.raises(StorageUnusable, match=text):
        parse_address(rest)


async def test_says_that_nobody_answers() -> None:
    with pytest.raises(StorageUnusable, match=r"no etcd member responded within 0.3 seconds.*running"):
        async with open_storage("etcd:http://127.0.0.1:1?deadline=0.3"):
            pytest.fail("it opened")


@pytest.mark.parametrize("meta", [Meta(), Meta(1, 2, "f" * 16, 3, 4)])
def test_place_is_decoded_as_it_was_encoded(meta: Meta) -> None:
    assert decode_meta(encode_meta(meta)) == meta
    keys = Keys("/mq/")
    for state in State:
        entry = Entry("a.b@c", IDS.new(), state, meta)
        assert keys.entry(keys.place(entry, 7), encode_meta(meta), state) == entry
        assert id_at(keys.place(entry, 7)) == entry.id


@pytest.mark.parametrize("value", [b"nonsense", b",r0", b"\xff", b"#ab", b",c12"])
def test_what_is_none_of_ours_is_passed_over(value: bytes) -> None:
    assert decode_meta(value) is None
    keys = Keys("/mq/")
    assert keys.entry(f"/mq/new/orders/{IDS.new()}", value, State.NEW) is None
    assert keys.entry("/mq/new/orders/no-id", b"", State.NEW) is None


async def test_bodies_and_attributes_have_a_limit(storage: Storage) -> None:
    """Below etcd's own, and said so; what fits is stored, both at their longest."""
    outcomes = await storage.commit(
        [
            Write("orders", IDS.new(), bytes(LARGEST_BODY + 1)),
            Write("orders", IDS.new(), bytes(LARGEST_BODY), {"note": "x" * 262_000}),
            Write("orders", IDS.new(), b"", {"note": "x" * (3 << 19)}),
        ]
    )
    assert [outcome.result for outcome in outcomes] == [Result.FULL, Result.DONE, Result.FULL]
    assert "supports message bodies of up to 1048576 bytes. Store larger data elsewhere" in outcomes[0].reason
    assert "attributes exceed the size" in outcomes[2].reason
    with pytest.raises(StorageFull, match=r"etcd supports at most 1048576 bytes\. Store less data"):
        await put_record(storage, "exchange", "e", {"text": "x" * (1 << 20)})

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 19)

    async with aclosing(endless()) as chunks:
        with pytest.raises(StorageFull, match="1048576 bytes"):
            await storage.stage(chunks)


async def test_many_large_bodies_go_in_one_batch(storage: Storage) -> None:
    """Each in a transaction of its own."""
    outcomes = await storage.commit([Write("orders", IDS.new(), bytes([n]) * 400_000) for n in range(12)])
    assert {outcome.result for outcome in outcomes} == {Result.DONE}
    entries = [outcome.entry for outcome in outcomes if outcome.entry]
    found = [await stored.body.read() for stored in await storage.read(entries) if stored]
    assert found == [bytes([n]) * 400_000 for n in range(12)]


async def test_a_move_never_carries_the_body(storage: Storage, place, client: Client) -> None:
    """The body's key is written once."""
    id = IDS.new()
    steps = [
        Entry("orders", id, State.NEW),
        Entry("orders", id, State.READY),
        Entry("orders", id, State.DELAYED, Meta(1, 1, "a" * 16)),
        Entry("orders", id, State.READY, Meta(receives=1)),
        Entry("orders", id, State.REMOVED),
    ]
    await storage.commit([Write("orders", id, b"body")])
    for source, target in itertools.pairwise(steps):
        [outcome] = await storage.commit([Move(source, target.state, target.meta)])
        assert outcome.result is Result.DONE
    body = await client.get(f"{place.prefix}/body/{id}")
    assert body is not None
    assert (body.version, body.value.endswith(b"\nbody")) == (1, True)
    await storage.commit([Unlink(steps[-1])])
    assert await client.get(f"{place.prefix}/body/{id}") is None


async def test_a_damaged_body_is_told(storage: Storage, place, client: Client) -> None:
    entries = [Entry("orders", IDS.new(), State.NEW) for _ in range(2)]
    await storage.commit([Write("orders", entry.id, b"body") for entry in entries])
    for entry, damage in zip(entries, (b"no JSON", None), strict=True):
        key = f"{place.prefix}/body/{entry.id}"
        kept = await client.get(key)
        assert kept is not None
        await client.put(key, damage or kept.value.replace(b"body", b"bady"))
        [found] = await storage.read([entry])
        assert found is not None
        with pytest.raises(CorruptMessage, match=entry.id):
            await found.body.read()
        await client.put(key, kept.value)


async def test_a_fence_of_somebody_else_shuts_out(place, client: Client) -> None:
    """As the master of a cluster has one. Every change is refused and none is made; what is there can still be read."""
    place.prefix = "/store/fenced"
    key = f"{place.prefix}-master"
    revision = await client.put(key, b"me")
    id, late = IDS.new(), IDS.new()
    async with open_storage(f"{place.address}&fence={key}@{revision}") as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        await storage.commit([Write("orders", id, b"mine")])
        await client.put(key, b"me, again")  # which is no other key
        entry = Entry("orders", id, State.NEW)
        assert (await storage.commit([Move(entry, State.READY)]))[0].result is Result.DONE
        await client.delete(key)
        for _ in range(2):
            ready = entry._replace(state=State.READY)
            changes = [Write("orders", late, b"late"), Move(ready, State.REMOVED), Write("orders", late, b"late")]
            outcomes = await storage.commit(changes)
            assert [outcome.result for outcome in outcomes] == [Result.FENCED] * 3
            assert f"{key} in etcd no longer has the revision {revision}" in outcomes[0].reason
            with pytest.raises(StorageFenced, match="another daemon has taken over the store"):
                await put_record(storage, QUEUE, "other", {"created": 0})
            with pytest.raises(StorageFenced):
                await drop_record(storage, QUEUE, "orders")
            await client.put(key, b"somebody else")
        assert await storage.find("orders", id) == ready
        assert await storage.find("orders", late) is None
        assert list(await storage.records(QUEUE)) == ["orders"]
    with pytest.raises(StorageUnusable, match="another daemon has taken over the store"):
        async with open_storage(f"{place.address}&fence={key}@{revision}"):
            pytest.fail("it opened")


async def test_an_owner_outlives_its_lease(place, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept alive while nothing is asked for."""
    monkeypatch.setattr(owner, "LEASE_SECONDS", 1)
    async with place.make() as storage:
        await trio.sleep(3)
        assert await put_record(storage, QUEUE, "orders", {"created": 0})
