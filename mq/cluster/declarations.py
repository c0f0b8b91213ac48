"""Declarations of a node's servers: of its own queues, or of the cluster's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import trio

from mq.amqp.model.arguments import EXPIRES, QUEUE_TYPE, QUORUM
from mq.amqp.model.declared import BINDING, EXCHANGE, Binding, DurableRecord, Exchange, Queue
from mq.amqp.model.names import SERVER_NAMED, decode, encode, is_server_named
from mq.amqp.model.topology import PREDECLARED
from mq.broker import Broker
from mq.broker.api import CLUSTER
from mq.broker.dead_letters import DeadLetterSink
from mq.broker.queues import Declarations, Record
from mq.cluster.link_sessions import LinkSessions
from mq.cluster.name_space import Names
from mq.cluster.remote_broker import RemoteBroker
from mq.cluster.shared_records import SharedRecords
from mq.errors import CallerError, Conflict, StorageError
from mq.message import QueueName

logger = logging.getLogger("mq.cluster")

SHARING_SECONDS: Final = 15.0
"""How long a change of what all nodes share may take until it is in effect with them. That is longer than a lease: a
member that has not heard of it by then is none."""
RETRY_SECONDS: Final = 1.0


class ClusterDeclarations:
    """As :class:`~mq.broker.queues.Declarations`, for both kinds of queues: a name is one of this node's own, or
    one of the cluster's."""

    def __init__(
        self,
        node: str,
        local: Broker,
        remote: RemoteBroker,
        names: Names,
        shared: SharedRecords,
        sessions: LinkSessions,
        default_store: str,
    ) -> None:
        self._node = node
        self._default_store = default_store
        self._shared = shared
        self._local = local.declarations
        self.put, self.records = self._local.put, self._local.records  # records of this node
        self.on_closed, self.on_opened = names.on_closed, names.on_opened
        self.on_shared, self.catch_up = shared.on_shared, shared.catch_up
        self._remote = remote
        self._names = names
        self._sessions = sessions
        self._ready: dict[str, int] = {}
        self._sink: DeadLetterSink | None = None
        self._of_term: Declarations | None = None

    def knows(self, queue: str) -> bool:
        """Whether this node knows such a queue, or links use it."""
        return self._local.knows(queue) or queue in self._names.queues or self._sessions.owns(queue)

    def may_have(self, queue: str) -> bool:
        """Whether a queue may exist that this node does not know: only :meth:`find` can tell."""
        return not self.knows(queue) and not is_server_named(queue)

    async def find(self, queue: str) -> None:
        """Bring :meth:`knows` up to date on a queue.

        Raises:
            NotServed: that could not be found out in time.
        """
        if not self._local.knows(queue) and not self._sessions.owns(queue):
            await self._names.find(queue)

    def ready(self, queue: str) -> int:
        """How many messages the queue had at the last :meth:`look`."""
        return self._ready.get(queue, 0) if self.is_remote(queue) else self._local.ready(queue)

    async def look(self, queue: str) -> None:
        """Bring :meth:`ready` up to date on a queue."""
        if self.is_remote(queue):
            self._ready[queue] = await self._remote.ready(queue)
            for gone in self._ready.keys() - self._names.queues.keys():
                del self._ready[gone]

    def is_remote(self, queue: str) -> bool:
        """Whether a queue is the cluster's, as far as this node knows."""
        return queue in self._names.queues and not self._local.knows(queue)

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The declared queues, each with the protocol's own value."""
        yield from self._local.queues()
        for name, its in self._names.queues.items():
            if its.declared is not None and not self._local.knows(name):
                yield name, its.declared

    def replicates(self, queue: str) -> bool:
        """Return whether a new queue whose client does not place it is to be the cluster's."""
        is_new_here = not self._local.knows(queue) and not self._sessions.owns(queue)
        return self._default_store == CLUSTER and is_new_here and not is_server_named(queue)

    async def admit(self, queue: QueueName, *, is_replicated: bool) -> None:
        """Check whether a queue may be declared. This may take long; a caller does it first, so that :meth:`create` is
        short.

        Raises:
            Conflict: there is one of that name in the other place.
            NotServed: that could not be found out in time; or there is no leader to make it.
        """
        if self._local.knows(queue):
            if is_replicated:
                raise self._only_here(queue)
            return
        await self.find(queue)
        if not is_replicated:
            await self._local.admit(queue, is_replicated=False)
        if not is_replicated and queue in self._names.queues:
            raise Conflict(
                f"queue {queue} already exists as a cluster queue. Declare it with "
                f"{QUEUE_TYPE}={QUORUM}, or choose another name"
            )
        if is_replicated and queue not in self._names.queues:
            await self._remote.wait()

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool:
        """Make a queue, here or in the cluster. One of which nothing is declared lives where this node keeps new ones.

        Raises:
            Conflict: there is one of that name in the other place; or no node could keep what is declared.
            NotServed: whether there is could not be found out; or there was no leader to make it.
        """
        if declared is None and not is_transient and self.replicates(queue):
            is_replicated = True
        if declared is None and is_replicated:
            declared = _quorum_queue(queue)
        if not is_replicated:

            async def make() -> bool:
                return await self._local.create(queue, settings, declared, is_transient=is_transient)

            return await self._names.make(queue, make)
        if self._local.knows(queue):
            raise self._only_here(queue)
        _check_replicated(queue, declared or {})
        made = await self._remote.declare(queue, settings, declared)
        await self._names.find(queue)  # its maker uses it at once
        return made

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None:
        """Call `told` with the queues whose consumers have to begin anew."""
        self._remote.on_failover(lambda: told(list(self._names.queues)))

    def set_sink(self, sink: DeadLetterSink) -> None:
        """Set the sink that gets dead letters, of this node and, while it is master, of the cluster."""
        self._sink = sink
        self._local.set_sink(sink)
        if self._of_term is not None:
            self._of_term.set_sink(sink)

    def begin_term(self, of_term: Declarations) -> None:
        """Have the sink get the dead letters of a term's broker, too: now, or once it is set."""
        self._of_term = of_term
        if self._sink is not None:
            of_term.set_sink(self._sink)

    async def drop(self, kind: str, key: str) -> None:
        """Forget a record of this node's, once the cluster's queues are known. Before that nothing is forgotten: a
        record that seems to belong to no queue may belong to one of these."""
        if self._names.are_known.is_set():
            await self._local.drop(kind, key)

    async def drop_many(self, records: Sequence[tuple[str, str]]) -> None:
        """As :meth:`drop`, of several."""
        if self._names.are_known.is_set():
            await self._local.drop_many(records)

    # What all nodes share

    def shares(self, record: Record) -> bool:
        """Whether a record is one of all nodes: an exchange that does not go by itself, or a binding from one of these
        to another one, or to a queue of the cluster."""
        kind, _, value = record
        if kind == EXCHANGE:
            return Exchange.stored(value).is_shareable
        binding = Binding.stored(value)
        queue = binding.queue
        is_to_shared = self._is_everywhere(binding.vhost, binding.to.name) if queue is None else self.is_remote(queue)
        return is_to_shared and self._is_everywhere(binding.vhost, binding.source)

    def has_shared(self, record: Record) -> bool:
        """Whether all nodes have this very record: not one of the same name that this node kept for itself."""
        kind, key, value = record
        known = self._shared.records.get((kind, key))
        return known is not None and known.value == value

    def _is_everywhere(self, vhost: str, exchange: str) -> bool:
        return exchange in PREDECLARED or (EXCHANGE, encode(vhost, exchange)) in self._shared.records

    async def share(self, puts: Sequence[Record], drops: Sequence[Record]) -> None:
        """Put and drop records that all nodes share; in effect at all members on return.

        Raises:
            Conflict, NoSuchQueue: the leader has it otherwise.
            NotServed: there is none, or a member does not hear of it in time. It may be done later.
        """
        deadline = trio.current_time() + SHARING_SECONDS
        number = await self._remote.share(puts, drops)
        await self._shared.wait_everywhere(number, deadline)

    @property
    def is_caught_up(self) -> bool:
        """Whether all that nodes share is in effect here."""
        return self._shared.is_caught_up

    async def hand_over(self) -> None:
        """Let all nodes have what this one had for itself, before it was in the cluster or they shared any of it."""
        await self._names.are_known.wait()
        for kind in (EXCHANGE, BINDING):
            for key, value in (await self._local.records(kind)).items():
                await self._hand_over(DurableRecord(kind, key, value))

    async def _hand_over(self, record: DurableRecord) -> None:
        while self.shares(record):
            try:
                await self.share([record], [])
                await self._local.drop(record.kind, record.key)
            except CallerError as error:
                logger.warning(
                    "node %s cannot share an exchange or binding with the other nodes (%s), so the exchange or binding "
                    "exists only on this node",
                    self._node,
                    error,
                )
                return
            except StorageError as error:
                logger.debug("temporarily unable to share an exchange or binding with the other nodes: %s", error)
                await trio.sleep(RETRY_SECONDS)
            else:
                return

    def _only_here(self, queue: str) -> Conflict:
        return Conflict(
            f"queue {queue} already exists as a local queue of node {self._node}. Delete it there "
            "first, or choose another name"
        )


def _quorum_queue(name: QueueName) -> Mapping[str, Any]:
    """Return the AMQP declaration of a queue that is made by another protocol."""
    vhost, plain = decode(name) or ("", name)
    return Queue(vhost, plain, durable=True, arguments={QUEUE_TYPE: QUORUM}).record().value


def _check_replicated(queue: str, declared: Mapping[str, Any]) -> None:
    """Check that a queue can be the cluster's.

    A node does not know a queue's consumers at other nodes, so it cannot tell when the last one ends. Names that the
    server chooses are each node's own.

    Raises:
        Conflict: it cannot.
    """
    if declared.get("auto_delete") or EXPIRES in declared.get("arguments", {}):
        raise Conflict(f"queue {queue} is a cluster queue, which cannot be auto-delete or have the argument {EXPIRES}")
    if is_server_named(queue):
        raise Conflict(f"the name of cluster queue {queue} must not begin with {SERVER_NAMED}. Choose another name")
