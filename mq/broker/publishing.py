"""Publishing: from what a client sent to jobs for the save workers.

On the way stand the queue's limits, its uniqueness, and the client's own keys. Drafts that are published together keep
their order and share one barrier.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from mq.broker.bodies import digest_of
from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.config import BrokerConfig
from mq.broker.handover import Handover
from mq.broker.index import QueueIndex
from mq.broker.jobs import Job, Publish
from mq.broker.keys import Keys
from mq.broker.learning import Learner
from mq.broker.mailbox import Mailbox
from mq.broker.offers import Offers
from mq.broker.queue_settings import DELAY, REJECT, TTL, check_value
from mq.broker.uploads import Upload, check_size, stage
from mq.errors import BrokerClosed, Conflict, MQError, NoSuchQueue, QueueFull
from mq.message import MessageId, MessageIds
from mq.storage.interface import FRESH, Meta, Storage


class Draft(NamedTuple):
    """A message that is to be published.

    Attributes:
        body: the bytes, or what :meth:`Publishing.stage` returned.
        attributes: JSON values to keep with it.
        delay: seconds before it can be fetched; None for what the queue says.
        ttl: seconds after which it expires; where the queue has one, too, the shorter one counts.
        key: the client's own key for it: a second draft with this key stands for the same message.
        transient: it need not outlive this process.
        rank: whatever has a lower one stands before it in the queue; from 0 to 255.
        id: of its message, where that was chosen before; it says nothing then of when the message joins its queue.
    """

    body: bytes | Upload
    attributes: Mapping[str, Any] = {}
    delay: float | None = None
    ttl: float | None = None
    key: str | None = None
    transient: bool = False
    rank: int = 0
    id: MessageId | None = None


class Published(NamedTuple):
    """What became of a draft.

    Attributes:
        id: its message's id.
        is_new: False when the message was there already, for its key or, in a unique queue, for its body.
    """

    id: MessageId
    is_new: bool = True


class _Prepared(NamedTuple):
    """What is to be waited for: a job of this draft, or of an earlier one that stands for the same message."""

    job: Publish | None
    is_new: bool
    answer: Published | MQError | None = None


class Publishing:
    """Publishes drafts.

    Args:
        storage: keeps messages.
        catalog: the queues.
        committer: knows whether the medium has failed.
        learner: reads what a queue has to know of its bodies.
        keys: the clients' keys; None among peers, which cannot know of each other's.
        jobs: where the save workers find work.
        handover: to whoever waits when it is written.
        offers: to whoever waits when it has been written.
        ids: makes ids.
        config: how the broker works.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        committer: Committer,
        learner: Learner,
        keys: Keys | None,
        jobs: Mailbox[Sequence[Job]],
        handover: Handover,
        offers: Offers,
        ids: MessageIds,
        config: BrokerConfig,
        clock_ns: Callable[[], int],
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._committer = committer
        self._learner = learner
        self._keys = keys
        self._jobs = jobs
        self._handover = handover
        self._offers = offers
        self._ids = ids
        self._config = config
        self._clock_ns = clock_ns
        self._by_digest: dict[tuple[QueueIndex, bytes], Publish] = {}
        self._by_key: dict[tuple[QueueIndex, str], Publish] = {}

    async def stage(self, chunks: AsyncIterable[bytes]) -> Upload:
        """Bring a large body to the store. What `chunks` raises passes.

        Raises:
            BodyTooLarge: it is over the limit.
        """
        with self._committer.noting_failure():
            return await stage(self._storage, chunks, self._longest)

    async def publish(self, index: QueueIndex, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Publish them in one batch; what became of each, in their order.

        Raises:
            StorageError: the store cannot be looked at; nothing was published.
        """
        if index.settings.knows_bodies:
            await self._learner.learn(index)
        prepared = [self._prepare(index, draft) for draft in drafts]
        has_keys = any(draft.key is not None for draft in drafts)
        if has_keys:
            await self._note_keys(index, drafts, prepared)
        jobs = [each.job for each in prepared if each.job is not None and each.is_new and not each.job.reply.answered]
        if jobs:
            self._jobs.put(jobs)
        outcomes = [await _outcome(entry) for entry in prepared]
        for number, entry in enumerate(prepared):
            if entry.job is not None and not entry.is_new and isinstance(outcomes[number], MQError):
                [outcomes[number]] = await self.publish(index, [drafts[number]])  # the other one's failure is not ours
        return await self._note_known(index, drafts, outcomes) if has_keys else outcomes

    async def find(self, index: QueueIndex, digest: bytes) -> MessageId | None:
        """The message of a unique queue whose body has this digest."""
        await self._learner.learn(index)
        return index.bodies.find(digest) if index.bodies is not None else None

    # How it is done

    def _prepare(self, index: QueueIndex, draft: Draft) -> _Prepared:
        """A job for the draft, or the answer that it has without one. Nothing is awaited, so who is next sees it."""
        try:
            if index.deleted:
                raise NoSuchQueue(f"queue {index.name} was deleted meanwhile")
            digest = self._digest(index, draft)
            earlier = self._earlier(index, draft, digest)
            if earlier is not None:
                return earlier
            self._check(index, draft)
            return _Prepared(self._new_job(index, draft, digest), is_new=True)
        except MQError as error:
            return _Prepared(None, is_new=False, answer=error)

    def _earlier(self, index: QueueIndex, draft: Draft, digest: bytes | None) -> _Prepared | None:
        """The same message, if it is there already or being published."""
        if draft.key is not None:
            if self._keys is None:
                raise Conflict("idempotency keys cannot be kept among peers: publish without one")
            if (index, draft.key) in self._by_key:
                return _Prepared(self._by_key[index, draft.key], is_new=False)
            id = self._keys.find(index, draft.key)
            if id is not None:
                return _Prepared(None, is_new=False, answer=Published(id, is_new=False))
        if digest is not None and index.settings.unique and index.bodies is not None:
            if (index, digest) in self._by_digest:
                return _Prepared(self._by_digest[index, digest], is_new=False)
            id = index.bodies.find(digest)
            if id is not None:
                return _Prepared(None, is_new=False, answer=Published(id, is_new=False))
        return None

    def _check(self, index: QueueIndex, draft: Draft) -> None:
        """Refuse what is out of range or has no room."""
        size = draft.body.size if isinstance(draft.body, Upload) else len(draft.body)
        check_size(size, self._longest)
        settings = index.settings
        if settings.overflow != REJECT:
            return
        if settings.max_messages is not None and index.counted >= settings.max_messages:
            raise QueueFull(f"queue {index.name} holds {settings.max_messages} messages, its limit. Try again later")
        bytes_then = index.reserved_bytes + size + (index.bodies.total if index.bodies is not None else 0)
        if settings.max_bytes is not None and bytes_then > settings.max_bytes:
            raise QueueFull(f"queue {index.name} has no room for {size} bytes more. Try again later")

    def _new_job(self, index: QueueIndex, draft: Draft, digest: bytes | None) -> Publish:
        body = draft.body.staged if isinstance(draft.body, Upload) else draft.body

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
        job = Publish(
            self._catalog,
            self._ids,
            index,
            body,
            digest,
            draft.attributes,
            meta,
            landed,
            handover=self._handover,
            offers=self._offers,
            transient=draft.transient,
        )
        if draft.rank or draft.id is not None:
            job.id = draft.id
            job.stand_behind(draft.rank)
        if digest is not None and index.settings.unique:
            self._by_digest[index, digest] = job
        if draft.key is not None:
            self._by_key[index, draft.key] = job
        return job

    def _meta(self, index: QueueIndex, draft: Draft) -> Meta:
        settings = index.settings
        if draft.delay is None and draft.ttl is None and settings.ttl is None and not settings.delay:
            return FRESH
        delay = settings.delay if draft.delay is None else check_value("delay", draft.delay, DELAY)
        ttls = [ttl for ttl in (settings.ttl, draft.ttl) if ttl is not None]
        if draft.ttl is not None:
            check_value("ttl", draft.ttl, TTL)
        if not delay and not ttls:
            return FRESH
        now_ms = self._clock_ns() // 1_000_000
        return Meta(
            deadline_ms=now_ms + round(delay * 1000) if delay else None,
            expires_ms=now_ms + max(1, round(min(ttls) * 1000)) if ttls else None,
        )

    async def _note_keys(self, index: QueueIndex, drafts: Sequence[Draft], prepared: list[_Prepared]) -> None:
        """Keys are durable before their messages: after a crash they say which message to look for."""
        keyed: dict[str, Publish] = {}
        for draft, entry in zip(drafts, prepared, strict=True):
            if draft.key is not None and entry.job is not None and entry.is_new:
                keyed[draft.key] = entry.job
        if not keyed or self._keys is None:
            return
        for entry in prepared:
            if entry.job is not None and entry.is_new:
                entry.job.id = entry.job.id or self._ids.new()  # those without a key, too: the batch keeps its order
        try:
            await self._keys.note(index, {key: job.id for key, job in keyed.items() if job.id is not None})
        except MQError as error:
            for job in keyed.values():
                job.give_up(error)
        except BaseException:
            for entry in prepared:
                if entry.job is not None and entry.is_new:
                    entry.job.give_up(BrokerClosed("whoever published this went before it was stored. Try again"))
            raise

    async def _note_known(
        self, index: QueueIndex, drafts: Sequence[Draft], outcomes: list[Published | MQError]
    ) -> list[Published | MQError]:
        """A key that came with a body which was there already stands for that message from now on."""
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
        """How long a body may be, in bytes: here, and in the store."""
        return min(self._config.max_body, self._storage.description.max_body or self._config.max_body)


async def _outcome(entry: _Prepared) -> Published | MQError:
    if entry.job is None:
        assert entry.answer is not None
        return entry.answer
    try:
        return Published(await entry.job.reply.get(), entry.is_new)
    except MQError as error:
        return error
