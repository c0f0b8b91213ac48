"""Field tables: read, changed without touching what is not changed, and as JSON for records.

Values are read and written by pamqp. The walk over a table's entries is ours, because pamqp gives no way
back to the very bytes.
"""

from __future__ import annotations

import base64
import datetime
import struct
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pamqp import decode, encode

from mq.amqp.errors import Code, Refused

LARGEST_TABLE: Final = 64 * 1024
"""Bytes of a table that is decoded: the cost of that grows with its square."""

DECODING_ERRORS: Final = (ValueError, TypeError, struct.error, ArithmeticError, RecursionError, OSError, LookupError)
"""What pamqp raises over bytes that make no sense: dates that no calendar has and tables nested without end, too."""

_FIXED: Final = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5, "T": 8}
_SIZES: Final = {kind.encode()[0]: size for kind, size in (*_FIXED.items(), ("V", 0), ("\0", 0))}
_COUNTED: Final = frozenset(b"SAFx")
_NESTED: Final = frozenset(b"AF")
_TABLE: Final = ord("F")


class Entry(NamedTuple):
    """One entry of a table: its key, and where it stands, key and value."""

    key: bytes
    start: int
    end: int


def entries(table: bytes) -> Iterator[Entry]:
    """The entries of a table, without what is in them.

    Args:
        table: the table with the four bytes of its length.

    Raises:
        Refused: 502; the bytes are no table.
    """
    if len(table) != 4 + int.from_bytes(table[:4]):
        raise _malformed()
    at = 4
    while at < len(table):
        start, at = at, _key_end(table, at)
        key = table[start + 1 : at]
        at = _value_end(table, at, len(table))
        yield Entry(key, start, at)


def check(table: bytes) -> None:
    """Whether everything in a table ends where what it is in says. pamqp lets what is in an array end after it.

    Raises:
        Refused: 502; it does not.
    """
    inner = [(entry.start + 1 + len(entry.key), entry.end) for entry in entries(table)]
    while inner:
        start, end = inner.pop()
        kind, at = table[start], start + 5
        while kind in _NESTED and at < end:
            place = _key_end(table, at) if kind == _TABLE else at
            at = _value_end(table, place, end)
            inner.append((place, at))


def _key_end(table: bytes, at: int) -> int:
    return at + 1 + table[at]


def _value_end(table: bytes, at: int, limit: int) -> int:
    """Where the value ends whose type stands at `at`, which has to be before `limit`."""
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
        Refused: 502; the bytes are no table.
    """
    names = {name.encode() for name in values}
    kept = b"".join(table[entry.start : entry.end] for entry in entries(table) if entry.key not in names)
    added = encode.field_table({name: value for name, value in values.items() if value is not None})
    return struct.pack(">I", len(kept) + len(added) - 4) + kept + added[4:]


def decoded(table: bytes) -> dict[str, Any]:
    """What is in a table.

    Raises:
        Refused: 502; the bytes are no table, or more than anybody decodes.
    """
    if len(table) > LARGEST_TABLE:
        raise Refused(Code.SYNTAX_ERROR, f"a table of {len(table)} bytes is too large to look into")
    check(table)
    try:
        _, values = decode.field_table(table)
    except DECODING_ERRORS as error:
        raise _malformed() from error
    return values if isinstance(values, dict) else {}


def _malformed() -> Refused:
    return Refused(Code.SYNTAX_ERROR, "malformed field table")


def to_json(value: Any) -> Any:
    """A value of a table as JSON. What JSON has no type for is an object with one key that begins with ``$``."""
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
    """What :func:`to_json` made JSON of."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    [key] = value if len(value) == 1 else [""]
    if key in _FROM_JSON:
        return _FROM_JSON[key](value[key])
    return {name.removeprefix("$"): from_json(item) for name, item in value.items()}
