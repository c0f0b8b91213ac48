"""A cluster by Trio's virtual clock: who is master, and what that is for its queues."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Broker, Draft, Published, open_broker
from mq.broker.api import CLUSTER
from mq.cli.cluster import dangers
from mq.client.amqp.errors import ConsumerCancelled
from mq.client.errors import Conflict, NotAllowed, Unavailable
from mq.cluster.config import Neighbor
from mq.cluster.directory import Directory
from mq.cluster.leadership import Holder
from mq.cluster.node import ALONE_SECONDS, SILENT_LEASES
from mq.cluster.peer_link import MovedNeighbors, PeerLink
from mq.lifecycle import State
from mq.message import QueueName
from mq.storage.interface import Move
from mq.storage.memory import MemoryStorage
from mq.web.exchange import Reply
from tests.amqp.dialling import Client
from tests.cluster import nodes
from tests.cluster.nodes import PORTS, Cluster, Host, config_of, three_nodes


async def test_a_queue_is_the_same_wherever_one_is_connected(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert (await b.http("PUT", "/q?store=cluster")).status == 201
        assert (await c.http("PUT", "/q?store=cluster")).status == 200
        assert (await c.http("POST", "/q/messages", b"one")).status == 201
        reply = await a.http("GET", "/q/messages")
        assert (reply.status, reply.body) == (200, b"one")
        id = dict(reply.headers)["x-message-id"]
        assert (await b.http("DELETE", f"/q/messages/{id}")).status == 202
        assert (await c.http("GET", "/q/messages")).status == 204
        assert (await c.http("DELETE", "/q")).status == 200
        assert (await a.http("GET", "/q")).status == 404


async def test_only_the_master_tells_prometheus_how_deep_a_queue_is(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        await a.http("PUT", "/q?store=cluster")
        await b.http("PUT", "/own")
        for name in ("q", "own"):
            assert (await b.http("POST", f"/{name}/messages", b"x")).status == 201
        told = {}
        for host in (a, b):
            body = (await host.http("GET", "/-/metrics")).body
            assert isinstance(body, bytes)
            told[host.name] = set(re.findall(r'^mq_queue_messages\{queue="(\w+)"', body.decode(), re.MULTILINE))
        assert (a.node.membership().role, told) == ("master", {"a": {"q"}, "b": {"own"}})


async def test_store_of_each_queue_is_shown_at_every_node(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        assert (await a.http("PUT", "/q?store=cluster")).status == 201
        assert (await b.http("PUT", "/own")).status == 201
        for host, expected in ((a, {"q": "cluster"}), (b, {"q": "cluster", "own": "node"})):
            listed = json.loads((await host.http("GET", "/-/queues")).body)["queues"]
            assert {each["name"]: each["store"] for each in listed} == expected
            for name, store in expected.items():
                assert json.loads((await host.http("GET", f"/{name}")).body)["store"] == store
            metrics = (await host.http("GET", "/-/metrics")).body
            assert isinstance(metrics, bytes)
            assert dict(re.findall(r'mq_queue_info\{queue="(\w+)",store="(\w+)"\} 1', metrics.decode())) == expected


async def test_a_node_that_stays_alone_says_so(caplog: pytest.LogCaptureFixture, autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        await trio.sleep(ALONE_SECONDS + 0.5)
        assert "only member of its cluster" not in caplog.text
        for name in "ab":
            await cluster.hosts[name].kill()
        await trio.sleep(ALONE_SECONDS + 3.5)  # after a lease
        assert caplog.text.count("node c is the only member of its cluster") == 1


@pytest.mark.slow
async def test_a_master_shares_no_machine_with_what_leads_the_coordinator(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        assert cluster.hosts["a"].node.membership().role == "master"
        for name, led_at in (("b", "b"), ("a", "elsewhere"), ("a", "elsewhere")):
            cluster.ground.led_at = name
            await trio.sleep(41)
            assert cluster.ground.led_at == led_at


async def test_over_amqp_too(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with b.amqp() as producer, c.amqp() as consumer:
            await producer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await producer.publish("q", b"one")
            declared = await consumer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            assert declared.messages == 1
            async with consumer.consume("q") as deliveries:
                delivery = await anext(deliveries)
                assert delivery.body == b"one"
                await consumer.ack(delivery.tag)
            await trio.sleep(1)
            assert await consumer.get("q") is None


async def test_a_consumer_with_a_priority_is_served_first(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        await cluster.hosts["a"].http("PUT", "/q?store=cluster")
        client = await Client(cluster.hosts["c"].accept()).open()
        await client.open_channel(2)
        await client.say(commands.Basic.Consume(queue="q", consumer_tag="plain"), channel=2)
        assert (await client.hear_of())[0] == 2
        await client.say(commands.Basic.Qos(prefetch_count=1), channel=1)
        await client.say(commands.Basic.Consume(queue="q", consumer_tag="high", arguments={"x-priority": 5}))
        assert [(await client.hear()).name for _ in range(2)] == ["Basic.QosOk", "Basic.ConsumeOk"]
        await trio.sleep(1)
        assert (await cluster.hosts["b"].http("POST", "/q/messages", b"x")).status == 201
        channel, delivered = await client.hear_of()
        assert (channel, delivered.name) == (1, "Basic.Deliver")


async def test_the_oldest_is_promoted_and_has_everything(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        for number in range(10):
            assert (await c.http("POST", "/q/messages", b"%d" % number)).status == 201
        leased = await b.http("GET", "/q/messages?visibility=600")
        assert leased.body == b"0"
        began = trio.current_time()
        await a.kill()
        assert (await c.http("POST", "/q/messages", b"10")).status == 201
        assert trio.current_time() - began < 3
        assert b.node.membership().role == "master"
        bodies = [(await c.http("GET", "/q/messages")).body for _ in range(11)]
        assert bodies == [b"%d" % number for number in range(11)], "what was leased is there again, at once"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["ready", "dead-lettered twice", "removed from there"])
async def test_publish_that_is_repeated_is_not_stored_again(step: str, autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, ids = cluster.hosts["a"], cluster.ids
        for queue, target in (("last", None), ("middle", "last"), ("q", "middle")):
            await a.http("PUT", f"/{queue}?store=cluster")
            if target is not None:
                settings = json.dumps({"dead_letter_queue": target, "max_receives": 1}).encode()
                assert (await a.http("PATCH", f"/{queue}", settings)).status == 200
        leadership = a.node._leadership
        assert leadership is not None
        arguments = ["q", [Draft(b"x", id=ids.new())], False]
        first = await leadership.perform(Holder(), "publish", arguments, {})
        for queue in () if step == "ready" else ("q", "middle"):
            assert (await a.http("GET", f"/{queue}/messages?visibility=1")).status == 200
            await trio.sleep(3)
        if step == "removed from there":
            assert (await a.http("POST", "/last/take")).status == 200
        assert await leadership.perform(Holder(), "publish", [*arguments[:2], True], {}) == first
        left = [await left_in(a, queue) for queue in ("q", "middle", "last")]
        assert (
            left
            == {
                "ready": [[b"x"], [], []],
                "dead-lettered twice": [[], [], [b"x"]],
                "removed from there": [[], [], []],
            }[step]
        )


@pytest.mark.parametrize("prefetch", [1, 100])  # it waits for its client, or for messages
async def test_consumers_are_told_and_begin_again(prefetch: int, autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with b.amqp() as on_mirror, c.amqp() as producer:
            await producer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await producer.publish("q", b"one")
            consumer = on_mirror.consume("q", prefetch=prefetch)
            first = await anext(consumer)
            await a.kill()
            with pytest.raises(ConsumerCancelled):
                await anext(consumer)
            again = await anext(on_mirror.consume("q"))
            assert again.body == first.body
            await on_mirror.ack(first.tag)  # of a master that is none any more: it settles nothing
            await on_mirror.ack(again.tag)
            await trio.sleep(1)
            assert (await c.http("GET", "/q")).body
            assert await on_mirror.get("q") is None


async def left_in(host: Host, queue: str) -> list[bytes]:
    """All that is ready, in order."""
    found = []
    while (reply := await host.http("GET", f"/{queue}/messages")).status == 200:
        found.append(bytes(reply.body))
    return found


@pytest.mark.parametrize("is_removed", [False, True])
async def test_what_was_stored_without_an_answer_is_stored_once_and_confirmed(
    is_removed: bool, autojump_clock: MockClock
) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        statuses: list[int] = []

        async def publish() -> None:
            statuses.append((await c.http("POST", "/q/messages", b"once")).status)

        cluster.ground.swallows = True
        nursery.start_soon(publish)
        await trio.sleep(0.5)
        assert statuses == [], "nobody has answered"
        cluster.ground.swallows = False
        if is_removed:  # somebody had it and acknowledged it, before its publisher could hear of anything
            [entry] = await cluster.ground.store.scan(State.READY, "q")
            await cluster.ground.store.commit([Move(entry, State.REMOVED)])
        await a.kill()
        await trio.sleep(5)
        assert statuses == [201]
        assert await left_in(c, "q") == ([] if is_removed else [b"once"])


async def test_whoever_waits_over_http_is_told(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        replies = []

        async def fetch() -> None:
            replies.append(await c.http("GET", "/q/messages?wait=600"))

        nursery.start_soon(fetch)
        await trio.sleep(1)
        await a.kill()
        await trio.sleep(3)
        assert [reply.status for reply in replies] == [503]
        assert "retry-after" in dict(replies[0].headers)


async def test_a_master_that_is_cut_off_stops_before_another_one_begins(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await a.http("PUT", "/q?store=cluster")
        cluster.ground.cut("a")
        ended = began = None
        while began is None:
            await trio.sleep(0.01)
            if ended is None and a.node.membership().role != "master":
                ended = trio.current_time()
            if b.node.membership().role == "master":
                began = trio.current_time()
        assert ended is not None
        assert 0.2 < began - ended < 1


async def test_a_mirror_that_fails_changes_nothing(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with a.amqp() as client:
            await client.declare_queue("q", arguments={"x-queue-type": "quorum"})
            async with client.consume("q") as deliveries:
                await c.kill()
                await trio.sleep(5)
                assert (await b.http("POST", "/q/messages", b"one")).status == 201
                assert (await anext(deliveries)).body == b"one"
        assert cluster.ground.masters == [1]


async def test_what_a_link_held_goes_back_when_it_ends(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with b.amqp() as holder:
            await holder.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await holder.publish("q", b"one")
            assert (await holder.get("q")) is not None
            assert await left_in(a, "q") == []
            await b.kill()
            await trio.sleep(5)
            assert await left_in(c, "q") == [b"one"]


def _losing(verb: Callable[..., Awaitable[Any]], master: Host, lost: Host) -> Callable[..., Awaitable[Any]]:
    """The same verb. Before its caller goes on with what it gave, a node has died, and what that held is put back."""

    async def perform(*args: Any, **named: Any) -> Any:
        value = await verb(*args, **named)
        if value and lost.name in master.node.sessions.nodes:
            with trio.CancelScope(shield=True):
                await lost.kill()
                while lost.name in master.node.sessions.nodes:
                    await trio.sleep(0.01)
                await wait_all_tasks_blocked()
        return value

    return perform


@pytest.mark.parametrize("server", ["AMQP", "HTTP"])
async def test_what_is_handed_out_in_the_step_in_which_its_link_ends_goes_back(
    server: str, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        monkeypatch.setattr(Broker, "hold", _losing(Broker.hold, a, b))
        monkeypatch.setattr(Broker, "fetch_many", _losing(Broker.fetch_many, a, b))

        async def wait_over_amqp() -> None:
            async with b.amqp() as client, client.consume("q") as deliveries:
                await anext(deliveries)

        async def wait_over_http() -> None:
            await b.http("GET", "/q/messages?wait=20&visibility=600")

        async def ignore_its_end(wait: Callable[[], Awaitable[None]]) -> None:
            with suppress(Exception):
                await wait()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ignore_its_end, wait_over_amqp if server == "AMQP" else wait_over_http)
            await trio.sleep(1)
            await a.http("POST", "/q/messages", b"one")
            await trio.sleep(1)
            assert "b" not in a.node.sessions.nodes
            reply = await c.http("GET", "/q/messages")
            nursery.cancel_scope.cancel()
        assert (reply.status, reply.body) == (200, b"one")


async def test_a_queue_is_not_left_to_a_consumer_whose_link_ends_in_that_step(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        monkeypatch.setattr(Broker, "exclude", _losing(Broker.exclude, a, b))

        async def consume_alone() -> None:
            with suppress(Exception):
                async with b.amqp() as client, client.consume("q", exclusive=True) as deliveries:
                    await anext(deliveries)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(consume_alone)
            await trio.sleep(2)
            assert "b" not in a.node.sessions.nodes
            assert (await c.http("GET", "/q/messages")).status == 204
            nursery.cancel_scope.cancel()


async def test_one_consumer_alone_over_all_nodes(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with b.amqp() as first, c.amqp() as second:
            await first.declare_queue("q", arguments={"x-queue-type": "quorum"})
            async with first.consume("q", exclusive=True):
                assert (await c.http("GET", "/q/messages")).status == 423
                with pytest.raises(NotAllowed):
                    await second.get("q")
            await trio.sleep(0.1)
            assert (await c.http("GET", "/q/messages")).status == 204


async def test_a_node_with_another_password_is_let_nowhere(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        stranger = PeerLink(
            config_of("b", "another"), Neighbor("memory", PORTS["a"]), directory := Directory(), cluster.dial
        )
        with trio.move_on_after(3):
            await stranger.run()
        assert directory.term == 0, "it has heard of nothing"


async def test_without_a_majority_nobody_serves_and_says_so(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        await a.http("PUT", "/own")
        for name in "abc":
            cluster.ground.cut(name)
        await trio.sleep(5)
        reply = await c.http("POST", "/q/messages", b"x")
        assert reply.status == 503
        assert b"for etcd: a majority of its members" in bytes(reply.body)
        assert (await a.http("POST", "/own/messages", b"x")).status == 201, "what is only here goes on"
        for name in "abc":
            cluster.ground.mend(name)
        await trio.sleep(5)
        assert (await b.http("POST", "/q/messages", b"x")).status == 201


async def test_a_queue_has_one_place(autojump_clock: MockClock) -> None:
    """Whichever node is asked: where it is decides its name, not who made it."""
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert (await a.http("PUT", "/q?store=cluster")).status == 201
        assert (await b.http("PUT", "/here?store=disk")).status == 201
        assert (await a.http("POST", "/q/messages", b"one")).status == 201
        for host in (a, b, c):
            assert (await host.http("PUT", "/q")).status == 200
            assert (await host.http("PUT", "/q?store=disk")).status == 409
            assert (await host.http("PUT", "/here?store=cluster")).status == 409
            assert json.loads(bytes((await host.http("GET", "/q")).body))["ready"] == 1
        assert (await b.http("GET", "/here")).status == 200
        for host in (a, c):
            assert (await host.http("GET", "/here")).status == 404, "what is not highly available is on its node alone"
        assert (await c.http("GET", "/q/messages")).status == 200
        assert (await b.http("GET", "/q/messages")).status == 204, "there is one queue of that name"


async def test_batches_and_looks_go_to_the_master(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        await a.http("PUT", "/dead?store=cluster")
        lines = b'{"body": "one"}\n{"body": "two"}\n'
        reply = await b.http("POST", "/q/messages/batch", lines, content_type="application/jsonl")
        assert bytes(reply.body).count(b'"status": 201') == 2, reply.body
        assert bytes((await c.http("GET", "/q/peek")).body).count(b'"body"') == 2
        assert (await c.http("PATCH", "/q", b'{"dead_letter_queue": "dead", "max_receives": 1}')).status == 200
        started = json.loads(bytes((await b.http("POST", "/q/consumers/k")).body))
        claim = f"/q/consumers/k/claim?batch=1&epoch={started['epoch']}"
        assert (await b.http("PUT", claim)).status == 201
        assert bytes((await c.http("GET", claim)).body).count(b'"body"') == 2
        assert (await b.http("DELETE", claim)).status == 202
        status = json.loads(bytes((await c.http("GET", "/q")).body))
        assert (status["ready"], status["leased"]) == (0, 0)


@pytest.mark.slow
async def test_what_no_node_could_keep_is_refused(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster, cluster.hosts["b"].amqp() as client:
        with pytest.raises(Conflict, match="cannot be auto-delete or have the argument x-expires"):
            await client.declare_queue("q", arguments={"x-queue-type": "quorum", "x-expires": 1000})


async def test_a_fetch_that_is_given_up_leases_nothing(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        with trio.move_on_after(1):
            await c.http("GET", "/q/messages?wait=600")
        await a.http("POST", "/q/messages", b"one")
        assert await left_in(a, "q") == [b"one"], "nobody waits for it any more"


async def test_large_batches_over_a_link_come_in_parts(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.cluster.link_sessions.LARGEST_REPLY", 1000)
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        for _ in range(5):
            await a.http("POST", "/q/messages", bytes(400))
        reply = await c.http("GET", "/q/messages?max=5")
        assert bytes(reply.body).count(b'"id"') == 2
        await trio.sleep(0.1)
        status = json.loads(bytes((await c.http("GET", "/q")).body))
        assert (status["ready"], status["leased"]) == (3, 2), "the others went back"
        assert (await c.http("GET", "/q/peek?max=3")).status == 413


@pytest.mark.parametrize("has_fence", [True, False])
async def test_only_the_fence_keeps_a_confirmed_message_from_a_master_that_nobody_told(
    has_fence: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its membership has ended, another is master, and it hears of neither. Without a fence that costs a message."""
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await a.http("PUT", "/q?store=cluster")
        cluster.ground.has_fence = has_fence
        monkeypatch.setattr(a.node.directory, "begin", lambda place: None)
        cluster.ground.drop(cluster.ground.members()[0])
        while b.node.membership().role != "master":
            await trio.sleep(0.001)
        assert a.node.membership().role == "master"
        monkeypatch.undo()
        status = (await a.http("POST", "/q/messages", b"one")).status
        found = await left_in(b, "q")
        assert (status, found) == (201, [b"one"] if has_fence else [])


async def test_only_the_margin_ends_one_mastership_before_the_next(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.cluster.node.MARGIN", -0.6)
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        cluster.ground.cut("a")
        while b.node.membership().role != "master":
            await trio.sleep(0.01)
        assert a.node.membership().role == "master", "two at a time"


@pytest.mark.slow
async def test_a_master_that_no_neighbour_reaches_leaves_and_is_the_youngest(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        assert (await c.http("POST", "/q/messages", b"one")).status == 201
        cluster.cut("a", "c")
        await trio.sleep(20)
        assert a.node.membership().role == "master", "b reaches it"
        cluster.cut("a", "b")
        began = trio.current_time()
        assert (await c.http("POST", "/q/messages", b"two")).status == 201
        assert trio.current_time() - began < SILENT_LEASES * cluster.ground.lease_seconds + 3
        await trio.sleep(1)
        assert [member.node for member in cluster.ground.members()] == ["b", "c", "a"]
        assert await left_in(b, "q") == [b"one", b"two"]


@pytest.mark.slow
async def test_where_no_node_reaches_another_mastership_does_not_go_round(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        for one, other in ("ab", "bc", "ac"):
            cluster.cut(one, other)
        await trio.sleep(60)
        settled = list(cluster.ground.masters)
        await trio.sleep(120)
        assert (cluster.ground.masters, len(settled)) == (settled, 4), "each has given way once"
        for one, other in ("ab", "bc", "ac"):
            cluster.mend(one, other)
        await trio.sleep(5)
        for host in cluster.hosts.values():
            assert (await host.http("PUT", "/q?store=cluster")).status in (200, 201)


async def test_a_master_whose_neighbours_are_dead_stays(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        for name in "bc":
            await cluster.hosts[name].kill()
        await trio.sleep(60)
        assert cluster.hosts["a"].node.membership().role == "master"
        assert cluster.ground.masters == [1]


def series(reply: Reply) -> dict[str, float]:
    """What Prometheus hears of a cluster."""
    assert isinstance(reply.body, bytes)
    return {
        name: float(value) for name, value in re.findall(r"^(mq_cluster_\S+) (\S+)$", reply.body.decode(), re.MULTILINE)
    }


async def test_a_node_tells_of_links_leases_and_failovers(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await trio.sleep(5)
        seen = json.loads(bytes((await b.http("GET", "/-/cluster")).body))
        assert (seen["failovers"], seen["lease_seconds"]) == (0, 2)
        assert 1 < seen["lease_remaining_seconds"] <= 1.7
        assert seen["links"] == [
            {"address": f"memory:{port}", "node": node, "is_up": True, "is_inbound_up": True, "latency_seconds": 0.0}
            for node, port in (("a", 1), ("c", 3))
        ]
        assert series(await a.http("GET", "/-/metrics"))["mq_cluster_master"] == 1
        await a.kill()
        await trio.sleep(10)
        found = series(await b.http("GET", "/-/metrics"))
        left = found.pop("mq_cluster_lease_remaining_seconds")
        assert 1 < left <= 1.7
        assert found == {
            "mq_cluster_members": 2,
            "mq_cluster_master": 1,
            "mq_cluster_available": 1,
            "mq_cluster_failovers_total": 1,
            'mq_cluster_link_up{neighbor="memory:1"}': 0,
            'mq_cluster_link_up{neighbor="memory:3"}': 1,
            'mq_cluster_link_inbound_up{neighbor="memory:1"}': 0,
            'mq_cluster_link_inbound_up{neighbor="memory:3"}': 1,
            'mq_cluster_link_latency_seconds{neighbor="memory:3"}': 0,
        }
        assert json.loads(bytes((await c.http("GET", "/-/cluster")).body))["failovers"] == 1


@pytest.mark.slow
async def test_a_neighbour_that_does_not_answer_lags(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        await trio.sleep(1)
        receive = b.node.sessions.receive
        monkeypatch.setattr(b.node.sessions, "receive", lambda drafts: [Published(cluster.ids.new()) for _ in drafts])
        await trio.sleep(30)
        [link] = [link for link in a.node.membership().links if link.node == "b"]
        assert link.is_up
        assert link.latency_seconds is not None
        assert link.latency_seconds > 28
        monkeypatch.setattr(b.node.sessions, "receive", receive)


async def dangers_now(cluster: Cluster) -> list[str]:
    """What speaks against stopping a node, by what the nodes that are up say."""
    replies = [await host.http("GET", "/-/cluster") for host in cluster.hosts.values()]
    return list(dangers([json.loads(bytes(reply.body)) for reply in replies]))


async def test_when_a_node_can_be_stopped(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        await trio.sleep(5)
        assert await dangers_now(cluster) == []
        cluster.cut("b", "c")
        await trio.sleep(5)
        assert await dangers_now(cluster) == [
            "node b cannot reach c at memory:3",
            "c at memory:3 cannot reach node b",
            "node c cannot reach b at memory:2",
            "b at memory:2 cannot reach node c",
        ]
        cluster.mend("b", "c")
        await trio.sleep(5)
        assert await dangers_now(cluster) == []
        await cluster.hosts["c"].kill()
        await trio.sleep(5)
        assert "node a sees 2 of 3 nodes: a, b" in await dangers_now(cluster)
        assert "only 2 of 3 nodes were checked (a, b). Specify the URLs of all nodes" in await dangers_now(cluster)
        for name in "ab":
            cluster.ground.cut(name)
        await trio.sleep(5)
        found = await dangers_now(cluster)
        assert "node b does not see a node that is serving the queues" in found
        assert "the lease of node b ends in 0.0 of 2 s: etcd is slow" in found


async def test_a_node_tells_how_many_machines_keep_the_cluster(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        await trio.sleep(1)
        assert {host.node.membership().voters for host in cluster.hosts.values()} == {3}
        cluster.ground.voters = 1
        await cluster.hosts["c"].kill()
        c = await cluster.start("c")
        await c.wait_for_master()
        await trio.sleep(1)
        reply = await c.http("GET", "/-/cluster")
        assert json.loads(bytes(reply.body))["voters"] == 1


async def test_a_lost_machine_is_replaced_by_an_empty_one_of_its_name(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        assert (await c.http("PUT", "/own?store=disk")).status == 201
        assert (await c.http("POST", "/q/messages", b"one")).status == 201
        await c.kill()
        cluster.roots["c"] = MemoryStorage()  # its disk is lost
        await trio.sleep(5)
        assert (await b.http("PUT", "/own?store=cluster")).status == 409, "the disk may come back"
        c = await cluster.start("c")
        await c.wait_for_master()
        await trio.sleep(2)
        assert await dangers_now(cluster) == []
        assert [member.node for member in cluster.ground.members()] == ["a", "b", "c"]
        assert (await b.http("PUT", "/own?store=cluster")).status == 201, "its names are free again"
        assert await left_in(c, "q") == [b"one"]


async def test_a_drained_master_hands_over_and_takes_no_new_clients(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert (await a.http("PUT", "/q?store=cluster")).status == 201
        assert (await a.http("POST", "/q/messages", b"one")).status == 201
        assert (await a.http("POST", "/-/cluster/drain")).status == 200
        began = trio.current_time()
        while b.node.membership().role != "master" or a.node.membership().role != "mirror":
            await trio.sleep(0.05)
        assert trio.current_time() - began < 2, "without waiting for a lease"
        assert (await a.http("GET", "/-/ready")).status == 503
        with pytest.raises(Unavailable, match="is draining and will be stopped"):
            async with a.amqp():
                pass
        assert (await a.http("GET", "/q")).is_last, "its next request may go to another node"
        await cluster.hosts["c"].kill()
        c = await cluster.start("c")  # its link to a comes in all the same
        await c.wait_for_master()
        await trio.sleep(2)
        assert {link.is_up for link in c.node.membership().links} == {True}
        shown = json.loads(bytes((await c.http("GET", "/-/cluster")).body))
        assert {node["name"]: node["is_draining"] for node in shown["nodes"]} == {"a": True, "b": False, "c": False}
        assert (await c.http("GET", "/q/messages")).body == b"one"


async def test_a_drained_node_leads_only_when_no_other_could(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        for host in (a, b):
            assert (await host.http("POST", "/-/cluster/drain")).status == 200
            await trio.sleep(3)
        assert [host.node.membership().role for host in (a, b, c)] == ["mirror", "mirror", "master"]
        refused = await c.http("POST", "/-/cluster/drain")
        assert (refused.status, b"no other node can take over" in bytes(refused.body)) == (409, True)
        await c.kill()
        await trio.sleep(5)
        assert sorted(host.node.membership().role for host in (a, b)) == ["master", "mirror"]
        assert (await a.http("DELETE", "/-/cluster/drain")).status == 200
        async with a.amqp():
            assert (await a.http("GET", "/-/ready")).status == 200
        await trio.sleep(3)
        assert a.node.membership().role == "master", "the other one is drained still"


async def test_a_node_whose_place_is_another_machine_s_now(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = (cluster.hosts[name] for name in "ab")
        await trio.sleep(1)  # until each has heard of each
        body = json.dumps({"node": "c", "address": "memory:4"}).encode()
        refused = await a.http("POST", "/-/cluster/replace", body)
        assert (refused.status, b"node c is still a member" in bytes(refused.body)) == (409, True)
        await cluster.hosts["c"].kill()
        await trio.sleep(3)
        wrong = json.dumps({"node": "x", "address": "memory:4"}).encode()
        assert (await a.http("POST", "/-/cluster/replace", wrong)).status == 409
        wrong = json.dumps({"node": "c", "address": "memory"}).encode()
        assert (await a.http("POST", "/-/cluster/replace", wrong)).status == 400
        wrong = json.dumps({"node": "c", "address": "memory:2"}).encode()
        assert (await a.http("POST", "/-/cluster/replace", wrong)).status == 409, "b is there"
        cluster.ports["c"] = 4
        cluster.roots["c"] = MemoryStorage()  # another machine, with an empty disk
        for host in (a, b):
            assert (await host.http("POST", "/-/cluster/replace", body)).status == 200
        c = await cluster.start("c")
        await c.wait_for_master()
        await trio.sleep(2)
        assert await dangers_now(cluster) == []
        await a.kill()
        a = await cluster.start("a")  # its file has the old place still
        await a.wait_for_master()
        await trio.sleep(2)
        assert await dangers_now(cluster) == []


async def test_a_place_that_the_file_has_no_more_is_forgotten() -> None:
    async with open_broker(MemoryStorage()) as broker:
        old, other, new = (Neighbor("10.9.0.1", port) for port in (1, 2, 3))
        moved = MovedNeighbors(broker.declarations)
        await moved.put(old, new)
        assert await moved.load([old, other]) == {old: new}
        assert await moved.load([new, other]) == {}
        assert await moved.load([old, other]) == {}, "once the file was changed it is what counts"
        await moved.put(old, new)
        await moved.put(old, old)
        assert await moved.load([old, other]) == {}


@pytest.mark.slow
async def test_unplaced_queues_are_the_clusters_where_nodes_say_so(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = nodes.config_of
    monkeypatch.setattr(nodes, "config_of", lambda name: dataclasses.replace(plain(name), default_store=CLUSTER))
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with b.amqp() as client:
            await client.declare_queue("celery")
            await client.declare_queue("celery")
            await client.declare_queue("celery", arguments={"x-queue-type": "quorum"})
            await client.declare_queue("classic", arguments={"x-queue-type": "classic"})
            await client.declare_queue("short", arguments={"x-expires": 60_000})
        await b.node.broker.declarations.create(QueueName("sqs"), {"visibility": 5.0}, None, is_transient=False)
        for path in ("/http", "/disk?store=disk", "/memory?store=memory"):
            assert (await b.http("PUT", path)).status == 201
        shown = {status.name: status.store for status in await a.node.broker.queues()}
        assert shown == dict.fromkeys(("celery", "sqs", "http"), "cluster")
        assert (await a.node.broker.status("sqs")).settings.visibility == 5
        mine = {status.name: status.store for status in await b.node.broker.queues()}
        assert mine == shown | {"classic": "node", "short": "node", "disk": "node", "memory": "memory"}
