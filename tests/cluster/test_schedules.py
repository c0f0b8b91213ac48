"""Schedules of a cluster: kept by it, fired by its leader alone, and no instant twice over fail-overs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.cluster.nodes import Host, three_nodes
from tests.cluster.test_nodes import left_in

pytestmark = pytest.mark.slow  # each test runs three brokers

INSTANT = "mq-schedule-instant"


async def schedule(host: Host, name: str = "tick", **wanted: Any) -> int:
    body = json.dumps({"queue": "q", "every": 1, "message": {"body": "x"}} | wanted).encode()
    return (await host.http("PUT", f"/-/schedules/{name}", body, content_type="application/json")).status


async def instants(host: Host, queue: str = "q") -> list[str]:
    """Of all messages in the queue, in order."""
    found = []
    while (reply := await host.http("GET", f"/{queue}/messages?visibility=3600")).status == 200:
        found.append(dict(reply.headers)[f"x-message-attribute-{INSTANT}"])
    return found


async def names(host: Host) -> list[str]:
    reply = await host.http("GET", "/-/schedules")
    assert reply.status == 200, reply.body
    return [each["name"] for each in json.loads(bytes(reply.body))["schedules"]]


async def test_a_schedule_is_the_clusters_and_its_leader_fires_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await b.http("PUT", "/q?store=cluster")
        assert (await schedule(c), await schedule(b)) == (201, 200)
        assert [await names(host) for host in (a, b, c)] == [["tick"]] * 3
        await trio.sleep(5.5)
        assert len(await left_in(b, "q")) == 5, "one of three fires"
        shown = json.loads(bytes((await c.http("GET", "/-/schedules/tick")).body))
        assert (shown["queue"], shown["message"]["body"], shown["last"] is not None) == ("q", "x", True)
        assert (await c.http("DELETE", "/-/schedules/tick")).status == 200
        assert (await b.http("DELETE", "/-/schedules/tick")).status == 404
        assert [await names(host) for host in (a, b, c)] == [[]] * 3
        await left_in(a, "q")
        await trio.sleep(5)
        assert await left_in(a, "q") == []


async def test_no_instant_comes_twice_over_fail_overs(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await a.http("PUT", "/q?store=cluster")
        assert await schedule(b) == 201
        for leader in "abc":
            await trio.sleep(4.0)  # at an instant, so a firing is under way
            await cluster.hosts[leader].kill()
            await cluster.start(leader)
            await cluster.hosts[leader].wait_for_master()
        await trio.sleep(5)
        found = await instants(cluster.hosts["a"])
        assert len(found) == len(set(found)), "twice"
        assert found == sorted(found)
        assert len(found) >= 12, "what was missed meanwhile comes once, and then it goes on"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_firing_whose_answer_was_lost_is_done_once(autojump_clock: MockClock, when: str) -> None:
    """The store has the message, and the leader does not know; or it had noted that it begins, and no more."""
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        assert await schedule(c, every=10) == 201
        await trio.sleep(9.5)
        if when == "after":
            cluster.ground.swallows = True
        else:
            cluster.ground.cut("a")
        await trio.sleep(1.5)
        cluster.ground.swallows = False
        await a.kill()
        await c.wait_for_master()
        await trio.sleep(5)
        assert len(await instants(c)) == 1


async def test_a_queue_of_one_node_has_no_schedule(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b = cluster.hosts["b"]
        await b.http("PUT", "/own?store=disk")
        reply = await b.http(
            "PUT", "/-/schedules/tick", json.dumps({"queue": "own", "every": 1, "message": {"body": "x"}}).encode()
        )
        assert reply.status == 409, reply.body
        assert "local to this node" in bytes(reply.body).decode()
        assert await schedule(b, queue="nowhere") == 404


async def test_without_a_leader_they_are_not_told(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        await schedule(a)
        for name in "abc":
            cluster.ground.cut(name)
        await trio.sleep(3)
        assert (await c.http("GET", "/-/schedules")).status == 503
        for name in "abc":
            cluster.ground.mend(name)
        await b.wait_for_master()
        assert await names(c) == ["tick"]
