"""Write jobs: all of their rows come, or none, wherever the power is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, BrokerConfig, Draft, open_broker, write_jobs
from mq.broker.write_jobs import CHUNK_BYTES, KEEP_SECONDS
from mq.doors.budget import Budget
from mq.errors import (
    BodyTooLarge,
    Conflict,
    InvalidName,
    InvalidSetting,
    MQError,
    NoDisk,
    NoSuchQueue,
    NotYours,
    QueueFull,
)
from mq.message import MessageId, QueueName
from mq.storage.conformance import check_whole
from mq.storage.files.hop import inline_hop
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import WRITE_JOBS, Entry, Move, Result, State, Unlink, Write
from mq.storage.options import StorageOptions
from simulation.disk import Disk, Medium
from simulation.faults import DiskFault, Faults, PowerCut
from simulation.run import LOG_BYTES, MOUNTS, START_NS
from tests.broker.conftest import Opener
from tests.broker.inside import wiring_of
from tests.commit import commit_number

DAY: Final = 86_400
ROWS: Final = {
    ("q", "0.5", 0): [Draft(b"a", key="ka"), Draft(b"b"), Draft(b"c", {"content_type": "text/plain"})],
    ("r", "0.5", 1): [Draft(b"d", key="kd"), Draft(b"e", delay=30 * DAY)],
    ("q", "1.7", 0): [Draft(b"f", key="kf")],
    ("q", "1.6", 0): [Draft(b"loser", key="kf")],
}
"""What each request of the job brings. Of the second task another run counts."""
PARTS: Final = ["0.5", "1.7"]
ALL: Final = ["a", "b", "c", "d", "e", "f"]


async def browsed(broker: Broker, *queues: str) -> list[bytes]:
    """The bodies that readers see, delayed ones too."""
    found = []
    for queue in queues:
        page = await broker.browsing.browse(queue)
        delayed = await broker.peek(queue, state="delayed")
        found += [await seen.message.body.read() for seen in (*page.messages, *delayed)]
    return found


async def hold(broker: Broker) -> None:
    for (queue, part, number), drafts in ROWS.items():
        assert await broker.writes.add(queue, "job", part, number, drafts) == [None] * len(drafts)


async def test_nothing_is_seen_before_the_commit_and_all_after_it(broker: Broker) -> None:
    await broker.create_queue("r")
    await hold(broker)
    assert await browsed(broker, "q", "r") == []
    assert (await broker.status("q")).ready == 0
    [job] = await broker.writes.of("q")
    assert job == ("job", "open", ["q", "r"], 7, None)
    done = await broker.writes.commit("q", "job", PARTS, 6)
    assert (done.state, done.rows, done.duplicates) == ("done", 6, 0)
    assert await browsed(broker, "q", "r") == [b"a", b"b", b"c", b"f", b"d", b"e"]
    assert await broker.writes.of("q") == []


async def test_a_commit_that_is_asked_for_again_tells_the_same(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.publish_many("q", [Draft(b"a", key="ka")])
        await broker.writes.add("q", "job", "0", 0, [Draft(b"a", key="ka"), Draft(b"b", key="kb")])
        first = await broker.writes.commit("q", "job", ["0"], 2)
        assert first.duplicates == 1
        assert await broker.writes.commit("q", "job", ["0"], 2) == first
    async with opened(disk_address) as broker:
        assert await broker.writes.commit("q", "job", ["0"], 2) == first
        assert await browsed(broker, "q") == [b"a", b"b"]
        await broker.writes.abort("q", "job")  # it is forgotten
        with pytest.raises(Conflict, match="does not exist"):
            await broker.writes.commit("q", "job", ["0"], 2)


async def test_a_request_that_is_sent_again_is_held_once(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        for _ in range(2):
            await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    async with opened(disk_address) as broker:
        await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
        await broker.writes.add("q", "job", "0", 1, [Draft(b"y")])
        await broker.writes.commit("q", "job", ["0"], 2)
        assert await browsed(broker, "q") == [b"x", b"y"]


async def test_an_aborted_job_leaves_nothing_and_takes_nothing(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.create_queue("r")
        await hold(broker)
        await broker.writes.abort("r", "job")
        assert await broker.storage.scan(State.NEW) == []
        with pytest.raises(Conflict, match="does not accept more messages"):
            await hold(broker)
    async with opened(disk_address) as broker:
        with pytest.raises(Conflict, match="was aborted"):
            await broker.writes.commit("q", "job", PARTS, 6)
        assert await browsed(broker, "q", "r") == []


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_abandoned_job_is_taken_away_by_itself(disk_address: str, opened: Opener, restarts: bool) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
        await trio.sleep(KEEP_SECONDS - 10)
        await broker.writes.add("q", "job", "0", 1, [Draft(b"y")])  # a sign of life
        if not restarts:
            await trio.sleep(KEEP_SECONDS - 10)
            assert len(await broker.writes.of("q")) == 1
            await trio.sleep(20)
            assert await broker.storage.scan(State.NEW) == []
            assert await broker.writes.of("q") == []
    if restarts:
        async with opened(disk_address) as broker:
            assert len(await broker.writes.of("q")) == 1
            await trio.sleep(KEEP_SECONDS + 10)
            assert await broker.storage.scan(State.NEW) == []
            await trio.sleep(KEEP_SECONDS + 10)
            assert await broker.storage.records("write_job") == {}


async def test_a_commit_counts(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    with pytest.raises(Conflict, match="contain 1 message instead of 2"):
        await broker.writes.commit("q", "job", ["0"], 2)
    with pytest.raises(Conflict, match="contain 0 messages instead of 1"):
        await broker.writes.commit("q", "job", ["1"], 1)
    assert await browsed(broker, "q") == []
    assert (await broker.writes.commit("q", "none", [], 0)).rows == 0


async def test_rows_that_a_queue_refuses_are_refused_at_once(broker: Broker) -> None:
    errors = await broker.writes.add("q", "job", "0", 0, [Draft(b"x", group="g"), Draft(b"y"), Draft(b"z", delay=-1)])
    assert [type(error) for error in errors] == [Conflict, type(None), InvalidSetting]
    assert (await broker.writes.commit("q", "job", ["0"], 1)).rows == 1
    assert await browsed(broker, "q") == [b"y"]


async def test_a_queue_without_room_refuses_the_commit_and_takes_it_later(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x"), Draft(b"y")])
    for name, no_room, room in (("max_messages", 1, 2), ("max_bytes", 1, 2), ("publish_paused", True, False)):
        await broker.change_settings("q", {name: no_room})
        with pytest.raises(QueueFull):
            await broker.writes.commit("q", "job", ["0"], 2)
        assert await browsed(broker, "q") == []
        await broker.change_settings("q", {name: room})
    await broker.writes.commit("q", "job", ["0"], 2)
    assert await browsed(broker, "q") == [b"x", b"y"]


async def test_a_queue_that_was_made_anew_gets_no_rows_of_before(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    await broker.delete_queue("q")
    with pytest.raises(NoSuchQueue):
        await broker.writes.commit("q", "job", ["0"], 1)
    await broker.create_queue("q")
    with pytest.raises(Conflict, match="was deleted while"):
        await broker.writes.commit("q", "job", ["0"], 1)


async def test_another_queue_neither_commits_nor_aborts_it(broker: Broker) -> None:
    await broker.create_queue("other")
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    with pytest.raises(Conflict, match="no messages for queue other"):
        await broker.writes.commit("other", "job", ["0"], 1)
    with pytest.raises(Conflict, match="no messages for queue other"):
        await broker.writes.abort("other", "job")


async def test_delays_and_times_to_live_begin_with_the_commit(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"late", delay=100), Draft(b"short", ttl=100)])
    await trio.sleep(1000)
    await broker.writes.commit("q", "job", ["0"], 2)
    await trio.sleep(99)
    assert await browsed(broker, "q") == [b"short", b"late"]
    await trio.sleep(2)
    assert await browsed(broker, "q") == [b"late"]


async def test_large_requests_are_cut_and_come_in_order(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.write_jobs.LARGEST_CHUNK", 10)
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 4)
    bodies = [b"%03d" % number for number in range(50)]
    await broker.writes.add("q", "job", "0", 0, [Draft(body) for body in bodies])
    assert len(await broker.storage.scan(State.NEW, WRITE_JOBS)) == 17
    await broker.writes.commit("q", "job", ["0"], 50)
    assert await browsed(broker, "q") == bodies


async def test_half_of_a_request_counts_as_nothing(
    disk_address: str, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may leave that. No client was told that it is held."""
    monkeypatch.setattr("mq.broker.write_jobs.LARGEST_CHUNK", 10)
    bodies = [b"%03d" % number for number in range(9)]
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.writes.add("q", "job", "0", 0, [Draft(body) for body in bodies])
        lost, *_ = await broker.storage.scan(State.NEW, WRITE_JOBS)
        moved, _ = await broker.storage.commit(
            [Move(lost, State.REMOVED), Unlink(Entry(lost.queue, lost.id, State.REMOVED))]
        )
        assert moved.result is Result.DONE
    async with opened(disk_address) as broker:
        await broker.writes.add("q", "job", "0", 0, [Draft(body) for body in bodies])
        await broker.writes.commit("q", "job", ["0"], 9)
        assert await browsed(broker, "q") == bodies


async def test_who_browses_while_rows_come_waits_for_all(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 1)
    for number in range(20):
        await broker.writes.add("q", "job", "0", number, [Draft(b"%d" % number)])
    seen = []

    async def look() -> None:
        for _ in range(200):
            seen.append(len((await broker.browsing.browse("q")).messages))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await wait_all_tasks_blocked()
        nursery.start_soon(look)
        await broker.writes.commit("q", "job", ["0"], 20)
    assert set(seen) == {0, 20}


async def test_who_browses_waits_also_when_the_caller_of_the_commit_has_gone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it goes."""
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 1)
    seen: list[int] = []
    for steps in range(40):
        job = f"job-{steps}"
        for number in range(5):
            await broker.writes.add("q", job, "0", number, [Draft(b"%d" % number)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.writes.commit, "q", job, ["0"], 5)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        seen.append(len((await broker.browsing.browse("q")).messages))
        await broker.writes.commit("q", job, ["0"], 5)
        await broker.purge("q")
    assert set(seen) == {0, 5}


async def test_two_jobs_may_fill_one_queue(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who browses meanwhile sees none of a job, or all of it."""
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 1)
    for job, rows in (("short", 3), ("long", 30)):
        for number in range(rows):
            await broker.writes.add("q", job, "0", number, [Draft(job.encode())])
    seen = set()

    async def look() -> None:
        for _ in range(300):
            there = Counter(await browsed(broker, "q"))
            seen.add((there[b"short"], there[b"long"]))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        nursery.start_soon(broker.writes.commit, "q", "short", ["0"], 3)
        nursery.start_soon(broker.writes.commit, "q", "long", ["0"], 30)
    assert {short for short, _ in seen} <= {0, 3}
    assert {long for _, long in seen} <= {0, 30}
    assert (3, 30) in seen


async def test_keys_end_again_once_a_job_is_done(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the caller of its commit goes."""
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 1)
    await broker.create_queue("r")
    keys = broker.writes._keys
    assert keys is not None
    for steps in range(60):
        job = f"job-{steps}"
        for number, queue in enumerate("qr"):
            await broker.writes.add(queue, job, "0", number, [Draft(b"%d" % number)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.writes.commit, "q", job, ["0"], 2)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await broker.writes.commit("r", job, ["0"], 2)
        assert not keys.frozen


async def test_a_job_may_be_forgotten_twice_at_a_time(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    await broker.writes.commit("q", "job", ["0"], 1)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(broker.writes.abort, "q", "job")


async def test_damaged_rows_keep_no_daemon_from_starting(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
        await broker.storage.commit([Write(WRITE_JOBS, wiring_of(broker).core.ids.new(), b"", {"job": "job"})])
    async with opened(disk_address) as broker:
        await broker.writes.commit("q", "job", ["0"], 1)
        assert await browsed(broker, "q") == [b"x"]
        assert len(await broker.storage.scan(State.NEW, WRITE_JOBS)) == 1, "what cannot be read is not taken away"


@pytest.mark.parametrize("config", [{"peers": 1}, {"mover": False}])
async def test_others_and_write_jobs_do_not_go_together(disk_address: str, opened: Opener, config: Any) -> None:
    async with opened(disk_address, **config) as broker:
        await broker.create_queue("q")
        with pytest.raises(Conflict, match="without --peers or --no-mover"):
            await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])


async def test_no_queue_has_the_name_under_which_rows_wait(broker: Broker) -> None:
    with pytest.raises(InvalidName, match="reserved for internal use"):
        await broker.create_queue(QueueName(WRITE_JOBS))
    for name in ("", "a/b", "x" * 101):
        with pytest.raises(InvalidSetting, match="invalid write job name or part name"):
            await broker.writes.add("q", name, "0", 0, [Draft(b"x")])


# Power cuts


class Power:
    """A root on a disk that forgets, served by one daemon after the other."""

    def __init__(self, medium: Medium, seed: int, *, log: bool) -> None:
        random = Random(seed)
        self.faults = Faults(random, lambda told: None)
        self.disk = Disk(medium, random, self.faults)
        self.medium, self.log, self.elapsed = medium, log, 0.0
        self.random = Random(-seed)

    def live(self, phase: Callable[[Broker], Awaitable[None]], cut_at: int | None = None) -> bool:
        """One life, after `elapsed` virtual seconds; whether it came to its end before the power was cut."""
        self.faults.lift()
        clock = MockClock(autojump_threshold=0)
        clock.jump(self.elapsed)
        self.faults.cut_at = None if cut_at is None else self.faults.calls + cut_at
        try:
            trio.run(self._serve, phase, clock=clock)
        except* PowerCut:
            pass
        was_cut = self.faults._dead
        self.faults.lift()
        self.disk.crash()
        self.elapsed = clock.current_time()
        return not was_cut

    async def _serve(self, phase: Callable[[Broker], Awaitable[None]]) -> None:
        storage = FolderStorage(
            "simulated:",
            "/mq",
            self.disk,
            StorageOptions(log=self.log, log_bytes=LOG_BYTES),
            mount=lambda root: MOUNTS[self.medium],
            hop=inline_hop,
            syncfs=False,
        )
        await storage.open()
        async with open_broker(storage, BrokerConfig(workers=1), clock_ns=self._wall, random=self.random) as broker:
            await phase(broker)
            await wait_all_tasks_blocked()  # what was removed is unlinked
        await check_whole(storage)
        await storage.aclose()

    def _wall(self) -> int:
        return START_NS + round(trio.current_time() * 1e9)


async def make_queues(broker: Broker) -> None:
    for queue in ("q", "r"):
        await broker.create_queue(queue)


class Client:
    """Spark, as far as a write job sees it: what it has not finished it does again, with the same names."""

    def __init__(self) -> None:
        self.is_committed = False
        self.is_forgotten = False

    async def write(self, broker: Broker) -> None:
        if not self.is_committed:
            with suppress(Conflict):  # committed before the cut, it does not accept more rows
                await hold(broker)
            assert (await broker.writes.commit("q", "job", PARTS, 6)).state == "done"
            self.is_committed = True
        await broker.writes.abort("q", "job")
        self.is_forgotten = True

    async def give_up(self, broker: Broker) -> None:
        await hold(broker)
        await broker.writes.abort("q", "job")


KINDS: Final = [
    pytest.param(Medium.ORDERED, True, id="log"),
    pytest.param(Medium.ORDERED, False, id="ordered", marks=pytest.mark.proof),
    pytest.param(Medium.UNORDERED, False, id="unordered", marks=pytest.mark.proof),
    pytest.param(Medium.ADVERSARIAL, False, id="adversarial"),
]


STEPS: Final = [6, pytest.param(1, marks=pytest.mark.proof)]
"""Each commit has every sixth cut, the next one others; `make proof` has every one."""


def cuts(
    medium: Medium, log: bool, step: int, script: Callable[[Client, Broker], Awaitable[None]]
) -> Iterator[tuple[Power, Client]]:
    """A root and its client after every `step`-th instant at which the power can be cut; the last time it is not."""
    cut_at, is_whole = commit_number() % step + 1 - step, False
    while not is_whole:
        cut_at += step
        power, client = Power(medium, cut_at, log=log), Client()
        assert power.live(make_queues)
        is_whole = power.live(lambda broker, client=client: script(client, broker), cut_at)
        yield power, client
    assert cut_at > 40, "the power was hardly ever cut"


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("medium", "log"), KINDS)
@pytest.mark.parametrize("after", [0, 3 * DAY])
def test_a_cut_at_any_call_leaves_all_or_nothing(medium: Medium, log: bool, step: int, after: float) -> None:
    """And the client that goes on, at once or after the keys' window has ended, has each row there once."""
    outcomes = Counter[str]()
    for power, client in cuts(medium, log, step, Client.write):
        power.elapsed += after

        async def look(broker: Broker, client: Client = client) -> None:
            there = sorted(body.decode() for body in await browsed(broker, "q", "r"))
            assert there in ([], ALL), there
            assert there or not client.is_committed
            outcomes["all" if there else "none"] += 1
            if not there or not client.is_forgotten:
                await client.write(broker)
            assert sorted(body.decode() for body in await browsed(broker, "q", "r")) == ALL

        assert power.live(look)
        if not after:
            assert power.live(only_messages_are_left)
    assert outcomes["all"] * step > 10
    assert outcomes["none"] * step > 10


async def only_messages_are_left(broker: Broker) -> None:
    assert await broker.storage.scan(State.NEW) == []


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("medium", "log"), KINDS)
def test_a_cut_during_an_abort_leaves_nothing(medium: Medium, log: bool, step: int) -> None:
    for power, _ in cuts(medium, log, step, Client.give_up):

        async def look(broker: Broker) -> None:
            assert await browsed(broker, "q", "r") == []
            await trio.sleep(KEEP_SECONDS + 10)
            await wait_all_tasks_blocked()
            assert await broker.storage.scan(State.NEW) == []

        assert power.live(look)


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("medium", "log"), KINDS)
def test_a_row_that_was_consumed_before_the_cut_does_not_come_again(
    medium: Medium, log: bool, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers do not wait for all: they may have removed the first rows before the last ones are there."""
    monkeypatch.setattr("mq.broker.write_jobs.ROWS_AT_ONCE", 1)
    removed: list[str] = []
    asked: list[str] = []

    async def consume(broker: Broker, wait: float) -> None:
        while (message := await broker.fetch("q", wait=wait)) is not None:
            body = (await message.body.read()).decode()
            asked.append(body)
            await broker.remove("q", message.id, receipt=message.receipt)
            removed.append(body)

    async def write(client: Client, broker: Broker) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume, broker, 1000)
            await client.write(broker)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    between = 0
    for power, client in cuts(medium, log, step, write):
        power.elapsed += 3 * DAY  # no key is in its window any more

        async def go_on(broker: Broker, client: Client = client) -> None:
            if not asked and await browsed(broker, "q") == []:
                await client.write(broker)
            await consume(broker, 100)  # what was leased comes back

        between += 0 < len(removed) < 4
        assert power.live(go_on)
        twice = [body for body, count in Counter(removed).items() if count > 1]
        assert not twice, twice
        assert set(asked) == {"a", "b", "c", "f"}
        removed.clear()
        asked.clear()
    assert between * step > 5, "no consumer was ever fast enough"


def test_the_medium_may_refuse_for_a_while() -> None:
    """What is committed comes by itself when there is room again."""
    power = Power(Medium.ORDERED, 1, log=False)

    async def write(broker: Broker) -> None:
        await make_queues(broker)
        await hold(broker)
        with refused(power, "/new/"):
            with pytest.raises(MQError):
                await broker.writes.commit("q", "job", PARTS, 6)
            assert [job.state for job in await broker.writes.of("q")] == ["committed"]
            with pytest.raises(Conflict, match="is already committed"):
                await broker.writes.abort("q", "job")
        await trio.sleep(60)
        assert sorted(await browsed(broker, "q", "r")) == [body.encode() for body in ALL[:-1]] + [b"f"]

    assert power.live(write)


@contextmanager
def refused(power: Power, where: str) -> Iterator[None]:
    """No file is made or moved below that folder."""

    fault = DiskFault(28, frozenset({"create", "rename", "link"}), 1.0, passes=True, where=where)
    power.faults.active = {"full": fault}
    try:
        yield
    finally:
        power.faults.active = {}


async def test_the_owner_of_a_job_is_known_after_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        await broker.writes.add("q", "job", "0", 0, [Draft(b"a")], "anna")
    async with opened(disk_address) as broker:
        with pytest.raises(NotYours):
            await broker.writes.add("q", "job", "0", 1, [Draft(b"b")], "ben")
        with pytest.raises(NotYours):
            await broker.writes.abort("q", "job", "ben")
        assert (await broker.writes.commit("q", "job", ["0"], 1, "anna")).state == "done"


# Disk

ROOM: Final = 40 * CHUNK_BYTES
"""A user's, and a job's where there are no users."""


def budget_of_rows(*, has_users: bool = False) -> Budget:
    return Budget(disk=4 * ROOM, has_users=has_users)


async def fill(broker: Broker, job: str, user: str | None = None, count: int = 39) -> None:
    """Hold requests of one row each, as many as there is room for."""
    for number in range(count):
        await broker.writes.add("q", job, f"part-{number}", 0, [Draft(b"x")], user)


async def commit_job(broker: Broker) -> None:
    assert (await broker.writes.commit("q", "job", ["part-0"], 1)).queues == ["q"]


async def abort_job(broker: Broker) -> None:
    await broker.writes.abort("q", "job")


async def abandon_job(broker: Broker) -> None:
    await trio.sleep(KEEP_SECONDS + 10)


@pytest.mark.parametrize("end", [commit_job, abort_job, abandon_job])
async def test_rows_reserve_disk_until_their_job_has_ended(
    broker: Broker, end: Callable[[Broker], Awaitable[None]]
) -> None:
    budget = budget_of_rows()
    broker.writes.count_in(budget.write_job)
    for number in range(3):
        await broker.writes.add("q", "job", f"part-{number}", 0, [Draft(b"x" * 1000)])
    assert 3 * (CHUNK_BYTES + 1000) < budget.staged < 3 * (CHUNK_BYTES + 1100)
    before = budget.staged
    await broker.writes.add("q", "job", "part-0", 0, [Draft(b"x" * 1000)])  # the same, sent again
    assert budget.staged == before
    if end is commit_job:
        await broker.writes.commit("q", "job", ["part-0"], 1)
    else:
        await end(broker)
    assert budget.staged == 0


async def test_attributes_of_rows_reserve_disk(broker: Broker) -> None:
    budget = budget_of_rows()
    broker.writes.count_in(budget.write_job)
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x", {"attributes": {"a": "y" * 10_000}})])
    assert budget.staged > CHUNK_BYTES + 10_000


async def test_job_that_holds_its_share_of_disk_takes_no_more_rows(broker: Broker) -> None:
    budget = budget_of_rows()
    broker.writes.count_in(budget.write_job)
    await fill(broker, "job")
    used = budget.staged
    with pytest.raises(
        BodyTooLarge,
        match=r"write job job needs \d+ bytes of disk space, but the limit for this write job is 163840 bytes",
    ):
        await broker.writes.add("q", "job", "more", 0, [Draft(b"x")])
    assert budget.staged == used
    await fill(broker, "another")
    await broker.writes.commit("q", "job", ["part-0"], 1)
    await fill(broker, "third")


async def test_jobs_of_a_user_share_disk_and_leave_others_theirs(broker: Broker) -> None:
    budget = budget_of_rows(has_users=True)
    broker.writes.count_in(budget.write_job)
    await fill(broker, "first", "anna", 20)
    with pytest.raises(NoDisk, match=r"the limit for user anna is 163840 bytes\. Commit or abort other write jobs"):
        await fill(broker, "second", "anna", 20)
    await fill(broker, "third", "ben")
    await fill(broker, "fourth")
    with pytest.raises(
        NoDisk, match="the limit for all write jobs is 491520"
    ):  # one quarter is left for arriving bodies
        await fill(broker, "fifth", "claire")


async def test_rows_reserve_disk_after_a_restart(disk_address: str, opened: Opener) -> None:
    budget = budget_of_rows()
    async with opened(disk_address) as broker:
        await broker.create_queue("q")
        broker.writes.count_in(budget.write_job)
        await fill(broker, "job")
    found = budget_of_rows()
    async with opened(disk_address) as broker:
        broker.writes.count_in(found.write_job)
        assert found.staged == budget.staged > 0
        with pytest.raises(BodyTooLarge):
            await broker.writes.add("q", "job", "more", 0, [Draft(b"x")])
        await broker.writes.abort("q", "job")
        assert found.staged == 0


async def test_refused_rows_leave_nothing_in_memory(broker: Broker) -> None:
    broker.writes.count_in(budget_of_rows().write_job)
    await fill(broker, "job")
    for number in range(10):
        with pytest.raises(BodyTooLarge):
            await broker.writes.add("q", "job", f"more-{number}", 0, [Draft(b"x")])
    [job] = broker.writes._jobs.values()
    assert (len(job.parts), job._locks) == (39, {})


async def test_commit_keeps_only_names_of_parts_with_rows(broker: Broker) -> None:
    await broker.writes.add("q", "job", "0", 0, [Draft(b"x")])
    await broker.writes.commit("q", "job", ["0", *(f"none-{number}" for number in range(9000))], 1)
    [job] = broker.writes._jobs.values()
    assert job.wanted == ()
    record = (await broker.storage.records("write_job"))["job"]
    assert len(str(record)) < 200


async def test_ended_job_shows_its_queues_after_a_restart(disk_address: str, opened: Opener) -> None:
    async with opened(disk_address) as broker:
        for queue in ("q", "r"):
            await broker.create_queue(queue)
        await hold(broker)
        assert (await broker.writes.commit("q", "job", PARTS, 6)).queues == ["q", "r"]
    async with opened(disk_address) as broker:
        assert list((await broker.writes.commit("r", "job", PARTS, 6)).queues) == ["q", "r"]
        await broker.create_queue("other")
        with pytest.raises(Conflict, match="has no messages for queue other"):
            await broker.writes.commit("other", "job", PARTS, 6)


def test_a_chunk_has_the_form_that_roots_have() -> None:
    """Roots with open jobs outlive a release: a field more in a draft changes nothing there. Another form needs another
    number of the root's format."""
    draft = Draft(
        b"body",
        {"a": 1},
        delay=1.0,
        ttl=2.0,
        key="k",
        transient=True,
        priority=3,
        id=MessageId("12345678-0000-1000-8000-000000000000"),
        at_ms=4,
        group="g",
        is_group_hint=True,
    )
    kept = (
        b'[[4, {"a": 1}, 1.0, 2.0, "k", true, 3, "12345678-0000-1000-8000-000000000000", false, 4, "g", true, false]]'
        b"\nbody"
    )
    assert write_jobs._encoded([draft]) == kept
    assert list(write_jobs._decoded(kept, "job")) == [draft._replace(is_decided=True)]
