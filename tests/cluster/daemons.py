"""A cluster of three daemons of this machine, without networks of their own: what needs no cables to be pulled."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from mq.testing.ports import HeldPort
from tests.e2e.daemon import Daemon

PATIENCE_SECONDS = 60.0


class Nodes:
    """Daemons, and the ports where they speak AMQP, by the names of their nodes."""

    def __init__(self, daemons: dict[str, Daemon], amqp_ports: dict[str, int]) -> None:
        self.daemons = daemons
        self.amqp_ports = amqp_ports
        self.client = httpx.Client(timeout=30, trust_env=False)

    def ask(self, node: str, method: str, path: str, body: bytes = b"") -> httpx.Response:
        url = f"http://127.0.0.1:{self.daemons[node].port}{path}"
        return self.client.request(method, url, content=body)

    def sees(self, node: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(node, "GET", "/-/cluster").json()
        return found

    def wait(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_SECONDS
        while not holds():
            assert time.monotonic() < ends, [daemon.last_words() for daemon in self.daemons.values()]
            time.sleep(0.05)

    def master(self) -> str:
        """The node that serves, once all that live say so."""
        found: set[str] = set()

        def agree() -> bool:
            seen = [self.sees(node) for node, daemon in self.daemons.items() if daemon.is_running()]
            found.clear()
            found.update(each["node"] for each in seen if each["role"] == "master")
            return len(found) == 1 and all(each["is_available"] for each in seen)

        self.wait(agree)
        return found.pop()


@contextmanager
def three_daemons(
    etcd: str, folder: Path, store: str | Mapping[str, str] = "", users: str = "", password: str = ""
) -> Iterator[Nodes]:
    """Nodes a, b and c, which are up.

    Args:
        etcd: the endpoint of one that keeps members and names.
        store: the address of the store of their messages, perhaps another one for each node; empty for etcd.
        users: a file of users, of which each node gets a copy; empty for none.
        password: of the cluster; empty for none.
    """
    ports = {name: HeldPort() for name in "abc"}
    with ExitStack() as stack:
        daemons = {}
        for name in "abc":
            first, second = (f"127.0.0.1:{port}" for other, port in ports.items() if other != name)
            file = folder / f"{name}.toml"
            file.write_text(
                f'name = "{name}"\nneighbor_1 = "{first}"\nneighbor_2 = "{second}"\nlease_seconds = 2\n'
                f'coordinator = "etcd:{etcd}?prefix=/mq"\n'
                f'store = "{store if isinstance(store, str) else store[name]}"\n'
                + (f'password = "{password}"\n' if password else "")
            )
            flags = ("--cluster", str(file), "--amqp-port", str(ports[name]))
            if users:
                own = shutil.copy(users, folder / f"{name}-users.toml")
                flags += ("--users", str(own))
            daemons[name] = stack.enter_context(Daemon(folder / name, folder / f"{name}.log", *flags))
        nodes = Nodes(daemons, {name: port.number for name, port in ports.items()})
        stack.callback(nodes.client.close)
        yield nodes
