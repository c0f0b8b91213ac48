"""cluster: what a node says of its cluster, on the command line. What is safe is in tests/cluster/test_nodes.py."""

from __future__ import annotations

from typing import Any

import pytest

from mq.client import Client
from tests.cli.conftest import Mq

URLS = ("http://a.test", "http://b.test", "http://c.test")


def seen(node: str, *, term: int = 7) -> dict[str, object]:
    """What a healthy cluster's node says; b is master."""
    links = [
        {"address": f"{each}.test:5672", "node": each, "is_up": True, "is_inbound_up": True, "latency_seconds": 0.002}
        for each in "bac"
        if each != node
    ]
    return {
        "node": node,
        "role": "master" if node == "b" else "mirror",
        "nodes": [
            {"name": each, "uptime_seconds": 90.0, "is_master": each == "b", "is_draining": False} for each in "bac"
        ],
        "queues": 4,
        "is_available": True,
        "term": term,
        "failovers": 1,
        "lease_seconds": 5,
        "lease_remaining_seconds": 4.25,
        "links": links,
        "voters": 3,
        "is_draining": False,
        "own_queues": 2,
    }


@pytest.fixture
def answers(daemon: object, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the daemons say that are asked one after the other."""
    waiting: list[dict[str, object]] = []
    monkeypatch.setattr(Client, "cluster", lambda self: waiting.pop(0))
    return waiting


def test_a_daemon_in_no_cluster_says_so(client: Client, mq: Mq) -> None:
    for verb in ("status", "check"):
        done = mq("cluster", verb)
        assert (done.status, "is not part of a cluster" in done.out + done.error) == (1, True)


def test_what_a_node_sees_is_shown(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += [seen("a"), seen("a")]
    *rows, summary = mq("cluster", "status").lines
    assert [row.split("\t") for row in rows] == [
        ["b", "master", "90s", "up", "up", "2ms"],
        ["a", "mirror", "90s", "-", "-", "-"],
        ["c", "mirror", "90s", "up", "up", "2ms"],
    ]
    assert "lease: 4.2 of 5 s left" in summary
    assert "term: 7; failovers since start: 1" in summary
    assert mq("cluster", "status", "--json").json == [seen("a")]


def test_a_check_asks_all_and_tells_the_order(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += map(seen, "abc")
    done = mq("cluster", "check", *URLS)
    assert (done.status, answers) == (0, [])
    assert done.lines == [
        (
            "it is safe to stop the nodes one at a time, in this order: a, c, then the master b. Run this check "
            "again before you stop each node"
        )
    ]


def test_a_check_says_what_speaks_against_it(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += [seen("a"), seen("b", term=8), seen("c") | {"is_available": False}]
    done = mq("cluster", "check", *URLS)
    assert (done.status, done.lines) == (
        1,
        [
            "node c does not see a node that is serving the queues",
            "the nodes are not in the same term: a new master is being elected",
        ],
    )
    answers.append(seen("a"))
    done = mq("cluster", "check")
    assert (done.status, "only 1 of 3 nodes were checked (a)" in done.out) == (1, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_up": False, "latency_seconds": None}, "node a cannot reach b at b.test:5672"),
        ({"is_inbound_up": False}, "b at b.test:5672 cannot reach node a"),
        ({"latency_seconds": 5.5}, "node a has to wait 5.5 s for a response from b at b.test:5672"),
        ({"node": "", "is_up": False, "latency_seconds": None}, "node a cannot reach its neighbor at b.test:5672"),
    ],
)
def test_each_end_of_a_link_counts(
    change: dict[str, object], reason: str, answers: list[dict[str, object]], mq: Mq
) -> None:
    here = seen("a")
    links: Any = here["links"]
    links[0] |= change
    answers += [here, seen("b"), seen("c")]
    done = mq("cluster", "check", *URLS)
    assert (done.status, done.lines) == (1, [reason])


@pytest.mark.parametrize("verb", ["status", "check"])
def test_that_one_machine_has_all_of_it_is_said_loudly(answers: list[dict[str, object]], mq: Mq, verb: str) -> None:
    answers += [seen(each) | {"voters": 1} for each in "abc"]
    done = mq("cluster", verb, *(URLS if verb == "check" else ()))
    assert (done.status, "WARNING: etcd has a single member: if its disk fails" in done.error) == (0, True)
    nodes = [{"name": "a", "uptime_seconds": 90.0, "is_master": True, "is_draining": False}]
    answers[:] = [seen("a") | {"nodes": nodes}]
    assert "WARNING: only one node is connected: if this node fails" in mq("cluster", verb).error
    answers[:] = [seen(each) for each in "abc"]
    assert "WARNING" not in mq("cluster", verb, *(URLS if verb == "check" else ())).error


class Drained:
    """A daemon that is drained: what it says of its connections, look by look, and which of them are closed.

    Attributes:
        looks: for each look, whether it is master, and the ids of clients over AMQP beside a link's.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *looks: tuple[bool, list[str]]) -> None:
        self.looks = list(looks)
        self.closed: list[str] = []
        self.asked: list[bool] = []
        monkeypatch.setattr(Client, "cluster", lambda _: self._cluster())
        monkeypatch.setattr(Client, "connections", lambda _, after=None: self._connections())
        monkeypatch.setattr(Client, "consumers", lambda _, after=None: self._consumers())
        monkeypatch.setattr(Client, "close_connection", lambda _, id: self.closed.append(id))
        monkeypatch.setattr(Client, "drain_node", lambda _, *, resume=False: self._drain(resume=resume))
        monkeypatch.setattr("mq.cli.cluster.LOOK_SECONDS", 0.0)

    def _drain(self, *, resume: bool) -> dict[str, object]:
        self.asked.append(resume)
        return seen("b")

    def _cluster(self) -> dict[str, object]:
        is_master = self.looks[0][0] if self.looks else False
        return seen("b") | {"role": "master" if is_master else "mirror"}

    def _connections(self) -> dict[str, object]:
        clients = self.looks.pop(0)[1] if len(self.looks) > 1 else self.looks[0][1]
        found = [{"id": id, "protocol": "amqp", "state": "open"} for id in ["link", *clients]]
        return {"connections": [*found, {"id": "http", "protocol": "http", "state": "open"}], "next": None}

    def _consumers(self) -> dict[str, object]:
        return {"consumers": [{"connection": "link", "queue": "mq.cluster.replies.12"}], "next": None}


def test_a_node_is_empty_once_another_leads_and_its_clients_have_gone(
    daemon: object, mq: Mq, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Drained(monkeypatch, (True, ["one"]), (False, ["one"]), (False, []))
    done = mq("cluster", "drain")
    assert (done.status, node.asked, node.closed) == (0, [False], [])
    assert done.lines == [
        "node b is drained and can be stopped",
        "queues stored only on this node (unavailable while the node is stopped): 2",
    ]


def test_clients_that_stay_are_closed(daemon: object, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Drained(monkeypatch, (False, ["one", "two"]), (False, ["one", "two"]), (False, []))
    assert mq("cluster", "drain", "--close-after", "0").status == 0
    assert node.closed == ["one", "two"]


def test_a_node_that_is_not_empty_in_time_says_why(daemon: object, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    Drained(monkeypatch, (True, ["one"]))
    done = mq("cluster", "drain", "--wait", "0")
    assert (done.status, done.lines) == (
        1,
        ["node b is still serving the queues", "clients still connected over AMQP: 1"],
    )
    assert "node b was not drained within 0 s" in done.error


def test_a_node_takes_clients_again(daemon: object, mq: Mq, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Drained(monkeypatch)
    assert (mq("cluster", "drain", "--resume").lines, node.asked) == (["node b is accepting clients again"], [True])


def test_a_daemon_in_no_cluster_is_neither_drained_nor_gets_another_neighbour(client: Client, mq: Mq) -> None:
    for verb in (["drain"], ["drain", "--resume"], ["replace", "c", "10.9.0.7:5671"]):
        done = mq("cluster", *verb)
        assert (done.status, "this daemon is not part of a cluster" in done.error) == (1, True), verb


def test_both_others_hear_of_a_new_machine_and_its_file_is_told(
    daemon: object, mq: Mq, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    waiting = [seen("a"), seen("b")]

    def replace(_: Client, node: str, address: str) -> dict[str, object]:
        asked.append((node, address))
        return waiting.pop(0)

    monkeypatch.setattr(Client, "replace_node", replace)
    done = mq("cluster", "replace", "c", "10.9.0.7:5671", *URLS[:2])
    assert (done.status, asked) == (0, [("c", "10.9.0.7:5671")] * 2)
    assert done.lines[0] == "# Nodes a and b now connect to c at 10.9.0.7:5671."
    assert done.lines[2:] == ['name = "c"', 'neighbor_1 = "a.test:5672"', 'neighbor_2 = "b.test:5672"']
    waiting.append(seen("a"))
    done = mq("cluster", "replace", "c", "10.9.0.7:5671", URLS[0])
    assert (done.status, "Specify the URLs of the two nodes that stay in the cluster" in done.error) == (1, True)
