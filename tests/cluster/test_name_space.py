"""One name space over a cluster: a name that is not known is not known to be absent, and none means two queues."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from pamqp import commands as methods
from trio.testing import MockClock

from mq.client.amqp.errors import ConsumerCancelled, Exclusive
from mq.client.errors import NotFound
from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.interface import QUEUE
from mq.storage.records import drop_record, put_record
from tests.amqp.dialling import Client, open_house
from tests.cluster.nodes import Cluster, Host, three_nodes
from tests.cluster.test_nodes import left_in

pytestmark = pytest.mark.slow  # each test runs three brokers

QUORUM = {"x-queue-type": "quorum"}


@asynccontextmanager
async def cold_node() -> AsyncIterator[tuple[Cluster, Host]]:
    """Node c has started again, and nobody who keeps members and names answers it. Before that it knew of `known`;
    `late` was made while it was down."""
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        assert (await a.http("PUT", "/known?store=cluster")).status == 201
        async with raw(c) as client:
            await client.declare("known", QUORUM, durable=True)
            await client.call(methods.Queue.Bind(queue="known", exchange="amq.topic", routing_key="k.#"))
        await c.kill()
        assert (await a.http("PUT", "/late?store=cluster")).status == 201
        yield cluster, await cluster.start("c", is_cut_off=True)


@asynccontextmanager
async def raw(host: Host) -> AsyncIterator[Client]:
    """A client that hears every frame."""
    client = await Client(host.accept()).open()
    yield client
    await client.stream.aclose()


async def confirmed(client: Client, key: str, exchange: str = "", *, mandatory: bool = False) -> list[str]:
    """What a publisher with confirms is told of one message."""
    await client.call(methods.Confirm.Select())
    await client.publish(key, b"one", exchange=exchange, mandatory=mandatory, delivery_mode=2)
    told = []
    with trio.fail_after(60):
        while not told or told[-1] not in ("Basic.Ack", "Basic.Nack", "Channel.Close", "Connection.Close"):
            found = await client.hear()
            told.append(getattr(found, "name", type(found).__name__))
    return told


async def reply_of(host: Host, method: str, path: str) -> tuple[int, str]:
    reply = await host.http(method, path, b"one")
    if reply.status == 503:
        assert "retry-after" in dict(reply.headers)
    return reply.status, bytes(reply.body).decode()


# Not known


@pytest.mark.parametrize("queue", ["known", "late", "nowhere"])
async def test_a_node_that_starts_cold_confirms_nothing_that_it_cannot_place(
    autojump_clock: MockClock, queue: str
) -> None:
    async with cold_node() as (cluster, c), raw(c) as client:
        assert await confirmed(client, queue) == ["Basic.Nack"]
        status, text = await reply_of(c, "POST", f"/{queue}/messages")
        assert status == 503
        assert "no node is serving" in text or "temporarily unable to check" in text
        cluster.mend_all("c")
        await c.wait_for_master()
        assert await confirmed(client, queue) == ["Basic.Ack"]
        if queue == "nowhere":
            assert (await c.http("POST", f"/{queue}/messages", b"one")).status == 404
        else:
            assert b"one" in await left_in(cluster.hosts["a"], queue)


async def test_what_is_published_while_names_are_unknown_waits_for_them(autojump_clock: MockClock) -> None:
    async with cold_node() as (cluster, c), raw(c) as client, trio.open_nursery() as nursery:
        replies = []

        async def publish() -> None:
            replies.append((await c.http("POST", "/late/messages", b"two")).status)

        nursery.start_soon(publish)
        await client.call(methods.Confirm.Select())
        await client.publish("late", b"one", delivery_mode=2)
        assert await client.is_silent(4)
        cluster.mend_all("c")
        assert (await client.hear()).name == "Basic.Ack"
        await trio.sleep(5)
        assert replies == [201]
        assert sorted(await left_in(cluster.hosts["b"], "late")) == [b"one", b"two"]


async def test_bindings_to_queues_of_the_cluster_outlive_a_cold_start(autojump_clock: MockClock) -> None:
    async with cold_node() as (cluster, c), raw(c) as client:
        assert await confirmed(client, "k.1", "amq.topic") == ["Basic.Nack"]
        cluster.mend_all("c")
        await c.wait_for_master()
        assert await confirmed(client, "k.1", "amq.topic") == ["Basic.Ack"]
        assert await left_in(cluster.hosts["a"], "known") == [b"one"]


async def test_an_alternate_exchange_that_leads_to_a_name_waits_for_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        cluster.ground.cut("b")
        async with raw(b) as client:
            alternate = {"alternate-exchange": ""}
            await client.call(methods.Exchange.Declare(exchange="x", exchange_type="direct", arguments=alternate))
            await a.http("PUT", "/q?store=cluster")
            assert await confirmed(client, "q", "x") == ["Basic.Nack"]


async def test_a_mandatory_message_comes_back_only_when_it_is_known_that_nobody_has_its_queue(
    autojump_clock: MockClock,
) -> None:
    async with cold_node() as (cluster, c), raw(c) as client:
        assert await confirmed(client, "nowhere", mandatory=True) == ["Basic.Nack"]
        cluster.mend_all("c")
        assert await confirmed(client, "nowhere", mandatory=True) == [
            *("Basic.Return", "ContentHeader", "ContentBody"),
            "Basic.Ack",
        ]
        assert await confirmed(client, "late", mandatory=True) == ["Basic.Ack"]


async def test_what_has_no_confirm_closes_its_channel_where_it_is_not_stored(autojump_clock: MockClock) -> None:
    async with cold_node() as (_, c), raw(c) as client:
        await client.open_channel(2)
        await client.publish("late", b"one", b"two", channel=2)
        assert await client.is_silent(5)
        number, closed = await client.hear_of()
        assert (number, closed.name, closed.reply_code) == (2, "Channel.Close", 406)
        assert "2 messages were not stored" in closed.reply_text
        await client.declare("", exclusive=True)


@pytest.mark.parametrize(
    "method",
    [methods.Basic.Get(queue="known"), methods.Queue.Purge(queue="known")],
    ids=lambda method: method.name,
)
async def test_a_queue_that_nobody_serves_is_refused_on_its_channel(autojump_clock: MockClock, method: Any) -> None:
    async with cold_node() as (_, c), raw(c) as client:
        await client.open_channel(2)
        await client.say(method, channel=2)
        with trio.fail_after(60):
            number, closed = await client.hear_of()
        assert (number, closed.name, closed.reply_code) == (2, "Channel.Close", 406)
        await client.declare("", exclusive=True)


async def test_a_transaction_that_cannot_be_placed_is_not_committed(autojump_clock: MockClock) -> None:
    async with cold_node() as (cluster, c), raw(c) as client:
        await client.call(methods.Tx.Select())
        await client.publish("late", b"one", delivery_mode=2)
        assert (await client.call(methods.Tx.Commit())).reply_code == 406
        cluster.mend_all("c")
        await client.open_channel(2)
        await client.call(methods.Tx.Select(), 2)
        await client.publish("late", b"one", channel=2, delivery_mode=2)
        await client.publish("nowhere", b"two", channel=2, mandatory=True)
        await client.say(methods.Tx.Commit(), channel=2)
        told = [getattr(await client.hear(), "name", "") for _ in range(4)]
        assert told == ["Basic.Return", "ContentHeader", "ContentBody", "Tx.CommitOk"]
        assert await left_in(cluster.hosts["a"], "late") == [b"one"]


@pytest.mark.parametrize("queue", ["known", "late"])
async def test_declares_and_consumers_wait_until_names_are_known(autojump_clock: MockClock, queue: str) -> None:
    async with cold_node() as (cluster, c), raw(c) as one, raw(c) as other, trio.open_nursery() as nursery:
        answers: dict[str, str] = {}

        async def ask(client: Client, what: str, method: Any) -> None:
            answers[what] = (await client.call(method)).name

        nursery.start_soon(ask, one, "consume", methods.Basic.Consume(queue=queue))
        nursery.start_soon(ask, other, "declare", methods.Queue.Declare(queue=queue, durable=True, arguments=QUORUM))
        await trio.sleep(5)
        assert answers == ({} if queue == "late" else {"consume": "Basic.ConsumeOk"})
        cluster.mend_all("c")
        await c.wait_for_master()
        await trio.sleep(1)
        assert answers == {"consume": "Basic.ConsumeOk", "declare": "Queue.DeclareOk"}


async def test_who_waits_in_vain_is_told_so(autojump_clock: MockClock) -> None:
    async with cold_node() as (_, c):
        for method in (methods.Basic.Consume(queue="late"), methods.Basic.Get(queue="late")):
            async with raw(c) as client:
                closed = await client.call(method)
                assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
                assert "temporarily unable to check" in closed.reply_text


async def test_a_node_that_starts_cold_makes_no_queue_of_its_own(autojump_clock: MockClock) -> None:
    async with cold_node() as (cluster, c), raw(c) as client:
        assert (await reply_of(c, "PUT", "/late"))[0] == 503
        assert (await reply_of(c, "PUT", "/new?store=disk"))[0] == 503
        server_named = await client.declare("", exclusive=True)
        assert await confirmed(client, server_named) == ["Basic.Ack"], "the cluster has none of these"
        assert (await client.call(methods.Queue.Declare(queue="late", durable=True))).reply_code == 406
        cluster.mend_all("c")
        await c.wait_for_master()
        assert (await reply_of(c, "PUT", "/new?store=disk"))[0] == 201
        assert (await reply_of(c, "PUT", "/late"))[0] == 200
        assert (await reply_of(c, "PUT", "/late?store=disk"))[0] == 409


async def test_other_declarations_do_not_wait_for_one_that_waits(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b = cluster.hosts["b"]
        await b.http("PUT", "/here")
        cluster.ground.cut("b")
        async with raw(b) as one, raw(b) as other, trio.open_nursery() as nursery:
            nursery.start_soon(one.call, methods.Queue.Declare(queue="new", durable=True))
            await trio.sleep(1)
            with trio.fail_after(1):
                await other.declare("here", durable=True)
                await other.declare("", exclusive=True)


# Links cut


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_queue_that_was_made_beyond_a_cut_link_is_not_taken_for_absent(
    autojump_clock: MockClock, is_told: bool
) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        cluster.cut("a", "b")
        if not is_told:
            cluster.ground.cut("b")
        async with a.amqp() as client:
            await client.declare_queue("q", arguments=QUORUM)
        async with raw(b) as client:
            assert await confirmed(client, "q") == ["Basic.Nack"]
            assert (await b.http("POST", "/q/messages", b"one")).status == 503
            cluster.mend("a", "b")
            cluster.ground.mend("b")
            await b.wait_for_master()
            assert await confirmed(client, "q") == ["Basic.Ack"]
        assert await left_in(a, "q") == [b"one"]


async def test_a_name_is_known_everywhere_once_its_declaration_is_answered(autojump_clock: MockClock) -> None:
    """Although nobody has told the others of it yet."""
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        cluster.ground.is_mute = True
        async with raw(b) as client, raw(c) as other:
            await client.call(methods.Confirm.Select())
            await other.declare("q", QUORUM, durable=True)
            await client.publish("q", b"one", delivery_mode=2)
            assert (await client.hear()).name == "Basic.Ack"
            assert await left_in(a, "q") == [b"one"]


async def test_what_was_declared_elsewhere_counts_for_the_first_message(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        cluster.ground.is_mute = True
        async with raw(b) as client, raw(c) as other:
            await client.call(methods.Confirm.Select())
            await other.declare("q", {**QUORUM, "x-max-priority": 9}, durable=True)
            await client.publish("q", b"low", priority=1)
            await client.publish("q", b"high", priority=9)
            await trio.sleep(1)
            assert await left_in(c, "q") == [b"high", b"low"]


# Gone


async def test_a_deleted_name_is_known_to_be_absent_everywhere(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        async with raw(b) as client:
            await client.declare("q", QUORUM, durable=True)
            await client.call(methods.Queue.Bind(queue="q", exchange="amq.fanout", routing_key=""))
            await client.consume("q", tag="mine")
            await a.http("DELETE", "/q")
            assert (await client.hear()).name == "Basic.Cancel"
            assert (await b.http("POST", "/q/messages", b"x")).status == 404
            assert (await confirmed(client, "q", mandatory=True))[0] == "Basic.Return"
            assert (await confirmed(client, "", "amq.fanout", mandatory=True))[0] == "Basic.Return"
            assert (await c.http("PUT", "/q?store=disk")).status == 201, "the name is free"
            assert (await b.http("PUT", "/q?store=cluster")).status == 409
            assert (await c.http("DELETE", "/q")).status == 200
            assert (await b.http("PUT", "/q?store=cluster")).status == 201, "at once"


async def test_what_is_gone_is_made_again_although_nobody_has_told_that_it_is_gone(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        for queue in "pq":
            assert (await b.http("PUT", f"/{queue}?store=cluster")).status == 201
        cluster.ground.is_mute = True
        for queue in "pq":
            await a.http("DELETE", f"/{queue}")
        assert (await b.http("PUT", "/p")).status == 201
        assert (await b.http("POST", "/p/messages", b"x")).status == 201
        async with raw(b) as client:
            await client.declare("q", QUORUM, durable=True)
            assert await confirmed(client, "q") == ["Basic.Ack"]
        assert await left_in(a, "q") == [b"one"]


async def test_what_was_deleted_while_a_node_was_down_is_gone_with_its_bindings(autojump_clock: MockClock) -> None:
    async with cold_node() as (cluster, c):
        await c.kill()
        a = cluster.hosts["a"]
        await a.http("DELETE", "/known")
        await a.http("PUT", "/known?store=cluster")  # another one
        c = await cluster.start("c")
        await c.wait_for_master()
        async with raw(c) as client:
            assert await confirmed(client, "known") == ["Basic.Ack"]
            assert (await confirmed(client, "k.1", "amq.topic", mandatory=True))[0] == "Basic.Return"
        assert await left_in(a, "known") == [b"one"]


async def test_a_queue_that_comes_again_is_used_as_it_is_declared_now(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with b.amqp() as old, raw(c) as other:
            await old.declare_queue("q", arguments=QUORUM)
            consumer = old.consume("q")
            async with trio.open_nursery() as nursery:

                async def consume() -> None:
                    with pytest.raises(ConsumerCancelled):
                        await anext(consumer)

                nursery.start_soon(consume)
                await trio.sleep(1)
                await other.call(methods.Queue.Delete(queue="q"))
                await other.declare("q", {**QUORUM, "x-max-length": 5}, durable=True)
            async with raw(b) as client:
                await client.declare("q", {**QUORUM, "x-max-length": 5}, durable=True)


# One name space


async def test_a_queue_of_one_node_is_not_made_again_for_all(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        assert (await b.http("PUT", "/q")).status == 201
        for host, text in (
            (a, "node b"),
            (c, "node b"),
            (b, "node b"),
        ):
            status, said = await reply_of(host, "PUT", "/q?store=cluster")
            assert status == 409
            assert text in said
            async with raw(host) as client:
                closed = await client.call(methods.Queue.Declare(queue="q", durable=True, arguments=QUORUM))
                assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
                assert text in closed.reply_text
        assert (await c.http("PUT", "/q")).status == 201, "two nodes may have one of that name each"
        await b.http("DELETE", "/q")
        assert "on node c alone" in (await reply_of(a, "PUT", "/q?store=cluster"))[1]


@pytest.mark.parametrize("declared", [{"durable": True}, {"durable": False}, {"exclusive": True}])
async def test_a_queue_of_the_cluster_is_not_made_again_on_a_node(
    autojump_clock: MockClock, declared: dict[str, bool]
) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        assert (await a.http("PUT", "/q?store=cluster")).status == 201
        async with raw(b) as client:
            closed = await client.call(methods.Queue.Declare(queue="q", **declared))
            assert (closed.name, closed.reply_code) == ("Channel.Close", 406)
            assert "already exists as a cluster queue" in closed.reply_text
        assert (await b.http("PUT", "/q?store=memory")).status == 409


@pytest.mark.parametrize("first", ["b", "a"])
async def test_of_two_that_make_a_name_at_the_same_time_one_is_refused(autojump_clock: MockClock, first: str) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        found: dict[str, int] = {}

        async def make(name: str, place: str) -> None:
            found[name] = (await cluster.hosts[name].http("PUT", f"/q?store={place}")).status

        makers = [("a", "cluster"), ("b", "disk")]
        for name, place in makers if first == "a" else makers[::-1]:
            nursery.start_soon(make, name, place)
        await trio.sleep(5)
        assert sorted(found.values()) == [201, 409]


async def test_a_queue_that_its_connection_takes_with_it_frees_its_name(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            await client.declare("mine", exclusive=True)
            assert (await a.http("PUT", "/mine?store=cluster")).status == 409
        await trio.sleep(1)
        assert (await a.http("PUT", "/mine?store=cluster")).status == 201


async def test_a_connection_takes_many_queues_with_it_though_nobody_answers_for_their_names(
    autojump_clock: MockClock,
) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            for number in range(50):
                await client.declare(f"mine-{number}", exclusive=True)
            cluster.ground.cut("b")
        await trio.sleep(10)
        assert not any(b.node.broker.declarations.knows(f"mine-{number}") for number in range(50))
        cluster.ground.mend("b")
        await trio.sleep(5)
        assert (await a.http("PUT", "/mine-49?store=cluster")).status == 201


async def test_a_name_that_could_not_be_released_is_released_later(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        await b.http("PUT", "/q")
        cluster.ground.cut("b")
        assert (await b.http("DELETE", "/q")).status == 200
        assert (await a.http("PUT", "/q?store=cluster")).status == 409
        cluster.ground.mend("b")
        await trio.sleep(3)
        assert (await a.http("PUT", "/q?store=cluster")).status == 201


async def test_no_name_of_the_servers_choice_is_the_clusters(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        assert (await a.http("PUT", "/amq.gen-1?store=cluster")).status == 409
        async with raw(b) as client:
            closed = await client.call(methods.Queue.Declare(queue="", durable=True, arguments=QUORUM))
            assert closed.reply_code == 406


# Who joins


async def test_a_node_that_has_a_queue_of_the_clusters_name_for_itself_does_not_join(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        await c.kill()
        await put_record(cluster.roots["c"], QUEUE, "q", {"created": 1})
        with pytest.raises((StorageUnusable, ExceptionGroup)) as refusal:
            await cluster.start("c")
        error: BaseException = refusal.value
        while isinstance(error, BaseExceptionGroup):
            [error] = error.exceptions
        assert isinstance(error, StorageUnusable)
        assert "node c has local queues with the same names as cluster queues: q." in str(error)
        assert "without --cluster" in str(error)


async def test_what_a_node_brings_along_is_reserved_before_its_doors_open(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await c.http("PUT", "/gone")
        await c.kill()
        await put_record(cluster.roots["c"], QUEUE, "brought", {"created": 1})
        await drop_record(cluster.roots["c"], QUEUE, "gone")
        await cluster.start("c")
        assert "on node c alone" in (await reply_of(a, "PUT", "/brought?store=cluster"))[1]
        await trio.sleep(1)
        assert (await a.http("PUT", "/gone?store=cluster")).status == 201


async def test_a_root_that_was_never_in_its_cluster_waits_for_it(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        c = cluster.hosts["c"]
        await c.kill()
        cluster.roots["c"] = type(cluster.roots["c"])()
        nursery.start_soon(lambda: cluster.start("c", is_cut_off=True))
        await trio.sleep(15)
        assert "c" not in cluster.hosts
        cluster.mend_all("c")
        await trio.sleep(1)
        assert "c" in cluster.hosts


async def test_a_root_that_is_served_alone_for_once_keeps_what_leads_to_the_cluster(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            await client.declare("q", QUORUM, durable=True)
            await client.call(methods.Queue.Bind(queue="q", exchange="amq.fanout", routing_key=""))
        await b.kill()
        async with open_house(cluster.roots["b"]) as house:
            await (await house.connect()).declare("here", durable=True)
        b = await cluster.start("b")
        await b.wait_for_master()
        async with raw(b) as client:
            assert await confirmed(client, "", "amq.fanout") == ["Basic.Ack"]
        assert await left_in(a, "q") == [b"one"]


# Dead letters


async def test_what_dies_waits_until_it_is_known_whether_its_next_queue_is_there(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b = cluster.hosts["a"], cluster.hosts["b"]
        async with raw(b) as client:
            dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "grave", "x-message-ttl": 1000}
            await client.declare("dying", dying, durable=True)
            cluster.ground.cut("b")
            await client.publish("dying", b"one", delivery_mode=2)
            await a.http("PUT", "/grave?store=cluster")
            await trio.sleep(20)
            assert await cluster.ground.store.scan(State.READY, "grave") == []
            cluster.ground.mend("b")
            await trio.sleep(30)
            assert await left_in(a, "grave") == [b"one"]


async def test_what_another_client_has_alone_is_refused_as_ever(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        b = cluster.hosts["b"]
        async with b.amqp() as one, b.amqp() as other, raw(b) as owner:
            await owner.declare("mine", exclusive=True)
            with pytest.raises(Exclusive):
                await other.get("mine")
            with pytest.raises(NotFound):
                await one.get("nowhere")
