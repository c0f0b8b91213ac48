"""Tables and properties: what is not changed keeps its bytes."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands as methods
from pamqp import decode, encode

from mq.amqp.wire import tables
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.properties import NONE, BasicProperties

WIDE = b"".join(
    [
        b"\x01aI\0\0\0\x01",  # one that pamqp would write with a smaller type
        b"\x01dd" + struct.pack(">d", 0.1),
        b"\x01sS\0\0\0\x02\xff\xfe",
        b"\x01tt\x01",
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=32, allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5).map(bytearray)
    | st.integers(0, 2**32 - 1).map(lambda t: datetime.datetime.fromtimestamp(t, datetime.UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
TABLES = st.dictionaries(st.text(max_size=10), VALUES, max_size=5)
OWN_VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=5)
    | st.integers(0, 2**32 - 1).map(lambda t: datetime.datetime.fromtimestamp(t, datetime.UTC)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
"""What mq itself writes into a table."""


def table(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


@given(TABLES)
def test_the_walk_over_entries_agrees_with_pamqp(values: dict[str, Any]) -> None:
    raw = encode.field_table(values)
    found = list(tables.entries(raw))
    assert [entry.key.decode() for entry in found] == sorted(values)
    assert b"".join(raw[entry.start : entry.end] for entry in found) == raw[4:]
    assert tables.decoded(raw) == values


@given(TABLES, st.dictionaries(st.text(max_size=10), st.none() | OWN_VALUES, max_size=3))
def test_changing_a_table_changes_no_other_entry(values: dict[str, Any], changes: dict[str, Any]) -> None:
    raw = encode.field_table(values)
    kept = {entry.key: raw[entry.start : entry.end] for entry in tables.entries(raw)}
    after = tables.changed(raw, changes)
    left = {name: value for name, value in changes.items() if value is not None}
    assert tables.decoded(after) == {name: value for name, value in values.items() if name not in changes} | left
    for entry in tables.entries(after):
        if entry.key.decode() not in changes:
            assert after[entry.start : entry.end] == kept[entry.key]


def test_types_that_pamqp_would_not_choose_are_kept() -> None:
    assert tables.changed(table(WIDE), {"x": 1}) == table(WIDE + b"\x01xl" + b"\0" * 7 + b"\x01")
    assert tables.changed(table(WIDE), {"s": None}) == table(WIDE.replace(b"\x01sS\0\0\0\x02\xff\xfe", b""))


@given(st.dictionaries(st.text(max_size=10), OWN_VALUES, max_size=5))
def test_what_is_written_is_read_again(values: dict[str, Any]) -> None:
    assert tables.decoded(table(tables.encoded(values))) == values


@pytest.mark.parametrize("number", [0, 1, -1, 127, 40_000, 2**31, 2**62])
def test_a_whole_number_is_written_as_64_bits(number: int) -> None:
    assert tables.encoded({"n": number}) == b"\x01nl" + number.to_bytes(8, signed=True)


@pytest.mark.parametrize("value", [1.5, None, b"x"])
def test_a_value_that_mq_has_no_type_for_is_an_error(value: Any) -> None:
    with pytest.raises(TypeError, match="an AMQP table cannot contain a"):
        tables.encoded({"x": value})


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\x01",
        b"\0\0\0\x02\x05a",
        table(b"\x01aZ1"),
        table(b"\x01aS\0\0\0\x09x"),
        table(b"\x01a"),
    ],
)
def test_what_is_no_table_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        list(tables.entries(raw))
    assert refused.value.code is Code.SYNTAX_ERROR


@pytest.mark.parametrize(
    "raw",
    [
        table(b"\x01aZ1"),
        table(b"\x01aA\0\0\0\6\0S\0\0\1x\0\0"),  # in the array is a string that ends after it: found by fuzzing
        table(b"\x01aF\0\0\0\x07\x01bS\0\0\0\1x"),  # the same in a table
        table(b"\x01aA\0\0\0\6F\0\0\0\1\5"),  # and a key that ends after its table
        table(b"\x01aT" + b"\xff" * 8),  # a date that no calendar has
        table(b"\x01aV" * 30_000),  # over the limit of what is decoded
        table(b"\x01\xff" + b"V"),  # a key that is no UTF-8
    ],
)
def test_what_cannot_be_decoded_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        tables.decoded(raw)
    assert refused.value.code is Code.SYNTAX_ERROR


def test_tables_nested_without_end_are_refused() -> None:
    raw = b""
    for _ in range(5000):
        raw = b"\x01aF" + table(raw)
    with pytest.raises(Refusal, match="nested more than 32 levels deep"):
        tables.decoded(table(raw))


@pytest.mark.parametrize("kind", [b"F", b"A"])
def test_what_is_nested_deeper_than_anybody_means_it_is_refused(kind: bytes) -> None:
    raw = b""
    for depth in range(tables.DEEPEST + 2):
        top = table(b"\x01a" + kind + table(raw))
        if depth < tables.DEEPEST:
            assert list(tables.decoded(top)) == ["a"]
        else:
            with pytest.raises(Refusal, match="nested more than 32 levels deep") as caught:
                tables.decoded(top)
            assert caught.value.code == Code.SYNTAX_ERROR
        raw = b"\x01a" * (kind == b"F") + kind + table(raw)


def test_no_value_costs_the_length_of_what_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 KiB of tables in each other took a second, in which nobody else was served."""
    looked_at = []
    embedded_value = decode.embedded_value
    monkeypatch.setattr(decode, "embedded_value", lambda value: looked_at.append(len(value)) or embedded_value(value))
    one = b"t\x01"
    for _ in range(8):
        one = b"F" + table(b"\x01a" + one)
    raw = table(b"".join(b"\x04%04d" % number + one for number in range(1000)))
    assert len(tables.decoded(raw)) == 1000
    assert sum(looked_at) == 2000


@given(VALUES)
def test_json_and_back(value: Any) -> None:
    assert tables.from_json(tables.to_json(value)) == value


@pytest.mark.parametrize("value", [Decimal("1.50"), b"\xff", {"$bytes": 1}, {"$": {"$time": None}}, [1, 1.0, True]])
def test_json_keeps_the_type(value: Any) -> None:
    again = tables.from_json(tables.to_json(value))
    assert again == value
    assert repr(again) == repr(value)


FULL = methods.Basic.Properties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": 1, "b": {"c": [1, "x"]}},
    delivery_mode=2,
    priority=7,
    correlation_id="corr",
    reply_to="back",
    expiration="60000",
    message_id="m1",
    timestamp=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    message_type="kind",
    user_id="guest",
    app_id="app",
)


def test_properties_are_found_where_they_are() -> None:
    properties = BasicProperties(FULL.marshal())
    assert properties.is_persistent
    assert (properties.priority, properties.expiration_ms) == (7, 60_000)
    assert [properties.text(name) for name in ("content_type", "reply_to", "type", "user_id", "app_id")] == [
        "text/plain",
        "back",
        "kind",
        "guest",
        "app",
    ]
    assert properties.headers() == {"a": 1, "b": {"c": [1, "x"]}}


def test_no_properties() -> None:
    assert (NONE.is_persistent, NONE.priority, NONE.expiration_ms) == (False, 0, None)
    assert (NONE.headers(), NONE.text("user_id")) == ({}, "")


def test_changed_headers_leave_the_rest_alone() -> None:
    changed = BasicProperties(FULL.marshal()).changed({"a": None, "x": "y"}, frozenset({"expiration"}))
    read = methods.Basic.Properties()
    read.unmarshal(int.from_bytes(changed.raw[:2]), changed.raw[2:])
    assert read.headers == {"b": {"c": [1, "x"]}, "x": "y"}
    assert read.expiration is None
    assert (read.content_type, read.timestamp, read.app_id) == (FULL.content_type, FULL.timestamp, FULL.app_id)
    assert BasicProperties(b"\0\0").changed({"x": 1}).headers() == {"x": 1}


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "a", "9" * 13, "٣"])
def test_an_expiration_that_is_no_number_is_refused(text: str) -> None:
    raw = b"\x01\0" + bytes([len(text.encode())]) + text.encode()
    with pytest.raises(Refusal) as refused:
        _ = BasicProperties(raw).expiration_ms
    assert refused.value.code is Code.PRECONDITION_FAILED


@pytest.mark.parametrize("raw", [b"", b"\x80", b"\0\1\0\0", b"\x80\0", b"\x80\0\x05abc", b"\0\0x", b"\x20\0\0\0\0\x09"])
def test_properties_whose_lengths_do_not_add_up_are_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        BasicProperties(raw)
    assert refused.value.code is Code.SYNTAX_ERROR
