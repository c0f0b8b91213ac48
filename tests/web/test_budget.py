"""Requests share one budget of memory: what is not free is refused before it is read, and all is given back."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

import pytest
import trio

from mq import turns
from mq.broker import Broker, Draft
from mq.doors.budget import PATIENCE_SECONDS, Budget
from mq.errors import BodyIncomplete
from mq.web.batches import MOST_BESIDE
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from mq.web.json_answer import JsonAnswer, SentParts
from mq.web.replies import QUEUE_BYTES, StreamedPage
from tests.web.talking import MAX_BODY, detail, stream, whole

SIZE = 100_000


@pytest.fixture
def budget() -> Budget:
    return Budget(2 * SIZE)


@pytest.fixture
async def endpoints(broker: Broker, budget: Budget) -> Endpoints:
    await broker.create_queue("q")
    return Endpoints(broker, MAX_BODY, budget=budget)


async def post(endpoints: Endpoints, chunks: AsyncGenerator[bytes], length: int | None, rest: str = "batch") -> Reply:
    async with aclosing(chunks) as body:
        return await endpoints.handle(Request("POST", b"/q/messages/" + rest.encode(), b"", {}, body, length))


LINE = b'{"body": "' + b"x" * (SIZE - 20) + b'"}' + b" " * 8


async def chunks(data: bytes, until: trio.Event | None = None) -> AsyncGenerator[bytes]:
    """Half of it at once, and the rest when its time has come."""
    yield data[: len(data) // 2]
    if until is not None:
        await until.wait()
    for start in range(len(data) // 2, len(data), 10_000):
        yield data[start : min(start + 10_000, len(data))]


async def unread() -> AsyncGenerator[bytes]:
    raise AssertionError("a byte of it was read")
    yield b""


@pytest.mark.parametrize("is_announced", [True, False])
async def test_what_is_not_free_is_refused_unread_and_later_taken(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, *, is_announced: bool, autojump_clock: object
) -> None:
    goes_on = trio.Event()
    replies: list[Reply] = []

    async def first() -> None:
        replies.append(await post(endpoints, chunks(LINE, goes_on), len(LINE)))

    nursery.start_soon(first)
    await trio.testing.wait_all_tasks_blocked()
    length = 2 * SIZE - len(LINE) + 1
    body = unread() if is_announced else chunks(LINE[:-1] * 2)
    refused = await post(endpoints, body, length if is_announced else None)
    assert (refused.status, dict(refused.headers)["retry-after"]) == (503, "10")
    assert "memory" in detail(refused)
    goes_on.set()
    while not replies:
        await trio.sleep(1)
    assert (replies[0].status, budget.free) == (200, budget.most)
    assert (await post(endpoints, chunks(LINE), None)).status == 200
    assert budget.free == budget.most


async def test_who_sends_slowly_is_refused_when_others_want_the_memory(
    endpoints: Endpoints, budget: Budget, nursery: trio.Nursery, autojump_clock: object
) -> None:
    """It announced much, and goes on with a byte now and then."""
    replies: list[Reply] = []

    async def trickled() -> AsyncGenerator[bytes]:
        for _ in range(2 * SIZE):
            await trio.sleep(1)
            yield b" "

    async def slowly() -> None:
        replies.append(await post(endpoints, trickled(), 2 * SIZE))

    nursery.start_soon(slowly)
    await trio.sleep(PATIENCE_SECONDS + 1.5)
    assert (await post(endpoints, chunks(LINE), len(LINE))).status == 503
    await trio.sleep(0.1)
    [slow] = replies
    assert (slow.status, slow.is_last, budget.free) == (408, True, budget.most)
    assert detail(slow).endswith("send smaller bodies")
    assert (await post(endpoints, chunks(LINE), len(LINE))).status == 200


@pytest.mark.parametrize("rest", ["batch", "delete"])
async def test_what_never_fits_is_too_large(endpoints: Endpoints, budget: Budget, rest: str) -> None:
    refused = await post(endpoints, unread(), 2 * SIZE + 1, rest)
    assert (refused.status, budget.free) == (413, budget.most)


async def test_who_breaks_off_gives_it_back(endpoints: Endpoints, budget: Budget) -> None:
    async def broken() -> AsyncGenerator[bytes]:
        yield LINE[:1000]
        raise BodyIncomplete("gone")

    assert (await post(endpoints, broken(), len(LINE))).status == 400
    assert budget.free == budget.most


async def test_entries_count_besides_their_bytes(broker: Broker) -> None:
    """A thousand small ones take a hundred times what they are written in."""
    await broker.create_queue("q")
    small = b'{"body":""}\n' * 1000
    assert (await post(Endpoints(broker, MAX_BODY, budget=Budget(2_000_000)), chunks(small), len(small))).status == 200
    assert (await post(Endpoints(broker, MAX_BODY, budget=Budget(100_000)), chunks(small), len(small))).status == 413


async def test_a_batch_has_at_most_so_much_beside_its_bodies(broker: Broker) -> None:
    await broker.create_queue("q")
    endpoints = Endpoints(broker, 64 << 20)
    line = json.dumps({"body": "x", "attributes": {"a": "x" * 16_000}}).encode() + b"\n"
    count = MOST_BESIDE // 16_001
    assert (await post(endpoints, chunks(line * count), None)).status == 200
    refused = await post(endpoints, chunks(line * (count + 1)), None)
    assert refused.status == 413
    assert "of data other than message bodies" in detail(refused)


# Out


async def fill(broker: Broker, count: int = 3, size: int = 40_000) -> None:
    await broker.publish_many("q", [Draft(b"%d" % number + b"x" * size) for number in range(count)])


async def get(endpoints: Endpoints, rest: str, method: str = "GET", **headers: str) -> Reply:
    path, _, query = rest.partition("?")
    return await endpoints.handle(Request(method, f"/q/{path}".encode(), query.encode(), headers, stream(), None))


@pytest.mark.parametrize("rest", ["peek", "browse", "messages?max=10"])
async def test_an_answer_holds_its_messages_until_they_are_sent(
    endpoints: Endpoints, budget: Budget, broker: Broker, rest: str
) -> None:
    await fill(broker)
    reply = await get(endpoints, rest)
    assert isinstance(reply.body, StreamedPage)
    assert "content-length" not in dict(reply.headers)
    assert budget.free < budget.most - 3 * 40_000
    free = []
    pieces = []
    async for piece in reply.body:
        pieces.append(piece)
        free.append(budget.free)
    assert free == sorted(free)
    assert free[0] < free[-1]
    assert [json.loads(line)["body"][0] for line in b"".join(pieces).splitlines()] == ["0", "1", "2"]
    await reply.body.aclose()
    assert budget.free == budget.most


@pytest.mark.parametrize("rest", ["peek", "browse", "messages?max=10"])
async def test_who_goes_before_the_end_gives_all_back(
    endpoints: Endpoints, budget: Budget, broker: Broker, rest: str
) -> None:
    await fill(broker)
    reply = await get(endpoints, rest)
    assert isinstance(reply.body, StreamedPage)
    await reply.body.aclose()
    assert budget.free == budget.most


async def test_a_head_and_a_short_answer_hold_nothing(endpoints: Endpoints, budget: Budget, broker: Broker) -> None:
    await fill(broker)
    assert (await get(endpoints, "peek", "HEAD")).status == 200
    short = await get(endpoints, "peek?max=1")
    assert isinstance(short.body, bytes)
    assert dict(short.headers)["content-length"] == str(len(short.body))
    assert budget.free == budget.most


@pytest.mark.parametrize("rest", ["peek", "browse", "messages?max=10"])
async def test_an_answer_that_there_is_no_memory_for_is_refused(
    endpoints: Endpoints, budget: Budget, broker: Broker, rest: str
) -> None:
    await fill(broker)
    with budget.reserve(budget.most - 100_000):
        refused = await get(endpoints, rest)
        assert (refused.status, budget.free) == (503, 100_000)
    again = await whole(await get(endpoints, rest))
    assert isinstance(again.body, bytes)
    while again.status == 204:  # what was given back is not there yet
        again = await whole(await get(endpoints, rest + "&wait=1"))
    assert isinstance(again.body, bytes)
    lines = [json.loads(line) for line in again.body.splitlines()]
    assert {line["receives"] for line in lines} == {1 if "max" in rest else 0}
    assert budget.free == budget.most


@pytest.mark.parametrize(
    "body", [b"x" * 200_000, b"x" * 65_535 + "\u20ac".encode() * 9, b"\xff" * 200_000, b"x" * 99_999 + b"\xe2"]
)
@pytest.mark.parametrize("accept", ["application/x-ndjson", "multipart/mixed"])
async def test_a_long_message_is_written_in_pieces_as_in_one(broker: Broker, body: bytes, accept: str) -> None:
    await broker.create_queue("q")
    await broker.publish_many("q", [Draft(body, {"attributes": {"a": "b"}})])
    reply = await whole(await get(Endpoints(broker, MAX_BODY), "peek", accept=accept))
    assert isinstance(reply.body, bytes)
    if accept == "multipart/mixed":
        assert b"\r\n\r\n" + body + b"\r\n--" in reply.body
    else:
        [line] = map(json.loads, reply.body.splitlines())
        assert base64.b64decode(line["base64"]) == body if "base64" in line else line["body"].encode() == body
        assert (line["state"], line["attributes"]) == ("ready", {"a": "b"})


@pytest.mark.parametrize("path", [b"/-/queues", b"/-/stats", b"/-/rates", b"/-/consumers/c", b"/-/batch-consumers"])
async def test_lists_of_all_queues_are_made_one_at_a_time(
    broker: Broker, endpoints: Endpoints, budget: Budget, path: bytes
) -> None:
    """Each needs memory for the status of every queue, which is not there for several."""
    for number in range(budget.most // 3 // QUEUE_BYTES):
        await broker.create_queue(f"q{number}")
    statuses: list[int] = []

    async def ask() -> None:
        reply = await endpoints.handle(Request("GET", path, b"", {}, stream(), None))
        statuses.append(reply.status)
        if isinstance(reply.body, SentParts):
            await reply.body.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
    assert statuses == [200] * 10


async def test_many_answers_share_a_pass_of_the_event_loop(budget: Budget) -> None:
    loop, in_pass = turns.of_run(), Counter[int]()

    def elements() -> Iterator[int]:
        for number in range(500):
            in_pass[loop.passes] += 1
            yield number

    async def write() -> None:
        with JsonAnswer(budget.client(str(trio.lowlevel.current_task().name))) as answer:
            await answer.write({"rows": elements()})

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(write, name=number)
    assert in_pass.total() == 20 * 500
    assert max(in_pass.values()) <= 4 * turns.JOB // turns.FRAME
