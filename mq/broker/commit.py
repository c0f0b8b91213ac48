"""Group commit: operations of many tasks share one durability barrier. With it the ways there and back:
:class:`Together` makes one submission of what many calls bring, :class:`Future` is one answer to one task.

:class:`InFlight` counts the requests that the broker has accepted and not finished: it ends only after the last.
:class:`Pace` measures how fast the store has been.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial, wraps
from typing import Any, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

import trio
from trio_util import AsyncBool

from mq import turns
from mq.broker.fairness import SOURCE, FairLine
from mq.errors import (
    BrokerClosed,
    StorageFailed,
    StorageFenced,
    StorageStopped,
    StorageUnsure,
)
from mq.lifecycle import Histogram
from mq.storage import groups
from mq.storage.interface import (
    AnyOperation,
    Group,
    Hear,
    InstantStorage,
    Move,
    Outcome,
    Result,
    Storage,
    Unlink,
    Write,
    is_instant,
    tells,
)
from mq.storage.outcomes import Outcomes

T = TypeVar("T")
P = ParamSpec("P")
LARGEST_BATCH: Final = 1024
"""Messages after which a batch takes nothing more along."""
LARGEST_TURN: Final = 64
"""Messages that one connection brings to a batch while others wait, before it is the next one's turn."""
TURNS_OF_A_BATCH: Final = 8
"""A turn is shorter where a batch is: so many connections have a part of each."""
ANSWERED_TOGETHER = 16
"""Messages of a submission where a store tells of the first ones before the last ones are done: so many at a time."""
MOST_AT_ONCE: Final = 4
"""Messages that are committed in the step that submits them: that step has also read and checked them. More than these
share the wake-up of a save worker."""
MOST_OF_A_CALL: Final = 128
"""Items of one call that are one submission, and so are answered in one step of the event loop."""
PORTION: Final = 128
LARGEST_PORTION: Final = 512
_LONG_SECONDS: Final = 0.01
"""A batch that takes longer waits for its disk."""
PATIENCE_SECONDS: Final = 20.0
"""Longer than any barrier takes: a store that answers nothing for so long counts as dead."""
EXTENSION_SECONDS: Final = 1.0
"""How often deadlines are extended, at most: batches may end many times as often."""
LONG_WAIT_SECONDS: Final = 0.5
"""A connection that wants little should not wait longer for its turn."""
LATELY_SECONDS: Final = 10.0
"""How long such a wait is remembered."""
NOTE_WORK_SECONDS: Final = 20.0
"""How often it is noted that batches are committed, at most."""
QUIET_STEPS: Final = 3
"""Steps of the event loop without a new operation after which a batch begins: about as many as a request takes from its
arrival to its operation."""
MOST_STEPS: Final = 16
"""Steps of the event loop that a batch waits at the most."""
BATCH_SECONDS: Final = 0.025
"""How long a batch may take: what comes meanwhile waits for it, and for the next one. Beside four clients that publish
as fast as they can and acknowledge nothing, on ext4 without a journal, one small publish in a hundred takes 52 to 102
ms; in one run of five, in which the disk was slow, 205 ms
(``python -m tests.hostile.cheap_frames --only acknowledged``)."""
MEMORY_SECONDS: Final = 0.01
"""The same for a batch in memory, which shares no flush: a smaller one costs nothing."""
FEWEST: Final = 4
"""Operations that a batch may always have."""
FIRST: Final = 16
"""Operations in a batch while it is not known whether more of them take longer."""
SLOW_SECONDS: Final = 0.001
"""An operation that takes less needs no guess: even the largest batch ends soon."""
GROWTH: Final = 4
"""The limit grows by this factor from batch to batch, at most: one quick batch may be chance. Nor is it more than this
factor above the largest recent batch: how long a larger one takes is not known."""
DOUBT: Final = 16
"""After so many batches of one size, each of which takes too long, the next batch has another size. The number doubles
with each such try, until a batch is quick."""
_MEMORY: Final = 0.9
"""What a measurement still counts after the next one."""
_SPREAD: Final = 0.05
"""Relative variance of sizes from which the times of batches tell what one more operation takes."""
_PLAIN: Final = frozenset({Write, Move, Unlink})
"""Operations that every store does by itself."""


class Pace:
    """Learns from batches how many operations a store does within :data:`BATCH_SECONDS`, or other seconds.

    A batch takes a fixed time, such as one flush, and a time for each operation, which is nearly nothing where a log is
    flushed once, and a flush or more where each file is. Only in the second case do smaller batches end sooner. Both
    times follow from the sizes and times of recent batches by linear regression. Where the fixed time alone is long,
    operations may take as long again: smaller batches would cost throughput, and shorten waits by less than half.
    Batches of one size say nothing about the two times, so another size is tried now and then while they take too long.

    Args:
        most: operations in a batch, at most.
        is_cheap: whether an operation is expected to take next to no time beside the batch's one flush.
        seconds: how long a batch may take.

    Attributes:
        limit: operations that the next batch may have.
    """

    def __init__(self, most: int, *, is_cheap: bool = True, seconds: float = BATCH_SECONDS) -> None:
        self.limit = most if is_cheap else min(most, FIRST)
        self._most = most
        self._least = LARGEST_TURN if is_cheap else FIRST  # a limit that is allowed however small recent batches were
        self._largest = 0.0  # operations in the largest recent batch; fades with each batch
        self._limit_seconds = seconds
        self._count = self._sizes = self._seconds = self._squares = self._products = 0.0
        self._each: float | None = None  # seconds for one more operation, once that is known
        self._alike = 0  # batches of one size so far, each of which took too long
        self._doubt = DOUBT  # how many of them are too many: another size is tried

    def note(self, size: int, seconds: float, operations: int = 0) -> None:
        """Learn from a batch of so many operations that took so long. One without any teaches nothing.

        Args:
            size: those that take the store time.
            operations: all of them, if they are more.
        """
        if not size:
            return
        operations = max(size, operations)
        self._largest = max(float(operations), _MEMORY * self._largest)
        self._count = count = _MEMORY * self._count + 1
        self._sizes = sizes = _MEMORY * self._sizes + size
        self._seconds = total = _MEMORY * self._seconds + seconds
        self._squares = squares = _MEMORY * self._squares + size * size
        self._products = products = _MEMORY * self._products + size * seconds
        average, each = total / sizes, self._each
        variance = count * squares - sizes * sizes
        self._alike += 1
        if seconds <= self._limit_seconds:
            self._alike, self._doubt = 0, DOUBT
        if variance > _SPREAD * sizes * sizes:
            self._alike = 0
            covariance = count * products - sizes * total
            each = min(average, max(0.0, covariance / variance))
        elif each is None:
            if sizes * 2 <= FIRST * count:
                self.limit = min(self._most, FIRST) if average >= SLOW_SECONDS else self._most
                return
            each = average  # a smaller batch will tell
        elif each > average:
            each = average
        elif self._alike >= self._doubt:
            # What was learned may be long past: a store that was slow at first, whatever the size, looks as if one more
            # operation cost nothing, or as if it cost much, and batches of one size never tell.
            self._alike, self._doubt = 0, 2 * self._doubt
            is_full = self.limit <= operations < self._most
            self.limit = max(FEWEST, min(self._most, 2 * operations if is_full else operations // GROWTH))
            return
        self._each = each
        fixed = max(0.0, (total - each * sizes) / count)
        limit = max(self._limit_seconds - fixed, fixed) / each if each else self._most
        known = max(self._least, int(GROWTH * self._largest)) if average >= SLOW_SECONDS else self._most
        self.limit = max(FEWEST, min(self._most, GROWTH * self.limit, known, int(min(limit, self._most))))


class Committer:
    """Commits to one store. Operations that arrive during a batch form the next one. So under load a batch grows to the
    operations that arrive within one barrier's time, and no barrier answers an operation that came after its begin.

    Where more arrives than the next batch takes, connections take turns (:class:`~mq.broker.fairness.FairLine`). An
    operation waits for the batch under way, and then for its turn in the next ones. Where a store takes long for each
    operation, batches are smaller (:class:`Pace`), so that these waits are short.

    Batches go one after the other, each by a :class:`SaveWorker`: start one or more.

    Args:
        storage: the store.
        times: each counts the seconds that a batch takes.
        note_work: called after a batch, every :data:`NOTE_WORK_SECONDS` at most.

    Attributes:
        instant: the store, if it commits at once; None for any other.
        failure: why the medium failed; empty while it works.
        together: messages in one submission, if it can be split: those of one are answered in one step.
        disk_pace: how many operations a batch may have most of which are for the disk.
        memory_pace: the same where most are done in memory.
        pace: that of the last batch, which counts for the next one.
        portion: messages that a long job submits before it waits: few where a batch ends soon, so that the operations
            of others are not behind many; more where it takes long whatever it has.
        progress: noted with each answer of the store.
    """

    def __init__(
        self,
        storage: Storage,
        times: Sequence[Histogram] = (),
        note_work: Callable[[], None] | None = None,
    ) -> None:
        self._storage = storage
        self._note_work = note_work
        self._noted_until = -math.inf
        self._times = times
        self._telling = storage if tells(storage) else None
        self.instant = storage if is_instant(storage) else None
        self.together = ANSWERED_TOGETHER if self._telling is not None else MOST_OF_A_CALL // 2
        description = storage.description
        self._is_durable = description.durable
        # A store with a log flushes once a batch; others may sync each file.
        self.disk_pace = Pace(LARGEST_BATCH, is_cheap=bool(description.groups) or not description.durable)
        self.memory_pace = Pace(LARGEST_BATCH, seconds=MEMORY_SECONDS)
        self.pace = self.disk_pace if description.durable else self.memory_pace
        self._waiting: deque[Submission] = deque()  # for the next batch
        self._line: FairLine[tuple[BatchTurn, float]] = FairLine()  # for the next batches, and since when
        self._size = 0  # messages that wait for the next batch
        self._calls = 0  # calls that have brought them
        self._last_taken = 0  # calls in the batch before
        self._workers = trio.lowlevel.ParkingLot()  # save workers, in the order of their turns
        self._is_served = False  # one of them has its turn
        self._is_line_held = False  # until the batch under way has ended: all that comes stands in line
        self.portion = PORTION
        self.failure = ""
        self.progress = StoreProgress()
        self._turns = turns.of_run()
        self._shut_out: BaseException | None = None  # ends the broker: the save worker raises it
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time

    def check(self) -> None:
        """Check that the medium has not failed.

        Raises:
            StorageStopped: it has.
        """
        if self.failure:
            raise StorageStopped(f"the store has failed ({self.failure}). Repair and remount the disk, then restart mq")

    async def end_groups(self) -> None:
        """Do to its end, or undo, what a crash has left of groups. Before anything else is asked of the store, and only
        where no other process changes it.

        Raises:
            StorageError: that is not possible now.
        """
        await groups.redo(self._storage)

    def submit(self, make: Make, messages: int, then: Then) -> None:
        """Commit operations in one batch, together with others that wait; more than a batch has, in several. Answers to
        one connection come in order of arrival.

        Args:
            make: returns the operations; called just before the store, so that instants in them are true.
            messages: how many messages they are about.
            then: called with one outcome for each operation, in order, and with the times of the batch.
        """
        if self.instant is not None and self.commit_now(_Made, (make, then), messages):
            return
        submission = Submission(make, messages, then, is_divisible=True)
        if self.room() > 0:
            self.append(submission)
        else:
            self.stand_in_line(partial(self._take_turn, submission))
        self.begin()

    def room(self) -> int:
        """How many messages more the next batch takes; 0 or less where they have to stand in line."""
        return 0 if self._line.items or self._is_line_held else self.pace.limit - self._size

    def stand_in_line(self, turn: BatchTurn) -> None:
        """Call this when it is the turn of the caller's connection."""
        self._line.put(SOURCE.get(), (turn, trio.current_time()))
        if not self._is_line_held:
            self._fill()

    def join(self, submission: Submission, messages: int) -> None:
        """Note that another call has brought something to a submission that waits: so many messages more."""
        submission.messages += messages
        submission.calls += 1
        self._size += messages
        self._calls += 1

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Commit operations together with others that wait, in one batch where they fit; their outcomes, in order."""
        future: Future[list[Outcome]] = Future()
        self.submit(lambda: operations, len(operations), lambda outcomes, _: future.set(outcomes))
        return await future.get()

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """A context in which a failure of the store stops the batches, too."""
        # After a failure the state of the medium is unknown. Being fenced ends the broker.
        try:
            yield
            self.progress.note()
        except StorageFenced as error:
            self._shut_out = error
            self.begin()
            raise
        except StorageFailed as error:
            self.failure = self.failure or str(error)
            raise

    async def first_turn(self) -> None:
        """Wait for the first turn of a save worker."""
        if self._is_served or not self._is_needed():
            await self._workers.park()
        self._is_served = True

    async def next_turn(self) -> None:
        """End a save worker's turn, and wait for its next one, which comes after the others'."""
        self._is_served = is_needed = self._is_needed()
        if is_needed:
            if not self._workers:
                return  # there is no other worker
            self._workers.unpark()
        await self._workers.park()

    async def commit_next(self) -> None:
        """Commit what waits, as far as one batch takes it, and answer. For the save worker whose turn it is.

        Raises:
            StorageFenced: another broker is in charge of the store; this one's index is worthless.
        """
        if self._shut_out is not None:
            raise self._shut_out
        submissions = self._take() if self._is_enough() else await self._gathered()
        # A short next batch is filled at the end of this one, from all who came meanwhile. Filled now, it would be full
        # of what the busiest connections have sent, and a small client would wait for one batch more.
        self._is_line_held = self.pace.limit < LARGEST_BATCH
        began = self._now()
        operations: list[AnyOperation] = []
        for each in submissions:
            operations += each.begin(began)
        if len(operations) > self.pace.limit and submissions[0].is_long(self.pace.limit):
            del operations[self.pace.limit :]
        has_groups = not _PLAIN.issuperset(map(type, operations))
        size = sum(map(_syncs, operations)) if has_groups or self.pace.limit < LARGEST_BATCH else len(operations)
        if len(operations) > ANSWERED_TOGETHER:
            self._turns.spend(len(operations) * turns.LIGHT // 2)
        answering = _Answering(submissions, began, self._now, self.progress)
        outcomes = await self._commit(operations, answering.hear, has_groups=has_groups)
        late_seconds = outcomes.heard_late if isinstance(outcomes, Outcomes) else 0.0
        ended = await answering.end(outcomes, late_seconds, self._turns)
        rest = answering.unfinished()
        if rest is not None:
            self._line.put_first(rest.source, (partial(self._take_turn, rest), began))
        self._note_pace(outcomes, size, len(operations), self._now() - began)
        self._is_line_held = False
        self._fill()
        self.portion = LARGEST_PORTION if ended - began > _LONG_SECONDS else PORTION
        self.progress.note()
        self._note_times(began, ended)

    def _note_times(self, began: float, ended: float) -> None:
        seconds = ended - began
        for times in self._times:
            times.counts[bisect_left(times.bounds, seconds)] += 1
            times.total += seconds
        if ended >= self._noted_until and self._note_work is not None:
            self._noted_until = ended + NOTE_WORK_SECONDS
            self._note_work()

    def _note_pace(self, outcomes: list[Outcome], syncs: int, size: int, seconds: float) -> None:
        """Learn from a batch that took so long with its answers, which the next batch waits for, too."""
        in_memory = outcomes.in_memory if isinstance(outcomes, Outcomes) else 0
        if in_memory == size or not self._is_durable:
            self.memory_pace.note(size, seconds)
        else:
            self.disk_pace.note(syncs, seconds, size)
        self.pace = self.disk_pace if self._is_durable and 2 * in_memory <= size else self.memory_pace

    def append(self, submission: Submission) -> None:
        """Let the next batch take a submission, in its turn."""
        self._waiting.append(submission)
        self._size += submission.messages
        self._calls += submission.calls

    def _take_turn(self, submission: Submission, _: int) -> None:
        self.append(submission)

    def _fill(self) -> None:
        """Let those who stand in line bring their operations, as far as the next batch takes them."""
        while self._line.items and self._size < self.pace.limit:
            is_alone = len(self._line.items) == 1
            source, is_new, (turn, since) = self._line.take()
            if is_new and source is not None:
                self.progress.note_wait(trio.current_time() - since)
            fair = max(1, min(LARGEST_TURN, self.pace.limit // TURNS_OF_A_BATCH))
            rest = turn(self.pace.limit - self._size if is_alone else fair)
            if rest is not None:
                self._line.put_first(source, (rest, since))

    def _is_needed(self) -> bool:
        return bool(self._waiting) or self._shut_out is not None

    def begin(self) -> None:
        """Have what waits committed: in this step if the store waits for nothing and it is little, else by a save
        worker."""
        if self._is_served or (self.instant is not None and self._commit_waiting(self.instant)):
            return
        if self._workers:
            self._is_served = True
            self._workers.unpark()

    def commit_now(self, begin: Callable[[T], Begun], items: T, messages: int) -> bool:
        """Commit a few operations in the caller's step. True if they are answered, or wait for a save worker (where
        the store does not do them at once); False, and nothing has begun, if they have to wait for others, or the step
        has done its turn: submit them then.

        Args:
            begin: called with the items just before the store, if at all.
        """
        storage = self.instant
        if storage is None or self._is_served or messages > MOST_AT_ONCE or self._waiting or self._line.items:
            return False
        if self._shut_out is not None or not self._turns.take(messages * turns.MESSAGE):
            return False
        self._is_served = True  # what completions submit comes behind this
        try:
            began = self._now()
            begun = begin(items)
            if not self._do_now(storage, begun.operations, begun.done, began):
                submission = Submission(lambda: begun.operations, messages, begun.done)
                submission.begin(began)
                self.append(submission)
        except BaseException as error:  # the caller may handle it, but the catalog is half changed: the broker ends
            self._shut_out = error
            raise
        finally:
            self._is_served = False
        if self._waiting:
            self.begin()
        else:
            self.progress.flush()
        return True

    def _commit_waiting(self, storage: InstantStorage) -> bool:
        """Commit what waits, and answer, as far as the turn of this step goes. False if that is not all."""
        self._is_served = True  # what completions submit comes behind this, in the loop below
        try:
            while self._waiting and not self._line.items and self._shut_out is None:
                if self._size > MOST_AT_ONCE or not self._turns.take(self._size * turns.MESSAGE):
                    break
                submissions, began = self._take(), self._now()
                operations = [operation for each in submissions for operation in each.begin(began)]
                if not self._do_now(storage, operations, partial(_answer_all, submissions), began):
                    for each in reversed(submissions):
                        self._waiting.appendleft(each)
                        self._size += each.messages
                        self._calls += each.calls
                    break
        except BaseException as error:  # as in commit_now
            self._shut_out = error
            raise
        finally:
            self._is_served = False
        self.progress.flush()
        return not self._waiting and self._shut_out is None

    def _do_now(self, storage: InstantStorage, operations: Sequence[AnyOperation], done: Then, began: float) -> bool:
        """Commit operations now, and answer. False if it takes longer: nothing is done then."""
        outcomes = storage.commit_now(operations) if _PLAIN.issuperset(map(type, operations)) else None  # type: ignore[arg-type] # all are plain
        if outcomes is None:
            return False
        progress, ended = self.progress, self._now()
        progress.is_answering = True
        try:
            done(outcomes, BatchTimes(began, ended))
        finally:
            progress.is_answering = False
        progress.note()
        self._note_times(began, ended)
        return True

    async def _gathered(self) -> list[Submission]:
        """The next batch, once no more operations come for a few steps of the event loop."""
        # Tasks that one barrier answered come back one by one, and one that just misses a batch waits for two barriers.
        quiet = steps = 0
        while not self._is_enough() and quiet < QUIET_STEPS and steps < MOST_STEPS:
            size = self._size
            await trio.lowlevel.checkpoint()
            quiet, steps = quiet + 1 if self._size == size else 0, steps + 1
        return self._take()

    def _is_enough(self) -> bool:
        if self.pace is self.memory_pace or (self._calls <= 1 and self._last_taken <= 1):
            return True
        return self._size >= self.pace.limit

    def _take(self) -> list[Submission]:
        taken: list[Submission] = []
        size = calls = 0
        limit = self.pace.limit
        # All that wait, nearly always. They are more where the limit was higher when they were let in.
        while self._waiting and size < 2 * limit and not (taken and self._waiting[0].is_long(limit)):
            taken.append(self._waiting.popleft())
            size += taken[-1].messages
            calls += taken[-1].calls
        self._last_taken = calls
        self._size -= size
        self._calls -= calls
        return taken

    async def _commit(self, operations: Sequence[AnyOperation], hear: Hear, *, has_groups: bool) -> list[Outcome]:
        """The outcomes, but for those of the first operations that were heard of before."""
        storage = self._storage
        if has_groups and self._is_durable:
            outcomes = await groups.commit(storage, operations)
        elif has_groups:  # nothing is shared, and the store may do all of it in one step of the event loop
            outcomes = []
            async for some in turns.slices(operations):
                outcomes += await groups.commit(storage, some)
        elif self._telling is not None:  # nearly always
            outcomes = await self._telling.commit_in_parts(operations, hear)  # type: ignore[arg-type] # all are plain
        else:
            outcomes = await storage.commit(operations)  # type: ignore[arg-type] # likewise
        for outcome in outcomes:
            if outcome.result is Result.FENCED:
                raise StorageFenced(outcome.reason or "another daemon has taken over the store. Restart mq")
            if outcome.result is Result.FAILED:
                self.failure = self.failure or outcome.reason or "the disk failed"
        return outcomes


def _syncs(operation: AnyOperation) -> int:
    """Return how many syncs an operation takes where each file is synced."""
    if isinstance(operation, Write | Move | Unlink):
        return operation.durable
    return len(operation.operations) if isinstance(operation, Group) else 1


class SaveWorker:
    """Commits batches, in turns with the other save workers: while one waits for a barrier, operations gather for the
    next one.

    Args:
        committer: has the batches.
    """

    def __init__(self, committer: Committer) -> None:
        self._committer = committer

    async def run(self) -> None:
        """Commit for ever.

        Raises:
            StorageFenced: as :meth:`Committer.commit_next`.
        """
        await self._committer.first_turn()
        while True:
            await self._committer.commit_next()
            await self._committer.next_turn()


class BatchTimes(NamedTuple):
    """When a batch was committed, by Trio's clock.

    Attributes:
        began: when its operations were made, and the store was called.
        ended: when all of it was durable. The event loop may have been told much later.
    """

    began: float
    ended: float


Make = Callable[[], Sequence[AnyOperation]]
Then = Callable[[list[Outcome], BatchTimes], None]


class BatchTurn(Protocol):
    """What a connection does when it is its turn."""

    def __call__(self, most: int, /) -> BatchTurn | None:
        """Bring operations on `most` messages, if they can be divided, to the next batch. Returns the turn for the
        rest, if there is one."""


Done = Callable[[Exception | None], object]
"""Called once when something is done, with its error if it failed."""


class Submission:
    """What waits for a batch: as :meth:`Committer.submit` was told, and how many calls have brought it.

    Args:
        make: as for :meth:`Committer.submit`.
        messages: as for :meth:`Committer.submit`.
        then: as for :meth:`Committer.submit`.
        is_divisible: whether it may go into several batches: it is of one connection, whose later ones stay behind it.

    Attributes:
        left: operations without an outcome, once they are made.
        source: the connection that submitted it; where several have brought it, one of them.
    """

    __slots__ = ("_began", "_is_divisible", "_make", "_outcomes", "_then", "calls", "left", "messages", "source")

    def __init__(self, make: Make, messages: int, then: Then, *, is_divisible: bool = False) -> None:
        self.left: Sequence[AnyOperation] = ()
        self.messages = messages
        self.calls = 1
        self.source = SOURCE.get()
        self._is_divisible = is_divisible
        self._make: Make | None = make
        self._began = 0.0
        self._outcomes: list[Outcome] = []  # of those that went into earlier batches
        self._then = then

    def is_long(self, limit: int) -> bool:
        """Whether it has to go into several batches of so many operations."""
        return self.messages > 2 * limit and self._is_divisible

    def begin(self, now: float) -> Sequence[AnyOperation]:
        """Make the operations, unless this is the rest of what did not fit into a batch; those that are left."""
        if self._make is not None:
            self.left, self._make, self._began = self._make(), None, now
        return self.left

    def answer(self, outcomes: list[Outcome], ended: float) -> None:
        """Take the outcomes of all that is left."""
        self._then([*self._outcomes, *outcomes] if self._outcomes else outcomes, BatchTimes(self._began, ended))

    def keep(self, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of the first operations. The others go into a later batch."""
        self._outcomes += outcomes
        self.left = self.left[len(outcomes) :]
        self.messages = len(self.left)


def _answer_all(submissions: Sequence[Submission], outcomes: list[Outcome], times: BatchTimes) -> None:
    at = 0
    for each in submissions:
        end = at + len(each.left)
        each.answer(outcomes[at:end], times.ended)
        at = end


class _Answering:
    """Answers submissions, in order, as their outcomes come.

    Args:
        submissions: of one batch, with their operations made.
        began: when the store was called.
        now: Trio's clock.
        progress: flushed after some have been answered.
    """

    def __init__(
        self, submissions: Iterable[Submission], began: float, now: Callable[[], float], progress: StoreProgress
    ) -> None:
        self._progress = progress
        self._left = deque(submissions)
        self._began = began
        self._now = now
        self._outcomes: list[Outcome] = []
        self._at = 0  # outcomes of submissions that are answered

    def hear(self, outcomes: Sequence[Outcome], late_seconds: float) -> None:
        """Take the next outcomes, of which there are few."""
        ended = self._add(outcomes, late_seconds)
        while self._left and self._answer_some(ended) is not None:
            pass
        self._progress.flush()

    async def end(self, outcomes: Sequence[Outcome], late_seconds: float, turn: turns.LoopTurns) -> float:
        """Take the last outcomes, in turns of the event loop. Returns the time at which they were there."""
        ended = self._add(outcomes, late_seconds)
        while self._left and (size := self._answer_some(ended)) is not None:
            # A quarter of what it takes: every client waits for this loop.
            if self._left and turn.spend(size * turns.FRAME // 4):
                self._progress.flush()
                await turn.end()
        self._progress.flush()
        return ended

    def unfinished(self) -> Submission | None:
        """Return the submission that did not fit into the batch, without what the batch has done of it."""
        if not self._left:
            return None
        [submission] = self._left
        submission.keep(self._outcomes[self._at :])
        return submission

    def _add(self, outcomes: Sequence[Outcome], late_seconds: float) -> float:
        self._outcomes += outcomes
        return max(self._began, self._now() - late_seconds)

    def _answer_some(self, ended: float) -> int | None:
        """Answer the next submissions, of a few operations together or one long one. Returns of how many operations;
        None if not all of the first one have outcomes."""
        left, outcomes, first = self._left, self._outcomes, self._at
        size = None
        self._progress.is_answering = True
        try:
            while left and (size is None or size < ANSWERED_TOGETHER):
                at, end = self._at, self._at + len(left[0].left)
                if end > len(outcomes):
                    break
                self._at, size = end, end - first
                left.popleft().answer(outcomes[at:end], ended)
        finally:
            self._progress.is_answering = False
        return size


class Begun(Protocol):
    """Items that are being committed."""

    @property
    def operations(self) -> Sequence[AnyOperation]:
        """What is to be done for them."""

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        """Answer them. There is an outcome for each operation, in order."""


class _Made:
    """Operations of one call of :meth:`Committer.submit`."""

    __slots__ = ("done", "operations")

    def __init__(self, call: tuple[Make, Then]) -> None:
        make, self.done = call
        self.operations = make()


class Together(Generic[T]):
    """Items of one kind: what many calls bring until a batch begins is one submission of it, or a few.

    Args:
        committer: commits their operations.

    Attributes:
        begin: called with the items of a batch, just before the store. Set it before the first :meth:`put`.
    """

    begin: Callable[[Sequence[T]], Begun]

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._items: list[T] = []
        self._submission: Submission | None = None

    def put(self, items: Sequence[T], messages: int | None = None) -> None:
        """Commit these, in the caller's own step as far as that goes.

        Args:
            items: in order.
            messages: how many they are about, all of them in one batch; one each by default, in as many as it takes.
        """
        committer = self._committer
        size = len(items) if messages is None else messages
        if not items or (committer.instant is not None and committer.commit_now(self.begin, items, size)):
            return
        if size <= committer.room():
            if messages is None and size > MOST_OF_A_CALL:
                self._add_each(items)
            else:
                self._add(items, size)
        elif messages is None:
            committer.stand_in_line(partial(self._take_turn, items, 0))
        else:
            committer.stand_in_line(partial(self._take_whole_turn, items, messages))
        committer.begin()

    def _take_turn(self, items: Sequence[T], begin: int, most: int) -> BatchTurn | None:
        part = items[begin : begin + most]
        self._add_each(part)
        end = begin + len(part)
        return partial(self._take_turn, items, end) if end < len(items) else None

    def _take_whole_turn(self, items: Sequence[T], messages: int, _: int) -> None:
        self._add(items, messages)

    def _add_each(self, items: Sequence[T]) -> None:
        for some in turns.parts(items, MOST_OF_A_CALL):
            self._add(some, len(some))

    def _add(self, items: Sequence[T], size: int) -> None:
        if self._submission is not None and self._submission.messages + size <= self._committer.together:
            self._items += items
            self._committer.join(self._submission, size)
            return
        self._items = taken = list(items)
        begun: Begun

        def make() -> Sequence[AnyOperation]:
            nonlocal begun
            if self._items is taken:  # what comes from now on goes into the next batch
                self._submission, self._items = None, []
            begun = self.begin(taken)
            return begun.operations

        def then(outcomes: list[Outcome], barrier: BatchTimes) -> None:
            begun.done(outcomes, barrier)

        self._submission = Submission(make, size, then)
        self._committer.append(self._submission)


class Future(Generic[T]):
    """The answer to one request: a worker sets it once, tasks wait for it.

    Attributes:
        value: the answer, once it is set.
        error: with which it failed.
        answered: whether a value or an error is set.
        abandoned: whether a task that waited was cancelled, or its receiver has gone.
    """

    __slots__ = ("_callbacks", "_waiters", "abandoned", "answered", "error", "value")

    def __init__(self) -> None:
        self.value: T | None = None
        self.answered = False
        self.abandoned = False
        self.error: Exception | None = None
        self._waiters: list[trio.lowlevel.Task] = []
        self._callbacks: list[Done] = []

    def set(self, value: T) -> None:
        """Answer with a value."""
        self.value = value
        self._answer()

    def fail(self, error: Exception) -> None:
        """Answer with an error."""
        self.error = error
        self._answer()

    def end(self, error: Exception | None) -> None:
        """Answer with an error, or with no value if there is none."""
        self.error = error
        self._answer()

    def then(self, done: Done) -> None:
        """Call this with the error, or None, in the step that answers; now if that is over. It must not raise."""
        if self.answered:
            done(self.error)
        else:
            self._callbacks.append(done)

    def abandon(self) -> None:
        """Note that the answer has no receiver any more. Callbacks are called as if it had failed."""
        if not self.answered:
            self.abandoned = True
            self.fail(_GONE)

    async def get(self) -> T:
        """Wait for the answer. A task that is cancelled here sets `abandoned`."""
        if not self.answered:
            await self._wait()
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]

    async def _wait(self) -> None:
        task = trio.lowlevel.current_task()

        def leave(_: object) -> trio.lowlevel.Abort:
            self._waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        self._waiters.append(task)
        try:
            await trio.lowlevel.wait_task_rescheduled(leave)
        except trio.Cancelled:
            self.abandoned = True  # only here: until the task sees Cancelled it may still receive the value
            raise

    def _answer(self) -> None:
        self.answered = True
        for task in self._waiters:
            trio.lowlevel.reschedule(task)
        self._waiters.clear()
        callbacks, self._callbacks = self._callbacks, []
        for done in callbacks:
            done(self.error)


_GONE: Final = BrokerClosed("the client has disconnected")
CLOSING: Final = "the daemon is shutting down. Connect to another daemon, or try again after the restart"


class StoreProgress:
    """Knows that the store goes on answering. A block that waits for the store may take longer as long as it does: then
    others are served first, or there is much to do.

    Attributes:
        after: calls that completions of one answer of the store share: each is made once, after the last of them.
        is_answering: whether completions are being called, and :meth:`flush` follows in this step.
    """

    def __init__(self) -> None:
        self.is_answering = False
        self._others_wait_until = -math.inf
        self._scopes: set[trio.CancelScope] = set()
        self.after: dict[Callable[[], None], None] = {}
        self._extended = -math.inf

    def note(self) -> None:
        """The store has answered."""
        if self._scopes and (now := trio.current_time()) >= self._extended + EXTENSION_SECONDS:
            self._extended = now
            for scope in self._scopes:
                scope.deadline = now + PATIENCE_SECONDS

    def flush(self) -> None:
        """The completions of an answer, or of a turn's part of it, have been called."""
        while self.after:
            calls, self.after = self.after, {}
            for call in calls:
                call()

    @property
    def others_wait(self) -> bool:
        """Whether a connection that wants little had to wait for long, lately."""
        return trio.current_time() < self._others_wait_until

    def note_wait(self, seconds: float) -> None:
        """An operation of a connection that had none in line has waited so long for its turn."""
        if seconds > LONG_WAIT_SECONDS:
            self._others_wait_until = trio.current_time() + LATELY_SECONDS

    def shielded(self) -> AbstractContextManager[None]:
        """Shield the block from cancellation until the store has answered nothing for :data:`PATIENCE_SECONDS`.

        Raises:
            StorageUnsure: the block was cut off then.
        """
        return self.patient(shield=True)

    @contextmanager
    def patient(self, *, shield: bool = False) -> Iterator[None]:
        """Cut the block off once the store has answered nothing for :data:`PATIENCE_SECONDS`.

        Raises:
            StorageUnsure: it was cut off.
        """
        with trio.move_on_after(PATIENCE_SECONDS, shield=shield) as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise StorageUnsure(
                f"the store has not responded for {PATIENCE_SECONDS:g} seconds, so the outcome of the "
                "request is unknown"
            )


class InFlight:
    """Counts in-flight requests: each runs in a ``with in_flight:``, or counts itself until its completion.

    Args:
        committer: knows whether the medium has failed.

    Attributes:
        is_closed: whether the broker accepts no more requests.
        running: how many there are. A hot path adds its own, after it has checked what entering checks, and takes it
            off as long as the broker is open.

    Raises:
        BrokerClosed: on entering, when the broker accepts no more requests.
        StorageStopped: on entering, when the medium has failed.
    """

    def __init__(self, committer: Committer) -> None:
        self.is_closed = False
        self._committer = committer
        self.running = 0
        self._finished = AsyncBool()

    def check(self) -> None:
        """Check that the broker accepts requests now.

        Raises:
            As entering.
        """
        if self.is_closed:
            raise BrokerClosed(CLOSING)
        if self._committer.failure:
            self._committer.check()

    def __enter__(self) -> None:
        if self.is_closed or self._committer.failure:
            self.check()
        self.running += 1

    def __exit__(self, *_: object) -> None:
        self.end(1)

    def end(self, count: int) -> None:
        """Note that so many requests are done."""
        self.running -= count
        if self.is_closed and not self.running:
            self._finished.value = True

    def counted(self, call: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a function that makes such calls as requests."""

        @wraps(call)
        async def counting(*args: P.args, **kwargs: P.kwargs) -> T:
            with self:
                return await call(*args, **kwargs)

        return counting

    def close(self) -> None:
        """Accept no more requests."""
        self.is_closed = True
        if not self.running:
            self._finished.value = True

    async def finished(self) -> None:
        """Wait until the last request is done; call :meth:`close` before."""
        await self._finished.wait_value(True)
