"""A unique queue: a body that it holds is not stored again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.errors import Conflict
from mq.message import MessageId
from mq.storage.interface import Entry, Stored
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Opener, WallClock
from tests.broker.test_broker import pieces, take


async def make(broker: Broker) -> None:
    await broker.create_queue("q")
    await broker.change_settings("q", {"unique": True})


async def published(broker: Broker, *bodies: bytes) -> list[tuple[MessageId, bool]]:
    outcomes = await broker.publish_many("q", [Draft(body) for body in bodies])
    return [(outcome.id, outcome.is_new) for outcome in outcomes if isinstance(outcome, Published)]


async def test_a_body_is_stored_once(broker: Broker) -> None:
    await make(broker)
    [(first, is_new)] = await published(broker, b"x")
    assert is_new
    assert await published(broker, b"x", b"x") == [(first, False)] * 2
    [(other, is_new)] = await published(broker, b"y")
    assert is_new
    assert await broker.contains("q", b"x") == first
    assert await broker.contains("q", b"y") == other
    assert await broker.contains("q", b"z") is None


async def test_once_in_one_batch_and_among_many_who_publish_at_once(broker: Broker) -> None:
    await make(broker)
    one, two, three = await published(broker, b"x", b"y", b"x")
    assert (one[1], two[1], three) == (True, True, (one[0], False))
    answers: list[tuple[MessageId, bool]] = []

    async def publish() -> None:
        answers.extend(await published(broker, b"z"))

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(publish)
    assert len({id for id, _ in answers}) == 1
    assert sum(is_new for _, is_new in answers) == 1
    assert (await broker.status("q")).ready == 3


async def test_a_large_body_is_the_same_as_a_small_one(broker: Broker) -> None:
    await make(broker)
    id = await broker.publish("q", b"x" * 500)
    staged = await broker.stage(pieces(b"x" * 200, b"x" * 300))
    assert await broker.contains("q", staged) == id
    assert await broker.publish("q", staged) == id
    assert (await broker.status("q")).ready == 1


@pytest.mark.parametrize("way", ["remove", "take", "purge", "expire", "delete"])
async def test_a_body_can_come_again_when_its_message_is_gone(broker: Broker, way: str) -> None:
    await make(broker)
    id = await broker.publish("q", b"x", ttl=5 if way == "expire" else None)
    assert await take(broker) == b"x"
    assert await broker.contains("q", b"x") == id  # leased is there
    await broker.requeue("q", id)
    if way == "remove":
        await broker.remove("q", id)
    elif way == "take":
        assert await broker.take("q") is not None
    elif way == "purge":
        await broker.purge("q")
    elif way == "expire":
        await trio.sleep(6)
    else:
        await broker.delete_queue("q")
        await make(broker)
    assert await broker.contains("q", b"x") is None
    assert await broker.publish("q", b"x") != id


async def test_it_is_so_over_a_restart_and_for_what_was_there_before(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        ids = [await broker.publish("q", body) for body in (b"ready", b"leased", b"ready")]
        await broker.change_settings("q", {"unique": True})
        leased = (await broker.fetch_many("q", 2))[1]
        assert leased.id == ids[1]
    async with opened(disk_address) as broker:
        assert await broker.publish("q", b"leased") == ids[1]
        assert await broker.contains("q", b"ready") in (ids[0], ids[2])
        assert await broker.contains("q", b"else") is None


async def test_only_a_unique_queue_is_asked(broker: Broker) -> None:
    with pytest.raises(Conflict, match="duplicate detection is off"):
        await broker.contains("q", b"x")


@pytest.mark.parametrize("config", [{"peers": 1}, {"mover": False, "reaper": False}])
async def test_it_is_refused_where_others_publish(disk_address: str, opened: Opener, config: dict[str, int]) -> None:
    async with opened(disk_address, **config) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict):
            await broker.change_settings("q", {"unique": True})


class SlowToRead(MemoryStorage):
    """A store whose bodies take a second to be opened."""

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.sleep(1)
        return await super().read(entries)


async def test_a_body_that_moves_while_it_is_learnt_is_learnt(wall_clock: WallClock) -> None:
    async with open_broker(SlowToRead(), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.change_settings, "q", {"unique": True})
            await trio.sleep(0.5)
            nursery.start_soon(broker.fetch, "q")  # it is leased while it is read
            await trio.sleep(0.25)
            assert await broker.publish("q", b"x") == id
        assert await broker.contains("q", b"x") == id


async def test_bodies_on_their_way_when_a_queue_becomes_unique_are_learnt(broker: Broker) -> None:
    for steps in range(12):
        id = await broker.publish("q", b"x")
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.fetch, "q")
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await broker.change_settings("q", {"unique": True})
            assert await broker.publish("q", b"x") == id
        await broker.change_settings("q", {"unique": None})
        await broker.remove("q", id)
