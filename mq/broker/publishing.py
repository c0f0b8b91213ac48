"""Publishing: :class:`Publisher` turns drafts into jobs, and save workers do these.

The publisher checks a queue's limits, its uniqueness, and the client's idempotency keys. Drafts that are published
together keep their order and share one barrier. A large body is staged in the store first (:class:`Upload`).
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple, Self

import trio

from mq import turns
from mq.broker.bodies import BodyStats, digest_of
from mq.broker.body_loader import BodyLoader
from mq.broker.commit import LARGEST_BATCH, BatchTimes, Future
from mq.broker.config import RETRY_SECONDS
from mq.broker.core import Core
from mq.broker.dispatch import DirectDispatch
from mq.broker.index import QueueIndex, order_of
from mq.broker.jobs import Job
from mq.broker.keys import Keys
from mq.broker.ledger import LedgerWrite, segments_changed
from mq.broker.settings import DELAY, REJECT, TTL, QueueSettings, check_time, check_value
from mq.broker.transient_memory import TransientMemory
from mq.errors import (
    BodyTooLarge,
    BrokerClosed,
    Conflict,
    InvalidSetting,
    MQError,
    NoSuchQueue,
    PublishPaused,
    QueueFull,
    StorageError,
    StorageFull,
    TooLargeForQueue,
)
from mq.lifecycle import PROTOCOL, Span, State
from mq.message import MessageId
from mq.storage.groups import bytes_of_message
from mq.storage.interface import (
    FRESH,
    GIVEN_MS,
    Entry,
    Group,
    Meta,
    Move,
    Operation,
    Outcome,
    Result,
    Staged,
    Storage,
    Unlink,
    Write,
)
from mq.storage.records import error_of

LARGEST_GROUP: Final = 512
"""Messages with keys that are written in one group, and so are answered in one step of the event loop."""
_BYTES_OF_KEY: Final = 200
"""More than a ledger keeps of a key, besides the key itself."""
_DONE: Final = Result.DONE  # quicker than an attribute of the enumeration
_NEW: Final = State.NEW
_READY: Final = State.READY
_OF_ONE: Final = frozenset({Result.GONE, Result.EXISTS, Result.NO_QUEUE})
"""Why a group is refused for one of its messages, and does not tell for which."""
_TELLS_NOTHING: Final = frozenset({Result.UNKNOWN, Result.FULL})
"""Outcomes that do not tell what became of an earlier try."""


class Draft(NamedTuple):
    """A message that is to be published.

    Attributes:
        body: the bytes, or what :meth:`Publisher.stage` returned.
        attributes: JSON values to keep with it.
        delay: seconds before it can be fetched; None for the queue's own.
        ttl: seconds after which it expires; the shorter of this and the queue's counts.
        key: the client's idempotency key: a second draft with this key stands for the same message.
        is_key_purged: whether a purge of a queue with message groups ends the key.
        transient: whether it may be lost when this process ends.
        priority: from 0 to 255; messages of a higher one come first, where the queue has priorities.
        id: of its message, where the caller has chosen one; then it does not tell when the message joins the queue.
        is_dead_letter: whether it died in another queue, and no client publishes it.
        replaces: whether it takes the place of a message in memory that is removed next, as the only one that does.
        at_ms: when it can be fetched, in milliseconds since 1970; then it has no `delay`.
        group: its message group. With an `id` of the caller's own, that tells the group.
        is_group_hint: whether a queue that has no groups takes it, too.
        is_decided: whether it is of a committed write job, and not refused any more for a limit of its queue.
    """

    body: bytes | Upload
    attributes: Mapping[str, Any] = {}
    delay: float | None = None
    ttl: float | None = None
    key: str | None = None
    transient: bool = False
    priority: int = 0
    id: MessageId | None = None
    is_dead_letter: bool = False
    replaces: bool = False
    at_ms: int | None = None
    group: str | None = None
    is_group_hint: bool = False
    is_decided: bool = False
    is_key_purged: bool = False


class Published(NamedTuple):
    """The message that a draft stands for.

    Attributes:
        is_new: False when an earlier draft published it: one of the same key or, in a unique queue, of the same body.
    """

    id: MessageId
    is_new: bool = True


class Publisher:
    """Publishes drafts.

    Args:
        keys: the idempotency keys; None among peers, which cannot know each other's.
        keyed: saves messages with their keys; None without these.
        direct: gives messages to waiting requests as they are written.
    """

    def __init__(
        self,
        core: Core,
        loader: BodyLoader,
        keys: Keys | None,
        keyed: KeyedJobs | None,
        direct: DirectDispatch,
    ) -> None:
        self._storage = core.storage
        self.catalog = core.catalog
        self._known = core.catalog.queues
        self.in_flight = core.in_flight
        self.times = core.catalog.histograms_of(Span.PUBLISH)
        self.now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self.memory = TransientMemory(core.storage)
        self._committer = core.committer
        self._loader = loader
        self._keys = keys
        self._keyed = keyed
        self._jobs = core.jobs
        self.core = core
        self.direct = direct
        self.is_placed = core.places
        self.is_transient_placed = core.places_transient
        self.others_move = core.config.others_move
        self.ids = core.ids
        self._config = core.config
        self.clock = core.clock
        self._by_digest: dict[tuple[QueueIndex, bytes], PublishJob] = {}
        self._by_key: dict[tuple[QueueIndex, str], PublishJob] = {}
        core.keyed_publishes = self._with_keys

    async def stage(self, chunks: AsyncIterable[bytes], queue: str | None = None) -> Upload:
        """Stage a large body in the store; then publish it, or discard it. Errors of `chunks` pass through.

        Args:
            queue: where it will be published. In a cluster it tells where the body is to wait.

        Raises:
            BodyTooLarge: it is over the limit.
        """
        self.in_flight.check()
        with self._committer.noting_failure():
            return await stage(self._storage, chunks, self._longest)

    def publish(
        self, index: QueueIndex, drafts: Sequence[Draft], has_place: Callable[[], object] | None = None
    ) -> Awaitable[list[Published | MQError]]:
        """Publish drafts in one batch; a message or an error for each, in their order.

        Args:
            has_place: called when what is published there from then on comes behind them; perhaps never.

        Raises:
            StorageError: the queue's bodies cannot be read; nothing was published.
        """
        if len(drafts) > LARGEST_BATCH:
            return self._publish_many(index, drafts, has_place)
        if index.settings.knows_bodies or any(draft.key is not None for draft in drafts):
            return self._publish(index, drafts, has_place)
        return self._publish_at_once(index, drafts, has_place)

    def publishes_now(self, queue: str) -> bool:
        """Whether :meth:`publish_now` takes messages for the queue: nothing has to be waited for but the commit."""
        index = self._known.get(queue)
        return index is not None and not index.settings.knows_bodies

    def publish_now(
        self, queue: str, drafts: Sequence[Draft], done: Callable[[list[Published | MQError]], None]
    ) -> bool:
        """As :meth:`Broker.publish_many`, in the caller's step. False if :meth:`publishes_now` is: nothing has begun.

        Args:
            drafts: the messages, with bodies in memory and without keys.
            done: called with what :meth:`Broker.publish_many` returns.
        """
        index, in_flight = self._known.get(queue), self.in_flight
        if index is None or index.settings.knows_bodies:
            return False
        if in_flight.is_closed or self._committer.failure:
            in_flight.check()
        in_flight.running += 1
        submitted = _Submitted(done, self)
        try:
            jobs = self._jobs_of(index, drafts, submitted)
        except BaseException:
            in_flight.__exit__()
            raise
        self._put(jobs, submitted)
        return True

    async def _publish_at_once(
        self, index: QueueIndex, drafts: Sequence[Draft], has_place: Callable[[], object] | None
    ) -> list[Published | MQError]:
        """As :meth:`publish_now`, in turns of the event loop: one completion answers all of them."""
        future: Future[list[Published | MQError]] = Future()
        submitted, jobs = _Submitted(future.set), list[Job]()
        outcomes = submitted.outcomes
        for some in turns.parts(drafts, turns.FRAMES_A_TURN):
            if outcomes and isinstance(outcomes[-1], StorageFull):
                outcomes += [outcomes[-1]] * len(some)
                continue
            jobs += self._jobs_of(index, some, submitted)
            if len(drafts) > turns.FRAMES_A_TURN:
                await turns.spend(frames=len(some))
        self._put(jobs, submitted)  # only now: they share a barrier
        if has_place is not None and not (outcomes and isinstance(outcomes[-1], StorageFull)):
            has_place()
        return await future.get()

    def _put(self, jobs: list[Job], submitted: _Submitted) -> None:
        submitted.left = len(jobs)
        if jobs:
            self._jobs.put(jobs)
        else:
            submitted.end()

    def _jobs_of(self, index: QueueIndex, drafts: Sequence[Draft], submitted: _Submitted) -> list[Job]:
        """The jobs of drafts that are not refused, and all outcomes, as far as they are known."""
        jobs: list[Job] = []
        for position, draft in enumerate(drafts):
            try:
                if index.deleted:
                    raise _deleted(index)
                self._check(index, draft)
                job = self._new_job(index, draft, None, submitted)
            except StorageFull as error:  # those behind it would overtake it
                submitted.outcomes += [error] * (len(drafts) - position)
                break
            except MQError as error:
                submitted.outcomes.append(error)
                continue
            submitted.outcomes.append(job)
            jobs.append(job)
        return jobs

    async def _publish_many(
        self, index: QueueIndex, drafts: Sequence[Draft], has_place: Callable[[], object] | None
    ) -> list[Published | MQError]:
        outcomes: list[Published | MQError] = []
        for some in turns.parts(drafts, LARGEST_BATCH):  # each is stored before the next: others' batches come between
            is_last = len(outcomes) + len(some) == len(drafts)
            try:
                outcomes += await self.publish(index, some, has_place if is_last else None)
            except MQError as error:
                if not outcomes:
                    raise
                outcomes += [error] * len(some)
        return outcomes

    def check(self, index: QueueIndex, draft: Draft) -> None:
        """Refuse a draft that the queue would not take now, but for what others know to be there.

        Raises:
            MQError: as :meth:`publish` would answer.
        """
        self._check(index, draft)
        self._meta(index, draft)

    def longest_body(self, queue: str, key: str | None = None) -> int:
        """The longest body in bytes that a queue takes, even if it is empty. Of a queue that is not in this store, the
        longest that the store takes.

        Args:
            key: of the message that is to be published; None for none.
        """
        index = self._known.get(queue)
        if index is None or index.settings.overflow != REJECT or index.settings.max_bytes is None:
            return self._longest
        if key is not None and self._keys is not None and self._keys.find(index, key) is not None:
            return self._longest  # the answer is the message that is there, whose queue may have had another limit
        return min(self._longest, index.settings.max_bytes)

    async def find(self, index: QueueIndex, digest: bytes) -> MessageId | None:
        """The message of a unique queue whose body has this digest; None without one."""
        await self._loader.load(index)
        return index.bodies.find(digest) if index.bodies is not None else None

    # Implementation

    async def _publish(
        self, index: QueueIndex, drafts: Sequence[Draft], has_place: Callable[[], object] | None
    ) -> list[Published | MQError]:
        """As :meth:`publish`, for as many as one batch takes."""
        if index.settings.knows_bodies:
            await self._loader.load(index)
        prepared: list[_Prepared] = []
        given, has_keys = drafts, any(draft.key is not None for draft in drafts)
        if len(drafts) <= turns.FRAMES_A_TURN:
            if has_keys:
                drafts = [_after_purges(draft, index.purges) for draft in drafts]
            for draft in drafts:
                self._prepare_next(index, draft, prepared)
        else:
            drafts = []
            async for draft in turns.in_turns(given, turns.FRAME):
                drafts.append(_after_purges(draft, index.purges))  # a purge may come between two of them
                self._prepare_next(index, drafts[-1], prepared)
        if not (has_keys and self._put_with_keys(drafts, prepared)):
            if has_keys:
                await self._note_keys(index, drafts, prepared)
            jobs = [
                self._with_key(draft, each.job)
                for draft, each in zip(drafts, prepared, strict=True)
                if each.job is not None and each.is_new and not each.job.future.answered
            ]
            if jobs:
                self._jobs.put(jobs)
            if has_place is not None and not has_keys and not _is_full(prepared[-1]):
                has_place()
        outcomes = [_answered(entry) or await _outcome(entry) for entry in prepared]
        for number, entry in enumerate(prepared):
            outcome = outcomes[number]
            if entry.job is None or entry.is_new or not isinstance(outcome, MQError) or outcome.is_unsure:
                continue  # of what is unsure a second try would be another message
            # The earlier draft that it waited for failed, perhaps for a reason of its own.
            [outcomes[number]] = await self._publish(index, [given[number]], None)
        return await self._note_known(index, drafts, outcomes) if has_keys else outcomes

    def _with_keys(self, index: QueueIndex) -> list[Future[MessageId]]:
        """The outcomes of the publishes with keys to a queue that have not ended."""
        return [job.future for (queue, _), job in self._by_key.items() if queue is index]

    def _prepare_next(self, index: QueueIndex, draft: Draft, prepared: list[_Prepared]) -> None:
        """Prepare the draft behind others. Behind one that found no room it would overtake that one."""
        prepared.append(prepared[-1] if prepared and _is_full(prepared[-1]) else self._prepare(index, draft))

    def _prepare(self, index: QueueIndex, draft: Draft) -> _Prepared:
        """A job for the draft, or its answer without one."""
        # Nothing here awaits, so the next draft sees the job of this one.
        try:
            if index.deleted:
                raise _deleted(index)
            digest = self._digest(index, draft)
            earlier = self._earlier(index, draft, digest)
            if earlier is not None:
                return earlier
            self._check(index, draft)
            if draft.key is not None and self._keys is not None and not draft.is_decided:
                self._keys.check_room()
            return _waiting_for(self._new_job(index, draft, digest), is_new=True)
        except MQError as error:
            return _Prepared(None, is_new=False, answer=error)

    def _earlier(self, index: QueueIndex, draft: Draft, digest: bytes | None) -> _Prepared | None:
        """The message that the draft stands for, if it is in the queue or being published; else None."""
        if draft.key is not None:
            if self._keys is None:
                raise Conflict(
                    "idempotency keys are not supported when other programs share the root folder. Publish without a "
                    "key, or run a single daemon, without --peers or --no-mover"
                )
            if (index, draft.key) in self._by_key:
                return _waiting_for(self._by_key[index, draft.key], is_new=False)
            id = self._keys.find(index, draft.key)
            if id is not None:
                return _Prepared(None, is_new=False, answer=Published(id, is_new=False))
        if digest is not None and index.settings.unique and index.bodies is not None:
            if (index, digest) in self._by_digest:
                return _waiting_for(self._by_digest[index, digest], is_new=False)
            id = index.bodies.find(digest)
            if id is not None:
                return _Prepared(None, is_new=False, answer=Published(id, is_new=False))
        return None

    def _check(self, index: QueueIndex, draft: Draft) -> None:
        """Refuse a body that is too long or has no room in the queue."""
        if draft.is_decided:
            return
        size = draft.body.size if isinstance(draft.body, Upload) else len(draft.body)
        if size > self._longest:
            check_size(size, self._longest)
        settings = index.settings
        if settings.publish_paused and not draft.is_dead_letter:
            check_resumed(index)
        if draft.group is not None and not (settings.groups or draft.is_group_hint):
            raise Conflict(
                f"queue {index.name} does not support message groups. Run mq queue set {index.name} "
                "groups=true, or publish without a group"
            )
        if settings.overflow != REJECT or (settings.max_messages is None and settings.max_bytes is None):
            return
        self._check_fits(index, size)
        check_room(index, 1, size)

    def _check_fits(self, index: QueueIndex, size: int) -> None:
        """Refuse a body that would not fit in the queue if it were empty."""
        most = index.settings.max_bytes
        if most is not None and size > most:
            raise TooLargeForQueue(
                f"the body is {size} bytes long, but queue {index.name} can store at most {most} bytes in total "
                "(max_bytes)"
            )

    def _new_job(
        self, index: QueueIndex, draft: Draft, digest: bytes | None, submitted: _Submitted | None = None
    ) -> PublishJob:
        if digest is None and draft.key is None and draft.id is None:
            return PublishJob(self, index, draft, None, self._meta(index, draft), None, submitted)

        def landed(id: MessageId | None) -> None:
            if digest is not None:
                self._by_digest.pop((index, digest), None)
            if draft.key is not None and self._keys is not None:
                self._by_key.pop((index, draft.key), None)
                if id is not None:
                    self._keys.landed(id)
                elif job.id is not None:
                    self._keys.drop([job.id])

        meta = self._meta(index, draft)
        is_noted = digest is not None or draft.key is not None
        job = PublishJob(self, index, draft, digest, meta, landed if is_noted else None, submitted)
        if draft.id is not None:
            job.join_as(draft.id)
        if digest is not None and index.settings.unique:
            self._by_digest[index, digest] = job
        if draft.key is not None:
            self._by_key[index, draft.key] = job
        return job

    def _meta(self, index: QueueIndex, draft: Draft) -> Meta:
        settings = index.settings
        is_timed = draft.delay is not None or draft.ttl is not None or draft.at_ms is not None
        if not is_timed and settings.ttl is None and not settings.delay:
            return FRESH
        ttl = settings.ttl
        if draft.ttl is not None:
            own = check_value("ttl", draft.ttl, TTL)
            ttl = own if ttl is None else min(ttl, own)
        now_ms = self.clock.steady_ms()
        due_ms = self._due_ms(settings, draft, now_ms)
        if due_ms is None and ttl is None:
            return FRESH
        return Meta(due_ms, expires_ms=None if ttl is None else now_ms + max(1, round(ttl * 1000)))

    def _due_ms(self, settings: QueueSettings, draft: Draft, now_ms: int) -> int | None:
        """When the message can be fetched; None for at once."""
        if draft.at_ms is not None:
            if draft.delay is not None:
                raise InvalidSetting("use either a delivery time or a delay for the message, not both")
            is_over = self.clock.is_over(check_time(draft.at_ms, self.clock.wall_ms()))
            return None if is_over else GIVEN_MS + draft.at_ms
        delay = settings.delay if draft.delay is None else check_value("delay", draft.delay, DELAY)
        return now_ms + round(delay * 1000) if delay else None

    def _put_with_keys(self, drafts: Sequence[Draft], prepared: list[_Prepared]) -> bool:
        """Have new messages saved in groups with their keys; False where that cannot be."""
        if self._keyed is None:
            return False
        jobs = [
            KeyedJob(self._keyed, entry.job, draft.key)
            for draft, entry in zip(drafts, prepared, strict=True)
            if entry.job is not None and entry.is_new
        ]
        if not self._keyed.takes(jobs):
            return False
        self._keyed.put(jobs)
        return True

    def _with_key(self, draft: Draft, job: PublishJob) -> Job:
        """The job of a message whose key, where it has one, is noted."""
        return job if draft.key is None or self._keyed is None else KeyedJob(self._keyed, job, None)

    async def _note_keys(self, index: QueueIndex, drafts: Sequence[Draft], prepared: list[_Prepared]) -> None:
        """Make the keys of new messages durable; jobs whose keys cannot be kept fail."""
        # Keys come before their messages: after a crash they say which message to look for.
        keyed: dict[str, PublishJob] = {}
        for draft, entry in zip(drafts, prepared, strict=True):
            if draft.key is not None and entry.job is not None and entry.is_new:
                keyed[draft.key] = entry.job
        if not keyed or self._keys is None:
            return
        for entry in prepared:
            if entry.job is not None and entry.is_new:
                entry.job.choose_id()  # also without a key: the batch keeps its order
        try:
            await self._keys.note(index, {key: job.id for key, job in keyed.items() if job.id is not None})
        except MQError as error:
            for job in keyed.values():
                job.give_up(error)
        except BaseException:
            for entry in prepared:
                if entry.job is not None and entry.is_new:
                    entry.job.give_up(
                        BrokerClosed("the publisher disconnected before the message was stored. Publish it again")
                    )
            raise

    async def _note_known(
        self, index: QueueIndex, drafts: Sequence[Draft], outcomes: list[Published | MQError]
    ) -> list[Published | MQError]:
        """Let new keys stand for the messages that their drafts found in the queue; the outcomes then."""
        known = {
            draft.key: outcome.id
            for draft, outcome in zip(drafts, outcomes, strict=True)
            if draft.key is not None and isinstance(outcome, Published) and not outcome.is_new
        }
        keys = self._keys
        fresh = {key: id for key, id in known.items() if keys is not None and keys.find(index, key) is None}
        if keys is None or not fresh:
            return outcomes
        try:
            await keys.note_known(index, fresh)
        except MQError as error:
            return [error if draft.key in fresh else old for draft, old in zip(drafts, outcomes, strict=True)]
        return outcomes

    def _digest(self, index: QueueIndex, draft: Draft) -> bytes | None:
        if isinstance(draft.body, Upload):
            return draft.body.digest
        return digest_of(draft.body) if index.settings.knows_bodies else None

    @cached_property
    def _longest(self) -> int:
        """The longest body in bytes that both the configuration and the store take."""
        return min(self._config.max_body, self._storage.description.max_body or self._config.max_body)


class Upload:
    """A large body, staged in the store and not yet published.

    Args:
        digest: SHA-256 of its bytes.
    """

    def __init__(self, staged: Staged, digest: bytes) -> None:
        self.staged = staged
        self.digest = digest

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.staged.size

    async def discard(self) -> None:
        """Remove the staged body. Does nothing once it is published."""
        with trio.CancelScope(shield=True):
            await self.staged.discard()


async def stage(storage: Storage, chunks: AsyncIterable[bytes], longest: int) -> Upload:
    """Stage a body of at most `longest` bytes in the store. Errors of `chunks` pass through.

    Raises:
        BodyTooLarge: it is over the limit.
    """
    body = _LimitedBody(chunks, longest)
    staged = await storage.stage(body)
    return Upload(staged, body.digest.digest())


def _after_purges(draft: Draft, purges: int) -> Draft:
    """A draft whose key is another one than before so many purges, where a purge ends it."""
    is_other = purges and draft.is_key_purged and draft.key is not None
    return draft._replace(key=f"{purges}:{draft.key}") if is_other else draft


class _Submitted:
    """Drafts that are published together, until all of them have outcomes.

    Args:
        done: called with the outcomes.
        publisher: counts the request, and tells how long it took; None where the caller does.

    Attributes:
        outcomes: for each draft its job, or why there is none.
        left: jobs that are not done.
    """

    __slots__ = ("_began", "_done", "_publisher", "left", "outcomes")

    def __init__(self, done: Callable[[list[Published | MQError]], None], publisher: Publisher | None = None) -> None:
        self.outcomes: list[PublishJob | MQError] = []
        self.left = 0
        self._publisher = publisher
        self._done = done
        self._began = 0.0 if publisher is None else publisher.now()

    def end(self) -> None:
        """Answer."""
        publisher = self._publisher
        if publisher is not None:
            seconds, in_flight = publisher.now() - self._began, publisher.in_flight
            for times in publisher.times:
                times.counts[bisect_left(times.bounds, seconds)] += 1
                times.total += seconds
            if in_flight.is_closed:
                in_flight.__exit__()
            else:
                in_flight.running -= 1
        outcomes: list[Published | MQError] = []
        for each in self.outcomes:
            if not isinstance(each, PublishJob):
                outcomes.append(each)
            elif each.stored is not None:
                outcomes.append(Published(each.stored))
            else:
                assert isinstance(each.error, MQError)
                outcomes.append(each.error)
        self._done(outcomes)


def _deleted(index: QueueIndex) -> NoSuchQueue:
    return NoSuchQueue(f"queue {index.name} was deleted during the request")


class _LimitedBody:
    """The chunks of a body while it is staged, up to its limit."""

    def __init__(self, chunks: AsyncIterable[bytes], longest: int) -> None:
        self._chunks = aiter(chunks)
        self._size = 0
        self._longest = longest
        self.digest = hashlib.sha256()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self._size += len(chunk)
        check_size(self._size, self._longest)
        self.digest.update(chunk)
        return chunk


def check_size(size: int, longest: int) -> None:
    """Check the length of a body.

    Raises:
        BodyTooLarge: it is over the limit.
    """
    if size > longest:
        raise BodyTooLarge(f"the body exceeds the maximum of {longest} bytes")


def check_resumed(index: QueueIndex) -> None:
    """Refuse a publish to a queue whose publishing is paused."""
    if index.settings.publish_paused:
        raise PublishPaused(f"publishing to queue {index.name} is paused. To resume it, run mq resume {index.name}")


def check_room(index: QueueIndex, messages: int, size: int) -> None:
    """Refuse messages that would exceed a queue's own limits, by their number or by the bytes of their bodies."""
    most, most_bytes = index.settings.max_messages, index.settings.max_bytes
    if most is not None and index.counted + messages > most:
        excess = (
            f"the maximum of {most} messages has been reached (max_messages)"
            if messages == 1
            else f"another {messages} messages would exceed max_messages"
        )
        raise QueueFull(f"queue {index.name} is full: {excess}. Try again later")
    bytes_then = index.reserved_bytes + size + (index.bodies.total if index.bodies is not None else 0)
    if most_bytes is not None and bytes_then > most_bytes:
        added = f"a message of {size} bytes" if messages == 1 else f"{messages} messages of {size} bytes in total"
        raise QueueFull(f"queue {index.name} is full: adding {added} would exceed max_bytes. Try again later")


class _Prepared(NamedTuple):
    """The job that a draft waits for: its own, or that of an earlier draft of the same message; or else its answer."""

    job: PublishJob | None
    is_new: bool
    answer: Published | MQError | None = None
    future: Future[MessageId] | None = None


def _is_full(entry: _Prepared) -> bool:
    """Whether a draft found no room; then those behind it have none either."""
    return isinstance(entry.answer, StorageFull)


def _waiting_for(job: PublishJob, *, is_new: bool) -> _Prepared:
    return _Prepared(job, is_new, future=job.future)  # as it is now: a job in doubt gets another one


def _answered(entry: _Prepared) -> Published | None:
    """The message that an entry stands for, once it is stored: of a batch one is waited for, and all are."""
    if entry.future is None or entry.future.value is None:
        return None
    return Published(entry.future.value, entry.is_new)


def _outcome_of(future: Future[MessageId], *, is_new: bool = True) -> Published | MQError:
    """The outcome of a job that is done."""
    if future.value is not None:
        return Published(future.value, is_new)
    assert isinstance(future.error, MQError)
    return future.error


async def _outcome(entry: _Prepared) -> Published | MQError:
    if entry.future is None:
        assert entry.answer is not None
        return entry.answer
    with suppress(MQError):
        await entry.future.get()
    return _outcome_of(entry.future, is_new=entry.is_new)


class PublishJob:
    """Writes one message.

    The id is made with the operation, unless it had to be known before, so that ids and barriers have one order.

    Args:
        publisher: gives the direct dispatch and the core.
        meta: delay and expiry.
        landed: called before the answer, with the id when the message is durable, with None when it failed; None for
            nothing to call.
        submitted: gets the outcome with those of the drafts that are published together; None where tasks wait for
            :attr:`future`.

    Attributes:
        stored: the id, once the message is durable.
        error: why it is not.

    Raises:
        StorageFull: it is transient, and memory has no room for it now.
    """

    __slots__ = (
        "_body",
        "_digest",
        "_draft",
        "_future",
        "_is_dispatched",
        "_is_moved",
        "_is_writing",
        "_landed",
        "_memory",
        "_meta",
        "_protocol",
        "_publisher",
        "_size",
        "_submitted",
        "_transient",
        "error",
        "id",
        "index",
        "stored",
    )

    def __init__(
        self,
        publisher: Publisher,
        index: QueueIndex,
        draft: Draft,
        digest: bytes | None,
        meta: Meta,
        landed: Callable[[MessageId | None], None] | None,
        submitted: _Submitted | None = None,
    ) -> None:
        self.stored: MessageId | None = None
        self.error: Exception | None = None
        self._future: Future[MessageId] | None = None
        self._submitted = submitted
        self.id: MessageId | None = None
        self.index = index
        self._publisher = publisher
        self._draft = draft
        self._body = body = draft.body.staged if isinstance(draft.body, Upload) else draft.body
        self._digest = digest
        self._meta = meta
        self._landed = landed
        self._transient = draft.transient or index.is_transient
        self._memory = 0
        if self._transient and isinstance(body, bytes) and not draft.replaces:
            self._memory = publisher.memory.reserve(index.name, body, draft.attributes)
        self._is_dispatched = self._is_writing = self._is_moved = False
        self._protocol = PROTOCOL.get()
        self._size = size = len(body) if isinstance(body, bytes) else body.size
        index.reserved += 1
        index.reserved_bytes += size

    @property
    def future(self) -> Future[MessageId]:
        """The id, for tasks that wait for it. After :meth:`doubt` it is another one."""
        if self._future is None:
            self._future = Future()
        return self._future

    def operation(self) -> Operation:
        """The Write, which may be dispatched to a waiting request directly."""
        publisher, index, draft, id = self._publisher, self.index, self._draft, self.id
        # A message whose id was made earlier may have been overtaken by others, and one of a lower priority has to wait
        # for others: they are not dispatched directly.
        may_be_first = id is None and not index.settings.max_priority
        if id is None:
            clock = publisher.clock
            id = publisher.ids.new(draft.group, clock.date_offset_ns + int(clock.elapsed() * 1e9))
        if draft.priority and self._meta.order is None:
            self._meta = self._meta._replace(order=order_of(id.time, draft.priority))
        direct, body, meta, transient, state = publisher.direct, self._body, self._meta, self._transient, _NEW
        # Under load there is no request, nearly always.
        if (
            may_be_first
            and (index in direct.waiting or direct.assignments)
            and direct.takes(index, id, body, draft.attributes, meta, is_transient=transient)
        ):
            self._is_dispatched = True
        else:
            self._is_writing = True
            index.writing += 1
            if self._is_transient_placed() if transient else publisher.is_placed:
                state = _READY if meta.deadline_ms is None else State.DELAYED
            else:
                self._is_moved = True
                index.writing_moved += 1
        has_room = draft.replaces or self._memory > 0
        return Write(index.name, id, body, draft.attributes, meta, True, transient, state, has_room)

    def _is_transient_placed(self) -> bool:
        """Whether a transient message is written where it rests. It does not overtake those before it that are moved
        there: the disk may place none."""
        publisher, index = self._publisher, self.index
        if not isinstance(self._body, bytes):  # too large for memory; one for a transient queue comes up from NEW
            return publisher.is_placed and not index.is_transient
        return publisher.is_transient_placed and not (index.undelivered or index.writing_moved)

    def write_alone(self) -> Write:
        """The Write, which is dispatched to no request directly."""
        self.choose_id()
        write = self.operation()
        assert isinstance(write, Write), "what has an id is not dispatched directly"
        return write

    def bytes_in_group(self) -> int:
        """How many bytes the Write takes of a group."""
        return bytes_of_message(self._body, self._draft.attributes)

    def choose_id(self) -> None:
        """Make the id now, unless there is one."""
        self.id = self.id or self._publisher.ids.new(self._draft.group)

    def join_as(self, id: MessageId) -> None:
        """Give the message that id, which does not say when it joins the queue: it joins now."""
        self.id = id
        joined = self._publisher.ids.new(self._draft.group).time
        self._meta = self._meta._replace(order=order_of(joined, self._draft.priority))

    def done(self, outcome: Outcome, barrier: BatchTimes) -> None:
        """Answer with the id."""
        entry, index, catalog = outcome.entry, self.index, self._publisher.catalog
        if outcome.result is not _DONE or entry is None:
            if outcome.result is Result.EXISTS and self._draft.id is not None and self.id is not None:
                # The caller publishes again: its first try was stored, and the message may have been removed since.
                self._release()
                self._tell_landed(self.id)
                self._answer(self.id)
            else:
                self.give_up(error_of(outcome, "cannot store the message"))
            return
        if self._is_dispatched:
            # it leaves NEW in the same batch: DirectBatch.done ends this move
            catalog.begin(entry, is_out=True)
        elif index.deleted:
            catalog.events.orphaned(entry)
        self._release()  # only now: a deleted queue is not made anew while a message of it is under way
        if index.bodies is not None:
            self._note_body(index.bodies, entry.id)
        is_there = not self._is_dispatched and not index.deleted
        born = entry._replace(state=State.NEW, meta=FRESH) if self._is_dispatched else entry  # its lease is told then
        if is_there and self._publisher.others_move:
            # Others may have moved it before this answer, and told of it: the index has a message in one place.
            is_there = entry.id not in catalog.locks and index.find(entry.id) is None
        body = self._body if isinstance(self._body, bytes) else None
        catalog.published(born, self._size, self._protocol, body, self._draft.attributes, is_there=is_there)
        if self._landed is not None:
            self._tell_landed(entry.id)
        if index.deleted:
            self._answer(None, _deleted(index))
        else:
            self._answer(entry.id)

    def _answer(self, stored: MessageId | None, error: Exception | None = None) -> None:
        self.stored, self.error = stored, error
        if self._future is not None:
            if stored is not None:
                self._future.set(stored)
            elif error is not None:
                self._future.fail(error)
        submitted, self._submitted = self._submitted, None  # it refers to this job
        if submitted is not None:
            submitted.left -= 1
            if not submitted.left:
                submitted.end()

    def doubt(self, error: Exception) -> None:
        """Fail the requests that wait by now: whether the message is written is not known. `future` is another then."""
        future, self._future = self.future, None
        future.fail(error)

    def give_up(self, error: Exception) -> None:
        """Fail: the message is not written."""
        self._release()
        self._tell_landed(None)
        self._answer(None, error)

    def _tell_landed(self, id: MessageId | None) -> None:
        """Call `landed`, once."""
        # The callback refers to this job: without this cycle both are freed at once, with no garbage collector.
        landed, self._landed = self._landed, None
        if landed is not None:
            landed(id)

    def _release(self) -> None:
        index = self.index
        index.reserved -= 1
        index.reserved_bytes -= self._size
        index.writing -= self._is_writing
        if self._is_moved:
            index.writing_moved -= 1
        if self._memory:
            self._publisher.memory.give_back(index.name, self._memory)
        if index.deleted:
            self._publisher.catalog.let_go(index)

    def _note_body(self, bodies: BodyStats, id: MessageId) -> None:
        if self._digest is None and isinstance(self._body, bytes):
            self._digest = digest_of(self._body)
        if self._digest is not None:
            bodies.add(id, self._size, self._digest)


class KeyedJob:
    """A job, and the key of its message. One whose key the ledger has noted before is a job of its own
    (:class:`~mq.broker.jobs.Job`), and comes to `keyed` only when it is in doubt.

    Args:
        key: the client's; None without one, and where it is noted.

    Attributes:
        bytes: how many it takes of a group.
        write: the job's operation, once it was asked for it.
        is_noted: whether its key is durable without it.
        is_doubtful: whether the message may be there: the store did not answer for it.
    """

    def __init__(self, keyed: KeyedJobs, job: PublishJob, key: str | None) -> None:
        self.job = job
        self.key = key
        self.write: Write | None = None
        self.is_noted = self.is_doubtful = False
        self.key_bytes = 0 if key is None else len(encode_basestring_ascii(key))
        of_key = 0 if key is None else self.key_bytes + _BYTES_OF_KEY
        self.bytes = of_key + job.bytes_in_group()
        self._keyed = keyed

    def operation(self) -> Operation:
        """The Write, without a group."""
        self.is_noted = True
        self.write = self.job.write_alone()
        return self.write

    def done(self, outcome: Outcome, barrier: BatchTimes) -> None:
        """Answer, or let the job be done again."""
        if outcome.result is Result.UNKNOWN:
            self.is_doubtful = True
            self.doubt(outcome)
            self._keyed.put_in_doubt(self)
        else:
            self.job.done(outcome, barrier)

    def doubt(self, outcome: Outcome) -> None:
        """Tell the requests that wait that it is not known whether the message is there."""
        self.job.doubt(error_of(outcome._replace(result=Result.UNKNOWN), "cannot store the message"))


class KeyedJobs:
    """Jobs whose messages have keys: as many as one group takes are written with what the ledger keeps of the keys, all
    or none. Call :meth:`start`.

    A group for which the store did not answer is in doubt, and is done again, with the same ids, until it is known what
    became of it. So is a message whose key was noted before. Requests that wait are told each time; a publish with such
    a key waits for the next time. So nothing is stored twice, and no key stands for a message that is not there.
    The ledger has such a key as unsure, which is what a start finds when the process ends before.

    Attributes:
        does_groups: whether the store does; else nothing comes but what is in doubt.
    """

    def __init__(self, core: Core, keys: Keys) -> None:
        self.does_groups = core.storage.description.groups > 0
        self._storage = core.storage
        self._committer = core.committer
        self._keys = keys
        self._waiting: deque[KeyedJob] = deque()
        self._arrived = trio.lowlevel.ParkingLot()
        self._one_by_one = 0  # so many of those that wait go in a group of their own
        self._pauses = False  # before those that are in doubt are tried again
        self._nursery: trio.Nursery | None = None  # in which to run once something is in doubt

    def start(self, nursery: trio.Nursery) -> None:
        """Save for ever, in a nursery; where the store does no groups only from when something is in doubt."""
        if self.does_groups:
            nursery.start_soon(self._run)
        else:
            self._nursery = nursery

    def takes(self, jobs: Sequence[KeyedJob]) -> bool:
        """Whether groups take these jobs."""
        most_bytes = self._most_bytes
        return self.does_groups and all(job.bytes <= most_bytes for job in jobs)

    def put(self, jobs: Sequence[KeyedJob]) -> None:
        """Save what these write; and ask at once for those that are in doubt."""
        self._waiting += jobs
        self._arrived.unpark()

    def put_in_doubt(self, job: KeyedJob) -> None:
        """Ask in a while for what a job has written."""
        self._pauses = True
        self.put([job])
        if self._nursery is not None:
            self._nursery.start_soon(self._run)
            self._nursery = None

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                await self._arrived.park()
            if self._pauses and all(each.is_doubtful for each in self._waiting):
                with trio.move_on_after(RETRY_SECONDS):
                    await self._arrived.park()
            self._pauses = False
            async with self._keys.ledger.writing:  # a record that is written twice at a time would end as either
                group = _KeyedGroup(self._keys)

                def make(group: _KeyedGroup = group) -> list[Group | Write]:
                    return [group.make(self._taken())]

                self._committer.submit(make, len(self._waiting), group.done)
                left = await group.future.get()
                if not left and group.kept is not None:
                    with suppress(StorageError):  # what the jobs asked for is done
                        await self._keys.ledger.drop_empty(group.kept)
            if group.refusal is None:
                self._waiting += left
                self._pauses = bool(left)
            elif len(left) == 1:
                await self._decide(left[0], group.refusal, group.barrier)
            else:
                self._waiting.extendleft(reversed(left))
                self._one_by_one = len(left)

    async def _decide(self, each: KeyedJob, refusal: Outcome, barrier: BatchTimes) -> None:
        """End a job in doubt, which is refused when it is tried again: perhaps because its message is there."""
        assert each.write is not None, "it was made"
        job, entry = each.job, each.write.entry
        try:
            found = await self._storage.find(entry.queue, entry.id)
            if each.is_noted and found is not None:
                await self._take_away(found)
        except StorageError:
            self._pauses = True
        else:
            if found is None or not each.is_noted:
                # What a deleted queue had is looked for where that is removed.
                is_there = found is not None or job.index.deleted
                job.done(Outcome(Result.DONE, entry) if is_there else refusal, barrier)
                return
        self._waiting.append(each)

    async def _take_away(self, found: Entry) -> None:
        """Take a message away that was not written in a group. What is there may be half of it, or not on the medium;
        so it is written anew.

        Raises:
            StorageError: that is not possible now.
        """
        unlink = Unlink(Entry(found.queue, found.id, State.REMOVED))
        moved, _ = await self._committer.commit([Move(found, State.REMOVED), unlink])
        if moved.result not in (Result.DONE, Result.GONE):
            raise error_of(moved, "publishing failed, but the message may have been stored and could not be removed")

    @property
    def _most_bytes(self) -> float:
        """Bytes of jobs that a group takes; more once a log has grown."""
        most = self._storage.description.group_bytes
        return math.inf if most is None else most // 2  # the ledger's own limits keep its segments below the other half

    def _taken(self) -> list[KeyedJob]:
        """The first of those that wait, as many as one group takes."""
        first = self._waiting.popleft()
        taken, size, key_bytes = [first], first.bytes, first.key_bytes
        most, most_bytes = self._storage.description.groups, self._most_bytes
        is_alone = self._one_by_one or first.is_noted
        limit = min(self._committer.pace.limit, LARGEST_GROUP)
        while self._waiting and not is_alone and not self._waiting[0].is_noted and len(taken) < limit:
            size += self._waiting[0].bytes
            key_bytes += self._waiting[0].key_bytes
            if size > most_bytes or len(taken) + 1 + segments_changed(len(taken) + 1, key_bytes) > most:
                break
            taken.append(self._waiting.popleft())
        self._one_by_one = max(0, self._one_by_one - len(taken))
        return taken


class _KeyedGroup:
    """One group of messages and keys, or one message alone whose key is noted.

    Attributes:
        kept: what the ledger writes with it; None where that has the key.
        future: answered when the jobs are, with those that are not.
        refusal: why these are not, where one of them is refused; None where they are in doubt.
    """

    barrier: BatchTimes

    def __init__(self, keys: Keys) -> None:
        self.jobs: list[KeyedJob] = []
        self.kept: LedgerWrite[Any] | None = None
        self.future: Future[list[KeyedJob]] = Future()
        self.refusal: Outcome | None = None
        self._keys = keys

    def make(self, jobs: list[KeyedJob]) -> Group | Write:
        """The operations; called just before they are done."""
        self.jobs = jobs
        if jobs[0].is_noted and jobs[0].write is not None:
            return jobs[0].write
        writes: list[Write] = []
        keys: defaultdict[QueueIndex, dict[str, MessageId]] = defaultdict(dict)
        for each in jobs:
            if each.write is None:
                each.write = each.job.write_alone()
            if each.key is not None:
                keys[each.job.index][each.key] = each.write.id
            writes.append(each.write)
        for index, ids in keys.items():
            self._keys.note_beside(index, ids)
        self.kept = self._keys.ledger.begin()
        return Group((*self.kept.puts, *writes))

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        """Answer the jobs, but for those that are in doubt or have to be tried alone."""
        [outcome] = outcomes
        self.barrier = barrier
        is_done = outcome.result is Result.DONE
        if self.kept is not None:
            self._keys.ledger.end(self.kept, is_done=is_done)
        if outcome.result is Result.UNKNOWN:
            for each in self.jobs:
                each.is_doubtful = True
        if not is_done:
            self._take_back_keys(outcome)
        self.future.set(self._answered_not(outcome))

    def _take_back_keys(self, outcome: Outcome) -> None:
        """Let the keys of the group stand for nothing, or for what is perhaps there."""
        for each in self.jobs:
            if each.key is None or each.write is None:
                continue
            if each.is_doubtful and outcome.result is not Result.FAILED:
                self._keys.doubt(each.job.index, each.key, each.write.id)
            else:
                self._keys.give_up(each.job.index, each.key)

    def _answered_not(self, outcome: Outcome) -> list[KeyedJob]:
        """Answer all jobs that can be; the others."""
        if outcome.result in _OF_ONE and (len(self.jobs) > 1 or self.jobs[0].is_doubtful):
            self.refusal = outcome
            return self.jobs
        # Without room, say, the store has not even looked whether what was tried before is there.
        left = [each for each in self.jobs if each.is_doubtful] if outcome.result in _TELLS_NOTHING else []
        for each in self.jobs:
            assert each.write is not None, "it was made"
            if each in left:
                each.doubt(outcome)
            else:
                is_done = outcome.result is Result.DONE
                each.job.done(Outcome(Result.DONE, each.write.entry) if is_done else outcome, self.barrier)
        return left


class JobBatch:
    """The jobs of one batch, which share its direct dispatch.

    Args:
        direct: gives messages to waiting requests as they are written.
    """

    def __init__(self, direct: DirectDispatch, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self.operations: Sequence[Operation] = [job.operation() for job in jobs]
        self._dispatched = direct.collect(self.operations) if direct.assignments else None
        if self._dispatched is not None:
            self.operations = self._dispatched.operations

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        """Answer the jobs, and the requests that were given messages."""
        # The outcomes of messages that were dispatched directly may come after those of their jobs.
        for job, outcome in zip(self._jobs, outcomes, strict=False):
            job.done(outcome, barrier)
        if self._dispatched is not None:
            self._dispatched.done(outcomes, barrier)
