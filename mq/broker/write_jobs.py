"""Write jobs: rows of many requests that come into their queues together or not at all, as Spark's
``commitMode=staged`` wants them.

What a job was given waits in the store, a *chunk* of messages in one entry, outside every queue: in NEW of a queue that
is none (:data:`~mq.storage.interface.WRITE_JOBS`). The record of the job says what it is:

* ``open``: chunks may come. A crash leaves them, and the job goes on; without a sign of life it is aborted in the end.
* ``committed``: **the instant at which the record says so is that of all rows.** They are published now, a few chunks
  at a time, each chunk unlinked when its rows are durable. A start goes on with that before it serves. Each row
  has an idempotency key, and no key of these queues ends meanwhile, so a row that is published again is the same one.
* ``done``: nothing is left but the answer for a client that asks again.
* ``aborted``: nothing of it will come. Late chunks are refused.

A chunk without an open or a committed record, or that came in part, is taken away. So are the chunks of a committed job
that it does not name: those of a task that was run again.

The disk that chunks take is reserved before they are written, and given back once they are taken away
(:meth:`WriteJobs.count_in`).
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

import trio

from mq import turns
from mq.broker.commit import Future
from mq.broker.config import RETRY_SECONDS
from mq.broker.consuming import removing
from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.broker.keys import Keys
from mq.broker.publishing import Draft, Publisher, check_resumed, check_room
from mq.broker.settings import REJECT
from mq.broker.upkeep import Upkeep
from mq.errors import (
    BatchTooLarge,
    BrokerClosed,
    Conflict,
    CorruptMessage,
    InvalidSetting,
    MQError,
    NoSuchQueue,
    NotYours,
    StorageError,
    TooLargeForQueue,
)
from mq.lifecycle import State
from mq.message import shorten
from mq.quantities import show_count
from mq.storage.interface import WRITE_JOBS, Entry, Outcome, Result, Write, damages_of
from mq.storage.records import drop_record, error_of, put_record

logger = logging.getLogger("mq.broker")

KIND: Final = "write_job"
"""The kind of a job's record. Its key is the job's name."""
KEEP_SECONDS: Final = 86_400.0
"""How long an open job may be without a sign of life, and how long an ended one is remembered."""
MOST_JOBS: Final = 10_000
"""Jobs that are known at a time."""
JOBS_PER_USER: Final = 1000
"""Of one user."""
MOST_PARTS: Final = 10_000
"""Parts that a commit may name."""
LARGEST_CHUNK: Final = 4 << 20
"""Bytes of a chunk, but for a single longer message."""
ROWS_AT_ONCE: Final = 4000
"""Rows that are published in one batch, about."""
CHUNK_BYTES: Final = 4096
"""What a chunk takes on disk besides its bytes: a name, and the rest of its last block. It bounds the number of chunks,
and so the memory that they take, too."""
_CHUNKS_AT_ONCE: Final = 100
"""Chunks that are opened at a time."""
_BYTES_AT_ONCE: Final = 8 << 20
_DAMAGED_SECONDS: Final = 60.0
"""After which a job is tried again whose rows are damaged."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@-]{0,99}")


class JobState(Enum):
    """What a job is."""

    OPEN = "open"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


class JobRoom(Protocol):
    """The disk that is reserved for one job."""

    def cover_strictly(self, size: int) -> None:
        """Have at least `size` bytes from now on.

        Raises:
            BodyTooLarge: the job has as many as one may have.
            OverBudget: more than are free just now.
        """

    def take(self, size: int) -> None:
        """Have at least `size` bytes, however few are free: they are on disk already."""

    def shrink(self, size: int) -> None:
        """Give back what is over `size` bytes."""


MakeRoom = Callable[[str, str | None], JobRoom]
"""Given the name of a job and its owner, returns room for it."""


class WriteJobStatus(NamedTuple):
    """One job.

    Attributes:
        state: ``open``, ``committed``, ``done`` or ``aborted``.
        queues: where its rows go, or went; of a committed one those of its committed parts.
        duplicates: how many of those that it has published were in their queue already, by their keys; None where a
            crash came between, so that this is not known.
    """

    job: str
    state: str
    queues: Sequence[str]
    rows: int
    duplicates: int | None = None


class WriteJobs:
    """The write jobs of a store that no other broker changes: :attr:`Broker.writes`.

    Every operation raises :class:`~mq.errors.NoSuchQueue` where there is no such queue.

    Args:
        keys: the idempotency keys; None among peers.
    """

    def __init__(
        self,
        core: Core,
        keys: Keys | None,
        publisher: Publisher,
        upkeep: Upkeep,
        look_up: Callable[[str], Awaitable[QueueIndex]],
    ) -> None:
        self._look_up = look_up
        self._in_flight = core.in_flight
        self._core = core
        self._keys = keys
        self._publisher = publisher
        self._upkeep = upkeep
        self._jobs: dict[str, _Job] = {}
        self._garbage: list[_Chunk] = []
        self._make_room: MakeRoom | None = None
        self._filling: Counter[QueueIndex] = Counter()
        self._filled = trio.lowlevel.ParkingLot()
        self._changed = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._is_loaded = False
        self._loading = trio.Lock()

    def count_in(self, make_room: MakeRoom) -> None:
        """Reserve disk for what jobs hold now, and for what they hold later."""
        self._make_room = make_room
        for job in self._jobs.values():
            job.disk.count_in(make_room(job.name, job.owner))

    # A start

    async def load(self) -> None:
        """Load the jobs, where one holds something; else the first that is asked for does that. Call it when the
        catalog knows all messages, and before keys are loaded: those of the queues of a committed job must not end
        now."""
        if self._keys is not None and WRITE_JOBS in self._core.catalog.strangers:
            await self._load(self._keys)

    async def start(self, nursery: trio.Nursery) -> None:
        """Publish what committed jobs have not published yet, and take away the chunks of no job. Where the store
        refuses that for now it is tried again later."""
        self._nursery = nursery
        if self._is_loaded:
            await self._redo()
            nursery.start_soon(self._run)

    async def _load(self, keys: Keys) -> None:
        storage = self._core.storage
        for name, record in (await storage.records(KIND)).items():
            job = self._new_job(name, self._loaded_since(record), record.get("owner"))
            job.take(record)
        entries = await storage.scan(State.NEW, WRITE_JOBS)
        for start in range(0, len(entries), _CHUNKS_AT_ONCE):
            some = entries[start : start + _CHUNKS_AT_ONCE]
            for entry, stored in zip(some, await storage.read(some), strict=True):
                if stored is not None:
                    size = stored.body.size
                    await stored.body.aclose()
                    self._load_chunk(entry, stored.properties.attributes, size)
        for job in self._jobs.values():
            self._garbage += job.drop_incomplete()
            if job.state is JobState.COMMITTED:
                job.again = None
                job.frozen.update(filter(None, map(self._index, job.chunks())))
                keys.frozen.update(job.frozen)
        self._is_loaded = True

    async def _loaded(self) -> None:
        """Load the jobs, unless they are. None of them holds anything then.

        Raises:
            Conflict: there can be none.
        """
        if self._keys is None or self._core.storage.description.shared:
            raise Conflict(
                "write jobs (messages that are staged and then committed together) are not supported when other "
                "programs share the root folder. Run a single daemon, without --peers or --no-mover"
            )
        async with self._loading:
            if not self._is_loaded:
                await self._load(self._keys)
                assert self._nursery is not None, "it is asked before it has started"
                self._nursery.start_soon(self._run)

    async def _redo(self) -> None:
        try:
            await self._clear()
            for job in list(self._jobs.values()):
                if job.state is JobState.COMMITTED:
                    await self._finish(job)
        except (StorageError, CorruptMessage) as error:
            logger.error("temporarily unable to move some messages of committed write jobs to their queues: %s", error)

    async def _run(self) -> None:
        """End what is left of jobs, for ever: those that were abandoned, and those whose commit was cut off."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(self._seconds_left()):
                await self._changed.wait()
            try:
                await self._clear()
            except StorageError as error:
                logger.debug("temporarily unable to remove staged messages whose write job no longer exists: %s", error)
            for job in list(self._jobs.values()):
                try:
                    await self._care_for(job)
                except MQError as error:
                    pause = _DAMAGED_SECONDS if isinstance(error, CorruptMessage) else RETRY_SECONDS
                    job.retry_at = trio.current_time() + pause
                    logger.warning("temporarily unable to finish write job %s: %s", job.name, error)

    def _loaded_since(self, record: Mapping[str, Any]) -> float:
        """When a job had its last sign of life, by Trio's clock; not later than now."""
        age_seconds = (self._core.clock.steady_ms() - int(record.get("at_ms", 0))) / 1e3
        return trio.current_time() - max(0.0, age_seconds if record["state"] != JobState.OPEN.value else 0.0)

    def _new_job(self, name: str, since: float, owner: str | None) -> _Job:
        job = self._jobs[name] = _Job(name, since, owner)
        if self._make_room is not None:
            job.disk.count_in(self._make_room(name, owner))
        return job

    def _load_chunk(self, entry: Entry, attributes: Mapping[str, Any], size: int) -> None:
        try:
            chunk = _Chunk.said(entry, attributes)
        except KeyError:
            logger.error(
                "the file %s, which contains messages staged by a write job, is damaged; it was left in the "
                "folder new/",
                entry.id,
            )
            return
        job = self._jobs.get(chunk.job)
        if job is None and damages_of(self._core.storage, KIND):
            logger.error(
                "the file %s contains messages staged by a write job whose record is missing; it was left in the "
                "folder new/",
                entry.id,
            )
        elif job is None or job.state in (JobState.DONE, JobState.ABORTED) or not job.add(chunk.on(job.disk, size)):
            self._garbage.append(chunk)
        else:
            job.disk.take(size + CHUNK_BYTES)

    # Operations

    async def of(self, queue: str) -> list[WriteJobStatus]:
        """The jobs with rows for a queue that have not ended, by name."""
        await self._look_up(queue)
        await self._loaded()
        found = [job.status() for _, job in sorted(self._jobs.items())]
        return [each for each in found if queue in each.queues and each.state in ("open", "committed")]

    async def add(
        self, queue: str, name: str, part: str, number: int, drafts: Sequence[Draft], user: str | None = None
    ) -> list[MQError | None]:
        """Hold messages back for a job, durably; for each, in their order, None or why it is refused. What has the same
        part and number as something before is the same, sent again.

        Args:
            part: names a task, or one run of it. A commit names the parts that count.
            number: of the request in its part; the rows come in this order.
            user: who asks, and owns a job that begins with this; None for an administrator, or where there are no
                users.

        Raises:
            Conflict: the job has ended; or there are too many; or its part has other rows under this number.
            InvalidSetting: not a name.
            NotYours: the job is another user's.
            TooLargeForQueue: they would not all fit in the queue if it were empty, and no commit brings a part of them.
            BodyTooLarge: the job holds as much as one may hold.
            OverBudget: other jobs hold the disk for them just now.
            StorageError: none is held.
        """
        with self._in_flight:
            index = await self._look_up(queue)
            await self._loaded()
            _check_names(name, part)
            refused = [self._refusal(index, draft) for draft in drafts]
            good = [draft for draft, error in zip(drafts, refused, strict=True) if error is None]
            if not good:
                return refused
            _check_fits(index, good)
            job = await self._begun(name, user)
            async with job.alone_in(part):
                if (part, number) in job.parts:
                    job.check_same(part, number, index, good)
                else:
                    await self._hold(job, index, part, number, good)
            job.since = trio.current_time()
            return refused

    async def commit(
        self, queue: str, name: str, parts: Sequence[str], rows: int, user: str | None = None
    ) -> WriteJobStatus:
        """Let all rows of these parts come into their queues, or none; then those of others are taken away. On return
        they are there. Asked for again, the same.

        Args:
            queue: one of those for which it has rows.
            parts: those that count, in the order in which their rows come.

        Raises:
            InvalidSetting: not a name.
            NotYours: the job is another user's.
            Conflict: the job is not there, was aborted, or has another number of rows; a queue was deleted meanwhile.
            QueueFull: a queue has no room for them, or is paused.
            StorageUnsure, StorageFailed: it may be committed, or not; asking again tells.
            StorageError: what is not in its queue yet comes later, or nothing was committed: asking again tells.
        """
        with self._in_flight:
            await self._look_up(queue)
            await self._loaded()
            _check_names(name, *parts)
            job = self._jobs.get(name)
            if job is None:
                if rows == 0:
                    return WriteJobStatus(name, JobState.DONE.value, [], 0, 0)
                raise Conflict(
                    f"write job {shorten(name)} does not exist: it may have timed out or been deleted. Write the "
                    "messages again"
                )
            job.check_owner(user)
            async with job.ending:
                _check_has(job, queue)
                if job.state is JobState.ABORTED:
                    raise Conflict(
                        f"write job {name} was aborted or timed out, and none of its messages were published"
                    )
                if job.state is JobState.OPEN:
                    await self._decide(job, parts, rows)
                if job.state is JobState.COMMITTED:
                    try:
                        await self._finish(job)
                    except MQError:
                        job.retry_at = trio.current_time() + RETRY_SECONDS
                        raise
                    finally:
                        self._changed.set()  # what is left, if anything, is _run's: where the caller has gone, at once
                return job.status()

    async def abort(self, queue: str, name: str, user: str | None = None) -> None:
        """End a job, so that none of its rows comes; forget one that is done.

        Args:
            queue: one of those for which it has rows.

        Raises:
            InvalidSetting: not a name.
            NotYours: the job is another user's.
            Conflict: it is committed.
            StorageError: it is not ended yet.
        """
        with self._in_flight:
            await self._look_up(queue)
            await self._loaded()
            _check_names(name)
            job = self._jobs.get(name)
            if job is not None:
                job.check_owner(user)
                _check_has(job, queue)
                await self._abort(job)

    async def settle(self, index: QueueIndex) -> None:
        """Wait while rows of a committed job come into a queue."""
        while self._filling[index]:
            await self._filled.park()

    # Implementation

    def _refusal(self, index: QueueIndex, draft: Draft) -> MQError | None:
        try:
            self._publisher.check(index, draft)
        except MQError as error:
            return error
        return None

    async def _begun(self, name: str, user: str | None) -> _Job:
        """The open job of that name, with its record.

        Raises:
            NotYours: it is another user's.
        """
        job = self._jobs.get(name)
        if job is None:
            self._check_number(user)
            job = self._new_job(name, trio.current_time(), user)
        job.check_owner(user)
        if not job.is_noted:
            async with job.ending:
                if not job.is_noted:
                    await self._note(job, JobState.OPEN)
        _check_open(job)
        return job

    def _check_number(self, user: str | None) -> None:
        """Refuse a new job of a user if there are too many."""
        if len(self._jobs) >= MOST_JOBS:
            raise Conflict(
                f"the maximum of {MOST_JOBS} write jobs has been reached. Commit or abort some write jobs, or "
                "wait for inactive ones to time out"
            )
        if user is not None and sum(job.owner == user for job in self._jobs.values()) >= JOBS_PER_USER:
            raise Conflict(
                f"user {user} has reached the maximum of {JOBS_PER_USER} write jobs. Commit or abort some "
                "write jobs, or wait for inactive ones to time out"
            )

    async def _hold(self, job: _Job, index: QueueIndex, part: str, number: int, drafts: Sequence[Draft]) -> None:
        groups = list(_cut(drafts, self._core.storage.description.max_body))
        bodies = list(map(_encoded, groups))
        job.disk.reserve(sum(map(len, bodies)) + CHUNK_BYTES * len(bodies))
        writes = [
            Write(
                WRITE_JOBS,
                self._core.ids.new(),
                body,
                {
                    "job": job.name,
                    "queue": index.name,
                    "incarnation": index.incarnation,
                    "part": part,
                    "number": number,
                    "place": place,
                    "of": len(groups),
                    "rows": len(group),
                    "bytes": _size_of(group),
                },
            )
            for place, (group, body) in enumerate(zip(groups, bodies, strict=True))
        ]
        chunks = [
            _Chunk.said(write.entry, write.attributes).on(job.disk, len(body))
            for write, body in zip(writes, bodies, strict=True)
        ]
        future: Future[None] = Future()

        def stored(outcomes: list[Outcome], _: object) -> None:  # also if the client has gone meanwhile
            refusal = next((outcome for outcome in outcomes if outcome.result is not Result.DONE), None)
            try:
                if refusal is not None:
                    raise error_of(refusal, "cannot store the messages of a write job")
                _check_open(job)
                if (part, number) in job.parts:  # of a client that has gone, and sent them again
                    job.check_same(part, number, index, drafts)
                    self._garbage += chunks
                    self._changed.set()
                else:
                    for chunk in chunks:
                        job.add(chunk)
            except MQError as error:
                self._garbage += chunks
                self._changed.set()
                future.fail(error)
            else:
                future.set(None)

        self._core.committer.submit(lambda: writes, len(writes), stored)
        await future.get()

    async def _clear(self, published: Sequence[_Chunk] | None = None) -> None:
        """Take away the chunks of no job, durably: a commit must not find them after a crash. Or only those whose rows
        are published: each of these is known by its key."""
        garbage = list(self._garbage if published is None else published)
        await self._unlink(garbage, durable=published is None)
        gone, left = set(garbage), []
        for chunk in self._garbage:
            if chunk in gone:
                chunk.give_back()
            else:
                left.append(chunk)
        self._garbage = left

    async def _decide(self, job: _Job, parts: Sequence[str], rows: int) -> None:
        """Commit a job, if all of it is there and its queues take it."""
        if len(parts) > MOST_PARTS:
            raise BatchTooLarge(
                f"a write job can be committed with at most {MOST_PARTS} parts. Use fewer parts (in Spark: fewer tasks)"
            )
        wanted = list(job.chunks(parts))
        stored = sum(chunk.rows for chunk in wanted)
        if stored != rows:
            raise Conflict(
                f"write job {job.name} cannot be committed, because its parts contain {show_count(stored, 'message')} "
                f"instead of {rows}. Write the messages again"
            )
        await self._clear()
        for index, chunks in self._by_queue(wanted):
            _check_room(index, sum(chunk.rows for chunk in chunks), sum(chunk.bytes for chunk in chunks))
        queues = sorted({chunk.queue for chunk in wanted})
        with_rows = {chunk.part for chunk in wanted}
        counted = [part for part in dict.fromkeys(parts) if part in with_rows]
        await self._note(job, JobState.COMMITTED, parts=counted, rows=rows, queues=queues)

    def _by_queue(self, chunks: Iterable[_Chunk]) -> Iterator[tuple[QueueIndex, list[_Chunk]]]:
        of_queue: dict[str, list[_Chunk]] = {}
        for chunk in chunks:
            of_queue.setdefault(chunk.queue, []).append(chunk)
        for queue, found in of_queue.items():
            indexes = {self._index(chunk) for chunk in found}
            index = next(iter(indexes))
            if index is None or len(indexes) > 1:
                raise Conflict(
                    f"queue {queue} was deleted while messages were being written to it. Write the messages again"
                )
            yield index, found

    async def _finish(self, job: _Job) -> None:
        """Publish what a committed job still holds, take the rest of it away, and note that it is done."""
        assert self._keys is not None
        wanted = list(job.chunks(job.wanted))
        indexes = list(dict.fromkeys(index for index in map(self._index, wanted) if index is not None))
        with self._held_back(job, indexes):
            job.frozen.update(indexes)
            self._keys.frozen.update(indexes)
            for some in _together(wanted):
                await self._publish(job, some)
                job.drop(some)  # before they are taken away: a caller may go meanwhile, and the job goes on
                self._garbage += some
                await self._clear(some)
            self._garbage += job.take_all()
            await self._clear()
            for index in indexes:  # readers that wait have seen to that before
                await self._upkeep.caught_up(index)
            await self._note(job, JobState.DONE, rows=job.rows, again=job.again, queues=job.queues)
            self._keys.frozen.intersection_update(self._frozen_by_committed())

    def _frozen_by_committed(self) -> set[QueueIndex]:
        committed = [job for job in self._jobs.values() if job.state is JobState.COMMITTED]
        return {index for job in committed for index in job.frozen}

    @contextmanager
    def _held_back(self, job: _Job, indexes: Iterable[QueueIndex]) -> Iterator[None]:
        """Let readers of these queues wait until the job is done, or until the store refuses something. They wait on
        where the caller of a commit goes, for the job does."""
        if not job.filling:
            job.filling = set(indexes)
            self._filling.update(job.filling)
        try:
            yield
        except trio.Cancelled:
            raise
        except BaseException:
            self._let_read(job)
            raise
        self._let_read(job)

    def _let_read(self, job: _Job) -> None:
        self._filling -= Counter(job.filling)
        job.filling = set()
        self._filled.unpark_all()

    async def _abort(self, job: _Job) -> None:
        async with job.ending:
            if job.state is JobState.COMMITTED:
                raise Conflict(f"write job {job.name} is already committed, and its messages are being published")
            if job.state is JobState.OPEN:
                await self._note(job, JobState.ABORTED)
                self._garbage += job.take_all()
                await self._clear()
            elif job.state is JobState.DONE:
                await self._forget(job)

    async def _publish(self, job: _Job, chunks: Sequence[_Chunk]) -> None:
        """Publish the rows of some chunks of one queue."""
        index = self._index(chunks[0])
        if index is None:
            return  # it was deleted after the commit, and they with it
        drafts: list[Draft] = []
        for chunk, stored in zip(chunks, await self._core.storage.read([chunk.entry for chunk in chunks]), strict=True):
            if stored is None:
                raise CorruptMessage(
                    f"the messages of request {chunk.number} in part {chunk.part} of write job {job.name} no longer "
                    "exist"
                )
            try:
                body = await stored.body.read()
            finally:
                await stored.body.aclose()
            await turns.spend(frames=chunk.rows // 2)
            drafts += _decoded(body, f"{job.name}/{chunk.part}/{chunk.number}/{chunk.place}")
        for outcome in await self._publisher.publish(index, drafts):
            if isinstance(outcome, NoSuchQueue):
                continue
            if isinstance(outcome, StorageError | BrokerClosed):
                job.again = None  # the next try finds those that are there now
                raise outcome
            if isinstance(outcome, MQError):
                logger.error("a message of write job %s was not stored in queue %s: %s", job.name, index.name, outcome)
            elif job.again is not None:
                job.again += not outcome.is_new

    def _index(self, chunk: _Chunk) -> QueueIndex | None:
        """The queue for which a chunk was meant; None when it is no more."""
        index = self._core.catalog.queues.get(chunk.queue)
        return index if index is not None and index.incarnation == chunk.incarnation else None

    async def _care_for(self, job: _Job) -> None:
        """Do what a job needs by now."""
        if job.ending.locked() or self._due(job) > trio.current_time():
            return
        if job.state is JobState.OPEN:
            logger.warning("write job %s timed out, so its staged messages are being removed", job.name)
            await self._abort(job)
            return
        async with job.ending:
            if job.state is JobState.COMMITTED:
                await self._finish(job)
            else:
                await self._forget(job)

    def _seconds_left(self) -> float:
        """Seconds until a job needs something, or may be looked at again while others work on it."""
        now = trio.current_time()
        due = [now + RETRY_SECONDS if job.ending.locked() else self._due(job) for job in self._jobs.values()]
        return max(0.001, min(due) - now) if due else math.inf

    def _due(self, job: _Job) -> float:
        return max(job.retry_at, 0.0 if job.state is JobState.COMMITTED else job.since + KEEP_SECONDS)

    async def _note(self, job: _Job, state: JobState, **more: Any) -> None:
        """Put the record of a job; durable on return, and only then is that its state."""
        record = {"state": state.value, "at_ms": self._core.clock.steady_ms(), **more}
        if job.owner is not None:
            record["owner"] = job.owner
        with trio.CancelScope(shield=True), self._core.committer.noting_failure():
            await put_record(self._core.storage, KIND, job.name, record)
            job.take(record)
        job.since = trio.current_time()
        self._changed.set()

    async def _forget(self, job: _Job) -> None:
        if self._jobs.get(job.name) is not job:
            return
        with trio.CancelScope(shield=True), self._core.committer.noting_failure():
            await drop_record(self._core.storage, KIND, job.name)
            del self._jobs[job.name]

    async def _unlink(self, chunks: Sequence[_Chunk], *, durable: bool = False) -> None:
        """Take chunks away. After a crash some may be there again: then their job does not name them, or each of
        their rows is known by its key."""
        if not chunks:
            return
        in_one_step = self._core.storage.description.removes
        operations = removing([chunk.entry for chunk in chunks], in_one_step=in_one_step, durable=durable)
        for outcome in await self._core.committer.commit(operations):
            if outcome.result not in (Result.DONE, Result.GONE):
                raise error_of(
                    outcome, f"cannot remove staged messages of a write job from queue {chunks[0].entry.queue}"
                )


class _Chunk(NamedTuple):
    """Some rows of a job for one queue, in the store.

    Attributes:
        part: see :meth:`WriteJobs.add`.
        disk: has its bytes reserved; None where none are.
    """

    entry: Entry
    job: str
    queue: str
    incarnation: int
    part: str
    number: int
    place: int
    of: int
    rows: int
    bytes: int
    disk: _JobDisk | None = None
    size: int = 0

    @classmethod
    def said(cls, entry: Entry, attributes: Mapping[str, Any]) -> _Chunk:
        """The chunk of an entry, as its attributes say."""
        return cls(entry, **{name: attributes[name] for name in cls._fields[1:-2]})

    def on(self, disk: _JobDisk, size: int) -> _Chunk:
        """The same, with bytes that are reserved."""
        return self._replace(disk=disk, size=size)

    def give_back(self) -> None:
        """Give back its bytes: it is taken away."""
        if self.disk is not None:
            self.disk.give_back(self.size + CHUNK_BYTES)


class _JobDisk:
    """The disk that the chunks of one job take, also those that are still to be taken away."""

    __slots__ = ("_room", "size")

    def __init__(self) -> None:
        self.size = 0
        self._room: JobRoom | None = None

    def count_in(self, room: JobRoom) -> None:
        """Reserve what there is, and what comes, there."""
        self._room = room
        room.take(self.size)

    def reserve(self, size: int) -> None:
        """So many bytes more, as :meth:`JobRoom.cover_strictly`."""
        if self._room is not None:
            self._room.cover_strictly(self.size + size)
        self.size += size

    def take(self, size: int) -> None:
        """So many bytes more, which are on disk already."""
        self.size += size
        if self._room is not None:
            self._room.take(self.size)

    def give_back(self, size: int) -> None:
        """So many bytes less."""
        self.size -= size
        if self._room is not None:
            self._room.shrink(self.size)


class _Job:
    """A job, as it is in the store.

    Attributes:
        wanted: the parts that count, once it is committed.
        again: how many of these were there already; None when that is not known.
        ending: held while its state changes, or is about to.
        retry_at: not before this anything is tried again.
        filling: the queues whose readers wait for its rows.
        frozen: the queues whose keys must not end before it is done: after a crash its rows may be published again.
        owner: the user who began it; None for an administrator, or where there are no users.
        disk: what its chunks take.
    """

    def __init__(self, name: str, since: float, owner: str | None = None) -> None:
        self.name = name
        self.owner = owner
        self.since = since
        self.state = JobState.OPEN
        self.is_noted = False
        self.parts: dict[tuple[str, int], list[_Chunk]] = {}
        self.wanted: Sequence[str] = ()
        self.rows = 0
        self.queues: Sequence[str] = ()
        self.again: int | None = 0
        self.ending = trio.Lock()
        self.disk = _JobDisk()
        self._locks: dict[str, trio.Lock] = {}
        self.retry_at = 0.0
        self.filling = set[QueueIndex]()
        self.frozen = set[QueueIndex]()

    def check_owner(self, user: str | None) -> None:
        """Refuse every user but the owner and administrators: rows of others would keep the owner from committing, for
        it knows neither their number nor perhaps their queue.

        Raises:
            NotYours: it is another user's.
        """
        if user is not None and user != self.owner:
            raise NotYours(f"write job {self.name} was started by another user. Choose another name")

    @asynccontextmanager
    async def alone_in(self, part: str) -> AsyncIterator[None]:
        """A block for one request of a part at a time."""
        lock = self._locks.setdefault(part, trio.Lock())
        try:
            async with lock:
                yield
        finally:
            if not lock.locked():  # else the last of those that wait forgets it
                self._locks.pop(part, None)

    def check_same(self, part: str, number: int, index: QueueIndex, drafts: Sequence[Draft]) -> None:
        """Refuse rows under a number that has others, which would be dropped.

        Raises:
            Conflict: the number has rows for another queue, or others for this one.
        """
        held = self.parts[part, number]
        queue, incarnation = held[0].queue, held[0].incarnation
        if (queue, incarnation) != (index.name, index.incarnation):
            origin = f"for queue {queue}" if queue != index.name else f"for the deleted queue {queue}"
        elif sum(chunk.rows for chunk in held) != len(drafts) or sum(chunk.bytes for chunk in held) != _size_of(drafts):
            origin = "from an earlier request"
        else:
            return
        raise Conflict(
            f"in part {part} of write job {self.name}, request number {number} was already used for other messages "
            f"({origin}). Use a different number for each request in a part"
        )

    def take(self, record: Mapping[str, Any]) -> None:
        """Be what the record says."""
        self.state = JobState(record["state"])
        self.is_noted = True
        self.wanted = record.get("parts", ())
        self.rows = record.get("rows", self.rows)
        self.queues = record.get("queues", self.queues)
        self.again = record.get("again", self.again)

    def add(self, chunk: _Chunk) -> bool:
        """Add a chunk; False when it is there already."""
        held = self.parts.setdefault((chunk.part, chunk.number), [])
        if any(each.place == chunk.place for each in held):
            return False
        held.append(chunk)
        return True

    def chunks(self, parts: Iterable[str] | None = None) -> Iterator[_Chunk]:
        """What it holds of these parts, part by part and in order; of all, in no order, where none are named."""
        if parts is None:
            yield from itertools.chain.from_iterable(self.parts.values())
            return
        numbers: dict[str, list[int]] = {}
        for part, number in self.parts:
            numbers.setdefault(part, []).append(number)
        for part in dict.fromkeys(parts):
            for number in sorted(numbers.get(part, ())):
                yield from sorted(self.parts[part, number], key=lambda chunk: chunk.place)

    def drop(self, chunks: Iterable[_Chunk]) -> None:
        """Forget chunks that are no more."""
        for chunk in chunks:
            held = self.parts[chunk.part, chunk.number]
            held.remove(chunk)
            if not held:
                del self.parts[chunk.part, chunk.number]

    def drop_incomplete(self) -> list[_Chunk]:
        """Forget requests of an open job of which not all chunks are there, and return these: no client was
        told that they are held. Of a committed job some may have been published."""
        if self.state is not JobState.OPEN:
            return []
        incomplete = [held for held in self.parts.values() if len(held) < held[0].of]
        dropped = [chunk for held in incomplete for chunk in held]
        self.drop(dropped)
        return dropped

    def take_all(self) -> list[_Chunk]:
        """Forget all chunks, and return them."""
        chunks = list(self.chunks())
        self.parts.clear()
        return chunks

    def status(self) -> WriteJobStatus:
        """What it is, for people and clients."""
        if self.state is JobState.OPEN:
            rows = sum(chunk.rows for chunk in self.chunks())
            return WriteJobStatus(self.name, self.state.value, sorted(self.queues_held()), rows)
        again = self.again if self.state is JobState.DONE else None
        return WriteJobStatus(self.name, self.state.value, self.queues, self.rows, again)

    def queues_held(self) -> set[str]:
        """The queues for which it holds rows."""
        return {chunk.queue for chunk in self.chunks()}


def _check_names(*names: str) -> None:
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise InvalidSetting(
                f"invalid write job name or part name: {shorten(name)}. Use 1 to 100 characters: letters, digits "
                "and any of . _ @ - (the first must be a letter, a digit or _)"
            )


def _check_has(job: _Job, queue: str) -> None:
    """Refuse what names another queue: the right on it was asked for."""
    queues = job.queues_held() if job.state is JobState.OPEN else job.queues
    if queues and queue not in queues:
        raise Conflict(f"write job {job.name} has no messages for queue {queue}")


def _check_open(job: _Job) -> None:
    if job.state is not JobState.OPEN:
        raise Conflict(f"write job {job.name} is {job.state.value}, so it does not accept more messages")


def _check_room(index: QueueIndex, rows: int, size: int) -> None:
    """Refuse a commit for which a queue has no room: once decided, it is not refused any more."""
    check_resumed(index)
    if index.settings.overflow == REJECT:
        check_room(index, rows, size)


def _check_fits(index: QueueIndex, drafts: Sequence[Draft]) -> None:
    """Refuse rows that come together and of which an empty queue would not take all."""
    settings, size = index.settings, _size_of(drafts)
    if settings.overflow == REJECT and settings.max_bytes is not None and size > settings.max_bytes:
        raise TooLargeForQueue(
            f"the total size of these messages is {size} bytes, but queue {index.name} can store at most "
            f"{settings.max_bytes} bytes in total (max_bytes)"
        )


def _together(chunks: Sequence[_Chunk]) -> Iterator[list[_Chunk]]:
    """Chunks one after the other that go into one queue and are not too much at a time."""
    some: list[_Chunk] = []
    for chunk in chunks:
        is_other = some and (some[0].queue, some[0].incarnation) != (chunk.queue, chunk.incarnation)
        rows, size = sum(each.rows for each in some) + chunk.rows, sum(each.bytes for each in some) + chunk.bytes
        if some and (is_other or len(some) == _CHUNKS_AT_ONCE or rows > ROWS_AT_ONCE or size > _BYTES_AT_ONCE):
            yield some
            some = []
        some.append(chunk)
    if some:
        yield some


def _cut(drafts: Sequence[Draft], longest: int | None) -> Iterator[Sequence[Draft]]:
    """Messages as they go into chunks."""
    longest = min(LARGEST_CHUNK, longest or LARGEST_CHUNK)
    start, size = 0, 0
    for stop, draft in enumerate(drafts):
        if stop > start and size + len(_body_of(draft)) > longest:
            yield drafts[start:stop]
            start, size = stop, 0
        size += len(_body_of(draft))
    yield drafts[start:]


_KEPT: Final = (
    "attributes",
    "delay",
    "ttl",
    "key",
    "transient",
    "priority",
    "id",
    "is_dead_letter",
    "at_ms",
    "group",
    "is_group_hint",
    "is_decided",
)
"""The fields of a draft that a chunk has, in this order: a part of the format of a root."""


def _encoded(drafts: Sequence[Draft]) -> bytes:
    """The bytes of a chunk: a line of JSON, then the bodies."""
    bodies = [_body_of(draft) for draft in drafts]
    head = [[len(body), *(getattr(draft, name) for name in _KEPT)] for draft, body in zip(drafts, bodies, strict=True)]
    return b"".join([json.dumps(head).encode("ascii"), b"\n", *bodies])


def _decoded(data: bytes, name: str) -> Iterator[Draft]:
    """The messages of a chunk, each with a key: where its publisher gave none, one that is its place in the job."""
    at = data.index(b"\n") + 1
    for row, (size, *kept) in enumerate(json.loads(data[: at - 1])):
        draft = Draft(data[at : at + size], **dict(zip(_KEPT, kept, strict=True)))._replace(is_decided=True)
        at += size
        yield draft if draft.key is not None else draft._replace(key=f"write-job/{name}/{row}")


def _size_of(drafts: Iterable[Draft]) -> int:
    return sum(len(_body_of(draft)) for draft in drafts)


def _body_of(draft: Draft) -> bytes:
    assert isinstance(draft.body, bytes), "the rows of a write job are in memory"
    return draft.body
