"""What people expect of a queue, asked for over HTTP: each row of docs/http.md, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from mq.broker import Broker
from mq.broker.settings import QueueSettings
from mq.message import MessageIds
from mq.web.endpoints import Endpoints
from mq.web.exchange import Request
from mq.web.parameters import texts_of
from tests.cases import for_each
from tests.web.talking import MAX_BODY, ask, detail, publish, stream, whole

UNKNOWN_ID = str(MessageIds(lambda: 10**18, node=1).new())  # the same in each process: it is part of names of tests
SHOWN = {"name", "ready", "leased", "delayed", "oldest_seconds", "consumers", "store", *QueueSettings.kinds()}


@pytest.fixture
async def endpoints(broker: Broker) -> Endpoints:
    """With the queues q, r and dead."""
    for queue in ("q", "r", "dead"):
        await broker.create_queue(queue)
    return Endpoints(broker, MAX_BODY)


async def call(endpoints: Endpoints, line: str, value: Any = None, **headers: str) -> tuple[int, Any]:
    """Status, and what the JSON of the reply says, or its detail."""
    method, _, target = line.partition(" ")
    path, _, query = target.partition("?")
    body = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    reply = await endpoints.handle(Request(method, path.encode(), query.encode(), named, stream(body), len(body)))
    if reply.status >= 400:
        return reply.status, detail(reply)
    if dict(reply.headers).get("content-type") == "application/json":
        return reply.status, json.loads(reply.body)
    return reply.status, dict(reply.headers)


# Settings


async def test_a_queue_shows_all_that_is_set(endpoints: Endpoints) -> None:
    status, shown = await call(endpoints, "GET /q")
    assert (status, shown.keys()) == (200, SHOWN)
    assert (shown["ready"], shown["oldest_seconds"], shown["visibility"]) == (0, None, None)
    assert shown["store"] == "disk"
    status, shown = await call(endpoints, "PATCH /q", {"visibility": 5, "overflow": "drop-head", "max_messages": 3})
    assert (status, shown["visibility"], shown["overflow"], shown["max_messages"]) == (200, 5, "drop-head", 3)
    assert (await call(endpoints, "PATCH /q", {"visibility": None}))[1]["visibility"] is None
    assert (await call(endpoints, "PATCH /q"))[1]["max_messages"] == 3  # nothing to change is no change


@for_each(
    "patch, status, why",
    [
        ({"visibilty": 5}, 400, "did you mean visibility"),
        ({"nonsense": 5}, 400, "known: visibility"),
        ({"visibility": 0}, 400, "visibility"),
        ({"delay": -1}, 400, "delay"),
        ({"delay": "1y"}, 400, "delay"),
        ({"paused": 1}, 400, "paused"),
        ({"overflow": "drop"}, 400, "overflow"),
        ({"max_messages": 1.5}, 400, "max_messages"),
        ({"max_receives": 3}, 400, "dead_letter_queue"),
        ({"dead_letter_queue": "nowhere"}, 409, "does not exist"),
        ({"dead_letter_queue": "../x"}, 400, "dead_letter_queue"),
        ({"dead_letter_queue": 7}, 400, "dead_letter_queue"),
        ({"dead_letter_queue": "q"}, 400, "in a loop: q -> q"),
        (b"[]", 400, "expected a JSON object"),
        (b"{", 400, "invalid JSON"),
        (b'{"delay": NaN}', 400, "delay"),
        (b'{"delay": 1e999}', 400, "delay"),
        (b" " * 300_000, 413, "262144"),
    ],
)
async def test_a_setting_that_cannot_be_is_refused_with_all_that_came_with_it(
    endpoints: Endpoints, patch: Any, status: int, why: str
) -> None:
    before = await call(endpoints, "GET /q")
    asked = {"ttl": 60, **patch} if isinstance(patch, dict) else patch
    refused, said = await call(endpoints, "PATCH /q", asked)
    assert (refused, why in said) == (status, True), said
    assert await call(endpoints, "GET /q") == before


async def test_dead_letters_do_not_go_round(endpoints: Endpoints) -> None:
    assert (await call(endpoints, "PATCH /q", {"dead_letter_queue": "dead", "max_receives": 1}))[0] == 200
    assert (await call(endpoints, "PATCH /dead", {"dead_letter_queue": "r"}))[0] == 200
    status, said = await call(endpoints, "PATCH /r", {"dead_letter_queue": "q"})
    assert (status, "r -> q -> dead -> r" in said) == (400, True)


@for_each(
    "line",
    [
        "GET /no",
        "PATCH /no",
        "POST /no/messages",
        "GET /no/messages",
        "GET /no/messages?max=2&wait=1",
        "POST /no/messages/batch",
        "POST /no/messages/delete",
        "POST /no/take",
        "POST /no/contains",
        "POST /no/purge",
        "POST /no/redrive",
        "GET /no/peek",
        f"GET /no/messages/{UNKNOWN_ID}",
        f"PATCH /no/messages/{UNKNOWN_ID}",
        f"DELETE /no/messages/{UNKNOWN_ID}",
    ],
)
async def test_a_queue_that_is_not_there_is_404(endpoints: Endpoints, line: str) -> None:
    status, said = await call(endpoints, line, {"visibility": 1} if line.startswith("PATCH /no/m") else None)
    assert status == 404
    assert "no" in said


async def test_a_full_queue_is_429(endpoints: Endpoints) -> None:
    await call(endpoints, "PATCH /q", {"max_messages": 1})
    await publish(endpoints, "q", b"x")
    reply = await ask(endpoints, "POST", "/q/messages", b"y")
    assert reply.status == 429
    assert int(dict(reply.headers)["retry-after"]) > 0
    assert detail(reply)


# Publishing


async def test_a_key_makes_one_message_of_two_requests(endpoints: Endpoints) -> None:
    first = await call(endpoints, "POST /q/messages", b"x", idempotency_key="k")
    again = await call(endpoints, "POST /q/messages", b"other", idempotency_key="k")
    assert (first[0], again[0]) == (201, 200)
    assert first[1]["x-message-id"] == again[1]["x-message-id"]
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 1


@for_each(
    "name, value",
    [
        ("x_message_delay", "-1"),
        ("x_message_delay", "soon"),
        ("x_message_delay", "1, 2"),
        ("x_message_ttl", "0"),
        ("idempotency_key", ""),
        ("idempotency_key", "caf\xe9"),
        ("idempotency_key", "k" * 256),
        ("x_message_attribute_", "x"),
        ("x_message_attribute_a", "x" * 16_384),
        ("content_type", "x" * 16_385),
    ],
)
async def test_a_header_that_cannot_be_is_refused(endpoints: Endpoints, name: str, value: str) -> None:
    assert (await call(endpoints, "POST /q/messages", b"x", **{name: value}))[0] == 400
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 0


@pytest.mark.parametrize("name", ["x_message_dealy", "x_message_id", "x_message_attribute", "x_message_"])
async def test_an_unknown_header_of_messages_is_refused_as_an_unknown_parameter_is(
    endpoints: Endpoints, name: str
) -> None:
    status, said = await call(endpoints, "POST /q/messages", b"x", **{name: "5"})
    assert status == 400
    assert f'unknown header "{name.replace("_", "-")}". Known headers: X-Message-Delay, X-Message-At' in said
    status, said = await call(endpoints, "POST /q/messages/batch", b'{"body": "x"}', **{name: "5"})
    assert status == 400
    assert "In a batch, set the properties of each message in the message's own entry" in said
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 0


@pytest.mark.parametrize("raw", [b"text", "caf\u00e9 \U0001f600".encode(), b"caf\xe9", b"\xc4\xa0", b"", b"a\tb"])
async def test_an_attribute_comes_back_as_it_was(endpoints: Endpoints, broker: Broker, raw: bytes) -> None:
    await call(endpoints, "POST /q/messages", b"x", x_message_attribute_Name=raw.decode("latin-1"))
    status, headers = await call(endpoints, "GET /q/messages?visibility=60")
    assert status == 200
    assert headers["x-message-attribute-name"].encode("latin-1") == raw
    [seen] = await broker.peek("q", state="leased")
    assert texts_of(seen.message.properties.attributes)["name"].encode("utf-8", "surrogateescape") == raw


async def test_an_attribute_may_be_as_long_as_it_says(endpoints: Endpoints) -> None:
    longest = {"x_message_attribute_a": "x" * (16_384 - 1)}
    assert (await call(endpoints, "POST /q/messages", b"x", **longest))[0] == 201
    many = {f"x_message_attribute_a{n}": "x" for n in range(64)}
    assert (await call(endpoints, "POST /q/messages", b"x", **many))[0] == 201
    assert (await call(endpoints, "POST /q/messages", b"x", **many, x_message_attribute_b="x"))[0] == 400


async def test_a_unique_queue_says_what_it_contains(endpoints: Endpoints) -> None:
    assert (await call(endpoints, "POST /q/contains", b"x"))[0] == 409
    await call(endpoints, "PATCH /q", {"unique": True})
    for body in (b"x", b"", bytes(MAX_BODY)):
        id = await publish(endpoints, "q", body)
        assert (await call(endpoints, "POST /q/messages", body))[0] == 200
        assert await call(endpoints, "POST /q/contains", body) == (200, {"contains": True, "id": id})
    assert await call(endpoints, "POST /q/contains", b"y") == (200, {"contains": False, "id": None})


# Leases


@pytest.mark.parametrize("method", ["DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("given", "status"),
    [
        ('"RECEIPT"', 0),
        ('W/"RECEIPT"', 0),
        (' "RECEIPT" ', 0),
        ("*", 0),
        ('"other"', 412),
        ('""', 412),
        ('"RECEIPT", "other"', 400),
        ("RECEIPT", 400),
        ('"RECEIPT', 400),
        ("", 400),
    ],
)
async def test_if_match(endpoints: Endpoints, method: str, given: str, status: int) -> None:
    id = await publish(endpoints, "q", b"x")
    receipt = (await call(endpoints, "GET /q/messages"))[1]["etag"].strip('"')
    value = {"visibility": 60} if method == "PATCH" else None
    done, said = await call(endpoints, f"{method} /q/messages/{id}", value, if_match=given.replace("RECEIPT", receipt))
    assert done == (status or (200 if method == "PATCH" else 202)), said


async def test_a_lease_is_ended_and_extended(endpoints: Endpoints) -> None:
    id = await publish(endpoints, "q", b"x")
    assert (await call(endpoints, f"PATCH /q/messages/{id}", {"visibility": 60}))[0] == 409  # not leased
    await call(endpoints, "GET /q/messages")
    assert await call(endpoints, f"PATCH /q/messages/{id}", {"visibility": 60}) == (200, {"id": id, "visibility": 60})
    assert (await call(endpoints, f"PATCH /q/messages/{id}", {"visibility": 0}))[0] == 200
    assert (await call(endpoints, "GET /q/messages"))[1]["x-message-receives"] == "2"


@for_each(
    "value",
    [
        *({}, {"visibility": -1}, {"visibility": 0.0001}, {"visibility": 43201}, {"visibility": False}),
        *({"visibility": "1y"}, {"visibility": None}, {"visibility": 1, "more": 2}, b"", b"[]", b"x"),
        *(
            {"delay": -1},
            {"delay": 315_576_001},
            {"delay": "1y"},
            {"delay": 1, "visibility": 1},
            {"reason": "no delay"},
        ),
        *({"delay": 1, "reason": 7}, {"delay": 1, "reason": "x" * 201}, b'{"delay": 1, "reason": "\\ud800"}'),
    ],
)
async def test_a_lease_that_cannot_be_is_400(endpoints: Endpoints, value: Any) -> None:
    id = await publish(endpoints, "q", b"x")
    await call(endpoints, "GET /q/messages")
    assert (await call(endpoints, f"PATCH /q/messages/{id}", value))[0] == 400


async def test_a_message_is_given_back_for_later_with_the_reason(endpoints: Endpoints) -> None:
    await call(endpoints, "PATCH /q", {"dead_letter_queue": "dead", "max_receives": 2, "retry_delay": 0.05})
    id = await publish(endpoints, "q", b"x")
    await call(endpoints, "GET /q/messages")
    later = {"delay": None, "reason": "no room"}
    assert await call(endpoints, f"PATCH /q/messages/{id}", later) == (200, {"id": id, "delay": None})
    assert (await call(endpoints, "GET /q"))[1]["delayed"] == 1
    assert (await call(endpoints, "GET /q/messages?wait=20"))[1]["x-message-receives"] == "2"
    assert (await call(endpoints, f"PATCH /q/messages/{id}", {"delay": 90, "reason": "no ink"}))[0] == 200
    [death] = json.loads((await call(endpoints, "GET /dead/messages"))[1]["x-message-dead-letter-history"])
    assert (death["reason"], death["error"]) == ("receives", "no ink")


# Later


async def test_what_is_delayed_is_cancelled_and_its_time_changed(endpoints: Endpoints) -> None:
    year = str(365 * 86_400)
    ids = [(await call(endpoints, "POST /q/messages", b"x", x_message_delay=year))[1]["x-message-id"] for _ in range(3)]
    assert (await call(endpoints, f"GET /q/messages/{ids[0]}"))[1]["x-message-state"] == "delayed"
    assert (await call(endpoints, f"DELETE /q/messages/{ids[0]}"))[0] == 202
    assert (await call(endpoints, f"DELETE /q/messages/{ids[0]}"))[0] == 404
    status, why = await call(endpoints, f"PATCH /q/messages/{ids[1]}", {"at": "2999-01-01T00:00:00Z"})
    assert (status, why) == (400, "the delivery time must be within the next ten years")
    assert await call(endpoints, f"PATCH /q/messages/{ids[1]}", {"delay": 7}) == (200, {"id": ids[1], "delay": 7})
    for refused in ({"visibility": 0}, {"delay": None}, {"delay": 5, "reason": "a worker's"}):
        assert (await call(endpoints, f"PATCH /q/messages/{ids[1]}", refused))[0] == 409
    assert (await call(endpoints, f"PATCH /q/messages/{ids[1]}", {"delay": 0}, if_match='"0123456789abcdef"'))[0] == 412
    assert (await call(endpoints, f"PATCH /q/messages/{ids[1]}", {"delay": 0}))[0] == 200
    then = {"at": "1999-12-31t23:59:59.5+02:00"}
    assert await call(endpoints, f"PATCH /q/messages/{ids[2]}", then) == (200, {"id": ids[2]} | then)
    for id in ids[1:]:
        assert (await call(endpoints, "GET /q/messages"))[1]["x-message-id"] == id
    assert (await call(endpoints, f"PATCH /q/messages/{ids[2]}", then))[0] == 409, "it is leased"
    for wanted, status in ((then, 409), ({"delay": 0}, 409), ({"visibility": 0}, 400), ({"delay": -1}, 400)):
        assert (await call(endpoints, f"PATCH /q/messages/{ids[2]}", wanted, if_none_match="*"))[0] == status
    assert (await call(endpoints, f"PATCH /q/messages/{ids[2]}", {"delay": 0}, if_none_match='"x"'))[0] == 400
    assert (await call(endpoints, "GET /q"))[1]["leased"] == 2, "leases are left alone"


@for_each(
    "time",
    [
        *("", "soon", "5", "2030-05-01", "2030-05-01T09:00:00", "2030-05-01T09:00Z", "2030-02-30T09:00:00Z"),
        *("2030-05-01T24:00:00Z", "2030-05-01T09:00:00.1234567Z", "2030-05-01T09:00:00+25:00", "0000-01-01T00:00:00Z"),
    ],
)
async def test_a_time_without_its_zone_or_that_is_none_is_refused(endpoints: Endpoints, time: str) -> None:
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_at=time))[0] == 400
    reply = await ask(endpoints, "POST", "/q/messages/batch", json.dumps({"body": "x", "at": time}).encode())
    assert json.loads(reply.body)["status"] == 400
    id = await publish(endpoints, "q", b"x")
    assert (await call(endpoints, f"PATCH /q/messages/{id}", {"at": time}))[0] == 400


async def test_a_message_is_published_for_a_time(endpoints: Endpoints) -> None:
    at = (datetime.now(UTC) + timedelta(days=400)).isoformat(timespec="milliseconds")
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_at=at))[0] == 201
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_at=at, x_message_delay="0"))[0] == 400
    lines = [{"body": "a", "at": at}, {"body": "b", "at": at, "delay": 5}, {"body": "c", "at": "1970-01-01T00:00:00Z"}]
    reply = await ask(endpoints, "POST", "/q/messages/batch", "\n".join(map(json.dumps, lines)).encode())
    assert [json.loads(line)["status"] for line in reply.body.splitlines()] == [201, 400, 201]
    await wait_all_tasks_blocked()  # they are delivered
    shown = (await call(endpoints, "GET /q"))[1]
    assert (shown["delayed"], shown["ready"]) == (2, 1)


# Looking, and moving what is there


async def test_what_waits_tells_until_when_and_waits_as_long_when_it_comes_in_again(endpoints: Endpoints) -> None:
    at = (datetime.now(UTC) + timedelta(days=400)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    id = (await call(endpoints, "POST /q/messages", b"x", x_message_at=at))[1]["x-message-id"]
    await publish(endpoints, "q", b"ready")
    await wait_all_tasks_blocked()  # they are delivered

    async def peeked(state: str, accept: str = "") -> Any:
        request = Request("GET", b"/q/peek", f"state={state}".encode(), {"accept": accept}, stream(), None)
        return await endpoints.handle(request)

    [line] = (await peeked("delayed")).body.splitlines()
    assert (json.loads(line)["id"], json.loads(line)["at"]) == (id, at)
    [line] = (await peeked("ready")).body.splitlines()
    assert "at" not in json.loads(line)
    headers = (await call(endpoints, f"GET /q/messages/{id}"))[1]
    assert headers["x-message-at"] == at
    parts = await peeked("delayed", "multipart/mixed")
    assert f"x-message-at: {at}\r\n".encode() in parts.body
    as_it_came = {"content-type": dict(parts.headers)["content-type"]}
    copied = await ask(endpoints, "POST", "/q/messages/batch", parts.body, headers=as_it_came)
    assert json.loads(copied.body)["status"] == 201
    await wait_all_tasks_blocked()
    lines = (await peeked("delayed")).body.splitlines()
    assert [json.loads(line)["at"] for line in lines] == [at, at]


async def test_a_message_is_shown_and_left_where_it_is(endpoints: Endpoints) -> None:
    id = await publish(endpoints, "q", b"x" * MAX_BODY)
    status, headers = await call(endpoints, f"GET /q/messages/{id}")
    assert (status, headers["x-message-state"], headers["x-message-receives"]) == (200, "ready", "0")
    assert "etag" not in headers
    etag = (await call(endpoints, "GET /q/messages"))[1]["etag"]
    headers = (await call(endpoints, f"GET /q/messages/{id}"))[1]
    assert (headers["x-message-state"], headers["etag"]) == ("leased", etag)
    assert (await call(endpoints, f"GET /q/messages/{UNKNOWN_ID}"))[0] == 404


async def test_head_closes_what_it_does_not_send(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    async def aclose(self: object) -> None:
        closed.append(self)

    monkeypatch.setattr("mq.message.BytesBody.aclose", aclose)
    id = await publish(endpoints, "q", bytes(MAX_BODY))
    reply = await ask(endpoints, "HEAD", f"/q/messages/{id}")
    assert (reply.status, reply.body) == (200, b"")
    assert dict(reply.headers)["content-length"] == str(MAX_BODY)
    assert len(closed) == 1


async def test_pages_lead_to_one_another(endpoints: Endpoints) -> None:
    ids = [await publish(endpoints, "q", b"%d" % number) for number in range(7)]
    seen: list[str] = []
    line = "GET /q/peek?max=3"
    while line:
        method, _, target = line.partition(" ")
        path, _, query = target.partition("?")
        reply = await endpoints.handle(Request(method, path.encode(), query.encode(), {}, stream(), None))
        seen += [json.loads(each)["id"] for each in reply.body.splitlines()]
        link = dict(reply.headers).get("link", "")
        line = f"GET {link[1 : link.index('>')]}" if link else ""
    assert seen == ids


@pytest.mark.parametrize("query", ["state=gone", "max=0", "max=1001", "max=1.5", "after=x", "after=", "max=", "page=2"])
async def test_a_page_that_cannot_be_is_400(endpoints: Endpoints, query: str) -> None:
    assert (await call(endpoints, f"GET /q/peek?{query}"))[0] == 400


@pytest.mark.parametrize(
    "query", ["wait=-1", "wait=3601", "wait=x", "visibility=0", "visibility=43201", "max=0", "max=1001", "max=-0"]
)
async def test_a_fetch_that_cannot_be_is_400_and_leases_nothing(endpoints: Endpoints, query: str) -> None:
    await publish(endpoints, "q", b"x")
    assert (await call(endpoints, f"GET /q/messages?{query}"))[0] == 400
    assert (await call(endpoints, "GET /q"))[1]["ready"] == 1


async def test_purge_leaves_what_is_leased(endpoints: Endpoints) -> None:
    for _ in range(3):
        await publish(endpoints, "q", b"x")
    await call(endpoints, "GET /q/messages")
    assert await call(endpoints, "POST /q/purge") == (200, {"purged": 2})
    assert (await call(endpoints, "GET /q"))[1]["leased"] == 1


async def test_what_died_goes_back(endpoints: Endpoints) -> None:
    await call(endpoints, "PATCH /q", {"dead_letter_queue": "dead", "max_receives": 1})
    ids = [await publish(endpoints, "q", b"%d" % number) for number in range(3)]
    for id in ids:
        await call(endpoints, "GET /q/messages")
        await call(endpoints, f"PATCH /q/messages/{id}", {"visibility": 0})
    deaths = json.loads((await call(endpoints, "GET /dead/messages"))[1]["x-message-dead-letter-history"])
    assert [(death["queue"], death["reason"], death["receives"]) for death in deaths] == [("q", "receives", 1)]
    await call(endpoints, f"PATCH /dead/messages/{ids[0]}", {"visibility": 0})
    assert (await call(endpoints, "POST /dead/redrive", {"ids": []}))[1]["moved"] == 0
    assert (await call(endpoints, "POST /dead/redrive", {"ids": [ids[1]]}))[1] == {"moved": 1, "remaining": 2}
    assert (await call(endpoints, "POST /dead/redrive", {"max": 1}))[1] == {"moved": 1, "remaining": 1}
    assert (await call(endpoints, "POST /dead/redrive", {"to": "r"}))[1] == {"moved": 1, "remaining": 0}
    assert ((await call(endpoints, "GET /q"))[1]["ready"], (await call(endpoints, "GET /r"))[1]["ready"]) == (2, 1)


@for_each(
    "value, status",
    [
        ({"to": "nowhere"}, 404),
        ({"to": "../x"}, 400),
        ({"to": 7}, 400),
        ({"to": "dead"}, 400),
        ({"max": 0}, 400),
        ({"max": 1001}, 400),
        ({"max": True}, 400),
        ({"max": None}, 400),
        ({"ids": "x"}, 400),
        ({"ids": [7]}, 400),
        ({"ids": ["x"]}, 404),
        ({"too": "r"}, 400),
        (b"[]", 400),
    ],
)
async def test_a_redrive_that_cannot_be_is_refused(endpoints: Endpoints, value: Any, status: int) -> None:
    await publish(endpoints, "dead", b"x")
    before = (await call(endpoints, "GET /dead"))[1]["ready"]
    assert (await call(endpoints, "POST /dead/redrive", value))[0] == status
    assert (await call(endpoints, "GET /dead"))[1]["ready"] == before > 0


# The broker


async def test_all_queues_and_their_rates(endpoints: Endpoints) -> None:
    await publish(endpoints, "q", b"x")
    status, value = await call(endpoints, "GET /-/queues")
    assert (status, [shown["name"] for shown in value["queues"]]) == (200, ["dead", "q", "r"])
    assert all(shown.keys() == SHOWN for shown in value["queues"])
    status, value = await call(endpoints, "GET /-/stats")
    assert (status, value["queues"].keys()) == (200, {"dead", "q", "r"})
    assert value["queues"]["q"]["ready"] == 1


# Priorities


async def test_priorities_over_http(endpoints: Endpoints) -> None:
    await call(endpoints, "PATCH /q", {"max_priority": 9})
    for priority in ("0", "9", "5"):
        assert (await call(endpoints, "POST /q/messages", priority.encode(), x_message_priority=priority))[0] == 201
    line = b'{"body": "7", "priority": 7}\n{"body": "none", "priority": null}\n{"body": "256", "priority": 256}\n'
    reply = await ask(endpoints, "POST", "/q/messages/batch", line)
    assert [json.loads(each)["status"] for each in reply.body.splitlines()] == [201, 201, 400]
    part = b"--b\r\nX-Message-Priority: 8\r\n\r\n8\r\n--b--\r\n"
    headers = {"content-type": "multipart/mixed; boundary=b"}
    assert b'"status": 201' in (await ask(endpoints, "POST", "/q/messages/batch", part, headers=headers)).body
    found = [(await ask(endpoints, "GET", "/q/messages")).body for _ in range(6)]
    assert found == [b"9", b"8", b"7", b"5", b"0", b"none"]


async def test_groups_over_http(endpoints: Endpoints) -> None:
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_group="a"))[0] == 409
    assert (await call(endpoints, "PATCH /q", {"groups": True, "max_priority": 3}))[0] == 400
    await call(endpoints, "PATCH /q", {"groups": True})
    assert (await call(endpoints, "POST /q/messages", b"a1", x_message_group="a"))[0] == 201
    lines = b'{"body": "a2", "group": "a"}\n{"body": "b1", "group": "b"}\n{"body": "none", "group": null}\n'
    lines += b'{"body": "x", "group": ""}\n{"body": "x", "group": 3}\n'
    reply = await ask(endpoints, "POST", "/q/messages/batch", lines)
    assert [json.loads(each)["status"] for each in reply.body.splitlines()] == [201, 201, 201, 400, 400]
    array = b'[{"body": "b2", "group": "b"}]'
    reply = await ask(endpoints, "POST", "/q/messages/batch", array, headers={"content-type": "application/json"})
    assert b'"status": 201' in reply.body
    part = b"--b\r\nX-Message-Group: c\r\nX-Message-Receives: 1\r\n\r\nc1\r\n--b--\r\n"
    headers = {"content-type": "multipart/mixed; boundary=b"}
    assert b'"status": 201' in (await ask(endpoints, "POST", "/q/messages/batch", part, headers=headers)).body
    found = [await ask(endpoints, "GET", "/q/messages") for _ in range(5)]
    assert [reply.body for reply in found] == [b"a1", b"b1", b"none", b"c1", b""]
    assert [dict(reply.headers).get("x-message-group") for reply in found] == ["a", "b", None, "c", None]
    first = dict(found[0].headers)
    assert (await call(endpoints, f"DELETE /q/messages/{first['x-message-id']}", if_match=first["etag"]))[0] == 202
    preview = (await call(endpoints, "GET /q/preview"))[1]
    assert {each.get("group") for each in preview["messages"]} == {"a", "b"}
    request = Request("GET", b"/q/messages", b"max=5", {}, stream(), 0)
    [line] = (await whole(await endpoints.handle(request))).body.splitlines()
    assert (json.loads(line)["group"], json.loads(line)["body"]) == ("a", "a2")


@pytest.mark.parametrize("group", ["", "a b", "x" * 129])
async def test_a_group_that_cannot_be_is_400(endpoints: Endpoints, group: str) -> None:
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_group=group))[0] == 400


@pytest.mark.parametrize("priority", ["-1", "256", "high", "1.5"])
async def test_a_priority_that_cannot_be_is_400(endpoints: Endpoints, priority: str) -> None:
    assert (await call(endpoints, "POST /q/messages", b"x", x_message_priority=priority))[0] == 400
