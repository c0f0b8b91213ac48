"""Between messages and Arrow, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from mq.client.errors import UnexpectedResponse
from mq.message import BytesBody, Message, MessageIds, Properties
from mq.spark.calls import Columns, read_columns
from mq.spark.errors import InvalidRow, InvalidSchema
from mq.spark.rows import ALL_COLUMNS, COLUMNS, LineMaker, RowMaker, check_written, find_repeated
from mq.web.batches import BatchEntry
from tests.web.written import encode_columns

ID = MessageIds(lambda: 1_700_000_000_123_456_700).new()
SAID: dict[str, Any] = {"content_type": "text/plain", "attributes": {"a": "ä", "b": "2"}, "group": "g"}


def columns(*bodies: bytes) -> Columns:
    """As a daemon sends them."""
    messages = [Message("q", ID, BytesBody(body), Properties(len(body), None, SAID), 2, "") for body in bodies]
    entries = [BatchEntry(message, body, "", 1 << 59) for message, body in zip(messages, bodies, strict=True)]
    return read_columns(encode_columns(entries))


def of(*fields: tuple[str, Any]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def test_a_message_as_a_row() -> None:
    [row] = RowMaker("q", ALL_COLUMNS).batch(columns("hällo".encode())).to_pylist()
    assert (row["value"], row["id"], row["queue"], row["sequence"]) == ("hällo".encode(), ID, "q", 1 << 59)
    assert row["timestamp"].isoformat() == "2023-11-14T22:13:20.123456+00:00"
    assert (row["deliveryCount"], row["contentType"]) == (2, "text/plain")
    assert row["headers"] == [{"key": "a", "value": "ä".encode()}, {"key": "b", "value": b"2"}]
    assert row["group"] == "g"


def test_only_the_columns_that_are_wanted_in_their_order() -> None:
    batch = RowMaker("q", of(("sequence", LongType()), ("value", StringType()))).batch(columns("hällo".encode()))
    assert batch.to_pylist() == [{"sequence": 1 << 59, "value": "hällo"}]
    assert RowMaker("q", COLUMNS).batch(columns()).num_rows == 0


def test_bytes_that_are_no_text() -> None:
    assert RowMaker("q", COLUMNS).batch(columns(b"\xff")).to_pylist()[0]["value"] == b"\xff"
    with pytest.raises(InvalidRow, match=f"message {ID} is not UTF-8 text.*Read the column .value. as binary"):
        RowMaker("q", of(("value", StringType()))).batch(columns(b"text", b"\xff"))


@pytest.mark.parametrize("data", [b"", b"{}\n", b"[]\n", b'{"messages": 1, "said": {}}\n', b'{"messages": "1"}\n'])
def test_what_is_no_columns(data: bytes) -> None:
    with pytest.raises(UnexpectedResponse, match="is not in the columnar message format"):
        read_columns(data)
    whole = encode_columns([BatchEntry(Message("q", ID, BytesBody(b"x"), Properties(1, None), 0, ""), b"x")])
    with pytest.raises(UnexpectedResponse, match="received 0 bytes of message bodies instead of 1"):
        read_columns(whole[:-1])


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (of(("valeu", BinaryType())), "unknown column valeu"),
        (of(("sequence", IntegerType())), "column sequence must be bigint, not int"),
        (of(("id", BinaryType())), "column id must be string, not binary"),
    ],
)
def test_columns_that_no_message_has(schema: StructType, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        RowMaker("q", schema)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (of(("body", BinaryType())), "the message body. is missing"),
        (of(("value", LongType())), "column value must be binary or string, not bigint"),
        (of(("value", BinaryType()), ("colour", StringType())), "unknown column colour"),
        (of(("value", BinaryType()), ("ttlSeconds", StringType())), "column ttlSeconds"),
        (of(("value", BinaryType()), ("key", StringType())), r'the column "key" .* "group" .* "idempotencyKey"'),
        (of(("key", BinaryType()), ("value", BinaryType())), 'the column "key" is ambiguous'),
        (of(("value", BinaryType()), ("idempotencyKey", LongType())), "column idempotencyKey must be string"),
    ],
)
def test_rows_that_can_be_no_messages(schema: StructType, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        check_written(schema, "q")


def test_what_was_read_can_be_written() -> None:
    check_written(ALL_COLUMNS, "q")
    check_written(ALL_COLUMNS, "")


def test_rows_of_which_no_queue_is_known() -> None:
    with pytest.raises(InvalidSchema, match='Set the "queue" option or add a "queue" column'):
        check_written(of(("value", BinaryType())), "")
    with pytest.raises(InvalidSchema, match="column queue must be string, not bigint"):
        check_written(of(("value", BinaryType()), ("queue", LongType())), "")


def lines(maker: LineMaker, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in maker.lines(pa.RecordBatch.from_pylist(rows), 0)]


def test_a_row_as_a_message() -> None:
    row = {
        "value": b"\xff",
        "idempotencyKey": "k",
        "contentType": "x/y",
        "headers": [{"key": "H", "value": "ä".encode()}, {"key": "i", "value": b"2"}],
        "group": "g",
        "delaySeconds": 1.5,
        "ttlSeconds": 60.0,
    }
    line = {"base64": "/w==", "content_type": "x/y", "group": "g", "delay": 1.5, "ttl": 60.0, "key": "k"}
    assert lines(LineMaker("w", 0, "q"), [row]) == [{**line, "attributes": {"h": "ä", "i": "2"}}]
    assert lines(LineMaker("w", 0, "q"), [{"value": "x", "id": "i"}]) == [{"body": "x", "key": "i"}]
    both = {"value": "x", "id": "i", "idempotencyKey": "k"}
    assert lines(LineMaker("w", 0, "q"), [both]) == [{"body": "x", "key": "k"}]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"headers": [("H", b"1"), ("h", b"2")]}, 'the header "h" twice'),
        (
            {"headers": [("h", None)]},
            r'the header "h" without a value \(null\)\. Filter out such headers, or write an empty value',
        ),
        ({"headers": [("", b"1")]}, "a header without a name"),
        ({"queue": None}, 'column "queue"'),
        ({"queue": "a/b"}, 'column "queue"'),
    ],
)
def test_a_row_that_can_be_no_message_is_named(row: dict[str, Any], why: str) -> None:
    headers = [{"key": key, "value": value} for key, value in row.pop("headers", [])]
    rows = [{"value": b"x", "headers": [], "queue": "q"}, {"value": b"x", "headers": headers, "queue": "q", **row}]
    with pytest.raises(InvalidRow, match=f"row 1 of partition 4: .*{why}"):
        lines(LineMaker("w", 4, ""), rows)


def test_each_row_into_its_own_queue() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b"x", "queue": name} for name in "ab"])
    assert [queue for queue, _ in LineMaker("w", 0, "").lines(batch, 0)] == ["a", "b"]
    assert [queue for queue, _ in LineMaker("w", 0, "c").lines(batch, 0)] == ["c", "c"]


def test_one_key_in_two_queues_is_no_repeated_row() -> None:
    maker = LineMaker("w", 0, "")
    lines(maker, [{"value": "x", "idempotencyKey": "k", "queue": name} for name in "ab"])
    assert find_repeated([maker.digests]) is None


def test_a_task_that_runs_again_has_the_same_keys_in_whatever_order() -> None:
    rows = [{"value": text} for text in ("a", "b", "a", "c")]
    first = lines(LineMaker("w", 3, "q"), rows)
    again = lines(LineMaker("w", 3, "q"), rows[::-1])
    assert sorted(line["key"] for line in first) == sorted(line["key"] for line in again)
    assert len({line["key"] for line in first}) == 4
    others = [lines(LineMaker("w", 4, "q"), rows), lines(LineMaker("v", 3, "q"), rows)]
    assert not {line["key"] for line in first} & {line["key"] for other in others for line in other}


def test_a_write_that_can_be_run_anew_has_the_same_keys_in_other_partitions() -> None:
    rows = [{"value": text} for text in ("a", "b", "a", "c")]
    keys = {line["key"] for line in lines(LineMaker("w", 3, "q", is_named=True), rows)}
    assert keys == {line["key"] for line in lines(LineMaker("w", 4, "q", is_named=True), rows)}
    assert len(keys) == 4
    assert not keys & {line["key"] for line in lines(LineMaker("v", 3, "q", is_named=True), rows)}


def digests(*partitions: list[str | None]) -> list[bytearray]:
    found = []
    for number, keys in enumerate(partitions):
        maker = LineMaker("w", number, "q")
        lines(maker, [{"value": "x", "idempotencyKey": key} for key in keys])
        found.append(maker.digests)
    return found


@pytest.mark.parametrize(
    ("partitions", "found"),
    [
        ([], None),
        ([["a", "b"], ["c"]], None),
        ([[None, None], [None, "a"]], None),
        ([["a", "b", "a"]], ((0, 0), (0, 2))),
        ([["a"], ["b"], [None, "a"]], ((0, 0), (2, 1))),
        ([["a"], [None], ["b", "c", "c"], ["c"]], ((2, 1), (2, 2))),
    ],
)
def test_rows_with_one_key(partitions: list[list[str | None]], found: Any) -> None:
    assert find_repeated(digests(*partitions)) == found


def test_rows_that_have_no_key_of_their_own_cost_no_digest() -> None:
    maker = LineMaker("w", 0, "q")
    lines(maker, [{"value": "x"}])
    assert not maker.digests


def test_rows_that_differ_beside_their_value_are_not_the_same() -> None:
    rows = [{"value": "a", "contentType": "x/y"}, {"value": "a", "contentType": None}]
    keys = [line["key"] for line in lines(LineMaker("w", 0, "q"), rows)]
    alone = lines(LineMaker("w", 0, "q"), [{"value": "a"}])
    assert keys[1] == alone[0]["key"] != keys[0]


def test_a_null_is_named_by_its_row() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": b"x"}, {"value": None}])
    with pytest.raises(InvalidRow, match='row 11 of partition 2: column "value" is null'):
        list(LineMaker("w", 2, "q").lines(batch, 10))
