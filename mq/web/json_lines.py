"""Objects as their bytes come: JSON Lines, and the elements of one JSON array, each of which is read as a line.

A long line is never in memory as a whole: its body is read piece by piece. Read in one go, a line of 64 MiB would take
ten times as much memory, and hold up all other tasks.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from collections.abc import Callable
from enum import Enum
from functools import partial
from io import BytesIO
from typing import Any, Final, Protocol

from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.web.request_body import parse_object

LONG_LINE: Final = 128 * 1024
"""Bytes of the longest line that is read in one go."""
LARGEST_REST: Final = 256 * 1024
"""Bytes of a line beside its body."""

_STRING: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BEFORE_BODY: Final = re.compile(rb'[{,]\s*"(body|base64)"\s*:\s*\Z')
_BEFORE_BYTES: Final = 128
"""Where a key that stands before a body is looked for: one with more blanks is not found, and its line too long."""
_WHOLE: Final = re.compile(r"[^\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^\\]*)*", re.DOTALL)
_HIGH: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_ESCAPE: Final = 6
"""Characters of an escape."""

_decode: Final = json.JSONDecoder().decode


class Lines:
    """Cuts what comes into lines, and reads them.

    Args:
        take: gets each line that is not empty: what a JSON object has, or why it is none. The body of a long line is
            there as its bytes.
    """

    def __init__(self, take: Callable[[dict[str, Any] | MQError], None]) -> None:
        self._take = take
        self._held = bytearray()
        self._long: _LongLine | MQError | None = None

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        first, *others = data.split(b"\n")
        self._add(first)
        if not others:
            return
        self._end_line()
        *whole, begun = others
        for line in whole:
            if len(line) <= LONG_LINE:
                self._take_line(line)
            else:
                self._add(line)
                self._end_line()
        self._add(begun)

    def end(self) -> None:
        """No more will come."""
        self._end_line()

    def _add(self, data: bytes) -> None:
        """More of a line."""
        if self._long is None:
            self._held += data
            if len(self._held) <= LONG_LINE:
                return
            self._long, data = _LongLine(), bytes(self._held)
            self._held.clear()
        if isinstance(self._long, _LongLine):
            try:
                self._long.feed(data)
            except MQError as error:
                self._long = error  # and what comes of this line is dropped

    def _end_line(self) -> None:
        long, self._long = self._long, None
        if long is None:
            line = bytes(self._held)
            self._held.clear()
            self._take_line(line)
        elif isinstance(long, MQError):
            self._take(long)
        else:
            self._take_read(long.end)

    def _take_line(self, line: bytes) -> None:
        if line and not line.isspace():
            self._take_read(partial(parse_object, line))

    def _take_read(self, read: Callable[[], dict[str, Any]]) -> None:
        try:
            value: dict[str, Any] | MQError = read()
        except MQError as error:
            value = error
        self._take(value)


class _Mode(Enum):
    """Where in a long line its next byte is."""

    OUTSIDE = "outside"
    """Between strings."""
    STRING = "string"
    BODY = "body"


class _LongLine:
    """One line. What is beside its body is gathered, with an empty text where the body was, and read as JSON at the
    end."""

    def __init__(self) -> None:
        self._mode = _Mode.OUTSIDE
        self._rest = bytearray()
        self._depth = 0
        self._carried = b""
        self._name = ""
        self._text = _Text(_Utf8())

    def feed(self, data: bytes) -> None:
        """The next bytes of it.

        Raises:
            InvalidRequest: it is not JSON.
            BatchTooLarge: too much is beside its body.
        """
        if self._carried:
            data, self._carried = self._carried + data, b""
        at = 0
        while at < len(data):
            at = self._find_string(data, at) if self._mode is _Mode.OUTSIDE else self._find_end(data, at)
            if len(self._rest) > LARGEST_REST:
                raise BatchTooLarge(f"a line must not exceed {LARGEST_REST} bytes, not counting the message body")

    def end(self) -> dict[str, Any]:
        """The whole line: its members, the body as bytes.

        Raises:
            InvalidRequest: it is not a JSON object, or its body is there twice.
        """
        if self._mode is not _Mode.OUTSIDE:
            raise InvalidRequest("invalid JSON")
        value = parse_object(bytes(self._rest))
        if self._name:
            if value.get(self._name) != "":
                raise InvalidRequest(f'the key "{self._name}" occurs twice')
            value[self._name] = self._text.end()
        return value

    def _find_string(self, data: bytes, at: int) -> int:
        found = data.find(b'"', at)
        outside = data[at:] if found < 0 else data[at:found]
        count = outside.count
        self._depth += count(b"{") + count(b"[") - count(b"}") - count(b"]")
        self._rest += outside
        if found < 0:
            return len(data)
        key = _BEFORE_BODY.search(self._rest[-_BEFORE_BYTES:]) if self._depth == 1 and not self._name else None
        self._rest += b'"'
        if key is None:
            self._mode = _Mode.STRING
        else:
            self._mode, self._name = _Mode.BODY, key[1].decode()
            self._text = _Text(_Utf8() if self._name == "body" else _Base64())
        return found + 1

    def _find_end(self, data: bytes, at: int) -> int:
        """The end of the string, or of what there is of it."""
        matched = _STRING.match(data, at)
        assert matched is not None  # it matches nothing, too
        end = matched.end()
        piece = data[at:end] if at or end < len(data) else data
        has_ended = data[end : end + 1] == b'"'
        if self._mode is _Mode.BODY:
            self._text.feed(piece, is_last=has_ended)
        else:
            self._rest += piece
        if has_ended:
            self._rest += b'"'
            self._mode = _Mode.OUTSIDE
            return end + 1
        self._carried = data[end:]  # a backslash, if anything
        return len(data)


class _Bytes(Protocol):
    """What a body's text stands for."""

    def take(self, text: str) -> None:
        """More of the text."""

    def end(self) -> bytes:
        """All of the bytes."""


class _Text:
    """A JSON string's characters, as the bytes between its quotes come."""

    def __init__(self, out: _Bytes) -> None:
        self._out = out
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        self._left = ""

    def feed(self, data: bytes, *, is_last: bool) -> None:
        try:
            text = self._left + self._decoder.decode(data, is_last)
            end = len(text) if is_last else _end_of_whole(text)
            self._left = text[end:]
            self._out.take(_decode(f'"{text[:end]}"'))
        except ValueError:
            raise InvalidRequest("invalid JSON") from None

    def end(self) -> bytes:
        return self._out.end()


def _end_of_whole(text: str) -> int:
    """Where a string may be cut: not within an escape, nor between the two of a pair."""
    if "\\" not in text:
        return len(text)
    matched = _WHOLE.match(text)
    assert matched is not None  # it matches nothing, too
    end = matched.end()
    if len(text) - end >= _ESCAPE:  # which is none, then
        return len(text)
    if _HIGH.search(text, max(0, end - _ESCAPE), end):
        before = text[: end - _ESCAPE]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return end - _ESCAPE
    return end


class _Utf8:
    """A text's own bytes, in UTF-8. They are gathered where they can be had without a copy."""

    def __init__(self) -> None:
        self._out = BytesIO()

    def take(self, text: str) -> None:
        self._out.write(text.encode("utf-8", "surrogatepass"))

    def end(self) -> bytes:
        return self._out.getvalue()


class _Base64:
    """The bytes that a text in base64 stands for."""

    def __init__(self) -> None:
        self._out = BytesIO()
        self._left = ""
        self._is_padded = False

    def take(self, text: str) -> None:
        text = self._left + text
        end = len(text) & ~3
        piece, self._left = text[:end], text[end:]
        if piece:
            self._write(piece)

    def end(self) -> bytes:
        if self._left:
            self._write(self._left)
        return self._out.getvalue()

    def _write(self, text: str) -> None:
        try:
            if self._is_padded:
                raise ValueError
            self._out.write(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            raise InvalidRequest('"base64" must be valid base64') from None
        self._is_padded = text.endswith("=")


_MARK: Final = re.compile(rb'["\[\]{},]')
_BLANK: Final = bytes.maketrans(b"\r\n", b"  ")
_BROKEN: Final = bytes.maketrans(b"\r\n", b"\x01\x01")
"""A string with a line end in it is not JSON. It must stay one line, to be refused as one."""


class Array:
    """Cuts what comes into the elements of an array, and reads them.

    Args:
        take: as of :class:`~mq.web.json_lines.Lines`.
    """

    def __init__(self, take: Callable[[dict[str, Any] | MQError], None]) -> None:
        self._lines = Lines(take)
        self._depth = 0
        self._is_string = False
        self._is_over = False
        self._is_empty = True  # nothing of the element that is to come
        self._is_first = True
        self._carried = b""

    def feed(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            InvalidRequest: they are not those of an array.
        """
        if self._carried:
            data, self._carried = self._carried + data, b""
        out = bytearray()
        at = 0
        while at < len(data):
            at = self._in_string(data, at, out) if self._is_string else self._outside(data, at, out)
        self._lines.feed(bytes(out))

    def end(self) -> None:
        """No more will come.

        Raises:
            InvalidRequest: the array has no end.
        """
        if not self._is_over:
            raise InvalidRequest("the request body is not a complete JSON array")
        self._lines.end()

    def _in_string(self, data: bytes, at: int, out: bytearray) -> int:
        matched = _STRING.match(data, at)
        assert matched is not None  # it matches nothing, too
        end = matched.end()
        out += data[at:end].translate(_BROKEN)
        if data[end : end + 1] == b'"':
            out += b'"'
            self._is_string = False
            return end + 1
        self._carried = data[end:]  # a backslash, if anything
        return len(data)

    def _outside(self, data: bytes, at: int, out: bytearray) -> int:
        found = _MARK.search(data, at)
        end = len(data) if found is None else found.start()
        self._add(data[at:end], out)
        if found is None:
            return end
        mark = found[0]
        if self._depth > 1 or (self._depth == 1 and mark in b'"[{'):
            self._add(mark, out)
            self._is_string = mark == b'"'
            self._depth += (mark in b"[{") - (mark in b"]}")
        elif self._depth == 1 and mark == b",":
            self._end_element(out)
        elif self._depth == 1 and mark == b"]":
            if not (self._is_empty and self._is_first):
                self._end_element(out)
            self._depth, self._is_over = 0, True
        elif self._depth == 0 and mark == b"[" and not self._is_over:
            self._depth = 1
        else:
            raise InvalidRequest("a batch sent as application/json must be an array of objects")
        return end + 1

    def _add(self, data: bytes, out: bytearray) -> None:
        if not data or data.isspace():
            return
        if self._depth == 0:
            raise InvalidRequest("a batch sent as application/json must be an array of objects")
        self._is_empty = False
        out += data.translate(_BLANK)

    def _end_element(self, out: bytearray) -> None:
        if self._is_empty:
            raise InvalidRequest("invalid JSON: there is an extra comma")
        out += b"\n"
        self._is_empty, self._is_first = True, False
