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
        {"address": f"{each}.test:5672", "node": each, "is_up": True, "is_heard": True, "lag_seconds": 0.002}
        for each in "bac"
        if each != node
    ]
    return {
        "node": node,
        "role": "master" if node == "b" else "mirror",
        "nodes": [{"name": each, "uptime_seconds": 90.0, "is_master": each == "b"} for each in "bac"],
        "queues": 4,
        "is_served": True,
        "term": term,
        "failovers": 1,
        "lease_seconds": 5,
        "lease_left_seconds": 4.25,
        "links": links,
        "voters": 3,
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
        assert (done.status, "in no cluster" in done.out + done.error) == (1, True)


def test_what_a_node_sees_is_shown(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += [seen("a"), seen("a")]
    *rows, summary = mq("cluster", "status").lines
    assert [row.split("\t") for row in rows] == [
        ["b", "master", "90s", "up", "up", "2ms"],
        ["a", "mirror", "90s", "-", "-", "-"],
        ["c", "mirror", "90s", "up", "up", "2ms"],
    ]
    assert "4.2 of 5 s of its lease left" in summary
    assert "term: 7; fail-overs since it was started: 1" in summary
    assert mq("cluster", "status", "--json").json == [seen("a")]


def test_a_check_asks_all_and_tells_the_order(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += map(seen, "abc")
    done = mq("cluster", "check", *URLS)
    assert (done.status, answers) == (0, [])
    assert done.lines == ["safe now, one node at a time: a, then c, and the master, b, last. Check before each"]


def test_a_check_says_what_speaks_against_it(answers: list[dict[str, object]], mq: Mq) -> None:
    answers += [seen("a"), seen("b", term=8), seen("c") | {"is_served": False}]
    done = mq("cluster", "check", *URLS)
    assert (done.status, done.lines) == (
        1,
        [
            "node c knows of no node that serves the queues",
            "the nodes do not agree on the term: another master is just beginning",
        ],
    )
    answers.append(seen("a"))
    done = mq("cluster", "check")
    assert (done.status, "only 1 of 3 nodes were asked (a)" in done.out) == (1, True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_up": False, "lag_seconds": None}, "node a does not reach b at b.test:5672"),
        ({"is_heard": False}, "node a is not reached by b at b.test:5672"),
        ({"lag_seconds": 5.5}, "node a waits 5.5 s for an answer of b at b.test:5672"),
        ({"node": "", "is_up": False, "lag_seconds": None}, "node a does not reach its neighbor at b.test:5672"),
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
    assert (done.status, "WARNING: etcd has one member: when its disk is lost" in done.error) == (0, True)
    nodes = [{"name": "a", "uptime_seconds": 90.0, "is_master": True}]
    answers[:] = [seen("a") | {"nodes": nodes}]
    assert "WARNING: one node is a member: when it is lost" in mq("cluster", verb).error
    answers[:] = [seen(each) for each in "abc"]
    assert "WARNING" not in mq("cluster", verb, *(URLS if verb == "check" else ())).error
