"""One node after the other is stopped and started again, as for an upgrade, while clients publish at the two others."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.cluster.daemons import Nodes, three_daemons
from tests.cluster.rolling import INTERNAL_ERROR, roll, three_nodes_on
from tests.e2e import prepared

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof,  # eight starts of a daemon, some of them while others run
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


RESTARTS: Final = 20


class Publisher:
    """Publishes at the nodes that are not being stopped, one message after the other.

    Attributes:
        confirmed: in their order.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.away = ""
        self.confirmed: list[bytes] = []
        self.others: list[int | str] = []
        self._nodes = nodes
        self._is_over = threading.Event()
        self._one = threading.Lock()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def leave(self, node: str) -> None:
        """Publish nothing there any more."""
        with self._one:
            self.away = node

    def wait_for_more(self) -> None:
        """Until some more are confirmed."""
        enough = len(self.confirmed) + 5
        self._nodes.wait(lambda: len(self.confirmed) >= enough)

    def _run(self) -> None:
        number = 0
        while not self._is_over.wait(0.02):
            with self._one:
                node = [name for name in "abc" if name != self.away][number % 2]
                body = b"%d" % number
                try:
                    status: int | str = self._nodes.ask(node, "POST", "/q/messages", body).status_code
                except httpx.HTTPError as error:
                    status = repr(error)
            number += 1
            if status == 201:
                self.confirmed.append(body)
            else:
                self.others.append(status)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("store", ["etcd", "postgres"])
def test_rolling_restarts_under_load_store_nothing_twice(store: str, tmp_path: Path) -> None:
    lines: list[str] = []
    with three_nodes_on(store, tmp_path) as nodes:
        seen, _ = roll(nodes, RESTARTS, lines.append)
    assert (seen.lost, seen.stored_twice, seen.closed[INTERNAL_ERROR]) == (0, 0, 0), lines


def check(nodes: Nodes) -> subprocess.CompletedProcess[str]:
    """``mq cluster check`` of all three."""
    urls = [f"http://127.0.0.1:{daemon.port or 1}" for daemon in nodes.daemons.values()]
    command = [sys.executable, "-m", "mq", "cluster", "check", *urls]
    return prepared.run(command, capture_output=True, text=True, timeout=60)


def wait_until_safe(nodes: Nodes) -> str:
    """What the check says once it is safe."""
    ends = time.monotonic() + 60
    while (said := check(nodes)).returncode != 0:
        assert said.returncode in (1, 4), said.stderr
        assert time.monotonic() < ends, said.stdout
    return said.stdout


def test_an_upgrade_node_by_node_refuses_no_publisher_and_loses_nothing(tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running

    with running() as etcd, three_daemons(etcd.endpoints[0], tmp_path) as nodes:
        master = nodes.master()
        assert nodes.ask("a", "PUT", "/q?store=cluster").status_code == 201
        order = [name for name in "abc" if name != master] + [master]
        with Publisher(nodes) as publisher:
            said = wait_until_safe(nodes)
            assert f"then the master {master}." in said
            term = nodes.sees("a")["term"]
            for node in order:
                publisher.leave(node)
                wait_until_safe(nodes)
                nodes.daemons[node].stop()
                assert check(nodes).returncode in (1, 4), "another one must not be stopped now"
                publisher.wait_for_more()
                nodes.daemons[node].start()
                wait_until_safe(nodes)
                assert (nodes.sees(node)["term"] == term) == (node != master), "mastership changes once, at the end"
            publisher.wait_for_more()
        assert publisher.others == [], "each waited for the next master, and none was refused"
        found = []
        while (reply := nodes.ask("a", "GET", "/q/messages?visibility=600")).status_code == 200:
            found.append(reply.content)
        assert found == publisher.confirmed
