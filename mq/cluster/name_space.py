"""The one name space of a cluster, as one of its nodes knows it.

**An unknown name may still exist.** A node keeps what it knows of the cluster's queues in its own root and follows the
coordinator, so its knowledge may be old. For a queue that it knows, it asks the master. That it does not know a queue
means nothing: before code concludes anything from it, it asks the coordinator (:meth:`Names.find`), and without an
answer it concludes nothing.

**A name is either the cluster's or the nodes' own.** A node reserves the name of each of its own queues before it makes
the queue, and the cluster makes no queue of a reserved name. Queues that came into a root in another way are compared
before the servers start.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import trio

from mq.amqp.model.declared import ELSEWHERE
from mq.amqp.model.names import is_server_named
from mq.broker import Broker
from mq.cluster.config import ClusterConfig
from mq.cluster.coordinator import CoordinatorError, FoundQueue, NameRegistry
from mq.cluster.directory import PATIENCE_SECONDS
from mq.errors import Conflict, NotServed, StorageError, StorageUnusable

logger = logging.getLogger("mq.cluster")

ROOT: Final = "cluster"
"""The kind of record that names the cluster of this root."""

RETRY_SECONDS: Final = 0.2
RELEASED_SECONDS: Final = 1.0
"""How long the deletion of a queue waits until others may have its name. It is done later where that takes longer."""
COMPARE_SECONDS: Final = 60.0
"""How often a node compares its reserved names with its queues."""
MOST_SHOWN: Final = 5


class ClusterQueue(NamedTuple):
    """A queue of the cluster.

    Attributes:
        number: of its life, as in :class:`~mq.cluster.coordinator.FoundQueue`.
        declared: what was declared of it beyond its settings, by its maker.
    """

    number: int
    declared: Mapping[str, Any] | None


class _Round:
    """Names that one question to the coordinator is about."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.done = trio.Event()
        self.is_known = False
        self.why = ""


class Names:
    """The names of a cluster's queues.

    Args:
        local: has this node's own queues, and a root for what is known.

    Attributes:
        are_known: set once the coordinator has told all of them to this process, and they were compared.
        was_member: whether this root has been compared with this cluster before.
    """

    def __init__(self, config: ClusterConfig, registry: NameRegistry, local: Broker) -> None:
        self.queues: dict[str, ClusterQueue] = {}
        self.are_known = trio.Event()
        self.was_member = False
        self._node = config.node
        self._cluster = config.coordinator
        self._registry = registry
        self._inventory = local.inventory
        self._local = local.declarations
        self._making = trio.Lock()
        self._learning = trio.Lock()
        self._next = _Round()
        self._wanted = trio.Event()
        self._leaving: dict[str, trio.Event] = {}
        self._is_silent = False
        self._has_left = trio.Event()
        self._told_opened: Callable[[str, Mapping[str, Any]], None] | None = None
        self._told_closed: Callable[[str], None] | None = None
        self._untold: list[tuple[str, Mapping[str, Any] | None]] = []
        self._was_warned = ""
        self._local.on_closed(self.let_go)

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Call `told` with the cluster's queues of which something was declared."""
        self._told_opened = told
        self._tell()

    def on_closed(self, told: Callable[[str], None]) -> None:
        """Call `told` with each queue that is no more, this node's own or the cluster's."""

        def closed(queue: str) -> None:
            self.let_go(queue)
            told(queue)

        self._local.on_closed(closed)
        self._told_closed = told
        self._tell()

    def _tell(self, *news: tuple[str, Mapping[str, Any] | None]) -> None:
        """Report queues, each with its declared value, or with None once it is gone. Kept until there is a listener."""
        # Nothing is left out: what belonged to a queue must not pass to the next one of its name.
        self._untold += news
        if self._told_opened is None or self._told_closed is None:
            return
        untold, self._untold = self._untold, []
        for queue, declared in untold:
            if declared is None:
                self._told_closed(queue)
            else:
                self._told_opened(queue, declared)

    # What the cluster has

    async def find(self, queue: str) -> bool:
        """Whether the cluster has a queue, at an instant after the call.

        Raises:
            NotServed: that could not be found out in time.
        """
        if is_server_named(queue):
            return False  # the cluster makes none of these names
        deadline = trio.current_time() + PATIENCE_SECONDS
        why = "the coordinator is not responding"
        while True:
            round_ = self._next
            round_.queues.add(queue)
            self._wanted.set()
            with trio.move_on_at(deadline):
                await round_.done.wait()
            if round_.is_known:
                return queue in self.queues
            why = round_.why or why
            if trio.current_time() >= deadline:
                raise NotServed(f"temporarily unable to check whether the cluster has a queue named {queue}: {why}")

    # What this node has for itself

    async def make(self, queue: str, make: Callable[[], Awaitable[bool]]) -> bool:
        """Make a queue of this node's own, once its name is reserved.

        Raises:
            Conflict: the cluster has a queue of that name.
            NotServed: that could not be found out in time.
        """
        if is_server_named(queue):
            return await make()
        if self._local.knows(queue):
            return False
        with trio.move_on_after(PATIENCE_SECONDS):
            async with self._making:
                try:
                    await self._reserve(queue)
                    with trio.CancelScope(shield=True):
                        return await make()
                finally:
                    if not self._local.knows(queue):
                        self.let_go(queue)
        raise NotServed(
            f"queue {queue} cannot be created, because the coordinator is not responding and the cluster may already "
            "have a queue with that name. Try again"
        )

    def let_go(self, queue: str) -> None:
        """Note that this node has no queue of that name any more."""
        if not is_server_named(queue):
            self._leaving.setdefault(queue, trio.Event())
            self._has_left.set()

    async def released(self, queue: str) -> None:
        """Wait until others may have a name that was let go, or for a moment while there is no answer."""
        gone = self._leaving.get(queue)
        if gone is not None and not self._is_silent:
            with trio.move_on_after(RELEASED_SECONDS):
                await gone.wait()

    async def _reserve(self, queue: str) -> None:
        while True:
            try:
                if await self._registry.reserve(self._node, queue):
                    return
            except CoordinatorError as error:
                logger.debug("cannot reserve the queue name %s: %s", queue, error)
                await trio.sleep(RETRY_SECONDS)
                continue
            raise Conflict(f"queue {queue} already exists as a cluster queue")

    # Keeping up

    async def load(self) -> None:
        """Load the names that this node knew when it ended."""
        root = (await self._local.records(ROOT)).get(self._node, {})
        self.was_member = root.get("coordinator") == self._cluster
        for queue, record in (await self._local.records(ELSEWHERE)).items():
            self.queues[queue] = ClusterQueue(record["number"], record["declared"])

    async def run(self) -> None:
        """Follow the coordinator, and answer :meth:`find`, for ever.

        Raises:
            StorageUnusable: this node and the cluster have a queue of the same name.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._find)
            nursery.start_soon(self._release)
            nursery.start_soon(self._compare_again)

    async def _follow(self) -> None:
        while True:
            try:
                async with self._registry.follow() as (names, changes):
                    known = {*self.queues, *names.queues}
                    await self._learn(names.number, {queue: names.queues.get(queue) for queue in known})
                    await self._compare()
                    await self._join()
                    async for change in changes:
                        await self._learn(change.number, {change.queue: change.found})
            except (CoordinatorError, StorageError) as error:
                if isinstance(error, StorageUnusable):
                    raise
                self._warn(f"cannot fetch the cluster's queue names: {error}")
            await trio.sleep(RETRY_SECONDS)

    async def _join(self) -> None:
        """Record in the root that it was compared with this cluster."""
        if not self.was_member:
            await self._local.put(ROOT, self._node, {"coordinator": self._cluster})
            self.was_member = True
        self._was_warned = ""
        self.are_known.set()

    async def _find(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            round_, self._next = self._next, _Round()
            try:
                names = await self._registry.find(sorted(round_.queues))
                await self._learn(names.number, {name: names.queues.get(name) for name in round_.queues})
                round_.is_known = True
            except (CoordinatorError, StorageError) as error:
                round_.why = str(error)
                self._warn(f"cannot look up queue names in the cluster: {error}")
                await trio.sleep(RETRY_SECONDS)
            round_.done.set()

    async def _learn(self, number: int, found: Mapping[str, FoundQueue | None]) -> None:
        """Take over the state of queues at an instant, unless a later one is known."""
        async with self._learning:
            for queue, its in found.items():
                known = self.queues.get(queue)
                if known is not None and known.number < (number if its is None else its.number):
                    del self.queues[queue]
                    if not self._local.knows(queue):
                        self._tell((queue, None))
                    if its is None:
                        await self._local.drop(ELSEWHERE, queue)
                if self._local.knows(queue):
                    continue  # its name is reserved, so what was heard of the cluster's is over
                if its is not None and (known is None or known.number < its.number):
                    declared = its.record.get("declared")
                    # before a client can bind to it: a start without the coordinator takes a binding's ends from here
                    await self._local.put(ELSEWHERE, queue, {"number": its.number, "declared": declared})
                    self.queues[queue] = ClusterQueue(its.number, declared)
                    if declared is not None:
                        self._tell((queue, declared))

    async def _release(self) -> None:
        while True:
            await self._has_left.wait()
            self._has_left = trio.Event()
            for queue in list(self._leaving):
                try:
                    async with self._making:
                        if not self._local.knows(queue):  # or else it was made again meanwhile
                            await self._registry.release(self._node, queue)
                        self._leaving.pop(queue).set()
                        self._is_silent = False
                except CoordinatorError as error:
                    self._is_silent = True
                    logger.debug("temporarily unable to release the queue name %s: %s", queue, error)
                    self._has_left.set()
                    await trio.sleep(RETRY_SECONDS)

    async def _compare_again(self) -> None:
        await self.are_known.wait()
        while True:
            await trio.sleep(COMPARE_SECONDS)
            try:
                await self._compare()
            except CoordinatorError as error:
                logger.debug("cannot check the reserved queue names against this node's queues: %s", error)

    async def _compare(self) -> None:
        """Make the names reserved for this node those of its queues.

        Raises:
            StorageUnusable: the node and the cluster have a queue of the same name.
        """
        reserved = await self._registry.reserved(self._node)
        here = {each.queue for each in self._inventory() if not is_server_named(each.queue)}
        for queue in reserved - here:
            self.let_go(queue)
        twice = []
        for queue in sorted(here - reserved):
            async with self._making:
                is_here = self._local.knows(queue)
                if is_here and not await self._registry.reserve(self._node, queue):
                    twice.append(queue)
        if twice:
            shown = ", ".join(twice[:MOST_SHOWN]) + (", ..." if len(twice) > MOST_SHOWN else "")
            raise StorageUnusable(
                f"node {self._node} has local queues with the same names as cluster queues: {shown}. Start mq "
                "without --cluster and --neighbors, move the messages out of these queues and delete the queues. "
                "Then start the node again"
            )

    def _warn(self, news: str) -> None:
        if news != self._was_warned:
            self._was_warned = news
            logger.warning(news)
