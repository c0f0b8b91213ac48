"""The page of a node of a real cluster, in a browser on that node's host: who leads, before and after the master dies.

Three real daemons and three members of etcd.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cluster.hosts import PATIENCE_SECONDS, QUEUE, Machine, three_machines
from tests.page.hand import Hand, started_browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof,
    pytest.mark.root,
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


LEFT = """(gone) => {
    const rows = [...document.querySelectorAll("[aria-label=Nodes] tbody tr")].map((row) => row.cells[0].textContent);
    return rows.length === 2 && !rows.includes(gone);
}"""
"""Whether two nodes are left, and that one is none of them."""


def test_the_view_of_a_node_shows_who_leads(tmp_path: Path) -> None:
    with three_machines(tmp_path, has_clients=False) as machines:
        master = machines.master()
        mirror = next(each for each in machines.by_name.values() if each is not master)
        with mirror.host.inside(), started_browser() as browser, Hand.at(browser, mirror.http) as hand:
            look_on(hand, master)


def look_on(hand: Hand, master: Machine) -> None:
    """At a node that is not the master, which dies meanwhile."""
    hand.open("#/node")
    nodes = hand.tab.get_by_role("region", name="Nodes", exact=True).locator("tbody tr")

    def shown() -> dict[str, str]:
        cells = [row.split("\t") for row in nodes.all_inner_texts()]
        return {row[0]: row[1] for row in cells if len(row) > 1}  # one cell says that there are no nodes yet

    hand.until(lambda: shown() == {name: "master" if name == master.name else "mirror" for name in "abc"})
    hand.sees("Cluster queues: 1, available")
    links = hand.tab.get_by_role("region", name="Connections to other nodes").locator("tbody tr")
    hand.until(lambda: [row.split("\t")[1:3] for row in links.all_inner_texts()] == [["up", "up"], ["up", "up"]])
    hand.open(f"#/queue/{QUEUE}")
    hand.press("Publish a message")
    hand.write("Body", "for all nodes")
    hand.click("button", "Publish")
    hand.row("for all nodes").wait_for()
    hand.open("#/node")
    hand.until(lambda: len(shown()) == 3)
    master.node.kill()
    hand.tab.wait_for_function(LEFT, arg=master.name, timeout=PATIENCE_SECONDS * 1000)
    hand.until(lambda: sorted(shown().values()) == ["master", "mirror"])
    hand.sees("Cluster queues: 1, available", seconds=PATIENCE_SECONDS)
    hand.open(f"#/queue/{QUEUE}")
    hand.row("for all nodes").wait_for()
