"""Three nodes whose members and names are in etcd, and whose messages are in PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from mq.testing.ports import HeldPort
from tests.e2e.daemon import Daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]

PATIENCE_SECONDS = 60.0


class Nodes:
    """Daemons by the names of their nodes."""

    def __init__(self, daemons: dict[str, Daemon]) -> None:
        self.daemons = daemons

    def ask(self, node: str, method: str, path: str, body: bytes = b"") -> httpx.Response:
        url = f"http://127.0.0.1:{self.daemons[node].port}{path}"
        return httpx.request(method, url, content=body, timeout=30)

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
            return len(found) == 1 and all(each["is_served"] for each in seen)

        self.wait(agree)
        return found.pop()


@contextmanager
def three_nodes(etcd: str, store: str, folder: Path) -> Iterator[Nodes]:
    ports = {name: HeldPort() for name in "abc"}
    with ExitStack() as stack:
        daemons = {}
        for name in "abc":
            first, second = (f"127.0.0.1:{port}" for other, port in ports.items() if other != name)
            file = folder / f"{name}.toml"
            file.write_text(
                f'name = "{name}"\nneighbor_1 = "{first}"\nneighbor_2 = "{second}"\nlease_seconds = 2\n'
                f'coordinator = "etcd:{etcd}?prefix=/mq"\nstore = "{store}"\n'
            )
            flags = ("--cluster", str(file), "--amqp-port", str(ports[name]))
            daemons[name] = stack.enter_context(Daemon(folder / name, folder / f"{name}.log", *flags))
        yield Nodes(daemons)


def bodies(nodes: Nodes, node: str) -> list[bytes]:
    found = []
    while (reply := nodes.ask(node, "GET", "/q/messages?visibility=600")).status_code == 200:
        found.append(reply.content)
    return found


def test_what_was_confirmed_outlives_masters_that_die_or_sleep(place, tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running as running_etcd

    with running_etcd() as etcd, three_nodes(etcd.endpoints[0], place.address, tmp_path) as nodes:
        first = nodes.master()
        assert nodes.ask("b", "PUT", "/q?store=cluster").status_code == 201
        for number in range(20):
            assert nodes.ask("abc"[number % 3], "POST", "/q/messages", b"%d" % number).status_code == 201
        with place.server.admin() as admin:
            rows = admin.execute(f"SELECT count(*) FROM {place.schema}.place".encode()).fetchone()
        assert rows == (20,), "they are in PostgreSQL"
        asleep = nodes.daemons[first]
        os.kill(asleep.pid, signal.SIGSTOP)
        others = [name for name in "abc" if name != first]
        nodes.wait(
            lambda: (
                nodes.sees(others[0])["term"] == nodes.sees(others[1])["term"]
                and any(nodes.sees(name)["role"] == "master" for name in others)
            )
        )
        assert nodes.ask(others[0], "POST", "/q/messages", b"20").status_code == 201
        os.kill(asleep.pid, signal.SIGCONT)
        nodes.wait(lambda: nodes.sees(first)["role"] == "mirror")
        second = nodes.master()
        assert second != first
        leased = nodes.ask(first, "GET", "/q/messages?visibility=600")
        assert leased.content == b"0"
        nodes.daemons[second].kill()
        third = nodes.master()
        assert bodies(nodes, third) == [b"%d" % number for number in range(21)], "what was leased is there again"
