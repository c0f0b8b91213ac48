"""One node of a cluster: it joins, keeps its candidacy, becomes master when it is the oldest, and stops being master
before another node can be.

A node counts its own time, and only forwards: a candidacy lasts for the lease's seconds from the instant *before* its
renewal was sent, less a margin. When that is over the node serves no more, even if no other node can reach it. Wrong
clocks do not matter. A node that slept does no harm either: it finds its time over before it answers anything.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, Final, cast

import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.broker.api import BrokerAPI, Membership, NeighborLink, Node
from mq.broker.clock import Clock
from mq.broker.kernel_clock import boot_seconds
from mq.cluster.cluster_broker import ClusterBroker
from mq.cluster.config import ClusterConfig, parse_neighbor
from mq.cluster.coordinator import Candidacy, CandidacyEnded, Coordinator, CoordinatorError, Member
from mq.cluster.directory import Directory
from mq.cluster.grace_storage import GraceStorage
from mq.cluster.leadership import Guest, Leadership, LocalLeader, NoGuest
from mq.cluster.link_sessions import LinkSessions
from mq.cluster.name_space import Names
from mq.cluster.peer_link import Dial, MovedNeighbors, PeerLink, dial
from mq.cluster.record_keeper import USER, RecordKeeper
from mq.cluster.shared_records import SharedRecords, TellUsers
from mq.errors import Conflict, NotServed, StorageError, first_of
from mq.lifecycle import Meter, Observer
from mq.quantities import show_count

logger = logging.getLogger("mq.cluster")

MARGIN: Final = 0.15
"""The part of the lease by which a node takes it for over early: for clocks that run at different rates, and for the
time between reading the clock and sending an answer."""
RENEWALS: Final = 5
"""In the time of a lease."""
RETRY_SECONDS: Final = 0.2
HEARING_SECONDS: Final = 10.0
"""How long a node waits to hear which queues the cluster has, before it opens its servers all the same."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
LEAVING_SECONDS: Final = 1.0
POLL_SECONDS: Final = 1.0
"""How often a node reads the members even without news of a change."""
SILENT_LEASES: Final = 3
"""How many leases a master stays one while its neighbours are members and none reaches it: longer than a link takes to
come back."""
CUT_OFF_LEASES: Final = 2
"""How many leases a master stays one without a sign of life of the store of messages. With the lease that ends after
that the next one leads within three."""
ALONE_SECONDS: Final = 10.0
"""How long a node has no other member before it logs that: nodes that start together have found each other by then."""
APART_SECONDS: Final = 10.0
"""Between two looks of a master at which machine leads the coordinator. Doubled with each change."""

CheckUser = Callable[[str, Mapping[str, Any]], None]
"""Raises InvalidSetting or Conflict for the name and the table of what could not be a user."""


def _any_user(name: str, table: Mapping[str, Any]) -> None:
    pass


class Tenure:
    """A candidacy, and how long it certainly lasts by this node's clock.

    Args:
        until: when it ends if it is not renewed.
        clock: seconds that only go on.
    """

    def __init__(self, candidacy: Candidacy, until: float, clock: Callable[[], float]) -> None:
        self.candidacy = candidacy
        self.until = until
        self._clock = clock

    @property
    def lasts(self) -> bool:
        """Whether no other node can be master."""
        return self._clock() < self.until

    @property
    def left(self) -> float:
        """Seconds for which it certainly lasts."""
        return self.until - self._clock()


class ClusterNode:
    """This node of a cluster.

    Args:
        clock: seconds that only go on.

    Attributes:
        guest: makes what is to live with the leader while this node is it; set before :meth:`run`.
        make_clock: makes the clock of a broker of the cluster's queues; set before :meth:`run`, if at all.
    """

    def __init__(
        self,
        config: ClusterConfig,
        coordinator: Coordinator,
        local: Broker,
        broker_config: BrokerConfig,
        observers: Sequence[Observer | Meter] = (),
        clock: Callable[[], float] = boot_seconds,
        dial: Dial = dial,
    ) -> None:
        self._config = config
        self._coordinator = coordinator
        self._local = local
        self._broker_config = broker_config
        self._observers = observers
        self._clock = clock
        self.make_clock: Callable[[], Clock] = Clock
        self.names = Names(config, coordinator.names, local)
        self.directory = Directory()
        self.sessions = LinkSessions(config.node, config.password)
        self._links = [PeerLink(config, neighbor, self.directory, dial) for neighbor in config.neighbors]
        self._shared = SharedRecords(coordinator.names, local.declarations, self.names.find)
        broker = ClusterBroker(config, local, self.names, self._shared, self.directory, self.sessions, self.membership)
        self._declarations = broker.declarations
        broker.led = lambda: None if self._leadership is None else self._leadership.broker
        self.ask_guest = broker.ask_guest
        self.guest: Callable[[Broker], AbstractAsyncContextManager[Guest]] = lambda _: nullcontext(NoGuest())
        self.broker = cast(BrokerAPI, broker)  # its verbs are made from a table (tests/cluster/test_verbs.py)
        self._silence = Silence(SILENT_LEASES * config.lease_seconds, clock)
        self._members: list[Member] = []
        self._tenure: Tenure | None = None
        self._leadership: Leadership | None = None
        self._news = trio.Event()
        self._was_warned = ""
        self._voters = 0
        self._noting = trio.Lock()
        self._check_user: CheckUser = _any_user
        self._moved = MovedNeighbors(local.declarations)
        self.is_draining = False
        broker.node_control = self

    def membership(self) -> Membership:
        """The cluster, as this node sees it."""
        now = time.time()
        tenure = self._tenure
        oldest = self._members[0].number if self._members else None
        nodes = tuple(
            Node(member.node, round(max(0.0, now - member.since), 3), member.number == oldest, member.is_draining)
            for member in self._members
        )
        leads = self._leadership is not None and not self._leadership.is_over
        role = "alone" if tenure is None else "master" if leads else "mirror"
        return Membership(
            self._config.node,
            role,
            nodes,
            len(self.names.queues),
            self.directory.leader is not None,
            self.directory.term,
            self.directory.failovers,
            self._config.lease_seconds,
            None if tenure is None else round(max(0.0, tenure.left), 3),
            tuple(map(self._linked, self._links)),
            self._voters,
            self.is_draining,
            sum(1 for _ in self._local.inventory()),
        )

    # What an operator may have it do (NodeControl)

    async def drain(self) -> None:
        """Hand over mastership, and take no new clients."""
        if not any(self._others_to_lead()):
            raise Conflict(
                f"no other node can take over from node {self._config.node}, because the others are "
                "not members or are draining. Run mq cluster status"
            )
        await self._set_draining(to=True)

    async def resume(self) -> None:
        """Take clients, and lead when it is the oldest."""
        await self._set_draining(to=False)

    async def replace(self, node: str, address: str) -> None:
        """Look for a neighbour at another address, from now on."""
        neighbor = parse_neighbor(address)
        if any(member.node == node for member in self._members):
            raise Conflict(f"node {node} is still a member. Drain it (mq cluster drain) and stop it first")
        link = self._link_of(node)
        if any(each.neighbor == neighbor for each in self._links if each is not link):
            raise Conflict(f"address {neighbor} is already used by another neighbor of node {self._config.node}")
        await self._moved.put(link.filed, neighbor)
        link.move(neighbor)
        logger.info("connecting to node %s at %s", node, neighbor)

    def on_users(self, told: TellUsers, check: CheckUser) -> None:
        """Take the cluster's users. Before :meth:`run`.

        Args:
            told: called with the tables of all of them, whenever they change.
            check: raises InvalidSetting or Conflict for what could not be one.
        """
        self._shared.on_users(told)
        self._check_user = check

    def users(self) -> Mapping[str, Mapping[str, Any]]:
        """The tables of the cluster's users, by name."""
        self._need_users()
        return dict(self._shared.users)

    async def put_user(self, name: str, table: Mapping[str, Any]) -> None:
        """Make a user of the cluster, or replace one."""
        self._need_users()
        self._check_user(name, table)
        await self._declarations.share([(USER, name, dict(table))], [])

    async def drop_user(self, name: str) -> None:
        """Remove a user of the cluster."""
        self._need_users()
        await self._declarations.share([], [(USER, name, {})])

    def _need_users(self) -> None:
        if not self._shared.has_users:
            raise Conflict(
                f"node {self._config.node} has no users file and cannot store cluster users. Start the node "
                "with --users"
            )

    async def _set_draining(self, *, to: bool) -> None:
        self.is_draining = to
        self._news.set()
        if self._tenure is not None:
            try:
                await self._note(self._tenure)
            except (CandidacyEnded, CoordinatorError) as error:  # it is noted with the next candidacy
                raise NotServed(
                    f"the other nodes have not yet been notified of this node's new state: {error}"
                ) from error
        logger.info("node %s is draining" if to else "node %s is accepting clients again", self._config.node)

    def _others_to_lead(self) -> Iterator[Member]:
        """The other members that are not about to be stopped."""
        own = self._config.node
        return (member for member in self._members if member.node != own and not member.is_draining)

    def _link_of(self, node: str) -> PeerLink:
        """The link to a neighbour; to one that was never heard of it is the one whose node is not known.

        Raises:
            Conflict: there is none, or either might be meant.
        """
        named = [link for link in self._links if link.node == node]
        unnamed = [link for link in self._links if not link.node]
        if named or (len(unnamed) == 1 and node != self._config.node):
            return (named or unnamed)[0]
        known = " and ".join(link.node or f"an unidentified node at {link.neighbor}" for link in self._links)
        raise Conflict(f"node {self._config.node} has no neighbor named {node}. Known neighbors: {known}")

    def _linked(self, link: PeerLink) -> NeighborLink:
        lag = link.latency_seconds
        is_inbound_up = link.node in self.sessions.nodes
        return NeighborLink(
            str(link.neighbor), link.node, link.is_up, is_inbound_up, None if lag is None else round(lag, 4)
        )

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a node, for ever. Started once it answers links and has loaded what it knew when it ended.

        Raises:
            StorageError: its own root cannot be read.
            StorageUnusable: this node and the cluster have a queue of the same name.
        """
        await self.names.load()
        await self._shared.load()
        await self._move_links()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.names.run)
            nursery.start_soon(self._shared.run)
            nursery.start_soon(self._declarations.hand_over)
            await nursery.start(self.sessions.run)
            for link in self._links:
                nursery.start_soon(link.run)
            task_status.started()
            while True:
                try:
                    await self._be_member()
                except (CoordinatorError, CandidacyEnded) as error:
                    self._warn(f"node {self._config.node} is not a member of the cluster at the moment: {error}")
                await trio.sleep(RETRY_SECONDS)

    async def _move_links(self) -> None:
        moved = await self._moved.load([link.filed for link in self._links])
        for link in self._links:
            link.move(moved.get(link.filed, link.filed))

    async def hear(self) -> None:
        """Wait, before the servers start, until the cluster's queues are known.

        A node that knew its cluster before waits for HEARING_SECONDS at most, then asks for unknown names one by one.
        """
        with trio.move_on_after(HEARING_SECONDS):
            await self.names.are_known.wait()
        if self.names.are_known.is_set():
            return
        if self.names.was_member:
            logger.warning(
                "accepting clients while disconnected from the cluster: the cluster's coordinator is not responding"
            )
            return
        logger.warning(
            "the cluster is not responding, and this root has never been part of a cluster: waiting for the "
            "cluster before accepting clients"
        )
        await self.names.are_known.wait()

    # Being a member

    def _warn(self, news: str) -> None:
        """Log news once."""
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
            raise CoordinatorError("the cluster's coordinator is not responding")
        tenure = self._tenure = Tenure(candidacy, self._end_of(asked), self._clock)
        self._was_warned = ""
        logger.info("node %s joined the cluster as member %d", self._config.node, candidacy.number)
        try:
            await self._stay(tenure)
        finally:
            self._tenure = None
            self._shared.end()
            with trio.move_on_after(LEAVING_SECONDS, shield=True):
                await candidacy.leave()

    async def _stay(self, tenure: Tenure) -> None:
        why: list[Exception] = []

        def stop(error: Exception) -> None:
            if self._leadership is not None:
                self._leadership.end()
            why.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew, tenure, stop)
            nursery.start_soon(self._expire, tenure, stop)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._tell_seen, tenure, stop)
            nursery.start_soon(self._count_voters)
            nursery.start_soon(self._follow_members, tenure, nursery, stop)
        if why:
            raise why[0]

    async def _renew(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Renew the candidacy, for ever."""
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
                logger.debug("cannot renew the membership lease: %s", error)

    async def _expire(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Stop being master in time. A mirror has nothing to stop: it tries on for as long as it is a member."""
        while self._leadership is None or tenure.lasts:  # noqa: ASYNC110 - the clock need not be Trio's
            await trio.sleep(max(tenure.left, SHORTEST_PAUSE_SECONDS))
        stop(
            CandidacyEnded("the membership lease could not be renewed in time, so another node may soon become master")
        )

    def _end_of(self, asked: float) -> float:
        return asked + self._config.lease_seconds * (1 - MARGIN)

    async def _count_voters(self) -> None:
        with suppress(CoordinatorError):  # it is told with the next membership
            self._voters = await self._coordinator.voters()

    async def _tell_seen(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Tell the others up to which change of what all share it is in effect here, for ever."""
        told, has_begun = (-1 if self.is_draining else 0), False
        while True:
            try:
                if not has_begun:
                    await self._shared.begin(lambda: tenure.lasts)
                    has_begun = True
                await self._shared.wait_for(told + 1)
                told = await self._note(tenure)
            except CandidacyEnded as error:
                stop(error)
                return
            except CoordinatorError as error:
                logger.debug("cannot publish this node's state to the other nodes: %s", error)
                await trio.sleep(RETRY_SECONDS)

    async def _note(self, tenure: Tenure) -> int:
        """Tell the others what this node is now; returns the change that it told of.

        Raises:
            CandidacyEnded, CoordinatorError: they are not told.
        """
        async with self._noting:  # of two at a time the older one may come last
            number = self._shared.number
            await tenure.candidacy.note(number, is_draining=self.is_draining)
        return number

    # Being master

    async def _listen(self) -> None:
        """Wake the follower at every change among the members."""
        while True:
            try:
                async with self._coordinator.changes() as changes:
                    self._news.set()
                    async for _ in changes:
                        self._news.set()
            except CoordinatorError as error:
                logger.debug("cannot watch for membership changes: %s", error)
            await trio.sleep(RETRY_SECONDS)

    async def _follow_members(self, tenure: Tenure, nursery: trio.Nursery, stop: Callable[[Exception], None]) -> None:
        """Find out which member is the oldest, after every change."""
        is_master = False
        alone_since = self._clock()
        while True:
            self._news = trio.Event()
            try:
                self._members = await self._coordinator.members()
            except CoordinatorError as error:
                logger.debug("cannot read the list of cluster members: %s", error)
                await trio.sleep(RETRY_SECONDS)
                continue
            self._shared.note_members(self._members)
            if len(self._members) > 1:
                alone_since = self._clock()
            elif self._clock() - alone_since >= ALONE_SECONDS:
                self._warn(
                    f"node {self._config.node} is the only member of its cluster: no other node can serve the cluster "
                    "queues if this node fails. Start the other two nodes"
                )
            self._give_way_if_silent(stop)
            is_oldest = bool(self._members) and self._members[0].number == tenure.candidacy.number
            if is_oldest and self.is_draining and any(self._others_to_lead()):
                stop(
                    CandidacyEnded(
                        "this node is drained, so it is handing over the master role and will rejoin as the "
                        "youngest member"
                    )
                )
            elif is_oldest and not is_master and tenure.lasts:
                is_master = True
                nursery.start_soon(self._be_master, tenure, stop)
            with trio.move_on_after(POLL_SECONDS):
                await self._news.wait()

    def _give_way_if_silent(self, stop: Callable[[Exception], None]) -> None:
        """Leave, as a master that no neighbour has reached for too long."""
        others = [member.node for member in self._members if member.node != self._config.node]
        hears, leads = bool(self.sessions.nodes), self._leadership is not None
        if self._silence.is_too_long(hears=hears, leads=leads, has_others=bool(others)):
            stop(
                CandidacyEnded(
                    f"this node is the master, but no neighbor has contacted it for {self._silence.most_seconds:g} "
                    "seconds, so it gives up the master role and will rejoin the cluster as its youngest member. Check "
                    "the links between the nodes and the cluster password. Other members: " + ", ".join(others)
                )
            )

    async def _be_master(self, tenure: Tenure, stop: Callable[[Exception], None]) -> None:
        """Serve the cluster queues until this task is cancelled."""
        node, number = self._config.node, tenure.candidacy.number
        logger.info("node %s is the oldest member and becomes the master for term %d", node, number)

        def broken(reason: str) -> None:
            stop(CandidacyEnded(f"this node stopped serving the cluster queues: {reason}"))

        store = GraceStorage(tenure.candidacy.storage(self._config.store), broken)
        try:
            try:
                await store.open()
                config = dataclasses.replace(self._broker_config, counts_returns=True)
                async with open_broker(store, config, observers=self._observers, clock=self.make_clock()) as broker:
                    await self._serve(tenure, broker, store)
            finally:
                with trio.CancelScope(shield=True):
                    await store.aclose()
        except* StorageError as errors:
            broken(str(first_of(errors)))

    async def _serve(self, tenure: Tenure, broker: Broker, store: GraceStorage) -> None:
        keeper = RecordKeeper(broker)
        await keeper.load()
        leadership = Leadership(tenure.candidacy.number, broker, store, keeper, lambda: tenure.lasts)
        self._declarations.begin_term(broker.declarations)
        leader, queues = LocalLeader(leadership), len(await broker.queues())
        self._leadership = leadership
        try:
            async with self.guest(broker) as leadership.guest:
                self.directory.begin(leader)
                self.sessions.begin(leadership)
                logger.info(
                    "node %s is serving %s in term %d",
                    self._config.node,
                    show_count(queues, "queue"),
                    leadership.number,
                )
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._lead_apart)
                    if self._config.store:  # else the coordinator has the messages, and the candidacy ends without it
                        nursery.start_soon(store.watch, CUT_OFF_LEASES * self._config.lease_seconds)
                    await store.run()
        finally:
            leadership.end()
            self._leadership = None
            self.sessions.finish()
            self.directory.end(leader)
            logger.info("node %s stopped serving queues in term %d", self._config.node, leadership.number)

    async def _lead_apart(self) -> None:
        """See to it, for ever, that what keeps the members is led from another machine. When its leader is lost it
        elects another one, and counts leases anew from then on: losing a machine with both takes twice as long."""
        pause = APART_SECONDS
        while True:
            try:
                if await self._coordinator.lead_elsewhere():
                    logger.info("node %s moved the etcd leader to another machine", self._config.node)
                    pause *= 2  # masters of other clusters may want the same, each away from itself
            except CoordinatorError as error:
                logger.debug("cannot move the etcd leader to another machine: %s", error)
            await trio.sleep(pause)


class Silence:
    """Tells a master when it has heard of no neighbour for too long, and has to leave.

    A node that reaches only the coordinator serves its own clients alone. Once it leaves, the next oldest one leads,
    and the third node may reach that one. A node leaves once for a span of silence: where no node reaches another,
    mastership that went round and round would help none of them.

    Args:
        most_seconds: how long silence may last.
        clock: seconds that only go on.
    """

    def __init__(self, most_seconds: float, clock: Callable[[], float]) -> None:
        self.most_seconds = most_seconds
        self._clock = clock
        self._since = clock()
        self._has_left = False

    def is_too_long(self, *, hears: bool, leads: bool, has_others: bool) -> bool:
        """Whether the node has to leave. Asked every now and then; True once for each span of silence.

        Args:
            leads: this node serves the cluster queues.
            has_others: other nodes are members, by what the coordinator says: they are alive.
        """
        now = self._clock()
        if hears:
            self._has_left = False
        if hears or not leads or not has_others:
            self._since = now
            return False
        if self._has_left or now - self._since < self.most_seconds:
            return False
        self._has_left = True
        return True
