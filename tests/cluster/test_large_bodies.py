"""Bodies of more than WHOLE_BYTES go over links in pieces, and whatever is cut in the middle loses and doubles none."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, cast

import pytest
import trio
from pamqp import commands as methods
from trio.testing import MockClock, wait_all_tasks_blocked

from mq.broker import Draft
from mq.client.amqp.errors import ConsumerCancelled
from mq.cluster import cluster_broker, spool
from mq.cluster.grace_storage import GRACE_SECONDS
from mq.cluster.leadership import Holder
from mq.cluster.link_codec import Coming, encode
from mq.cluster.link_sessions import VERSION, LinkSessions
from mq.cluster.pieces import WHOLE_BYTES, Arrivals, OpenBodies, PiecewiseBody
from mq.cluster.spool import PIECE_BYTES, pieces_of
from mq.errors import CallerError, StorageError
from mq.lifecycle import State
from mq.message import Body, BytesBody, MessageId
from mq.storage.interface import Entry, Stored
from mq.storage.memory import MemoryStorage
from mq.web.exchange import Reply
from tests.cases import proof
from tests.cluster.ground import FencedStorage
from tests.cluster.nodes import Host, three_nodes

pytestmark = pytest.mark.slow  # each test runs three brokers

PIECES = 9
BODY = os.urandom(PIECES * PIECE_BYTES - 7)
assert len(BODY) > WHOLE_BYTES


@pytest.fixture(autouse=True)
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trio's virtual clock runs on while a thread works."""

    async def run_sync(verb: Callable[..., Any], *args: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return verb(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


async def body_of(reply: Reply) -> bytes:
    """All of an answer's body, which is closed then, as a door does."""
    if isinstance(reply.body, bytes):
        return reply.body
    body: Any = reply.body
    try:
        return b"".join([chunk async for chunk in body])
    finally:
        await body.aclose()


@contextmanager
def at_call(kind: type, name: str, number: int, then: Callable[[], object]) -> Iterator[list[int]]:
    """Do something just before the call of that number of a method; what is given counts the calls."""
    real, calls = getattr(kind, name), [0]

    async def counted(self: Any, *args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            then()
        return await real(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, counted)
        yield calls


@pytest.fixture
def holders(monkeypatch: pytest.MonkeyPatch) -> list[Holder]:
    """All that were made: what links have open is there."""
    made: list[Holder] = []
    real = Holder.__init__

    def init(self: Holder) -> None:
        real(self)
        made.append(self)

    monkeypatch.setattr(Holder, "__init__", init)
    return made


async def until_closed(holders: list[Holder]) -> None:
    """Nothing that went over a link is left open at its leader."""
    with trio.fail_after(60):
        while any(len(holder.bodies) or len(holder.arrivals) for holder in holders):
            await trio.sleep(0.1)


async def all_in(host: Host) -> list[bytes]:
    found = []
    while (reply := await host.http("GET", "/q/messages")).status == 200:
        found.append(await body_of(reply))
        id = dict(reply.headers)["x-message-id"]
        assert (await host.http("DELETE", f"/q/messages/{id}")).status == 202
    return found


async def test_a_large_message_passes_through_any_node(autojump_clock: MockClock, holders: list[Holder]) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        for host in (c, a):
            assert (await host.http("POST", "/q/messages", BODY)).status == 201
        for host in (b, a):
            reply = await host.http("GET", "/q/messages")
            assert not isinstance(reply.body, bytes), "it is read while it is sent"
            assert await body_of(reply) == BODY
        await until_closed(holders)


async def test_over_amqp_in_order_with_small_ones(autojump_clock: MockClock, holders: list[Holder]) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with b.amqp() as producer, c.amqp() as consumer:
            await producer.declare_queue("q", arguments={"x-queue-type": "quorum"})
            bodies = [b"1", BODY, b"3", BODY + b"4", b"5"]
            async with trio.open_nursery() as nursery:
                for body in bodies:
                    nursery.start_soon(producer.publish, "q", body)
                    await wait_all_tasks_blocked()
            async with consumer.consume("q") as deliveries:
                for body in bodies:
                    delivery = await anext(deliveries)
                    assert delivery.body == body
                    await consumer.ack(delivery.tag)
        await until_closed(holders)


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (number, fault) if number % 9 == 1 or (number, fault) == (PIECES // 2, "kill") else proof(number, fault)
        for number in range(1, PIECES + 2)
        for fault in ("cut", "kill")
    ],
)
async def test_a_publish_that_is_cut_at_a_piece_is_stored_once(
    number: int, fault: str, autojump_clock: MockClock, holders: list[Holder]
) -> None:
    """The publisher hears of nothing but a pause. A link that is cut comes back; a master that dies has a successor."""
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")

        def break_it() -> None:
            if fault == "kill":
                a.nursery.start_soon(a.kill)
                return
            cluster.cut("a", "c")
            b.nursery.start_soon(mend)

        async def mend() -> None:
            await trio.sleep(0.5)
            cluster.mend("a", "c")

        with at_call(PiecewiseBody, "put", number, break_it) as calls:
            assert (await c.http("POST", "/q/messages", BODY)).status == 201
        if number <= PIECES:  # behind the last one it may be stored already, and is not asked for again
            assert calls[0] == number + PIECES + 1, "it was sent again from its beginning"
        assert await all_in(b) == [BODY]
        await until_closed(holders if fault == "cut" else holders[len(holders) // 2 :])


async def test_a_publish_whose_answer_is_lost_is_not_stored_again(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        statuses: list[int] = []

        async def publish() -> None:
            statuses.append((await c.http("POST", "/q/messages", BODY)).status)

        cluster.ground.swallows = True
        nursery.start_soon(publish)
        await trio.sleep(0.5)
        assert statuses == []
        cluster.ground.swallows = False
        with at_call(PiecewiseBody, "put", 0, print) as calls:
            await a.kill()
            await trio.sleep(5)
        assert statuses == [201]
        assert calls[0] <= 1, "it is there already: the first piece may be on its way when that is heard"
        assert await all_in(c) == [BODY]


async def test_a_second_try_waits_for_the_first(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader has all pieces of it, and does not know yet that its link is lost."""
    go_on = [trio.Event(), trio.Event()]
    waiting = iter(go_on)

    async def stage(self: FencedStorage, chunks: AsyncIterator[bytes]) -> Any:
        staged = await self._store.stage(chunks)
        await next(waiting).wait()
        return staged

    monkeypatch.setattr(FencedStorage, "stage", stage)
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a = cluster.hosts["a"]
        await a.http("PUT", "/q?store=cluster")
        leadership, draft = a.node._leadership, Draft(cast(Any, Coming(1, 3)), id=cluster.ids.new())
        assert leadership is not None

        async def publish(is_again: bool) -> None:
            holder = Holder()
            nursery.start_soon(leadership.perform, holder, "publish_in_pieces", ["q", [draft], is_again], {})
            with trio.move_on_after(1):
                for piece in (b"123", b""):
                    await leadership.perform(holder, "piece", [1, piece], {})
            await trio.sleep(1)

        await publish(is_again=False)
        await publish(is_again=True)
        go_on[0].set()
        await trio.sleep(1)
        assert await all_in(a) == [b"123"]
        go_on[1].set()
        await trio.sleep(1)
        assert await all_in(a) == [], "it is not stored once more after its removal"


@pytest.mark.parametrize("number", [1, PIECES, *map(proof, range(2, PIECES))])
async def test_a_fetch_that_is_cut_at_a_piece_comes_again_whole(
    number: int, autojump_clock: MockClock, holders: list[Holder]
) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        assert (await b.http("POST", "/q/messages", BODY)).status == 201
        reply = await c.http("GET", "/q/messages?visibility=5")
        with at_call(OpenBodies, "piece", number, lambda: cluster.cut("a", "c")), pytest.raises(StorageError):
            await body_of(reply)
        await until_closed(holders)
        assert (await b.http("GET", "/q/messages")).status == 204, "it is leased"
        cluster.mend("a", "c")
        await trio.sleep(6)
        assert await all_in(c) == [BODY]


async def test_a_delivery_that_is_cut_in_the_middle_comes_again(
    autojump_clock: MockClock, holders: list[Holder]
) -> None:
    async with three_nodes() as cluster:
        b, c = cluster.hosts["b"], cluster.hosts["c"]
        async with c.amqp() as client:
            await client.declare_queue("q", arguments={"x-queue-type": "quorum"})
            await client.publish("q", BODY)
            with at_call(OpenBodies, "piece", 4, lambda: cluster.cut("a", "c")), pytest.raises(ConsumerCancelled):
                await anext(client.consume("q"))
        await until_closed(holders)
        await trio.sleep(1)  # the delivery is counted in the store before the message is there again
        assert await all_in(b) == [BODY]


async def test_a_fetch_over_a_failover_comes_again(autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        assert (await b.http("POST", "/q/messages", BODY)).status == 201
        reply = await c.http("GET", "/q/messages?visibility=600")
        with (
            at_call(OpenBodies, "piece", 3, lambda: a.nursery.start_soon(a.kill)),
            pytest.raises(StorageError),
        ):
            await body_of(reply)
        await trio.sleep(5)
        assert await all_in(c) == [BODY], "at once: the next master puts back what was leased"


async def test_a_slow_reader_has_the_leader_wait(autojump_clock: MockClock, holders: list[Holder]) -> None:
    """It is asked for the next piece once the last one was sent; meanwhile the same link carries what others say."""
    async with three_nodes() as cluster:
        a, b, c = (cluster.hosts[name] for name in "abc")
        await a.http("PUT", "/q?store=cluster")
        assert (await b.http("POST", "/q/messages", BODY)).status == 201
        reply = await c.http("GET", "/q/messages?visibility=600")
        with at_call(OpenBodies, "piece", 0, print) as calls:
            chunks: Any = aiter(reply.body)  # type: ignore[arg-type]
            async with aclosing(chunks):
                await anext(chunks)
                await trio.sleep(100)
                assert calls == [1]
                assert (await c.http("POST", "/q/messages", b"small")).status == 201
                assert calls == [1]
        await reply.body.aclose()  # type: ignore[union-attr]
        await until_closed(holders)
        assert await all_in(c) == [b"small"]


class ReadLate:
    """A body whose bytes come from the store when they are read, as PostgreSQL's do."""

    def __init__(self, store: MemoryStorage, id: MessageId, body: Body) -> None:
        self.size = body.size
        self._store = store
        self._id = id
        self._body = body

    async def read(self) -> bytes:
        return b"".join([piece async for piece in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in pieces_of(await self._body.read()):
            if not any(self._id in messages for messages in self._store._places.values()):
                raise StorageError("the message was removed while its body was read")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("name", ["a", "c"])  # from the leader, and from a mirror
async def test_a_slow_reader_gets_all_that_it_takes(
    name: str, is_read: bool, autojump_clock: MockClock, holders: list[Holder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it takes longer than a removed message is kept. It is unlinked when its body is closed, as it is where the
    door ends a client that reads nothing."""
    real = FencedStorage.read

    async def read(self: FencedStorage, entries: Sequence[Entry]) -> list[Stored | None]:
        found = await real(self, entries)
        return [
            each and each._replace(body=ReadLate(self._store, entry.id, each.body))
            for entry, each in zip(entries, found, strict=True)
        ]

    monkeypatch.setattr(FencedStorage, "read", read)
    async with three_nodes() as cluster:
        host, store = cluster.hosts[name], cluster.ground.store
        await host.http("PUT", "/q?store=cluster")
        assert (await host.http("POST", "/q/messages", BODY)).status == 201
        body: Any = (await host.http("POST", "/q/take")).body
        chunks, read_so_far = aiter(body), b""
        async with aclosing(chunks):
            async for chunk in chunks:
                read_so_far += chunk
                await trio.sleep(GRACE_SECONDS / 4)
                if not is_read:
                    await trio.sleep(4 * GRACE_SECONDS)
                    break
        assert len(await store.scan(State.REMOVED)) == 1
        await body.aclose()
        assert not is_read or read_so_far == BODY
        await until_closed(holders)
        await trio.sleep(2)
        assert await store.scan(State.REMOVED) == []


async def test_a_slow_store_holds_a_few_pieces_and_nothing_else(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []

    async def stage(self: FencedStorage, chunks: AsyncIterator[bytes]) -> Any:
        async def slow() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                taken.append(len(chunk))
                await trio.sleep(1)
                yield chunk

        return await self._store.stage(slow())

    monkeypatch.setattr(FencedStorage, "stage", stage)
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        with at_call(PiecewiseBody, "put", 0, print) as calls:
            nursery.start_soon(c.http, "POST", "/q/messages", BODY)
            await trio.sleep(3.5)
            assert len(taken) == 4
            assert calls == [5], "one piece waits at the leader"
            began = trio.current_time()
            assert (await c.http("POST", "/q/messages", b"small")).status == 201
            assert trio.current_time() - began < 0.1
        await trio.sleep(10)
        assert await all_in(c) == [b"small", BODY]


async def test_a_client_that_goes_in_the_middle_stores_nothing(
    autojump_clock: MockClock, holders: list[Holder]
) -> None:
    async with three_nodes() as cluster, trio.open_nursery() as nursery:
        a, c = cluster.hosts["a"], cluster.hosts["c"]
        await a.http("PUT", "/q?store=cluster")
        with at_call(PiecewiseBody, "put", 4, nursery.cancel_scope.cancel):
            nursery.start_soon(c.node.broker.publish_many, "q", [Draft(BODY)])
            await trio.sleep(60)
        pytest.fail("it went on")
    with trio.CancelScope(shield=True):
        await until_closed(holders)
        assert await cluster.ground.store.scan(State.READY, "q") == []


@pytest.mark.parametrize("name", "ac")  # the leader, and a mirror
async def test_what_the_store_does_not_take_is_refused_in_words(name: str, autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        host = cluster.hosts[name]
        await host.http("PUT", "/q?store=cluster")
        limit = 3 * PIECE_BYTES
        description = cluster.ground.store.description._replace(max_body=limit)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(cluster.ground.store), "description", description)
            reply = await host.http("POST", "/q/messages", BODY)
            assert reply.status == 413
            assert f"exceeds the maximum of {limit} bytes".encode() in bytes(reply.body)
            drafts = [Draft(b"1"), Draft(BODY), Draft(b"3")]
            stored, refused, stored_too = await host.node.broker.publish_many("q", drafts)
        assert "BodyTooLarge" in repr(refused)
        assert await all_in(host) == [b"1", b"3"], (stored, stored_too)


@pytest.mark.parametrize("name", "ac")
async def test_a_unique_queue_knows_a_large_body_again(name: str, autojump_clock: MockClock) -> None:
    async with three_nodes() as cluster:
        host = cluster.hosts[name]
        await host.http("PUT", "/q?store=cluster")
        assert (await host.http("PATCH", "/q", b'{"unique": true}', content_type="application/json")).status == 200
        assert (await host.http("POST", "/q/messages", BODY)).status == 201
        again = await host.http("POST", "/q/messages", BODY)
        assert again.status == 200
        found = await host.http("POST", "/q/contains", BODY)
        assert dict(again.headers)["x-message-id"].encode() in bytes(found.body)


async def test_a_node_without_room_says_so(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(file: Any, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with three_nodes() as cluster:
        c = cluster.hosts["c"]
        await c.http("PUT", "/q?store=cluster")
        monkeypatch.setattr(spool, "_write", no_room)
        reply = await c.http("POST", "/q/messages", BODY)
        assert reply.status == 503
        assert b"No space left" in bytes(reply.body)


async def test_a_queue_that_became_local_meanwhile_gets_it_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes() as cluster:
        c = cluster.hosts["c"]
        await c.http("PUT", "/q?store=cluster")
        real = cluster_broker.spool

        async def spool_late(chunks: Any, folder: str) -> Any:
            body = await real(chunks, folder)
            assert (await c.http("DELETE", "/q")).status == 200
            assert (await c.http("PUT", "/q")).status == 201
            return body

        monkeypatch.setattr(cluster_broker, "spool", spool_late)
        assert (await c.http("POST", "/q/messages", BODY)).status == 201
        assert await all_in(c) == [BODY]


async def test_a_request_is_cancelled_before_it_has_begun() -> None:
    """As where both come with one read of the socket: a piece would wait for ever for what takes it."""

    class Patient:
        number = 1

        async def perform(self, *_: Any) -> None:
            await trio.sleep_forever()

    def draft_of(*request: Any) -> Draft:
        properties = methods.Basic.Properties(reply_to="mq.cluster.replies.1", correlation_id=str(request))
        raw = base64.b64encode(properties.marshal()).decode()
        return Draft(encode([*request, {}]), {"amqp": {"properties": raw}})

    sessions = LinkSessions("a", "secret")
    async with trio.open_nursery() as nursery:
        await nursery.start(sessions.run)
        session = sessions.open("mq.cluster.replies.1")
        sessions.receive([draft_of("hello", ["secret", "b", VERSION])])
        sessions.begin(cast(Any, Patient()))
        request = draft_of("piece", [1, b"1"])
        sessions.receive([request, draft_of("cancel", [str(("piece", [1, b"1"]))])])
        await wait_all_tasks_blocked()
        assert session.scopes == {}
        nursery.cancel_scope.cancel()


async def test_pieces_have_to_be_as_long_as_was_announced() -> None:
    arrivals = Arrivals()

    async def put(*pieces: bytes) -> None:
        with arrivals.of(1) as arrival:
            for piece in pieces:
                await arrival.put(piece)

    for pieces in ((b"1234", b"5", b""), (b"123", b"")):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, *pieces)
            with arrivals.of(1) as arrival, pytest.raises(CallerError, match="the declared size of 4 bytes"):
                async with aclosing(arrival.pieces(4)) as found:
                    assert [piece async for piece in found] == []
            nursery.cancel_scope.cancel()
    assert not len(arrivals)


async def test_a_body_is_closed_while_its_reader_is_inside() -> None:
    class Stuck(BytesBody):
        is_closed = False

        async def __aiter__(self) -> AsyncIterator[bytes]:
            await trio.sleep_forever()
            yield b""

        async def aclose(self) -> None:
            self.is_closed = True

    bodies, body = OpenBodies(), Stuck(b"1")
    number = bodies.add(body).number
    async with trio.open_nursery() as nursery:
        reading = trio.CancelScope()

        async def read() -> None:
            with reading:
                await bodies.piece(number)

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        reading.cancel()
        await bodies.close(number)
    assert body.is_closed
    with pytest.raises(StorageError, match="no longer available"):
        await bodies.piece(number)
