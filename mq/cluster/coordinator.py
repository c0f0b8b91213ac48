"""The coordinator: the interface to what keeps the members and the names of a cluster.

A node *joins* with a candidacy, which lasts for as long as it is renewed. The member with the oldest candidacy is
master. A candidacy that has ended is never resumed: a node that joins anew is the youngest.

There is one name space. A node *reserves* the name of each queue of its own. The store of a candidacy makes no queue of
a reserved name, and the name of a queue in that store cannot be reserved.

A package registers its coordinator by entry point, as it does with stores::

    [project.entry-points."mq.coordinators"]
    etcd = "mq_etcd.membership:make_coordinator"
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from importlib.metadata import entry_points
from typing import Any, Final, NamedTuple, Protocol

from mq.errors import InvalidSetting, MQError
from mq.message import shorten
from mq.storage.interface import ClusterStorage

GROUP: Final = "mq.coordinators"
"""The group of entry points."""


class CoordinatorError(MQError):
    """No answer, or none that is of use. It may pass."""


class CandidacyEnded(MQError):
    """The candidacy is no more: join anew."""


class Member(NamedTuple):
    """A member.

    Attributes:
        number: of its candidacy; the lowest is the oldest. No two candidacies have the same, and a later one has a
            higher one.
        since: when the node joined, in seconds since 1970 by its own clock: to be shown, and for nothing else.
        seen: the last change of shared records that is in effect there.
        is_draining: whether it is about to be stopped, and leads no more.
    """

    node: str
    number: int
    since: float
    seen: int = 0
    is_draining: bool = False


class FoundQueue(NamedTuple):
    """A queue that the cluster has.

    Attributes:
        number: of this life of the queue. One that is deleted and made again has a higher one.
        record: what the store keeps of it.
    """

    number: int
    record: Mapping[str, Any]


class Snapshot(NamedTuple):
    """Queues that the cluster has, at one instant.

    Attributes:
        number: of that instant, which rises with every change. A queue's life has the number of the instant it began.
    """

    number: int
    queues: Mapping[str, FoundQueue]


class NameChange(NamedTuple):
    """A queue of the cluster has changed, or is no more.

    Attributes:
        found: what it is now; None when it was deleted.
    """

    number: int
    queue: str
    found: FoundQueue | None


class SharedRecord(NamedTuple):
    """A record that all nodes share (:mod:`mq.cluster.record_keeper`), or that it is no more.

    Attributes:
        value: JSON; None when it was dropped.
    """

    kind: str
    key: str
    value: Mapping[str, Any] | None


class Candidacy(Protocol):
    """One uninterrupted membership of this node."""

    @property
    def number(self) -> int:
        """As in :class:`Member`."""

    async def renew(self) -> None:
        """Let it last for the lease's time from now on.

        Raises:
            CandidacyEnded: it has ended.
            CoordinatorError: no answer; whether it lasts longer is not known.
        """

    async def note(self, seen: int, *, is_draining: bool) -> None:
        """Tell the others, as :attr:`Member.seen` and :attr:`Member.is_draining`.

        Raises:
            CandidacyEnded: it has ended.
            CoordinatorError: no answer.
        """

    async def leave(self) -> None:
        """End it at once, as far as that can be done."""

    def storage(self, messages: str) -> ClusterStorage:
        """The store of the cluster queues, not open yet. It changes nothing once this candidacy has ended, and
        raises Conflict for a new queue with a name that a node has reserved.

        Args:
            messages: the address of a store that has the messages; empty where the coordinator's own has them.

        Raises:
            StorageUnusable: that is no address of a store.
        """


class NameRegistry(Protocol):
    """Keeps the names of the cluster's queues, and of the nodes' own. Raises CoordinatorError where there is no
    answer."""

    async def find(self, queues: Sequence[str]) -> Snapshot:
        """Which of these queues the cluster has, at an instant after the call."""

    def follow(self) -> AbstractAsyncContextManager[tuple[Snapshot, AsyncIterator[NameChange]]]:
        """All queues of the cluster, and each change of them after that, in order. The iterator may raise
        CoordinatorError, and may end: then enter anew."""

    async def shared(self, kind: str, key: str) -> Mapping[str, Any] | None:
        """The value of a shared record, at an instant after the call; None where there is none."""

    def follow_shared(
        self,
    ) -> AbstractAsyncContextManager[tuple[Sequence[SharedRecord], AsyncIterator[SharedRecord]]]:
        """All shared records, and each change of them after that, in order. As :meth:`follow` otherwise."""

    async def reserve(self, node: str, queue: str) -> bool:
        """Reserve a name for a node; one may be reserved for several. False: the cluster has a queue of that name."""

    async def release(self, node: str, queue: str) -> None:
        """End a node's reservation of a name."""

    async def reserved(self, node: str) -> Set[str]:
        """The names that are reserved for a node."""


class Coordinator(Protocol):
    """Keeps candidacies. Raises CoordinatorError where there is no answer."""

    async def join(self, node: str) -> Candidacy:
        """Become the youngest member. The lease counts from the call, at the earliest."""

    async def members(self) -> list[Member]:
        """All of them, the oldest first."""

    async def voters(self) -> int:
        """How many machines keep all this, of which a majority must live; 0 where that is not told."""

    async def lead_elsewhere(self) -> bool:
        """Have another machine than this one lead those that keep all this, where this one does: what leads them and
        the node that leads are not lost together then. True where that was necessary, and done."""

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[None]]:
        """Tells, after the block is entered, whenever members may have changed. The iterator may raise
        CoordinatorError, and may end: then enter anew."""

    @property
    def names(self) -> NameRegistry:
        """Of the queues."""


Factory = Callable[[str, float], AbstractAsyncContextManager[Coordinator]]
"""What an entry point names: (rest of the address, seconds of the lease) -> a coordinator for the length of a block."""


def find_coordinator(address: str, lease_seconds: float) -> AbstractAsyncContextManager[Coordinator]:
    """The coordinator at an address, such as ``etcd:http://10.9.0.1:2379``.

    Raises:
        InvalidSetting: there is none of that name, or it does not take that address.
    """
    name, _, rest = address.partition(":")
    known = entry_points(group=GROUP)
    found = [each for each in known if each.name == name]
    if len(found) != 1:
        names = ", ".join(sorted(known.names)) or "none: install mq-etcd"
        raise InvalidSetting(f"unknown cluster coordinator type: {shorten(address)}. Known types: {names}")
    factory: Factory = found[0].load()
    return factory(rest, lease_seconds)
