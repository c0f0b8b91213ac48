"""Every verb: the request it makes, and what it makes of the answer. Both clients, from one table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import httpx
import pytest

from mq.client import (
    BadRequest,
    Conflict,
    DeadLetterEvent,
    Head,
    LeaseLost,
    NotAllowed,
    NotFound,
    Outcome,
    Outgoing,
    Page,
    Published,
    Queue,
    QueueFull,
    Received,
    Redriven,
    Refused,
    TooLarge,
    Unavailable,
    UnexpectedResponse,
)
from tests.cases import for_each
from tests.client.scripted import ID, OTHER, both, lines, message, read_lines, refused

HELLO = Received(queue="q", id=ID, receipt="r1", receives=1, lease=30, content_type="text/plain", body=b"hello")
HELD = Head(queue="q", id=ID, receipt="r1")
QUEUE = {"name": "q", "ready": 1, "leased": 2, "delayed": 3, "oldest_seconds": 1.5, "visibility": 30, "paused": True}


def document(value: object, status: int = 200) -> httpx.Response:
    return httpx.Response(status, json=value)


def empty(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


class Case(NamedTuple):
    verb: Callable[[Any], Any]
    method: str
    target: str
    answer: Callable[[], httpx.Response]
    result: object
    sent: object = None
    headers: dict[str, str] = {}


CASES = {
    "create": Case(lambda c: c.create_queue("q"), "PUT", "/q", lambda: empty(201), True),
    "create again": Case(lambda c: c.create_queue("q"), "PUT", "/q", lambda: empty(200), False),
    "delete queue": Case(lambda c: c.delete_queue("a@b"), "DELETE", "/a@b", lambda: empty(200), None),
    "queue": Case(
        lambda c: c.queue("q"),
        "GET",
        "/q",
        lambda: document(QUEUE),
        Queue(
            name="q",
            ready=1,
            leased=2,
            delayed=3,
            oldest_seconds=1.5,
            settings={"visibility": 30, "paused": True},
        ),
    ),
    "configure": Case(
        lambda c: c.configure("q", visibility=60, ttl=None),
        "PATCH",
        "/q",
        lambda: document(QUEUE),
        None,
        {"visibility": 60, "ttl": None},
    ),
    "queues": Case(
        lambda c: c.queues(), "GET", "/-/queues", lambda: document({"queues": [{"name": "q"}]}), (Queue(name="q"),)
    ),
    "stats": Case(lambda c: c.stats(), "GET", "/-/stats", lambda: document({"a": 1}), {"a": 1}),
    "cluster": Case(lambda c: c.cluster(), "GET", "/-/cluster", lambda: document({"node": ""}), {"node": ""}),
    "logging": Case(lambda c: c.logging(), "GET", "/-/logging", lambda: document({"a": 1}), {"a": 1}),
    "change logging": Case(
        lambda c: c.change_logging(level="debug"),
        "PATCH",
        "/-/logging",
        lambda: document({"a": 1}),
        {"a": 1},
        {"level": "debug"},
    ),
    "rates": Case(
        lambda c: c.rates(sort="ready", filter="a", limit=5, history=True),
        "GET",
        "/-/rates?sort=ready&skip=0&max=5&filter=a&history=true",
        lambda: document({"there": 1}),
        {"there": 1},
    ),
    "queue rates": Case(lambda c: c.queue_rates("q"), "GET", "/q/rates", lambda: document({"a": 1}), {"a": 1}),
    "connections": Case(
        lambda c: c.connections("a-1"), "GET", "/-/connections?after=a-1", lambda: document({"open": 1}), {"open": 1}
    ),
    "consumers": Case(lambda c: c.consumers(), "GET", "/-/consumers", lambda: document({"open": 1}), {"open": 1}),
    "batch consumers": Case(
        lambda c: c.batch_consumers(),
        "GET",
        "/-/batch-consumers",
        lambda: document({"consumers": [{"a": 1}]}),
        [{"a": 1}],
    ),
    "forget": Case(lambda c: c.forget_consumer("q", "c"), "DELETE", "/q/consumers/c", lambda: empty(200), None),
    "close": Case(lambda c: c.close_connection("a-1"), "DELETE", "/-/connections/a-1", lambda: empty(200), None),
    "ready": Case(lambda c: c.ready(), "GET", "/-/ready", lambda: document({"ready": True}), True),
    "not ready": Case(lambda c: c.ready(), "GET", "/-/ready", lambda: refused(503), False),
    "fetch": Case(lambda c: c.fetch("q"), "GET", "/q/messages", message, HELLO),
    "fetch of a group": Case(
        lambda c: c.fetch("q"), "GET", "/q/messages", lambda: message(x_message_group="g"), replace(HELLO, group="g")
    ),
    "fetch, patiently": Case(
        lambda c: c.fetch("q", wait=20, visibility=0.5),
        "GET",
        "/q/messages?wait=20&visibility=0.5",
        lambda: empty(204),
        None,
    ),
    "fetch what died": Case(
        lambda c: c.fetch("q"),
        "GET",
        "/q/messages",
        lambda: message(
            x_message_dead_letter_history=json.dumps(
                [{"queue": "a", "reason": "receives", "receives": 3, "time": 1.5}]
            ),
            x_message_attribute_colour="blue",
        ),
        Received(
            queue="q",
            id=ID,
            receipt="r1",
            receives=1,
            lease=30,
            content_type="text/plain",
            body=b"hello",
            attributes={"colour": "blue"},
            dead_letter_history=(DeadLetterEvent(queue="a", reason="receives", receives=3, time=1.5),),
        ),
    ),
    "fetch many": Case(
        lambda c: c.fetch_many("q", 2, wait=1),
        "GET",
        "/q/messages?max=2&wait=1",
        lambda: lines(
            {"id": ID, "receipt": "r1", "receives": 1, "lease": 30, "content_type": "text/plain", "body": "hello"},
            {"id": OTHER, "receipt": "r2", "receives": 2, "attributes": {"a": "b"}, "base64": "/w=="},
        ),
        (HELLO, Received(queue="q", id=OTHER, receipt="r2", receives=2, attributes={"a": "b"}, body=b"\xff")),
        headers={"accept": "application/x-ndjson"},
    ),
    "fetch many of none": Case(lambda c: c.fetch_many("q", 9), "GET", "/q/messages?max=9", lambda: empty(204), ()),
    "take": Case(lambda c: c.take("q"), "POST", "/q/take", message, HELLO),
    "take of none": Case(lambda c: c.take("q"), "POST", "/q/take", lambda: empty(204), None),
    "show": Case(lambda c: c.show("q", ID), "GET", f"/q/messages/{ID}", message, HELLO),
    "remove": Case(
        lambda c: c.remove(HELD),
        "DELETE",
        f"/q/messages/{ID}",
        lambda: empty(202),
        None,
        headers={"if-match": '"r1"'},
    ),
    "remove many": Case(
        lambda c: c.remove_many("q", [HELD, OTHER]),
        "POST",
        "/q/messages/delete",
        lambda: lines({"status": 202, "id": ID}, {"status": 404, "detail": "gone"}),
        [Outcome(status=202, id=ID), Outcome(status=404, detail="gone")],
        [{"id": ID, "receipt": "r1"}, {"id": OTHER}],
    ),
    "extend": Case(
        lambda c: c.extend(HELD, 90),
        "PATCH",
        f"/q/messages/{ID}",
        lambda: empty(200),
        None,
        {"visibility": 90},
        {"if-match": '"r1"', "content-type": "application/json"},
    ),
    "requeue": Case(lambda c: c.requeue(HELD), "PATCH", f"/q/messages/{ID}", lambda: empty(200), None, {"delay": 0}),
    "requeue for later": Case(
        lambda c: c.requeue(HELD, 90, "no room"),
        "PATCH",
        f"/q/messages/{ID}",
        lambda: empty(200),
        None,
        {"delay": 90, "reason": "no room"},
    ),
    "requeue as the queue says": Case(
        lambda c: c.requeue(HELD, None, "x" * 300),
        "PATCH",
        f"/q/messages/{ID}",
        lambda: empty(200),
        None,
        {"delay": None, "reason": "x" * 200},
    ),
    "reschedule": Case(
        lambda c: c.reschedule("q", ID, delay=0),
        "PATCH",
        f"/q/messages/{ID}",
        lambda: empty(200),
        None,
        {"delay": 0},
        {"if-none-match": "*", "content-type": "application/json"},
    ),
    "reschedule to a time": Case(
        lambda c: c.reschedule("q", ID, at=datetime(2030, 5, 1, 9, tzinfo=timezone(timedelta(hours=2)))),
        "PATCH",
        f"/q/messages/{ID}",
        lambda: empty(200),
        None,
        {"at": "2030-05-01T07:00:00+00:00"},
        {"if-none-match": "*", "content-type": "application/json"},
    ),
    "put schedule": Case(
        lambda c: c.put_schedule("s", "q", Outgoing("x", priority=3), cron="0 3 * * *", zone="UTC"),
        "PUT",
        "/-/schedules/s",
        lambda: document({}, 201),
        True,
        {
            "queue": "q",
            "message": {"body": "x", "priority": 3},
            "cron": "0 3 * * *",
            "zone": "UTC",
            "unless_waiting": False,
        },
    ),
    "put schedule again": Case(
        lambda c: c.put_schedule("s", "q", Outgoing(b"\xff"), every=5, unless_waiting=True),
        "PUT",
        "/-/schedules/s",
        lambda: document({}, 200),
        False,
        {"queue": "q", "message": {"base64": "/w=="}, "every": 5, "unless_waiting": True},
    ),
    "schedule": Case(
        lambda c: c.schedule("a/b"), "GET", "/-/schedules/a%2Fb", lambda: document({"name": "s"}), {"name": "s"}
    ),
    "schedules": Case(
        lambda c: c.schedules("s"),
        "GET",
        "/-/schedules?after=s",
        lambda: document({"schedules": [], "next": None}),
        {"schedules": [], "next": None},
    ),
    "delete schedule": Case(lambda c: c.delete_schedule("s"), "DELETE", "/-/schedules/s", lambda: empty(200), None),
    "peek": Case(
        lambda c: c.peek("q", 2, state="delayed", after=OTHER),
        "GET",
        f"/q/peek?max=2&state=delayed&after={OTHER}",
        lambda: lines({"id": ID, "state": "delayed", "body": ""}, link='</q/peek?max=2&after=x>; rel="next"'),
        Page(messages=(Received(queue="q", id=ID, state="delayed"),), next="/q/peek?max=2&after=x"),
    ),
    "peek with a time": Case(
        lambda c: c.peek("q", 1, state="leased"),
        "GET",
        "/q/peek?max=1&state=leased",
        lambda: lines({"id": ID, "state": "leased", "at": "2030-05-01T09:00:00.5Z", "body": ""}),
        Page(messages=(Received(queue="q", id=ID, state="leased", at=datetime(2030, 5, 1, 9, 0, 0, 500000, UTC)),)),
    ),
    "show with a time": Case(
        lambda c: c.show("q", ID),
        "GET",
        f"/q/messages/{ID}",
        lambda: message(x_message_state="delayed", x_message_at="2030-05-01T09:00:00Z"),
        replace(HELLO, state="delayed", at=datetime(2030, 5, 1, 9, tzinfo=UTC)),
    ),
    "contains": Case(
        lambda c: c.contains("q", b"b"), "POST", "/q/contains", lambda: document({"contains": True, "id": ID}), ID
    ),
    "contains not": Case(
        lambda c: c.contains("q", b"b"), "POST", "/q/contains", lambda: document({"contains": False}), None
    ),
    "purge": Case(lambda c: c.purge("q"), "POST", "/q/purge", lambda: document({"purged": 7}), 7),
    "redrive": Case(
        lambda c: c.redrive("q"),
        "POST",
        "/q/redrive",
        lambda: document({"moved": 1, "remaining": 2}),
        Redriven(moved=1, remaining=2),
        {"max": 1000},
    ),
    "move": Case(
        lambda c: c.redrive("q", to="p", limit=5, ids=[ID]),
        "POST",
        "/q/redrive",
        lambda: document({"moved": 0, "remaining": 0}),
        Redriven(moved=0, remaining=0),
        {"max": 5, "to": "p", "ids": [ID]},
    ),
    "publish": Case(
        lambda c: c.publish("q", "ho", delay=0.25, ttl=60, attributes={"colour": "blue"}, key="k"),
        "POST",
        "/q/messages",
        lambda: empty(201, x_message_id=ID),
        Published(id=ID),
        headers={
            "content-type": "text/plain; charset=utf-8",
            "x-message-delay": "0.25",
            "x-message-ttl": "60",
            "x-message-attribute-colour": "blue",
            "idempotency-key": "k",
        },
    ),
    "publish for a time": Case(
        lambda c: c.publish("q", b"ho", at=datetime(2030, 5, 1, 9, 0, tzinfo=timezone(timedelta(hours=2)))),
        "POST",
        "/q/messages",
        lambda: empty(201, x_message_id=ID),
        Published(id=ID),
        headers={"x-message-at": "2030-05-01T07:00:00+00:00"},
    ),
    "publish in a group": Case(
        lambda c: c.publish("q", b"ho", group="g"),
        "POST",
        "/q/messages",
        lambda: empty(201, x_message_id=ID),
        Published(id=ID),
        headers={"x-message-group": "g"},
    ),
    "publish what is there": Case(
        lambda c: c.publish("q", b"ho"),
        "POST",
        "/q/messages",
        lambda: empty(200, x_message_id=ID),
        Published(id=ID, is_new=False),
    ),
    "publish many": Case(
        lambda c: c.publish_many("q", ["é", b"\xff", Outgoing("c", "text/x", 1.5, 2, {"a": "b"}, "k")]),
        "POST",
        "/q/messages/batch",
        lambda: lines(*[{"status": 201, "id": ID}] * 3),
        [Outcome(status=201, id=ID)] * 3,
        headers={"content-type": "application/x-ndjson"},
    ),
}


@for_each("case", CASES.values())
async def test_verb(case: Case) -> None:
    for script, result in await both(lambda: [case.answer()], case.verb):
        assert result == case.result
        asked = script.only
        assert (asked.method, asked.target) == (case.method, case.target)
        assert case.headers.items() <= asked.headers.items()
        if case.sent is not None:
            sent = read_lines(asked.body)
            assert sent == (case.sent if isinstance(case.sent, list) else [case.sent])


async def test_the_lines_of_a_batch() -> None:
    messages = ["é", b"\xff", Outgoing("c", "text/x", 1.5, 2, {"a": "b"}, "k", group="g")]
    answers = [{"status": 201, "id": ID}] * 3
    for script, _ in await both(lambda: [lines(*answers)], lambda c: c.publish_many("q", messages)):
        text, binary, whole = read_lines(script.only.body)
        assert text.pop("key") != binary.pop("key")
        assert (text, binary) == ({"body": "é"}, {"base64": "/w=="})
        assert whole == {
            "body": "c",
            "content_type": "text/x",
            "delay": 1.5,
            "ttl": 2,
            "attributes": {"a": "b"},
            "key": "k",
            "group": "g",
        }


async def test_bytes_say_nothing_of_what_they_are() -> None:
    for script, _ in await both(lambda: [empty(201, x_message_id=ID)], lambda c: c.publish("q", b"ho")):
        assert "content-type" not in script.only.headers
        assert script.only.body == b"ho"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (412, LeaseLost),
        (413, TooLarge),
        (418, Refused),
    ],
)
async def test_a_refusal_is_the_daemons_line(status: int, kind: type[Refused]) -> None:
    for _, error in await both(lambda: [refused(status, "why not")], lambda c: c.queue("q")):
        assert type(error) is kind
        assert (error.status, error.detail, str(error)) == (status, "why not", "why not")


@pytest.mark.parametrize(("status", "kind"), [(429, QueueFull), (503, Unavailable)])
async def test_busy_for_longer_than_one_waits_is_a_refusal(status: int, kind: type[Refused]) -> None:
    steps = lambda: [refused(status, "full", **{"retry-after": "10"})]  # noqa: E731
    for _, error in await both(steps, lambda c: c.publish("q", b"")):
        assert type(error) is kind


@for_each(
    "verb, answer",
    [
        (lambda c: c.queue("q"), lambda: httpx.Response(200, content=b"<html>")),
        (lambda c: c.queue("q"), lambda: document([])),
        (lambda c: c.queue("q"), lambda: document({})),
        (lambda c: c.queue("q"), lambda: httpx.Response(301, headers={"location": "/elsewhere"})),
        (lambda c: c.queues(), lambda: document({"queues": 1})),
        (lambda c: c.fetch("q"), lambda: httpx.Response(200, content=b"hi")),
        (lambda c: c.fetch_many("q", 2), lambda: lines({"id": ID})),
        (lambda c: c.fetch_many("q", 2), lambda: lines({"id": ID, "base64": "?"})),
        (lambda c: c.publish("q", b""), lambda: empty(201)),
        (lambda c: c.publish_many("q", [b"", b""]), lambda: lines({"status": 201, "id": ID})),
        (lambda c: c.publish_many("q", [b""]), lambda: lines({"id": ID})),
        (lambda c: c.purge("q"), lambda: document({})),
        (lambda c: c.queue("q"), lambda: document({"name": "q", "ready": "many"})),
        (lambda c: c.fetch_many("q", 2), lambda: lines({"id": ID, "body": "", "attributes": 1})),
    ],
)
async def test_what_no_mq_answers_is_not_understood(
    verb: Callable[[Any], Any], answer: Callable[[], httpx.Response]
) -> None:
    for _, error in await both(lambda: [answer()], verb):
        assert isinstance(error, UnexpectedResponse)


async def test_a_refusal_by_somebody_else_says_its_status() -> None:
    for _, error in await both(lambda: [httpx.Response(404, content=b"<html>")], lambda c: c.queue("q")):
        assert isinstance(error, NotFound)
        assert str(error) == "the daemon returned status 404"


@pytest.mark.parametrize("wait", [-1, float("nan"), float("inf")])
async def test_seconds_are_checked_before_anything_is_sent(wait: float) -> None:
    for script, error in await both(list, lambda c: c.fetch("q", wait=wait)):
        assert isinstance(error, ValueError)
        assert script.asked == []


async def test_a_name_cannot_leave_its_place_in_the_path() -> None:
    for script, _ in await both(lambda: [refused(400)], lambda c: c.delete_queue("../q?a#b")):
        assert script.only.target == "/..%2Fq%3Fa%23b"
