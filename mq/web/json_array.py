"""A batch that is one JSON array, as its bytes come: each element is read as a line of JSON Lines is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from mq.errors import InvalidRequest, MQError
from mq.web.json_lines import Lines

_MARK: Final = re.compile(rb'["\[\]{},]')
_STRING: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BLANK: Final = bytes.maketrans(b"\r\n", b"  ")
_BROKEN: Final = bytes.maketrans(b"\r\n", b"\x01\x01")
"""A string that goes on over a line is no JSON. It must not become two lines."""


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
            raise InvalidRequest("this is no JSON array, or it has no end")
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
            raise InvalidRequest("a batch in application/json is one array of objects, and nothing else")
        return end + 1

    def _add(self, data: bytes, out: bytearray) -> None:
        if not data or data.isspace():
            return
        if self._depth == 0:
            raise InvalidRequest("a batch in application/json is one array of objects, and nothing else")
        self._is_empty = False
        out += data.translate(_BLANK)

    def _end_element(self, out: bytearray) -> None:
        if self._is_empty:
            raise InvalidRequest("this is not JSON: a comma too many")
        out += b"\n"
        self._is_empty, self._is_first = True, False
