"""The page of the protocol says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from mq.amqp.model.arguments import CHECKS
from mq.amqp.model.routing import X_MATCHES
from mq.amqp.model.topology import PREDECLARED
from mq.amqp.protocol.session import ConnectionLimits
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.frames import SMALLEST_FRAME_MAX, UNTUNED_FRAME_MAX

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "amqp.md").read_text()
UNUSED = {Code.CONTENT_TOO_LARGE, Code.NO_ROUTE, Code.INVALID_PATH, Code.INTERNAL_ERROR}


def test_every_argument_of_queues_is_there() -> None:
    queues = PAGE.partition("## Queues")[2].partition("## Names")[0]
    found = set(re.findall(r"^\| `(x-[a-z-]+)` \|", queues, re.MULTILINE))
    assert found == set(CHECKS)


def test_every_code_is_there_with_what_it_closes() -> None:
    found = {int(code): what for code, what in re.findall(r"^\| (\d{3}) \| the (\w+) \|", PAGE, re.MULTILINE)}
    assert set(found) == set(Code) - UNUSED
    for code, what in found.items():
        assert Refusal(Code(code), "").closes_connection is (what == "connection")


def test_the_limits_are_those_of_the_code() -> None:
    limits = ConnectionLimits()
    numbers = [
        limits.frame_max,
        SMALLEST_FRAME_MAX,
        UNTUNED_FRAME_MAX,
        limits.channel_max,
        limits.unsettled_max,
        limits.consumers_max,
    ]
    for number in numbers:
        assert f"{number:,}" in PAGE
    for size in (limits.body_max, limits.buffered_max):
        assert f"| {size // 2**20} MiB |" in PAGE
    assert f"{limits.handshake_seconds:.0f} seconds each" in PAGE
    assert f"{limits.heartbeat_seconds} seconds proposed" in PAGE


def test_exchanges_and_ways_to_match_are_there() -> None:
    assert all(f"`{name}`" in PAGE for name in (*PREDECLARED, *X_MATCHES))
