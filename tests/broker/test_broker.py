"""What doors may rely on: the broker's one API, over stores that never block, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
import trio

from mq.broker import Broker, BrokerConfig, Draft, Published, open_broker
from mq.broker.api import DISK, MEMORY
from mq.errors import (
    BodyTooLarge,
    BrokerClosed,
    Conflict,
    InvalidId,
    InvalidName,
    InvalidSetting,
    NoSuchMessage,
    NoSuchQueue,
)
from mq.lifecycle import Kind
from mq.message import MessageIds
from tests.broker.conftest import Legal, Opener, WallClock
from tests.cases import for_each


async def take(broker: Broker, queue: str = "q") -> bytes | None:
    """The next message's bytes."""
    message = await broker.fetch(queue)
    return None if message is None else await message.body.read()


async def pieces(*parts: bytes) -> AsyncGenerator[bytes]:
    for part in parts:
        yield part


async def test_a_queue_is_made_once(broker: Broker) -> None:
    assert await broker.create_queue("other")
    assert not await broker.create_queue("other")
    assert await broker.has_queue("other")
    assert not await broker.has_queue("another")


@pytest.mark.parametrize(("here", "there"), [(MEMORY, DISK), (DISK, MEMORY), (None, MEMORY)])
async def test_a_queue_that_is_there_is_not_in_another_place(broker: Broker, here: str | None, there: str) -> None:
    assert await broker.create_queue("other", here)
    with pytest.raises(Conflict, match="queue other already exists in"):
        await broker.create_queue("other", there)
    assert not await broker.create_queue("other", here)
    assert not await broker.create_queue("other"), "a caller that names no place takes it where it is"


@for_each("name", ["", ".", "..", "a/b", "a:b", ".hidden", "x" * 101, "caf\u00e9", "a\n", "a\0b"])
async def test_a_bad_name_makes_nothing(broker: Broker, name: str) -> None:
    with pytest.raises(InvalidName):
        await broker.create_queue(name)
    assert not await broker.has_queue(name)


async def test_messages_come_in_the_order_of_their_publishing(broker: Broker) -> None:
    for number in range(50):
        await broker.publish("q", b"%d" % number)
    assert [await take(broker) for _ in range(50)] == [b"%d" % number for number in range(50)]
    assert await take(broker) is None


async def test_what_was_just_published_can_be_fetched(broker: Broker) -> None:
    for number in range(20):
        await broker.publish("q", b"%d" % number)
        assert await take(broker) == b"%d" % number


async def test_a_clock_set_back_does_not_change_the_order(broker: Broker, wall_clock: WallClock) -> None:
    await broker.publish("q", b"first")
    wall_clock.ahead_seconds = -3600
    await broker.publish("q", b"second")
    assert [await take(broker), await take(broker)] == [b"first", b"second"]


async def test_a_leased_message_is_nobody_elses_until_its_lease_ends(broker: Broker) -> None:
    await broker.publish("q", b"x")
    first = await broker.fetch("q")
    assert first is not None
    await trio.sleep(29.999)
    assert await broker.fetch("q") is None
    await trio.sleep(0.002)
    again = await broker.fetch("q")
    assert again is not None
    assert (again.id, again.receives, first.receives) == (first.id, 2, 1)
    assert again.receipt != first.receipt


async def test_a_requeued_message_is_back_in_its_place(broker: Broker) -> None:
    first = await broker.publish("q", b"first")
    await broker.publish("q", b"second")
    await take(broker)
    await broker.requeue("q", first)
    assert await take(broker) == b"first"
    third = await broker.publish("q", b"third")
    with pytest.raises(NoSuchMessage, match="not leased"):
        await broker.requeue("q", third)


async def test_a_removed_message_never_comes_back(broker: Broker) -> None:
    leased = await broker.publish("q", b"leased")
    await take(broker)
    ready = await broker.publish("q", b"ready")
    await broker.remove("q", leased)
    await broker.remove("q", ready)
    await trio.sleep(100)
    assert await take(broker) is None
    for id in (leased, ready, MessageIds().new()):
        with pytest.raises(NoSuchMessage):
            await broker.remove("q", id)
    with pytest.raises(InvalidId):
        await broker.remove("q", "not-an-id")


async def test_a_message_can_be_removed_in_every_state(broker: Broker) -> None:
    ids = [await broker.publish("q", b"x") for _ in range(10)]
    for _ in range(5):
        await take(broker)
    async with trio.open_nursery() as nursery:  # some of them are on their way just then
        for id in ids:
            nursery.start_soon(broker.remove, "q", id)
        nursery.start_soon(take, broker)
    await trio.sleep(100)
    assert await take(broker) is None


async def test_everything_on_a_missing_queue_says_so(broker: Broker) -> None:
    id = MessageIds().new()
    for call in (
        lambda: broker.publish("nowhere", b""),
        lambda: broker.fetch("nowhere"),
        lambda: broker.remove("nowhere", id),
        lambda: broker.requeue("nowhere", id),
        lambda: broker.delete_queue("nowhere"),
    ):
        with pytest.raises(NoSuchQueue):
            await call()


async def test_a_deleted_queue_takes_its_messages_with_it(broker: Broker) -> None:
    for body in (b"leased", b"ready", b"new"):
        await broker.publish("q", body)
    await take(broker)
    await broker.delete_queue("q")
    assert not await broker.has_queue("q")
    await broker.create_queue("q")
    await broker.publish("q", b"of the new one")
    await trio.sleep(100)
    assert await take(broker) == b"of the new one"
    assert await take(broker) is None


async def test_a_queue_deleted_during_requests_answers_each_of_them(broker: Broker) -> None:
    answers: list[str] = []

    async def request(call: str) -> None:
        try:
            await (broker.publish("q", b"x") if call == "publish" else broker.fetch("q"))
            answers.append("done")
        except NoSuchQueue:
            answers.append("no queue")

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(request, "publish")
            nursery.start_soon(request, "fetch")
        nursery.start_soon(broker.delete_queue, "q")
    assert len(answers) == 40
    await broker.create_queue("q")
    await trio.sleep(100)
    assert await take(broker) is None


async def test_a_body_over_the_limit_is_refused(address: str, opened: Opener) -> None:
    async with opened(address, max_body=10) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x" * 10)
        with pytest.raises(BodyTooLarge):
            await broker.publish("q", b"x" * 11)
        with pytest.raises(BodyTooLarge):
            async with aclosing(pieces(b"x" * 6, b"x" * 6)) as chunks:
                await broker.stage(chunks)
        staged = await broker.stage(pieces(b"y" * 4, b"z" * 4))
        await broker.publish("q", staged)
        assert [await take(broker), await take(broker)] == [b"x" * 10, b"yyyyzzzz"]


async def test_a_staged_body_whose_publish_fails_is_discarded(broker: Broker) -> None:
    staged = await broker.stage(pieces(b"x"))
    with pytest.raises(NoSuchQueue):
        await broker.publish("nowhere", staged)
    again = await broker.stage(pieces(b"y"))
    await again.discard()
    with pytest.raises(NoSuchMessage):
        await broker.publish("q", again)
    assert await take(broker) is None


async def test_attributes_come_back(broker: Broker) -> None:
    await broker.publish("q", b"x", {"content_type": "text/plain", "n": [1, {"a": None}]})
    message = await broker.fetch("q")
    assert message is not None
    assert message.properties.attributes == {"content_type": "text/plain", "n": [1, {"a": None}]}
    assert message.properties.size == 1


async def test_whoever_hung_up_takes_no_message(broker: Broker) -> None:
    with trio.move_on_after(0) as scope:
        await broker.fetch("q", wait=10)
    assert scope.cancelled_caught
    await broker.publish("q", b"x")
    assert await take(broker) == b"x"


async def test_a_fetch_that_is_abandoned_during_its_lease_gives_it_back_at_once(broker: Broker) -> None:
    await broker.publish("q", b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(broker.fetch, "q")
        await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert await take(broker) == b"x"


async def test_a_closed_broker_says_so(address: str, opened: Opener) -> None:
    async with opened(address) as broker:
        await broker.create_queue("q")
        assert broker.ready
    assert not broker.ready
    with pytest.raises(BrokerClosed):
        await broker.publish("q", b"x")
    with pytest.raises(BrokerClosed):
        await broker.fetch("q")
    with pytest.raises(BrokerClosed):
        await broker.create_queue("r")


async def test_what_runs_when_the_broker_closes_is_finished(disk_address: str, opened: Opener) -> None:
    ids = []
    async with trio.open_nursery() as nursery:
        async with opened(disk_address) as broker:
            await broker.create_queue("q")

            async def publish() -> None:
                ids.append(await broker.publish("q", b"x"))

            for _ in range(10):
                nursery.start_soon(publish)
            await trio.lowlevel.checkpoint()  # every task has begun ...
            await trio.lowlevel.checkpoint()  # ... whatever the order was
        assert len(ids) == 10


async def test_the_callers_own_error_leaves_as_it_came(address: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with open_broker(address):
            raise ZeroDivisionError


async def test_observers_are_told_of_each_step(broker: Broker, observer: Legal) -> None:
    id = await broker.publish("q", b"abc")
    await take(broker)
    await broker.requeue("q", id)
    await take(broker)
    await trio.sleep(31)
    await broker.remove("q", id)
    await trio.testing.wait_all_tasks_blocked()
    delivered = [] if broker.description.places else [Kind.DELIVER]
    assert [transition.kind for transition in observer.seen] == [
        Kind.PUBLISH,
        *delivered,
        Kind.LEASE,
        Kind.REQUEUE,
        Kind.LEASE,
        Kind.REQUEUE,
        Kind.REMOVE,
        Kind.REAP,
    ]
    assert {transition.id for transition in observer.seen} == {id}
    assert observer.seen[0].size == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"peers": -1},
        {"visibility_seconds": 0.0},
        {"visibility_seconds": float("nan")},
        {"max_body": -1},
    ],
)
def test_a_setting_out_of_range_names_itself(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(wrong))):
        BrokerConfig(**wrong)  # type: ignore[arg-type]


async def test_a_batch_keeps_its_order_though_some_of_it_has_keys(broker: Broker) -> None:
    drafts = [Draft(b"%d" % number, key=f"key {number}" if number % 3 else None) for number in range(10)]
    outcomes = await broker.publish_many("q", drafts)
    assert [type(outcome) for outcome in outcomes] == [Published] * 10
    messages = await broker.fetch_many("q", 10)
    assert [await message.body.read() for message in messages] == [draft.body for draft in drafts]
