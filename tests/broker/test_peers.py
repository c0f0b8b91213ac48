"""Two brokers on one store: what one does the other sees, and of a message each lease is one broker's."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from mq.broker import Broker, BrokerConfig, open_broker, queues
from mq.broker.config import GLANCE_SECONDS, POLL_SECONDS, STRANDED_SECONDS
from mq.broker.shared import do_every
from mq.errors import MQError, NoSuchMessage, StorageFailed, StorageFull, StorageUnusable
from mq.message import MessageId, MessageIds
from mq.storage.files.stepwise.peers import Alarm
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Description,
    Entry,
    Meta,
    Move,
    Outcome,
    Sharing,
    State,
    Unlink,
    Write,
)
from mq.storage.memory import MemoryStorage
from mq.storage.records import put_record
from mq.storage.registry import open_storage
from tests.broker.conftest import Opener, WallClock, leave
from tests.broker.test_broker import take
from tests.record_hooks import RecordHooks
from tests.storage.disks import MOUNTS, Disk, open_disk


async def test_what_one_publishes_the_other_hands_out(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        id = await one.publish("q", b"x")
        await trio.testing.wait_all_tasks_blocked()
        assert await take(other) == b"x"
        assert await take(one) is None
        await one.remove("q", id)
        with pytest.raises(NoSuchMessage):
            await other.remove("q", id)


async def test_every_message_is_leased_once(disk_address: str, opened: Opener) -> None:
    got: Counter[bytes] = Counter()

    async def consume(broker: Broker) -> None:
        while (message := await broker.fetch("q")) is not None:
            got[await message.body.read()] += 1
            await broker.remove("q", message.id)

    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        for number in range(200):
            await (one if number % 2 else other).publish("q", b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for broker in (one, other) * 4:
                nursery.start_soon(consume, broker)
    assert got == Counter(b"%d" % number for number in range(200))


async def test_a_candidate_is_chosen_from_the_first_peers_plus_one(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=2) as broker:
        await broker.create_queue("q")
        for number in range(60):
            await broker.publish("q", b"%d" % number)
        await trio.testing.wait_all_tasks_blocked()
        left, ahead = list(range(60)), set()
        while left:
            body = await take(broker)
            assert body is not None
            place = left.index(int(body))
            assert place <= 2
            ahead.add(place)
            left.pop(place)
    assert ahead == {0, 1, 2}


async def test_a_lease_of_a_dead_peer_ends(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one:
        await one.create_queue("q")
        await one.publish("q", b"x")
        async with opened(disk_address, peers=1) as other:
            await trio.testing.wait_all_tasks_blocked()
            assert await take(other) == b"x"
        await trio.sleep(20)
        assert await take(one) is None
        await trio.sleep(20)
        assert await take(one) == b"x"


async def test_what_a_dead_peer_left_in_new_is_delivered(
    disk_address: str, opened: Opener, wall_clock: WallClock
) -> None:
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        async with open_storage(disk_address, sharing=Sharing.PEERS) as storage:
            await storage.commit([Write("q", MessageIds(wall_clock).new(), b"stranded")])
        assert await take(broker) is None
        await trio.sleep(3 * STRANDED_SECONDS)
        assert await take(broker) == b"stranded"
    async with open_storage(disk_address) as storage:
        assert await storage.scan(State.NEW) == []


async def test_one_that_wants_the_store_alone_is_refused(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1):
        with pytest.raises(StorageUnusable, match="already served"):
            async with opened(disk_address):
                pass
    async with opened(disk_address):
        with pytest.raises(StorageUnusable, match="--peers=0"):
            async with opened(disk_address, peers=1):
                pass


CHOICES: Final = """
import sys, trio
from mq.broker import BrokerConfig, open_broker

async def main():
    async with open_broker(f"posix:{sys.argv[1]}", BrokerConfig(peers=2)) as broker:
        await broker.create_queue("q")
        published = [await broker.publish("q", b"") for _ in range(30)]
        print([published.index((await broker.fetch("q")).id) for _ in published])

trio.run(main)
"""


@pytest.mark.slow
def test_each_process_has_its_own_sequence_of_choices(tmp_path: Path) -> None:
    """The original never seeded its generator, so that all peers chose alike."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    one, other = (
        subprocess.run(
            [sys.executable, "-c", CHOICES, str(tmp_path / name)],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for name in ("one", "other")
    )
    assert sorted(json.loads(one)) == sorted(json.loads(other)) == list(range(30))
    assert one != other


async def test_a_queue_of_a_peer_is_there_only_when_it_is_durable(wall_clock: WallClock) -> None:
    """The peer may have died before its sync, or have learnt that the medium fails."""
    async with (
        open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1)) as broker,
    ):
        disk.calls.log.clear()
        assert not await broker.create_queue("q")
        assert disk.calls.said("fsync"), "nobody has made sure"
        Alarm(disk.calls, disk.folders.layout.alarm).set()
        with pytest.raises(StorageFailed):
            await broker.create_queue("q")


async def test_what_one_sets_the_other_does_not_set_back(disk_address: str, opened: Opener) -> None:
    """A settings change is a whole record: the other's own, which it had not seen yet, was lost."""
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        assert await other.has_queue("q")
        await one.change_settings("q", {"visibility": 5})
        await other.change_settings("q", {"delay": 1})
        settings = (await one.status("q")).settings
        assert (settings.visibility, settings.delay) == (5, 1)


async def test_a_peer_knows_what_sqs_keeps_with_a_queue(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        assert (await other.settings("q")).sqs is None
        await one.change_settings("q", {"sqs": {"tags": {"a": "b"}}})
        assert (await other.settings("q")).sqs == {"attributes": {}, "tags": {"a": "b"}}
        await other.change_settings("q", {"sqs": {"tags": {"c": "d"}, "attributes": {"e": "f"}}})
        await other.change_settings("q", {"sqs": {"tags": {"a": None}}, "visibility": 5})
        assert (await one.settings("q")).sqs == {"attributes": {"e": "f"}, "tags": {"c": "d"}}


async def test_who_waits_hears_of_a_peer_s_message_where_the_medium_does_not_tell(
    disk_address: str, opened: Opener
) -> None:
    async with opened(disk_address, peers=1) as one, opened(disk_address, peers=1) as other:
        await one.create_queue("q")
        assert await other.has_queue("q")
        heard: list[float] = []

        async def wait() -> None:
            message = await other.fetch("q", wait=60)
            assert message is not None
            heard.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(5.03)
            published = trio.current_time()
            await one.publish("q", b"x")
        assert heard[0] - published <= 2 * GLANCE_SECONDS


async def test_looking_takes_up_a_fifth_of_the_time_at_the_most(autojump_clock: trio.testing.MockClock) -> None:
    looks: list[float] = []

    async def look() -> None:
        looks.append(trio.current_time())
        await trio.sleep(2 if len(looks) <= 20 else 0)

    with trio.move_on_after(209.5):
        await do_every(1, look)
    apart = [later - earlier for earlier, later in itertools.pairwise(looks)]
    assert apart[:20] == [pytest.approx(10)] * 20, "two seconds of ten"
    assert apart[20:] == [pytest.approx(1)] * 8, "and no longer than it has to be"


class SlowToList(MemoryStorage):
    """Tells nothing by itself, and takes its time to list a queue."""

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """As in Storage."""
        await trio.sleep(0.4)
        return await super().scan(state, queue, limit)


async def test_who_waits_hears_within_a_second_where_looks_are_slow(autojump_clock: trio.testing.MockClock) -> None:
    store, others = SlowToList(), [f"q{number}" for number in range(5)]
    for queue in ("q", *others):
        await put_record(store, QUEUE, queue, {"created": 0})
    heard: list[float] = []

    async def wait(broker: Broker, queue: str) -> None:
        if await broker.fetch(queue, wait=60) is not None:
            heard.append(trio.current_time())

    async with open_broker(store, BrokerConfig(peers=1, mover=False)) as broker, trio.open_nursery() as nursery:
        for queue in (*others, "q"):
            nursery.start_soon(wait, broker, queue)
        await trio.sleep(12.3)
        for _ in range(7):
            published = trio.current_time()
            [new] = await store.commit([Write("q", MessageIds().new(), b"x")])
            assert new.entry is not None
            await store.commit([Move(new.entry, State.READY)])
            await trio.sleep(3.07)
            assert heard.pop() - published <= 1
            nursery.start_soon(wait, broker, "q")
        nursery.cancel_scope.cancel()


Remove = Callable[[Broker, str, str, Callable[[], None]], Awaitable[None]]


async def remove_it(broker: Broker, queue: str, id: str, leave_second_name: Callable[[], None]) -> None:
    leave_second_name()
    await broker.remove(queue, id)


async def hold_and_acknowledge(broker: Broker, queue: str, id: str, leave_second_name: Callable[[], None]) -> None:
    held = await broker.hold(queue)
    leave_second_name()
    await broker.acknowledge(held, durable=True)


async def hold_and_reject(broker: Broker, queue: str, id: str, leave_second_name: Callable[[], None]) -> None:
    held = await broker.hold(queue)
    leave_second_name()
    await broker.reject(held)


async def take_it(broker: Broker, queue: str, id: str, leave_second_name: Callable[[], None]) -> None:
    leave_second_name()
    message = await broker.take(queue)
    assert message is not None
    assert await message.body.read() == b"x"


async def purge_it(broker: Broker, queue: str, id: str, leave_second_name: Callable[[], None]) -> None:
    leave_second_name()
    assert await broker.purge(queue) == 1


REMOVALS: Final = [remove_it, hold_and_acknowledge, hold_and_reject, take_it, purge_it]
LEASED: Final = ",d99999999999999,r1,c0123456789abcdef"
JOINED: Final = f",o{1 << 57}"


def link_second(disk: Disk, queue: str, id: str, second: str) -> None:
    """Give a message a second name, as a peer does that is killed before it has taken the first one away."""
    entry = disk.folders.find(queue, MessageId(id))
    assert entry is not None
    disk.inner.link(disk.folders.layout.path(entry), f"{disk.root}/{second}")


async def publish(disk: Disk, broker: Broker) -> str:
    """Publish a message to q; it is READY on return."""
    id = await broker.publish("q", b"x")
    while not await disk.storage.scan(State.READY, "q"):
        await trio.sleep(0.01)
    return id


@pytest.mark.parametrize("remove", REMOVALS)
async def test_both_names_of_a_message_are_removed_before_either_is_reaped(remove: Remove) -> None:
    """A peer that is at work, or was killed, left the second."""
    async with (
        open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1, reaper=False)) as broker,
    ):
        id = await publish(disk, broker)
        await remove(broker, "q", id, partial(link_second, disk, "q", id, f"delay/q:{id}{LEASED}"))
        assert await disk.storage.find("q", MessageId(id)) is None
        assert len(await disk.storage.scan(State.REMOVED)) == 2
        for entry in await disk.storage.scan(State.REMOVED):
            await disk.storage.commit([Unlink(entry)])


@pytest.mark.parametrize(
    ("place", "remove"),
    [
        *[("source", remove) for remove in REMOVALS if remove is not hold_and_reject],
        *[(place, remove) for place in ("target", "elsewhere") for remove in REMOVALS],
    ],
)
async def test_a_message_that_a_killed_peer_left_in_two_queues_is_removed_from_both(
    place: str, remove: Remove, autojump_clock: trio.testing.MockClock
) -> None:
    """A removal from the source or the target of a death finds the other name at once; where the message was moved
    otherwise, when the broker has heard of it."""
    async with (
        open_disk(MOUNTS["link"], queues=("q", "dead", "elsewhere"), sharing=Sharing.PEERS) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1)) as broker,
    ):
        await broker.change_settings("q", {"dead_letter_queue": "dead"})
        id = await publish(disk, broker)
        if place == "source":
            await remove(broker, "q", id, partial(link_second, disk, "q", id, f"queues/dead/{id}{JOINED}"))
        elif place == "target":
            await broker.reject(await broker.hold("q"))
            await remove(broker, "dead", id, partial(link_second, disk, "dead", id, f"delay/q:{id}{LEASED}"))
        else:
            await broker.redrive("q", to="elsewhere")
            link_second(disk, "elsewhere", id, f"queues/q/{id}")
            await trio.sleep(2 * POLL_SECONDS)
            await remove(broker, "elsewhere", id, lambda: None)
        for queue in ("q", "dead", "elsewhere"):
            assert await disk.storage.find(queue, MessageId(id)) is None, queue
        await trio.sleep(2 * POLL_SECONDS)
        for queue in ("q", "dead", "elsewhere"):
            status = await broker.status(queue)
            assert (status.ready, status.leased, status.delayed) == (0, 0, 0), queue


async def test_a_purge_that_fails_half_way_removes_all_names_of_what_it_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No later one would: the queue does not have it any more."""
    monkeypatch.setattr(queues, "LARGEST_SLICE", 1)
    async with (
        open_disk(MOUNTS["link"], queues=("q", "dead"), sharing=Sharing.PEERS) as disk,
        open_broker(disk.storage, BrokerConfig(peers=1)) as broker,
    ):
        await broker.change_settings("q", {"dead_letter_queue": "dead"})
        first, second = await publish(disk, broker), await broker.publish("q", b"stays")
        while len(await disk.storage.scan(State.READY, "q")) < 2:
            await trio.sleep(0.01)
        link_second(disk, "q", first, f"queues/dead/{first}{JOINED}")
        disk.calls.fail("link", errno.ENOSPC, path=f"*{second}*", times=None)
        with pytest.raises(StorageFull):
            await broker.purge("q")
        disk.heal()
        for queue in ("q", "dead"):
            assert await disk.storage.find(queue, MessageId(first)) is None, queue
        assert await disk.storage.find("q", MessageId(second)) is not None


@pytest.mark.parametrize(
    "second",
    ["queues/q/{}", "delay/q:{},d1700000004500", "delay/q:{},d1700000030000,r1,c0123456789abcdef"],
    ids=["ready", "delayed", "leased"],
)
async def test_a_message_that_a_killed_peer_left_in_new_and_elsewhere_is_counted_once(
    second: str, wall_clock: WallClock
) -> None:
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        id = MessageIds(wall_clock).new()
        await disk.storage.commit([Write("q", id, b"x")])
        link_second(disk, "q", id, second.format(id))
        async with open_broker(disk.storage, BrokerConfig(peers=1), clock_ns=wall_clock) as broker:
            for _ in range(4):
                status = await broker.status("q")
                assert status.ready + status.leased + status.delayed == 1
                await trio.sleep(STRANDED_SECONDS)
            message = await broker.fetch("q")
            assert message is not None, "it is handed out in time"
            await message.body.aclose()
            await broker.remove("q", message.id)
            status = await broker.status("q")
            assert (status.ready, status.leased, status.delayed) == (0, 0, 0)


async def test_a_removal_that_a_killed_peer_began_is_finished_before_its_message_is_reaped(
    wall_clock: WallClock,
) -> None:
    """Else its attributes were gone, and the message came back for ever without them."""
    async with open_disk(MOUNTS["link"], sharing=Sharing.PEERS) as disk:
        id = MessageIds(wall_clock).new()
        await disk.storage.commit([Write("q", id, b"x", {"n": 1})])
        leased = Meta(deadline_ms=round(wall_clock() / 1e6) + 4000, receives=1, receipt="0123456789abcdef")
        await disk.storage.commit([Move(Entry("q", id, State.NEW), State.DELAYED, leased)])
        link_second(disk, "q", id, f"remove/q:{id},cfedcba9876543210")
        async with open_broker(disk.storage, BrokerConfig(peers=1), clock_ns=wall_clock) as broker:
            for _ in range(3):
                await trio.sleep(STRANDED_SECONDS)
                message = await broker.fetch("q")
                if message is not None:
                    assert (await message.body.read(), message.properties.attributes) == (b"x", {"n": 1})
                    await broker.requeue("q", id, receipt=message.receipt)
            status = await broker.status("q")
            assert (status.ready, status.leased, status.delayed) == (0, 0, 0)
        assert disk.files("new", "queues", "delay", "remove", "state/properties") == set()


class Slow(RecordHooks, MemoryStorage):
    """Several brokers share it; whoever reads its records next hears what was there, but late."""

    def __init__(self) -> None:
        super().__init__()
        self.until: trio.Event | None = None
        self.made: list[bool] = []

    @property
    def description(self) -> Description:
        return super().description._replace(shared=True)

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        new = await super().put_record(kind, key, value)
        if kind == QUEUE:
            self.made.append(new)
        return new

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        found = dict(await super().records(kind))
        until, self.until = self.until, None
        if until is not None:
            await until.wait()
        return found


async def test_what_a_peer_published_meanwhile_is_not_taken_for_a_leftover(wall_clock: WallClock) -> None:
    """Who makes a queue may not see yet that a peer has made it: only what lay there before it was made is removed.
    Four brokers on one memcached found that, once in many runs."""
    store = Slow()
    config = BrokerConfig(peers=1)
    async with open_broker(store, config, clock_ns=wall_clock) as one, trio.open_nursery() as nursery:
        late = await nursery.start(_serve, store, config, wall_clock)
        await leave(store)
        store.until = until = trio.Event()
        nursery.start_soon(late.create_queue, "q")
        await trio.testing.wait_all_tasks_blocked()
        assert store.until is None, "it has not looked"
        await one.create_queue("q")
        await one.publish("q", b"mine")
        assert await take(one) == b"mine", "and nothing of the queue before it"
        assert len(await store.scan(State.DELAYED, "q")) == 1
        until.set()
        await trio.testing.wait_all_tasks_blocked()
        assert store.made == [True, False], "both have made it"
        assert len(await store.scan(State.DELAYED, "q")) == 1, "the lease stands"
        nursery.cancel_scope.cancel()


async def test_what_a_dead_peer_left_is_taken_over_though_its_clock_was_ahead(wall_clock: WallClock) -> None:
    store = Slow()
    async with open_broker(store, BrokerConfig(peers=1), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        ahead = MessageIds(lambda: wall_clock() + round(63_072_000 * 1e9))
        await store.commit([Write("q", ahead.new(), b"x")])
        await trio.sleep(STRANDED_SECONDS - 1)
        assert await broker.fetch("q") is None, "its writer may still be about to deliver it"
        await trio.sleep(3)
        assert await take(broker) == b"x"


class LateAnswers(Slow):
    """The next commit that writes a message is answered late, if a test says so."""

    answer: trio.Event | None = None

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """As in Storage."""
        outcomes = await super().commit(operations)
        if self.answer is not None and any(isinstance(operation, Write) for operation in operations):
            answer, self.answer = self.answer, None
            await answer.wait()
        return outcomes


@pytest.mark.parametrize("delay", [None, 4.5])
async def test_a_publish_that_is_answered_after_a_peer_has_delivered_it_is_counted_once(
    delay: float | None, wall_clock: WallClock
) -> None:
    """A peer that starts anew, as after a kill, delivers all that lies in NEW, also what a broker is about to."""
    store = LateAnswers()
    config = BrokerConfig(peers=1)
    async with open_broker(store, config, clock_ns=wall_clock) as one, trio.open_nursery() as nursery:
        await one.create_queue("q")
        store.answer = answer = trio.Event()
        nursery.start_soon(partial(one.publish, "q", b"x", delay=delay))
        await trio.testing.wait_all_tasks_blocked()
        assert len(await store.scan(State.NEW)) == 1
        other = await nursery.start(_serve, store, config, wall_clock)
        await trio.sleep(2 * POLL_SECONDS)
        answer.set()
        await trio.sleep(5)
        status = await one.status("q")
        assert (status.ready, status.leased, status.delayed) == (1, 0, 0)
        message = await other.fetch("q")
        assert message is not None
        await other.remove("q", message.id)
        await trio.sleep(2 * POLL_SECONDS)
        status = await one.status("q")
        assert (status.ready, status.leased, status.delayed) == (0, 0, 0)
        nursery.cancel_scope.cancel()


class OldLook(Slow):
    """The next look at READY messages is answered late, and the one at DELAYED messages after it never, if a test says
    so."""

    answer: trio.Event | None = None
    is_stuck = False

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """As in Storage."""
        entries = await super().scan(state, queue, limit)
        if self.answer is not None and state is State.READY:
            answer, self.answer, self.is_stuck = self.answer, None, True
            await answer.wait()
        elif self.is_stuck and queue is None:
            await trio.sleep_forever()
        return entries


@pytest.mark.parametrize("has_receipt", [True, False])
@pytest.mark.parametrize("end", ["remove", "requeue", "extend"])
async def test_a_lease_is_found_after_a_look_that_began_before_it(
    end: str, has_receipt: bool, wall_clock: WallClock
) -> None:
    """Four brokers on one memcached were told that leases of a second ago had run out."""
    store = OldLook()
    async with open_broker(store, BrokerConfig(peers=1), clock_ns=wall_clock) as broker:
        await broker.create_queue("q")
        await broker.publish("q", b"x")
        await trio.testing.wait_all_tasks_blocked()
        store.answer = answer = trio.Event()
        await trio.sleep(2 * POLL_SECONDS)
        assert store.answer is None, "it has not looked"
        message = await broker.fetch("q")
        assert message is not None
        answer.set()
        await trio.testing.wait_all_tasks_blocked()
        receipt = message.receipt if has_receipt else None
        match end:
            case "remove":
                await broker.remove("q", message.id, receipt=receipt)
            case "requeue":
                await broker.requeue("q", message.id, receipt=receipt)
            case _:
                await broker.extend("q", message.id, 60, receipt=receipt)
        assert store.is_stuck
        left = [entry.state for state in (State.READY, State.DELAYED) for entry in await store.scan(state, "q")]
        assert left == {"remove": [], "requeue": [State.READY], "extend": [State.DELAYED]}[end]


class LateMoves(Slow):
    """Every commit takes its time; the next one that moves a message to READY waits, if a test says so."""

    begin: trio.Event | None = None

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """As in Storage."""
        await trio.sleep(0.1)
        moves = [operation for operation in operations if isinstance(operation, Move)]
        if self.begin is not None and any(move.state is State.READY for move in moves):
            begin, self.begin = self.begin, None
            await begin.wait()
        return await super().commit(operations)


@pytest.mark.parametrize("end", ["remove", "requeue", "extend", "change_leases"])
async def test_a_message_is_gone_if_a_peer_deletes_its_queue_while_its_lease_ends(
    end: str, wall_clock: WallClock
) -> None:
    """The move to READY fails because the queue is gone: the message is in the index again, which is then dropped."""
    store, config = LateMoves(), BrokerConfig(peers=1, visibility_seconds=5)
    async with open_broker(store, config, clock_ns=wall_clock) as one, trio.open_nursery() as nursery:
        await one.create_queue("q")
        await one.publish("q", b"x")
        await trio.testing.wait_all_tasks_blocked()
        message = await one.fetch("q")
        assert message is not None
        other = await nursery.start(_serve, store, BrokerConfig(peers=1, mover=False), wall_clock)
        store.begin = begin = trio.Event()
        while store.begin is not None:
            await trio.sleep(0.1)
        errors: list[MQError | None] = []

        async def settle() -> None:
            try:
                match end:
                    case "remove":
                        await one.remove("q", message.id)
                    case "requeue":
                        await one.requeue("q", message.id)
                    case "extend":
                        await one.extend("q", message.id, 60)
                    case _:
                        errors.extend(await one.change_leases("q", [(message.id, message.receipt or "", 60.0)]))
            except MQError as error:
                errors.append(error)

        with trio.fail_after(60):
            async with trio.open_nursery() as settling:
                settling.start_soon(settle)
                await trio.testing.wait_all_tasks_blocked()
                await other.delete_queue("q")
                while await store.find("q", message.id) is not None:
                    await trio.sleep(0.1)
                begin.set()
        assert [type(error) for error in errors] == [NoSuchMessage]
        nursery.cancel_scope.cancel()


async def _serve(
    store: Slow, config: BrokerConfig, clock: WallClock, task_status: trio.TaskStatus[Broker] = trio.TASK_STATUS_IGNORED
) -> None:
    async with open_broker(store, config, clock_ns=clock) as broker:
        task_status.started(broker)
        await trio.sleep_forever()
