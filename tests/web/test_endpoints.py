"""Every status code and header, on a real broker where that can be, on one that fails on purpose where not."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
from trio.testing import assert_no_checkpoints

from mq.broker import Broker
from mq.broker.api import NoNode
from mq.errors import (
    BodyIncomplete,
    BodyTooLarge,
    BrokerClosed,
    CorruptMessage,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    ServiceLost,
    StorageFailed,
    StorageFull,
    StorageSlow,
    StorageStopped,
    StorageUnsure,
)
from mq.message import BytesBody, Message, MessageIds, Properties
from mq.storage.memory import MemoryStorage
from mq.web.endpoints import Endpoints
from mq.web.exchange import BodyTooSlow, Request
from mq.web.refusals import RETRY_AFTER_SECONDS, problem_of
from mq.web.request_body import IN_MEMORY_BYTES
from tests.cases import for_each
from tests.web.talking import BAD_NAMES, MAX_BODY, ask, contents, detail, publish

UNKNOWN_ID = str(MessageIds(lambda: 10**18, node=1).new())  # the same in each process: it is part of names of tests


async def test_a_queue_comes_and_goes(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "GET", "/queue001")).status == 404
    assert (await ask(endpoints, "PUT", "/queue001")).status == 201
    assert (await ask(endpoints, "PUT", "/queue001")).status == 200
    found = await ask(endpoints, "GET", "/queue001")
    assert found.status == 200
    assert json.loads(found.body)["name"] == "queue001"
    assert (await ask(endpoints, "DELETE", "/queue001")).status == 200
    assert (await ask(endpoints, "DELETE", "/queue001")).status == 404
    assert (await ask(endpoints, "GET", "/queue001")).status == 404


async def test_a_message_comes_and_goes(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    posted = await ask(endpoints, "POST", "/q/messages", b"hello ", b"world", headers={"content-type": "text/plain"})
    assert posted.status == 201
    id = dict(posted.headers)["x-message-id"]
    fetched = await ask(endpoints, "GET", "/q/messages")
    assert (fetched.status, fetched.body) == (200, b"hello world")
    headers = dict(fetched.headers)
    assert re.fullmatch(r'"[0-9a-f]{16}"', headers.pop("etag"))
    assert headers == {
        "x-message-id": id,
        "content-type": "text/plain",
        "content-length": "11",
        "x-message-receives": "1",
        "x-message-lease": "30",
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    nothing = await ask(endpoints, "GET", "/q/messages")
    assert (nothing.status, nothing.body) == (204, b"")
    assert nothing.headers == (("cache-control", "no-store"),)
    assert (await ask(endpoints, "DELETE", f"/q/messages/{id}")).status == 202
    assert (await ask(endpoints, "DELETE", f"/q/messages/{id}")).status == 404


async def test_fetch_from_an_empty_queue_is_answered_in_the_step_that_read_it(
    endpoints: Endpoints, broker: Broker
) -> None:
    await ask(endpoints, "PUT", "/q")
    with assert_no_checkpoints():
        assert (await ask(endpoints, "GET", "/q/messages")).status == 204
    await publish(endpoints, "q", b"body")
    assert (await ask(endpoints, "GET", "/q/messages")).status == 200
    with assert_no_checkpoints():  # the only message is leased
        assert (await ask(endpoints, "GET", "/q/messages")).status == 204
    exclusion = await broker.exclude("q")
    refused = await ask(endpoints, "GET", "/q/messages")
    assert refused.status == 423  # it is a consumer's alone, empty or not
    exclusion.end()
    assert (await ask(endpoints, "GET", "/missing/messages")).status == 404


async def test_messages_are_handed_out_in_the_order_they_came(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    for number in range(10):
        await publish(endpoints, "q", b"%d" % number)
    assert [(await ask(endpoints, "GET", "/q/messages")).body for _ in range(10)] == [b"%d" % n for n in range(10)]


@pytest.mark.parametrize("path", ["/nowhere/messages", f"/nowhere/messages/{UNKNOWN_ID}", "/nowhere"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_missing_queue_is_404_and_is_not_made(
    endpoints: Endpoints, store: MemoryStorage, method: str, path: str
) -> None:
    reply = await ask(endpoints, method, path, b"body")
    assert reply.status in (404, 405)
    if reply.status == 404:  # a caller that removes something would not create the queue
        advice = "" if method == "DELETE" else ". Create it with PUT /nowhere"
        assert detail(reply) == f'queue "nowhere" does not exist{advice}'
    elif path == "/nowhere":
        assert "use POST /QUEUE/messages" in detail(reply)
    assert await contents(store) == ([], 0)


@for_each("name", BAD_NAMES)
@for_each(
    "method, rest",
    [
        ("PUT", ""),
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/messages"),
        ("POST", "/messages"),
        ("DELETE", f"/messages/{UNKNOWN_ID}"),
    ],
)
async def test_a_bad_name_is_400_and_changes_nothing(
    endpoints: Endpoints, store: MemoryStorage, name: str, method: str, rest: str
) -> None:
    await ask(endpoints, "PUT", "/a")
    await publish(endpoints, "a", b"kept")
    before = await contents(store)
    reply = await ask(endpoints, method, f"/{name}{rest}", b"body")
    assert reply.status == 400
    assert "invalid queue name" in detail(reply)
    assert await contents(store) == before
    assert before[0] == ["a"]


@pytest.mark.parametrize("name", ["a", "_", "0", "a" * 100, "a.b_c-d@e", "A9", "%71", "messages"])
async def test_a_good_name_is_decoded_once(endpoints: Endpoints, store: MemoryStorage, name: str) -> None:
    assert (await ask(endpoints, "PUT", f"/{name}")).status == 201
    assert (await contents(store))[0] == ["q" if name == "%71" else name]


@pytest.mark.parametrize(
    "id",
    [
        UNKNOWN_ID,
        UNKNOWN_ID.upper(),
        UNKNOWN_ID.replace("-", ""),
        UNKNOWN_ID[:-1],
        UNKNOWN_ID + "%0a",
        UNKNOWN_ID + ",r1",
        "{" + UNKNOWN_ID + "}",
        "4ad814ab-213e-41e3-a9a3-0025904f6e08",  # version 4
        "..",
        "%2e%2e",
        "*",
    ],
)
async def test_an_id_that_is_none_is_404(endpoints: Endpoints, store: MemoryStorage, id: str) -> None:
    await ask(endpoints, "PUT", "/q")
    await publish(endpoints, "q", b"kept")
    reply = await ask(endpoints, "DELETE", f"/q/messages/{id}")
    assert reply.status == 404
    assert detail(reply)
    assert await contents(store) == (["q"], 1)


@pytest.mark.parametrize(
    "path",
    ["", "*", "//", "/q/", "//messages", "/q//messages", "/q/messages/", "/q/other", "/-/other", "/a/b/c/d", "xq"],
)
async def test_an_unknown_path_is_404(endpoints: Endpoints, store: MemoryStorage, path: str) -> None:
    for method in ("GET", "PUT", "POST", "DELETE"):
        reply = await ask(endpoints, method, path)
        assert reply.status == 404
        assert "unknown path" in detail(reply)
    assert await contents(store) == ([], 0)


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/q", "GET, HEAD, PUT, PATCH, DELETE"),
        ("/q/messages", "GET, POST"),
        (f"/q/messages/{UNKNOWN_ID}", "GET, HEAD, PATCH, DELETE"),
        ("/-/live", "GET, HEAD"),
        ("/-/ready", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_and_says_which_are_right(endpoints: Endpoints, path: str, allowed: str) -> None:
    for method in {"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"} - set(
        allowed.split(", ")
    ):
        reply = await ask(endpoints, method, path)
        assert reply.status == 405
        assert dict(reply.headers)["allow"] == allowed


async def test_head_of_a_queue_is_its_get_without_the_body(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    for path in ("/q", "/missing", "/-/live"):
        get, head = await ask(endpoints, "GET", path), await ask(endpoints, "HEAD", path)
        assert get._replace(body=b"") == head
        assert int(dict(head.headers)["content-length"]) == len(get.body)


async def test_head_of_the_messages_leases_none(endpoints: Endpoints) -> None:
    await ask(endpoints, "PUT", "/q")
    await publish(endpoints, "q", b"still there")
    assert (await ask(endpoints, "HEAD", "/q/messages")).status == 405
    assert (await ask(endpoints, "GET", "/q/messages")).body == b"still there"


async def test_an_absolute_target_is_its_path(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "PUT", "http://mq.example:8080/q")).status == 201
    assert (await ask(endpoints, "GET", "/q")).status == 200


# Bodies


@pytest.mark.parametrize("size", [0, 1, IN_MEMORY_BYTES - 1, IN_MEMORY_BYTES, IN_MEMORY_BYTES + 1, MAX_BODY])
@pytest.mark.parametrize("chunk", [1000, 1 << 17])
async def test_bodies_of_all_sizes_come_back_as_they_went(endpoints: Endpoints, size: int, chunk: int) -> None:
    body = bytes(number * 7 % 251 for number in range(size))
    await ask(endpoints, "PUT", "/q")
    await publish(endpoints, "q", *(body[at : at + chunk] for at in range(0, size, chunk)), content_length=size)
    reply = await ask(endpoints, "GET", "/q/messages")
    assert dict(reply.headers)["content-length"] == str(size)
    if size > IN_MEMORY_BYTES:
        assert not isinstance(reply.body, bytes), "a large body streams"
        assert b"".join([piece async for piece in reply.body]) == body
    else:
        assert reply.body == body


async def test_a_body_announced_too_long_is_413_before_it_is_read(endpoints: Endpoints, store: MemoryStorage) -> None:
    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    await ask(endpoints, "PUT", "/q")
    reply = await endpoints.handle(Request("POST", b"/q/messages", b"", {}, unread(), MAX_BODY + 1))
    assert reply.status == 413
    assert reply.is_last
    assert str(MAX_BODY) in detail(reply)
    assert await contents(store) == (["q"], 0)


async def test_a_body_that_grows_too_long_is_413(endpoints: Endpoints, store: MemoryStorage) -> None:
    await ask(endpoints, "PUT", "/q")
    reply = await ask(endpoints, "POST", "/q/messages", bytes(MAX_BODY), b"x")
    assert reply.status == 413
    assert reply.is_last
    assert await contents(store) == (["q"], 0)


async def test_the_doors_own_limit_counts(broker: Broker, store: MemoryStorage) -> None:
    endpoints = Endpoints(broker, 10)
    await ask(endpoints, "PUT", "/q")
    assert (await ask(endpoints, "POST", "/q/messages", bytes(9), b"xy")).status == 413
    assert await contents(store) == (["q"], 0)


@pytest.mark.parametrize("sent", [0, 10, IN_MEMORY_BYTES + 10])
async def test_a_body_that_ends_short_is_400_and_leaves_nothing(
    endpoints: Endpoints, store: MemoryStorage, sent: int
) -> None:
    await ask(endpoints, "PUT", "/q")
    reply = await ask(endpoints, "POST", "/q/messages", bytes(sent), content_length=sent + 1)
    assert reply.status == 400
    assert reply.is_last
    assert f"{sent} of {sent + 1}" in detail(reply)
    assert await contents(store) == (["q"], 0)


@pytest.mark.parametrize(("error", "status"), [(BodyIncomplete("it broke"), 400), (BodyTooSlow("it stalled"), 408)])
@pytest.mark.parametrize("sent", [10, IN_MEMORY_BYTES + 10])
async def test_a_body_that_breaks_off_leaves_nothing(
    endpoints: Endpoints, store: MemoryStorage, error: MQError, status: int, sent: int
) -> None:
    async def breaks_off() -> AsyncIterator[bytes]:
        yield bytes(sent)
        raise error

    await ask(endpoints, "PUT", "/q")
    reply = await endpoints.handle(Request("POST", b"/q/messages", b"", {}, breaks_off(), None))
    assert (reply.status, detail(reply)) == (status, str(error))
    assert reply.is_last
    assert await contents(store) == (["q"], 0)


async def test_both_framings_at_once_are_400(endpoints: Endpoints, store: MemoryStorage) -> None:
    await ask(endpoints, "PUT", "/q")
    headers = {"transfer-encoding": "chunked", "content-length": "4"}
    reply = await ask(endpoints, "POST", "/q/messages", b"body", headers=headers, content_length=4)
    assert reply.status == 400
    assert reply.is_last
    assert await contents(store) == (["q"], 0)


@pytest.mark.parametrize("given", ["text/html; charset=utf-8", "x/y", "caf\xe9", "a\tb", "x" * 8000])
async def test_the_content_type_comes_back(endpoints: Endpoints, given: str) -> None:
    await ask(endpoints, "PUT", "/q")
    await publish(endpoints, "q", b"", headers={"content-type": given})
    assert dict((await ask(endpoints, "GET", "/q/messages")).headers)["content-type"] == given


@pytest.mark.parametrize("given", [None, 7, "", "a\r\nset-cookie: b", "\u20ac", "\x00"])
async def test_a_content_type_that_no_header_can_carry_is_the_default(
    endpoints: Endpoints, broker: Broker, given: object
) -> None:
    await broker.create_queue("q")
    await broker.publish("q", b"", {"content_type": given})
    fetched = dict((await ask(endpoints, "GET", "/q/messages")).headers)
    assert fetched["content-type"] == "application/octet-stream"


# When the store cannot


class FailingBroker:
    """Fails at everything with the same error."""

    ready = False
    is_shared = False
    node_control = NoNode()

    def __init__(self, error: MQError) -> None:
        self._error = error

    async def has_queue(self, queue: str) -> bool:
        return True

    async def _fail(self, *_: object, **__: object) -> None:
        raise self._error

    create_queue = delete_queue = publish_many = fetch_many = remove = _fail


@pytest.mark.parametrize("error", [StorageFull("no room"), StorageUnsure("it may have been done")])
async def test_a_line_of_a_batch_says_where_it_may_have_been_done(error: MQError) -> None:
    said = {"status": 503, "detail": str(error)}
    assert problem_of(error) == (said | {"outcome": "unknown"} if error.is_unsure else said)


@for_each(
    "error, status",
    [
        (NoSuchQueue("gone"), 404),
        (NoSuchMessage("gone"), 404),
        (BodyTooLarge("too large"), 413),
        (StorageFull("full"), 503),
        (StorageFailed("failed"), 503),
        (StorageStopped("stopped"), 503),
        (StorageUnsure("who knows"), 503),
        (ServiceLost("who knows"), 503),
        (StorageSlow("slow"), 503),
        (BrokerClosed("closing"), 503),
        (CorruptMessage("bad\nbytes"), 500),
        (MQError("something else"), 500),
    ],
)
async def test_each_error_has_its_status(error: MQError, status: int) -> None:
    endpoints = Endpoints(FailingBroker(error), MAX_BODY)
    for method, path in (
        ("PUT", "/q"),
        ("DELETE", "/q"),
        ("GET", "/q/messages"),
        ("POST", "/q/messages"),
        ("DELETE", f"/q/messages/{UNKNOWN_ID}"),
    ):
        reply = await ask(endpoints, method, path)
        assert reply.status == status
        assert detail(reply) == str(error).replace("\n", " ")
        assert isinstance(reply.body, bytes)
        told = json.loads(reply.body).get("outcome")
        assert told == ("unknown" if str(error) in ("failed", "who knows") else None)
        retry_after = dict(reply.headers).get("retry-after")
        assert retry_after == ("10" if status == 503 else None)  # RFC 9110, 10.2.3: whole seconds, in digits


async def test_live_and_ready(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "GET", "/-/live")).status == 200
    assert (await ask(endpoints, "GET", "/-/ready")).status == 200
    failed = Endpoints(FailingBroker(StorageFailed("failed")), MAX_BODY)
    assert (await ask(failed, "GET", "/-/live")).status == 200
    unready = await ask(failed, "GET", "/-/ready")
    assert unready.status == 503
    assert dict(unready.headers)["retry-after"] == str(RETRY_AFTER_SECONDS)
    assert "the store has failed" in detail(unready)


class RottenBody(BytesBody):
    """Its bytes are do not match the checksum."""

    is_closed = False

    async def read(self) -> bytes:
        raise CorruptMessage("the stored bytes do not match the checksum")

    async def aclose(self) -> None:
        self.is_closed = True


async def test_a_corrupt_message_is_500_and_its_body_is_closed() -> None:
    body = RottenBody(b"rotten")

    class OneMessage(FailingBroker):
        async def fetch_many(self, queue: str, *_: object, **__: object) -> list[Message]:
            return [Message(queue, MessageIds().new(), body, Properties(6, 0), 1, "receipt")]

    reply = await ask(Endpoints(OneMessage(MQError()), MAX_BODY), "GET", "/q/messages")
    assert reply.status == 500
    assert "do not match the checksum" in detail(reply)
    assert body.is_closed
