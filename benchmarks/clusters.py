"""``python -m benchmarks.clusters``: highly available queues, turn by turn in one run on 127.0.0.1.

RabbitMQ's quorum queue over three nodes against mq's cluster of three, its messages in etcd, and in PostgreSQL with one
synchronous standby of two. One connection to the node that leads, 100 confirms outstanding, messages of 1 KiB; then
they are consumed with a prefetch of 100, each acknowledged.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from benchmarks.amqp import Client
from benchmarks.counts import processor_seconds
from benchmarks.systems.clusters import MqCluster, MqClusterPostgres
from benchmarks.systems.rabbitmq import RabbitCluster
from benchmarks.systems.system import Server, System

OUTSTANDING: Final = 100
QUORUM: Final = {"x-queue-type": "quorum"}
SYSTEMS: Final[tuple[type[System], ...]] = (RabbitCluster, MqClusterPostgres, MqCluster)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, and print the rates of each turn and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=3_000, help="in each turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--root", default=tempfile.gettempdir(), help="folder for all servers' data")
    options = parser.parse_args(words)
    rates: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.root, prefix="clusters-")))
        folder.chmod(0o755)  # PostgreSQL runs as another user than root
        servers: dict[str, Server] = {}
        for system in (each() for each in SYSTEMS):
            if system.absence():
                raise SystemExit(f"{system.title}: {system.absence()}")
            place = folder / system.name
            place.mkdir()
            servers[system.name] = stack.enter_context(system.start(place))
        for turn in range(options.turns + 1):  # the first one warms up
            for name, server in servers.items():
                measured = _measure(server, options.messages if turn else options.messages // 10)
                for what, rate in measured.items():
                    if turn:
                        rates.setdefault((name, what), []).append(rate)
                        print(f"turn {turn}: {name}, {what}: {rate:,.0f}", flush=True)
    _print(rates)


def _measure(server: Server, messages: int) -> dict[str, float]:
    client = Client(server.ports[0], OUTSTANDING, QUORUM)
    before = processor_seconds(server.pids)
    began = time.perf_counter()
    published = messages / client.publish(messages)
    consumed = messages / client.consume(messages)
    used = processor_seconds(server.pids) - before
    found = {"published a second": published, "consumed a second": consumed}
    return found | {
        "processor time of the nodes, µs a message": used / messages * 1e6,
        "lives a second": messages / (time.perf_counter() - began),
    }


def _print(rates: dict[tuple[str, str], list[float]]) -> None:
    """The median of each, and of the ratios of each turn."""
    postgres, etcd, rabbit = MqClusterPostgres.name, MqCluster.name, RabbitCluster.name
    for what in ("published a second", "consumed a second", "lives a second"):
        for name in (rabbit, postgres, etcd):
            print(f"{name}, {what}: {statistics.median(rates[name, what]):,.0f}")
        for one, other in ((postgres, rabbit), (postgres, etcd), (etcd, rabbit)):
            ratios = [a / b for a, b in zip(rates[one, what], rates[other, what], strict=True)]
            print(f"{one} / {other}, {what}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    for name in (rabbit, postgres, etcd):
        print(f"{name}, processor time of the nodes, µs a message: ", end="")
        print(f"{statistics.median(rates[name, 'processor time of the nodes, µs a message']):,.0f}")


if __name__ == "__main__":
    main()
