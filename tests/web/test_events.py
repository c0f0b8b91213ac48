"""Events of a view: all of it first, then what is new; how a stream ends; and what is shown to whom."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from mq.access import Right, User
from mq.broker import Broker, Draft
from mq.web import events
from mq.web.endpoints import Endpoints
from mq.web.events import LONGEST_SECONDS, EventFeeds, EventStream, View, difference, events_reply, written
from mq.web.exchange import Reply, Request, nobody_hangs_up
from mq.web.http_connection import WaitingRequests
from tests.web.talking import Server, detail, http1, start_server, stream


async def look(endpoints: Endpoints, query: str = "", user: User | None = None) -> Reply:
    return await endpoints.handle(Request("GET", b"/-/events", query.encode(), {}, stream(), None, user=user))


def view_of(piece: bytes) -> Any:
    assert piece.startswith(b"data: ")
    assert piece.endswith(b"\n\n")
    assert piece.count(b"\n") == 2
    return json.loads(piece.removeprefix(b"data: "))


async def seen(endpoints: Endpoints, query: str = "", user: User | None = None) -> Any:
    reply = await look(endpoints, query, user)
    assert reply.status == 200
    assert isinstance(reply.body, bytes)
    assert dict(reply.headers)["content-length"] == str(len(reply.body))
    return view_of(reply.body)


async def views(reply: Reply) -> AsyncGenerator[Any]:
    assert isinstance(reply.body, EventStream)
    async with aclosing(aiter(reply.body)) as pieces:  # type: ignore[type-var]
        assert (await anext(pieces)).startswith(b"retry: ")
        async for piece in pieces:
            yield piece if piece.startswith(b":") else view_of(piece)


async def fill(broker: Broker, **queues: int) -> None:
    for queue, count in queues.items():
        await broker.create_queue(queue)
        await broker.publish_many(queue, [Draft(b"x")] * count)
        await broker.browsing.ranges(queue, 1)  # with that, they are delivered


# What is shown


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["a", "b", "c"]),
        ("reverse=true", ["c", "b", "a"]),
        ("sort=ready", ["b", "c", "a"]),
        ("sort=ready&reverse=true", ["a", "c", "b"]),
        ("sort=oldest", ["b", "c", "a"]),
        ("filter=B", ["b"]),
        ("filter=nothing", []),
        ("skip=1&max=1", ["b"]),
        ("skip=7", []),
    ],
)
async def test_queues_are_sorted_filtered_and_cut(
    broker: Broker, endpoints: Endpoints, query: str, names: list[str]
) -> None:
    await fill(broker, a=0, b=2, c=1)
    view = await seen(endpoints, query)
    assert view["names"] == names
    assert list(view["rows"]) == names
    assert view["matching"] == (3 if "filter" not in query else len(names))
    assert (view["queues"], view["ready"]) == (3, 3)


async def test_dead_letters_are_counted_where_they_lie(broker: Broker, endpoints: Endpoints) -> None:
    await fill(broker, q=1, dead=2)
    await broker.change_settings("q", {"dead_letter_queue": "dead"})
    assert (await seen(endpoints))["dead"] == 2


async def test_who_sees_what(broker: Broker, endpoints: Endpoints) -> None:
    await fill(broker, a=1, b=2)
    nobody, monitor = User("n", {}), User("m", {Right.MONITOR: ("*",)})
    of_a, of_all = User("a", {Right.PUBLISH: ("a",)}), User("all", {Right.ADMINISTER: ("*",)})
    for user, names in ((nobody, []), (monitor, ["a", "b"]), (of_a, ["a"]), (of_all, ["a", "b"]), (None, ["a", "b"])):
        view = await seen(endpoints, user=user)
        assert view["names"] == names
        assert view["queues"] == len(names)
        for queue in ("a", "b"):
            reply = await look(endpoints, f"view=queue&queue={queue}", user)
            assert reply.status == (200 if queue in names else 404)
    there = detail(await look(endpoints, "view=queue&queue=b", of_a))
    assert there.replace("queue b ", "queue nowhere ") == detail(
        await look(endpoints, "view=queue&queue=nowhere", of_a)
    )


# What changes


def test_only_news_is_told() -> None:
    before = {"names": ["a", "b"], "ready": 1, "rows": {"a": {"ready": 1}, "b": {"ready": 0}}}
    assert difference({}, before) == before
    assert difference(before, before) == {}
    now = {"names": ["b", "c"], "ready": 1, "rows": {"b": {"ready": 0}, "c": {"ready": 1}}}
    assert difference(before, now) == {"names": ["b", "c"], "rows": {"c": {"ready": 1}}}


async def test_a_stream_tells_what_changes_and_ends(
    broker: Broker, endpoints: Endpoints, autojump_clock: MockClock
) -> None:
    await fill(broker, a=1, b=0)
    begun = trio.current_time()
    told = views(await look(endpoints, "seconds=60"))
    assert (await anext(told))["names"] == ["a", "b"]
    await fill(broker, b=3)
    news = await anext(told)
    assert news["rows"].keys() == {"b"}
    assert (news["ready"], news["rows"]["b"]["ready"]) == (4, 3)
    assert "names" not in news
    silence = [each async for each in told]  # nothing happens any more, so it says only that it is there
    assert silence
    assert set(silence) == {b":\n\n"}
    assert len(silence) <= LONGEST_SECONDS / 15
    assert trio.current_time() - begun == pytest.approx(LONGEST_SECONDS, abs=2)


async def test_a_stream_ends_with_mq(broker: Broker, endpoints: Endpoints, autojump_clock: MockClock) -> None:
    await fill(broker, a=1)
    told = views(await look(endpoints, "seconds=60"))
    await anext(told)
    endpoints.end_waits()
    assert [each async for each in told] == []


async def test_a_stream_ends_with_its_queue(broker: Broker, endpoints: Endpoints, autojump_clock: MockClock) -> None:
    await fill(broker, a=1)
    told = views(await look(endpoints, "view=queue&queue=a&seconds=60"))
    assert (await anext(told))["ready"] == 1
    await broker.delete_queue("a")
    assert [each async for each in told] == []


async def test_many_who_look_on_cost_one_look(
    broker: Broker, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill(broker, a=1)
    looks = 0
    queues = broker.queues

    async def counted() -> Any:
        nonlocal looks
        looks += 1
        return await queues()

    monkeypatch.setattr(broker, "queues", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(drain, views(await look(endpoints, "seconds=10")))
    assert looks <= 12


async def test_event_is_written_once_for_streams_with_equal_views(
    broker: Broker, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill(broker, a=1, b=1)
    users = (None, User("m", {Right.MONITOR: ("*",)}), *(User(f"u{n}", {Right.PUBLISH: ("a",)}) for n in range(30)))
    writes = 0

    def counted(view: View) -> bytes:
        nonlocal writes
        writes += 1
        return written(view)

    monkeypatch.setattr(events, "written", counted)
    async with trio.open_nursery() as nursery:
        for user in users:
            nursery.start_soon(drain, views(await look(endpoints, "seconds=10", user)))
        for _ in range(3):
            await trio.sleep(2)
            await fill(broker, a=1)
    assert writes == 2 * 4  # for those who see all, and for those who see a


async def test_stream_of_user_without_rights_looks_at_no_queue(
    broker: Broker, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    await fill(broker, a=1)
    monkeypatch.setattr(broker, "queues", None)
    told = views(await look(endpoints, "seconds=60", User("n", {})))
    first = await anext(told)
    assert (first["queues"], first["names"]) == (0, [])
    assert {each async for each in told} == {b":\n\n"}


async def test_changes_come_together_for_a_client_that_reads_slowly(
    broker: Broker, endpoints: Endpoints, autojump_clock: MockClock
) -> None:
    await fill(broker, a=1, b=0)
    fast, slow = views(await look(endpoints, "seconds=60")), views(await look(endpoints, "seconds=60"))
    async with aclosing(fast), aclosing(slow):
        await anext(fast)
        await anext(slow)
        for _ in range(5):
            await fill(broker, a=1)
            await anext(fast)
            await fill(broker, b=1)
            await anext(fast)
        news = await anext(slow)
    assert (news["ready"], news["rows"]["a"]["ready"], news["rows"]["b"]["ready"]) == (11, 6, 5)


async def test_looks_of_many_different_views_take_a_part_of_a_core(autojump_clock: MockClock) -> None:
    """However long one takes: here half a second of virtual time."""
    looks = 0

    async def look_slowly() -> View:
        nonlocal looks
        looks += 1
        await trio.sleep(0.5)
        return {"looks": looks}

    waits, feeds = WaitingRequests(), EventFeeds()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            reply = await events_reply(feeds.feed(number, look_slowly), waits, nobody_hangs_up, 60)
            nursery.start_soon(drain, views(reply))
    assert looks <= 2 * 20


async def test_feed_that_no_stream_shows_is_dropped(autojump_clock: MockClock) -> None:
    async def look() -> View:
        return {}

    feeds = EventFeeds()
    shown = feeds.feed("shown", look)
    reply = await events_reply(shown, WaitingRequests(), nobody_hangs_up, 60)
    unused = feeds.feed("unused", look)
    await unused.refresh()
    assert feeds.feed("unused", look) is unused
    await trio.sleep(2)
    assert feeds.feed("unused", look) is not unused
    assert feeds.feed("shown", look) is shown
    assert isinstance(reply.body, EventStream)
    await reply.body.aclose()
    await trio.sleep(2)
    assert feeds.feed("shown", look) is not shown


async def drain(told: AsyncIterator[Any]) -> None:
    async for _ in told:
        pass


# On the wire


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Set once a stream was let go."""
    event = trio.Event()

    async def aclose(stream: EventStream) -> None:
        event.set()

    monkeypatch.setattr(EventStream, "aclose", aclose)
    return event


async def listen(server: Server) -> trio.SocketStream:
    """A client that has got its first event."""
    client = await server.connect()
    await client.send_all(http1("GET", "/-/events?seconds=60"))
    received = b""
    while b'"names"' not in received:
        received += await client.receive_some()
    assert b"text/event-stream" in received
    return client


async def test_a_client_that_hangs_up_ends_its_stream(
    quick_clock: MockClock, endpoints: Endpoints, nursery: trio.Nursery, closed: trio.Event, *, fast_lane: bool
) -> None:
    server = await start_server(nursery, endpoints, fast_lane=fast_lane)
    await (await listen(server)).aclose()
    await closed.wait()
    server.stop.set()


async def test_mq_stops_while_clients_listen(
    endpoints: Endpoints, nursery: trio.Nursery, closed: trio.Event, *, fast_lane: bool
) -> None:
    server = await start_server(nursery, endpoints, fast_lane=fast_lane)
    client = await listen(server)
    endpoints.end_waits()
    server.stop.set()
    with trio.fail_after(5):  # less than the seconds that requests may run on
        await closed.wait()
        await server.stopped.wait()
    await client.aclose()
