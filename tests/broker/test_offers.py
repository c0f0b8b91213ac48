"""Who waits gets what is published straight from NEW; everything else is as if it had been delivered first."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, open_broker
from mq.broker.index import QueueIndex
from mq.broker.offers import LARGEST_BODY, MOST_OFFERS, Offers, RecentBodies
from mq.errors import StorageFull
from mq.lifecycle import Kind, State
from mq.message import Message, MessageIds
from mq.storage.interface import Entry, Stored
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Legal, Opener
from tests.broker.test_broker import take
from tests.storage.disks import MOUNTS, open_disk


def kinds(observer: Legal, id: str) -> list[tuple[Kind, State | None]]:
    """What happened to a message, and where it was before."""
    return [(seen.kind, seen.source) for seen in observer.seen if seen.id == id]


class Waiters:
    """Waiters that wait, in order; what each of them got."""

    def __init__(self, broker: Broker, nursery: trio.Nursery) -> None:
        self._broker = broker
        self._nursery = nursery
        self.got: list[list[Message]] = []

    async def add(self, most: int = 1) -> None:
        messages: list[Message] = []
        self.got.append(messages)

        async def fetch() -> None:
            messages.extend(await self._broker.fetch_many("q", most, wait=1000))

        self._nursery.start_soon(fetch)
        await wait_all_tasks_blocked()

    async def bodies(self) -> list[list[bytes]]:
        await wait_all_tasks_blocked()
        return [[await message.body.read() for message in messages] for messages in self.got]


async def test_it_is_not_delivered_first(broker: Broker, observer: Legal, nursery: trio.Nursery) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    id = await broker.publish("q", b"x", {"content_type": "text/plain"})
    assert await waiters.bodies() == [[b"x"]]
    assert kinds(observer, id) == [(Kind.PUBLISH, None), (Kind.LEASE, State.NEW)]


async def test_what_it_says_is_what_reading_it_says(broker: Broker, nursery: trio.Nursery) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    id = await broker.publish("q", b"x" * 1000, {"content_type": "text/plain", "headers": {"a": "b"}})
    await wait_all_tasks_blocked()
    [[message]] = waiters.got
    assert message.properties == (await broker.show("q", id)).message.properties
    assert (message.queue, message.id, message.receives) == ("q", id, 1)
    await broker.remove("q", id, receipt=message.receipt)


async def test_what_nobody_takes_is_delivered(broker: Broker, observer: Legal, nursery: trio.Nursery) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add(2)
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(5)])
    assert await waiters.bodies() == [[b"0", b"1"]]
    assert [await take(broker) for _ in range(4)] == [b"2", b"3", b"4", None]


async def test_when_nobody_waits_any_more_it_is_delivered(
    broker: Broker, observer: Legal, nursery: trio.Nursery
) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    await broker.publish("q", b"1")
    assert await waiters.bodies() == [[b"1"]]
    assert await broker.fetch("q", wait=1) is None
    id = await broker.publish("q", b"2")
    await wait_all_tasks_blocked()
    assert kinds(observer, id)[1:] == [(Kind.DELIVER, State.NEW)]


async def test_among_peers_it_is_delivered(
    disk_address: str, opened: Opener, observer: Legal, nursery: trio.Nursery
) -> None:
    """There a peer may have taken it meanwhile, so what it holds is not taken from memory."""
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        waiters = Waiters(broker, nursery)
        await waiters.add()
        id = await broker.publish("q", b"x")
        await trio.sleep(1)
        assert await waiters.bodies() == [[b"x"]]
        assert (Kind.DELIVER, State.NEW) in kinds(observer, id)


async def test_those_who_wait_are_served_in_order(broker: Broker, nursery: trio.Nursery) -> None:
    waiters = Waiters(broker, nursery)
    for _ in range(3):
        await waiters.add()
    await broker.publish_many("q", [Draft(b"%d" % number) for number in range(4)])
    assert await waiters.bodies() == [[b"0"], [b"1"], [b"2"]]


async def test_an_older_message_that_comes_back_at_that_moment_comes_first(
    broker: Broker, nursery: trio.Nursery
) -> None:
    old = await broker.publish("q", b"old")
    message = await broker.fetch("q")
    assert message is not None
    waiters = Waiters(broker, nursery)
    await waiters.add()
    async with trio.open_nursery() as both:
        both.start_soon(broker.requeue, "q", old)
        both.start_soon(broker.publish, "q", b"new")
    await waiters.add()
    assert sorted(await waiters.bodies()) == [[b"new"], [b"old"]]


@pytest.mark.parametrize("option", ["delay", "ttl"])
async def test_what_has_to_wait_or_to_expire_takes_the_long_way(
    broker: Broker, observer: Legal, nursery: trio.Nursery, option: str
) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    id = await broker.publish("q", b"x", **{option: 10.0})  # type: ignore[arg-type]
    await trio.sleep(11 if option == "delay" else 0)
    assert await waiters.bodies() == [[b"x"]]
    assert (Kind.LEASE, State.NEW) not in kinds(observer, id)


async def test_a_paused_queue_offers_nothing(broker: Broker, nursery: trio.Nursery) -> None:
    await broker.change_settings("q", {"paused": True})
    waiters = Waiters(broker, nursery)
    await waiters.add()
    await broker.publish("q", b"x")
    assert await waiters.bodies() == [[]]
    assert (await broker.peek("q"))[0].state == "ready"
    await broker.change_settings("q", {"paused": False})
    assert await waiters.bodies() == [[b"x"]]


async def test_one_that_is_held_from_new_is_put_back_and_delivered(broker: Broker, nursery: trio.Nursery) -> None:
    got = []

    async def hold() -> None:
        got.extend(await broker.hold("q", wait=1000))

    nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert [held.entry.state for held in got] == [State.NEW]
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)
    await broker.put_back(got)
    assert await take(broker) == b"x"


async def test_one_that_is_held_from_new_is_there_after_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker, trio.open_nursery() as nursery:
        await broker.create_queue("q")
        nursery.start_soon(lambda: broker.hold("q", wait=1000))
        await wait_all_tasks_blocked()
        await broker.publish("q", b"x")
    async with opened(disk_address) as broker:
        assert await take(broker) == b"x"


async def test_one_that_is_deleted_before_it_is_taken_is_gone(broker: Broker, nursery: trio.Nursery) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    await broker.publish_many("q", [Draft(b"0"), Draft(b"1")])
    assert await broker.purge("q") + len((await waiters.bodies())[0]) == 2


async def test_one_that_cannot_be_leased_is_delivered(autojump_clock: object) -> None:
    async with open_disk(MOUNTS["rename"]) as disk, open_broker(disk.storage) as broker:
        await broker.create_queue("q")

        async def fetch() -> None:
            with pytest.raises(StorageFull):
                await broker.fetch("q", wait=1000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await wait_all_tasks_blocked()
            disk.calls.fail("rename", errno.ENOSPC, times=1)
            await broker.publish("q", b"x")
        assert await take(broker) == b"x"


def test_the_oldest_is_first_whoever_was_told_first_and_wherever_it_stands() -> None:
    index, ids = QueueIndex("q", 0), MessageIds()
    back, one, two = (Entry("q", ids.new(), state) for state in (State.READY, State.NEW, State.NEW))
    offers = Offers(lambda index: 10, RecentBodies(), is_open=True)
    for entry in (two, one):
        offers.consider(index, entry, b"x", {})
        index.add(entry)
    index.add(back)
    assert offers.take(index) is None
    assert index.take() == back
    taken = [offers.take(index) for _ in range(3)]
    assert [offer and offer.entry for offer in taken] == [one, two, None]


def test_what_is_offered_takes_no_more_room_than_that() -> None:
    """Whoever wants a million messages, of any length, does not have them kept in memory while the worker is busy."""
    index, ids = QueueIndex("q", 0), MessageIds()
    offers = Offers(lambda index: 1_000_000, RecentBodies(), is_open=True)
    for size in [LARGEST_BODY] * (MOST_OFFERS + 1):
        entry = Entry("q", ids.new(), State.NEW)
        offers.consider(index, entry, bytes(size), {})
        index.add(entry)
    assert len(offers.leave(index)) == MOST_OFFERS
    long = Entry("r", ids.new(), State.NEW)
    other = QueueIndex("r", 0)
    offers.consider(other, long, bytes(LARGEST_BODY + 1), {})
    assert not offers.is_offered(other, long)


class SlowToRead(MemoryStorage):
    """A store in which somebody who reads has to wait."""

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.sleep(5)
        return await super().read(entries)


async def test_an_offer_keeps_its_place_while_the_worker_is_busy(autojump_clock: object) -> None:
    """What was published after it was delivered meanwhile, and handed out first. Found by seed 34 with batches that
    gather for longer."""
    async with open_broker(SlowToRead(), BrokerConfig(workers=1)) as broker, trio.open_nursery() as nursery:
        for queue in ("q", "other"):
            await broker.create_queue(queue)
        waiters = Waiters(broker, nursery)
        await waiters.add()
        await broker.publish("other", b"x")
        nursery.start_soon(broker.fetch, "other")
        await wait_all_tasks_blocked()
        await broker.publish("q", b"first")
        await trio.sleep(1)
        await broker.publish("q", b"second")
        await trio.sleep(20)
        assert await waiters.bodies() == [[b"first"]]
        assert await take(broker) == b"second"


async def test_whoever_wants_what_is_ready_gets_offers_delivered_first(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims take it without standing in line. The worker is busy here: it does not come to the offer."""
    monkeypatch.setattr(broker._waiters, "call", lambda index: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: broker.hold("q", wait=1000))
        await wait_all_tasks_blocked()
        await broker.publish("q", b"first")
        await broker.publish("q", b"second")
        seen = await broker.peek("q")
        assert [await each.message.body.read() for each in seen] == [b"first", b"second"]
        nursery.cancel_scope.cancel()
