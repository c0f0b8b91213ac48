"""Operations that end in a completion: nothing is answered twice, and no completion reaches beyond its connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import pytest
import trio
import trio.testing
from pamqp import commands
from trio.testing import MockClock

from mq import turns
from mq.amqp.server.served_connection import ServedConnection
from mq.amqp.server.served_consumer import ServedConsumer
from mq.broker import Broker, Draft, Published, UnackedMessage, open_broker
from mq.doors.connections import Peer
from mq.errors import MQError, NoSuchQueue
from mq.storage.interface import AnyOperation, Drop, Outcome, Put, Result
from mq.storage.memory import MemoryStorage
from tests.amqp.dialling import Client, House, open_house

Basic, Confirm = commands.Basic, commands.Confirm
SECONDS = 5.0


class SlowStore(MemoryStorage):
    """Commits of messages take some seconds, and fail if they are told to."""

    def __init__(self, max_bytes: int | None = None) -> None:
        super().__init__(max_bytes)
        self.seconds = 0.0
        self.result = Result.DONE

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        if not all(isinstance(each, Put | Drop) for each in operations):
            await trio.sleep(self.seconds)
        if self.result is Result.DONE:
            return await super().commit(operations)
        return [Outcome(self.result, reason="a test") for _ in operations]


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
async def house(autojump_clock: MockClock, store: SlowStore) -> AsyncIterator[House]:
    async with open_house(store) as house:
        yield house


@pytest.fixture
async def client(house: House, store: SlowStore) -> Client:
    client = await house.connect()
    await client.declare(durable=True)
    await client.call(Confirm.Select())
    store.seconds = SECONDS
    return client


async def test_message_of_a_client_that_closes_before_the_commit_is_stored_and_not_answered(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.publish("q", b"x")
    await trio.sleep(SECONDS / 2)
    await client.stream.aclose()
    await trio.sleep(2 * SECONDS)
    assert (await house.broker.status("q")).ready == 1
    assert not house.door.connections


async def test_mandatory_message_is_returned_when_its_queue_is_deleted_before_the_commit(
    autojump_clock: MockClock, house: House, client: Client
) -> None:
    await client.publish("q", b"x", mandatory=True)
    await trio.sleep(SECONDS / 2)
    await house.broker.delete_queue("q")
    told = [(await client.hear()).name for _ in range(4)]
    assert told == ["Basic.Return", "ContentHeader", "ContentBody", "Basic.Ack"]


async def test_acknowledged_message_of_a_client_that_closes_before_the_commit_is_removed(
    autojump_clock: MockClock, house: House, client: Client, store: SlowStore
) -> None:
    store.seconds = 0.0
    await client.publish("q", b"x")
    await client.hear()
    await client.consume()
    await client.delivery()
    store.seconds = SECONDS
    await client.say(Basic.Ack(1))
    await trio.sleep(SECONDS / 2)
    await client.stream.aclose()
    await trio.sleep(2 * SECONDS)
    status = await house.broker.status("q")
    assert (status.ready, status.leased) == (0, 0)
    assert not house.door.connections


async def test_message_behind_an_acknowledgement_is_stored_though_its_client_goes(
    autojump_clock: MockClock, house: House, store: SlowStore
) -> None:
    """It waits until the acknowledged one is removed, and was taken from what the client had sent."""
    client = await house.connect(heartbeat=1)
    await client.declare(durable=True)
    await client.publish("q", b"x")
    await client.consume()
    await client.delivery()
    store.seconds = SECONDS
    await client.say(Basic.Ack(1))
    await client.publish("q", b"y")
    await client.stream.aclose()  # the next heartbeat finds that out
    await trio.sleep(4 * SECONDS)
    status = await house.broker.status("q")
    assert (status.ready, status.leased) == (1, 0)
    assert not house.door.connections


async def test_completion_that_raises_ends_its_connection_alone(
    autojump_clock: MockClock,
    house: House,
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = await house.connect()
    await other.call(Confirm.Select())
    broken = next(each for each in house.door.connections if isinstance(each, ServedConnection))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broken.connection, "published", fail)
    for each in (client, other):
        await each.publish("q", b"x")
    answers = [await each.hear() for each in (client, other)]
    assert sorted(each.name for each in answers) == ["Basic.Ack", "Connection.Close"]
    assert "a bug" in caplog.text
    assert house.broker.ready
    assert (await house.broker.status("q")).ready == 2


async def test_confirms_of_a_channel_come_once_each_and_in_order(
    autojump_clock: MockClock, client: Client, store: SlowStore
) -> None:
    await client.declare("other", durable=True)
    store.seconds = 0.01
    for number in range(50):
        await client.publish("q" if number % 3 else "other", b"x")
        await trio.sleep(0.001)
    confirmed: list[int] = []
    while len(confirmed) < 50:
        answer = await client.hear()
        assert isinstance(answer, Basic.Ack)
        first = confirmed[-1] + 1 if confirmed else 1
        confirmed += range(first, answer.delivery_tag + 1) if answer.multiple else [answer.delivery_tag]
    assert confirmed == list(range(1, 51))


async def test_failed_commit_calls_a_thousand_completions_once_each(
    autojump_clock: MockClock, store: SlowStore
) -> None:
    outcomes: list[Published | MQError] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        store.seconds, store.result = SECONDS, Result.FULL
        for _ in range(1000):
            broker.publish_now("q", [Draft(b"x")], outcomes.extend)
        assert outcomes == []
        await trio.sleep(10 * SECONDS)
        assert len(outcomes) == 1000
        assert all(isinstance(each, MQError) for each in outcomes)
        store.seconds, store.result = 0.0, Result.DONE
        assert (await broker.status("q")).ready == 0


async def test_completion_may_publish(autojump_clock: MockClock, store: SlowStore) -> None:
    left = 100

    async with open_broker(store) as broker:
        await broker.create_queue("q")

        def publish_another(_: object) -> None:
            nonlocal left
            left -= 1
            if left:
                broker.publish_now("q", [Draft(b"x")], publish_another)

        broker.publish_now("q", [Draft(b"x")], publish_another)
        with trio.fail_after(60):
            while left:
                await trio.sleep(0.01)
        assert (await broker.status("q")).ready == 100


async def test_broker_ends_after_the_last_completion(autojump_clock: MockClock, store: SlowStore) -> None:
    outcomes: list[Published | MQError] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        store.seconds = SECONDS
        broker.publish_now("q", [Draft(b"x")], outcomes.extend)
    [outcome] = outcomes
    assert isinstance(outcome, Published)


async def test_hold_now_leaves_to_the_workers_what_others_wait_for(
    autojump_clock: MockClock, store: SlowStore, nursery: trio.Nursery
) -> None:
    held: list[UnackedMessage] = []

    async with open_broker(store) as broker:
        await broker.create_queue("q")
        assert broker.hold_now("q") == []

        async def wait() -> None:
            held.extend(await broker.hold("q", wait=60))

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.hold_now("q") is None
        await broker.publish("q", b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert len(held) == 1
        await broker.acknowledge(held)


# Deliveries by callback


@pytest.fixture
async def in_memory(autojump_clock: MockClock) -> AsyncIterator[House]:
    async with open_house(MemoryStorage()) as house:
        yield house


async def delivered_in_step(broker: Broker) -> list[UnackedMessage]:
    """Messages that a request held before the step that published one of them ended."""
    held: list[UnackedMessage] = []
    await broker.create_queue("q")
    broker.hold_when_ready("q", 10, lambda found, _: held.extend(found))
    broker.publish_now("q", [Draft(b"x")], lambda _: None)
    return held


async def test_message_is_delivered_in_the_step_in_which_it_becomes_ready(autojump_clock: MockClock) -> None:
    async with open_broker(MemoryStorage()) as broker:
        held = await delivered_in_step(broker)
        assert [each.message.body.size for each in held] == [1]
        await broker.acknowledge(held)


async def test_withdrawn_request_gets_no_message(autojump_clock: MockClock, store: SlowStore) -> None:
    held: list[UnackedMessage] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        withdraw = broker.hold_when_ready("q", 1, lambda found, _: held.extend(found))
        assert withdraw is not None
        store.seconds = SECONDS
        broker.publish_now("q", [Draft(b"x")], lambda _: None)
        await trio.sleep(SECONDS / 2)
        withdraw()
        await trio.sleep(2 * SECONDS)
        assert held == []
        assert (await broker.status("q")).ready == 1


async def test_waiting_request_hears_of_its_queue_s_end(autojump_clock: MockClock, store: SlowStore) -> None:
    errors: list[Exception | None] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        broker.hold_when_ready("q", 1, lambda _, error: errors.append(error))
        await broker.delete_queue("q")
        await trio.testing.wait_all_tasks_blocked()
        assert [type(each) for each in errors] == [NoSuchQueue]


async def test_waiting_request_is_answered_with_nothing_when_the_broker_ends(store: SlowStore) -> None:
    answers: list[tuple[Sequence[UnackedMessage], Exception | None]] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")
        broker.hold_when_ready("q", 1, lambda held, error: answers.append((held, error)))
    assert answers == [([], None)]


async def test_push_takes_a_turn_and_leaves_the_rest_to_the_worker(autojump_clock: MockClock, store: SlowStore) -> None:
    sizes: list[int] = []
    async with open_broker(store) as broker:
        await broker.create_queue("q")

        def receive(held: list[UnackedMessage], _: Exception | None) -> None:
            sizes.append(len(held))

        broker.hold_when_ready("q", 100, receive)
        await broker.publish_many("q", [Draft(b"x")] * 100)
        await trio.testing.wait_all_tasks_blocked()
        assert len(sizes) == 1
        assert 0 < sizes[0] <= turns.MESSAGES_A_TURN
        broker.hold_when_ready("q", 100, receive)
        await trio.testing.wait_all_tasks_blocked()
        assert sum(sizes) == 100  # those that a request asks for when they are there are a worker's


async def test_waiting_requests_get_messages_in_turn(autojump_clock: MockClock) -> None:
    got: list[int] = []
    async with open_broker(MemoryStorage()) as broker:
        await broker.create_queue("q")

        def ask(number: int) -> None:
            def receive(held: list[UnackedMessage], _: Exception | None) -> None:
                got.extend([number] * len(held))
                if held:
                    ask(number)

            broker.hold_when_ready("q", 10, receive)

        for number in range(3):
            ask(number)
        for _ in range(9):
            broker.publish_now("q", [Draft(b"x")], lambda _: None)
            await trio.testing.wait_all_tasks_blocked()
    assert got == [0, 1, 2] * 3


async def test_publisher_that_consumes_hears_of_its_message_first(autojump_clock: MockClock, in_memory: House) -> None:
    client = await in_memory.connect()
    await client.declare()
    await client.call(Confirm.Select())
    await client.consume()
    await client.publish("q", b"x")
    assert [(await client.hear()).name for _ in range(2)] == ["Basic.Ack", "Basic.Deliver"]


async def test_delivery_that_raises_ends_its_connection_alone(
    autojump_clock: MockClock,
    in_memory: House,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer, publisher = await in_memory.connect(), await in_memory.connect()
    await consumer.declare()
    await consumer.consume()
    await publisher.call(Confirm.Select())
    await trio.testing.wait_all_tasks_blocked()

    def fail(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ServedConsumer, "_write", fail)
    await publisher.publish("q", b"x")
    assert (await publisher.hear()).name == "Basic.Ack"
    assert (await consumer.hear()).name == "Connection.Close"
    assert "a bug" in caplog.text
    assert in_memory.broker.ready


@pytest.mark.parametrize("steps", range(12))
async def test_consumer_that_is_cancelled_at_any_step_loses_no_message(
    autojump_clock: MockClock, in_memory: House, steps: int
) -> None:
    consumer, publisher = await in_memory.connect(), await in_memory.connect()
    await consumer.declare()
    await consumer.consume(tag="c")
    await trio.testing.wait_all_tasks_blocked()
    await publisher.publish("q", b"x")
    await consumer.say(Basic.Cancel("c", nowait=True))
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    await consumer.stream.aclose()
    await trio.sleep(SECONDS)
    assert (await in_memory.broker.status("q")).ready == 1


async def test_no_ack_consumer_gets_each_message_once(autojump_clock: MockClock, in_memory: House) -> None:
    consumer, publisher = await in_memory.connect(), await in_memory.connect()
    await consumer.declare()
    await consumer.consume(no_ack=True)
    await trio.testing.wait_all_tasks_blocked()
    for number in range(40):
        await publisher.publish("q", b"%d" % number)
    assert [(await consumer.delivery())[2] for _ in range(40)] == [b"%d" % number for number in range(40)]
    await trio.sleep(1)
    status = await in_memory.broker.status("q")
    assert (status.ready, status.leased) == (0, 0)


# Room


@pytest.mark.parametrize("small", [1, 200], ids=["in one batch", "in two batches"])
@pytest.mark.parametrize("seconds", [0, SECONDS / 2], ids=["in one step", "later"])
async def test_small_message_does_not_overtake_a_large_one_that_found_no_room(
    autojump_clock: MockClock, small: int, seconds: float
) -> None:
    store = SlowStore(max_bytes=100_000)
    async with open_house(store) as house:
        client, other = await house.connect(), await house.connect()
        await client.declare(durable=True)
        await client.publish("q", b"a" * 99_000)
        assert await client.count() == 1
        store.seconds = SECONDS
        if seconds:
            await client.publish("q", b"b" * 50_000)
            await trio.sleep(seconds)  # the store has one batch, and the broker makes the next
            await client.publish("q", *[b"c"] * small)
        else:
            await client.publish("q", b"b" * 50_000, *[b"c"] * small)
        await trio.sleep(4 * SECONDS)
        assert await other.get(no_ack=True) is not None
        await trio.sleep(4 * SECONDS)
        assert [len(body) for body in await other.bodies()] == [50_000, *[1] * small]


# Connections that are cancelled


async def cut_off(house: House, steps: int) -> None:
    """Cancel the tasks of the only connection after so many steps of the event loop."""
    for _ in range(steps):
        await trio.lowlevel.checkpoint()
    for served in house.door.connections:
        assert isinstance(served, ServedConnection)
        if served.nursery is not None:
            served.nursery.cancel_scope.cancel()


@pytest.mark.parametrize("steps", range(12))
async def test_publisher_that_is_cut_off_at_any_step_has_heard_only_of_stored_messages(
    autojump_clock: MockClock, house: House, client: Client, store: SlowStore, steps: int
) -> None:
    store.seconds = 0.02
    await client.publish("q", *[b"x"] * 40)
    await trio.sleep(0.004 * steps)
    await cut_off(house, steps)
    stored = house.broker.declarations.ready("q")
    confirmed = [0]
    with suppress(trio.BrokenResourceError):
        while (answer := await client.hear()) is not None:
            confirmed.append(answer.delivery_tag)
    await trio.sleep(SECONDS)
    assert not house.door.connections
    assert max(confirmed) <= stored <= (await house.broker.status("q")).ready <= 40


@pytest.mark.parametrize("steps", range(12))
async def test_consumer_that_is_cut_off_at_any_step_loses_no_message(
    autojump_clock: MockClock, house: House, steps: int
) -> None:
    client = await house.connect()
    await client.declare(durable=True)
    await client.publish("q", *[b"x"] * 40)
    await client.call(Basic.Qos(prefetch_count=10))
    await client.consume()
    await client.delivery()
    await client.say(Basic.Ack(1))
    await cut_off(house, steps)
    await trio.sleep(SECONDS)
    assert not house.door.connections
    status = await house.broker.status("q")
    assert status.leased == 0
    assert 39 <= status.ready <= 40


@pytest.mark.parametrize("is_slow", [False, True], ids=["in its step", "in a task"])
@pytest.mark.parametrize("steps", range(12))
async def test_get_that_is_cut_off_at_any_step_loses_no_message(
    autojump_clock: MockClock, house: House, monkeypatch: pytest.MonkeyPatch, steps: int, is_slow: bool
) -> None:
    client = await house.connect()
    await client.declare(durable=True)
    await client.publish("q", b"x", b"y")
    assert await client.count() == 2
    if is_slow:
        monkeypatch.setattr(house.broker, "hold_now", lambda *_, **__: None)
    await client.say(Basic.Get(queue="q"))
    await cut_off(house, steps)
    await trio.sleep(SECONDS)
    assert not house.door.connections
    status = await house.broker.status("q")
    assert (status.ready, status.leased) == (2, 0)


@pytest.mark.parametrize("steps", range(12))
async def test_transaction_that_is_cut_off_at_any_step_is_stored_if_its_client_has_heard_so(
    autojump_clock: MockClock, house: House, store: SlowStore, steps: int
) -> None:
    client = await house.connect()
    await client.declare(durable=True)
    await client.call(commands.Tx.Select())
    await client.publish("q", b"x", b"y", b"z")
    store.seconds = 0.02
    await client.say(commands.Tx.Commit())
    await trio.sleep(0.004 * steps)
    await cut_off(house, steps)
    heard = None
    with suppress(trio.BrokenResourceError):
        heard = await client.hear()
    await trio.sleep(SECONDS)
    assert not house.door.connections
    ready = (await house.broker.status("q")).ready
    assert ready in ((0, 3) if heard is None else (3,))


@pytest.mark.parametrize("ask", [Basic.Consume(queue="q"), Basic.Get(queue="q")], ids=["consumer", "get"])
async def test_message_is_ready_again_when_its_client_closes_in_the_middle_of_it(
    autojump_clock: MockClock, house: House, ask: Basic.Get
) -> None:
    other = await house.connect()
    await other.declare(durable=True)
    await other.publish("q", b"x" * 300_000)
    ours, theirs = trio.testing.lockstep_stream_pair()  # takes no byte before it is read
    served = ServedConnection(house.door, theirs, Peer("here", 1), "0")  # type: ignore[arg-type]
    house.nursery.start_soon(served.run)
    client = await Client(ours).open()
    await client.say(ask)
    assert len(await ours.receive_some(1000)) > 0
    await trio.testing.wait_all_tasks_blocked()
    assert served.socket.unsent > 0
    await ours.aclose()
    await trio.sleep(SECONDS)
    assert served not in house.door.connections
    got = await other.get()
    assert got is not None
    assert (got[0].redelivered, len(got[2])) == (True, 300_000)


async def test_nothing_counts_as_waiting_once_messages_for_two_queues_are_stored(autojump_clock: MockClock) -> None:
    async with open_house(MemoryStorage()) as house:
        client = await house.connect()
        await client.call(commands.Exchange.Declare(exchange="both", exchange_type="fanout"))
        for queue in ("a", "b"):
            await client.declare(queue)
            await client.call(commands.Queue.Bind(queue=queue, exchange="both"))
        # The first 128 take a task, for each goes to two queues, and the last two are stored in the step that ends it.
        await client.publish("", *[b"x"] * 130, exchange="both")
        assert len(await client.bodies("a")) == 130
        assert house.door.backlog.value == 0
        assert (await client.call(commands.Connection.Close(200, "bye", 0, 0), 0)).name == "Connection.CloseOk"
        await trio.sleep(100)
        assert not house.door.connections
