"""What is read and written by hand is what pamqp reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands, frame

from mq.amqp.wire import frames
from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.frames import (
    HEARTBEAT,
    AckFrames,
    BodyFrame,
    Frame,
    FrameReader,
    HeaderFrame,
    MethodFrame,
    PublishFrames,
    Together,
    _fill,
    encode_content,
    encode_method,
)
from tests.amqp.talking import words

PERSISTENT = b"\x10\0\x02"

names = st.text(max_size=63)  # at most 252 bytes


def slowly(method_type: type[base.Frame], payload: bytes) -> dict[str, object] | None:
    method = method_type.__new__(method_type)
    try:
        _fill(method, payload[4:])
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return None
    return {name: getattr(method, name) for name in method.attributes()}


def quickly(method_type: type[base.Frame], payload: bytes) -> dict[str, object] | None:
    method = frames.READ_BY_HAND[method_type.index](payload)
    return None if method is None else {name: getattr(method, name) for name in method.attributes()}


@given(names, names, st.booleans(), st.booleans())
def test_a_publish_is_read_as_pamqp_writes_it(exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
    method = encode_method(
        1, commands.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    payload = method[7:-1]
    expected = {"ticket": 0, "exchange": exchange, "routing_key": key, "mandatory": mandatory, "immediate": immediate}
    assert quickly(commands.Basic.Publish, payload) == expected == slowly(commands.Basic.Publish, payload)


@given(names, st.booleans())
def test_a_get_is_read_as_pamqp_writes_it(queue: str, no_ack: bool) -> None:
    payload = encode_method(1, commands.Basic.Get, queue=queue, no_ack=no_ack)[7:-1]
    expected = {"ticket": 0, "queue": queue, "no_ack": no_ack}
    assert quickly(commands.Basic.Get, payload) == expected == slowly(commands.Basic.Get, payload)


@given(st.integers(0, 2**63 - 1), st.booleans())
def test_an_ack_is_read_as_pamqp_writes_it(tag: int, multiple: bool) -> None:
    payload = frame.marshal(commands.Basic.Ack(tag, multiple), 1)[7:-1]
    assert quickly(commands.Basic.Ack, payload) == {"delivery_tag": tag, "multiple": multiple}


@given(st.sampled_from([commands.Basic.Publish, commands.Basic.Get, commands.Basic.Ack]), st.binary(max_size=40))
def test_what_is_read_by_hand_is_read_the_same_by_pamqp(method_type: type[base.Frame], data: bytes) -> None:
    payload = method_type.index.to_bytes(4) + data
    found = quickly(method_type, payload)
    assert found is None or found == slowly(method_type, payload)


@given(st.integers(1, 65535), names, st.integers(0, 2**63 - 1), st.booleans(), names, names, st.binary(max_size=10_000))
def test_a_delivery_is_written_as_pamqp_does(
    channel: int, who: str, tag: int, redelivered: bool, exchange: str, key: str, body: bytes
) -> None:
    fields = {"consumer_tag": who, "delivery_tag": tag, "exchange": exchange, "routing_key": key}
    expected = encode_method(channel, commands.Basic.Deliver, redelivered=redelivered, **fields)
    expected += encode_content(channel, PERSISTENT, body, 4096)
    where = frames.route(exchange, key)
    found = frames.delivery(channel, frames.short(who), tag, where, PERSISTENT, body, 4096, redelivered=redelivered)
    assert found == expected


@given(st.integers(1, 65535), st.integers(0, 2**63 - 1), st.booleans())
def test_a_confirm_is_written_as_pamqp_does(channel: int, tag: int, multiple: bool) -> None:
    expected = encode_method(channel, commands.Basic.Ack, delivery_tag=tag, multiple=multiple)
    assert frames.ack_beginning(channel) + frames.ACKED.pack(tag, multiple) + frames.END == expected


@given(st.integers(1, 65535))
def test_an_empty_get_is_answered_as_pamqp_does(channel: int) -> None:
    assert frames.get_empty(channel) == encode_method(channel, commands.Basic.GetEmpty)


def in_steps(data: bytes, cuts: Sequence[int], together: bool) -> tuple[list[Frame | Together], str]:
    """What is read of data that is cut at these places, and what was wrong at last."""
    reader, found = FrameReader(), []
    reader.frame_max = 4096
    try:
        for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
            reader.feed(data[start:end])
            while (one := reader.read_together() if together else reader.read()) is not None:
                found.append(one)
    except Refusal as refusal:
        return found, str(refusal)
    return found, ""


def plain(frames: Sequence[Frame | Together]) -> list[object]:
    """The same, however many frames were read at once."""
    found: list[object] = []
    for one in frames:
        if isinstance(one, PublishFrames):
            found += [(one.channel, dict(one.method)), HeaderFrame(one.channel, len(one.body), one.properties)]
            found += [BodyFrame(one.channel, one.body)] if one.body else []
        elif isinstance(one, AckFrames):
            found += [(one.channel, dict(commands.Basic.Ack(*tag))) for tag in one.tags]
        else:
            found.append((one.channel, dict(one.method)) if isinstance(one, MethodFrame) else one)
    return found


channels = st.integers(0, 3)
whole = st.one_of(
    st.builds(
        lambda channel, key, body, most: (
            words(commands.Basic.Publish(routing_key=key), channel) + encode_content(channel, PERSISTENT, body, most)
        ),
        channels,
        st.sampled_from(["", "q", "a.b"]),
        st.binary(max_size=300),
        st.sampled_from([64, 4096]),
    ),
    st.builds(
        lambda channel, tag, multiple: words(commands.Basic.Ack(tag, multiple), channel),
        channels,
        st.integers(0, 2**63 - 1),
        st.booleans(),
    ),
    st.builds(lambda channel: words(commands.Channel.Open(), channel), channels),
    st.just(HEARTBEAT),
)


@given(st.lists(whole, max_size=8), st.data())
def test_what_is_read_together_is_what_is_read_one_by_one(pieces: list[bytes], data: st.DataObject) -> None:
    sent = bytearray(b"".join(pieces))
    places = st.integers(0, max(len(sent) - 1, 0))
    for place in data.draw(st.sets(places, max_size=2)) if sent else ():
        sent[place] = data.draw(st.sampled_from([0, 1, 2, 3, 60, 0xCE, sent[place]]))
    cuts = data.draw(st.lists(places, max_size=4))
    found, refused = in_steps(bytes(sent), cuts, True)
    expected, also_refused = in_steps(bytes(sent), cuts, False)
    assert (plain(found), refused) == (plain(expected), also_refused)


def test_a_message_and_acknowledgements_are_read_in_one_step_each() -> None:
    message = words(commands.Basic.Publish(routing_key="q"), 1) + encode_content(1, PERSISTENT, b"body", 4096)
    acks = b"".join(words(commands.Basic.Ack(tag), 1) for tag in (1, 2, 3))
    found, refused = in_steps(message + acks + words(commands.Basic.Ack(4), 2), [], True)
    assert [type(one) for one in found] == [PublishFrames, AckFrames, AckFrames]
    assert not refused
