"""Field tables: decoded, changed entry by entry, and converted to JSON for durable records.

pamqp decodes and encodes single values. This module walks over the entries itself, since pamqp does not tell where an
entry stood, and copies the rest of the table for each value: 64 KiB of nested tables took it a second.
"""

from __future__ import annotations

import base64
import datetime
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pamqp import decode

from mq.amqp.wire.errors import Code, Refusal

LARGEST_TABLE: Final = 64 * 1024
"""Bytes of the largest table that is decoded: decoding holds up all other connections."""
DEEPEST: Final = 32
"""How deep tables and arrays may be nested. Deeper ones have no use but to cost time."""
_SMALL: Final = 1024
"""Bytes of a table that pamqp decodes: the square of so few is faster than our walk."""

DECODING_ERRORS: Final = (ValueError, TypeError, struct.error, ArithmeticError, RecursionError, OSError, LookupError)
"""What pamqp raises for malformed bytes, dates that no calendar has and endless nesting included."""

_FIXED: Final = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5, "T": 8}
_SIZES: Final = {kind.encode()[0]: size for kind, size in (*_FIXED.items(), ("V", 0), ("\0", 0))}
_COUNTED: Final = frozenset(b"SAFx")
_NESTED: Final = frozenset(b"AF")
_TABLE: Final = ord("F")


class TableEntry(NamedTuple):
    """One entry of a table: its key, and where it stands, key and value."""

    key: bytes
    start: int
    end: int


def entries(table: bytes) -> Iterator[TableEntry]:
    """The entries of a table, without what is in them.

    Args:
        table: the table with the four bytes of its length.

    Raises:
        Refusal: 502; the bytes are no table.
    """
    if len(table) != 4 + int.from_bytes(table[:4]):
        raise _malformed()
    at = 4
    while at < len(table):
        start, at = at, _key_end(table, at)
        key = table[start + 1 : at]
        at = _value_end(table, at, len(table))
        yield TableEntry(key, start, at)


def check(table: bytes) -> None:
    """Check that every value ends within its table or array.

    Raises:
        Refusal: 502; one does not, or is nested too deeply.
    """
    # pamqp would read on behind the end of an array.
    inner = [(entry.start + 1 + len(entry.key), entry.end, 0) for entry in entries(table)]
    while inner:
        start, end, depth = inner.pop()
        kind, at = table[start], start + 5
        if kind in _NESTED and depth == DEEPEST:
            raise Refusal(Code.SYNTAX_ERROR, f"tables and arrays are nested more than {DEEPEST} levels deep")
        while kind in _NESTED and at < end:
            place = _key_end(table, at) if kind == _TABLE else at
            at = _value_end(table, place, end)
            inner.append((place, at, depth + 1))


def _key_end(table: bytes, at: int) -> int:
    return at + 1 + table[at]


def _value_end(table: bytes, at: int, limit: int) -> int:
    """The end of the value with its type at `at`; both must be within `limit`."""
    kind = table[at] if at < limit else -1
    if kind in _COUNTED:
        end = at + 5 + int.from_bytes(table[at + 1 : at + 5])
    elif kind in _SIZES:
        end = at + 1 + _SIZES[kind]
    else:
        raise _malformed()
    if end > limit:
        raise _malformed()
    return end


def changed(table: bytes, values: Mapping[str, Any]) -> bytes:
    """The table with these values; one that is None is taken out. Every other entry keeps its place and its bytes.

    Raises:
        Refusal: 502; the bytes are no table.
    """
    names = {name.encode() for name in values}
    kept = b"".join(table[entry.start : entry.end] for entry in entries(table) if entry.key not in names)
    added = encoded({name: value for name, value in values.items() if value is not None})
    return struct.pack(">I", len(kept) + len(added)) + kept + added


def encoded(values: Mapping[str, Any]) -> bytes:
    """The entries of a table with these values, without its length: texts, whole numbers, booleans, times, and lists
    and tables of these.

    Each has the type that RabbitMQ gives it, whatever its value. Programs in Java and Go cast what they find, so a
    whole number is always a 64-bit ``l``.
    """
    return b"".join(_short(name) + _encoded_value(value) for name, value in values.items())


def _short(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">B", len(data)) + data


def _encoded_value(value: Any) -> bytes:
    if isinstance(value, str):
        return _sized(b"S", value.encode())
    if isinstance(value, bool):
        return b"t" + struct.pack(">?", value)
    if isinstance(value, int):
        return b"l" + struct.pack(">q", value)
    if isinstance(value, datetime.datetime):
        return b"T" + struct.pack(">Q", int(value.timestamp()))
    if isinstance(value, list):
        return _sized(b"A", b"".join(map(_encoded_value, value)))
    if isinstance(value, Mapping):
        return _sized(b"F", encoded(value))
    raise TypeError(f"an AMQP table cannot contain a value of type {type(value).__name__}")


def _sized(kind: bytes, data: bytes) -> bytes:
    return kind + struct.pack(">I", len(data)) + data


def decoded(table: bytes) -> dict[str, Any]:
    """Decode a table.

    Raises:
        Refusal: 502; the bytes are no table, or more than :data:`LARGEST_TABLE`.
    """
    if len(table) > LARGEST_TABLE:
        raise Refusal(Code.SYNTAX_ERROR, f"a field table of {len(table)} bytes is too large")
    check(table)
    try:
        return decode.field_table(table)[1] if len(table) <= _SMALL else _table(table, 4, len(table))
    except DECODING_ERRORS as error:
        raise _malformed() from error


def _table(table: bytes, at: int, end: int) -> dict[str, Any]:
    """Decode the table between two offsets, which was checked."""
    values = {}
    while at < end:
        place = _key_end(table, at)
        key = table[at + 1 : place].decode()
        at = _value_end(table, place, end)
        values[key] = _value(table, place, at)
    return values


def _array(table: bytes, at: int, end: int) -> list[Any]:
    values = []
    while at < end:
        place, at = at, _value_end(table, at, end)
        values.append(_value(table, place, at))
    return values


def _value(table: bytes, at: int, end: int) -> Any:
    if table[at] not in _NESTED:
        return decode.embedded_value(table[at:end])[1]
    return (_table if table[at] == _TABLE else _array)(table, at + 5, end)


def _malformed() -> Refusal:
    return Refusal(Code.SYNTAX_ERROR, "the field table is malformed")


def to_json(value: Any) -> Any:
    """A value of a table as JSON. A type that JSON lacks becomes an object with one key, beginning with ``$``."""
    if isinstance(value, dict):
        return {("$" + key if key.startswith("$") else key): to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return {"$bytearray" if isinstance(value, bytearray) else "$bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime.datetime):
        return {"$time": value.timestamp()}
    if isinstance(value, float):
        return {"$float": value.hex()}
    return value


_FROM_JSON: Final[Mapping[str, Any]] = {
    "$bytes": base64.b64decode,
    "$bytearray": lambda text: bytearray(base64.b64decode(text)),
    "$decimal": Decimal,
    "$time": lambda seconds: datetime.datetime.fromtimestamp(seconds, datetime.UTC),
    "$float": float.fromhex,
}


def from_json(value: Any) -> Any:
    """The value that :func:`to_json` converted."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    [key] = value if len(value) == 1 else [""]
    if key in _FROM_JSON:
        return _FROM_JSON[key](value[key])
    return {name.removeprefix("$"): from_json(item) for name, item in value.items()}
