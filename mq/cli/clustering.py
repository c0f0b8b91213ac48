"""A daemon as a node of a cluster, when its settings ask for one."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from mq.broker import Broker, BrokerConfig
from mq.broker.api import BrokerAPI
from mq.cluster.config import ClusterConfig, load_cluster
from mq.cluster.coordinator import find_coordinator
from mq.cluster.node import ClusterNode
from mq.errors import InvalidSetting, NotServed
from mq.lifecycle import Observer
from mq.settings import Settings

logger = logging.getLogger("mq")

HEARING_SECONDS: Final = 10.0
"""How long a node waits to hear which highly available queues there are, before it opens its doors all the same."""


def cluster_of(settings: Settings) -> ClusterConfig | None:
    """The cluster that the settings name; None for none.

    Raises:
        InvalidSetting: its file is wrong, or something else forbids it.
    """
    given = {
        "name": settings.node,
        "coordinator": settings.coordinator,
        "password_file": settings.cluster_password_file,
    }
    if settings.neighbors:
        if len(settings.neighbors) != 2:
            raise InvalidSetting(f"neighbors must be two, with a comma between, got {len(settings.neighbors)}")
        given |= dict(zip(("neighbor_1", "neighbor_2"), settings.neighbors, strict=True))
    given = {key: value for key, value in given.items() if value}
    if not settings.cluster and not given:
        return None
    if settings.peers or not settings.amqp_port:
        raise InvalidSetting("a node of a cluster has no peers (--peers=0), and serves AMQP (--amqp-port)")
    return load_cluster(settings.cluster, given)


@asynccontextmanager
async def clustered(
    config: ClusterConfig | None, local: Broker, broker_config: BrokerConfig, observers: Sequence[Observer]
) -> AsyncIterator[BrokerAPI]:
    """What the doors see for the length of the block: the local broker, or that and the cluster's.

    Raises:
        InvalidSetting: no package knows the coordinator.
        StorageUnusable: its address makes no sense.
    """
    if config is None:
        yield local
        return
    async with find_coordinator(config.coordinator, config.lease_seconds) as coordinator:
        alone = dataclasses.replace(broker_config, peers=0, mover=True, reaper=True)
        node = ClusterNode(config, coordinator, local, alone, observers)
        async with trio.open_nursery() as nursery:
            await nursery.start(node.run)
            await _hear(node)
            yield node.joint
            nursery.cancel_scope.cancel()


async def _hear(node: ClusterNode) -> None:
    try:
        await node.directory.serving(trio.current_time() + HEARING_SECONDS)
    except NotServed as error:
        logger.warning("the doors open without the cluster: %s", error)
