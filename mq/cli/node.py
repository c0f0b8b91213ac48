"""A daemon as a node of a cluster, when its settings ask for one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from mq.access import UserDirectory
from mq.broker import Broker, BrokerConfig
from mq.broker.api import CLUSTER, BrokerAPI
from mq.broker.kernel_clock import system_clock
from mq.cluster.config import ClusterConfig, load_cluster
from mq.cluster.coordinator import find_coordinator
from mq.cluster.node import ClusterNode
from mq.doors.connections import is_loopback
from mq.errors import InvalidSetting
from mq.lifecycle import Meter, Observer
from mq.schedules.cluster_schedules import ClusterSchedules
from mq.settings import Settings
from mq.storage.options import StorageOptions
from mq.storage.registry import make_storage

logger = logging.getLogger("mq.cluster")


def cluster_of(settings: Settings) -> ClusterConfig | None:
    """The cluster that the settings name; None for none.

    Raises:
        InvalidSetting: its file is wrong, or something else forbids it.
    """
    given = {
        "name": settings.node,
        "coordinator": settings.coordinator,
        "password_file": settings.cluster_password_file,
        "default_store": settings.default_store,
    }
    if settings.neighbors:
        others = _without_itself(settings.neighbors, settings.node)
        if len(others) != 2:
            raise InvalidSetting(
                "neighbors must list the addresses of the other two nodes, separated by commas (given: "
                f"{len(settings.neighbors)}). If you list all three nodes, this node's address must use the "
                f"node name ({settings.node or 'set with --node'}) as its host name"
            )
        given |= dict(zip(("neighbor_1", "neighbor_2"), others, strict=True))
    given = {key: value for key, value in given.items() if value}
    if not settings.cluster and not given:
        return None
    if settings.peers:
        raise InvalidSetting("--peers cannot be combined with --cluster or --neighbors")
    if not settings.serves_amqp:
        raise InvalidSetting("a cluster node requires --amqp-port")
    if settings.strict:
        raise InvalidSetting(
            "--strict cannot be combined with --cluster, because cluster queues are not stored as folders"
        )

    def trusts(host: str) -> bool:
        return settings.insecure or (is_loopback(settings.address) and is_loopback(host))

    config = load_cluster(settings.cluster, given, trusts)
    if not config.password:
        logger.warning(
            "this cluster has no password: any client that reaches the AMQP port can act as a node. Set password_file"
        )
    return dataclasses.replace(config, spool_folder=settings.folder)


def _without_itself(neighbors: Sequence[str], node: str) -> list[str]:
    """Return the two other nodes, also if all three are listed, as replicas with equal settings do."""
    if len(neighbors) != 3:
        return list(neighbors)
    return [neighbor for neighbor in neighbors if neighbor.rpartition(":")[0].partition(".")[0] != node]


@asynccontextmanager
async def clustered(
    config: ClusterConfig | None,
    local: Broker,
    broker_config: BrokerConfig,
    observers: Sequence[Observer | Meter],
    stop: trio.Event,
    schedules: ClusterSchedules,
    users: UserDirectory | None,
) -> AsyncIterator[BrokerAPI]:
    """The broker of the servers, for the length of the block: the local one, or a node's, which has the cluster's
    queues, too. Enters the block once these are known, or `stop` is set. `schedules` are the cluster's from then on,
    and `users` the cluster's beside those of their file.

    Raises:
        InvalidSetting: no package knows the coordinator.
        StorageUnusable: its address makes no sense.
    """
    if config is None:
        yield local
        return
    if config.store:
        make_storage(config.store, StorageOptions())  # what is wrong with it is said now, not once this node leads
    async with find_coordinator(config.coordinator, config.lease_seconds) as coordinator:
        alone = dataclasses.replace(broker_config, peers=0, mover=True, reaper=True, store=CLUSTER)
        node = ClusterNode(config, coordinator, local, alone, observers)
        node.make_clock = system_clock
        node.guest, schedules.ask, schedules.has_own = schedules.leading, node.ask_guest, local.declarations.knows
        if users is not None:
            node.on_users(users.share, users.check)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            await _hear(node, stop)
            yield node.broker
            nursery.cancel_scope.cancel()


async def _hear(node: ClusterNode, stop: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        await node.hear()
        nursery.cancel_scope.cancel()
