"""Highly available queues, taking turns on 127.0.0.1: RabbitMQ's quorum queue over three nodes, and mq's cluster of
three with its messages in etcd, and in PostgreSQL with one synchronous standby of two."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.compare import Plan, compare, medians
from benchmarks.figures import Figure
from benchmarks.systems.clusters import MqCluster, MqClusterPostgres
from benchmarks.systems.rabbitmq import RabbitCluster
from benchmarks.systems.system import System

SYSTEMS: Final[tuple[type[System], ...]] = (RabbitCluster, MqClusterPostgres, MqCluster)


def measure(folder: str, rounds: int) -> list[Figure]:
    """Messages a second, and processor time of all nodes a message, by workload."""
    systems = {system.name: system for system in (each() for each in SYSTEMS) if not system.absence()}
    Path(folder).chmod(0o755)  # PostgreSQL runs as another user than root
    turns = compare([*systems.values()], Plan([32], [1024], rounds, seconds=2), Path(folder))[0] if systems else []
    return [
        Figure(f"{systems[turn.system].title}, {turn.workload}", turn.rate, "a second", note=f"{turn.cpu:,.0f} µs")
        for turn in medians(turns).values()
    ]
