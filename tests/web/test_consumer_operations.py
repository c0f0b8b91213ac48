"""Claims and browsing, asked for over HTTP."""

from __future__ import annotations

import json
import re
from typing import Any
from unittest.mock import ANY

import pytest

from mq.access import Right, User
from mq.broker import Broker, ConsumerPosition, Draft, QueueStatus
from mq.broker.index import QueueIndex
from mq.broker.queues import Queues
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from tests.cases import for_each
from tests.web.talking import MAX_BODY, ask, detail, publish, stream
from tests.web.test_features import call


@pytest.fixture
async def endpoints(broker: Broker) -> Endpoints:
    await broker.create_queue("q")
    return Endpoints(broker, MAX_BODY)


async def fill(endpoints: Endpoints, count: int) -> list[str]:
    return [await publish(endpoints, "q", b"%d" % number) for number in range(count)]


async def start(endpoints: Endpoints) -> int:
    status, standing = await call(endpoints, "POST /q/consumers/c")
    assert status == 200
    return int(standing["epoch"])


async def page(endpoints: Endpoints, target: str) -> tuple[list[dict[str, Any]], str | None]:
    """The lines of a batch, and where the next one is."""
    reply = await get(endpoints, target)
    assert reply.status == 200, detail(reply)
    assert isinstance(reply.body, bytes)
    found = re.fullmatch(r'<(.+)>; rel="next"', dict(reply.headers).get("link", ""))
    return [json.loads(line) for line in reply.body.splitlines()], found[1] if found else None


async def get(endpoints: Endpoints, target: str, **headers: str) -> Reply:
    path, _, query = target.partition("?")
    return await endpoints.handle(Request("GET", path.encode(), query.encode(), headers, stream(), 0))


async def positions(endpoints: Endpoints, query: str = "", user: User | None = None) -> dict[str, dict[str, Any]]:
    reply = await endpoints.handle(Request("GET", b"/-/consumers/c", query.encode(), {}, stream(), 0, user=user))
    assert reply.status == 200, detail(reply)
    assert isinstance(reply.body, bytes)
    return {each["queue"]: each for each in json.loads(reply.body)["queues"]}


async def test_one_request_tells_how_far_a_consumer_is_in_all_queues(endpoints: Endpoints, broker: Broker) -> None:
    for queue in ("r", "empty"):
        await broker.create_queue(queue)
    await fill(endpoints, 3)
    epoch = await start(endpoints)
    await call(endpoints, f"PUT /q/consumers/c/claim?batch=1&epoch={epoch}&max=2")
    found = await positions(endpoints)
    assert list(found) == ["empty", "q", "r"]
    _, own = await call(endpoints, "GET /q/consumers/c")
    assert found["q"] == {
        **own,
        "high_watermark": ANY,
        "queue": "q",
        "ready": 1,
        "leased": 2,
        "delayed": 0,
        "oldest_seconds": ANY,
    }
    assert (found["q"]["batch"], found["q"]["messages"], found["r"]["epoch"]) == (1, 2, 0)
    assert list(await positions(endpoints, "queues=r,nowhere,q")) == ["q", "r"]
    status, _ = await call(endpoints, "GET /-/consumers/-")
    assert status == 400


async def test_positions_in_named_queues_cost_no_work_for_others(
    endpoints: Endpoints, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        await broker.create_queue(f"other.{number}")
    looked_at: list[str] = []
    status, consumer = Queues.status, broker.claims.consumer

    def counted_status(self: Queues, index: QueueIndex) -> QueueStatus:
        looked_at.append(index.name)
        return status(self, index)

    async def counted_consumer(queue: str, name: str) -> ConsumerPosition:
        looked_at.append(queue)
        return await consumer(queue, name)

    monkeypatch.setattr(Queues, "status", counted_status)
    monkeypatch.setattr(broker.claims, "consumer", counted_consumer)
    assert list(await positions(endpoints, "queues=q,nowhere")) == ["q"]
    assert looked_at == ["q", "q"]


async def test_a_user_is_told_of_the_queues_that_they_may_consume(endpoints: Endpoints, broker: Broker) -> None:
    await broker.create_queue("r")
    user = User("anna", {Right.PUBLISH: ("*",), Right.CONSUME: ("r",)})
    assert list(await positions(endpoints, "", user)) == ["r"]
    assert await positions(endpoints, "queues=q", user) == {}


async def test_batch_consumers_are_those_of_the_queues_that_a_user_may_consume(
    endpoints: Endpoints, broker: Broker
) -> None:
    await broker.create_queue("r")
    for queue, consumer in (("r", "c"), ("q", "d"), ("q", "c")):
        await call(endpoints, f"POST /{queue}/consumers/{consumer}")

    async def listed(user: User | None) -> list[tuple[str, str]]:
        request = Request("GET", b"/-/batch-consumers", b"", {}, stream(), 0, user=user)
        reply = await endpoints.handle(request)
        assert isinstance(reply.body, bytes)
        return [(each["queue"], each["consumer"]) for each in json.loads(reply.body)["consumers"]]

    assert await listed(None) == [("q", "c"), ("q", "d"), ("r", "c")]
    assert await listed(User("anna", {Right.CONSUME: ("r",)})) == [("r", "c")]


async def test_a_queue_that_is_made_again_has_another_incarnation(endpoints: Endpoints, broker: Broker) -> None:
    before = (await positions(endpoints))["q"]
    await broker.delete_queue("q")
    assert await positions(endpoints) == {}
    await broker.create_queue("q")
    after = (await positions(endpoints))["q"]
    assert before["incarnation"] != after["incarnation"]
    assert {**before, "incarnation": 0, "high_watermark": 0} == {**after, "incarnation": 0, "high_watermark": 0}


async def test_from_start_to_acknowledgement(endpoints: Endpoints) -> None:
    ids = await fill(endpoints, 5)
    status, standing = await call(endpoints, "GET /q/consumers/c")
    assert (status, standing["epoch"], standing["acknowledged"]) == (200, 0, 0)
    epoch = await start(endpoints)
    claim = f"/q/consumers/c/claim?batch=1&epoch={epoch}"
    status, held = await call(endpoints, f"PUT {claim}&max=3")
    assert (status, held["messages"], held["lost"], held["batch"]) == (201, 3, 0, 1)
    assert (await call(endpoints, f"PUT {claim}")) == (200, held)
    lines, following = await page(endpoints, claim)
    assert [line["id"] for line in lines] == ids[:3]
    assert [line["body"] for line in lines] == ["0", "1", "2"]
    assert (held["first"], held["last"]) == (lines[0]["sequence"], lines[-1]["sequence"])
    lines, following = await page(endpoints, f"{claim}&to=3&max=2")
    assert [line["body"] for line in lines] == ["0", "1"]
    assert following is not None
    lines, following = await page(endpoints, following)
    assert [line["body"] for line in lines] == ["2"]
    assert following is None
    status, listed = await call(endpoints, "GET /q/consumers")
    assert [(each["consumer"], each["batch"], each["messages"]) for each in listed["consumers"]] == [("c", 1, 3)]
    assert (await call(endpoints, f"DELETE {claim}"))[0] == 202
    assert (await call(endpoints, f"DELETE {claim}"))[0] == 202
    assert (await call(endpoints, f"PUT {claim}"))[0] == 409
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 2
    second = f"/q/consumers/c/claim?batch=2&epoch={epoch}"
    assert (await call(endpoints, f"PUT {second}"))[0] == 201
    assert (await call(endpoints, "DELETE /q/consumers/c"))[0] == 200
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 2
    assert (await call(endpoints, f"GET {second}"))[0] == 409


async def test_a_claim_goes_with_a_checkpoint_and_if_it_was_read(endpoints: Endpoints) -> None:
    await fill(endpoints, 3)
    status, standing = await call(endpoints, "POST /q/consumers/c?checkpoint=x")
    assert (status, standing["checkpoint"], standing["read"]) == (200, None, 0)
    claim = f"/q/consumers/c/claim?batch=1&epoch={standing['epoch']}"
    await call(endpoints, f"PUT {claim}")
    lines, following = await page(endpoints, f"{claim}&to=3&expected=3&max=2")
    assert following is not None
    lines += (await page(endpoints, following))[0]
    assert [line["body"] for line in lines] == ["0", "1", "2"]
    assert "expected=3" in following
    status, told = await call(endpoints, f"GET {claim}&expected=4")
    assert (status, "the request expected 4" in told) == (412, True)
    assert (await call(endpoints, f"POST {claim}&from=0&to=2&expected=3&checkpoint=x"))[0] == 200
    status, told = await call(endpoints, f"DELETE {claim}&if_read=true")
    assert (status, "only 2 of the 3" in told) == (409, True)
    status, told = await call(endpoints, "POST /q/consumers/c?checkpoint=y")
    assert (status, "take_over=true" in told) == (409, True)
    assert (await call(endpoints, "GET /q/consumers/c"))[1] == {
        **standing,
        "checkpoint": "x",
        "batch": 1,
        "messages": 3,
        "read": 2,
        "high_watermark": ANY,
    }
    assert (await call(endpoints, f"POST {claim}&from=2&to=3&expected=3&checkpoint=x"))[0] == 200
    assert (await call(endpoints, f"DELETE {claim}&if_read=true"))[0] == 202
    status, standing = await call(endpoints, "POST /q/consumers/c?checkpoint=y&take_over=true")
    assert (status, standing["checkpoint"], standing["acknowledged"]) == (200, None, 1)


async def test_nothing_to_claim(endpoints: Endpoints) -> None:
    epoch = await start(endpoints)
    assert (await call(endpoints, f"PUT /q/consumers/c/claim?batch=1&epoch={epoch}"))[0] == 204


@for_each(
    "line, status, why",
    [
        ("PUT /q/consumers/c/claim?epoch=1", 400, "parameter batch is missing"),
        ("GET /q/consumers/c/claim?batch=1", 400, "parameter epoch is missing"),
        ("DELETE /q/consumers/c/claim", 400, "parameter batch is missing"),
        ("PUT /q/consumers/c/claim?batch=1&epoch=1", 409, "Start the consumer first"),
        ("PUT /q/consumers/c/claim?batch=0&epoch=1", 400, "batch"),
        ("PUT /q/consumers/c/claim?batch=1&epoch=1&lease=0", 400, "lease"),
        ("PUT /q/consumers/c/claim?batch=1&epoch=1&max=100001", 400, "max"),
        ("POST /q/consumers/a%2fb", 400, "consumer"),
        ("POST /q/consumers/c?take_over=1", 400, "true or false"),
        ("POST /q/consumers/c?checkpoint=%20", 400, "checkpoint"),
        ("POST /q/consumers/c/claim?batch=1&epoch=1&from=0&to=1", 400, "parameter expected is missing"),
        ("POST /q/consumers/c/claim?batch=1&epoch=1&from=0&to=1&expected=1", 409, "Start the consumer first"),
        ("POST /nowhere/consumers/c", 404, "does not exist"),
        ("GET /nowhere/consumers/c", 404, "does not exist"),
        ("GET /nowhere/browse", 404, "does not exist"),
        ("GET /nowhere/ranges", 404, "does not exist"),
        ("GET /q/browse?after=-1", 400, "after"),
        ("GET /q/ranges?parts=0", 400, "parts"),
        ("PATCH /q/consumers/c/claim", 405, "supports only GET, HEAD, PUT, POST, DELETE"),
    ],
)
async def test_what_makes_no_sense_is_refused(endpoints: Endpoints, line: str, status: int, why: str) -> None:
    found, told = await call(endpoints, line)
    assert (found, why in told) == (status, True), told


async def test_browsing_side_by_side(endpoints: Endpoints) -> None:
    ids = await fill(endpoints, 9)
    status, ranges = await call(endpoints, "GET /q/ranges?parts=2")
    assert (status, ranges["messages"], len(ranges["bounds"])) == (200, 9, 2)
    found, after = [], 0
    for bound in ranges["bounds"]:
        target: str | None = f"/q/browse?after={after}&up_to={bound}&max=2"
        while target is not None:
            lines, target = await page(endpoints, target)
            found += [line["id"] for line in lines]
            assert all(line["state"] == "ready" for line in lines)
        after = bound
    assert found == ids
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 9


async def read_all(endpoints: Endpoints, target: str) -> list[str]:
    """The bodies of every page."""
    found, following = [], target
    while following:
        lines, after = await page(endpoints, following)
        found += [line["body"] for line in lines]
        following = after or ""
    return found


async def test_browsing_shows_only_the_messages_with_the_named_ids(endpoints: Endpoints, broker: Broker) -> None:
    ids = await fill(endpoints, 9)
    assert (await call(endpoints, "GET /q/messages"))[0] == 200  # leases the first
    await broker.create_queue("r")
    elsewhere = await publish(endpoints, "r", b"x")
    wanted = ",".join([ids[7], ids[0], elsewhere, ids[2], ids[5], ids[2]])
    assert await read_all(endpoints, f"/q/browse?ids={wanted}") == ["2", "5", "7"]
    assert await read_all(endpoints, f"/q/browse?ids={wanted}&max=1") == ["2", "5", "7"]
    lines, _ = await page(endpoints, "/q/browse")
    after, up_to = (next(line["sequence"] for line in lines if line["id"] == ids[place]) for place in (2, 5))
    assert await read_all(endpoints, f"/q/browse?ids={wanted}&after={after}&up_to={up_to}") == ["5"]
    for wrong in ("x", ids[0].upper(), ",".join([ids[0]] * 101)):
        assert (await call(endpoints, f"GET /q/browse?ids={wrong}"))[0] == 400


async def test_browsing_shows_only_messages_of_the_named_group(
    endpoints: Endpoints, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mq.broker.peek._LOOKS", 4)
    await broker.create_queue("g")
    await broker.change_settings("g", {"groups": True})
    for number in range(30):
        group = None if number % 5 == 4 else "a" if number % 7 else "c&d"
        await broker.publish_many("g", [Draft(b"%d" % number, group=group)])
    wanted = [str(number) for number in range(30) if number % 5 != 4 and number % 7]
    for most in (1, 3, 100):
        assert await read_all(endpoints, f"/g/browse?group=a&max={most}") == wanted
    assert await read_all(endpoints, "/g/browse?group=c%26d&max=2") == ["0", "7", "21", "28"]
    assert await read_all(endpoints, "/g/browse?group=nobody") == []


async def test_a_page_has_no_more_bytes_than_one_message_may(broker: Broker) -> None:
    await broker.create_queue("q")
    small = Endpoints(broker, 10)
    for size in (4, 4, 4, 10, 1):
        await broker.publish("q", b"x" * size)
    sizes, target = [], "/q/browse"
    while target:
        lines, following = await page(small, target)
        sizes.append([len(line["body"]) for line in lines])
        target = following or ""
    assert sizes == [[4, 4], [4], [10], [1]]


async def test_a_part_has_its_sequence_too(endpoints: Endpoints) -> None:
    await fill(endpoints, 1)
    reply = await get(endpoints, "/q/browse", accept="multipart/mixed")
    assert re.search(rb"x-message-sequence: \d{18}", reply.body.lower())


async def test_head_is_allowed(endpoints: Endpoints) -> None:
    reply = await ask(endpoints, "HEAD", "/q/browse")
    assert (reply.status, reply.body) == (200, b"")
