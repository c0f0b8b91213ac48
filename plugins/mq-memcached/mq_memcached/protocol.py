"""Memcached's text protocol, the classic part of it that every compatible server speaks. No I/O here.

A command knows its bytes and what its reply looks like; :class:`Replies` cuts what a server sends into replies.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

KEYS_AT_ONCE: Final = 100
"""How many keys stand in one line that asks for values."""

STORED: Final = b"STORED"
DELETED: Final = b"DELETED"
NOT_FOUND: Final = b"NOT_FOUND"
NO_ROOM: Final = b"SERVER_ERROR"
"""The beginning of a reply when the server has no memory left, or cannot take an item of that size."""

NEVER: Final = 0
"""The expiry of what stays."""
AT_ONCE: Final = -1
"""The expiry of what is gone as soon as it is stored."""


class Shape(enum.Enum):
    """What a reply looks like."""

    LINE = "line"
    VALUES = "values"
    STATS = "stats"


class Command(NamedTuple):
    """One command.

    Attributes:
        data: its bytes, with the block that follows its line.
        shape: what its reply looks like.
    """

    data: bytes
    shape: Shape = Shape.LINE


class Item(NamedTuple):
    """A value that a server holds.

    Attributes:
        value: its bytes.
        version: changes with every change of the value; for :func:`swap`.
    """

    value: bytes
    version: bytes


Values = dict[bytes, Item]
Reply = bytes | Values
"""A line, or the values by key. Statistics are values, too."""


class Malformed(Exception):
    """What the server sent is not the memcached protocol."""


def get(keys: Iterable[bytes]) -> Iterator[Command]:
    """Ask for the values of `keys`: as many commands as it takes."""
    wanted = list(keys)
    for start in range(0, len(wanted), KEYS_AT_ONCE):
        yield Command(b"gets %b\r\n" % b" ".join(wanted[start : start + KEYS_AT_ONCE]), Shape.VALUES)


def add(key: bytes, value: bytes, expires: int = NEVER) -> Command:
    """STORED when the key was not there."""
    return Command(b"add %b 0 %d %d\r\n%b\r\n" % (key, expires, len(value), value))


def put(key: bytes, value: bytes, expires: int = NEVER) -> Command:
    """Store, whatever is there. When there is no room, the old value is gone, too."""
    return Command(b"set %b 0 %d %d\r\n%b\r\n" % (key, expires, len(value), value))


def swap(key: bytes, value: bytes, version: bytes, expires: int = NEVER) -> Command:
    """STORED when the key still holds that version: of many racers one wins."""
    return Command(b"cas %b 0 %d %d %b\r\n%b\r\n" % (key, expires, len(value), version, value))


def delete(key: bytes) -> Command:
    """DELETED when it was there: of many racers one wins."""
    return Command(b"delete %b\r\n" % key)


def increase(key: bytes, by: int) -> Command:
    """The new number, or NOT_FOUND."""
    return Command(b"incr %b %d\r\n" % (key, by))


def stats(kind: bytes = b"") -> Command:
    """Statistics; of a kind, such as ``" settings"``."""
    return Command(b"stats%b\r\n" % kind, Shape.STATS)


class Replies:
    """What a server sends, cut into replies."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._at = 0
        self._values: Values = {}

    def feed(self, data: bytes) -> None:
        """More has come."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self, shape: Shape) -> Reply | None:
        """The next reply; None until more has come.

        Raises:
            Malformed: that is no reply.
        """
        if shape is Shape.LINE:
            return self._line()
        return self._collected(value=shape is Shape.VALUES)

    def _line(self) -> bytes | None:
        end = self._data.find(b"\r\n", self._at)
        if end < 0:
            return None
        line = bytes(self._data[self._at : end])
        self._at = end + 2
        return line

    def _collected(self, *, value: bool) -> Reply | None:
        while True:
            start = self._at
            line = self._line()
            if line is None:
                return None
            if line == b"END":
                found, self._values = self._values, {}
                return found
            if line.startswith((NO_ROOM, b"CLIENT_ERROR", b"ERROR")):
                self._values = {}
                return line
            if not (self._value(line) if value else self._statistic(line)):
                self._at = start
                return None

    def _value(self, line: bytes) -> bool:
        try:
            _, key, _, size, version = line.split()
            end = self._at + int(size)
        except ValueError as error:
            raise Malformed(f"not a value: {line[:80]!r}") from error
        if len(self._data) < end + 2:
            return False
        self._values[key] = Item(bytes(self._data[self._at : end]), version)
        self._at = end + 2
        return True

    def _statistic(self, line: bytes) -> bool:
        word, _, rest = line.partition(b" ")
        if word != b"STAT":
            raise Malformed(f"not a statistic: {line[:80]!r}")
        name, _, text = rest.partition(b" ")
        self._values[name] = Item(text, b"")
        return True
