"""Take, purge, show, peek and the counts of a queue."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, Seen
from mq.broker.config import MARGIN_SECONDS
from mq.errors import NoSuchMessage, NoSuchQueue
from mq.lifecycle import Kind
from mq.message import MessageIds
from tests.broker.conftest import START_NS, Legal, Opener
from tests.broker.test_broker import take


async def test_what_is_taken_is_gone_before_it_is_read(disk_address: str, opened: Opener, observer: Legal) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x", {"n": 1})
        message = await broker.take("q")
        assert message is not None
        assert (message.id, message.receives, await message.body.read()) == (id, 1, b"x")
        assert message.properties.attributes == {"n": 1}
        assert await broker.take("q") is None
        await wait_all_tasks_blocked()
        # Where a message is written where it rests, nothing delivers it.
        kinds = [seen.kind for seen in observer.seen if seen.kind is not Kind.DELIVER]
        assert kinds == [Kind.PUBLISH, Kind.REMOVE, Kind.REAP]
    async with opened(disk_address) as broker:
        await trio.sleep(100)
        assert await take(broker) is None


async def test_what_is_taken_tells_how_often_it_was_received_and_how_it_died(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", {"dead_letter_queue": "dead"})
    id = await broker.publish("q", b"x", ttl=5)
    await trio.sleep(6)
    for _ in range(2):
        assert await take(broker, "dead") == b"x"
        await broker.requeue("dead", id)
    message = await broker.take("dead")
    assert message is not None
    assert message.receives == 3
    assert [death["reason"] for death in message.dead_letter_history] == ["expired"]


async def test_takes_wait_and_share_messages_with_fetches_in_their_turn(broker: Broker) -> None:
    got: list[tuple[str, bytes]] = []

    async def ask(verb: str) -> None:
        message = await (broker.take if verb == "take" else broker.fetch)("q", wait=10)
        assert message is not None
        got.append((verb, await message.body.read()))

    async with trio.open_nursery() as nursery:
        for verb in ("take", "fetch", "take"):
            nursery.start_soon(ask, verb)
            await wait_all_tasks_blocked()
        await broker.publish_many("q", [Draft(b"%d" % number) for number in range(3)])
    assert sorted(got) == [("fetch", b"1"), ("take", b"0"), ("take", b"2")]
    assert (await broker.status("q"))[2:5] == (0, 1, 0)


@pytest.mark.slow
async def test_a_purge_takes_all_that_nobody_holds(broker: Broker) -> None:
    assert await broker.purge("q") == 0
    ids = [await broker.publish("q", b"x") for _ in range(1205)]
    held = await broker.fetch("q")
    assert held is not None
    await broker.publish("q", b"x", delay=50)
    assert await broker.purge("q") == len(ids)
    await trio.sleep(100)
    message = await broker.fetch("q")
    assert message is not None
    assert message.id == held.id
    assert await broker.fetch("q") is None
    with pytest.raises(NoSuchQueue):
        await broker.purge("nowhere")


async def test_what_is_shown_stays_as_it_is(broker: Broker) -> None:
    id = await broker.publish("q", b"x")
    for state in ("ready", "leased"):
        seen = await broker.show("q", id)
        assert (seen.state, seen.message.id, await seen.message.body.read()) == (state, id, b"x")
        assert seen.message.receives == (0 if state == "ready" else 1)
        if state == "ready":
            assert await take(broker) == b"x"
    held_back = await broker.publish("q", b"y", delay=50)
    await wait_all_tasks_blocked()
    assert (await broker.show("q", held_back)).state == "delayed"
    await broker.remove("q", id)
    for unknown in (id, MessageIds().new()):
        with pytest.raises(NoSuchMessage):
            await broker.show("q", unknown)


async def test_what_waits_or_is_leased_tells_when_it_can_be_fetched_again(broker: Broker) -> None:
    waiting = await broker.publish("q", b"waits", delay=50)
    [published] = await broker.publish_many("q", [Draft(b"far off", at_ms=START_NS // 10**6 + 86_400_000)])
    assert isinstance(published, Published)
    leased = await broker.publish("q", b"leased")
    ready = await broker.publish("q", b"ready")
    assert await broker.fetch("q", visibility=20) is not None
    [held] = await broker.hold("q")
    assert held.message.id == ready
    await broker.publish("q", b"also ready")
    await wait_all_tasks_blocked()
    seen = [each for state in ("ready", "leased", "delayed") for each in await broker.peek("q", state=state)]
    holders = {each.message.id: (each.leased_by, each.message.receives) for each in seen if each.state == "leased"}
    assert holders == {leased: (None, 1), ready: ("connection", 1)}
    after = {each.message.id: None if each.at_ms is None else each.at_ms - START_NS // 10**6 for each in seen}
    assert after.pop(leased) == (20 + MARGIN_SECONDS) * 1000
    assert after.pop(waiting) == 50_000
    assert after.pop(published.id) == 86_400_000
    assert list(after.values()) == [None, None], "what is ready, and what a connection holds"
    assert ready in after
    assert (await broker.show("q", waiting)).at_ms == START_NS // 10**6 + 50_000
    await broker.put_back([held])


async def test_messages_are_shown_page_by_page_in_their_order(broker: Broker) -> None:
    ids = [await broker.publish("q", b"%d" % number) for number in range(25)]
    delayed = [await broker.publish("q", b"x", delay=50) for _ in range(3)]
    leased = [message.id for message in await broker.fetch_many("q", 5)]
    assert leased == ids[:5]
    for state, wanted in (("ready", ids[5:]), ("leased", leased), ("delayed", delayed)):
        pages: list[Seen] = []
        while page := await broker.peek("q", state=state, after=pages[-1].message.id if pages else None, most=4):
            assert len(page) <= 4
            pages += page
        assert [seen.message.id for seen in pages] == wanted
        assert {seen.state for seen in pages} == {state}
    assert [message.id for message in await broker.fetch_many("q", 100)] == ids[5:]


async def test_counts(broker: Broker) -> None:
    empty = await broker.status("q")
    assert empty[2:6] == (0, 0, 0, None)
    first = await broker.publish("q", b"1")
    await trio.sleep(10)
    for delay in (0, 0, 50, 50, 50):
        await broker.publish("q", b"x", delay=delay)
    assert sum((await broker.status("q"))[2:5]) == 6  # at once, wherever they are just then
    await wait_all_tasks_blocked()
    status = await broker.status("q")
    assert status[2:5] == (3, 0, 3)
    assert status.oldest_ns == first.published_ns == pytest.approx(START_NS, abs=1e9)
    assert await take(broker) == b"1"
    assert (await broker.status("q"))[2:5] == (2, 1, 3)
    await broker.extend("q", first, 100)
    await broker.requeue("q", first)
    assert (await broker.status("q"))[2:5] == (3, 0, 3)
    await trio.sleep(50)
    await wait_all_tasks_blocked()
    assert (await broker.status("q"))[2:5] == (6, 0, 0)
    await broker.remove("q", first)
    assert (await broker.queues())[0][2:5] == (5, 0, 0)
