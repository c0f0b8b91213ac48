"""One node of a cluster: it joins, keeps its candidacy, becomes master when it is the oldest, and stops being it
before anybody else can be.

Time is this node's own, and only ever counted forwards: a candidacy lasts for the lease's seconds from the instant
*before* its renewal was sent, less a margin. When that is over, the node serves no more, whether or not anybody could
tell it so. Wrong clocks do not matter, and neither does a node that slept: it finds its time over before it answers
anything.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.places import Membership, Node
from mq.cluster.config import ClusterConfig
from mq.cluster.coordinator import Candidacy, CandidacyEnded, Coordinator, CoordinatorError, Member
from mq.cluster.directory import Declared, Directory
from mq.cluster.home import Home
from mq.cluster.joint import Joint
from mq.cluster.kept import KeptStorage
from mq.cluster.link import Dial, NeighborLink, dial
from mq.cluster.sessions import Sessions
from mq.cluster.term import Term
from mq.errors import StorageError
from mq.lifecycle import Observer

logger = logging.getLogger("mq.cluster")

MARGIN: Final = 0.15
"""Of the lease: so much earlier than the lease itself a node takes it for over. For clocks that run at different rates,
and for what is between looking at the clock and sending an answer."""
RENEWALS: Final = 5
"""In the time of a lease."""
RETRY_SECONDS: Final = 0.2
SHORTEST_PAUSE_SECONDS: Final = 0.02
LEAVING_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often members are looked at although no change was told."""


def first_of(error: BaseException) -> BaseException:
    """The error itself, or the first one in its group of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def boot_seconds() -> float:
    """Seconds that go on whatever happens to this process, or to the clock on the wall."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Tenure:
    """A candidacy and how long it lasts for sure, as this node reckons.

    Args:
        candidacy: the candidacy.
        until: when it ends if it is not renewed.
        clock: by which that is.
    """

    def __init__(self, candidacy: Candidacy, until: float, clock: Callable[[], float]) -> None:
        self.candidacy = candidacy
        self.until = until
        self._clock = clock

    @property
    def lasts(self) -> bool:
        """Whether nobody else can be master."""
        return self._clock() < self.until

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - self._clock()


class ClusterNode:
    """A node.

    Args:
        config: of the cluster.
        coordinator: keeps its members.
        local: the broker of this node's own queues.
        broker_config: how the broker of the cluster's queues works.
        observers: of that one.
        clock: seconds that only go on.
        dial: opens connections to neighbours.

    Attributes:
        joint: what this node's doors see.
        directory: what it knows of the cluster's queues.
        sessions: the links that are connected here.
    """

    def __init__(
        self,
        config: ClusterConfig,
        coordinator: Coordinator,
        local: Broker,
        broker_config: BrokerConfig,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = boot_seconds,
        dial: Dial = dial,
    ) -> None:
        self._dial = dial
        self._config = config
        self._coordinator = coordinator
        self._broker_config = broker_config
        self._observers = observers
        self._clock = clock
        self.directory = Directory()
        self.sessions = Sessions(config.node, config.password)
        self.joint = Joint(local, self.directory, self.sessions, self.membership)
        self._members: list[Member] = []
        self._tenure: Tenure | None = None
        self._term: Term | None = None
        self._news = trio.Event()
        self._was_warned = ""

    def membership(self) -> Membership:
        """The cluster, as this node sees it."""
        now = time.time()
        tenure = self._tenure
        oldest = self._members[0].number if self._members else None
        nodes = tuple(
            Node(member.node, round(max(0.0, now - member.since), 3), member.number == oldest)
            for member in self._members
        )
        role = "alone" if tenure is None else "master" if self._term is not None else "mirror"
        directory = self.directory
        return Membership(
            self._config.node, role, nodes, len(directory.queues), directory.place is not None, directory.term
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a node, for ever. Started once it answers links."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.sessions.run)
            for neighbor in self._config.neighbors:
                nursery.start_soon(NeighborLink(self._config, neighbor, self.directory, self._dial).run)
            task_status.started()
            while True:
                try:
                    await self._be_member()
                except (CoordinatorError, CandidacyEnded) as error:
                    self._warn(f"node {self._config.node} is no member just now: {error}")
                await trio.sleep(RETRY_SECONDS)

    # Being a member

    def _warn(self, news: str) -> None:
        """Say it once."""
        if news != self._was_warned:
            self._was_warned = news
            logger.warning(news)

    async def _be_member(self) -> None:
        """Join, and stay until the candidacy has ended.

        Raises:
            CoordinatorError, CandidacyEnded: why.
        """
        asked = self._clock()
        with trio.move_on_after(self._config.lease_seconds) as patience:
            candidacy = await self._coordinator.join(self._config.node)
        if patience.cancelled_caught:
            raise CoordinatorError("whoever keeps the members does not answer")
        tenure = self._tenure = Tenure(candidacy, self._end_of(asked), self._clock)
        self._was_warned = ""
        logger.info("node %s has joined, number %d", self._config.node, candidacy.number)
        try:
            await self._stay(tenure)
        finally:
            self._tenure = None
            with trio.move_on_after(LEAVING_SECONDS, shield=True):
                await candidacy.leave()

    async def _stay(self, tenure: Tenure) -> None:
        why: list[Exception] = []

        def stop(error: Exception) -> None:
            if self._term is not None:
                self._term.end()
            why.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew, tenure, stop)
            nursery.start_soon(self._expire, tenure, stop)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._follow_members, tenure, nursery, stop)
        if why:
            raise why[0]

    async def _renew(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Let the candidacy last."""
        interval = self._config.lease_seconds / RENEWALS
        pause = interval
        while True:
            await trio.sleep(pause)
            pause = interval / RENEWALS
            asked = self._clock()
            try:
                with trio.move_on_after(interval * 2):
                    await tenure.candidacy.renew()
                    tenure.until = max(tenure.until, self._end_of(asked))
                    pause = interval
            except CandidacyEnded as error:
                stop(error)
                return
            except CoordinatorError as error:
                logger.debug("not renewed: %s", error)

    async def _expire(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Stop being master in time. A mirror has nothing to stop: it tries on for as long as it is a member."""
        while self._term is None or tenure.lasts:  # noqa: ASYNC110 - the clock need not be Trio's
            await trio.sleep(max(tenure.left, SHORTEST_PAUSE_SECONDS))
        stop(CandidacyEnded("it could not be renewed in time, so another node may be master soon"))

    def _end_of(self, asked: float) -> float:
        return asked + self._config.lease_seconds * (1 - MARGIN)

    # Being master

    async def _listen(self) -> None:
        """Hear of changes among the members."""
        while True:
            try:
                async with self._coordinator.changes() as changes:
                    self._news.set()
                    async for _ in changes:
                        self._news.set()
            except CoordinatorError as error:
                logger.debug("changes among the members are not heard of: %s", error)
            await trio.sleep(RETRY_SECONDS)

    async def _follow_members(self, tenure: Tenure, nursery: trio.Nursery, stop: Callable[[Exception], None]) -> None:
        """Look who is the oldest, again whenever that may have changed."""
        is_master = False
        while True:
            self._news = trio.Event()
            try:
                self._members = await self._coordinator.members()
            except CoordinatorError as error:
                logger.debug("the members are not known: %s", error)
                await trio.sleep(RETRY_SECONDS)
                continue
            is_oldest = bool(self._members) and self._members[0].number == tenure.candidacy.number
            if is_oldest and not is_master and tenure.lasts:
                is_master = True
                nursery.start_soon(self._be_master, tenure, stop)
            with trio.move_on_after(POLL_SECONDS):
                await self._news.wait()

    async def _be_master(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Serve the highly available queues until this task is cancelled."""
        node, number = self._config.node, tenure.candidacy.number
        logger.info("node %s is the oldest: it becomes master, term %d", node, number)

        def broken(reason: str) -> None:
            stop(CandidacyEnded(f"the cluster's store does not do what a master needs: {reason}"))

        store = KeptStorage(tenure.candidacy.storage(), broken)
        try:
            try:
                await store.open()
                async with open_broker(store, self._broker_config, observers=self._observers) as broker:
                    await self._serve(tenure, broker, store)
            finally:
                with trio.CancelScope(shield=True):
                    await store.aclose()
        except* StorageError as errors:
            broken(str(first_of(errors)))

    async def _serve(self, tenure: Tenure, broker: Broker, store: KeptStorage) -> None:
        term = Term(tenure.candidacy.number, broker, store, lambda: tenure.lasts, self._opened)
        declared: dict[str, Declared] = {status.name: None for status in await broker.queues()}
        declared.update(broker.declarations.queues())
        broker.declarations.on_closed(self._closed)
        if self.joint.declarations.heir is not None:
            broker.declarations.inherit(self.joint.declarations.heir)
        home = Home(term)
        self._term = term
        try:
            self.directory.begin(home, declared)
            self.sessions.begin(term, declared)
            logger.info("node %s serves %d queues, term %d", self._config.node, len(declared), term.number)
            await store.run()
        finally:
            term.end()
            self._term = None
            self.sessions.finish()
            self.directory.end(home)
            logger.info("node %s serves no more, term %d", self._config.node, term.number)

    def _opened(self, queue: str, declared: Mapping[str, Any] | None) -> None:
        self.directory.opened(queue, declared)
        self.sessions.opened(queue, declared)

    def _closed(self, queue: str) -> None:
        self.directory.closed(queue)
        self.sessions.closed(queue)
