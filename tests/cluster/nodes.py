"""Three nodes in this process, on :mod:`tests.cluster.ground`, with links over memory and doors that tests knock at."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import trio
from trio.testing import memory_stream_pair

from mq.access import UserDirectory
from mq.amqp.server.served_connection import ServedConnection
from mq.amqp.server.state import AmqpState
from mq.broker import BrokerConfig, open_broker
from mq.broker.api import CLUSTER, NODE
from mq.broker.clock import Clock
from mq.client.amqp import AmqpClient
from mq.client.amqp.connection import connected
from mq.client.amqp.link import Link
from mq.client.amqp.protocol import Login, Protocol
from mq.client.amqp.values import Role
from mq.client.errors import Unreachable
from mq.cluster.config import ClusterConfig, Neighbor
from mq.cluster.node import ClusterNode
from mq.doors.connections import NOBODY
from mq.message import MessageIds
from mq.schedules.cluster_schedules import ClusterSchedules
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.client.amqp.streams import OverTrio
from tests.cluster.ground import FakeCoordinator, Ground
from tests.web.talking import stream

MAX_BODY = 16 << 20
PORTS = {"a": 1, "b": 2, "c": 3}
CONFIG = BrokerConfig(workers=2, awaits_sink=True, store=NODE)


def config_of(name: str, password: str = "secret") -> ClusterConfig:
    first, second = (Neighbor("memory", port) for other, port in PORTS.items() if other != name)
    return ClusterConfig(name, (first, second), "fake:", password, lease_seconds=2)


def login_of(role: str, heartbeat: int) -> Login:
    return Login(user="guest", secret="guest", vhost="/", role=role, heartbeat_seconds=heartbeat, max_body=2 * MAX_BODY)


class Host:
    """One node, as a process would be: all of it ends with :meth:`kill`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self.node: ClusterNode
        self.door: AmqpState
        self.endpoints: Endpoints
        self.nursery: trio.Nursery

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        coordinator = FakeCoordinator(self._cluster.ground, self.name)
        try:
            with self._scope:
                async with (
                    open_broker(self._cluster.roots[self.name], CONFIG, clock_ns=self._cluster.clock_ns) as local,
                    trio.open_nursery() as self.nursery,
                ):
                    self.node = ClusterNode(
                        config_of(self.name),
                        coordinator,
                        local,
                        dataclasses.replace(CONFIG, store=CLUSTER),
                        clock=trio.current_time,
                        dial=self._cluster.dial,
                    )
                    self.node.make_clock = lambda: Clock(self._cluster.clock_ns)
                    schedules = ClusterSchedules()
                    schedules.ask, schedules.has_own = self.node.ask_guest, local.declarations.knows
                    self.node.guest = schedules.leading
                    self.users = self._cluster.users_of(self.name)
                    if self.users is not None:
                        self.node.on_users(self.users.share, self.users.check)
                    await self.nursery.start(self.node.run)
                    await self.node.hear()
                    self.door = AmqpState(self.node.broker)
                    await self.door.load()
                    self.nursery.start_soon(self.door.run)
                    self.endpoints = Endpoints(self.node.broker, MAX_BODY, schedules=schedules)
                    self._cluster.hosts[self.name] = self
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._cluster.hosts.pop(self.name, None)
            self._ended.set()

    async def kill(self) -> None:
        """Its leases stay, its connections break."""
        self._cluster.ground.cut(self.name)
        self._scope.cancel()
        await self._ended.wait()

    async def wait_for_master(self) -> None:
        """Until it is a member, and knows somebody who serves."""
        while self.node.membership().role == "alone":
            await trio.sleep(0.01)
        await self.node.directory.serving(trio.current_time() + 60)

    async def http(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """A request at its HTTP door."""
        target, _, query = path.partition("?")
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with aclosing(stream(body)) as chunks:
            request = Request(method, target.encode(), query.encode(), given, chunks, len(body))
            return await self.endpoints.handle(request)

    @asynccontextmanager
    async def amqp(self) -> AsyncIterator[AmqpClient]:
        """A connection to its AMQP door."""
        async with connected(
            OverTrio(self.accept()), login_of("both", 60), Role.BOTH, trio.current_time() + 10
        ) as client:
            yield client

    def accept(self) -> trio.StapledStream[Any, Any]:
        """The other end of a connection that it serves."""
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(ServedConnection(self.door, theirs, NOBODY, "0").run)  # type: ignore[arg-type]
        return ours


class Cluster:
    """Three of them.

    Attributes:
        roots: of each node, whether or not it is up.
        users_of: makes the directory of users of a node that is started; None for a node without.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.ground = Ground()
        self.hosts: dict[str, Host] = {}
        self.ports = dict(PORTS)
        self.users_of: Callable[[str], UserDirectory | None] = lambda name: None
        self.ids = MessageIds()
        self.roots = {name: MemoryStorage() for name in PORTS}
        self._cut: set[frozenset[str]] = set()
        self._news = trio.Event()
        self._nursery = nursery
        self._began_ns = time.time_ns() - int(trio.current_time() * 1e9)

    def clock_ns(self) -> int:
        """The wall clock of all nodes: it goes as Trio's does, so a leader goes on where the last one stopped."""
        return self._began_ns + int(trio.current_time() * 1e9)

    async def start(self, name: str, *, is_cut_off: bool = False) -> Host:
        """Start a node; where it is cut off, it hears of nobody."""
        if is_cut_off:
            self.cut_off(name)
        else:
            self.mend_all(name)
        host = Host(self, name)
        await self._nursery.start(host.run)
        return host

    def dial(self, config: ClusterConfig, neighbor: Neighbor) -> AbstractAsyncContextManager[Link]:
        """A link from one node to another."""
        found = [other for other, port in self.ports.items() if port == neighbor.port]
        return self._linked(config.node, found[0] if found else "")

    def cut(self, one: str, other: str) -> None:
        """The link between two nodes breaks, and there is none until it is mended."""
        self._cut.add(frozenset((one, other)))
        self._news.set()
        self._news = trio.Event()

    def mend(self, one: str, other: str) -> None:
        """Undo a cut."""
        self._cut.discard(frozenset((one, other)))

    def cut_off(self, name: str) -> None:
        """Nobody answers a node any more, and it has no links."""
        self.ground.cut(name)
        for other in PORTS.keys() - {name}:
            self.cut(name, other)

    def mend_all(self, name: str) -> None:
        """Undo that."""
        self.ground.mend(name)
        for other in PORTS.keys() - {name}:
            self.mend(name, other)

    @asynccontextmanager
    async def _linked(self, source: str, target: str) -> AsyncIterator[Link]:
        host = self.hosts.get(target)
        if host is None or frozenset((source, target)) in self._cut:
            raise Unreachable(f"{target} is down")
        link = Link(OverTrio(host.accept()), Protocol(login_of("cluster", 1), trio.current_time))
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(self._break, frozenset((source, target)), link)
            try:
                await link.opened()
                yield link
            except Exception as error:  # noqa: BLE001 - as connect_link does
                failure = error
            await link.aclose()
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _break(self, ends: frozenset[str], link: Link) -> None:
        while ends not in self._cut:
            await self._news.wait()
        link.end("cut")


@asynccontextmanager
async def three_nodes(
    users_of: Callable[[str], UserDirectory | None] = lambda name: None,
) -> AsyncIterator[Cluster]:
    """Nodes a, b and c, the oldest first; a is master, and b and c know it."""
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery)
        cluster.users_of = users_of
        for name in PORTS:
            host = await cluster.start(name)
            await host.wait_for_master()
        yield cluster
        nursery.cancel_scope.cancel()
