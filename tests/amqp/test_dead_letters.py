"""Dead letters, as a client reads them; and messages that cross from one protocol to the other."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from pamqp import commands as methods

from mq.amqp.server.dead_letters import Reason, deaths_of, died, goes_in_circles
from mq.amqp.server.message_codec import arrival_of, attributes_of
from mq.amqp.wire.properties import NONE, BasicProperties
from mq.errors import CorruptMessage

TIME = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def read(properties: BasicProperties | bytes) -> methods.Basic.Properties:
    """As a client's pamqp has it."""
    raw = properties if isinstance(properties, bytes) else properties.raw
    found = methods.Basic.Properties()
    found.unmarshal(int.from_bytes(raw[:2]), raw[2:])
    return found


def die(properties: BasicProperties, queue: str, reason: Reason) -> BasicProperties:
    return died(properties, queue, reason, "x", ["key"], TIME)


def test_the_first_death() -> None:
    before = BasicProperties(methods.Basic.Properties(headers={"mine": 1}, expiration="500", priority=4).marshal())
    after = read(die(before, "q", Reason.EXPIRED))
    assert (after.expiration, after.priority) == (None, 4)
    assert after.headers == {
        "mine": 1,
        "x-first-death-queue": "q",
        "x-first-death-reason": "expired",
        "x-first-death-exchange": "x",
        "x-death": [
            {
                "queue": "q",
                "reason": "expired",
                "exchange": "x",
                "count": 1,
                "time": TIME,
                "routing-keys": ["key"],
                "original-expiration": "500",
            }
        ],
    }


def test_deaths_are_counted_by_queue_and_reason_and_the_latest_is_first() -> None:
    properties = NONE
    for queue, reason in [("a", Reason.EXPIRED), ("b", Reason.REJECTED), ("a", Reason.MAXLEN), ("a", Reason.EXPIRED)]:
        properties = die(properties, queue, reason)
        assert (read(properties).headers or {})["x-first-death-queue"] == "a"
    told = [(death["queue"], death["reason"], death["count"]) for death in deaths_of(properties)]
    assert told == [("a", "expired", 2), ("a", "maxlen", 1), ("b", "rejected", 1)]
    headers = read(properties).headers or {}
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("a", "expired")


@pytest.mark.parametrize(
    "written",
    ["x", 7, [], [1, "x"], [{}], [{"queue": "q", "reason": "expired", "count": "many", "routing-keys": 1, "time": 0}]],
)
def test_a_header_that_a_client_made_up(written: Any) -> None:
    properties = BasicProperties(methods.Basic.Properties(headers={"x-death": written}).marshal())
    deaths = deaths_of(die(properties, "q", Reason.EXPIRED))
    assert (deaths[0]["queue"], deaths[0]["count"]) == ("q", 1)


@pytest.mark.parametrize("claimed", [{"x-first-death-queue": "mine"}, {"x-first-death-reason": 1}])
def test_a_first_death_that_a_client_made_up(claimed: dict[str, Any]) -> None:
    """As in RabbitMQ: it counts with a history alone, and a history without one gets none."""
    properties = BasicProperties(methods.Basic.Properties(headers=claimed).marshal())
    headers = read(die(properties, "q", Reason.EXPIRED)).headers or {}
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("q", "expired")
    properties = BasicProperties(methods.Basic.Properties(headers={**claimed, "x-death": []}).marshal())
    headers = read(die(properties, "q", Reason.EXPIRED)).headers or {}
    assert {name: headers[name] for name in headers if name != "x-death"} == claimed


def test_what_cannot_be_written_again_is_left_out() -> None:
    """A string that is no UTF-8: pamqp reads it, and does not write it."""
    entry = b"\x01xS\0\0\0\1\xff\x05queueS\0\0\0\1\xff"
    table = b"\x07x-deathA" + (5 + len(entry)).to_bytes(4) + b"F" + len(entry).to_bytes(4) + entry
    properties = BasicProperties(b"\x20\0" + len(table).to_bytes(4) + table)
    assert [death["queue"] for death in deaths_of(die(properties, "q", Reason.EXPIRED))] == ["q", ""]


@pytest.mark.parametrize("table", [b"\x01aZ", b"\x01aV" * 30_000])
def test_a_message_whose_headers_make_no_sense_dies_all_the_same(table: bytes) -> None:
    headers = len(table).to_bytes(4) + table
    properties = BasicProperties(b"\x21\0" + headers + b"\x0260")
    assert die(properties, "q", Reason.EXPIRED).raw == b"\x20\0" + headers
    assert not goes_in_circles(properties, "q")


@pytest.mark.parametrize(
    ("way", "queue", "does"),
    [
        ([], "a", False),
        ([("a", Reason.EXPIRED)], "b", False),
        ([("a", Reason.EXPIRED)], "a", True),
        ([("a", Reason.REJECTED)], "a", False),
        ([("a", Reason.EXPIRED), ("b", Reason.EXPIRED)], "a", True),
        ([("a", Reason.EXPIRED), ("b", Reason.REJECTED)], "a", False),
        ([("b", Reason.REJECTED), ("a", Reason.MAXLEN)], "a", True),
    ],
)
def test_circles(way: list[tuple[str, Reason]], queue: str, does: bool) -> None:
    properties = NONE
    for name, reason in way:
        properties = die(properties, name, reason)
    assert goes_in_circles(properties, queue) is does


def test_what_was_published_over_amqp_comes_out_as_it_was() -> None:
    raw = methods.Basic.Properties(content_type="text/plain", headers={"a": [1]}, delivery_mode=2).marshal()
    kept = json.loads(json.dumps(attributes_of(BasicProperties(raw), "x", "key")))
    assert kept["content_type"] == "text/plain"
    arrival = arrival_of("t", "id", "q", kept, b"body", redelivered=True)
    assert (arrival.exchange, arrival.routing_key, arrival.properties) == ("x", "key", raw)
    assert (arrival.token, arrival.body, arrival.redelivered) == ("t", b"body", True)


def test_what_was_published_over_http_has_properties() -> None:
    kept = {"content_type": "text/html", "attributes": {"colour": "blüe", "half": "\udcff"}}
    arrival = arrival_of("t", "4ad814ab", "q", kept, b"", redelivered=False)
    found = read(arrival.properties)
    assert (arrival.exchange, arrival.routing_key) == ("", "q")
    assert (found.content_type, found.message_id, found.delivery_mode) == ("text/html", "4ad814ab", 2)
    assert found.headers == {"colour": "blüe", "half": "?"}
    bare = read(arrival_of("t", "id", "q", {}, b"", redelivered=False).properties)
    assert (bare.content_type, bare.headers) == (None, None)


@pytest.mark.parametrize(
    "kept",
    [
        {"amqp": {}},
        {"amqp": 1},
        {"amqp": "x"},
        {"amqp": {"properties": 1, "exchange": "", "routing_key": ""}},
        {"amqp": {"properties": "", "exchange": ""}},
        {"amqp": {"properties": "AAA!=", "exchange": "", "routing_key": ""}},
    ],
)
def test_what_nobody_here_has_kept(kept: dict[str, Any]) -> None:
    with pytest.raises(CorruptMessage, match="the message's stored properties are damaged"):
        arrival_of("t", "id", "q", kept, b"", redelivered=False)
