"""Three nodes whose members and names are in etcd, and whose messages are in PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cluster.daemons import Nodes, three_daemons

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


def bodies(nodes: Nodes, node: str) -> list[bytes]:
    found = []
    while (reply := nodes.ask(node, "GET", "/q/messages?visibility=600")).status_code == 200:
        found.append(reply.content)
    return found


def test_what_was_confirmed_outlives_masters_that_die_or_sleep(place, tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running as running_etcd

    with running_etcd() as etcd, three_daemons(etcd.endpoints[0], tmp_path, place.address) as nodes:
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
