"""Long lines are read piece by piece, and come out as those that are read in one go."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.web import json_lines
from mq.web.batches import draft_entries
from mq.web.json_lines import LARGEST_REST, LONG_LINE, Lines
from mq.web.request_body import parse_object
from tests.cases import for_each

LONG = "x" * LONG_LINE


def read(data: bytes, *pieces: int) -> list[dict[str, Any] | MQError]:
    """What is in `data`, which comes in pieces of these sizes, again and again."""
    found: list[dict[str, Any] | MQError] = []
    reader = Lines(found.append)
    start = number = 0
    while start < len(data):
        size = pieces[number % len(pieces)] if pieces else len(data)
        reader.feed(data[start : start + size])
        start, number = start + size, number + 1
    reader.end()
    return found


def body_of(value: dict[str, Any] | MQError) -> bytes:
    """The body that a line says, however it was read."""
    if isinstance(value, MQError):
        raise value
    body, encoded = value.get("body"), value.get("base64")
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(encoded, str):
        return base64.b64decode(encoded, validate=True)
    assert isinstance(body, bytes) or isinstance(encoded, bytes)
    return body if isinstance(body, bytes) else encoded  # type: ignore[return-value]


@pytest.mark.slow
@for_each("piece", [1 << 16, 60_001])
@for_each("ascii", [True, False])
@for_each("unit", ["x", 'caf\u00e9 \U0001f600\\"\n/', "\\", "\ud83d\udd11", "\ud83d", "\\u0041"])
def test_a_long_text_comes_out_whole(unit: str, ascii: bool, piece: int) -> None:
    text = unit * (2 * LONG_LINE // len(unit))
    line = json.dumps({"delay": 3, "body": text, "attributes": {"body": '"body": "x"'}}, ensure_ascii=ascii)
    data = line.encode("utf-8", "surrogatepass")
    [value] = read(data, piece)
    assert not isinstance(value, MQError)
    assert value.pop("body") == body_of(parse_object(data))
    assert value == {"delay": 3, "attributes": {"body": '"body": "x"'}}


@pytest.mark.parametrize("size", [2 * LONG_LINE, 2 * LONG_LINE + 1, 2 * LONG_LINE + 2])
def test_long_base64_comes_out_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    line = json.dumps({"base64": base64.b64encode(body).decode()}).encode()
    assert [body_of(value) for value in read(line + b"\n" + line, 50_000, 7)] == [body, body]


escapes = st.lists(
    st.sampled_from(
        ["a", "\u00e9", "\u20ac", "\U0001f600", "\\\\", '\\"', "\\n", "\\ud83d", "\\ude00", "\\u00e9", "\\u"]
    )
).map("".join)
rests = st.sampled_from(
    ["", ', "delay": 1', ', "a": "\\\\"', ', "a": {"body": "x"}', ', "body": "y"', "}", ', "b": ["]"]']
)


@given(escapes, rests, st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_any_text_is_the_same_in_pieces(text: str, rest: str, pieces: list[int]) -> None:
    line = f'{{"body": "{text}"{rest}}}'.encode()
    try:
        whole: dict[str, Any] | MQError = parse_object(line)
    except MQError as error:
        whole = error
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_lines, "LONG_LINE", 4)
        [cut] = read(line, *pieces)
    if isinstance(whole, MQError) or '"body": "y"' in rest:
        assert isinstance(cut, MQError)
    else:
        assert body_of(cut) == body_of(whole)
        assert {**whole, "body": ""} == {**cut, "body": ""}  # type: ignore[dict-item]


@for_each(
    "line, why",
    [
        (f'{{"body": "{LONG}\\x"}}', "invalid JSON"),
        (f'{{"body": "{LONG}\t"}}', "invalid JSON"),
        (f'{{"body": "{LONG}"', "invalid JSON"),
        (f'{{"body": "{LONG}', "invalid JSON"),
        (f'{{"body": "{LONG}", "body": "x"}}', "twice"),
        (f'["body", "{LONG}"]', "expected a JSON object"),
        (f'{{"base64": "{LONG}%"}}', "base64"),
        (f'{{"base64": "QQ=={LONG}"}}', "base64"),
        (f'{{"base64": "{LONG}Q"}}', "base64"),
    ],
)
def test_a_long_line_that_is_none_says_why_and_spoils_no_other(line: str, why: str) -> None:
    before, bad, after = read(b'{"body": "a"}\n' + line.encode() + b'\n{"body": "b"}\n', 1 << 16)
    assert isinstance(bad, InvalidRequest)
    assert why in str(bad)
    assert (body_of(before), body_of(after)) == (b"a", b"b")


@pytest.mark.parametrize("line", ["x" * 2 * LARGEST_REST, '{"attributes": {"body": "%s"}}' % (2 * LARGEST_REST * "x")])
def test_only_a_body_may_be_long(line: str) -> None:
    [found] = read(line.encode(), 1 << 16)
    assert isinstance(found, BatchTooLarge)


def test_a_long_line_takes_no_more_than_its_body() -> None:
    """Of wide characters as Python has them, each takes four bytes."""
    size = 20 << 20
    line = b'{"body": "\xf0\x9f\x98\x80' + b"x" * size + b'"}\n'
    entries = draft_entries("")
    tracemalloc.start()
    try:
        for start in range(0, len(line), 1 << 16):
            entries.feed(line[start : start + (1 << 16)])
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(entries.end()) == 1
    assert most < 1.3 * size


def test_what_is_refused_holds_nothing() -> None:
    """An error knows where it was raised, and so all that there was there."""
    line = json.dumps({"boody": "x" * 60_000}).encode() + b"\n"
    entries = draft_entries("")
    tracemalloc.start()
    try:
        for _ in range(100):
            entries.feed(line)
        now, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(entries.end()) == 100
    assert now < 10 * len(line)
