"""Messages of one group one after the other, in order; groups beside each other, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, Draft, Removal, open_broker, queues
from mq.broker.index import QueueIndex
from mq.broker.message_groups import MessageGroups, number_of
from mq.broker.settings import QueueSettings
from mq.errors import Conflict, CorruptMessage, InvalidSetting, StorageUnusable
from mq.lifecycle import State
from mq.message import Body, Message, MessageId, MessageIds, group_number
from mq.storage.files.folders import READ_AT_ONCE
from mq.storage.interface import Entry, Meta, Move, Operation, Outcome, Result
from tests.broker.conftest import Opener, WallClock
from tests.broker.inside import catalog_of
from tests.storage.disks import MOUNTS, open_disk

GROUPED = {"groups": True}


async def publish(broker: Broker, *names: str, queue: str = "q", **more: object) -> list[str]:
    """Publish messages by names such as ``a1``: their group is the letter, and none for ``-1``."""
    drafts = [Draft(name.encode(), group=None if name[0] == "-" else name[0]) for name in names]
    return [each.id for each in await broker.publish_many(queue, [draft._replace(**more) for draft in drafts])]


async def fetch(broker: Broker, count: int = 1, wait: float = 0.0, lease: float | None = None) -> list[Message]:
    return await broker.fetch_many("q", count, wait=wait, visibility=lease)


async def names(messages: list[Message]) -> list[str]:
    return [(await message.body.read()).decode() for message in messages]


async def read_by_chunks(body: Body) -> bytes:
    return b"".join([chunk async for chunk in body])


async def drain(broker: Broker) -> list[Message]:
    """Fetch and remove one message after the other until none is handed out."""
    found: list[Message] = []
    while some := await fetch(broker):
        await remove(broker, some[0])
        found += some
    return found


async def remove(broker: Broker, message: Message) -> None:
    await broker.remove("q", message.id, receipt=message.receipt)


# One after the other


async def test_a_group_waits_for_its_first_message(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2", "b1")
    [first] = await fetch(broker)
    [other] = await fetch(broker)
    assert await names([first, other]) == ["a1", "b1"]
    assert await fetch(broker) == []
    await remove(broker, first)
    assert await names(await fetch(broker)) == ["a2"]


async def test_a_message_without_a_group_waits_for_none(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "-1", "-2")
    assert await names([*await fetch(broker), *await fetch(broker)]) == ["-1", "-2"]


async def test_one_fetch_gets_several_of_a_group(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "b1", "a2", "a3", "b2")
    got = await fetch(broker, 4)
    assert await names(got) == ["a1", "a2", "a3", "b1"]
    for message in got[:2]:
        await remove(broker, message)
    assert await fetch(broker) == []  # a3 is leased still, and b1
    await remove(broker, got[3])
    assert await names(await fetch(broker)) == ["b2"]


async def test_a_long_group_lets_others_have_their_turn(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, *(f"a{number}" for number in range(9)), "b1", "c1", "b2")
    seen = []
    for _ in range(6):
        [message] = await fetch(broker)
        seen += await names([message])
        await remove(broker, message)
    assert seen == ["a0", "b1", "c1", "a1", "b2", "a2"]


async def test_what_waits_is_called_when_a_group_is_free(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    [first] = await fetch(broker)
    got: list[str] = []
    async with trio.open_nursery() as nursery:

        async def waits() -> None:
            got.extend(await names(await fetch(broker, wait=60)))

        nursery.start_soon(waits)
        await trio.sleep(1)
        assert not got
        await remove(broker, first)
    assert got == ["a2"]
    assert trio.current_time() < 20


async def test_a_waiting_fetch_gets_no_second_of_a_group(broker: Broker, autojump_clock: MockClock) -> None:
    """Not by the short way, either, on which a message is leased in the batch that writes it."""
    await broker.change_settings("q", GROUPED)
    got: list[str] = []
    async with trio.open_nursery() as nursery:

        async def waits() -> None:
            got.extend(await names(await fetch(broker, wait=5)))

        for _ in range(3):
            nursery.start_soon(waits)
        await trio.sleep(1)
        await publish(broker, "a1")
        await publish(broker, "a2", "b1", "a3")
    assert sorted(got) == ["a1", "b1"]


async def test_none_is_handed_out_whose_earlier_one_could_not_be(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that has no room for one name."""
    await broker.change_settings("q", GROUPED)
    first, *_ = await publish(broker, "a1", "a2", "b1")
    commit = broker.storage.commit

    async def refuse_first(operations: Sequence[Operation]) -> list[Outcome]:
        done = await commit([each for each in operations if not _leases(each, first)])
        return [Outcome(Result.FULL) if _leases(each, first) else done.pop(0) for each in operations]

    monkeypatch.setattr(broker.storage, "commit", refuse_first)
    assert await names(await fetch(broker, 3)) == ["b1"]
    monkeypatch.undo()
    assert await names(await fetch(broker, 3, wait=1)) == ["a1", "a2"]


def _leases(operation: Operation, id: str) -> bool:
    return isinstance(operation, Move) and operation.entry.id == id and operation.state is State.DELAYED


# How a group is freed


async def test_an_ended_lease_makes_the_message_the_first_again(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    await fetch(broker, lease=5)
    assert await names(await fetch(broker, wait=60)) == ["a1"]


async def test_a_failure_that_is_held_back_blocks_its_group(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    [message] = await fetch(broker)
    await broker.requeue("q", message.id, receipt=message.receipt, delay=20)
    assert await fetch(broker, wait=10) == []
    assert await names(await fetch(broker, 2, wait=60)) == ["a1", "a2"]


async def test_a_message_given_back_comes_at_once_though_later_ones_are_out(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2", "a3", "a4")
    first, second, third = await fetch(broker, 3, lease=600)
    await broker.requeue("q", second.id, receipt=second.receipt)
    assert await fetch(broker, 4) == [], "a1, which is before it, is out"
    await broker.requeue("q", first.id, receipt=first.receipt)
    again = await fetch(broker, 4)
    assert await names(again) == ["a1", "a2"], "and a4 waits for a3"
    for message in (*again, third):
        assert await fetch(broker, 4) == []
        await remove(broker, message)
    assert await names(await fetch(broker, 4)) == ["a4"]


async def test_a_waiting_fetch_gets_a_message_given_back_though_later_ones_are_out(
    broker: Broker, autojump_clock: MockClock
) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2", "a3")
    first, second = await fetch(broker, 2, lease=600)
    got: list[str] = []
    async with trio.open_nursery() as nursery:

        async def waits() -> None:
            got.extend(await names(await fetch(broker, 3, wait=500)))

        nursery.start_soon(waits)
        await trio.sleep(1)
        nursery.start_soon(partial(broker.extend, "q", second.id, 900, receipt=second.receipt))
        nursery.start_soon(partial(broker.requeue, "q", first.id, receipt=first.receipt))
    assert got == ["a1"]
    assert trio.current_time() < 100


async def test_a_message_given_back_after_a_restart_comes_at_once_too(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", GROUPED)
        await publish(broker, "a1", "a2", "a3")
        first, second = await fetch(broker, 2, lease=600)
    async with opened(disk_address) as broker:
        await broker.requeue("q", first.id, receipt=first.receipt)
        assert await names(await fetch(broker, 3)) == ["a1"]
        await remove(broker, second)
        assert await fetch(broker, 3) == []


async def test_an_earlier_message_that_was_never_out_waits_for_later_ones(
    broker: Broker, autojump_clock: MockClock
) -> None:
    """As one whose delay ends while a later one is worked on."""
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", delay=5)
    await publish(broker, "a2", "a3")
    [second] = await fetch(broker, lease=600)
    assert await fetch(broker, 3, wait=60) == []
    await broker.requeue("q", second.id, receipt=second.receipt)
    assert await names(await fetch(broker, 3)) == ["a1", "a2", "a3"]


async def test_what_comes_later_blocks_no_group(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", delay=30)
    await publish(broker, "a2")
    assert await names(await fetch(broker)) == ["a2"]


async def test_a_dead_message_frees_its_group(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("q", GROUPED | {"max_receives": 1, "dead_letter_queue": "dead"})
    await publish(broker, "a1", "a2")
    await fetch(broker, lease=5)
    assert await names(await fetch(broker, wait=60)) == ["a2"]


async def test_an_expired_message_is_passed_over(broker: Broker, autojump_clock: MockClock) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", ttl=1)
    await publish(broker, "a2")
    [first] = await fetch(broker, lease=5)
    await trio.sleep(2)
    await broker.requeue("q", first.id, receipt=first.receipt)
    assert await names(await fetch(broker, wait=1)) == ["a2"]


async def test_a_purge_frees_its_groups(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2", "a3")
    [first] = await fetch(broker)
    assert await broker.purge("q") == 2
    await publish(broker, "a4")
    await remove(broker, first)
    assert await names(await fetch(broker)) == ["a4"]


async def test_a_removed_message_in_the_middle_is_no_obstacle(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    ids = await publish(broker, "a1", "a2", "a3")
    assert await broker.remove_many("q", [Removal(ids[1])]) == [None]
    assert await names(await fetch(broker, 3)) == ["a1", "a3"]


async def test_what_is_taken_frees_its_group_at_once(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    for name in ("a1", "a2"):
        message = await broker.take("q")
        assert message is not None
        assert await names([message]) == [name]


# Connections that hold messages


async def test_a_connection_holds_one_of_a_group_at_a_time(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2", "b1")
    held = await broker.hold("q", 10)
    assert await names([each.message for each in held]) == ["a1", "b1"]
    await broker.acknowledge(held[:1])
    [second] = await broker.hold("q", 10)
    assert await names([second.message]) == ["a2"]


@pytest.mark.parametrize("to_back", [False, True])
async def test_what_is_put_back_is_the_first_of_its_group(broker: Broker, to_back: bool) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    held = await broker.hold("q", 10)
    assert await broker.hold("q", 10) == []
    await broker.put_back(held, to_back=to_back)
    assert await names([each.message for each in await broker.hold("q", 10)]) == ["a1"]


async def test_a_rejected_message_frees_its_group(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "a2")
    await broker.reject(await broker.hold("q", 10))
    assert await names([each.message for each in await broker.hold("q", 10)]) == ["a2"]


# Durable batches


async def test_a_batch_has_several_of_a_group_and_blocks_it(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a1", "b1", "a2", "b2", "a3")
    [leased] = await fetch(broker)
    assert await names([leased]) == ["a1"]
    position = await broker.claims.start("q", "spark")
    batch = await broker.claims.claim("q", "spark", 1, position.epoch, most=10, lease=60)
    assert batch is not None
    assert batch.messages == 2
    await remove(broker, leased)
    await publish(broker, "b3")
    assert await names(await fetch(broker, 5)) == ["a2", "a3"]


# Over a restart


async def test_order_and_groups_outlive_a_restart(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", GROUPED)
        await publish(broker, "a1", "b1", "a2", "b2")
        [first] = await fetch(broker, lease=600)
    async with opened(disk_address) as broker:
        assert await names(await fetch(broker, 5)) == ["b1", "b2"]
        await remove(broker, first)
        assert await names(await fetch(broker, 5)) == ["a2"]


async def test_dead_letters_keep_their_groups(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await broker.create_queue("from")
    await publish(broker, "a1", "a2", "b1", queue="from", is_group_hint=True)
    assert (await broker.redrive("from", "q")).moved == 3
    [first] = await fetch(broker)
    assert await names([first, *await fetch(broker, 5)]) == ["a1", "b1"]


# Settings


async def test_groups_begin_with_messages_there(broker: Broker) -> None:
    await publish(broker, "a1", "a2", "a3", is_group_hint=True)
    [first] = await fetch(broker)
    await broker.change_settings("q", GROUPED)
    assert await fetch(broker, 5) == []
    await remove(broker, first)
    assert await names(await fetch(broker)) == ["a2"]
    await broker.change_settings("q", {"groups": False})
    assert await names(await fetch(broker)) == ["a3"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
async def test_groups_of_a_long_queue_begin_step_by_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, seed: int
) -> None:
    """Nothing is handed out until all have begun, for the first of a group may be the last that is looked at."""
    monkeypatch.setattr(queues, "REGROUPED_AT_ONCE", 1)
    random = Random(seed)
    sent = [f"{random.choice('abc-')}{number}" for number in range(200)]
    ids = dict(zip(sent, await publish(broker, *sent, is_group_hint=True), strict=True))
    [leased] = await fetch(broker)
    held = await broker.hold("q", 2)
    out = {*await names([leased]), *await names([each.message for each in held])}
    nursery.start_soon(broker.change_settings, "q", GROUPED)
    groups = None
    while groups is None:
        await trio.lowlevel.checkpoint()
        groups = catalog_of(broker).queues["q"].groups
    steps, gone = 0, set()
    for name in random.sample(sorted(set(sent) - out), 10):
        if groups._unread:
            more = await fetch(broker, 5)
            steps += bool(groups._unread)
            assert not (more and groups._unread)
            await broker.give_back(more)
        await broker.remove("q", ids[name])
        gone.add(name)
    assert steps
    await broker.put_back(held)
    late = [f"{random.choice('abc-')}{number}" for number in range(200, 205)]
    await publish(broker, *late, is_group_hint=True)
    await wait_all_tasks_blocked()
    assert not groups._unread
    [first] = await names([leased])
    blocked = first[0] if first[0] != "-" else None
    seen = [await names([each]) for each in await drain(broker)]
    flat = [name for [name] in seen]
    left = [name for name in sent + late if name not in gone and name != first]
    for group in "abc":
        expected = [] if group == blocked else [name for name in left if name[0] == group]
        assert [name for name in flat if name[0] == group] == expected
    assert {name for name in flat if name[0] == "-"} == {name for name in left if name[0] == "-"}
    await remove(broker, leased)
    if blocked is not None:
        assert await names(await drain(broker)) == [name for name in left if name[0] == blocked]
    await wait_all_tasks_blocked()
    assert len(groups) == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_messages_that_are_out_block_their_groups_step_by_step(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery, seed: int
) -> None:
    """Some come back, and some are removed, before they were looked at."""
    monkeypatch.setattr(queues, "REGROUPED_AT_ONCE", 1)
    random = Random(seed)
    sent = [f"{random.choice('abc')}{number}" for number in range(90)]
    await publish(broker, *sent, is_group_hint=True)
    leased = {(await names([each]))[0]: each for each in await fetch(broker, 30)}
    held = {(await names([each.message]))[0]: each for each in await broker.hold("q", 30)}
    gone: list[str] = []

    async def settle_one() -> None:
        some = random.choice([each for each in (leased, held) if each])
        name = random.choice(sorted(some))
        is_removed = random.random() < 0.5
        if some is leased:
            message = leased.pop(name)
            await (remove(broker, message) if is_removed else broker.give_back([message]))
        else:
            message = held.pop(name)
            await (broker.acknowledge([message]) if is_removed else broker.put_back([message]))
        gone.extend([name] * is_removed)

    nursery.start_soon(broker.change_settings, "q", GROUPED)
    while catalog_of(broker).queues["q"].groups is None:
        await trio.lowlevel.checkpoint()
    for _ in range(25):
        await settle_one()
    await wait_all_tasks_blocked()
    while leased or held:
        await settle_one()
        for message in await fetch(broker):
            [name] = await names([message])
            earlier = [each for each in sent[: sent.index(name)] if each[0] == name[0]]
            assert not {*earlier} & (leased.keys() | held.keys()), name
            await remove(broker, message)
            gone.append(name)
    rest = [(await names([each]))[0] for each in await drain(broker)]
    assert sorted(gone + rest) == sorted(sent)
    for group in "abc":
        assert [name for name in rest if name[0] == group] == [
            name for name in sent if name[0] == group and name in rest
        ]


async def test_groups_begin_though_who_asked_for_it_goes(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """The setting is durable by then. A fetch that waits gets the first one once they have begun."""
    monkeypatch.setattr(queues, "REGROUPED_AT_ONCE", 1)
    await publish(broker, *(f"a{number}" for number in range(30)), is_group_hint=True)
    asking = trio.CancelScope()

    async def ask() -> None:
        with asking:
            await broker.change_settings("q", GROUPED)

    nursery.start_soon(ask)
    groups = None
    while groups is None:
        await trio.lowlevel.checkpoint()
        groups = catalog_of(broker).queues["q"].groups
    assert groups._unread
    asking.cancel()
    assert await names(await fetch(broker, wait=30)) == ["a0"]
    assert not groups._unread
    assert await fetch(broker) == []
    await broker.delete_queue("q")
    await broker.create_queue("q")
    assert await fetch(broker) == []


async def test_a_group_is_refused_where_its_order_would_be_lost(broker: Broker) -> None:
    [error] = await broker.publish_many("q", [Draft(b"", group="a")])
    assert isinstance(error, Conflict)
    assert "groups=true" in str(error)
    await broker.change_settings("q", {"max_priority": 3})
    with pytest.raises(InvalidSetting, match="cannot have both"):
        await broker.change_settings("q", GROUPED)


async def test_groups_are_refused_among_peers(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", GROUPED)
    with pytest.raises(StorageUnusable, match="without --peers or --no-mover"):
        async with opened(disk_address, peers=1):
            pass
    async with opened(disk_address) as broker:
        await broker.delete_queue("q")
    async with opened(disk_address, peers=1) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict, match="without --peers or --no-mover"):
            await broker.change_settings("q", GROUPED)


# Groups that are hints, in a queue without groups


async def test_a_noisy_group_lets_others_have_their_turn_and_blocks_nobody(broker: Broker) -> None:
    await publish(broker, *(f"a{n}" for n in range(6)), "b0", "-0", "-1", "b1", is_group_hint=True)
    assert await names(await fetch(broker, 10)) == ["a0", "b0", "-0", "a1", "b1", "-1", "a2", "a3", "a4", "a5"]


async def test_turns_go_on_from_one_fetch_to_the_next(broker: Broker) -> None:
    await publish(broker, "a0", "a1", "a2", "b0", "b1", "c0", is_group_hint=True)
    seen = [await names(await fetch(broker)) for _ in range(6)]
    assert seen == [["a0"], ["b0"], ["c0"], ["a1"], ["b1"], ["a2"]]


async def test_a_connection_holds_messages_by_turns(broker: Broker) -> None:
    await publish(broker, "a0", "a1", "a2", "b0", is_group_hint=True)
    held = await broker.hold("q", 3, wait=1)
    assert await names([each.message for each in held]) == ["a0", "b0", "a1"]
    await broker.put_back(held)
    assert await names(await fetch(broker, 4)) == ["b0", "a0", "a1", "a2"]


async def test_turns_outlive_a_restart(opened: Opener, disk_address: str) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await publish(broker, "-0", "a0", "a1", "a2", "b0", is_group_hint=True)
    async with opened(disk_address) as broker:
        assert await names(await fetch(broker, 5)) == ["-0", "a0", "b0", "a1", "a2"]


async def test_priorities_come_before_turns(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 9})
    await publish(broker, "a0", "a1", "b0", is_group_hint=True, priority=5)
    await publish(broker, "c0", is_group_hint=True, priority=1)
    assert await names(await fetch(broker, 2)) == ["a0", "a1"]
    await broker.change_settings("q", {"max_priority": 0})
    assert sorted(await names(await fetch(broker, 2))) == ["b0", "c0"]


async def test_groups_that_end_take_turns(broker: Broker) -> None:
    await broker.change_settings("q", GROUPED)
    await publish(broker, "a0", "a1", "a2", "b0")
    await broker.change_settings("q", {"groups": False})
    assert await names(await fetch(broker, 4)) == ["a0", "b0", "a1", "a2"]


def test_groups_begin_behind_a_message_that_is_being_moved_by_then() -> None:
    ids = MessageIds(lambda: 0)
    first, second = ids.new("a"), ids.new("a")
    index = QueueIndex("q", 0, QueueSettings())
    index.add(Entry("q", first, State.NEW))
    index.add(Entry("q", second, State.READY))
    index.settings = QueueSettings(groups=True)
    index.regroup([])
    index.discard(first)  # it is on its way to READY
    while index.regroup_some(1, {first}.__contains__):
        pass
    assert index.next() is None
    index.add(Entry("q", first, State.READY))
    assert index.take() == Entry("q", first, State.READY)


# The index, against a model


class Model(RuleBasedStateMachine):
    """A queue's index beside lists of what each group has, in order: coming, READY or out."""

    @initialize()
    def begin(self) -> None:
        self.ids = MessageIds(lambda: 0)
        self.index = QueueIndex("q", 0, QueueSettings(groups=True))
        self.groups: dict[object, list[MessageId]] = {}
        self.state: dict[MessageId, str] = {}
        self.come_back: set[MessageId] = set()
        self.moving: set[MessageId] = set()

    @rule(group=st.sampled_from(["a", "b", "c", None]))
    def write(self, group: str | None) -> None:
        id = self.ids.new(group)
        self.index.add(Entry("q", id, State.NEW))
        self.groups.setdefault(group or id, []).append(id)
        self.state[id] = "coming"

    @rule(data=st.data(), to=st.sampled_from(["ready", "gone"]))
    def deliver(self, data: st.DataObject, to: str) -> None:
        self._arrive(self._some(data, "coming"), State.NEW, to)

    @rule(data=st.data(), to=st.sampled_from(["ready", "gone", "leased", "held back", "held"]))
    def end(self, data: st.DataObject, to: str) -> None:
        self._arrive(self._some(data, "out"), None, to)

    @rule(data=st.data(), to=st.sampled_from(["gone", "ready"]))
    def take_from_the_middle(self, data: st.DataObject, to: str) -> None:
        id = self._some(data, "ready")
        if id is not None:
            assert self.index.discard(id) is not None
            self._arrive(id, None, to)

    @rule(count=st.integers(1, 4))
    def fetch(self, count: int) -> None:
        last: MessageId | None = None
        for _ in range(count):
            may = self._may_come(last)
            peeked = self.index.next(last)
            entry = self.index.take(last)
            assert peeked == entry
            if entry is None:
                assert not may
                return
            assert entry.id in may
            self.state[entry.id] = "out"
            self.moving.add(entry.id)
            last = entry.id

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "groups"):
            groups = self.index.groups
            assert groups is not None
            assert len(groups) == len({number_of(id) for id, state in self.state.items() if state != "gone"})

    def _may_come(self, last: MessageId | None) -> set[MessageId]:
        """What may be handed out next: of the same group as `last` if there is one, else of a free group."""
        firsts: set[MessageId] = set()
        for ids in self.groups.values():
            there = [id for id in ids if self.state[id] in ("ready", "coming")]
            if not there or self.state[there[0]] != "ready":
                continue
            is_last = last is not None and last in ids
            if not is_last and self.moving.intersection(ids):
                continue  # it may come back before the others of its group
            after_last = ids[ids.index(last) + 1 :] if last is not None and is_last else ids
            blocking = ids[: ids.index(there[0])] if there[0] in self.come_back else ids
            if not any(self.state[id] == "out" for id in blocking if id in after_last):
                firsts.add(there[0])
                if is_last:
                    return {there[0]}
        return firsts

    def _some(self, data: st.DataObject, state: str) -> MessageId | None:
        some = [id for id, each in self.state.items() if each == state]
        return data.draw(st.sampled_from(some)) if some else None

    def _arrive(self, id: MessageId | None, source: State | None, to: str) -> None:
        if id is None:
            return
        self.index.discard(id)
        assert self.index.groups is not None
        if to == "ready":
            self.index.add(Entry("q", id, State.READY))
        elif to == "gone":
            self.index.groups.release(id)
        elif to == "leased":
            self.index.add(Entry("q", id, State.DELAYED, Meta(1, 1, "0" * 16)))
            self.index.groups.rests(id)
        elif to == "held back":
            self.index.add(Entry("q", id, State.DELAYED, Meta(1, 1)))
            self.index.groups.rests(id)
        else:
            self.index.hold(Entry("q", id, State.READY))
        if to == "ready" and self.state[id] != "coming":
            self.come_back.add(id)
        self.moving.discard(id)
        self.state[id] = to if to in ("ready", "gone") else "out"


def test_a_message_that_came_back_waits_for_others_that_are_being_moved() -> None:
    """Random runs find this rarely."""
    model = Model()
    model.begin()
    for _ in range(2):
        model.write("a")
        model._arrive([*model.state][-1], State.NEW, "ready")
    first, second = model.state
    model.fetch(2)
    model._arrive(first, None, "ready")
    model.fetch(1)
    assert model.state[first] == "ready"
    model._arrive(second, None, "held")
    model.fetch(1)
    assert model.state[first] == "out"


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class Turns(RuleBasedStateMachine):
    """The index of a queue without groups, beside what is READY in each group that its messages name."""

    @initialize()
    def begin(self) -> None:
        self.ids = MessageIds(lambda: 0)
        self.index = QueueIndex("q", 0)
        self.ready: dict[str | None, list[MessageId]] = {}
        self.served: dict[str | None, list[str | None]] = {}  # for each group that waits: who had a turn since
        self.away: list[tuple[str | None, MessageId]] = []

    @rule(group=st.sampled_from(["a", "b", "c", None]), count=st.integers(1, 80))
    def publish(self, group: str | None, count: int) -> None:
        for _ in range(count):
            self._add(group, self.ids.new(group))

    @rule(count=st.integers(1, 100))
    def take(self, count: int) -> None:
        for _ in range(count):
            entry = self.index.take()
            if entry is None:
                assert not any(self.ready.values())
                return
            [group] = [name for name, ids in self.ready.items() if entry.id in ids]
            assert self.ready[group].pop(0) == entry.id, "in a group the order is that of the queue"
            self.served.pop(group)
            for name, turns in self.served.items():
                assert group not in turns, f"{group} had two turns while {name} waited"
                turns.append(group)
            if self.ready[group]:
                self.served[group] = []
            self.away.append((group, entry.id))

    @rule(data=st.data(), count=st.integers(1, 100))
    def discard(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            there = [(name, id) for name, ids in self.ready.items() for id in ids]
            if not there:
                return
            group, id = there[data.draw(st.integers(0, len(there) - 1))]
            assert self.index.discard(id) is not None
            self.ready[group].remove(id)
            if not self.ready[group]:
                self.served.pop(group)
            self.away.append((group, id))

    @rule()
    def come_back(self) -> None:
        while self.away:
            self._add(*self.away.pop())

    @invariant()
    def little_is_kept(self) -> None:
        turns = self.index._turns if hasattr(self, "index") else None
        if turns is not None:
            kept = sum(map(len, turns._heaps.values()))
            assert turns._size == kept <= 2 * self.index.ready + 100
            assert self.index.ready
            assert len(turns._turns) == len(set(turns._turns)) == len(turns._heaps) <= 4

    def _add(self, group: str | None, id: MessageId) -> None:
        self.index.add(Entry("q", id, State.READY))
        ids = self.ready.setdefault(group, [])
        if not ids:
            self.served[group] = []
        ids.append(id)
        ids.sort(key=lambda each: each.key)


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_keys_that_turns_keep_of_messages_that_are_gone_are_forgotten() -> None:
    index, ids = QueueIndex("q", 0), MessageIds()
    some = [ids.new(group) for group in ("a", "b", "a", "b")]
    for id in some:
        index.add(Entry("q", id, State.READY))
    for _ in range(500):
        index.discard(some[2])
        index.add(Entry("q", some[2], State.READY))
    assert index._turns is not None
    assert sum(map(len, index._turns._heaps.values())) < 100
    assert [entry.id for entry in iter(index.take, None)] == some


def test_messages_without_groups_take_no_turns() -> None:
    index, ids = QueueIndex("q", 0), MessageIds()
    for _ in range(3):
        index.add(Entry("q", ids.new(), State.READY))
    assert index._turns is None
    index.add(Entry("q", grouped := ids.new("a"), State.READY))
    assert index._turns is not None
    index.discard(grouped)
    assert [index.take() is not None for _ in range(4)] == [True, True, True, False]
    assert index._turns is None, "and none again once the queue was empty"


def test_turns_of_groups_that_are_gone_are_forgotten() -> None:
    index, ids = QueueIndex("q", 0, QueueSettings(groups=True)), MessageIds()
    for _ in range(2000):
        id = ids.new()
        index.add(Entry("q", id, State.READY))
        index.discard(id)
        assert index.groups is not None
        index.groups.release(id)
    assert len(index.groups._turns) < 100
    assert len(index.groups) == 0


def test_keys_of_messages_that_came_and_went_are_forgotten() -> None:
    index, ids = QueueIndex("q", 0, QueueSettings(groups=True)), MessageIds()
    assert index.groups is not None
    some = [ids.new("a") for _ in range(5)]
    for id in some:
        index.add(Entry("q", id, State.READY))
    for _ in range(500):
        index.discard(some[3])
        index.add(Entry("q", some[3], State.READY))
    assert len(index.groups._groups[group_number("a")].heap) < 100
    taken: list[MessageId] = []
    while (entry := index.take(taken[-1] if taken else None)) is not None:
        taken.append(entry.id)
    assert taken == some


def test_an_id_tells_its_group() -> None:
    ids = MessageIds(lambda: 0)
    first, second, other, none = ids.new("a"), ids.new("a"), ids.new("b"), ids.new()
    assert first.key < second.key < other.key < none.key
    assert number_of(first) == number_of(second) == group_number("a") != number_of(other)
    assert number_of(none) == none.key
    assert MessageGroups({}).next() is None


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("count", [1, 10])
async def test_a_damaged_message_keeps_none_behind_it_waiting(wall_clock: WallClock, count: int, holds: bool) -> None:
    """Neither while it is put aside, nor when it comes again; and those behind it keep their order."""
    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            await broker.change_settings("q", GROUPED)
            damaged, *_ = await publish(broker, "a1", "a2", "a3", "b1", "a4")
            await wait_all_tasks_blocked()
        disk.overwrite(f"queues/q/{damaged}", b"?!")
        async with open_broker(await disk.open()) as broker:
            groups = catalog_of(broker).queues["q"].groups
            assert groups is not None
            seen: list[str] = []
            for _ in range(4):
                if holds:
                    found = [each.message for each in await broker.hold("q", count, wait=1)]
                else:
                    found = await fetch(broker, count, wait=1)
                assert all(groups.is_blocked(message.id) for message in found)
                seen += await names(found)
                for message in found:
                    await broker.remove("q", message.id)
                await trio.sleep(60)  # the damaged one comes again
            assert [name for name in seen if name != "b1"] == ["a2", "a3", "a4"]
            await broker.remove("q", damaged)
            await wait_all_tasks_blocked()  # so that the disk is whole at the end
            assert len(groups) == 0
            assert not groups._passed_over


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("holds", [False, True])
async def test_a_large_damaged_message_keeps_none_waiting_once_it_was_read(
    wall_clock: WallClock, holds: bool, is_whole: bool
) -> None:
    """Its damage shows only while its body is read, in one go or chunk by chunk."""
    large = bytes(READ_AT_ONCE + 1)

    async def first(broker: Broker) -> Message:
        if holds:
            return (await broker.hold("q", 1, wait=1))[0].message
        return (await fetch(broker, wait=1))[0]

    async with open_disk(MOUNTS["rename"]) as disk:
        async with open_broker(disk.storage) as broker:
            await broker.change_settings("q", GROUPED)
            [damaged, _] = [each.id for each in await broker.publish_many("q", [Draft(large, group="a")] * 2)]
            await wait_all_tasks_blocked()
        disk.overwrite(f"queues/q/{damaged}", large[:-1] + b"!")
        async with open_broker(await disk.open()) as broker:
            message = await first(broker)
            assert message.id == damaged
            assert message.body.size == len(large)
            assert await fetch(broker) == [], "nothing is known of it yet"
            with pytest.raises(CorruptMessage):
                await (message.body.read() if is_whole else read_by_chunks(message.body))
            await message.body.aclose()
            following = await first(broker)
            assert await following.body.read() == large
            await following.body.aclose()
            for each in (message, following):
                await broker.remove("q", each.id)
            await wait_all_tasks_blocked()
