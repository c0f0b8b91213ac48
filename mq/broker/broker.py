"""The broker: the one API that every door calls."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import trio

from mq.broker.asked import Asked
from mq.broker.bodies import digest_of
from mq.broker.claiming import Claiming
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Removal
from mq.broker.declarations import Declarations
from mq.broker.exclusion import Exclusion
from mq.broker.fetches import FetchRequest
from mq.broker.holding import Held
from mq.broker.looking import READY, Seen
from mq.broker.places import ALONE, CLUSTER, MEMORY, Membership
from mq.broker.publishing import Draft, Published
from mq.broker.queue_settings import VISIBILITY, QueueSettings, check_value
from mq.broker.queues import LARGEST_SLICE, Inventory, QueueStatus, Redriven
from mq.broker.rooms import Rooms
from mq.broker.uploads import Upload
from mq.errors import Conflict, MQError, NoSuchMessage
from mq.lifecycle import Observer
from mq.message import Message, MessageId, QueueName, shorten
from mq.storage.interface import Description, Storage


class Broker:
    """Publish, fetch, remove, requeue, and all that goes with them. Made by :func:`open_broker`.

    Everything raises :class:`~mq.errors.BrokerClosed` once the broker ends, and the storage errors of
    :mod:`mq.errors` when the medium refuses; what a method says it did is durable on return. Whatever names a queue
    raises :class:`~mq.errors.NoSuchQueue` where there is none of that name.
    """

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        observers: Sequence[Observer],
        clock_ns: Callable[[], int],
        random: Random,
    ) -> None:
        self.config = config
        self._storage = storage
        rooms = Rooms(storage, config, observers, clock_ns, random)
        self._rooms = rooms
        self._catalog, self._committer, self._fetches = rooms.catalog, rooms.committer, rooms.fetches
        self._queues, self._publishing, self._consuming = rooms.queues, rooms.publishing, rooms.consuming
        self._holding = rooms.holding
        self._looking, self._upkeep, self._follower = rooms.looking, rooms.upkeep, rooms.follower
        self.declarations: Declarations = rooms.declarations  # what a door declares beyond messages
        self._asked = Asked(rooms.committer)
        self.claims = Claiming(rooms.claims, self._queues.get, self._asked)
        self.browsing = rooms.browsing

    async def load(self) -> None:
        """Take up what is in the store.

        Raises:
            StorageUnusable: it cannot be read.
        """
        await self._rooms.load()

    async def start(self, nursery: trio.Nursery) -> None:
        """Start every task."""
        await self._rooms.start(nursery)

    async def finish(self) -> None:
        """Accept nothing more, and wait until what was asked for is done. Who waits for messages waits no longer."""
        self._asked.close()
        self._fetches.close()
        await self._asked.finished()

    # The store

    @property
    def description(self) -> Description:
        """What the store is."""
        return self._storage.description

    @property
    def ready(self) -> bool:
        """Whether messages can be stored and handed out: False once the medium has failed."""
        return not self._asked.is_closed and not self._committer.failure

    @property
    def membership(self) -> Membership:
        """It is in no cluster."""
        return ALONE

    # Queues

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue exists."""
        return await self._queues.look_up(queue, surely=True) is not None

    async def create_queue(self, queue: str, place: str | None = None) -> bool:
        """Make a queue. False when it is there already, and stays as it is.

        Args:
            queue: its name.
            place: where it lives (:mod:`mq.broker.places`); None for wherever a queue does.

        Raises:
            InvalidName: not a queue's name.
            Conflict: a queue cannot live there.
        """
        name = QueueName(queue)
        if place == CLUSTER:
            raise Conflict(f"queue {name} cannot be highly available: this daemon is in no cluster (--cluster)")
        with self._asked:
            return await self._queues.create(name, is_transient=place == MEMORY)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        with self._asked:
            await self._queues.delete(queue)

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings:
        """Change what is set for a queue, all of `patch` or nothing; None sets one back to its default.

        Raises:
            InvalidSetting: a setting is unknown or out of its range, or two contradict each other.
            Conflict: a setting that cannot be kept here and now.
        """
        with self._asked:
            return await self._queues.change_settings(queue, patch)

    async def status(self, queue: str) -> QueueStatus:
        """What is set for a queue, and what is in it."""
        await self._queues.look_up(queue, surely=True)
        return self._queues.status(await self._queues.get(queue))

    async def queues(self) -> list[QueueStatus]:
        """Every queue, by name."""
        return await self._queues.all()

    def inventory(self) -> Iterator[Inventory]:
        """Every queue with its messages as they are now. Take all of it without waiting for anything meanwhile."""
        return self._queues.inventory()

    async def purge(self, queue: str) -> int:
        """Remove all messages of a queue that nobody holds; how many there were."""
        with self._asked:
            return await self._queues.purge(queue)

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move ready messages back to the queues in which they died, or all of them to another one.

        Args:
            queue: where they are now.
            to: where they go, if not back.
            most: how many at the most.
            ids: only these.
        """
        with self._asked:
            return await self._queues.redrive(queue, to, most, ids)

    # Publishing

    async def stage(self, chunks: AsyncIterable[bytes]) -> Upload:
        """Bring a large body to the store; then publish what is returned, or discard it. What `chunks` raises passes.

        Raises:
            BodyTooLarge: it is over the limit.
        """
        self._asked.check()
        return await self._publishing.stage(chunks)

    async def publish(
        self,
        queue: str,
        body: bytes | Upload,
        attributes: Mapping[str, Any] | None = None,
        *,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
    ) -> MessageId:
        """Store a message. On return it is durable, and its queue has it or will have it after any crash.

        Args:
            queue: the queue's name.
            body: the bytes, or what :meth:`stage` returned; that is used up, whatever happens.
            attributes: JSON values to keep with it.
            delay: seconds before it can be fetched.
            ttl: seconds after which it expires.
            key: the publisher's own key: what is published again with it is the same message.

        Raises:
            BodyTooLarge: the body is over the limit.
            QueueFull: the queue's own limits.
            InvalidSetting: `delay` or `ttl` is out of its range.
            Conflict: a key, on a store that others change too.
        """
        [outcome] = await self.publish_many(queue, [Draft(body, attributes or {}, delay, ttl, key)])
        if isinstance(outcome, MQError):
            raise outcome
        return outcome.id

    async def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Store messages with one barrier; what became of each, in their order."""
        try:
            with self._asked:
                return await self._publishing.publish(await self._queues.get(queue), drafts)
        finally:
            for draft in drafts:
                if isinstance(draft.body, Upload):
                    await draft.body.discard()

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None:
        """The message of a unique queue that has this body.

        Raises:
            Conflict: the queue is not unique.
        """
        index = await self._queues.get(queue)
        if not index.settings.unique:
            raise Conflict(f'queue {queue} is not unique: set that first, with PATCH and {{"unique": true}}')
        digest = digest_of(body) if isinstance(body, bytes) else body.digest
        return await self._publishing.find(index, digest)

    # Consuming

    async def fetch(self, queue: str, *, wait: float = 0, visibility: float | None = None) -> Message | None:
        """Lease the first READY message; None when there is none. Nobody else gets it until the lease ends.

        Close its body when done with it.

        Args:
            queue: the queue's name.
            wait: seconds to wait for one.
            visibility: length of the lease in seconds; None for what the queue says.
        """
        messages = await self.fetch_many(queue, 1, wait=wait, visibility=visibility)
        return messages[0] if messages else None

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]:
        """As :meth:`fetch`, for up to `most` messages that are there together."""
        if visibility is not None:
            check_value("visibility", visibility, VISIBILITY)
        return await self._fetch(FetchRequest(await self._queues.get(queue), most, visibility, waits=wait > 0), wait)

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Messages that were fetched in vain: READY again at once, and not counted as received. Closes their bodies."""
        await self._consuming.give_back(messages)

    async def take(self, queue: str, *, wait: float = 0) -> Message | None:
        """Fetch and remove the first READY message in one step: at most once. Whoever loses it has lost it."""
        index = await self._queues.get(queue)
        messages = await self._fetch(FetchRequest(index, waits=wait > 0, takes=True), wait)
        return messages[0] if messages else None

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """Remove a message for good, wherever in its queue it is.

        Args:
            queue: the queue's name.
            id: the message.
            receipt: of the delivery that must still hold it.

        Raises:
            NoSuchMessage: the message is not in it.
            ReceiptMismatch: another delivery holds it, or none does any more.
        """
        with self._asked:
            await self._consuming.remove(await self._queues.get(queue), Removal(id, receipt))

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]:
        """Remove messages with one barrier; what went wrong with each, in their order. None is "removed"."""
        with self._asked:
            return await self._consuming.remove_many(await self._queues.get(queue), removals)

    async def requeue(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """End a message's lease: it is READY again, in its old place.

        Raises:
            NoSuchMessage: the message is not in it, or no lease of it is running.
            ReceiptMismatch: another delivery holds it.
        """
        with self._asked:
            await self._consuming.requeue(await self._queues.get(queue), id, receipt)

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None:
        """Let a message's lease end in so many seconds from now.

        Raises:
            As :meth:`requeue`; and InvalidSetting when `seconds` is out of its range.
        """
        check_value("visibility", seconds, VISIBILITY)
        with self._asked:
            await self._consuming.extend(await self._queues.get(queue), id, seconds, receipt)

    # Holding, for as long as a connection lasts

    async def hold(
        self, queue: str, most: int = 1, *, wait: float = 0, exclusion: Exclusion | None = None
    ) -> list[Held]:
        """Up to `most` READY messages, which nobody else gets until they are settled; no lease runs out meanwhile.

        Whoever holds them has to settle them in the end, each in one of the three ways. What is not settled when the
        broker ends is READY at the next start. Those who wait get messages one each in turn.

        Args:
            queue: the queue's name.
            most: how many at the most.
            wait: seconds to wait for one.
            exclusion: of the queue, where it has one.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        index = await self._queues.get(queue)
        in_memory = not self.config.peers
        seconds = None if in_memory else self.config.delay_seconds
        request = FetchRequest(index, most, seconds, waits=wait > 0, holds=in_memory, exclusion=exclusion)
        with self._asked:
            return await self._holding.hold(request, wait)

    async def exclude(self, queue: str) -> Exclusion:
        """Let one consumer alone have the queue's messages, until it ends that. Whoever waits for them hears of it.

        Raises:
            Conflict: among peers, whose consumers are not known here.
            QueueHeld: somebody has it already.
        """
        return self._holding.exclude(await self._queues.get(queue))

    async def acknowledge(self, held: Sequence[Held], *, durable: bool = False) -> None:
        """Remove what is held. Those that somebody else has removed meanwhile are passed over.

        Args:
            held: the messages.
            durable: whether that must be durable on return; else it is soon.
        """
        with self._asked:
            await self._holding.acknowledge(held, durable=durable)

    async def put_back(self, held: Sequence[Held], *, redelivered: bool = True, to_back: bool = False) -> None:
        """Let others have what is held.

        Args:
            held: the messages.
            redelivered: whether somebody has had them.
            to_back: not in their places, but behind all the others of their queue.
        """
        with self._asked:
            await self._holding.put_back(held, redelivered=redelivered, to_back=to_back)

    async def reject(self, held: Sequence[Held]) -> None:
        """Move what is held to its queue's dead-letter queue; remove it where there is none."""
        with self._asked:
            await self._holding.reject(held)

    # Looking

    async def show(self, queue: str, id: str) -> Seen:
        """A message as it is, without taking it. Close its body when done with it.

        Raises:
            NoSuchMessage: the message is not in the queue.
        """
        seen = await self._looking.show(await self._queues.get(queue), MessageId(id))
        if seen is None:
            raise NoSuchMessage(f"message {shorten(id)} is not in queue {queue}")
        return seen

    async def peek(self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100) -> list[Seen]:
        """Some messages in their order, without taking them; close their bodies.

        Args:
            queue: the queue's name.
            state: ``ready``, ``leased`` or ``delayed``.
            after: the last id of the page before.
            most: how many at the most.
        """
        index = await self._queues.settled(queue)
        return await self._looking.page(index, state, MessageId(after) if after is not None else None, most)

    # How they are done

    async def _fetch(self, request: FetchRequest, wait: float) -> list[Message]:
        with self._asked:
            return await self._consuming.fetch(request, wait)
