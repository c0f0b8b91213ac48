"""Who waits gets what is published with the barrier that makes it durable: one batch writes and leases it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, dispatch, open_broker
from mq.broker.unacked import UnackedMessage
from mq.errors import MQError, NoSuchQueue, StorageFull
from mq.lifecycle import Kind, State
from mq.message import Message, MessageIds
from mq.storage.interface import FRESH, AnyOperation, Description, Drop, Entry, Move, Outcome, Put, Result, Write
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import Legal, Opener, WallClock
from tests.broker.inside import catalog_of, wiring_of
from tests.broker.test_broker import take

SECONDS: Final = 0.25
"""How long a batch takes."""


class Slow(MemoryStorage):
    """A store that keeps what each batch does. One that changes messages takes a while.

    Args:
        places: whether it writes messages where they rest.
    """

    def __init__(self, *, places: bool = True) -> None:
        super().__init__()
        self._is_placing = places
        self.leased = ["write to DELAYED leased"] if places else ["write to NEW", "NEW to DELAYED"]
        self.batches: list[list[str]] = []
        self.refused: tuple[type, ...] = ()

    @property
    def description(self) -> Description:
        return super().description._replace(places=self._is_placing)

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        if all(isinstance(each, Put | Drop) for each in operations):  # records are kept at once
            return await super().commit(operations)
        self.batches.append([_called(operation) for operation in operations])
        await trio.sleep(SECONDS)
        done = iter(await super().commit([each for each in operations if not isinstance(each, self.refused)]))
        full = Outcome(Result.FULL, reason="no room")
        return [full if isinstance(each, self.refused) else next(done) for each in operations]


def _called(operation: AnyOperation) -> str:
    if isinstance(operation, Write):
        return f"write to {operation.state.name}" + (" leased" if operation.meta.receipt else "")
    return f"{operation.entry.state.name} to {operation.state.name}" if isinstance(operation, Move) else "unlink"


class InFlight:
    """A call of the broker, and when it was answered."""

    def __init__(self) -> None:
        self.answer: list[Message] | MQError | None = None
        self.answered = 0.0
        self.scope = trio.CancelScope()

    @property
    def ids(self) -> list[str]:
        """Of the messages that it got."""
        assert isinstance(self.answer, list)
        return [message.id for message in self.answer]

    async def fetch(self, broker: Broker, most: int = 1) -> None:
        """Wait for so many messages."""
        try:
            with self.scope:
                self.answer = await broker.fetch_many("q", most, wait=1000)
        except MQError as error:
            self.answer = error
        self.answered = trio.current_time()


IDS: Final = MessageIds()


@pytest.fixture(params=[True, False], ids=["placed", "moved"])
def store(request: pytest.FixtureRequest) -> Slow:
    return Slow(places=request.param)


@pytest.fixture
async def broker(store: Slow, observer: Legal, wall_clock: WallClock) -> AsyncIterator[Broker]:
    async with open_broker(store, BrokerConfig(workers=2), observers=[observer], clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        yield broker


async def waiting(broker: Broker, nursery: trio.Nursery, *most: int) -> list[InFlight]:
    asked = [InFlight() for _ in most]
    for each, count in zip(asked, most, strict=True):
        nursery.start_soon(each.fetch, broker, count)
        await wait_all_tasks_blocked()
    return asked


async def test_one_barrier_serves_both(broker: Broker, store: Slow, observer: Legal, nursery: trio.Nursery) -> None:
    [asked] = await waiting(broker, nursery, 1)
    id = await broker.publish("q", b"body", {"a": 1})
    published = trio.current_time()
    await wait_all_tasks_blocked()
    assert (asked.ids, asked.answered, published) == ([id], SECONDS, SECONDS)
    assert store.batches == [store.leased]
    assert [(seen.kind, seen.source, seen.target) for seen in observer.seen] == [
        (Kind.PUBLISH, None, State.NEW),
        (Kind.LEASE, State.NEW, State.DELAYED),
    ]
    assert isinstance(asked.answer, list)
    [message] = asked.answer
    assert (await message.body.read(), message.properties.attributes, message.receives) == (b"body", {"a": 1}, 1)
    await broker.remove("q", id, receipt=message.receipt)
    assert (await broker.status("q"))[2:6] == (0, 0, 0, None)


async def test_its_lease_ends(broker: Broker, nursery: trio.Nursery) -> None:
    [asked] = await waiting(broker, nursery, 1)
    await broker.change_settings("q", {"visibility": 5})
    await broker.publish("q", b"body")
    assert (await broker.status("q")).leased == 1
    await trio.sleep(6)
    assert await take(broker) == b"body"
    assert len(asked.ids) == 1


async def test_one_that_is_taken_is_gone(broker: Broker, store: Slow, nursery: trio.Nursery) -> None:
    got: list[Message | None] = []

    async def take_one() -> None:
        got.append(await broker.take("q", wait=1000))

    nursery.start_soon(take_one)
    await wait_all_tasks_blocked()
    id = await broker.publish("q", b"body")
    await trio.sleep(1)
    assert [message and message.id for message in got] == [id]
    assert store.batches == [["write to NEW", "NEW to REMOVED"], ["unlink"]]
    assert (await broker.status("q"))[2:6] == (0, 0, 0, None)


async def test_first_come_first_served(broker: Broker, store: Slow, nursery: trio.Nursery) -> None:
    """Who wants several gets what is written together."""
    one, several, last = await waiting(broker, nursery, 1, 3, 1)
    published = await broker.publish_many("q", [Draft(b"%d" % number) for number in range(3)])
    await wait_all_tasks_blocked()
    ids = [each.id for each in published if not isinstance(each, MQError)]
    assert (one.ids, several.ids, last.answer) == (ids[:1], ids[1:], None)
    assert store.batches == [sorted(store.leased * 3, reverse=True)]
    later = await broker.publish("q", b"3")
    await wait_all_tasks_blocked()
    assert last.ids == [later]


async def test_who_comes_while_it_is_written_gets_it_after_that(
    broker: Broker, store: Slow, nursery: trio.Nursery
) -> None:
    """And nothing that is published after it comes first."""
    nursery.start_soon(broker.publish, "q", b"first")
    await trio.sleep(SECONDS / 5)
    [asked] = await waiting(broker, nursery, 1)
    nursery.start_soon(broker.publish, "q", b"second")
    await trio.sleep(5)
    assert isinstance(asked.answer, list)
    assert [await message.body.read() for message in asked.answer] == [b"first"]
    assert store.batches[0] in (["write to READY"], ["write to NEW"])
    assert "READY to DELAYED" in [operation for batch in store.batches[1:] for operation in batch]
    assert await take(broker) == b"second"


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"x" * 100_000),
        Draft(b"x", delay=1.0),
        Draft(b"x", ttl=60.0),
        Draft(b"x", key="its own"),
        Draft(b"x", transient=True),
    ],
    ids=["large", "delayed", "expires", "has a key", "transient"],
)
async def test_what_is_not_dispatched_directly_comes_all_the_same(
    broker: Broker, store: Slow, nursery: trio.Nursery, draft: Draft
) -> None:
    [asked] = await waiting(broker, nursery, 1)
    [published] = await broker.publish_many("q", [draft])
    await trio.sleep(5)
    assert not isinstance(published, MQError)
    assert asked.ids == [published.id]
    assert store.leased not in store.batches


async def test_what_stands_behind_others_is_not_dispatched_directly(
    broker: Broker, store: Slow, nursery: trio.Nursery
) -> None:
    await broker.change_settings("q", {"max_priority": 1})
    [asked] = await waiting(broker, nursery, 1)
    [published] = await broker.publish_many("q", [Draft(b"x", priority=0)])
    await trio.sleep(5)
    assert not isinstance(published, MQError)
    assert asked.ids == [published.id]
    assert store.leased not in store.batches


async def test_a_paused_queue_hands_nothing_over(broker: Broker, store: Slow, nursery: trio.Nursery) -> None:
    await broker.change_settings("q", {"paused": True})
    [asked] = await waiting(broker, nursery, 1)
    await broker.publish("q", b"x")
    await trio.sleep(1)
    assert asked.answer is None
    await broker.change_settings("q", {"paused": False})
    await trio.sleep(1)
    assert len(asked.ids) == 1


@pytest.mark.parametrize("store", [False], ids=["moved"], indirect=True)
async def test_no_more_are_under_way_than_recovery_looks_at(
    broker: Broker, store: Slow, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a message is placed, there is nothing to look for: one operation writes and leases it, or does neither."""
    monkeypatch.setattr(dispatch, "MOST_MOVED_ON", 2)
    asked = await waiting(broker, nursery, 1, 1, 1, 1)
    nursery.start_soon(broker.publish_many, "q", [Draft(b"x")] * 3)
    await trio.sleep(SECONDS / 5)
    assert store.batches == [["write to NEW"] * 3 + ["NEW to DELAYED"] * 2]
    await trio.sleep(5)
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert store.batches[-1] == store.leased
    assert [len(each.ids) for each in asked] == [1] * 4


async def test_whose_message_was_not_written_waits_on_as_the_first(
    broker: Broker, store: Slow, nursery: trio.Nursery
) -> None:
    first, second = await waiting(broker, nursery, 1, 1)
    store.refused = (Write,)
    with pytest.raises(StorageFull):
        await broker.publish("q", b"x")
    store.refused = ()
    await wait_all_tasks_blocked()
    id = await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert (first.ids, second.answer) == ([id], None)


@pytest.mark.parametrize("store", [False], ids=["moved"], indirect=True)
async def test_what_cannot_be_leased_is_delivered(broker: Broker, store: Slow, nursery: trio.Nursery) -> None:
    """Where the message is placed, it is written and leased by one operation, or not at all."""
    first, second = await waiting(broker, nursery, 1, 1)
    store.refused = (Move,)
    await broker.publish("q", b"x")
    await wait_all_tasks_blocked()
    assert isinstance(first.answer, StorageFull)
    store.refused = ()
    await trio.sleep(60)
    assert len(second.ids) == 1


async def test_who_has_gone_meanwhile_gets_nothing(broker: Broker, nursery: trio.Nursery) -> None:
    """The message is READY again at once, and was not received."""
    gone, stays = await waiting(broker, nursery, 1, 1)
    nursery.start_soon(broker.publish, "q", b"x")
    await trio.sleep(SECONDS / 2)
    gone.scope.cancel()
    await trio.sleep(3)
    assert gone.answer is None
    assert isinstance(stays.answer, list)
    assert [message.receives for message in stays.answer] == [1]


async def test_of_a_queue_that_is_deleted_meanwhile_nobody_gets_anything(
    broker: Broker, store: Slow, nursery: trio.Nursery
) -> None:
    [asked] = await waiting(broker, nursery, 1)
    failures = []

    async def publish() -> None:
        with pytest.raises(NoSuchQueue) as caught:
            await broker.publish("q", b"x")
        failures.append(caught.value)

    nursery.start_soon(publish)
    await trio.sleep(SECONDS / 2)
    await broker.delete_queue("q")
    await broker.create_queue("q")
    await trio.sleep(5)
    assert (len(failures), isinstance(asked.answer, NoSuchQueue)) == (1, True)
    assert [await store.scan(state) for state in (State.NEW, State.DELAYED, State.REMOVED)] == [[]] * 3
    assert await take(broker) is None


async def test_a_full_queue_counts_what_is_dispatched_directly_once(broker: Broker, nursery: trio.Nursery) -> None:
    await broker.change_settings("q", {"max_messages": 2})
    await waiting(broker, nursery, 1)
    async with trio.open_nursery() as both:
        both.start_soon(broker.publish, "q", b"x")
        both.start_soon(broker.publish, "q", b"y")
    assert (await broker.status("q"))[2:5] == (1, 1, 0)


def new_entry(state: State) -> Entry:
    return Entry("q", IDS.new(), state)


@pytest.mark.parametrize("there", ["nothing", "ready", "new", "delivering", "writing", "held back"])
async def test_only_what_comes_first_is_dispatched(broker: Broker, nursery: trio.Nursery, there: str) -> None:
    """What comes before it may be on its way to the same who waits."""
    index, rooms = catalog_of(broker).queues["q"], wiring_of(broker)
    await waiting(broker, nursery, 1)
    if there == "ready":
        index.add(new_entry(State.READY))
    elif there == "new":
        index.add(new_entry(State.NEW))
    elif there == "delivering":
        index.deliver(new_entry(State.NEW))
    elif there == "writing":
        index.writing += 1
    elif there == "held back":
        index.add(new_entry(State.DELAYED))
    is_first = rooms.publishing.direct.takes(index, IDS.new(), b"x", {}, FRESH, is_transient=False)
    assert is_first == (there in {"nothing", "held back"})
    nursery.cancel_scope.cancel()


async def test_who_holds_messages_gets_what_is_written(broker: Broker, store: Slow, nursery: trio.Nursery) -> None:
    held: list[UnackedMessage] = []

    async def hold() -> None:
        held.extend(await broker.hold("q", wait=1000))

    nursery.start_soon(hold)
    await wait_all_tasks_blocked()
    id = await broker.publish("q", b"x")
    await trio.sleep(5)
    assert [each.entry.id for each in held] == [id]
    assert store.batches in ([["write to READY"]], [["write to NEW"], ["NEW to READY"]])
    await broker.acknowledge(held)


async def test_among_peers_nothing_is_dispatched(
    disk_address: str, opened: Opener, observer: Legal, nursery: trio.Nursery
) -> None:
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        [asked] = await waiting(broker, nursery, 1)
        id = await broker.publish("q", b"x")
        await trio.sleep(5)
        assert asked.ids == [id]
        assert [seen.kind for seen in observer.seen if seen.id == id] == [Kind.PUBLISH, Kind.DELIVER, Kind.LEASE]
