"""A cluster of mq: three daemons, three members of etcd, and where it is asked for PostgreSQL with two standbys."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Final

from mq_etcd.testing import cluster as etcd
from mq_postgres.testing import server as postgres

from benchmarks.load.amqp import AmqpQuorumCodec
from benchmarks.systems.mq import Mq
from benchmarks.systems.system import START_SECONDS, CannotStart, Server, process, wait_for_port
from mq.testing.ports import HeldPort

_SERVES: Final = b'"role": "master"'


class MqCluster(Mq):
    """Three nodes, whose messages are in etcd."""

    name = "mq-cluster-etcd"
    title = "mq, three nodes, etcd"
    durability = "two of three members of etcd have it in their synced logs before the confirm"
    codec = AmqpQuorumCodec

    def absence(self) -> str:
        return "" if etcd.PROGRAM else "no etcd here (apt install etcd-server)"

    def _messages(self, folder: Path) -> AbstractContextManager[str]:
        """The address of the store that has the messages; empty for etcd."""
        return nullcontext("")

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System: the first port is the master's."""
        with ExitStack() as stack:
            members = stack.enter_context(etcd.running(3, folder=folder))
            store = stack.enter_context(self._messages(folder))
            ports = {name: HeldPort() for name in "abc"}
            pids = []
            for name, port in ports.items():
                first, second = (f"127.0.0.1:{other}" for each, other in ports.items() if each != name)
                file = folder / f"{name}.toml"
                file.write_text(
                    f'name = "{name}"\nneighbor_1 = "{first}"\nneighbor_2 = "{second}"\nstore = "{store}"\n'
                    f'coordinator = "etcd:{",".join(members.endpoints)}?prefix=/{self.name}"\n'
                )
                log, serves = folder / f"{name}.log", HeldPort()
                flags = ("--cluster", file, "--root", folder / name, "--port", serves, "--amqp-port", port)
                running = stack.enter_context(process([sys.executable, "-m", "mq", *map(str, flags)], log))
                wait_for_port(running, port.number, log)
                pids.append(running.pid)
                if name == "a":
                    _wait_for_master(serves.number, log)  # the oldest
            yield Server([port.number for port in ports.values()], pids)


class MqClusterPostgres(MqCluster):
    """Three nodes with their messages in PostgreSQL. One of its two standbys has each confirmed message."""

    name = "mq-cluster-postgres"
    title = "mq, three nodes, PostgreSQL"
    durability = "the primary and one of two standbys have it in their synced logs before the confirm"

    def absence(self) -> str:
        return super().absence() or ("" if postgres.PROGRAMS else "no PostgreSQL here (apt install postgresql)")

    @contextmanager
    def _messages(self, folder: Path) -> Iterator[str]:
        folder.chmod(0o755)
        with postgres.running(folder=folder) as primary, ExitStack() as stack:
            for number in (1, 2):
                place = folder / f"standby{number}"
                place.mkdir()
                standby = postgres.Server(place)
                standby.follow(primary, f"standby{number}")
                stack.callback(standby.stop)
                standby.start()
            primary.set(synchronous_standby_names="ANY 1 (standby1, standby2)")
            role = postgres.ROLE
            yield f"postgres://{role}@127.0.0.1:{primary.port}/{role}?schema=bench"


def _wait_for_master(port: int, log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while time.monotonic() < ends:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/cluster", timeout=5) as reply:
            if _SERVES in reply.read():
                return
        time.sleep(0.1)
    raise CannotStart(f"no node serves: {log.read_text(errors='replace')[-500:]}")
