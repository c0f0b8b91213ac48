"""Exchanges and bindings of a cluster: what is declared at one node routes what is published at every other one."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from pamqp import commands as methods
from trio.testing import MockClock

from tests.amqp.dialling import Client, open_house
from tests.cluster.nodes import Host, three_nodes
from tests.cluster.test_name_space import QUORUM, confirmed, raw
from tests.cluster.test_nodes import left_in

pytestmark = pytest.mark.slow  # each test runs three brokers


async def declare(client: Client, exchange: str, kind: str = "topic", **traits: Any) -> None:
    method = methods.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=True, **traits)
    await client.call(method)


async def bind(client: Client, queue: str, exchange: str, key: str = "k.#") -> None:
    await client.call(methods.Queue.Bind(queue=queue, exchange=exchange, routing_key=key))


async def bound(client: Client, exchange: str = "x") -> None:
    """An exchange, a queue of the cluster, and a binding."""
    await declare(client, exchange)
    await client.declare("q", QUORUM, durable=True)
    await bind(client, "q", exchange)


async def is_routed(host: Host, exchange: str = "x", key: str = "k.1") -> bool:
    """Whether a mandatory message at a node comes to a queue."""
    async with raw(host) as client:
        told = await confirmed(client, key, exchange, mandatory=True)
    assert told[-1] == "Basic.Ack", told
    return told == ["Basic.Ack"]


async def refusal(client: Client, method: Any) -> int:
    """The reply code with which the channel is closed."""
    await client.say(method)
    closed = await client.hear()
    assert isinstance(closed, methods.Channel.Close), closed
    return int(closed.reply_code)


async def test_a_binding_that_is_declared_at_one_node_routes_at_the_others_at_once(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(b) as client:
            await bound(client)
            assert [await is_routed(host) for host in (a, b, c)] == [True] * 3
            assert len(await left_in(c, "q")) == 3
            await client.call(methods.Queue.Unbind(queue="q", exchange="x", routing_key="k.#"))
            assert [await is_routed(host) for host in (a, b, c)] == [False] * 3
            await bind(client, "q", "amq.topic")
            assert [await is_routed(host, "amq.topic") for host in (a, b, c)] == [True] * 3


async def test_exchanges_lead_to_exchanges_of_the_cluster(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(b) as client, raw(c) as other:
            await bound(client)
            await declare(client, "front", "fanout")
            await other.call(methods.Exchange.Bind(destination="x", source="front", routing_key=""))
            await declare(other, "spare", "direct", arguments={"alternate-exchange": "front"})
        assert await is_routed(a, "front")
        assert await is_routed(b, "spare")


@pytest.mark.parametrize("gone", ["exchange", "queue"])
async def test_with_an_end_goes_a_binding_at_every_node(autojump_clock: MockClock, gone: str) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(b) as client, raw(c) as other:
            await bound(client)
            await other.declare("own", durable=True)
            await bind(other, "own", "x")
            if gone == "exchange":
                await client.call(methods.Exchange.Delete(exchange="x"))
                await declare(client, "x")
                assert [await is_routed(host) for host in (a, b, c)] == [False] * 3
                assert not await cluster.roots["c"].records("amqp-binding"), "nor does it come back with a restart"
            else:
                await client.call(methods.Queue.Delete(queue="q"))
                await client.declare("q", QUORUM, durable=True)
                assert [await is_routed(host) for host in (a, b, c)] == [False, False, True], "c has a queue of its own"
        assert await left_in(a, "q") == []


async def test_of_two_exchanges_of_one_name_the_second_is_refused(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with raw(b) as client, raw(c) as other:
            await declare(client, "x", "topic")
            await declare(other, "x", "topic")
            wrong = methods.Exchange.Declare(exchange="x", exchange_type="fanout", durable=True)
            assert await refusal(other, wrong) == 406
            # and where the two come together
            codes = []

            async def declare_as(host: Host, kind: str) -> None:
                async with raw(host) as its:
                    method = methods.Exchange.Declare(exchange="y", exchange_type=kind, durable=True)
                    await its.say(method)
                    codes.append(type(await its.hear()).__name__)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(declare_as, b, "direct")
                nursery.start_soon(declare_as, c, "fanout")
            assert sorted(codes) == ["Close", "DeclareOk"]


async def test_no_binding_is_answered_that_a_member_has_not_heard_of(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        async with raw(a) as client:
            await declare(client, "x")
            await client.declare("q", QUORUM, durable=True)
            cluster.ground.is_mute = True
            await client.say(methods.Queue.Bind(queue="q", exchange="x", routing_key="k.#"))
            assert await client.is_silent(10)
            cluster.ground.is_mute = False
            assert isinstance(await client.hear(), methods.Queue.BindOk)
            assert await is_routed(c)
            cluster.ground.is_mute = True
            unbind = methods.Queue.Unbind(queue="q", exchange="x", routing_key="k.#")
            assert await refusal(client, unbind) == 406, "it may be so later"


async def test_a_node_that_is_no_member_routes_nothing_by_what_it_knew(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        async with raw(a) as client, raw(c) as away:
            await declare(client, "x")
            await client.declare("q", QUORUM, durable=True)
            cluster.ground.cut("c")
            began = trio.current_time()
            await bind(client, "q", "x")
            assert trio.current_time() - began < 3, "until its lease was over"
            assert await confirmed(away, "k.1", "x") == ["Basic.Nack"], "for it may be bound"
            reply = await c.http("POST", "/-/exchanges/x/messages?routing_key=k.1", b"x")
            assert reply.status in (404, 503)
            await away.publish("k.1", b"two", exchange="x", delivery_mode=2)
            assert await away.is_silent(3)
            cluster.ground.mend("c")
            assert (await away.hear()).name == "Basic.Ack"
            assert await left_in(a, "q") == [b"two"]
            assert (await confirmed(away, "none", "x", mandatory=True))[0] == "Basic.Return"


async def test_a_node_that_comes_later_has_all_of_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            await bound(client)
        await b.kill()
        async with raw(a) as client:
            await declare(client, "late", "fanout")
            await bind(client, "q", "late")
            await client.call(methods.Queue.Unbind(queue="q", exchange="x", routing_key="k.#"))
        b = await cluster.start("b")
        await b.wait_for_master()
        assert await is_routed(b, "late")
        assert not await is_routed(b)
        assert len(await left_in(a, "q")) == 1


async def test_a_node_that_comes_back_waits_until_it_has_heard_of_all(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        async with raw(a) as client, raw(c) as away:
            await bound(client)
            cluster.ground.cut("c")
            await declare(client, "y")
            await bind(client, "q", "y", "other.#")
            await bind(client, "q", "x", "other.#")
            cluster.ground.is_mute = True  # it is a member again, and what tells of bindings is behind
            cluster.ground.mend("c")
            await away.call(methods.Confirm.Select())
            await away.publish("other.1", b"one", exchange="x", delivery_mode=2)
            assert await away.is_silent(5)
            assert c.node.membership().role == "mirror"
            cluster.ground.is_mute = False
            assert (await away.hear()).name == "Basic.Ack"
            assert await left_in(a, "q") == [b"one"]


async def test_the_next_master_goes_on_with_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(a) as client:
            await bound(client)
        await a.kill()
        await c.wait_for_master()
        async with raw(c) as client:
            await declare(client, "y", "fanout")
            await bind(client, "q", "y")
        assert [await is_routed(b, each) for each in "xy"] == [True, True]
        async with raw(b) as client:
            await client.call(methods.Queue.Delete(queue="q"))
        records = await cluster.ground.store.records("amqp-binding")
        assert not records, "nothing is left that would come back with the next queue of that name"


async def test_what_a_node_had_for_itself_it_hands_over(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await b.kill()
        async with open_house(cluster.roots["b"]) as house:
            client = await house.connect()
            await declare(client, "x")
            await client.declare("own", durable=True)
            await bind(client, "own", "x", "own")
        b = await cluster.start("b")
        await b.wait_for_master()
        async with raw(b) as client:
            await client.declare("q", QUORUM, durable=True)
            await bind(client, "q", "x")
        assert await is_routed(a)
        assert await is_routed(b, key="own")
        assert not await is_routed(a, key="own"), "that queue is b's alone"
        kept = await cluster.roots["b"].records("amqp-exchange")
        assert not kept


async def test_an_exchange_that_two_had_otherwise_stays_each_ones_own(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await b.kill()
        async with open_house(cluster.roots["b"]) as house:
            await declare(await house.connect(), "x", "fanout")
        async with raw(a) as client:
            await bound(client)
        b = await cluster.start("b")
        await b.wait_for_master()
        assert [await is_routed(host, key="other") for host in (a, b)] == [False, True]
        async with raw(b) as client:
            await client.call(methods.Exchange.Delete(exchange="x"))
            passive = methods.Exchange.Declare(exchange="x", exchange_type="fanout", passive=True)
            assert await refusal(client, passive) == 404, "b's own is gone"
        assert await is_routed(a), "the cluster's is not"
        assert (
            "cannot share an exchange or binding with the other nodes (exchange x already exists with a different type"
            in caplog.text
        )


async def test_what_dies_goes_through_the_clusters_exchange(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(c) as client:
            await declare(client, "dead", "fanout")
            await client.declare("grave", QUORUM, durable=True)
            await bind(client, "grave", "dead", "")
            await client.declare("q", QUORUM | {"x-dead-letter-exchange": "dead"}, durable=True)
            assert await confirmed(client, "q") == ["Basic.Ack"]
        await a.kill()
        await c.wait_for_master()
        async with raw(c) as client:
            got = await client.get("q")
            assert got is not None
            await client.say(methods.Basic.Reject(delivery_tag=got[0].delivery_tag, requeue=False))
            while not (found := await left_in(b, "grave")):
                await trio.sleep(0.1)
        assert found == [b"one"]


async def test_a_root_that_is_served_alone_for_once_keeps_what_is_bound_to_the_clusters_exchange(
    autojump_clock: MockClock,
) -> None:
    async with three_nodes() as cluster:
        b = cluster.hosts["b"]
        async with raw(b) as client:
            await bound(client)
            await client.declare("own", durable=True)
            await bind(client, "own", "x", "own")
        await b.kill()
        async with open_house(cluster.roots["b"]) as house:
            client = await house.connect()
            assert (await confirmed(client, "own", "x")) == ["Basic.Ack"]
        b = await cluster.start("b")
        await b.wait_for_master()
        assert await is_routed(b, key="own")
        assert await is_routed(b)
        assert len(await left_in(b, "own")) == 2


async def test_what_goes_by_itself_is_one_nodes_own(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            await declare(client, "x", auto_delete=True)
            await client.declare("q", QUORUM, durable=True)
            await bind(client, "q", "x")
            assert await is_routed(b)
            async with raw(a) as other:
                passive = methods.Exchange.Declare(exchange="x", exchange_type="topic", passive=True)
                assert await refusal(other, passive) == 404
            await client.call(methods.Queue.Unbind(queue="q", exchange="x", routing_key="k.#"))
            passive = methods.Exchange.Declare(exchange="x", exchange_type="topic", passive=True)
            assert await refusal(client, passive) == 404
