"""Rows: messages as columns of Arrow, and rows of Arrow as lines for the broker."""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
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

from mq.errors import InvalidName
from mq.message import QueueName, encode_json
from mq.spark.calls import Columns
from mq.spark.errors import InvalidRow, InvalidSchema
from mq.spark.versions import arrow_schema

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
"""The columns of a message."""
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
ALL_COLUMNS: Final = StructType(
    [
        *COLUMNS,
        StructField("contentType", StringType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField("group", StringType()),
    ]
)
"""The columns with the option ``includeHeaders``."""

DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
"""The content type of a message that was published without one."""

OWN_KEYS: Final = ("idempotencyKey", "id")
"""The first of these columns that is not null is the row's own key."""
WRITTEN: Final = ("value", "idempotencyKey", "contentType", "headers", "group", "delaySeconds", "ttlSeconds")
"""Columns that make a message."""
QUEUE: Final = "queue"
"""The column that names a row's queue where the option ``queue`` is not given."""
NOT_WRITTEN: Final = ("id", QUEUE, "sequence", "timestamp", "deliveryCount")
"""Columns that a row has because it was read from a queue; the broker gives a new message its own."""
_BINARY: Final = "=?binary?B?"
_BINARY_END: Final = "?="
"""Around the base64 of bytes that are not text on one line (encoded words, RFC 2047, whose charset this one is)."""
_CARRIED: Final = re.compile(r"(?:[^\x00-\x20\x7f](?:[^\x00-\x08\x0a-\x1f\x7f]*[^\x00-\x20\x7f])?)?")
"""Text that the broker takes as an attribute."""
KEY_DIGEST_BYTES: Final = 12
_NO_DIGEST: Final = bytes(KEY_DIGEST_BYTES)


class RowMaker:
    """Makes record batches of messages.

    Args:
        schema: the wanted columns: any of ALL_COLUMNS; ``value`` may be a string.

    Attributes:
        needs_messages: whether a column needs the message itself, not only what its queue knows of it.

    Raises:
        InvalidSchema: a column is not one of these, or is of another type.
    """

    def __init__(self, queue: str, schema: StructType) -> None:
        self._queue = queue
        known = {field.name: field for field in ALL_COLUMNS}
        for field in schema:
            there = known.get(field.name)
            if there is None:
                raise InvalidSchema(f"unknown column {field.name}; known columns: {', '.join(known)}")
            is_text = field.name == "value" and field.dataType == StringType()
            if field.dataType.simpleString() != there.dataType.simpleString() and not is_text:
                wanted = there.dataType.simpleString()
                raise InvalidSchema(f"column {field.name} must be {wanted}, not {field.dataType.simpleString()}")
        self._is_text = any(field.name == "value" and field.dataType == StringType() for field in schema)
        self._schema = arrow_schema(schema)
        self.needs_messages = any(field.name == "value" or field.name in _SAID for field in schema)

    def batch(self, columns: Columns) -> pa.RecordBatch:
        """The rows of some messages.

        Raises:
            InvalidRow: ``value`` is wanted as a string, and a body is not UTF-8.
        """
        arrays = [self._column(field.name, columns) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, columns: Columns) -> pa.Array:
        if name == "value":
            return _texts(columns) if self._is_text else columns.body
        if name == "queue":
            return pa.repeat(self._queue, len(columns))
        if name in _SAID:
            field, read = self._schema.field(name), _SAID[name]
            said = [columns.said.get(str(number), {}) for number in range(len(columns))]
            return pa.array(list(map(read, said)), type=field.type, from_pandas=False)
        return _COLUMNS[name](columns)


def _texts(columns: Columns) -> pa.Array:
    try:
        return columns.body.cast(pa.string())
    except pa.ArrowInvalid:
        for id, body in zip(columns.id, columns.body, strict=True):
            try:
                body.as_py().decode()
            except UnicodeDecodeError:
                raise InvalidRow(f'message {id} is not UTF-8 text. Read the column "value" as binary') from None
        raise


def _content_type(said: Mapping[str, Any]) -> str:
    return str(said.get("content_type", DEFAULT_CONTENT_TYPE))


def _headers(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = said.get("attributes") or {}
    return [{"key": key, "value": _header_bytes(text)} for key, text in texts.items()]


def _header_bytes(text: str) -> bytes:
    """The bytes of a header: those that no attribute can carry as text were written as an encoded word."""
    if text.startswith(_BINARY) and text.endswith(_BINARY_END):
        try:
            return binascii.a2b_base64(text[len(_BINARY) : -len(_BINARY_END)], strict_mode=True)
        except ValueError:
            pass  # another program's text
    return text.encode("utf-8", "surrogateescape")


def _group(said: Mapping[str, Any]) -> str | None:
    return said.get("group")


_SAID: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "contentType": _content_type,
    "headers": _headers,
    "group": _group,
}
_COLUMNS: Final[Mapping[str, Callable[[Columns], pa.Array]]] = {
    "id": lambda columns: columns.id,
    "sequence": lambda columns: columns.sequence,
    "timestamp": lambda columns: columns.timestamp,
    "deliveryCount": lambda columns: columns.receives,
}


def check_written(schema: StructType, queue: str) -> None:
    """Check that rows of this schema can be messages.

    Args:
        queue: the queue of all rows; empty where each names its own.

    Raises:
        InvalidSchema: a column is missing, unknown, or of a type that no message has.
    """
    types = {field.name: field.dataType for field in schema}
    if "key" in types:
        raise InvalidSchema(
            'the column "key" is ambiguous. If rows with the same key must stay in order, as in Kafka, '
            'rename the column to "group" (for a queue with groups). If each key identifies a single row, rename the '
            'column to "idempotencyKey"'
        )
    if "value" not in types:
        raise InvalidSchema(f'the column "value" (the message body) is missing; the columns are {", ".join(types)}')
    if not queue and QUEUE not in types:
        raise InvalidSchema('the write has no target queue. Set the "queue" option or add a "queue" column')
    for name in types:
        if name not in (*WRITTEN, *NOT_WRITTEN):
            raise InvalidSchema(f"unknown column {name}; known columns: {', '.join(WRITTEN)}")
    texts = (StringType().simpleString(),)
    wanted = {
        "value": (BinaryType().simpleString(), *texts),
        "idempotencyKey": texts,
        "contentType": texts,
        "group": texts,
        "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
        "delaySeconds": ("double", "float", "int", "bigint"),
        "ttlSeconds": ("double", "float", "int", "bigint"),
    }
    if not queue:
        wanted[QUEUE] = texts
    for name, allowed in wanted.items():
        if name in types and types[name].simpleString() not in allowed:
            raise InvalidSchema(f"column {name} must be {' or '.join(allowed)}, not {types[name].simpleString()}")


class LineMaker:
    """Turns rows into lines for the broker, each with an idempotency key.

    The key is the row's own: its ``idempotencyKey``, else its ``id``. A row without either gets a key made of the name
    of the write, the partition, the row's content, and the number of equal rows before it in the partition. So a task
    that runs again stores nothing twice, in whatever order its rows come. A named write can be run again with its rows
    in other partitions, so its keys leave the partition out.

    Args:
        write: names the write: rows that are written again under this name are the same rows.
        queue: the queue of all rows; empty where each names its own in the column ``queue``.
        is_named: whether the whole write can be run again under its name.

    Attributes:
        digests: KEY_DIGEST_BYTES for each row whose key no other partition may have, zeros for every other row; empty
            where no row has such a key.
    """

    def __init__(self, write: str, partition: int, queue: str, *, is_named: bool = False) -> None:
        self._write = write if is_named else f"{write}\0{partition}"
        self._partition = partition
        self._is_named = is_named
        self._queue = queue
        self._seen: Counter[bytes] = Counter()
        self.digests = bytearray()

    def lines(self, batch: pa.RecordBatch, first: int) -> Iterator[tuple[str, bytes]]:
        """For each row its queue and its line. `first` is the number of the first row.

        Raises:
            InvalidRow: a row cannot be a message.
        """
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        has_digests = self._is_named or any(name in columns for name in OWN_KEYS)
        for number in range(batch.num_rows):
            row = {name: values[number] for name, values in columns.items()}
            try:
                own = next((row[name] for name in OWN_KEYS if row.get(name)), None)
                queue = self._queue or _queue_of(row)
                line = self._line(row, own)
            except ValueError as error:
                raise InvalidRow(f"row {first + number} of partition {self._partition}: {error}") from error
            if has_digests:
                self.digests += _digest_of(queue, line["key"]) if own is not None or self._is_named else _NO_DIGEST
            yield queue, encode_json(line) + b"\n"

    def _line(self, row: Mapping[str, Any], own: str | None) -> dict[str, Any]:
        value = row["value"]
        if value is None:
            raise ValueError(
                'column "value" is null, but a message must have a body. Filter out such rows, or replace the null '
                "(for example with coalesce())"
            )
        body = value.encode() if isinstance(value, str) else bytes(value)
        line: dict[str, Any] = _as_member(body)
        for column, name in _AS_MEMBERS:
            if row.get(column) is not None:
                line[name] = row[column]
        if row.get("headers"):
            line["attributes"] = _attributes(row["headers"])
        line["key"] = own if own is not None else self._key(body, line)
        return line

    def _key(self, body: bytes, line: Mapping[str, Any]) -> str:
        others = {name: value for name, value in line.items() if name not in ("body", "base64")}
        content = hashlib.blake2b(body, digest_size=16)
        if others:
            content.update(json.dumps(others, sort_keys=True).encode())
        digest = content.digest()
        count = self._seen[digest]
        self._seen[digest] = count + 1
        whole = f"{self._write}\0{count}\0".encode() + digest
        return hashlib.blake2b(whole, digest_size=16).hexdigest()


def find_repeated(digests: Sequence[bytes | bytearray]) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Two rows with the same key, each as its place among `digests` and its number there; None without such rows.

    Args:
        digests: :attr:`LineMaker.digests` of each partition.
    """
    kind = pa.binary(KEY_DIGEST_BYTES)
    lengths = [len(each) // KEY_DIGEST_BYTES for each in digests]
    buffers = [[None, pa.py_buffer(each)] for each in digests]
    whole = pa.chunked_array(map(partial(pa.Array.from_buffers, kind), lengths, buffers), kind)
    counts = pc.value_counts(whole)
    values, times = counts.field("values"), counts.field("counts")
    none = pa.scalar(_NO_DIGEST, kind)
    repeated = values.filter(pc.and_(pc.greater(times, 1), pc.not_equal(values, none)))
    if not len(repeated):
        return None
    found = pc.indices_nonzero(pc.equal(whole, repeated[0]))
    starts = list(accumulate(lengths, initial=0))
    first, second = (int(found[each].as_py()) for each in (0, 1))
    place, other = (bisect_right(starts, row) - 1 for row in (first, second))
    return (place, first - starts[place]), (other, second - starts[other])


_AS_MEMBERS: Final = (
    ("contentType", "content_type"),
    ("group", "group"),
    ("delaySeconds", "delay"),
    ("ttlSeconds", "ttl"),
)


def _digest_of(queue: str, key: str) -> bytes:
    return hashlib.blake2b(f"{queue}\0{key}".encode(), digest_size=KEY_DIGEST_BYTES).digest()


def _queue_of(row: Mapping[str, Any]) -> str:
    try:
        return QueueName(row[QUEUE] or "")
    except InvalidName as error:
        raise ValueError(f'column "queue": {error}') from error


def _attributes(headers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Headers as attributes, whose names are in small letters.

    Raises:
        ValueError: two have one name, or one has no name or no value.
    """
    found: dict[str, str] = {}
    for pair in headers:
        name = (pair["key"] or "").lower()
        if not name:
            raise ValueError('column "headers" contains a header without a name. Filter out such headers')
        if name in found:
            raise ValueError(
                f'column "headers" contains the header "{name}" twice. Header names are case-insensitive and '
                "must be unique. Join the values, or rename the headers"
            )
        if pair["value"] is None:
            raise ValueError(
                f'column "headers" contains the header "{name}" without a value (null). Filter out such headers, or '
                "write an empty value"
            )
        found[name] = _text(pair["value"])
    return found


def _as_member(body: bytes) -> dict[str, Any]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": binascii.b2a_base64(body, newline=False).decode()}


def _text(value: bytes | str) -> str:
    """A header's value as an attribute: text on one line as it is, any other bytes as an encoded word."""
    text = value if isinstance(value, str) else bytes(value).decode("utf-8", "surrogateescape")
    if _CARRIED.fullmatch(text) and not text.startswith(_BINARY):
        return text
    data = text.encode("utf-8", "surrogateescape")
    return f"{_BINARY}{binascii.b2a_base64(data, newline=False).decode()}{_BINARY_END}"
