"""Messages of a higher priority first, where the queue has priorities."""

from __future__ import annotations

import pytest
import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker, Draft
from mq.broker.index import QueueIndex, order_of
from mq.broker.settings import QueueSettings
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import FRESH, Entry, Meta
from tests.broker.conftest import START_NS, Opener
from tests.broker.test_broker import take


async def publish(broker: Broker, *priorities: int) -> None:
    await broker.publish_many("q", [Draft(b"%d" % priority, priority=priority) for priority in priorities])


async def all_of(broker: Broker) -> list[bytes]:
    found = []
    while (body := await take(broker)) is not None:
        found.append(body)
    return found


async def test_a_higher_one_is_handed_out_first(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 9})
    await publish(broker, 0, 5, 9, 5, 1)
    assert await all_of(broker) == [b"9", b"5", b"5", b"1", b"0"]


async def test_the_next_one_tells_how_long_it_has_been_there(broker: Broker) -> None:
    """Its place in the order is years ahead for a low priority: as an age that was none at all."""
    await broker.change_settings("q", {"max_priority": 9})
    begin_ns = START_NS + round(trio.current_time() * 1e9)
    await publish(broker, 0)
    await trio.sleep(100)
    assert (await broker.status("q")).oldest_ns == pytest.approx(begin_ns, abs=1e7)
    await publish(broker, 5)
    await wait_all_tasks_blocked()
    assert (await broker.status("q")).oldest_ns == pytest.approx(begin_ns + 100e9, abs=1e7)


async def test_a_priority_over_the_highest_is_the_highest(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 1})
    await publish(broker, 0, 1, 255)
    assert await all_of(broker) == [b"1", b"255", b"0"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(0, 3, "345210"), (3, 0, "012345"), (3, 9, "543210"), (9, 2, "234510"), (9, 9, "543210"), (0, 255, "543210")],
)
@pytest.mark.parametrize("is_restarted", [False, True], ids=["running", "restarted"])
async def test_a_changed_max_priority_applies_to_the_messages_in_the_queue(
    disk_address: str, opened: Opener, before: int, after: int, expected: str, is_restarted: bool
) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.change_settings("q", {"max_priority": before})
        await publish(broker, *range(6))
        await broker.change_settings("q", {"max_priority": after})
        if not is_restarted:
            assert b"".join(await all_of(broker)).decode() == expected
            return
    async with opened(disk_address) as broker:
        assert b"".join(await all_of(broker)).decode() == expected


async def test_a_changed_max_priority_applies_to_what_comes_back(broker: Broker) -> None:
    await publish(broker, *range(4))
    held = await broker.hold("q", 2)
    leased = await broker.fetch_many("q", 2)
    await broker.change_settings("q", {"max_priority": 9})
    await broker.put_back(held, to_back=True)
    for message in leased:
        await broker.requeue("q", message.id, receipt=message.receipt)
    assert await all_of(broker) == [b"3", b"2", b"1", b"0"]


async def test_a_dead_letter_keeps_its_priority(broker: Broker) -> None:
    await broker.create_queue("dead")
    await broker.change_settings("dead", {"max_priority": 9})
    await broker.change_settings("q", {"dead_letter_queue": "dead"})
    await publish(broker, 1, 5, 3)
    await broker.reject(await broker.hold("q", 3))
    assert [await take(broker, "dead") for _ in range(3)] == [b"5", b"3", b"1"]


async def test_peek_shows_messages_in_the_order_of_their_priorities(broker: Broker) -> None:
    await publish(broker, *range(5))
    for highest, expected in ((3, [b"3", b"4", b"2", b"1", b"0"]), (0, [b"0", b"1", b"2", b"3", b"4"])):
        await broker.change_settings("q", {"max_priority": highest})
        seen: list[bytes] = []
        last: str | None = None
        while page := await broker.peek("q", most=2, after=last):
            seen += [await each.message.body.read() for each in page]
            last = page[-1].message.id
        assert seen == expected


async def test_a_claim_up_to_a_place_passes_over_later_messages_of_a_higher_priority(broker: Broker) -> None:
    await broker.change_settings("q", {"max_priority": 9})
    await publish(broker, 0, 1)
    high = (await broker.claims.start("q", "spark")).high_watermark
    await publish(broker, 9)
    epoch = (await broker.claims.start("q", "spark")).epoch
    batch = await broker.claims.claim("q", "spark", 1, epoch, most=10, lease=60, up_to=high)
    assert batch is not None
    assert batch.messages == 2
    assert await take(broker) == b"9"


class Priorities(RuleBasedStateMachine):
    """A queue's index beside a list of its READY messages."""

    @initialize()
    def begin(self) -> None:
        self.ids = MessageIds(lambda: 0)
        self.index = QueueIndex("q", 0)
        self.there: list[tuple[int, Entry]] = []
        self.away: list[tuple[int, Entry]] = []

    @rule(priority=st.sampled_from([0, 0, 1, 4, 9]), count=st.integers(1, 60))
    def add(self, priority: int, count: int) -> None:
        for _ in range(count):
            id = self.ids.new()
            meta = Meta(order=order_of(id.time, priority)) if priority else FRESH
            self.there.append((priority, Entry("q", id, State.READY, meta)))
            self.index.add(self.there[-1][1])

    @rule(highest=st.sampled_from([0, 1, 3, 9]))
    def change(self, highest: int) -> None:
        self.index.settings = QueueSettings(max_priority=highest)

    @rule(count=st.integers(1, 50))
    def take(self, count: int) -> None:
        for _ in range(count):
            expected = min(self.there, key=self._place, default=None)
            peeked = self.index.first(1)
            entry = self.index.take()
            assert entry == (None if expected is None else expected[1])
            assert peeked == ([] if entry is None else [entry])
            if expected is None:
                return
            self.there.remove(expected)
            self.away.append(expected)

    @rule(data=st.data(), count=st.integers(1, 50))
    def discard(self, data: st.DataObject, count: int) -> None:
        for _ in range(min(count, len(self.there))):
            one = self.there.pop(data.draw(st.integers(0, len(self.there) - 1)))
            assert self.index.discard(one[1].id) == one[1]
            self.away.append(one)

    @rule()
    def come_back(self) -> None:
        for one in self.away:
            self.index.add(one[1])
        self.there += self.away
        self.away = []

    @rule()
    def look(self) -> None:
        expected = [entry for _, entry in sorted(self.there, key=self._place)]
        assert list(self.index.in_order()) == expected
        assert self.index.after(None, 10**6) == expected
        middle = len(expected) // 2
        if expected:
            assert self.index.after(expected[middle].id, 10**6) == expected[middle + 1 :]

    @invariant()
    def little_is_kept(self) -> None:
        if hasattr(self, "index"):
            kept = len(self.index._heap) + sum(map(len, self.index._higher.values()))
            assert kept <= 2 * self.index.ready + 70 + len(self.away)

    def _place(self, one: tuple[int, Entry]) -> tuple[int, int]:
        return -min(one[0], self.index.settings.max_priority), one[1].id.key


TestPriorities = Priorities.TestCase
TestPriorities.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


async def test_a_queue_without_priorities_keeps_its_order(broker: Broker) -> None:
    await publish(broker, 0, 255, 1)
    assert await all_of(broker) == [b"0", b"255", b"1"]


@pytest.mark.parametrize("wait", [0.0, 1.0])
async def test_a_confirmed_message_comes_before_all_of_a_lower_priority(broker: Broker, wait: float) -> None:
    """Also while the earlier one is delivered and the later one is not: the mover takes them batch by batch."""
    await broker.change_settings("q", {"max_priority": 9})
    for steps in range(30):
        await publish(broker, 0)
        await publish(broker, 5)
        for _ in range(steps % 10):
            await trio.lowlevel.checkpoint()
        [first] = await broker.hold("q", wait=wait)
        [second] = await broker.hold("q", wait=wait)
        assert [await each.message.body.read() for each in (first, second)] == [b"5", b"0"]
        await broker.acknowledge([first, second])
