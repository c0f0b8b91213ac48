"""What a node's doors see: one broker. A queue is either here, or one of the cluster's."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from mq.amqp.arguments import QUEUE_TYPE, QUORUM
from mq.amqp.declared import Queue
from mq.amqp.names import decode
from mq.broker import (
    Broker,
    Draft,
    Exclusion,
    Held,
    Published,
    QueueSettings,
    QueueStatus,
    Redriven,
    Removal,
    Seen,
    Upload,
)
from mq.broker.looking import READY
from mq.broker.places import CLUSTER, Membership
from mq.broker.queues import LARGEST_SLICE, Inventory
from mq.cluster.batching import JointBrowsing, JointClaims
from mq.cluster.declaring import JointDeclarations
from mq.cluster.directory import Directory
from mq.cluster.remote import Remote, RemoteHeld
from mq.cluster.sessions import Sessions
from mq.errors import BodyTooLarge, Conflict, MQError, NotServed
from mq.message import Message, MessageId, QueueName
from mq.storage.interface import Description, Staged

MOST_GATHERED: Final = 2 * 1024 * 1024
"""Bytes of a body that are kept in memory until it is known which queue it is for. The cluster's store takes less."""
SHOWN_PATIENCE_SECONDS: Final = 1.0
"""How long a list of all queues waits for those of the cluster."""


class _Nothing:
    """What was staged of a body that is in memory."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.checksum = 0

    async def discard(self) -> None:
        """Nothing to take away."""


class Gathered(Upload):
    """A body that was to be staged, and is in memory instead.

    Attributes:
        data: all of it.
    """

    def __init__(self, data: bytes) -> None:
        super().__init__(cast(Staged, _Nothing(len(data))), hashlib.sha256(data).digest())
        self.data = data


class Joint:
    """As :class:`~mq.broker.broker.Broker`, for the queues of this node and for those of the cluster.

    Args:
        local: this node's own queues.
        directory: knows the cluster's, and who serves them.
        sessions: the links that are connected here.
        membership: tells what the cluster looks like from here.
    """

    def __init__(
        self, local: Broker, directory: Directory, sessions: Sessions, membership: Callable[[], Membership]
    ) -> None:
        self._local = local
        self._directory = directory
        self._sessions = sessions
        self._membership = membership
        self._remote = remote = Remote(directory)
        self.declarations = JointDeclarations(local, remote, directory, sessions)
        self.claims = JointClaims(local.claims, remote.claims, self.declarations.is_remote)
        self.browsing = JointBrowsing(local.browsing, remote.browsing, self.declarations.is_remote)

    @property
    def description(self) -> Description:
        """What the local store is."""
        return self._local.description

    @property
    def ready(self) -> bool:
        """Whether the local store takes changes."""
        return self._local.ready

    @property
    def membership(self) -> Membership:
        """The cluster, as this node sees it."""
        return self._membership()

    # Queues

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue exists, here or in the cluster."""
        return queue in self._directory.queues or await (await self._at(queue)).has_queue(queue)

    async def create_queue(self, queue: str, place: str | None = None) -> bool:
        """Make a queue, here or in the cluster. False when it is there already, and stays as it is.

        Raises:
            Conflict: it is there, in another place.
        """
        name = QueueName(queue)
        if place != CLUSTER:
            if await self._at(name) is self._remote:
                if place is not None:
                    raise Conflict(f"queue {name} is there already, and highly available")
                return False
            return await self._local.create_queue(name, place)
        if self._local.declarations.knows(name):
            raise Conflict(f"queue {name} is there already, on this node alone: delete it first")
        vhost, plain = decode(name) or ("", name)
        declared = Queue(vhost, plain, durable=True, arguments={QUEUE_TYPE: QUORUM}).record().value
        return await self.declarations.create(name, {}, declared, is_transient=False, is_replicated=True)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        is_remote = self.declarations.is_remote(queue)
        await (await self._at(queue)).delete_queue(queue)
        if is_remote:
            self._directory.closed(queue)

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings:
        """Change what is set for a queue."""
        return await (await self._at(queue)).change_settings(queue, patch)

    async def status(self, queue: str) -> QueueStatus:
        """What is set for a queue, and what is in it."""
        return await (await self._at(queue)).status(queue)

    async def queues(self) -> list[QueueStatus]:
        """Every queue, by name. Those of the cluster are missing while nobody serves them."""
        found = {status.name: status for status in await self._local.queues()}
        if self._directory.queues:
            try:
                cluster = await self._remote.queues(SHOWN_PATIENCE_SECONDS)
            except NotServed:
                cluster = []
            found = {status.name: status for status in cluster} | found
        return [found[name] for name in sorted(found)]

    def inventory(self) -> Iterator[Inventory]:
        """Every queue of this node with its messages as they are now."""
        return self._local.inventory()

    async def purge(self, queue: str) -> int:
        """Remove all messages of a queue that nobody holds; how many there were."""
        return await (await self._at(queue)).purge(queue)

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move ready messages back to the queues in which they died, or all of them to another one.

        Raises:
            Conflict: one of the two queues is the cluster's, and the other is not.
        """
        if to is not None and self.declarations.is_remote(to) != self.declarations.is_remote(queue):
            raise Conflict(f"{queue} and {to} are not both highly available, or both on this node: export and import")
        return await (await self._at(queue)).redrive(queue, to, most, ids)

    # Publishing

    async def stage(self, chunks: AsyncIterable[bytes]) -> Upload:
        """Bring a large body to the local store, or keep it in memory as long as it might be for the cluster's."""
        arriving = aiter(chunks)
        start = bytearray()
        async for chunk in arriving:
            start += chunk
            if len(start) > MOST_GATHERED:
                break
        else:
            return Gathered(bytes(start))

        async def whole() -> AsyncGenerator[bytes]:
            yield bytes(start)
            async for chunk in arriving:
                yield chunk

        return await self._local.stage(whole())

    async def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[Published | MQError]:
        """Store messages; what became of each, in their order."""
        if self._sessions.owns(queue):
            return self._sessions.receive(drafts)
        if any(isinstance(draft.body, Gathered) for draft in drafts):
            drafts = [draft._replace(body=_in_memory(draft.body)) for draft in drafts]
        if not self.declarations.is_remote(queue):
            at = await self._at(queue)
            if at is self._local:
                return await self._local.publish_many(queue, drafts)
        fit = [draft for draft in drafts if isinstance(draft.body, bytes)]
        try:
            outcomes = iter(await self._remote.publish_many(queue, fit) if fit else ())
        finally:
            for draft in drafts:
                if isinstance(draft.body, Upload):
                    await draft.body.discard()
        return [next(outcomes) if isinstance(draft.body, bytes) else _too_large() for draft in drafts]

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None:
        """The message of a unique queue that has this body."""
        body = _in_memory(body)
        if not self.declarations.is_remote(queue):
            return await self._local.contains(queue, body)
        if not isinstance(body, bytes):
            raise _too_large()
        return await self._remote.contains(queue, body)

    # Leases

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]:
        """Lease messages that are there together."""
        return await (await self._at(queue)).fetch_many(queue, most, wait=wait, visibility=visibility)

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Messages that were fetched in vain."""
        remote = [message for message in messages if self.declarations.is_remote(message.queue)]
        local = [message for message in messages if not self.declarations.is_remote(message.queue)]
        if remote:
            await self._remote.give_back(remote)
        if local:
            await self._local.give_back(local)

    async def take(self, queue: str, *, wait: float = 0) -> Message | None:
        """Fetch and remove the first READY message in one step: at most once."""
        return await (await self._at(queue)).take(queue, wait=wait)

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """Remove a message for good."""
        await (await self._at(queue)).remove(queue, id, receipt=receipt)

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]:
        """Remove messages; what went wrong with each."""
        return await (await self._at(queue)).remove_many(queue, removals)

    async def requeue(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """End a message's lease."""
        await (await self._at(queue)).requeue(queue, id, receipt=receipt)

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None:
        """Let a message's lease end in so many seconds from now."""
        await (await self._at(queue)).extend(queue, id, seconds, receipt=receipt)

    # Holding

    async def hold(
        self, queue: str, most: int = 1, *, wait: float = 0, exclusion: Exclusion | None = None
    ) -> list[Held]:
        """Up to `most` READY messages, which nobody else gets until they are settled."""
        if self._sessions.owns(queue):
            return await self._sessions.take(queue, most, wait)
        return await (await self._at(queue)).hold(queue, most, wait=wait, exclusion=exclusion)

    async def exclude(self, queue: str) -> Exclusion:
        """Let one consumer alone have the queue's messages. The queue of a link's replies always has one."""
        return (
            self._sessions.open(queue) if self._sessions.owns(queue) else await (await self._at(queue)).exclude(queue)
        )

    async def acknowledge(self, held: Sequence[Held], *, durable: bool = False) -> None:
        """Remove what is held."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.acknowledge(remote, durable=durable)
        if local:
            await self._local.acknowledge(local, durable=durable)

    async def put_back(self, held: Sequence[Held], *, redelivered: bool = True, to_back: bool = False) -> None:
        """Let others have what is held."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.put_back(remote, redelivered=redelivered, to_back=to_back)
        if local:
            await self._local.put_back(local, redelivered=redelivered, to_back=to_back)

    async def reject(self, held: Sequence[Held]) -> None:
        """Let what is held die."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.reject(remote)
        if local:
            await self._local.reject(local)

    # Looking

    async def show(self, queue: str, id: str) -> Seen:
        """A message as it is, without taking it."""
        return await (await self._at(queue)).show(queue, id)

    async def peek(self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100) -> list[Seen]:
        """Some messages in their order, without taking them."""
        return await (await self._at(queue)).peek(queue, state=state, after=after, most=most)

    # How it is done

    async def _at(self, queue: str) -> Broker | Remote:
        """Who has a queue. Of a name that nobody here has heard of, the master may have heard just now."""
        if self._local.declarations.knows(queue):
            return self._local
        if queue in self._directory.queues:
            return self._remote
        if self._directory.place is None and self._directory.term:
            return self._local
        return self._remote if await self.declarations.is_there(queue) else self._local

    def _sorted(self, held: Sequence[Held]) -> tuple[list[Held], list[RemoteHeld]]:
        remote = [each for each in held if isinstance(each, RemoteHeld)]
        local = [
            each for each in held if not isinstance(each, RemoteHeld) and not self._sessions.owns(each.entry.queue)
        ]
        return local, remote


def _in_memory(body: bytes | Upload) -> bytes | Upload:
    return body.data if isinstance(body, Gathered) else body


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than {MOST_GATHERED} bytes: no highly available queue takes that much")
