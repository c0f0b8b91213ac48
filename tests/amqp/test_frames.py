"""Frames, with pamqp as the other side and the judge."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, frame
from pamqp import commands as methods

from mq.amqp.wire.errors import Code, Refusal, WrongProtocol
from mq.amqp.wire.frames import (
    HEARTBEAT,
    OVERHEAD,
    PROTOCOL_HEADER,
    UNTUNED_FRAME_MAX,
    BodyFrame,
    Frame,
    FrameReader,
    HeaderFrame,
    HeartbeatFrame,
    MethodFrame,
    encode_content,
    encode_method,
)
from tests.amqp.talking import content, words
from tests.cases import for_each

METHODS: list[base.Frame] = [
    methods.Queue.Declare(queue="q", durable=True, auto_delete=True, arguments={"x": 100, "n": {"a": [1, "b"]}}),
    methods.Queue.Declare(queue="q", passive=True, exclusive=True, nowait=True),
    methods.Exchange.Declare(exchange="x", exchange_type="topic", internal=True),
    methods.Basic.Publish(exchange="x", routing_key="a.b", mandatory=True),
    methods.Basic.Consume(queue="q", consumer_tag="t", no_ack=True, exclusive=True, arguments={"x": None}),
    methods.Basic.Deliver(consumer_tag="t", delivery_tag=2**40, redelivered=True, exchange="x", routing_key="k"),
    methods.Basic.Ack(delivery_tag=7, multiple=True),
    methods.Basic.Qos(prefetch_size=0, prefetch_count=9, global_=True),
    methods.Connection.TuneOk(channel_max=5, frame_max=4096, heartbeat=60),
    methods.Channel.Open(),
    methods.Tx.Commit(),
]


def values(method: base.Frame) -> dict[str, Any]:
    return dict(method)


def read_all(pieces: list[bytes]) -> list[Frame]:
    reader = FrameReader()
    found = []
    for piece in pieces:
        reader.feed(piece)
        while (one := reader.read()) is not None:
            found.append(one)
    return found


def plain(one: Frame) -> Any:
    return (one.channel, type(one.method), values(one.method)) if isinstance(one, MethodFrame) else one


@for_each("method", METHODS)
def test_methods_are_read_and_written_as_pamqp_does(method: base.Frame) -> None:
    written = frame.marshal(method, 3)
    assert [plain(one) for one in read_all([written])] == [(3, type(method), values(method))]
    assert encode_method(3, type(method), **values(method)) == written


def test_every_method_can_be_written_without_values() -> None:
    for method_type in methods.INDEX_MAPPING.values():
        [read] = read_all([encode_method(1, method_type)])
        assert isinstance(read, MethodFrame)
        assert type(read.method) is method_type


def test_names_that_pamqp_refuses_to_write() -> None:
    [read] = read_all([encode_method(1, methods.Queue.DeclareOk, queue="a|b ü!", message_count=2)])
    assert isinstance(read, MethodFrame)
    assert values(read.method) == {"queue": "a|b ü!", "message_count": 2, "consumer_count": 0}


ALL = b"".join([*(words(method) for method in METHODS), HEARTBEAT, content(1, b"body" * 3000), content(2, b"")])


@given(st.sets(st.integers(0, len(ALL)), max_size=30))
def test_it_does_not_matter_where_the_bytes_are_cut(cuts: set[int]) -> None:
    places = [0, *sorted(cuts), len(ALL)]
    pieces = [ALL[start:end] for start, end in itertools.pairwise(places)]
    assert [plain(one) for one in read_all(pieces)] == [plain(one) for one in read_all([ALL])]


def test_one_byte_at_a_time() -> None:
    assert len(read_all([bytes([byte]) for byte in ALL])) == len(METHODS) + 1 + 4 + 1


def test_contents_come_in_frames_as_large_as_agreed_on() -> None:
    written = encode_content(5, b"\x10\0\x02", b"b" * 10_000, 4096)
    head, *parts = read_all([written])
    assert head == HeaderFrame(5, 10_000, b"\x10\0\x02")
    assert [len(part.payload) + OVERHEAD for part in parts if isinstance(part, BodyFrame)] == [4096, 4096, 1832]
    assert read_all([encode_content(5, b"\0\0", b"", 4096)]) == [HeaderFrame(5, 0, b"\0\0")]


def test_properties_come_back_byte_for_byte() -> None:
    raw = struct.pack(">H", 0x2000) + b"\0\0\0\x07\x01aI\0\0\0\x01"  # pamqp would write that number in one byte
    [head] = read_all([encode_content(1, raw, b"", 4096)])
    assert isinstance(head, HeaderFrame)
    assert head.properties == raw


@pytest.mark.parametrize("size", range(8))
def test_half_a_protocol_header_is_waited_for(size: int) -> None:
    reader = FrameReader()
    reader.feed(PROTOCOL_HEADER[:size])
    assert reader.begin() is False
    reader.feed(PROTOCOL_HEADER[size:] + HEARTBEAT)
    assert reader.begin() is True
    assert reader.read() == HeartbeatFrame(0)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1", b"AMQP\x01\x01\0\x09", b"AMQP\0\0\x09\0", b"\x16\x03", b"\0" * 8])
def test_another_protocol_is_told_at_once(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    with pytest.raises(WrongProtocol):
        reader.begin()


def raw(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes([end])


BAD = {
    "wrong end": (raw(1, 1, b"\0\x14\0\x0a\0", end=0xCD), Code.FRAME_ERROR),
    "unknown type": (raw(4, 1, b"x"), Code.FRAME_ERROR),
    "too large": (raw(3, 1, b"x" * UNTUNED_FRAME_MAX), Code.FRAME_ERROR),
    "heartbeat with a payload": (raw(8, 0, b"x"), Code.FRAME_ERROR),
    "heartbeat on a channel": (raw(8, 1, b""), Code.UNEXPECTED_FRAME),
    "half a header": (raw(2, 1, b"\0\x3c\0\0\0\0"), Code.FRAME_ERROR),
    "header of another class": (raw(2, 1, b"\0\x32" + b"\0" * 12), Code.UNEXPECTED_FRAME),
    "header with a weight": (raw(2, 1, b"\0\x3c\0\x01" + b"\0" * 10), Code.UNEXPECTED_FRAME),
    "no method": (raw(1, 1, b""), Code.COMMAND_INVALID),
    "unknown method": (raw(1, 1, b"\0\x3c\0\xff"), Code.COMMAND_INVALID),
    "fields that are cut off": (words(methods.Queue.Declare(queue="q"))[7:-1][:-3], Code.SYNTAX_ERROR),
    "fields that go on": (words(methods.Queue.Declare(queue="q"))[7:-1] + b"x", Code.SYNTAX_ERROR),
    "an array that is shorter than what is in it": (
        b"\0\x32\0\x14\0\0\1q\1x\0\0\0\0\0\x0e\x01aA\0\0\0\5S\0\0\0\1x\0",
        Code.SYNTAX_ERROR,
    ),
    "a last string that ends early": (b"\0\x14\0\x0b\0\0\0\x09x", Code.SYNTAX_ERROR),
    "a string that ends early": (b"\0\x32\0\x0b\xffab", Code.SYNTAX_ERROR),
    "a name that is no UTF-8": (b"\0\x14\0\x28\0\0\x01\xff\0\0\0\0", Code.SYNTAX_ERROR),
}


@for_each("case", BAD)
def test_bad_frames(case: str) -> None:
    data, code = BAD[case]
    reader = FrameReader()
    reader.feed(data if data[:1] != b"\0" else raw(1, 1, data))
    with pytest.raises(Refusal) as refused:
        reader.read()
    assert refused.value.code is code


def test_a_frame_that_is_too_large_is_refused_before_it_is_there() -> None:
    reader = FrameReader()
    reader.feed(struct.pack(">BHI", 3, 1, 2**32 - 1))
    with pytest.raises(Refusal, match="bytes"):
        reader.read()


def test_the_largest_frame() -> None:
    reader = FrameReader()
    reader.frame_max = 4096
    reader.feed(raw(3, 1, b"x" * (4096 - OVERHEAD)))
    assert reader.read() is not None
    reader.feed(raw(3, 1, b"x" * (4097 - OVERHEAD)))
    with pytest.raises(Refusal):
        reader.read()
