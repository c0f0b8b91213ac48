"""The broker's API as servers see it, the places where a queue may live, and the membership of a cluster.

A server works with the broker in this process (:class:`~mq.broker.broker.Broker`) or with the one that a node of a
cluster shows to its servers. What the methods mean is said at the former.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from mq.broker.batch_consumers import BatchConsumers
from mq.broker.clock import Clock
from mq.broker.columns import ColumnReader
from mq.broker.commit import Done, Future, StoreProgress
from mq.broker.consuming import Removal
from mq.broker.dead_letters import DeadLetterSink
from mq.broker.exclusion import Exclusion
from mq.broker.peek import READY, Seen, SequenceBrowser
from mq.broker.publishing import Draft, Published, Upload
from mq.broker.queues import LARGEST_SLICE, Inventory, QueueStatus, Record, Redriven, TellShared
from mq.broker.settings import QueueSettings
from mq.broker.unacked import Received, UnackedMessage
from mq.broker.waiters import Precedence
from mq.broker.write_jobs import WriteJobs
from mq.errors import Conflict, MQError
from mq.message import Message, MessageId, QueueName
from mq.storage.interface import Description
from mq.storage.interface import Health as Health

DISK: Final = "disk"
"""In the store of this daemon: there again after a restart."""
MEMORY: Final = "memory"
"""Gone with this process."""
NODE: Final = "node"
"""In the store of one node of a cluster: what the others call DISK when it is a daemon alone."""
CLUSTER: Final = "cluster"
"""Highly available: on all nodes of a cluster."""
PLACES: Final = (DISK, MEMORY, CLUSTER)


class Node(NamedTuple):
    """A node of a cluster.

    Attributes:
        uptime_seconds: for how long it has been a member without interruption.
        is_draining: whether it is about to be stopped, and hands over what it has.
    """

    name: str
    uptime_seconds: float
    is_master: bool
    is_draining: bool = False


class NeighborLink(NamedTuple):
    """What is between a node of a cluster and one of its neighbours.

    Attributes:
        node: its name; empty while it was never met.
        is_inbound_up: whether its own link to this node does. The master serves its clients over that.
        latency_seconds: how long it took for its last answer, or takes for the next where that is longer already; None
            while the link is down.
    """

    address: str
    node: str
    is_up: bool
    is_inbound_up: bool
    latency_seconds: float | None


class Membership(NamedTuple):
    """A cluster, as one of its nodes sees it.

    Attributes:
        node: the name of the one that tells; empty where there is no cluster.
        role: ``master`` or ``mirror``; ``alone`` where it has no part in a cluster just now.
        is_available: whether a node serves them now, as far as this node knows.
        term: rises with every new master; 0 where none is known.
        failovers: how often another term has begun since this node was started, as far as it has heard.
        lease_seconds: so long after its last sign of life a node is a member; 0 where there is no cluster.
        lease_remaining_seconds: how long this node certainly stays a member if it renews no more; None while it is
            none.
        links: to its neighbours, in the order of the cluster's file.
        voters: how many machines keep the members and names, as when the node joined: with one, nothing of the cluster
            survives its loss. 0 while that is not known.
        is_draining: whether this node takes no new clients, as it is about to be stopped.
    """

    node: str
    role: str
    nodes: tuple[Node, ...]
    queues: int
    is_available: bool
    term: int
    failovers: int = 0
    lease_seconds: float = 0
    lease_remaining_seconds: float | None = None
    links: tuple[NeighborLink, ...] = ()
    voters: int = 0
    is_draining: bool = False
    own_queues: int = 0


ALONE: Final = Membership("", "alone", (), 0, False, 0)
"""A daemon that is in no cluster."""


class NodeControl(Protocol):
    """What an operator may have a node of a cluster do.

    Attributes:
        is_draining: whether it is about to be stopped: it takes no new clients.
    """

    is_draining: bool

    async def drain(self) -> None:
        """Hand over mastership, and take no new clients, until :meth:`resume` or the end of the process.

        Raises:
            Conflict: no other node could take over.
            NotServed: the others cannot be told now.
        """

    async def resume(self) -> None:
        """End that.

        Raises:
            NotServed: the others cannot be told now; it takes new clients all the same.
        """

    async def replace(self, node: str, address: str) -> None:
        """Look for a neighbour at another address from now on, also after a start.

        Raises:
            Conflict: it is a member, or no neighbour of that name is known.
            InvalidSetting: that is no such address.
        """

    def users(self) -> Mapping[str, Mapping[str, Any]]:
        """The tables of the cluster's users, as a users file has them, by name.

        Raises:
            Conflict: this node takes no users of the cluster.
        """

    async def put_user(self, name: str, table: Mapping[str, Any]) -> None:
        """Make a user of the cluster, or replace one. In effect at all members on return.

        Raises:
            Conflict: this node takes none, or has one of that name in its own file.
            InvalidSetting: the name or the table is wrong.
            NotServed: no node leads, or one is not heard of in time. It may be done later.
        """

    async def drop_user(self, name: str) -> None:
        """Remove a user of the cluster, if there is one. At no member does that user get anything after that.

        Raises:
            Conflict, NotServed: as for :meth:`put_user`.
        """


class NoNode:
    """The :class:`NodeControl` of a daemon that is in no cluster."""

    is_draining = False

    async def drain(self) -> None:
        """Refuse: a broker alone has no other node to hand over to."""
        raise Conflict(_NO_NODE)

    async def resume(self) -> None:
        """It was never drained."""
        raise Conflict(_NO_NODE)

    async def replace(self, node: str, address: str) -> None:
        """It has no neighbours."""
        raise Conflict(_NO_NODE)

    def users(self) -> Mapping[str, Mapping[str, Any]]:
        """There are those of its file alone."""
        raise Conflict(_NO_NODE)

    async def put_user(self, name: str, table: Mapping[str, Any]) -> None:
        """There are those of its file alone."""
        raise Conflict(_NO_NODE)

    async def drop_user(self, name: str) -> None:
        """There are those of its file alone."""
        raise Conflict(_NO_NODE)


_NO_NODE: Final = "this daemon is not part of a cluster. Start mq with --cluster (see docs/cluster.md)"


class DeclarationsAPI(Protocol):
    """As :class:`~mq.broker.queues.Declarations`."""

    def knows(self, queue: str) -> bool: ...

    def may_have(self, queue: str) -> bool: ...

    async def find(self, queue: str) -> None: ...

    def ready(self, queue: str) -> int: ...

    async def look(self, queue: str) -> None: ...

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]: ...

    async def admit(self, queue: QueueName, *, is_replicated: bool) -> None: ...

    def replicates(self, queue: str) -> bool: ...

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool: ...

    def on_closed(self, told: Callable[[str], None]) -> None: ...

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None: ...

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None: ...

    def set_sink(self, sink: DeadLetterSink) -> None: ...

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None: ...

    async def drop(self, kind: str, key: str) -> None: ...

    async def drop_many(self, records: Sequence[tuple[str, str]]) -> None: ...

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]: ...

    def shares(self, record: Record) -> bool: ...

    def has_shared(self, record: Record) -> bool: ...

    async def share(self, puts: Sequence[Record], drops: Sequence[Record]) -> None: ...

    def on_shared(self, told: TellShared) -> None: ...

    @property
    def is_caught_up(self) -> bool: ...

    async def catch_up(self) -> None: ...


class BrokerAPI(Protocol):
    """As :class:`~mq.broker.broker.Broker`."""

    @property
    def clock(self) -> Clock: ...

    @property
    def clocks(self) -> Sequence[Clock]: ...

    @property
    def declarations(self) -> DeclarationsAPI: ...

    @property
    def claims(self) -> BatchConsumers: ...

    @property
    def writes(self) -> WriteJobs: ...

    @property
    def browsing(self) -> SequenceBrowser: ...

    @property
    def columns(self) -> ColumnReader | None: ...

    @property
    def description(self) -> Description: ...

    @property
    def health(self) -> Health | None: ...

    @property
    def ready(self) -> bool: ...

    @property
    def is_shared(self) -> bool: ...

    @property
    def progress(self) -> StoreProgress: ...

    @property
    def membership(self) -> Membership: ...

    @property
    def node_control(self) -> NodeControl: ...

    async def has_queue(self, queue: str) -> bool: ...

    async def create_queue(self, queue: str, place: str | None = None) -> bool: ...

    async def delete_queue(self, queue: str) -> None: ...

    async def change_settings(self, queue: str, patch: Mapping[str, Any]) -> QueueSettings: ...

    async def settings(self, queue: str) -> QueueSettings: ...

    async def status(self, queue: str) -> QueueStatus: ...

    async def queues(self) -> list[QueueStatus]: ...

    def inventory(self) -> Iterator[Inventory]: ...

    async def purge(self, queue: str) -> int: ...

    async def redrive(
        self, queue: str, to: str | None = None, most: int = LARGEST_SLICE, ids: Sequence[str] | None = None
    ) -> Redriven: ...

    def longest_body(self, queue: str, key: str | None = None) -> int: ...

    async def stage(self, chunks: AsyncIterable[bytes], queue: str | None = None) -> Upload: ...

    async def publish_many(
        self, queue: str, drafts: Sequence[Draft], has_place: Callable[[], object] | None = None
    ) -> list[Published | MQError]: ...

    def settings_now(self, queue: str) -> QueueSettings | None: ...

    def publishes_now(self, queue: str) -> bool: ...

    def publish_now(
        self, queue: str, drafts: Sequence[Draft], done: Callable[[list[Published | MQError]], None]
    ) -> bool: ...

    async def contains(self, queue: str, body: bytes | Upload) -> MessageId | None: ...

    async def fetch_many(
        self, queue: str, most: int, *, wait: float = 0, visibility: float | None = None
    ) -> list[Message]: ...

    def fetch_now(
        self, queue: str, most: int, *, visibility: float | None = None
    ) -> Future[list[Message]] | list[Message] | None: ...

    async def give_back(self, messages: Sequence[Message]) -> None: ...

    async def take(self, queue: str, *, wait: float = 0) -> Message | None: ...

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None: ...

    def remove_now(self, queue: str, id: str, done: Done, *, receipt: str | None = None) -> bool: ...

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]: ...

    async def requeue(
        self, queue: str, id: str, *, receipt: str | None = None, delay: float | None = 0.0, reason: str = ""
    ) -> None: ...

    async def reschedule(
        self, queue: str, id: str, *, receipt: str | None = None, delay: float = 0.0, at_ms: int | None = None
    ) -> None: ...

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None: ...

    async def change_leases(self, queue: str, changes: Sequence[tuple[str, str, float]]) -> list[MQError | None]: ...

    async def hold(
        self,
        queue: str,
        most: int = 1,
        *,
        wait: float = 0,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage]: ...

    def hold_now(
        self,
        queue: str,
        most: int = 1,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage] | None: ...

    def hold_when_ready(
        self,
        queue: str,
        most: int,
        done: Received,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> Callable[[], None] | None: ...

    async def exclude(self, queue: str, *, in_turn: bool = False) -> Exclusion: ...

    async def acknowledge(self, held: Sequence[UnackedMessage], *, durable: bool = False) -> None: ...

    def acknowledge_now(self, held: Sequence[UnackedMessage], done: Done) -> bool: ...

    async def put_back(
        self,
        held: Sequence[UnackedMessage],
        *,
        redelivered: bool = True,
        to_back: bool = False,
        failed: bool = False,
        most: int | None = None,
    ) -> None: ...

    async def reject(self, held: Sequence[UnackedMessage]) -> None: ...

    async def show(self, queue: str, id: str) -> Seen: ...

    async def peek(
        self, queue: str, *, state: str = READY, after: str | None = None, most: int = 100
    ) -> list[Seen]: ...
