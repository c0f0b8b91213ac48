"""Keys that a purge ends: those of SQS's deduplication ids. Idempotency keys of HTTP outlive a purge."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
import trio

from mq.broker import Broker, Draft, Published
from mq.errors import NoSuchQueue, StorageFull
from simulation.disk import Medium
from tests.broker.conftest import Opener
from tests.broker.inside import catalog_of
from tests.broker.test_write_jobs import KINDS, STEPS, Client, Power, browsed, cuts
from tests.record_hooks import hook_records

GROUPED = {"groups": True}


async def publish(broker: Broker, body: bytes, key: str, *, is_key_purged: bool = True) -> Published:
    """Publish one message of a group."""
    draft = Draft(body, key=key, group="a", is_key_purged=is_key_purged)
    [outcome] = await broker.publish_many("q", [draft])
    assert isinstance(outcome, Published)
    return outcome


async def test_purge_ends_the_keys_of_all_messages_before_it(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", GROUPED)
        kept = await publish(broker, b"kept", "http", is_key_purged=False)
        for body in (b"consumed", b"in flight", b"ready"):
            assert (await publish(broker, body, body.decode())).is_new
        await broker.take("q")
        await broker.take("q")
        [in_flight] = await broker.fetch_many("q", 1, visibility=600)
        assert await broker.purge("q") == 1
        for body in (b"consumed", b"in flight", b"ready"):
            assert (await publish(broker, body, body.decode())).is_new, body
            assert not (await publish(broker, body, body.decode())).is_new, body
        assert await publish(broker, b"kept", "http", is_key_purged=False) == kept._replace(is_new=False)
    async with opened(disk_address) as broker:
        for body in (b"consumed", b"in flight", b"ready"):
            assert not (await publish(broker, body, body.decode())).is_new, body
        await broker.remove("q", in_flight.id, receipt=in_flight.receipt)
        assert await browsed(broker, "q") == [b"consumed", b"in flight", b"ready"]
        assert await broker.purge("q") == 3
        assert (await publish(broker, b"ready", "ready")).is_new


async def test_purge_of_a_queue_without_groups_ends_no_key(broker: Broker) -> None:
    draft = Draft(b"x", key="k", is_key_purged=True)
    [first] = await broker.publish_many("q", [draft])
    assert await broker.purge("q") == 1
    assert isinstance(first, Published)
    assert await broker.publish_many("q", [draft]) == [first._replace(is_new=False)]


@pytest.mark.parametrize("steps", range(25))
async def test_a_publish_during_a_purge_is_purged_with_its_key_or_neither(broker: Broker, steps: int) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, b"0", "0")
    bodies = [b"%d" % number for number in range(12)]

    async def send(number: int) -> None:
        for _ in range(steps + number):
            await trio.lowlevel.checkpoint()
        await publish(broker, bodies[number], f"{number}")

    async with trio.open_nursery() as nursery:
        for number in range(len(bodies)):
            nursery.start_soon(send, number)
        await broker.purge("q")
    there = await browsed(broker, "q")
    for body in bodies:
        assert (await publish(broker, body, body.decode())).is_new == (body not in there), body
    assert sorted(await browsed(broker, "q")) == sorted(bodies)


async def test_a_purge_that_finds_no_room_ends_no_key(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    first = await publish(broker, b"x", "k")

    async def refuse(kind: str, key: str, value: object) -> bool:
        raise StorageFull("no room")

    end = hook_records(broker.storage, put=refuse)
    with pytest.raises(StorageFull):
        await broker.purge("q")
    end()
    assert await publish(broker, b"x", "k") == first._replace(is_new=False)


async def test_a_purge_does_not_bring_a_deleted_queue_back(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.change_settings("q", GROUPED)
    async with trio.open_nursery() as nursery:

        async def purge() -> None:
            with suppress(NoSuchQueue):
                await broker.purge("q")

        await broker._queues._changing.acquire()
        nursery.start_soon(purge)
        await trio.testing.wait_all_tasks_blocked()
        del catalog_of(broker).queues["q"]  # as once a deletion is durable
        broker._queues._changing.release()
    assert "purges" not in (await broker.storage.records("queue"))["q"]


async def prepare(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, b"first", "k")
    await publish(broker, b"kept", "http", is_key_purged=False)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("medium", "log"), KINDS)
def test_a_message_sent_again_after_a_cut_in_a_purge_is_never_lost(medium: Medium, log: bool, step: int) -> None:
    outcomes = Counter[str]()
    done: list[str] = []

    async def script(_: Client, broker: Broker) -> None:
        done.clear()
        await prepare(broker)
        done.append("prepared")
        await broker.purge("q")
        done.append("purged")
        await publish(broker, b"again", "k")
        done.append("sent")

    for power, _ in cuts(medium, log, step, script):

        async def look(broker: Broker) -> None:
            if "prepared" not in done:
                return
            there = await browsed(broker, "q")
            assert "purged" not in done or b"first" not in there
            assert "sent" not in done or b"again" in there
            if (await publish(broker, b"again", "k")).is_new:
                assert b"again" not in there, "it was sent after the purge, and its key is known"
            elif b"again" not in there:
                assert b"first" in there, "its key is known, and it is not there"
            assert not (await publish(broker, b"kept", "http", is_key_purged=False)).is_new
            outcomes[" ".join(sorted(body.decode() for body in await browsed(broker, "q")))] += 1

        assert power.live(look)
        assert isinstance(power, Power)
    assert outcomes["again"], outcomes
