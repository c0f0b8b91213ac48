"""A message and its key, when the store does not answer for them: stored once, whatever had become of them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.errors import NoSuchQueue, StorageError, StorageFull, StorageUnsure
from mq.lifecycle import State
from mq.storage.interface import AnyOperation, Description, Entry, Group, Outcome, Result, Write
from mq.storage.memory import MemoryStorage
from tests.broker.conftest import WallClock
from tests.broker.inside import catalog_of, wiring_of

LANDED, LOST, UNDONE, FULL, TORN = "landed", "lost", "undone", "full", "torn"
UNSURE: Final = (LANDED, LOST, UNDONE)
"""What becomes of a group whose answer is lost: it is done; it is not; it is, until anything else is changed."""


class Doubtful(MemoryStorage):
    """Does as `fates` says with one batch after the other that writes messages; well with those that come later.

    Args:
        does_groups: whether it does; else a key is noted before its message.
    """

    def __init__(self, *, does_groups: bool) -> None:
        super().__init__()
        self.does_groups = does_groups
        self.fates: list[str] = []
        self.tries: list[list[str]] = []
        self._before: tuple[Any, Any] | None = None

    @property
    def description(self) -> Description:
        return super().description if self.does_groups else super().description._replace(groups=0)

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        self._settle()
        parts = [part for each in operations for part in (each.operations if isinstance(each, Group) else (each,))]
        tried: list[str] = [each.id for each in parts if isinstance(each, Write)]
        self.tries += [tried] if tried else []
        fate = self.fates.pop(0) if tried and self.fates else ""
        if fate == UNDONE:
            self._before = copy.deepcopy((self._places, self._records))
        if fate not in (LOST, FULL):
            outcomes = await super().commit(operations)  # type: ignore[arg-type]
        if fate == TORN:
            [write] = [each for each in operations if isinstance(each, Write)]
            place = self._places[write.state, write.queue]
            place[write.id] = place[write.id]._replace(data=b"")
        if not fate:
            return outcomes
        result = Result.FULL if fate == FULL else Result.UNKNOWN
        return [Outcome(result, reason="no answer")] * len(operations)

    def end(self, *, is_undone: bool) -> None:
        """Nothing of this process lands, or is undone, any more."""
        if is_undone:
            self._settle()
        self._before = None

    def _settle(self) -> None:
        if self._before is not None:
            (self._places, self._records), self._before = self._before, None

    async def bodies(self, queue: str = "q") -> list[bytes]:
        """Of all messages of a queue, wherever they are."""
        found: list[Entry] = []
        for state in (State.NEW, State.READY, State.DELAYED):
            found += await self.scan(state, queue)
        stored = await self.read(found)
        return [await each.body.read() for each in stored if each is not None]

    async def marks(self) -> list[int]:
        """Of all keys that are kept: 0 for an unsure one."""
        return [kept[2] for record in (await self.records("key")).values() for kept in record["entries"].values()]


@pytest.fixture(params=["one group", "two barriers"])
async def store(wall_clock: WallClock, request: pytest.FixtureRequest) -> Doubtful:
    store = Doubtful(does_groups=request.param == "one group")
    async with open_broker(store) as broker:
        await broker.create_queue("q")
    return store


@pytest.mark.parametrize("fate", UNSURE)
async def test_asked_again_it_is_the_same_message(store: Doubtful, fate: str) -> None:
    async with open_broker(store) as broker:
        store.fates = [fate]
        with pytest.raises(StorageUnsure, match="same idempotency key"):
            await broker.publish("q", b"first", key="k")
        again = await broker.publish("q", b"again", key="k")
        assert await broker.publish("q", b"and again", key="k") == again
        is_written_anew = fate == LANDED and not store.does_groups
        assert store.tries == [[again]] * (3 if is_written_anew else 2)
        assert await store.bodies() == [b"first"]
        message = await broker.fetch("q")
        assert message is not None
        assert message.id == again
    async with open_broker(store) as broker:
        assert await broker.publish("q", b"later", key="k") == again
        assert await store.bodies() == [b"first"]


@pytest.mark.parametrize("fate", UNSURE)
async def test_nothing_that_is_not_known_is_promised(store: Doubtful, fate: str) -> None:
    """However often it is asked, and though the store is full meanwhile, which says nothing of the first time."""
    async with open_broker(store) as broker:
        store.fates = [fate, FULL, fate, FULL, FULL]
        for _ in range(5):
            with pytest.raises(StorageUnsure):
                await broker.publish("q", b"x", key="k")
        assert (await broker.status("q")).ready == 0
        await broker.publish("q", b"x", key="k")
        assert (await broker.status("q")).ready == 1
        assert await store.bodies() == [b"x"]


@pytest.mark.parametrize("fate", UNSURE)
async def test_it_is_found_out_without_being_asked(store: Doubtful, fate: str) -> None:
    async with open_broker(store) as broker:
        store.fates = [fate, FULL, FULL]
        with pytest.raises(StorageUnsure):
            await broker.publish("q", b"x", key="k", delay=0.5)
        await trio.sleep(2.9)
        assert await broker.fetch("q") is None
        message = await broker.fetch("q", wait=2)
        assert message is not None
        await message.body.aclose()


async def test_many_are_found_out_as_soon_as_the_store_answers(store: Doubtful) -> None:
    async with open_broker(store) as broker:
        store.fates = [LANDED, LOST] * 30
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(_ask, broker, f"{number}", {}, 1, number / 100)
        store.fates = []
        began = trio.current_time()
        while (await broker.status("q")).ready < 40:
            await trio.sleep(0.1)
        assert trio.current_time() - began < 2
        assert Counter(await store.bodies()) == {f"{number}".encode(): 1 for number in range(40)}


async def test_half_of_a_message_is_not_taken_for_it(wall_clock: WallClock) -> None:
    """Where it is no group, a write that is cut off may leave a part of it, or what is not on the medium."""
    store = Doubtful(does_groups=False)
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        store.fates = [TORN]
        with pytest.raises(StorageUnsure):
            await broker.publish("q", b"whole", key="k")
        id = await broker.publish("q", b"whole", key="k")
        assert await store.bodies() == [b"whole"]
        assert await store.scan(State.REMOVED) == []
        message = await broker.fetch("q")
        assert message is not None
        assert (message.id, await message.body.read()) == (id, b"whole")
        await message.body.aclose()


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("fate", UNSURE)
async def test_the_process_ends_meanwhile(store: Doubtful, fate: str, is_written: bool) -> None:
    """What the next one finds: both, or neither; or, once the ledger was written for another key, a key that is unsure,
    with its message or without it."""
    async with open_broker(store) as broker:
        await broker.change_settings("q", {"unique": True})
        await broker.publish("q", b"other")
        store.fates = [fate] + [FULL] * 10
        with pytest.raises(StorageUnsure):
            await broker.publish("q", b"x", key="k")
        if is_written:
            await broker.publish("q", b"other", key="other")
            assert sorted(await store.marks()) == [0, 1]
    store.fates = []
    store.end(is_undone=True)
    was_there = b"x" in await store.bodies()
    assert was_there is (fate == LANDED)
    async with open_broker(store) as broker:
        [outcome] = await broker.publish_many("q", [Draft(b"x", key="k")])
        assert isinstance(outcome, Published)
        assert outcome.is_new is not was_there
        assert sorted(await store.bodies()) == [b"other", b"x"]


@pytest.mark.parametrize("fate", UNSURE)
async def test_its_queue_is_deleted_meanwhile(store: Doubtful, fate: str) -> None:
    async with open_broker(store) as broker:
        await broker.create_queue("gone")
        store.fates = [fate] * 2  # each may have a batch of its own
        errors: list[type[Exception]] = []

        async def publish(queue: str) -> None:
            try:
                await broker.publish(queue, b"x", key="k", delay=1000 if queue == "gone" else None)
            except StorageError as error:
                errors.append(type(error))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish, "gone")
            nursery.start_soon(publish, "q")
        assert errors == [StorageUnsure] * 2
        await broker.delete_queue("gone")
        with pytest.raises(NoSuchQueue):
            await broker.publish("gone", b"x", key="k")
        await trio.sleep(5)
        assert (await broker.status("q")).ready == 1
        await broker.create_queue("gone")
        assert await store.bodies("gone") == []
        await broker.publish("gone", b"x", key="k")
        assert await store.bodies("gone") == [b"x"]


async def test_a_new_message_does_not_wait_for_those_in_doubt(store: Doubtful) -> None:
    async with open_broker(store) as broker:
        for key, fate in (("first", LANDED), ("second", LOST)):
            store.fates = [fate]
            with pytest.raises(StorageUnsure):
                await broker.publish("q", b"x", key=key)
        store.fates = [FULL] * 4  # the others are tried, too
        with pytest.raises(StorageFull, match="no answer"):
            await broker.publish("q", b"y", key="third")
        store.fates = []
        began = trio.current_time()
        await broker.publish("q", b"y", key="fourth")
        assert trio.current_time() - began < 1
        await trio.sleep(2)  # the others may stand behind it
        assert sorted(await store.bodies()) == [b"x", b"x", b"y"]
        assert (await broker.status("q")).ready == 3


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("seed", range(40))
async def test_many_clients_over_several_lives(store: Doubtful, seed: int) -> None:
    """Each asks until it is answered, whatever becomes of the store's answers and of the process: then each message is
    there once, and what was answered is there."""
    random = Random(seed)
    answered: dict[str, str] = {}
    for life in range(4):
        async with open_broker(store) as broker, trio.open_nursery() as nursery:
            store.fates = random.choices(["", FULL, *UNSURE], k=12)
            for number in range(12):
                nursery.start_soon(_ask, broker, f"{number}", answered, random.randrange(1, 5), random.uniform(0, 3))
            nursery.start_soon(_write_ledger, broker, f"{life}", random.uniform(0, 3))
        store.end(is_undone=random.random() < 0.5)
    async with open_broker(store) as broker:
        store.fates = []
        for number in range(12):
            await _ask(broker, f"{number}", answered, 1, 0)
        await wait_all_tasks_blocked()
        counts = Counter(await store.bodies())
        assert {key.decode(): count for key, count in counts.items() if key != b"known"} == dict.fromkeys(answered, 1)
        assert len(answered) == 12
        assert (await broker.status("q")).ready == sum(counts.values())


async def _ask(broker: Broker, key: str, answered: dict[str, str], times: int, after: float) -> None:
    await trio.sleep(after)
    for _ in range(times):
        try:
            id = await broker.publish("q", key.encode(), key=key)
        except StorageError:
            continue
        assert answered.setdefault(key, id) == id


async def _write_ledger(broker: Broker, key: str, after: float) -> None:
    """Have the ledger written without a group."""
    await trio.sleep(after)
    keys = wiring_of(broker)._keys
    assert keys is not None
    index = catalog_of(broker).queues["q"]
    await keys.note_known(index, {f"known {key}": wiring_of(broker).core.ids.new()})
