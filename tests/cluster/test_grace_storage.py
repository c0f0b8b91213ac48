"""What stands between a master's broker and the cluster's store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, Published, open_broker
from mq.cluster import grace_storage
from mq.cluster.grace_storage import GRACE_SECONDS, GraceStorage
from mq.errors import NoSuchMessage, StorageFull
from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.interface import QUEUE, AnyOperation, Entry, Meta, Move, Outcome, Result, Unlink, Write
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record

IDS = MessageIds()


async def written(store: MemoryStorage, state: State, meta: Meta = Meta()) -> Entry:  # noqa: B008 - a tuple
    [outcome] = await store.commit([Write("q", IDS.new(), b"x")])
    assert outcome.entry is not None
    if state is not State.NEW:
        [outcome] = await store.commit([Move(outcome.entry, state, meta)])
        assert outcome.entry is not None
    return outcome.entry


class CountsListings(MemoryStorage):
    """Counts how often all removed messages are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        self.listed += state is State.REMOVED and queue is None
        return await super().scan(state, queue, limit)


class AnswersLate(MemoryStorage):
    """Commits at once, and answers when the event `answer` says so, if there is one."""

    answer: trio.Event | None = None

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        answer, outcomes = self.answer, await super().commit(operations)
        if answer is not None:
            await answer.wait()
        return outcomes


@pytest.fixture
async def store() -> MemoryStorage:
    store = MemoryStorage()
    await put_record(store, QUEUE, "q", {"created": 0})
    return store


async def test_what_was_leased_is_ready_at_once_and_what_was_delayed_is_not(store: MemoryStorage) -> None:
    await written(store, State.DELAYED, Meta(deadline_ms=10**13, receives=3, receipt="00" * 8))
    await written(store, State.DELAYED, Meta(deadline_ms=10**13))
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    [ready] = await kept.scan(State.READY, "q")
    assert ready.meta == Meta(receives=3)
    [delayed] = await kept.scan(State.DELAYED)
    assert delayed.meta.deadline_ms == 10**13


async def test_what_was_removed_is_known_for_a_while_over_masters_too(
    store: MemoryStorage, autojump_clock: MockClock
) -> None:
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    new = await written(store, State.NEW)
    [removed] = await kept.commit([Move(new, State.REMOVED)])
    assert removed.entry is not None
    assert await kept.commit([Unlink(removed.entry)]) == [Outcome(Result.DONE)]
    again = GraceStorage(store, pytest.fail)
    await again.open()
    for each in (kept, again):
        assert await each.knows(["q"], new.id)
        assert not await each.knows(["q"], IDS.new())
    with trio.move_on_after(GRACE_SECONDS + 5):
        await again.run()
    assert not await again.knows(["q"], MessageId(new.id))
    assert await store.scan(State.REMOVED) == []


async def test_knows_a_message_at_every_step_of_its_removal(store: MemoryStorage) -> None:
    """``knows`` is asked between each two steps of the task that removes the message."""
    for steps in range(12):
        kept = GraceStorage(store, pytest.fail)
        new = await written(store, State.NEW)
        answers: list[bool] = []

        async def ask(
            kept: GraceStorage = kept, new: Entry = new, steps: int = steps, answers: list[bool] = answers
        ) -> None:
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            answers.append(await kept.knows(["q"], new.id))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(kept.commit, [Move(new, State.REMOVED)])
        assert answers == [True], f"asked {steps} steps after the removal began"


async def test_take_over_lists_no_removed_message_and_unlinks_all_of_them_later(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grace_storage, "_LISTED_AT_ONCE", 7)
    store = CountsListings()
    await put_record(store, QUEUE, "q", {"created": 0})
    inherited = [await written(store, State.REMOVED) for _ in range(40)]
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    async with open_broker(kept, BrokerConfig()):
        assert store.listed == 0
    with trio.move_on_after(GRACE_SECONDS - 1):
        await kept.run()
    assert sorted(await store.scan(State.REMOVED)) == sorted(inherited)
    with trio.move_on_after(GRACE_SECONDS + 1):
        await kept.run()
    assert await store.scan(State.REMOVED) == []


async def test_removal_under_way_is_not_unlinked_as_if_it_were_inherited(autojump_clock: MockClock) -> None:
    store = AnswersLate()
    await put_record(store, QUEUE, "q", {"created": 0})
    await written(store, State.REMOVED)  # so that the next one is not the only one that is listed
    new = await written(store, State.NEW)
    kept = GraceStorage(store, pytest.fail)
    async with trio.open_nursery() as nursery:
        answer = store.answer = trio.Event()
        nursery.start_soon(kept.commit, [Move(new, State.REMOVED)])
        await wait_all_tasks_blocked()
        store.answer = None
        with trio.move_on_after(GRACE_SECONDS + 1):
            await kept.run()
        assert [entry.id for entry in await store.scan(State.REMOVED)] == [new.id]
        answer.set()


@pytest.mark.parametrize("verb", ["acknowledge", "reject", "take"])
async def test_message_stored_twice_does_not_fail_what_is_removed_with_it(
    verb: str, store: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    async with open_broker(kept, BrokerConfig()) as broker:
        twice, once = [published.id for published in await publish(broker, b"1", b"2")]
        unacked = [] if verb == "take" else await broker.hold("q", 2, wait=0)
        [twin] = await store.commit([Write("q", twice, b"1", state=State.NEW)])
        assert twin.entry is not None
        await store.commit([Move(twin.entry, State.REMOVED)])
        if verb == "take":
            taken = [await broker.take("q") for _ in range(2)]
            assert [message.id for message in taken if message is not None] == [once]
        else:
            await getattr(broker, verb)(unacked)
        assert f"message {twice} in queue q was stored twice" in caplog.text
        assert await broker.hold("q", 2, wait=0) == []


async def publish(broker: Broker, *bodies: bytes) -> list[Published]:
    published = await broker.publish_many("q", [Draft(body) for body in bodies])
    return [each for each in published if isinstance(each, Published)]


async def test_message_stored_twice_is_gone_for_who_removes_it(store: MemoryStorage) -> None:
    """It is removed already: to try again would be of no use."""
    kept = GraceStorage(store, pytest.fail)
    await kept.open()
    async with open_broker(kept, BrokerConfig()) as broker:
        await publish(broker, b"1")
        message = await broker.fetch("q")
        assert message is not None
        [twin] = await store.commit([Write("q", message.id, b"1", state=State.NEW)])
        assert twin.entry is not None
        await store.commit([Move(twin.entry, State.REMOVED)])
        with pytest.raises(NoSuchMessage, match="no longer in the queue"):
            await broker.remove("q", message.id, receipt=message.receipt)
        assert await broker.fetch("q") is None


@pytest.mark.parametrize("result", [Result.FENCED, Result.UNKNOWN, Result.FAILED])
async def test_what_leaves_the_store_unknown_is_told(
    result: Result, store: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons: list[str] = []
    kept = GraceStorage(store, reasons.append)
    await kept.open()

    async def commit(operations: list[object]) -> list[Outcome]:
        return [Outcome(result, reason="why")] * len(operations)

    monkeypatch.setattr(store, "commit", commit)
    await kept.commit([Write("q", IDS.new(), b"x")])
    assert reasons == ["why"]


class Unreachable(MemoryStorage):
    """Its servers answer only until `is_cut_off`."""

    is_cut_off = False

    async def check_reachable(self) -> None:
        if self.is_cut_off:
            await trio.sleep(3)  # as a client that waits for a server
            raise StorageFull("no answer")
        await super().check_reachable()


async def test_store_that_gives_no_sign_of_life_is_reported(autojump_clock: MockClock) -> None:
    reasons: list[str] = []
    store = Unreachable()
    kept = GraceStorage(store, reasons.append)
    with trio.move_on_after(100):
        await kept.watch(4)
    assert reasons == []
    store.is_cut_off = True
    began = trio.current_time()
    await kept.watch(4)
    assert reasons == ["the store has not responded for 4 seconds"]
    assert trio.current_time() - began == 4
