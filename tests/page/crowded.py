"""A daemon as a busy shop has it: 200 queues, 14,000 messages, 68 dead letters, six consumers and three schedules."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from typing import Any, Final

import pytest

from tests.page.hand import Hand

MESSAGES: Final = 14_000
_SERVICES: Final = (
    "orders", "mails", "invoices", "thumbnails", "returns", "payments", "stock", "search-index", "newsletter",
    "a-service-with-a-name-that-is-longer-than-most-of-the-others",
)  # fmt: skip
_PLACES: Final = ("eu-central-1", "eu-west-1", "us-east-1", "us-west-2", "ap-1", "ap-2", "sa-1", "test", "beta", "old")
BASES: Final = tuple(f"{service}.{place}" for service, place in product(_SERVICES, _PLACES))[:-1]
QUEUE: Final = BASES[0]
DEAD: Final = f"{QUEUE}.dead"
"""Has dead letters that a worker has given up, with its errors."""
_BATCH: Final = 1000
_ERRORS: Final = (
    "the card was declined",
    "psycopg.OperationalError: connection to server at 'db-7.internal' (10.20.30.40), port 5432 failed: timed out",
    "HTTP 503 from https://payments.example/v2/charges?idempotency=0191f4b2-7a54-7c3e-9d7f-5b2f0d6c1a11&currency=EUR",
    "no such customer: 4711",
)  # fmt: skip
_LEFT_DEAD: Final = {DEAD: 20, **{f"{name}.dead": 12 for name in BASES[1:5]}}


@contextmanager
def crowded(daemon: Any) -> Iterator[str]:
    """The URL of the daemon, filled; its consumers are there for as long as the block runs."""
    pika = pytest.importorskip("pika")
    with ExitStack() as stack:
        connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)))
        ask = _Asking(connection)
        for name in BASES:
            ask("PUT", f"/{name}")
            ask("PUT", f"/{name}.dead")
            ask("PATCH", f"/{name}", {"dead_letter_queue": f"{name}.dead", "max_receives": 1})
        for name, count in _LEFT_DEAD.items():
            _let_die(ask, name.removesuffix(".dead"), count)
        for place, name in enumerate(BASES[:-2]):
            _publish(ask, name, 7 if place > 8 else 4000 >> place)
        ask("POST", f"/{BASES[1]}/messages", b"x" * (1 << 20))
        ask("PATCH", f"/{BASES[2]}", {"paused": True, "publish_paused": True})
        ask("GET", f"/{BASES[3]}/messages?visibility=3600")
        ask("PATCH", f"/{BASES[3]}", {"max_receives": None})
        _publish(ask, BASES[4], 2, delay=40 * 86_400)
        _schedule(ask)
        consumers = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", daemon.amqp_port, heartbeat=0))
        stack.callback(consumers.close)
        _consume(consumers)
        for name in BASES[-2:]:  # they are empty
            waiting = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)))
            waiting.request("GET", f"/{name}/messages?wait=3600")
        queues = json.loads(ask("GET", "/-/queues"))["queues"]
        _publish(ask, BASES[5], MESSAGES - sum(each["ready"] + each["leased"] + each["delayed"] for each in queues))
        with Hand.alone(f"http://127.0.0.1:{daemon.port}") as hand:
            hand.until(lambda: len(hand.ask("GET", "/-/consumers")["consumers"]) == 6)
            hand.until(lambda: sum(each["ready"] for each in hand.ask("GET", "/-/dead-letters")["queues"]) == 68)
            yield hand.url


class _Asking:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def __call__(self, method: str, path: str, value: Any = b"", kind: str = "application/octet-stream") -> bytes:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._connection.request(method, path, body, {"Content-Type": kind})
        reply = self._connection.getresponse()
        found = reply.read()
        assert reply.status < 300, (method, path, reply.status, found)
        return found


def _publish(ask: _Asking, name: str, count: int, **more: float) -> None:
    for start in range(0, count, _BATCH):
        lines = [json.dumps(_order(number) | more) for number in range(start, min(count, start + _BATCH))]
        ask("POST", f"/{name}/messages/batch", "\n".join(lines).encode(), "application/x-ndjson")


def _order(number: int) -> dict[str, Any]:
    body = {
        "order": 1000 + number,
        "customer": number * 7919 % 5000,
        "total": f"{number * 31 % 999}.90",
        "note": "é" * 9,
    }
    return {"body": json.dumps(body), "content_type": "application/json", "attributes": {"shop": "north"}}


def _let_die(ask: _Asking, name: str, count: int) -> None:
    """Messages of a queue die: four of five with a worker's error, each at its first delivery."""
    _publish(ask, name, count)
    lines = ask("GET", f"/{name}/messages?max={count}").decode().splitlines()
    for number, line in enumerate(lines):
        failed = {"delay": 0} if number % 5 == 4 else {"delay": 0, "reason": _ERRORS[number % 5]}
        ask("PATCH", f"/{name}/messages/{json.loads(line)['id']}", failed)


def _schedule(ask: _Asking) -> None:
    for name, when in (
        ("nightly", {"cron": "0 3 * * MON-FRI", "zone": "Europe/Berlin"}),
        ("every-quarter-of-an-hour-without-a-pause", {"every": 900, "unless_waiting": True}),
        ("leap-day", {"cron": "0 0 29 2 *", "zone": "America/Argentina/Buenos_Aires"}),
    ):
        ask("PUT", f"/-/schedules/{name}", {**when, "queue": BASES[9], "message": {"body": "x"}})


def _consume(connection: Any) -> None:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=5)
    for exchange, kind in (
        ("events", "topic"),
        ("audit", "fanout"),
        ("retries", "direct"),
        ("an.alternate.exchange", "fanout"),
    ):
        channel.exchange_declare(exchange, kind, durable=True)
    channel.exchange_bind("audit", "events", "order.#")
    channel.exchange_bind("an.alternate.exchange", "audit", "")
    for queue, keys in (
        (BASES[0], ("order.new", "order.changed", "order.cancelled.by.the.customer.after.delivery")),
        (BASES[10], ("order.*", "customer.*")),
        (BASES[30], ("picture.#",)),
        (BASES[20], ("invoice.#", "order.paid")),
    ):
        for key in keys:
            channel.queue_bind(queue, "events", key)
    channel.queue_bind(BASES[40], "audit", "")
    channel.queue_bind(BASES[50], "audit", "")
    for name, exchange, key in (("work", "retries", "again"), ("again", "", "work")):
        arguments = {"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": key}
        channel.queue_declare(name, durable=True, arguments=arguments)
    channel.queue_bind("again", "retries", "again")
    channel.queue_bind("work", "events", "work.#")
    for queue, tag in (
        (BASES[0], "worker-1"),
        (BASES[0], "worker-2"),
        (BASES[10], "ctag1.9f8e7d6c5b4a39281706"),
        (BASES[30], "resizer"),
    ):
        channel.basic_consume(queue, lambda *_: None, consumer_tag=tag)
    connection.process_data_events(0.5)
