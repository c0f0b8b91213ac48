"""The broker that a node's servers see. A queue of it is either this node's own, or one of the cluster's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, cast

from mq.broker import (
    Broker,
    Draft,
    Exclusion,
    Precedence,
    Published,
    QueueStatus,
    Redriven,
    UnackedMessage,
    Upload,
)
from mq.broker.api import CLUSTER, Membership, NodeControl
from mq.broker.batch_consumers import BatchConsumers
from mq.broker.clock import Clock
from mq.broker.columns import ColumnReader
from mq.broker.commit import Done, Future, StoreProgress
from mq.broker.peek import SequenceBrowser
from mq.broker.queues import LARGEST_SLICE, Inventory
from mq.broker.settings import QueueSettings
from mq.broker.unacked import Received
from mq.broker.verbs import Forwarding, Verb
from mq.broker.write_jobs import WriteJobs
from mq.cluster.config import ClusterConfig
from mq.cluster.declarations import ClusterDeclarations
from mq.cluster.directory import Directory
from mq.cluster.link_sessions import LinkSessions
from mq.cluster.name_space import Names
from mq.cluster.pieces import WHOLE_BYTES
from mq.cluster.remote_broker import RemoteBroker, RemoteUnacked
from mq.cluster.shared_records import SharedRecords
from mq.cluster.spool import GatheredBody, SpooledBody, spool
from mq.errors import Conflict, MQError, NotServed
from mq.message import Message, MessageId, QueueName
from mq.storage.interface import Description, Health

SHOWN_PATIENCE_SECONDS: Final = 1.0
"""How long a list of all queues waits for those of the cluster."""


class ClusterBroker(Forwarding):
    """As :class:`~mq.broker.broker.Broker`, for the queues of this node and for those of the cluster.

    Attributes:
        node_control: what an operator may have this node do; the node sets it.
    """

    node_control: NodeControl

    def __init__(
        self,
        config: ClusterConfig,
        local: Broker,
        names: Names,
        shared: SharedRecords,
        directory: Directory,
        sessions: LinkSessions,
        membership: Callable[[], Membership],
    ) -> None:
        super().__init__("", self._pass_on)
        self._local = local
        self._names = names
        self._sessions = sessions
        self._membership = membership
        self._spool_folder = config.spool_folder
        self.led: Callable[[], Broker | None] = lambda: None  # over the cluster's store, while this node is master
        self._remote = remote = RemoteBroker(directory)
        self.declarations = ClusterDeclarations(
            config.node, local, remote, names, shared, sessions, config.default_store
        )
        self.claims = cast(BatchConsumers, Forwarding("claims", self._pass_on))
        self.writes = cast(WriteJobs, Forwarding("writes", self._pass_on))
        self.browsing = cast(SequenceBrowser, Forwarding("browsing", self._pass_on))
        self.columns: ColumnReader | None = None  # over a link messages go one by one

    @property
    def clock(self) -> Clock:
        """The clock of the local broker."""
        return self._local.clock

    @property
    def clocks(self) -> Sequence[Clock]:
        """The clocks by which this node serves messages: while it is master, that of the cluster's queues as well."""
        led = self.led()
        return (self._local.clock,) if led is None else (self._local.clock, led.clock)

    @property
    def description(self) -> Description:
        """What the local store is."""
        return self._local.description

    @property
    def health(self) -> Health | None:
        """What the local store knows of damage."""
        return self._local.health

    @property
    def ready(self) -> bool:
        """Whether the local store takes changes."""
        return self._local.ready

    @property
    def is_shared(self) -> bool:
        """Whether other processes change the local store."""
        return self._local.is_shared

    @property
    def progress(self) -> StoreProgress:
        """Noted with each answer of the local store."""
        return self._local.progress

    @property
    def membership(self) -> Membership:
        """The cluster, as this node sees it."""
        return self._membership()

    async def ask_guest(self, method: str, *args: Any) -> Any:
        """Ask what lives with the leader (:attr:`mq.cluster.leadership.Leadership.guest`).

        Raises:
            NotServed: there is no leader.
        """
        return await self._remote.ask_guest(method, *args)

    # Queues

    async def has_queue(self, queue: str) -> bool:
        """Whether the queue exists, here or in the cluster.

        Raises:
            NotServed: that could not be found out in time.
        """
        return await self._at(queue) is self._remote or await self._local.has_queue(queue)

    async def create_queue(self, queue: str, place: str | None = None) -> bool:
        """Make a queue, here or in the cluster. False when it is there already, and stays as it is.

        Raises:
            Conflict: it is there, in another place.
            NotServed: whether it is could not be found out in time.
        """
        name = QueueName(queue)
        if place != CLUSTER and not (place is None and self.declarations.replicates(name)):
            await self.declarations.find(name)
            if self.declarations.is_remote(name):
                if place is not None:
                    raise Conflict(f"queue {name} already exists as a cluster queue")
                return False
            return await self._names.make(name, lambda: self._local.create_queue(name, place))
        return await self.declarations.create(name, {}, None, is_transient=False, is_replicated=True)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        at = await self._at(queue)
        await at.delete_queue(queue)
        if at is self._local:
            await self._names.released(queue)
            return
        with suppress(NotServed):  # the queue is gone, even if this node cannot learn that now
            await self._names.find(queue)

    async def queues(self) -> list[QueueStatus]:
        """Every queue, by name. Those of the cluster are missing while there is no leader."""
        found = {status.name: status for status in await self._local.queues()}
        if self._names.queues:
            try:
                cluster = await self._remote.queues(SHOWN_PATIENCE_SECONDS)
            except NotServed:
                cluster = []
            found = {status.name: status for status in cluster} | found
        return [found[name] for name in sorted(found)]

    def inventory(self) -> Iterator[Inventory]:
        """Every queue of this node with its messages as they are now."""
        return self._local.inventory()

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven:
        """Move ready messages back to the queues in which they died, or all of them to another one.

        Raises:
            Conflict: one of the two queues is the cluster's, and the other is not.
        """
        at = await self._at(queue)
        if to is not None and await self._at(to) is not at:
            raise Conflict(
                f"messages cannot be moved from queue {queue} to {to}, because one is a cluster queue and the other "
                "is local to this node. Use mq export and mq import instead"
            )
        return await at.redrive(queue, to, most, ids)

    # Publishing

    def longest_body(self, queue: str, key: str | None = None) -> int:
        """The longest body in bytes that a queue takes, as far as this node knows."""
        return self._local.longest_body(queue, key)

    async def stage(self, chunks: AsyncIterable[bytes], queue: str | None = None) -> Upload:
        """Bring a large body to the local store. One for a queue of the cluster stays at this node until it is
        published, as does a short one."""
        arriving = aiter(chunks)
        start = bytearray()
        async for chunk in arriving:
            start += chunk
            if len(start) > WHOLE_BYTES:
                break
        else:
            return GatheredBody(bytes(start))

        async def whole() -> AsyncGenerator[bytes]:
            yield bytes(start)
            async for chunk in arriving:
                yield chunk

        async with aclosing(whole()) as body:
            if queue is not None and await self._at(queue) is self._remote:
                return await spool(body, self._spool_folder)
            return await self._local.stage(body)

    async def publish_many(
        self, queue: str, drafts: Sequence[Draft], has_place: Callable[[], object] | None = None
    ) -> list[Published | MQError]:
        """Store messages; what became of each, in their order. `has_place` as the local broker calls it."""
        if self._sessions.owns(queue):
            return self._sessions.receive(drafts)
        if any(isinstance(draft.body, GatheredBody) for draft in drafts):
            drafts = [draft._replace(body=_in_memory(draft.body)) for draft in drafts]
        is_given = False
        try:
            if await self._at(queue) is self._local:
                if any(isinstance(draft.body, SpooledBody) for draft in drafts):
                    drafts = [draft._replace(body=await self._local_body(draft.body)) for draft in drafts]
                is_given = True
                return await self._local.publish_many(queue, drafts, has_place)
            if any(isinstance(draft.body, Upload) and not isinstance(draft.body, SpooledBody) for draft in drafts):
                raise NotServed(
                    f"queue {queue} became a cluster queue while the message was being published. Try again"
                )
            return await self._remote.publish_many(queue, drafts)
        finally:
            for draft in drafts:
                if isinstance(draft.body, Upload) and not is_given:
                    await draft.body.discard()

    def settings_now(self, queue: str) -> QueueSettings | None:
        """The settings of a queue of this node that certainly exists; None for the cluster's."""
        return self._local.settings_now(queue) if self._begins(queue) else None

    def publishes_now(self, queue: str) -> bool:
        """Whether :meth:`publish_now` takes messages for the queue now: one of this node."""
        return self._begins(queue) and self._local.publishes_now(queue)

    def publish_now(
        self, queue: str, drafts: Sequence[Draft], done: Callable[[list[Published | MQError]], None]
    ) -> bool:
        """As :meth:`publish_many`, in the caller's step. False where :meth:`publishes_now` is: nothing has begun."""
        return self._begins(queue) and self._local.publish_now(queue, drafts, done)

    def _begins(self, queue: str) -> bool:
        """Whether operations on a queue may begin in the caller's step: those on a queue of this node, unless it is
        being drained. Then each HTTP answer ends its connection, which is left to the full path."""
        return not self._sessions.owns(queue) and not self.node_control.is_draining

    async def _local_body(self, body: bytes | Upload) -> bytes | Upload:
        """A body as the local store takes it, also one whose queue was the cluster's when it came."""
        if not isinstance(body, SpooledBody):
            return body
        try:
            async with aclosing(body.pieces()) as pieces:
                return await self._local.stage(pieces)
        finally:
            await body.discard()

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None:
        """The message of a unique queue that has this body."""
        return await (await self._at(queue)).contains(queue, _in_memory(body))

    # Leases

    def fetch_now(
        self, queue: str, most: int, *, visibility: float | None = None
    ) -> Future[list[Message]] | list[Message] | None:
        """As :meth:`fetch_many` without a wait, begun in the caller's step, from a queue of this node; else None."""
        return self._local.fetch_now(queue, most, visibility=visibility) if self._begins(queue) else None

    def remove_now(self, queue: str, id: str, done: Done, *, receipt: str | None = None) -> bool:
        """As :meth:`remove`, begun in the caller's step, from a queue of this node; else False."""
        return self._begins(queue) and self._local.remove_now(queue, id, done, receipt=receipt)

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Messages that were fetched in vain."""
        remote = [message for message in messages if self.declarations.is_remote(message.queue)]
        local = [message for message in messages if not self.declarations.is_remote(message.queue)]
        if remote:
            await self._remote.give_back(remote)
        if local:
            await self._local.give_back(local)

    # Holding

    def hold_now(
        self,
        queue: str,
        most: int = 1,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage] | None:
        """As :meth:`hold`, in the caller's step, from a queue of this node; None where that takes longer."""
        if self._sessions.owns(queue):
            return None
        return self._local.hold_now(queue, most, exclusion=exclusion, precedence=precedence)

    def hold_when_ready(
        self,
        queue: str,
        most: int,
        done: Received,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> Callable[[], None] | None:
        """As :meth:`hold` that waits without an end, in the caller's step; None for a queue that is not of this
        node."""
        if self._sessions.owns(queue):
            return None
        return self._local.hold_when_ready(queue, most, done, exclusion=exclusion, precedence=precedence)

    async def hold(
        self,
        queue: str,
        most: int = 1,
        *,
        wait: float = 0,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage]:
        """Up to `most` READY messages, which no other consumer gets until they are settled."""
        if self._sessions.owns(queue):
            return await self._sessions.take(queue, most, wait)
        at = await self._at(queue)
        return await at.hold(queue, most, wait=wait, exclusion=exclusion, precedence=precedence)

    async def exclude(self, queue: str, *, in_turn: bool = False) -> Exclusion:
        """Give the queue to one consumer alone. The queue of a link's replies always has an exclusion."""
        if self._sessions.owns(queue):
            return self._sessions.open(queue)
        return await (await self._at(queue)).exclude(queue, in_turn=in_turn)

    async def acknowledge(self, held: Sequence[UnackedMessage], *, durable: bool = False) -> None:
        """Remove held messages."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.acknowledge(remote, durable=durable)
        if local:
            await self._local.acknowledge(local, durable=durable)

    def acknowledge_now(self, held: Sequence[UnackedMessage], done: Done) -> bool:
        """As :meth:`acknowledge`, in the caller's step, of messages of this node; else False."""
        if any(isinstance(each, RemoteUnacked) or self._sessions.owns(each.entry.queue) for each in held):
            return False
        return self._local.acknowledge_now(held, done)

    async def put_back(
        self,
        held: Sequence[UnackedMessage],
        *,
        redelivered: bool = True,
        to_back: bool = False,
        failed: bool = False,
        most: int | None = None,
    ) -> None:
        """Make held messages READY."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.put_back(remote, redelivered=redelivered, to_back=to_back, failed=failed, most=most)
        if local:
            await self._local.put_back(local, redelivered=redelivered, to_back=to_back, failed=failed, most=most)

    async def reject(self, held: Sequence[UnackedMessage]) -> None:
        """Move held messages to their dead-letter queues, or remove them."""
        local, remote = self._sorted(held)
        if remote:
            await self._remote.reject(remote)
        if local:
            await self._local.reject(local)

    # How it is done

    async def _pass_on(self, verb: Verb, queue: str, *args: Any, **named: Any) -> Any:
        """Ask the broker that has the queue."""
        has: Any = await self._at(queue)
        if verb.part:
            has = getattr(has, verb.part)
        return await getattr(has, verb.method)(queue, *args, **named)

    async def _at(self, queue: str) -> Broker | RemoteBroker:
        """The broker that has a queue. Where no queue of that name exists it is the local one, and refuses.

        Raises:
            NotServed: that could not be found out in time.
        """
        if self._local.declarations.knows(queue) or self._sessions.owns(queue):
            return self._local
        if queue in self._names.queues or await self._names.find(queue):
            return self._remote
        return self._local

    def _sorted(self, held: Sequence[UnackedMessage]) -> tuple[list[UnackedMessage], list[RemoteUnacked]]:
        remote = [each for each in held if isinstance(each, RemoteUnacked)]
        local = [
            each for each in held if not isinstance(each, RemoteUnacked) and not self._sessions.owns(each.entry.queue)
        ]
        return local, remote


def _in_memory(body: bytes | Upload) -> bytes | Upload:
    return body.data if isinstance(body, GatheredBody) else body
