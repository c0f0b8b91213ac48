"""The real broker beside the model of :mod:`tests.broker.model`, over lives that nobody thought of, on virtual time.

A run is a list of steps, done in one Trio run of its own; after each of them broker, store and model have to agree.
Hypothesis makes the lists, the same ones each time; ``--examples=20000`` asks for others, and more of them.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mq.broker import Broker, BrokerConfig, open_broker
from mq.errors import NoSuchMessage, NoSuchQueue
from mq.lifecycle import State
from mq.message import Message, MessageId
from mq.storage.conformance import check_whole
from mq.storage.interface import QUEUE, Storage
from mq.storage.registry import open_storage
from tests.broker.conftest import START_NS, Legal, run_on_virtual_time
from tests.broker.model import LEASE_SECONDS, Known, Model

EXAMPLES: Final = {"memory": 50, "fake": 15}
STEPS: Final = 30
YEAR_SECONDS: Final = 365 * 86_400
CONFIGS: Final = {
    "default": BrokerConfig(visibility_seconds=LEASE_SECONDS),
    "strict": BrokerConfig(visibility_seconds=LEASE_SECONDS, strict=True),
}
_places = itertools.count()


@dataclass
class Life:
    """One life of a broker, and what is known over all of them."""

    storage: Storage
    broker: Broker
    model: Model
    published: dict[str, list[MessageId]] = field(default_factory=dict)

    def any_of(self, queue: str, turn: int) -> MessageId | None:
        """Some message that is or was in the queue; small turns stand for leased ones."""
        leased = sorted(self.model.leased(queue)) if queue in self.model.queues else []
        ids = [*leased, *self.published.get(queue, [])]
        return ids[turn % len(ids)] if ids else None


@dataclass(frozen=True)
class Create:
    queue: str

    async def do(self, life: Life) -> None:
        assert await life.broker.create_queue(self.queue) is (self.queue not in life.model.queues)
        life.model.queues.setdefault(self.queue, {})


@dataclass(frozen=True)
class Delete:
    queue: str

    async def do(self, life: Life) -> None:
        if self.queue in life.model.queues:
            await life.broker.delete_queue(self.queue)
            del life.model.queues[self.queue]
        else:
            await refused(NoSuchQueue, life.broker.delete_queue, self.queue)


@dataclass(frozen=True)
class Publish:
    """Publish some messages at the same time."""

    queue: str
    bodies: tuple[bytes, ...]
    attributes: tuple[tuple[str, Any], ...]
    is_staged: bool

    async def do(self, life: Life) -> None:
        if self.queue not in life.model.queues:
            await refused(NoSuchQueue, life.broker.publish, self.queue, b"")
            return
        before = [id.key for messages in life.model.queues.values() for id in messages]
        async with trio.open_nursery() as nursery:
            for body in self.bodies:
                nursery.start_soon(self._publish, life, body)
        made = life.published[self.queue][-len(self.bodies) :]
        assert min(id.key for id in made) > max(before, default=0)
        life.published[self.queue].sort(key=lambda id: id.key)

    async def _publish(self, life: Life, body: bytes) -> None:
        given = await life.broker.stage(halves(body)) if self.is_staged else body
        id = await life.broker.publish(self.queue, given, dict(self.attributes))
        life.model.queues[self.queue][id] = Known(body, dict(self.attributes))
        life.published.setdefault(self.queue, []).append(id)


@dataclass(frozen=True)
class Fetch:
    """Several fetch at the same time: together they get the first messages, one alone gets the first."""

    queue: str
    count: int

    async def do(self, life: Life) -> None:
        if self.queue not in life.model.queues:
            await refused(NoSuchQueue, life.broker.fetch, self.queue)
            return
        expected = life.model.ready(self.queue)[: self.count]
        fetched: list[Message] = []
        async with trio.open_nursery() as nursery:
            for _ in range(self.count):
                nursery.start_soon(self._fetch, life, fetched)
        assert sorted(message.id for message in fetched) == sorted(expected)

    async def _fetch(self, life: Life, fetched: list[Message]) -> None:
        message = await life.broker.fetch(self.queue)
        if message is not None:
            fetched.append(message)
            known = life.model.lease(self.queue, message.id)
            assert (await message.body.read(), message.properties.attributes) == (known.body, known.attributes)
            assert (message.receives, message.properties.size) == (known.receives, len(known.body))
            await message.body.aclose()


@dataclass(frozen=True)
class Remove:
    queue: str
    turn: int

    async def do(self, life: Life) -> None:
        id = life.any_of(self.queue, self.turn)
        if id is None or self.queue not in life.model.queues:
            return
        if life.model.queues[self.queue].pop(id, None) is None:
            await refused(NoSuchMessage, life.broker.remove, self.queue, id)
        else:
            await life.broker.remove(self.queue, id)


@dataclass(frozen=True)
class Requeue:
    queue: str
    turn: int

    async def do(self, life: Life) -> None:
        id = life.any_of(self.queue, self.turn)
        if id is None or self.queue not in life.model.queues:
            return
        if id in life.model.leased(self.queue):
            await life.broker.requeue(self.queue, id)
            life.model.queues[self.queue][id].due = life.model.now
        else:
            await refused(NoSuchMessage, life.broker.requeue, self.queue, id)


@dataclass(frozen=True)
class Wait:
    halves: int

    async def do(self, life: Life) -> None:
        await trio.sleep(self.halves / 2)
        life.model.now += self.halves / 2


@dataclass(frozen=True)
class WaitForLease:
    """Until just before the next lease ends, or just after."""

    is_over: bool

    async def do(self, life: Life) -> None:
        model = life.model
        ends = [known.due for messages in model.queues.values() for known in messages.values() if known.due > model.now]
        if ends:
            until = min(ends) + (0.25 if self.is_over else -0.25)
            await trio.sleep(until - model.now)
            model.now = until


@dataclass(frozen=True)
class SetClock:
    ahead: int

    async def do(self, life: Life) -> None:
        life.model.ahead = self.ahead


@dataclass(frozen=True)
class Restart:
    """Another life, in which the clock shows something else: it was set while nobody ran, by years."""

    ahead: int


Step = Create | Delete | Publish | Fetch | Remove | Requeue | Wait | WaitForLease | SetClock | Restart

queues: Final = st.sampled_from(["a", "a", "b"])
turns: Final = st.integers(0, 5)
create: Final = st.builds(Create, queues)
publish: Final = st.builds(
    Publish,
    queues,
    st.lists(st.binary(max_size=20), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(), (("content_type", "text/plain"),), (("long", "x" * 900), ("n", 1))]),
    st.booleans(),
)
fetch: Final = st.builds(Fetch, queues, st.sampled_from([1, 1, 3]))
remove: Final = st.builds(Remove, queues, turns)
requeue: Final = st.builds(Requeue, queues, turns)
wait: Final = st.builds(Wait, st.sampled_from([1, 20, 100, 100_000]))
wait_for_lease: Final = st.builds(WaitForLease, st.booleans())
set_clock: Final = st.builds(SetClock, st.sampled_from([0, -3600, 3600, -YEAR_SECONDS]))
restart: Final = st.builds(Restart, st.sampled_from([0, -53 * YEAR_SECONDS, -2 * YEAR_SECONDS, 3 * YEAR_SECONDS]))
delete: Final = st.builds(Delete, st.sampled_from(["a", "b", "b", "b"]))
steps: Final = st.sampled_from(
    [
        *(create, publish, publish, publish, fetch, fetch, fetch, fetch, remove, requeue, requeue),
        *(wait, wait_for_lease, wait_for_lease, set_clock, restart, restart, delete),
    ]
).flatmap(lambda step: step)
"""What happens often stands there often."""
BEGIN: Final = (Create("a"), Publish("a", (b"0", b"1", b"2"), (), False))
"""Most lists would find no queue."""


async def refused(error: type[Exception], verb: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(error):
        await verb(*arguments)


async def halves(body: bytes) -> AsyncIterator[bytes]:
    yield body[: len(body) // 2]
    yield body[len(body) // 2 :]


async def agree(life: Life) -> None:
    """Everything in the store is what the model says, where the model says it."""
    await trio.testing.wait_all_tasks_blocked()
    model, store = life.model, life.storage
    assert set(await store.records(QUEUE)) == set(model.queues)
    for queue in ("a", "b"):
        assert await life.broker.has_queue(queue) is (queue in model.queues)
    for queue in model.queues:
        assert {entry.id for entry in await store.scan(State.READY, queue)} == set(model.ready(queue))
        for state in (State.NEW, State.REMOVED):
            assert await store.scan(state, queue) == []
    delayed = {(entry.queue, entry.id): entry.meta.receives for entry in await store.scan(State.DELAYED)}
    assert delayed == {
        (queue, id): model.queues[queue][id].receives for queue in model.queues for id in model.leased(queue)
    }


@asynccontextmanager
async def opened(storage: Storage, model: Model, config: BrokerConfig) -> AsyncIterator[Broker]:
    """A broker, whose wall clock is the model's; afterwards the store is looked over."""

    def clock_ns() -> int:
        return START_NS + round((trio.current_time() + model.ahead) * 1e9)

    async with open_broker(storage, config, observers=[Legal()], clock_ns=clock_ns) as broker:
        yield broker
    await check_whole(storage)


async def live(kind: str, config: BrokerConfig, lives: list[tuple[Restart, list[Step]]]) -> None:
    """Do the steps of each life, with a restart in between. What is in memory lives on in its store."""
    model, published = Model(), {}
    if kind == "memory":
        async with open_storage("memory:") as storage:
            for start, life in lives:
                await live_once(storage, config, model, published, start, life)
        return
    address = f"fake:/model-{next(_places)}"
    for start, life in lives:
        async with open_storage(address) as storage:
            await live_once(storage, config, model, published, start, life)


async def live_once(
    storage: Storage,
    config: BrokerConfig,
    model: Model,
    published: dict[str, list[MessageId]],
    start: Restart,
    steps: list[Step],
) -> None:
    model.ahead = start.ahead
    model.restart()
    async with opened(storage, model, config) as broker:
        life = Life(storage, broker, model, published)
        await agree(life)
        for step in steps:
            assert not isinstance(step, Restart)
            await step.do(life)
            await agree(life)
        model.believed = (broker.clock.wall_ns() - START_NS) / 1e9 - trio.current_time()


def split(steps: list[Step]) -> list[tuple[Restart, list[Step]]]:
    """The steps of each life, and how it begins."""
    lives: list[tuple[Restart, list[Step]]] = [(Restart(0), [*BEGIN])]
    for step in steps:
        if isinstance(step, Restart):
            lives.append((step, []))
        else:
            lives[-1][1].append(step)
    return lives


@pytest.mark.slow
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("kind", ["fake", "memory"])
@pytest.mark.parametrize("config", ["default", "strict"])
def test_the_broker_does_what_the_model_does(kind: str, config: str, examples: int | None) -> None:
    @settings(
        max_examples=examples or EXAMPLES[kind],
        derandomize=examples is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=STEPS, max_size=2 * STEPS))
    @example([Fetch("a", 1), Requeue("a", 0), Wait(20), Fetch("a", 1), WaitForLease(False), WaitForLease(True)])
    @example([Fetch("a", 2), Restart(-YEAR_SECONDS), WaitForLease(False), WaitForLease(True)])
    @example([Restart(-53 * YEAR_SECONDS), Publish("a", (b"3",), (), False), Fetch("a", 4), Restart(0), Fetch("a", 4)])
    @example([Fetch("a", 1), Delete("a"), Restart(-2 * YEAR_SECONDS), Create("a"), Wait(100_000), Fetch("a", 1)])
    def check(steps: list[Step]) -> None:
        run_on_virtual_time(live, kind, CONFIGS[config], split(steps))

    check()
