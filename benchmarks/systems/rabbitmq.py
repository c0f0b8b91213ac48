"""RabbitMQ: one node, or three, without plugins, with an epmd of its own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.load.amqp import AmqpCodec, AmqpQuorumCodec
from benchmarks.systems.system import Server, System, process, wait_for_port
from mq.testing.ports import HeldPort

_LIBRARY: Final = Path("/usr/lib/rabbitmq")


class RabbitClassic(System):
    """A durable classic queue, persistent messages, confirms."""

    name = "rabbitmq-classic"
    title = "RabbitMQ, classic"
    package = "rabbitmq-server"
    durability = "persistent messages, confirmed after the fsync of a group; acknowledgements are not answered"
    codec = AmqpCodec
    size = 1

    def absence(self) -> str:
        return "" if self._program() else f"no rabbitmq-server here (apt install {self.package})"

    def version(self) -> str:
        """As in System: by the folder it is in, since to ask the program is to start a node."""
        found = re.search(r"rabbitmq_server-([\d.]+)", str(Path(self._program()).resolve()))
        return found[1] if found else "unknown"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        held = [(HeldPort(), HeldPort()) for _ in range(self.size)]
        nodes = [f"bench{listens}@localhost" for listens, _ in held]
        names, environments = HeldPort(), []
        (folder / "home").mkdir()
        (folder / "plugins").write_text("[].\n")
        for (listens, distribution), node in zip(held, nodes, strict=True):
            place = folder / node
            place.mkdir()
            (place / "rabbitmq.conf").write_text(
                f"listeners.tcp.default = 127.0.0.1:{listens}\n"
                "cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config\n"
                + "".join(f"cluster_formation.classic_config.nodes.{at} = {each}\n" for at, each in enumerate(nodes, 1))
            )
            environments.append(
                {
                    "HOME": str(folder / "home"),
                    "ERL_EPMD_PORT": str(names),
                    "ERL_EPMD_ADDRESS": "127.0.0.1",
                    "RABBITMQ_NODENAME": node,
                    "RABBITMQ_DIST_PORT": str(distribution),
                    "RABBITMQ_MNESIA_BASE": str(place / "data"),
                    "RABBITMQ_LOG_BASE": str(place / "logs"),
                    "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq.conf"),
                    "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
                    "RABBITMQ_PID_FILE": str(place / "pid"),
                }
            )
        epmd, pids = shutil.which("epmd") or "epmd", []
        with ExitStack() as stack:
            named = stack.enter_context(process([epmd, "-port", str(names)], folder / "epmd.log", environments[0]))
            wait_for_port(named, names.number, folder / "epmd.log")
            for (listens, _), environment in zip(held, environments, strict=True):
                log = folder / f"log-{listens}"
                running = stack.enter_context(process([self._program()], log, environment))
                wait_for_port(running, listens.number, log)
                pids.append(running.pid)
            yield Server([listens.number for listens, _ in held], pids)

    def _program(self) -> str:
        """The script itself: what Debian puts in its place changes the user first."""
        own = _LIBRARY / "bin" / "rabbitmq-server"
        return str(own) if os.access(own, os.X_OK) else shutil.which("rabbitmq-server") or ""


class RabbitQuorum(RabbitClassic):
    """A quorum queue of one node."""

    name = "rabbitmq-quorum"
    title = "RabbitMQ, quorum"
    durability = "one node; its log is synced in groups before the confirm; acknowledgements are not answered"
    codec = AmqpQuorumCodec


class RabbitCluster(RabbitQuorum):
    """A quorum queue of three nodes."""

    name = "rabbitmq-cluster"
    title = "RabbitMQ, quorum, three nodes"
    durability = "two of three nodes have it in their synced logs before the confirm"
    size = 3
