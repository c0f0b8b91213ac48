"""The trace of a request goes with the messages that it publishes, and is never a reason to refuse one."""

from __future__ import annotations

import json

import pytest

from mq.amqp.server.message_codec import arrival_of, attributes_of
from mq.amqp.wire.properties import BasicProperties
from mq.broker import Broker
from mq.message import BytesBody, Message, MessageIds, Properties
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply
from mq.web.parameters import headers_of
from tests.web.talking import MAX_BODY, ask

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
TRACE = {"traceparent": PARENT, "tracestate": STATE}


@pytest.fixture
async def endpoints(broker: Broker) -> Endpoints:
    """With the queue q."""
    await broker.create_queue("q")
    return Endpoints(broker, MAX_BODY)


async def published(endpoints: Endpoints, **more: str) -> dict[str, str]:
    """What a fetch says of a message that was published with these headers."""
    headers = {name.replace("_", "-"): value for name, value in more.items()}
    assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=headers)).status == 201
    return dict((await ask(endpoints, "POST", "/q/take")).headers)


def lines(reply: Reply) -> list[dict[str, object]]:
    assert isinstance(reply.body, bytes)
    return [json.loads(line) for line in reply.body.splitlines()]


async def test_it_comes_back_with_every_fetch(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=TRACE)).status == 201
    reply = await ask(endpoints, "GET", "/q/messages")
    found = dict(reply.headers)
    assert TRACE.items() <= found.items()
    assert found["x-message-attribute-traceparent"] == PARENT  # it is an attribute, as at the other doors
    shown = dict((await ask(endpoints, "GET", f"/q/messages/{found['x-message-id']}")).headers)
    assert TRACE.items() <= shown.items()


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT.upper(),
        f"{PARENT}, {OTHER}",  # there twice
        f"{PARENT}-more",  # not in the first version
        f"ff{PARENT[2:]}",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        PARENT[:-1],
    ],
)
async def test_one_that_cannot_be_read_is_passed_over(endpoints: Endpoints, parent: str) -> None:
    assert not traced(await published(endpoints, traceparent=parent, tracestate=STATE))


def traced(headers: dict[str, str]) -> set[str]:
    """The names of what they say of a trace."""
    return {name for name in headers if "trace" in name}


async def test_a_later_version_may_say_more(endpoints: Endpoints) -> None:
    later = f"cc{PARENT[2:]}-what-will-be"
    assert (await published(endpoints, traceparent=later))["traceparent"] == later


@pytest.mark.parametrize("state", ["", "é", "x" * 513])
async def test_a_state_that_nobody_has_to_carry_is_left_out(endpoints: Endpoints, state: str) -> None:
    found = await published(endpoints, traceparent=PARENT, tracestate=state)
    assert found["traceparent"] == PARENT
    assert "tracestate" not in found


async def test_a_state_alone_says_nothing(endpoints: Endpoints) -> None:
    assert not traced(await published(endpoints, tracestate=STATE))


async def test_it_never_takes_room_from_the_publisher(endpoints: Endpoints) -> None:
    many = {f"x_message_attribute_a{n}": "x" for n in range(63)}
    found = await published(endpoints, **many, **TRACE)
    assert not traced(found)
    assert found["x-message-attribute-a62"] == "x"


async def test_its_room_is_counted_to_the_byte(endpoints: Endpoints) -> None:
    """As that of the others is: what has a trace can be published as it came."""
    fits = 16_384 - len("a") - len("a/b") - len("traceparent") - len(PARENT)
    for size, is_traced in ((fits, True), (fits + 1, False)):
        text = "é".encode().decode("latin-1") * (size // 2) + "x" * (size % 2)
        headers = {"content-type": "a/b", "x-message-attribute-a": text, "traceparent": PARENT}
        assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=headers)).status == 201
        found = dict((await ask(endpoints, "POST", "/q/take")).headers)
        assert bool(traced(found)) == is_traced
        again = {name: value for name, value in found.items() if name.startswith("x-message-attribute-")}
        again["content-type"] = found["content-type"]
        assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=again)).status == 201
        await ask(endpoints, "POST", "/q/take")


async def test_an_attribute_of_the_publisher_counts_before_the_header(endpoints: Endpoints) -> None:
    found = await published(endpoints, x_message_attribute_traceparent=OTHER, **TRACE)
    assert found["traceparent"] == OTHER
    assert "tracestate" not in found  # it belongs to the other one
    found = await published(endpoints, x_message_attribute_tracestate="mine=1", traceparent=PARENT)
    assert (found["tracestate"], found.get("traceparent")) == ("mine=1", None)


async def test_each_message_of_a_batch_is_in_the_trace_of_its_request_or_its_own(endpoints: Endpoints) -> None:
    batch = [
        {"body": "a"},
        {"body": "b", "content_type": "x/y", "attributes": {"colour": "red"}},
        {"body": "c", "attributes": {"Traceparent": OTHER}},
        {"body": 7},
    ]
    body = "".join(f"{json.dumps(line)}\n" for line in batch).encode()
    reply = await ask(endpoints, "POST", "/q/messages/batch", body, headers=TRACE)
    assert [line["status"] for line in lines(reply)] == [201, 201, 201, 400]
    part = f"--b\r\ntraceparent: {OTHER}\r\n\r\nd\r\n--b--\r\n".encode()
    headers = {"content-type": "multipart/mixed; boundary=b"}
    assert (await ask(endpoints, "POST", "/q/messages/batch", part, headers=headers)).status == 200
    found = lines(await ask(endpoints, "GET", "/q/peek"))
    assert [(line["body"], line.get("attributes")) for line in found] == [
        ("a", TRACE),
        ("b", {"colour": "red", **TRACE}),
        ("c", {"traceparent": OTHER}),
        ("d", {"traceparent": OTHER}),
    ]
    assert found[1]["content_type"] == "x/y"


async def test_what_was_fetched_as_parts_can_be_published_as_it_came(endpoints: Endpoints) -> None:
    assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=TRACE)).status == 201
    parts = await ask(endpoints, "GET", "/q/peek", headers={"accept": "multipart/mixed"})
    assert b"\r\ntraceparent: " in parts.body
    headers = {"content-type": dict(parts.headers)["content-type"]}
    assert (await ask(endpoints, "POST", "/q/messages/batch", parts.body, headers=headers)).status == 200
    assert [line["attributes"] for line in lines(await ask(endpoints, "GET", "/q/peek"))] == [TRACE, TRACE]


async def test_trace_context_is_ignored_with_strict(broker: Broker) -> None:
    """Proxies add it, whoever asks."""
    await broker.create_queue("q")
    strict = Endpoints(broker, MAX_BODY, strict=True)
    assert (await ask(strict, "POST", "/q/messages", b"x", headers=TRACE)).status == 201
    assert not traced(dict((await ask(strict, "GET", "/q/messages")).headers))


async def test_it_goes_from_http_to_amqp_and_back(endpoints: Endpoints, broker: Broker) -> None:
    assert (await ask(endpoints, "POST", "/q/messages", b"x", headers=TRACE)).status == 201
    [message] = await broker.fetch_many("q", 1)
    arrived = arrival_of(None, message.id, "q", message.properties.attributes, b"x", redelivered=False)
    properties = BasicProperties(arrived.properties)
    assert properties.headers() == TRACE
    kept = attributes_of(properties, "", "q")
    id = MessageIds().new()
    said = dict(headers_of(Message("q", id, BytesBody(b"x"), Properties(1, None, kept), 1, "r")))
    assert TRACE.items() <= said.items()
