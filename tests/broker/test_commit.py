"""Group commit: who shares a barrier, and in which order answers come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from mq import turns
from mq.broker import commit
from mq.broker.commit import LARGEST_BATCH, MOST_OF_A_CALL, BatchTimes, Committer, Pace, SaveWorker, Together
from mq.errors import StorageFenced
from mq.message import MessageIds
from mq.storage.interface import Description, Hear, Operation, Outcome, Result, Write
from mq.storage.memory import MemoryStorage

IDS = MessageIds()
OPERATION_SECONDS = 1.0
BARRIER_SECONDS = 8.0


class Disk(MemoryStorage):
    """Does one batch after another, and takes its time for them."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.under_way = self.most_under_way = 0
        self.busy_seconds = 0.0
        self._one = trio.Lock()

    @property
    def description(self) -> Description:
        return super().description._replace(durable=True)

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        self.sizes.append(len(operations))
        with self._counted():
            async with self._one:
                seconds = BARRIER_SECONDS + len(operations) * OPERATION_SECONDS
                self.busy_seconds += seconds
                await trio.sleep(seconds)
                return [Outcome(Result.DONE)] * len(operations)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            yield
        finally:
            self.under_way -= 1


def writes(count: int) -> list[Operation]:
    return [Write("q", IDS.new(), b"") for _ in range(count)]


class Unpaced(Pace):
    """Limits no batch, however long it takes."""

    def note(self, size: int, seconds: float, operations: int = 0) -> None:
        pass


async def serve(disk: MemoryStorage, nursery: trio.Nursery) -> Committer:
    committer = Committer(disk)
    committer.disk_pace, committer.memory_pace = Unpaced(LARGEST_BATCH), Unpaced(LARGEST_BATCH)
    committer.pace = committer.disk_pace if disk.description.durable else committer.memory_pace
    nursery.start_soon(SaveWorker(committer).run)
    await trio.testing.wait_all_tasks_blocked()  # else it may begin between the first callers, whose order is drawn
    return committer


async def lockstep(clock: MockClock, disk: Disk, callers: int, rounds: int) -> float:
    """So many callers, each of whom keeps the event loop busy for as long as an operation takes when he is answered.
    How long it takes."""

    async def call() -> None:
        for _ in range(rounds):
            clock.jump(OPERATION_SECONDS)
            await committer.commit(writes(1))

    started = trio.current_time()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        async with trio.open_nursery() as people:
            for _ in range(callers):
                people.start_soon(call)
        nursery.cancel_scope.cancel()
    return trio.current_time() - started


async def test_what_comes_while_a_batch_is_done_is_the_next_batch(autojump_clock: MockClock) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        async with trio.open_nursery() as people:
            people.start_soon(committer.commit, writes(1))
            await trio.sleep(1)
            for _ in range(5):
                people.start_soon(committer.commit, writes(2))
        nursery.cancel_scope.cancel()
    assert disk.sizes == [1, 10]
    assert disk.most_under_way == 1


class Items:
    """What a batch has of one kind."""

    begun: ClassVar[list[list[int]]] = []
    answered: ClassVar[list[list[int]]] = []

    def __init__(self, items: Sequence[int]) -> None:
        self.items = list(items)
        self.begun.append(self.items)
        self.operations = writes(len(items))

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        assert len(outcomes) == len(self.items)
        self.answered.append(self.items)


@pytest.fixture
def kind(monkeypatch: pytest.MonkeyPatch) -> type[Items]:
    monkeypatch.setattr(Items, "begun", [])
    monkeypatch.setattr(Items, "answered", [])
    return Items


async def test_what_many_calls_bring_is_begun_together_and_as_late_as_can_be(
    autojump_clock: MockClock, kind: type[Items]
) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[str] = Together(committer)
        together.begin = kind
        for number in range(3):
            together.put([number, number + 10])
        assert kind.begun == []
        await trio.sleep(1)
        assert kind.begun == [[0, 10, 1, 11, 2, 12]]
        together.put([3])  # the batch under way takes nothing more along
        await trio.sleep(1)
        together.put([4])
        assert (len(kind.begun), kind.answered) == (1, [])
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert kind.begun == kind.answered == [[0, 10, 1, 11, 2, 12], [3, 4]]
    assert disk.sizes == [6, 2]


async def test_what_is_more_than_a_batch_begins_another(autojump_clock: MockClock, kind: type[Items]) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[str] = Together(committer)
        together.begin = kind
        together.put([1], messages=LARGEST_BATCH)
        together.put([2])
        together.put([3], messages=LARGEST_BATCH - 1)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert kind.begun == kind.answered == [[1], [2], [3]]
    assert disk.sizes == [1, 2]


async def test_calls_that_joined_are_waited_for_as_others_are(autojump_clock: MockClock, kind: type[Items]) -> None:
    """Not as one call: of a batch that answers several it is known that they come back one by one."""
    disk = Disk()

    async def come_later() -> None:
        await trio.lowlevel.checkpoint()
        together.put([3])

    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[str] = Together(committer)
        together.begin = kind
        together.put([1])
        together.put([2])
        nursery.start_soon(come_later)
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert kind.begun == [[1, 2, 3]]


@pytest.mark.parametrize("callers", [1, 5])  # the workers are idle between batches; or each batch finds more waiting
async def test_save_workers_take_turns(
    callers: int, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, turns = Disk(), []
    commit_of_disk = disk.commit

    async def noted(operations: Sequence[Operation]) -> list[Outcome]:
        turns.append(trio.lowlevel.current_task().name)
        return await commit_of_disk(operations)

    monkeypatch.setattr(disk, "commit", noted)
    committer = Committer(disk)

    async def call() -> None:
        for _ in range(6):
            await committer.commit(writes(1))

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(SaveWorker(committer).run, name=name)
        await trio.testing.wait_all_tasks_blocked()
        async with trio.open_nursery() as calling:
            for _ in range(callers):
                calling.start_soon(call)
        nursery.cancel_scope.cancel()
    assert set(turns[:3]) == {"a", "b", "c"}
    assert [turns[number % 3] for number in range(len(turns))] == turns
    assert disk.most_under_way == 1


async def test_who_is_shut_out_while_batches_are_under_way_ends_when_they_have(autojump_clock: MockClock) -> None:
    """Also when nothing waits then: nobody else would come to tell."""
    committer = Committer(Disk())

    async def be_shut_out() -> None:
        await trio.sleep(BARRIER_SECONDS / 2)
        with pytest.raises(StorageFenced), committer.noting_failure():
            raise StorageFenced("another broker is in charge")

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(SaveWorker(committer).run)
            nursery.start_soon(committer.commit, writes(1))
            nursery.start_soon(be_shut_out)

    with trio.fail_after(60), pytest.raises(ExceptionGroup) as ended:
        await work()
    assert ended.group_contains(StorageFenced)


async def test_all_who_are_there_share_a_barrier(autojump_clock: MockClock) -> None:
    disk = Disk()
    await lockstep(autojump_clock, disk, 64, 20)
    assert disk.most_under_way == 1
    assert set(disk.sizes[5:-5]) == {64}


async def test_what_belongs_together_is_not_parted(autojump_clock: MockClock) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        async with trio.open_nursery() as people:
            for size in (3, 1000, 1000, 5):
                people.start_soon(committer.commit, writes(size))
                await trio.sleep(0.1)
        nursery.cancel_scope.cancel()
    assert disk.sizes == [3, 2000, 5]


async def test_call_with_many_items_is_split(autojump_clock: MockClock, kind: type[Items]) -> None:
    """Those of one submission are answered in one step of the event loop."""
    disk, items = Disk(), list(range(2 * MOST_OF_A_CALL + 1))
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[int] = Together(committer)
        together.begin = kind
        together.put(items)
        await trio.sleep(300)
        nursery.cancel_scope.cancel()
    assert [len(begun) for begun in kind.begun] == [MOST_OF_A_CALL, MOST_OF_A_CALL, 1]
    assert [item for begun in kind.answered for item in begun] == items
    assert disk.sizes == [len(items)]


@pytest.mark.parametrize("_", range(8))
async def test_who_comes_first_is_answered_first(_: int, autojump_clock: MockClock) -> None:
    class Both(Disk):
        async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
            await ended.wait()
            return [Outcome(Result.DONE)] * len(operations)

    ended, answered = trio.Event(), list[int]()
    async with trio.open_nursery() as nursery:
        committer = await serve(Both(), nursery)
        for number in range(4):
            committer.submit(lambda: writes(4), 4, lambda _, __, number=number: answered.append(number))
            await trio.testing.wait_all_tasks_blocked()
        ended.set()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert answered == [0, 1, 2, 3]


# Stores that tell of the first outcomes before they have the last


class TellingDisk(Disk):
    """A disk on which a batch is durable at once, and each operation then takes its time."""

    tells = True

    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        self.sizes.append(len(operations))
        for _ in operations[1:]:
            await trio.sleep(OPERATION_SECONDS)
            hear([Outcome(Result.DONE)], 0.25)
        await trio.sleep(OPERATION_SECONDS)
        return [Outcome(Result.DONE)]


async def test_a_submission_is_answered_when_the_last_of_its_outcomes_is_there(autojump_clock: MockClock) -> None:
    disk, answered = TellingDisk(), list[tuple[str, float, BatchTimes]]()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        for name, size in (("a", 2), ("b", 0), ("c", 3), ("d", 1)):

            def then(outcomes: list[Outcome], times: BatchTimes, name: str = name, size: int = size) -> None:
                assert len(outcomes) == size
                answered.append((name, trio.current_time(), times))

            committer.submit(lambda size=size: writes(size), size, then)
        began = trio.current_time()
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert disk.sizes == [6]
    assert [(name, at - began) for name, at, _ in answered] == [("a", 2.0), ("b", 2.0), ("c", 5.0), ("d", 6.0)]
    assert [times.ended - began for _, _, times in answered] == [1.75, 1.75, 4.75, 6.0]
    assert {times.began for _, _, times in answered} == {began}


async def test_what_many_calls_bring_is_cut_into_submissions_where_the_store_tells(
    autojump_clock: MockClock, kind: type[Items], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "ANSWERED_TOGETHER", 4)
    disk = TellingDisk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[str] = Together(committer)
        together.begin = kind
        for number in range(3):
            together.put([number, number + 10])
        together.put([3, 4, 5, 6, 7])  # of one call, so not cut
        await trio.sleep(5.5)
        assert kind.answered == [[0, 10, 1, 11]]
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert kind.begun == kind.answered == [[0, 10, 1, 11], [2, 12], [3, 4, 5, 6, 7]]
    assert disk.sizes == [11]


async def test_who_is_answered_early_is_in_the_next_batch(autojump_clock: MockClock) -> None:
    disk = TellingDisk()

    async def call() -> None:
        for _ in range(2):
            await committer.commit(writes(1))

    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        async with trio.open_nursery() as calling:
            for _ in range(8):
                calling.start_soon(call)
        nursery.cancel_scope.cancel()
    assert disk.sizes == [8, 8]


async def test_call_without_items_begins_no_batch(autojump_clock: MockClock, kind: type[Items]) -> None:
    disk = Disk()
    async with trio.open_nursery() as nursery:
        committer = await serve(disk, nursery)
        together: Together[int] = Together(committer)
        together.begin = kind
        together.put([])
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert (kind.begun, disk.sizes) == ([], [])


# Stores whose batches wait for nothing


async def test_memory_commits_in_the_step_that_submits() -> None:
    committer, answers = Committer(MemoryStorage()), list[Outcome]()
    committer.submit(lambda: writes(3), 3, lambda outcomes, _: answers.extend(outcomes))  # no save worker runs
    assert [each.result for each in answers] == [Result.DONE] * 3


async def test_completions_that_submit_end_the_step_after_a_turn(autojump_clock: MockClock) -> None:
    submitted = 0

    def submit_another(*_: object) -> None:
        nonlocal submitted
        if submitted < 1000:
            submitted += 1
            committer.submit(lambda: writes(1), 1, submit_another)

    async with trio.open_nursery() as nursery:
        committer = await serve(MemoryStorage(), nursery)
        submit_another()
        assert 1 < submitted <= 2 * turns.MESSAGES_A_TURN
        await trio.testing.wait_all_tasks_blocked()
        assert submitted == 1000
        nursery.cancel_scope.cancel()


async def test_completion_that_raises_in_its_step_ends_the_broker(autojump_clock: MockClock) -> None:
    """The save worker raises it: who submitted may survive it, and the catalog is half changed."""

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug")):
        async with trio.open_nursery() as nursery:
            committer = await serve(MemoryStorage(), nursery)
            with pytest.raises(RuntimeError):
                committer.submit(lambda: writes(1), 1, fail)
            committer.begin()
            await trio.sleep(60)


async def test_much_at_once_is_left_to_the_save_worker(autojump_clock: MockClock) -> None:
    answers: list[Outcome] = []
    async with trio.open_nursery() as nursery:
        committer = await serve(MemoryStorage(), nursery)
        committer.submit(lambda: writes(300), 300, lambda outcomes, _: answers.extend(outcomes))
        assert not answers
        await trio.testing.wait_all_tasks_blocked()
        assert len(answers) == 300
        nursery.cancel_scope.cancel()
