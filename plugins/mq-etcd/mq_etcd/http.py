"""Replies of HTTP/1.1 out of bytes: what a Go server sends, and nothing that it does not. No I/O.

The parser takes a body with a Content-Length or in chunks (trailers are passed over), and refuses anything else: a body
that ends with its connection cannot be told from one that was cut off.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LONGEST_HEAD: Final = 65_536
"""Bytes of status line and fields, of a chunk's line, and of trailers."""

_BODILESS: Final = (204, 304)


class Malformed(Exception):
    """Not a reply of HTTP/1.1, or one that was cut off; the text says which."""


class Head(NamedTuple):
    """What comes before a reply's body.

    Attributes:
        keeps_alive: whether the connection can be used again after the body.
    """

    status: int
    keeps_alive: bool


class ReplyParser:
    """Reads one reply after another: its :meth:`head`, then its :meth:`part` until that is empty."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0
        self._is_chunked = False
        self._is_first_chunk = False

    @property
    def is_idle(self) -> bool:
        """Nothing has come that was not asked for."""
        return not self._buffer

    def feed(self, data: bytes | bytearray) -> None:
        """Bytes as they came.

        Raises:
            Malformed: there are none: the server hung up.
        """
        if not data:
            raise Malformed("the connection closed in the middle of a response" if self._buffer else "no response")
        self._buffer += data

    def head(self) -> Head | None:
        """The next reply's head; None when more must come.

        Raises:
            Malformed: it is none.
        """
        while (head := self._block()) is not None:
            status_line, *fields = head.split(b"\r\n")
            version, _, rest = status_line.partition(b" ")
            if version not in (b"HTTP/1.1", b"HTTP/1.0") or not rest[:3].isdigit():
                raise Malformed(f"the response is not an HTTP/1.1 response: {bytes(status_line[:60])!r}")
            status = int(rest[:3])
            if status >= 200:
                return self._begin(status, version == b"HTTP/1.1", fields)
        return None

    def part(self) -> bytes | None:
        """More of the body, as it came; empty at its end; None when more must come.

        Raises:
            Malformed: the chunks are none.
        """
        if not self._left and self._is_chunked:
            size = self._next_chunk()
            if size is None:
                return None
            self._left = size
        if not self._left:
            return b""
        if not self._buffer:
            return None
        taken = bytes(self._buffer[: self._left])
        del self._buffer[: len(taken)]
        self._left -= len(taken)
        return taken

    def _begin(self, status: int, keeps_alive: bool, fields: list[bytes]) -> Head:
        length: int | None = 0 if status in _BODILESS else None
        self._is_chunked = False
        for field in fields:
            name, colon, value = field.partition(b":")
            name, value = name.lower(), value.strip()
            if not colon:
                raise Malformed(f"a response header has no colon: {field[:60]!r}")
            if name == b"content-length":
                length = _number(value, 10)
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked":
                    raise Malformed(f"the response has an unknown transfer encoding: {value[:60]!r}")
                self._is_chunked = self._is_first_chunk = True
            elif name == b"connection" and value.lower() == b"close":
                keeps_alive = False
        if length is None and not self._is_chunked:
            raise Malformed("the response has neither a Content-Length header nor chunked encoding")
        self._left = 0 if self._is_chunked else length or 0
        return Head(status, keeps_alive)

    def _next_chunk(self) -> int | None:
        """How long the chunk is that comes next; 0 at the end, with the trailers passed over."""
        start = 0 if self._is_first_chunk else 2
        end = self._buffer.find(b"\r\n", start)
        if end < 0:
            self._check_length()
            return None
        if self._buffer[:start] != b"\r\n"[:start]:
            raise Malformed("a response chunk is longer than its declared size")
        size = _number(bytes(self._buffer[start:end]).partition(b";")[0], 16)
        if size:
            del self._buffer[: end + 2]
            self._is_first_chunk = False
            return size
        if self._buffer.startswith(b"\r\n", end + 2):
            del self._buffer[: end + 4]
        else:
            trailers = self._buffer.find(b"\r\n\r\n", end + 2)
            if trailers < 0:
                self._check_length()
                return None
            del self._buffer[: trailers + 4]
        self._is_chunked = False
        return 0

    def _block(self) -> bytes | None:
        """What comes before the next empty line."""
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            self._check_length()
            return None
        block = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        return block

    def _check_length(self) -> None:
        if len(self._buffer) > LONGEST_HEAD:
            raise Malformed(f"the response head exceeds {LONGEST_HEAD} bytes")


def _number(digits: bytes, base: int) -> int:
    if not digits or len(digits) > 15 or digits.strip(b"0123456789abcdefABCDEF"):
        raise Malformed(f"the response has an invalid Content-Length or chunk size: {digits[:60]!r}")
    try:
        return int(digits, base)
    except ValueError as error:
        raise Malformed(f"the response has an invalid Content-Length or chunk size: {digits[:60]!r}") from error
