"""Highly available queues, taking turns on 127.0.0.1: RabbitMQ's quorum queue over three nodes, and mq's cluster of
three with its messages in etcd, and in PostgreSQL with one synchronous standby of two."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.compare import medians
from benchmarks.figures import Figure
from benchmarks.systems.clusters import MqCluster, MqClusterPostgres
from benchmarks.systems.rabbitmq import RabbitCluster
from benchmarks.systems.system import System
from benchmarks.turns import Load, Turn, take_turn

SYSTEMS: Final[tuple[type[System], ...]] = (RabbitCluster, MqClusterPostgres, MqCluster)
LOAD: Final = Load(clients=32, size=1024, seconds=2.0)


def measure(folder: str, rounds: int) -> list[Figure]:
    """Messages a second, and processor time of all nodes a message, by workload."""
    systems = {system.name: system for system in (each() for each in SYSTEMS) if not system.absence()}
    turns: list[Turn] = []
    with ExitStack() as stack:
        servers = {}
        Path(folder).chmod(0o755)  # PostgreSQL runs as another user than root
        for name, system in systems.items():
            place = Path(folder) / name
            place.mkdir()
            servers[name] = stack.enter_context(system.start(place))
        for number in range(rounds):
            for name, server in servers.items():
                turns += take_turn(systems[name], server, Path(folder), LOAD, number)
    return [
        Figure(f"{systems[turn.system].title}, {turn.workload}", turn.rate, "a second", note=f"{turn.cpu:,.0f} µs")
        for turn in medians(turns).values()
    ]
