"""A message is written where it rests, by one operation: READY, or DELAYED. Who waits has it as soon as any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, open_broker
from mq.errors import NoSuchQueue, StorageFull
from mq.lifecycle import Kind, State
from mq.message import Message
from mq.storage.files.mount import Mount
from mq.storage.interface import Drop, Entry, Operation, Outcome, Put, Stored, Write
from mq.storage.layered import LayeredStorage
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Legal, Opener
from tests.broker.test_broker import take
from tests.storage.disks import Disk


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


class Noting(MemoryStorage):
    """A store that keeps what each batch does to messages."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[list[Operation]] = []

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        if not all(isinstance(each, Put | Drop) for each in operations):
            self.batches.append(list(operations))
        return await super().commit(operations)


@pytest.mark.parametrize("delay", [0.0, 10.0])
async def test_a_publish_is_one_operation(autojump_clock: object, observer: Legal, delay: float) -> None:
    store, rests = Noting(), State.DELAYED if delay else State.READY
    async with open_broker(store, observers=[observer]) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x", delay=delay)
        await wait_all_tasks_blocked()
        [[written]] = store.batches
        assert isinstance(written, Write)
        assert written.state is rests
        assert [(seen.kind, seen.source, seen.target) for seen in observer.seen] == [(Kind.PUBLISH, None, rests)]
        assert await take(broker) == (None if delay else b"x")
        await trio.sleep(delay)
        if delay:
            assert await take(broker) == b"x"
        assert (await broker.show("q", id)).message.receives == 1


async def test_to_the_letter_it_comes_by_way_of_new(autojump_clock: object, observer: Legal) -> None:
    store = Noting()
    async with open_broker(store, BrokerConfig(strict=True), observers=[observer]) as broker:
        await broker.create_queue("q")
        id = await broker.publish("q", b"x")
        await wait_all_tasks_blocked()
        assert kinds(observer, id) == [(Kind.PUBLISH, None), (Kind.DELIVER, State.NEW)]
        assert len(store.batches) == 2


async def test_what_was_confirmed_ranks_from_its_confirm(broker: Broker) -> None:
    """Also where a later one of a higher priority is confirmed before anything else has run."""
    await broker.change_settings("q", {"max_priority": 5})
    for _ in range(25):
        await broker.publish_many("q", [Draft(b"low")])
        await broker.publish_many("q", [Draft(b"high", priority=5)])
        assert [await take(broker) for _ in range(2)] == [b"high", b"low"]


async def test_of_a_queue_that_goes_meanwhile_nothing_stays(disk_address: str, opened: Opener) -> None:
    """Whichever of the two comes first to the disk; and nothing of it is in a queue that is made anew."""
    async with opened(disk_address) as broker:
        for number in range(8):
            await broker.create_queue("q")
            answers: list[str] = []

            async def publish(answers: list[str] = answers) -> None:
                try:
                    answers.append(await broker.publish("q", b"x"))
                except NoSuchQueue:
                    answers.append("no queue")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish)
                for _ in range(number):
                    await trio.lowlevel.checkpoint()
                await broker.delete_queue("q")
            assert len(answers) == 1
            await broker.create_queue("q")
            assert await take(broker) is None
            await broker.delete_queue("q")


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
async def test_what_has_to_wait_or_to_expire_is_not_dispatched_directly(
    broker: Broker, observer: Legal, nursery: trio.Nursery, option: str
) -> None:
    waiters = Waiters(broker, nursery)
    await waiters.add()
    id = await broker.publish("q", b"x", **{option: 10.0})  # type: ignore[arg-type]
    await trio.sleep(11 if option == "delay" else 0)
    assert await waiters.bodies() == [[b"x"]]
    assert (Kind.LEASE, State.NEW) not in kinds(observer, id)


async def test_one_that_is_held_at_once_is_put_back(broker: Broker, nursery: trio.Nursery) -> None:
    got = []

    async def hold() -> None:
        got.extend(await broker.hold("q", wait=1000))

    nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert [held.entry.state for held in got] == [State.READY]
    status = await broker.status("q")
    assert (status.ready, status.leased) == (0, 1)
    await broker.put_back(got)
    assert await take(broker) == b"x"


async def test_one_that_is_held_at_once_is_there_after_a_restart(disk_address: str, opened: Opener) -> None:
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


class SlowToRead(MemoryStorage):
    """A store in which somebody who reads has to wait."""

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        await trio.sleep(5)
        return await super().read(entries)


async def test_a_message_keeps_its_place_while_the_worker_is_busy(autojump_clock: object) -> None:
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


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("delay", [0.0, 10.0])
async def test_a_transient_message_rests_in_memory_at_once(
    autojump_clock: object, observer: Legal, *, log: bool, delay: float
) -> None:
    async with layered(log=log) as store, open_broker(store, observers=[observer]) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"x", delay=delay, transient=True)])
        await wait_all_tasks_blocked()
        [published] = observer.seen
        assert (published.kind, published.target) == (Kind.PUBLISH, State.DELAYED if delay else State.READY)
        await trio.sleep(delay)
        assert await take(broker) == b"x"


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("most", [1, 3])
async def test_a_transient_message_does_not_overtake_one_that_is_moved_to_its_place(
    nursery: trio.Nursery, *, log: bool, most: int
) -> None:
    async with layered(log=log) as store, open_broker(store) as broker:
        await broker.create_queue("q")
        bodies = [b"%d" % number for number in range(12)]
        drafts = [Draft(body, ttl=1000, transient=number % 2 > 0) for number, body in enumerate(bodies)]
        waiters = Waiters(broker, nursery)
        for _ in range(0, len(drafts), most):
            await waiters.add(most)
        for some in (drafts[:5], drafts[5:]):
            await broker.publish_many("q", some)
        while len(got := [body for each in await waiters.bodies() for body in each]) < len(bodies):
            for _ in range(most):
                await waiters.add(most)
        assert got == bodies


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("delay", [0.0, 10.0])
async def test_a_transient_queue_takes_a_message_that_is_too_large_for_memory(
    autojump_clock: object, *, log: bool, delay: float
) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"large"

    async with layered(log=log) as store, open_broker(store) as broker:
        await broker.create_queue("q", "memory")
        await broker.publish_many("q", [Draft(await broker.stage(chunks()), delay=delay)])
        await trio.sleep(delay)
        await wait_all_tasks_blocked()
        assert await take(broker) == b"large"


@pytest.mark.parametrize("log", [True, False])
async def test_a_transient_queue_refuses_a_message_that_memory_never_takes(*, log: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield bytes(MEMORY_BYTES + 1)

    async with layered(log=log) as store, open_broker(store) as broker:
        await broker.create_queue("q", "memory")
        [refused] = await broker.publish_many("q", [Draft(await broker.stage(chunks()))])
        assert isinstance(refused, StorageFull)
        assert await take(broker) is None


@pytest.mark.parametrize("log", [True, False])
@pytest.mark.parametrize("place", ["memory", None])
async def test_a_short_transient_message_does_not_overtake_a_long_one(*, log: bool, place: str | None) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"long"

    async with layered(log=log) as store, open_broker(store) as broker:
        await broker.create_queue("q", place)
        long = Draft(await broker.stage(chunks()), transient=True, key="k" if place else None)
        published = await broker.publish_many("q", [long])
        await broker.publish_many("q", [Draft(b"short", transient=True)])
        assert not isinstance(published[0], Exception)
        assert [await take(broker), await take(broker)] == [b"long", b"short"]


MEMORY_BYTES = 1 << 20


@asynccontextmanager
async def layered(*, log: bool) -> AsyncIterator[LayeredStorage]:
    """A store of which what must last is on a disk, with a log or without one."""
    mount = Mount("disk", atomic_rename=True, ordered=True, syncfs=True, logged=log)
    store = LayeredStorage(Disk(mount, syncfs=log, log=log).another(), MEMORY_BYTES)
    await store.open()
    yield store
    await store.aclose()
