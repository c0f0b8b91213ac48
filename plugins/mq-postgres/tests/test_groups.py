"""A group is one transaction, and so are a message and its key."""

from __future__ import annotations

from mq_postgres.testing.server import Server

from mq.broker import open_broker
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.groups import commit
from mq.storage.interface import Group, Put, Result, Storage, Write

IDS = MessageIds()


def landed(server: Server, schema: str) -> int:
    """How many changes there were."""
    with server.admin() as admin:
        row = admin.execute(f"SELECT landed FROM {schema}.lane".encode()).fetchone()
    assert row is not None
    return int(row[0])


async def test_a_group_is_one_change(storage: Storage, place) -> None:
    before = landed(place.server, place.schema)
    writes = tuple(Write("orders", IDS.new(), b"body", state=State.READY) for _ in range(200))
    beside = Write("orders", IDS.new(), b"beside")
    outcomes = await commit(storage, [beside, Group((*writes, Put("ledger", "a", {}), Put("ledger", "b", {})))])
    assert [outcome.result for outcome in outcomes] == [Result.DONE] * 2
    assert landed(place.server, place.schema) == before + 1
    assert len(await storage.scan(State.READY, "orders")) == 200


async def test_a_message_and_its_key_are_one_change(place) -> None:
    async with open_broker(place.address) as broker:
        await broker.create_queue("orders")
        id = await broker.publish("orders", b"first", key="0")
        before = landed(place.server, place.schema)
        await broker.publish("orders", b"body", key="1")
        assert landed(place.server, place.schema) == before + 1
        assert await broker.publish("orders", b"body", key="0") == id
    async with open_broker(place.address) as broker:
        assert await broker.publish("orders", b"body", key="0") == id, "after a restart, too"
        assert len(await broker.fetch_many("orders", 10)) == 2


async def test_a_group_with_a_body_that_was_given_up_is_not_done(storage: Storage) -> None:
    async def chunks():
        yield b"body"

    body, id = await storage.stage(chunks()), IDS.new()
    await body.discard()
    [outcome] = await commit(storage, [Group((Write("orders", id, body), Put("ledger", "a", {})))])
    assert outcome.result is Result.GONE
    assert await storage.records("ledger") == {}
