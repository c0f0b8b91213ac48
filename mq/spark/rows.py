"""Between messages and Arrow: the columns that are read, and those that are written."""

from __future__ import annotations

import binascii
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mq.client.codec import body_of
from mq.message import MessageId
from mq.spark.errors import InvalidRow, InvalidSchema, SparkSourceError

COLUMNS: Final = StructType(
    [
        StructField("value", BinaryType()),
        StructField("id", StringType()),
        StructField("queue", StringType()),
        StructField("sequence", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("deliveryCount", IntegerType()),
    ]
)
"""What a message is as a row."""
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ALL_COLUMNS: Final = StructType(
    [*COLUMNS, StructField("contentType", StringType()), StructField("headers", ArrayType(_HEADER))]
)
"""With what is there besides with the option ``includeHeaders``."""

WRITTEN: Final = ("value", "key", "contentType", "headers", "delaySeconds", "ttlSeconds")
"""Columns that make a message. ``id`` is its key, where there is no ``key``."""
NOT_WRITTEN: Final = ("id", "queue", "sequence", "timestamp", "deliveryCount")
"""Columns that a row has because it was read from a queue; the broker gives a new message its own."""


class RowMaker:
    """Makes record batches of messages.

    Args:
        queue: from where they are.
        schema: the columns that are wanted: any of ALL_COLUMNS, ``value`` perhaps as a string.

    Raises:
        InvalidSchema: one is none of these, or of another type.
    """

    def __init__(self, queue: str, schema: StructType) -> None:
        self._queue = queue
        known = {field.name: field for field in ALL_COLUMNS}
        for field in schema:
            there = known.get(field.name)
            if there is None:
                raise InvalidSchema(f"unknown column {field.name}; a message has {', '.join(known)}")
            is_text = field.name == "value" and field.dataType == StringType()
            if field.dataType.simpleString() != there.dataType.simpleString() and not is_text:
                wanted = there.dataType.simpleString()
                raise InvalidSchema(f"column {field.name} is {wanted}, not {field.dataType.simpleString()}")
        self._is_text = any(field.name == "value" and field.dataType == StringType() for field in schema)
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def batch(self, lines: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Messages as they came, as rows.

        Raises:
            InvalidRow: a body is no text, where text is wanted.
        """
        arrays = [
            pa.array(self._column(field.name, lines), type=field.type, from_pandas=False) for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, lines: Sequence[Mapping[str, Any]]) -> list[Any]:
        if name == "value":
            return [self._body(line) for line in lines]
        if name == "queue":
            return [self._queue] * len(lines)
        return list(map(_READERS[name], lines))

    def _body(self, line: Mapping[str, Any]) -> bytes | str:
        text = line.get("body")
        if self._is_text:
            if not isinstance(text, str):
                raise InvalidRow(f"message {line.get('id')} is not text in UTF-8: read the column value as binary")
            return text
        if isinstance(text, str):
            return text.encode()
        try:
            return body_of(line)
        except ValueError as error:
            raise SparkSourceError(f"message {line.get('id')} cannot be read: {error}") from error


def _headers(line: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = line.get("attributes") or {}
    return [{"key": key, "value": text.encode("utf-8", "surrogateescape")} for key, text in texts.items()]


_READERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "id": lambda line: line["id"],
    "sequence": lambda line: line["sequence"],
    "timestamp": lambda line: MessageId(line["id"]).published_ns // 1000,
    "deliveryCount": lambda line: line["receives"],
    "contentType": lambda line: line["content_type"],
    "headers": _headers,
}


def check_written(schema: StructType) -> None:
    """Whether rows of this schema can be messages.

    Raises:
        InvalidSchema: a column is missing, unknown, or of a type that no message has.
    """
    types = {field.name: field.dataType for field in schema}
    if "value" not in types:
        raise InvalidSchema(f'there is no column "value", the body; the columns are {", ".join(types)}')
    for name in types:
        if name not in (*WRITTEN, *NOT_WRITTEN):
            raise InvalidSchema(f"unknown column {name}; a message is made of {', '.join(WRITTEN)}")
    texts = (StringType().simpleString(),)
    wanted = {
        "value": (BinaryType().simpleString(), *texts),
        "key": texts,
        "contentType": texts,
        "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
        "delaySeconds": ("double", "float", "int", "bigint"),
        "ttlSeconds": ("double", "float", "int", "bigint"),
    }
    for name, allowed in wanted.items():
        if name in types and types[name].simpleString() not in allowed:
            raise InvalidSchema(f"column {name} must be {' or '.join(allowed)}, not {types[name].simpleString()}")


class LineMaker:
    """Makes lines of a batch for the broker of rows, each with an idempotency key.

    The key is the row's own (its ``key``, else its ``id``), or made of the write, the partition and the row: of what
    it says and how often the partition had such a row before. So a task that runs again stores nothing twice, in
    whatever order its rows come then.

    Args:
        write: names the write: what is written again under this name is the same.
        partition: the task's.
    """

    def __init__(self, write: str, partition: int) -> None:
        self._write = write
        self._partition = partition
        self._seen: Counter[bytes] = Counter()

    def lines(self, batch: pa.RecordBatch, first: int) -> Iterator[bytes]:
        """A line for each row; `first` is the number of the first one.

        Raises:
            InvalidRow: one cannot be a message.
        """
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        for number in range(batch.num_rows):
            row = {name: values[number] for name, values in columns.items()}
            try:
                yield self._line(row)
            except ValueError as error:
                raise InvalidRow(f"row {first + number} of partition {self._partition}: {error}") from error

    def _line(self, row: Mapping[str, Any]) -> bytes:
        value = row["value"]
        if value is None:
            raise ValueError('column "value" is null, and a message has a body: filter such rows, or coalesce them')
        body = value.encode() if isinstance(value, str) else bytes(value)
        line: dict[str, Any] = _as_member(body)
        for column, name in (("contentType", "content_type"), ("delaySeconds", "delay"), ("ttlSeconds", "ttl")):
            if row.get(column) is not None:
                line[name] = row[column]
        if row.get("headers"):
            line["attributes"] = {pair["key"].lower(): _text(pair["value"]) for pair in row["headers"]}
        line["key"] = row.get("key") or row.get("id") or self._key(body, line)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass") + b"\n"

    def _key(self, body: bytes, line: Mapping[str, Any]) -> str:
        others = {name: value for name, value in line.items() if name not in ("body", "base64")}
        content = hashlib.blake2b(body, digest_size=16)
        if others:
            content.update(json.dumps(others, sort_keys=True).encode())
        digest = content.digest()
        count = self._seen[digest]
        self._seen[digest] = count + 1
        whole = f"{self._write}\0{self._partition}\0{count}\0".encode() + digest
        return hashlib.blake2b(whole, digest_size=16).hexdigest()


def _as_member(body: bytes) -> dict[str, Any]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(body, newline=False).decode()}


def _text(value: bytes | str | None) -> str:
    if value is None:
        raise ValueError('column "headers" has a header without a value')
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")
