"""What lies beside a message's bytes is written in one way, and anything else is not believed."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.message import Properties, SharedAttributes, encode_attributes, with_checksum, without_checksum
from mq.storage.files.layout import (
    Senseless,
    Sum,
    announced_size,
    decode_attributes,
    decode_side,
    encode_side,
)
from tests.cases import for_each

texts: Final = st.text(st.characters(codec=None), max_size=20)
values: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
mappings: Final = st.dictionaries(texts, values, max_size=4)
sizes: Final = st.integers(0, 10**19 - 1)
checksums: Final = st.integers(0, 2**32 - 1)


@given(sizes, checksums, st.sampled_from(["", "a", "f"]))
def test_sum_comes_back(size: int, checksum: int, where: str) -> None:
    assert Sum.decode(Sum(size, checksum, where).encode()) == Sum(size, checksum, where)


@pytest.mark.parametrize(
    ("noted", "text"),
    [(Sum(0, 0), b"0:00000000"), (Sum(5, 0xABC, "a"), b"5:00000abc:a"), (Sum(7, 2**32 - 1, "f"), b"7:ffffffff:f")],
)
def test_sum_is_written_so(noted: Sum, text: bytes) -> None:
    assert noted.encode() == text


@for_each(
    "value",
    [
        b"",
        b":",
        b"5",
        b"5:abc",
        b"5:ABCDEF01",
        b"05:00000000",
        b"-1:00000000",
        b"+1:00000000",
        b"5:00000000:",
        b"5:00000000:x",
        b"5:00000000:af",
        b"5:00000000\n",
        b" 5:00000000",
        b"5:000000000",
        b"10000000000000000000:00000000",
        "٥:00000000".encode(),
        b"\xff\xfe",
        b"5:00000000\0",
    ],
)
def test_sum_is_not_believed(value: bytes) -> None:
    with pytest.raises(Senseless, match=r"the message file's extended attribute user\.mq\.sum is invalid"):
        Sum.decode(value)


def test_without_a_sum_nothing_is_noted() -> None:
    assert Sum.decode(None) is None


@pytest.mark.parametrize(
    ("value", "size"),
    [(b"5:", 5), (b"0:00", 0), (None, None), (b"", None), (b"x:0", None), (b"-1:0", None), (b"9" * 5000 + b":0", None)],
)
def test_a_size_is_announced_only_where_it_can_be_one(value: bytes | None, size: int | None) -> None:
    assert announced_size(value) == size


@given(mappings.filter(bool))
def test_attributes_come_back(attributes: dict[str, Any]) -> None:
    assert decode_attributes(with_checksum(encode_attributes(attributes) or b"{}")) == attributes


def test_no_attributes_are_no_bytes() -> None:
    assert encode_attributes({}) == b""
    with pytest.raises(Senseless, match="missing"):
        decode_attributes(None)


def test_attributes_are_plain_json() -> None:
    assert (
        encode_attributes({"content_type": "text/plain", "ü": [1]}) == '{"content_type":"text/plain","ü":[1]}'.encode()
    )


@for_each("content", [b"", b"{", b"[]", b"1", b"null", b"\xff", b"{}x", b'"a"', b"\0" * 10, b"[" * 100_000])
def test_attributes_are_not_believed(content: bytes) -> None:
    with pytest.raises(Senseless, match=r"the message file's extended attribute user\.mq\.attributes is invalid"):
        decode_attributes(with_checksum(content))


def test_attributes_with_one_bit_changed_are_not_believed() -> None:
    whole = with_checksum(encode_attributes({"content_type": "text/plain"}))
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Senseless, match="the content does not match its checksum"):
            decode_attributes(bytes(changed))


@given(sizes, checksums, mappings)
def test_side_file_comes_back(size: int, checksum: int, attributes: dict[str, Any]) -> None:
    properties = Properties(size, checksum, attributes)
    assert decode_side(encode_side(properties)) == properties


def test_side_file_is_plain_json() -> None:
    side = json.loads(without_checksum(encode_side(Properties(4, 255, {"a": 1}))))
    assert side == {"size": 4, "crc32": 255, "attributes": {"a": 1}}


WHOLE: Final = encode_side(Properties(4, 255, {"a": "x" * 50}))


@for_each("length", range(len(WHOLE)))
def test_side_file_torn_anywhere_is_not_believed(length: int) -> None:
    for torn in (WHOLE[:length], WHOLE[:length] + b"\0" * (len(WHOLE) - length)):
        with pytest.raises(Senseless, match="the message's attributes file"):
            decode_side(torn)


@for_each(
    "content",
    [
        b"[]",
        b"4",
        b"null",
        b"{}",
        b'{"size":4,"crc32":null,"attributes":{}}',
        b'{"size":"x","crc32":1,"attributes":{}}',
        b'{"size":4,"crc32":1,"attributes":7}',
        b'{"size":4,"crc32":1,"attributes":null}',
        b'{"size":4,"crc32":1}',
        b'{"size":1e999,"crc32":1,"attributes":{}}',
        b"[" * 100_000,
        b"\xff\xfe\xfd",
    ],
)
def test_side_file_is_not_believed(content: bytes) -> None:
    with pytest.raises(Senseless, match="the message's attributes file"):
        decode_side(with_checksum(content))


def test_attributes_that_many_messages_share_are_written_once_and_as_any_others() -> None:
    plain = {"content_type": "text/plain", "amqp": {"properties": "EAAC", "exchange": "", "routing_key": "ü"}}
    shared = SharedAttributes(plain)
    assert encode_attributes(shared) == encode_attributes(plain)
    assert encode_attributes(shared) is encode_attributes(shared)
    assert encode_attributes(SharedAttributes({})) == b""
