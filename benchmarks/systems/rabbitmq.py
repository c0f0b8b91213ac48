"""RabbitMQ: one node without plugins, with an epmd of its own."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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

    def absence(self) -> str:
        """As in System."""
        return "" if self._program() else f"no rabbitmq-server here (apt install {self.package})"

    def version(self) -> str:
        """As in System: by the folder it is in, since to ask the program is to start a node."""
        found = re.search(r"rabbitmq_server-([\d.]+)", str(Path(self._program()).resolve()))
        return found[1] if found else "unknown"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System."""
        held, names, distribution = HeldPort(), HeldPort(), HeldPort()
        port = held.number
        (folder / "home").mkdir()
        (folder / "plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.default = 127.0.0.1:{port}\n")
        environment = {
            "HOME": str(folder / "home"),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }
        epmd = shutil.which("epmd") or "epmd"
        with (
            process([epmd, "-port", str(names)], folder / "epmd.log", environment) as epmd_running,
            process([self._program()], folder / "log", environment) as running,
        ):
            wait_for_port(epmd_running, names.number, folder / "epmd.log")
            wait_for_port(running, port, folder / "log")
            yield Server([port], [running.pid])

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
