"""What somebody publishes who wants to be more than text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.page.hand import Hand

MARKER = "pwned"
HOSTILE = (
    f"<script>window.{MARKER} = 1</script>",
    f"<img src=x onerror='window.{MARKER} = 1'>",
    f'"><svg onload="window.{MARKER}=1"><b {MARKER}>',
    f"javascript:window.{MARKER}=1",
    f"</textarea></pre><iframe srcdoc='<script>parent.{MARKER}=1</script>'></iframe>",
    f"${{window.{MARKER}=1}} {{{{constructor.constructor('window.{MARKER}=1')()}}}}",
)


def declare_hostile(port: int) -> Any:
    """Over AMQP, where nearly any name will do: exchanges, routing keys, a consumer's tag, a rejected message. The
    connection, to be closed."""
    pika = pytest.importorskip("pika")
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    for number, text in enumerate(HOSTILE):
        channel.exchange_declare(text, "topic")
        dead = {"x-dead-letter-exchange": text, "x-dead-letter-routing-key": text}
        channel.queue_declare(f"amqp-{number}", durable=True, arguments=dead)
        channel.queue_declare(f"amqp-{number}.dead", durable=True)
        channel.queue_bind(f"amqp-{number}.dead", text, text)
        channel.basic_consume(f"amqp-{number}.dead", lambda *_: None, consumer_tag=text)
    return connection


def fill_with_hostile(hand: Hand) -> None:
    """Bodies, headers and content types; alive and dead. Queues can have no such name, so mq says that."""
    for name in ("hostile", "hostile.dead"):
        hand.ask("PUT", f"/{name}")
    hand.ask("PATCH", "/hostile", json.dumps({"dead_letter_queue": "hostile.dead"}))
    for text in HOSTILE:
        line = {"body": text, "content_type": text, "attributes": {"shown": text}}
        for more in ({}, {"ttl": 0.01}):
            hand.ask("POST", "/hostile/messages/batch", json.dumps(line | more), content_type="application/x-ndjson")
    wanted = {"cron": "0 0 29 2 *", "queue": "hostile", "message": {"body": HOSTILE[0], "content_type": HOSTILE[1]}}
    hand.ask("PUT", "/-/schedules/hostile", json.dumps(wanted))
    hand.until(lambda: hand.ask("GET", "/hostile.dead")["ready"] == len(HOSTILE))
    hand.ask("PATCH", "/hostile", json.dumps({"max_receives": 1}))
    [message] = hand.ask("GET", "/hostile/preview?max=1")["messages"]
    hand.ask("GET", "/hostile/messages")
    failed = json.dumps({"delay": 0, "reason": HOSTILE[1]})  # a worker says why it gives the message back
    hand.ask("PATCH", f"/hostile/messages/{message['id']}", failed)
    hand.until(lambda: hand.ask("GET", "/hostile.dead")["ready"] == len(HOSTILE) + 1)
