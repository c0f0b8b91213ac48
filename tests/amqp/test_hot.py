"""What is read and written by hand is what pamqp reads and writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pamqp import base, commands, frame

from mq.amqp import hot
from mq.amqp.frames import _fill, encode_method

names = st.text(max_size=63)  # at most 252 bytes


def slowly(method_type: type[base.Frame], payload: bytes) -> dict[str, object] | None:
    method = method_type.__new__(method_type)
    try:
        _fill(method, payload[4:])
    except (ValueError, IndexError, KeyError, TypeError, OverflowError):
        return None
    return {name: getattr(method, name) for name in method.attributes()}


def quickly(method_type: type[base.Frame], payload: bytes) -> dict[str, object] | None:
    method = hot.read(method_type.index, payload)
    return None if method is None else {name: getattr(method, name) for name in method.attributes()}


@given(names, names, st.booleans(), st.booleans())
def test_a_publish_is_read_as_pamqp_writes_it(exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
    method = encode_method(
        1, commands.Basic.Publish, exchange=exchange, routing_key=key, mandatory=mandatory, immediate=immediate
    )
    payload = method[7:-1]
    expected = {"ticket": 0, "exchange": exchange, "routing_key": key, "mandatory": mandatory, "immediate": immediate}
    assert quickly(commands.Basic.Publish, payload) == expected == slowly(commands.Basic.Publish, payload)


@given(st.integers(0, 2**63 - 1), st.booleans())
def test_an_ack_is_read_as_pamqp_writes_it(tag: int, multiple: bool) -> None:
    payload = frame.marshal(commands.Basic.Ack(tag, multiple), 1)[7:-1]
    assert quickly(commands.Basic.Ack, payload) == {"delivery_tag": tag, "multiple": multiple}


@given(st.sampled_from([commands.Basic.Publish, commands.Basic.Ack]), st.binary(max_size=40))
def test_what_is_read_by_hand_is_read_the_same_by_pamqp(method_type: type[base.Frame], data: bytes) -> None:
    payload = method_type.index.to_bytes(4) + data
    found = quickly(method_type, payload)
    assert found is None or found == slowly(method_type, payload)


@given(st.integers(1, 65535), names, st.integers(0, 2**63 - 1), st.booleans(), names, names)
def test_a_delivery_is_written_as_pamqp_does(
    channel: int, who: str, tag: int, redelivered: bool, exchange: str, key: str
) -> None:
    fields = {"consumer_tag": who, "delivery_tag": tag, "exchange": exchange, "routing_key": key}
    expected = encode_method(channel, commands.Basic.Deliver, redelivered=redelivered, **fields)
    assert hot.deliver(channel, who, tag, redelivered=redelivered, exchange=exchange, routing_key=key) == expected


@given(st.integers(1, 65535), st.integers(0, 2**63 - 1), st.booleans())
def test_a_confirm_is_written_as_pamqp_does(channel: int, tag: int, multiple: bool) -> None:
    expected = encode_method(channel, commands.Basic.Ack, delivery_tag=tag, multiple=multiple)
    assert hot.ack(channel, tag, multiple=multiple) == expected
