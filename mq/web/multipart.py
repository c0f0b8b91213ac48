"""multipart/mixed (RFC 2046, section 5.1): parts with headers and bytes as they are. It knows nothing of messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Final

from python_multipart.exceptions import ParseError
from python_multipart.multipart import MultipartParser

from mq.errors import InvalidRequest

MOST_HEADERS: Final = 128
"""Of a part."""
LONGEST_HEADER_BYTES: Final = 32 * 1024
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]", re.ASCII)

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of what is answered with 400 anyway


class Part:
    """One part.

    Attributes:
        headers: by name in small letters, values in Latin-1; repeated ones joined by commas.
    """

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.name = bytearray()
        self.value = bytearray()
        self._body = BytesIO()

    @property
    def body(self) -> bytes:
        """Its bytes. They are gathered where they can be had without a copy."""
        return self._body.getvalue()

    def add(self, data: bytes, start: int, stop: int) -> None:
        """More of its body."""
        self._body.write(memoryview(data)[start:stop])

    def end_header(self) -> None:
        """Its name and its value are whole."""
        name, value = self.name.decode("latin-1").lower(), self.value.decode("latin-1").strip(" \t")
        self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.name.clear()
        self.value.clear()


class Parts:
    """Cuts a multipart body into its parts as it arrives. Bytes before the first part and after the last are ignored.

    Raises:
        InvalidRequest: there can be no such boundary.
    """

    def __init__(self, boundary: str, take: Callable[[Part], None]) -> None:
        if _BOUNDARY.fullmatch(boundary) is None:
            raise InvalidRequest("multipart/mixed requires a boundary of 1 to 70 characters in Content-Type")
        self._take = take
        self._part = Part()
        self._is_whole = False
        self._preamble: bytes | None = b"\r\n"  # the first boundary may be the first line
        self._first = b"\r\n--" + boundary.encode("ascii")
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, stop: self._part.name.extend(data[start:stop]),
                "on_header_value": lambda data, start, stop: self._part.value.extend(data[start:stop]),
                "on_header_end": lambda: self._part.end_header(),
                "on_part_data": lambda data, start, stop: self._part.add(data, start, stop),
                "on_part_end": lambda: self._take(self._part),
                "on_end": self._end,
            },
            max_header_count=MOST_HEADERS,
            max_header_size=LONGEST_HEADER_BYTES,
        )

    def feed(self, data: bytes) -> None:
        """The next bytes.

        Raises:
            InvalidRequest: this is no multipart body.
        """
        if self._preamble is not None:  # the parser knows of no text before the first boundary
            data = self._preamble + data
            found = data.find(self._first)
            if found < 0:
                self._preamble = data[-len(self._first) :]
                return
            data, self._preamble = data[found + 2 :], None
        self._parse(data)

    def end(self) -> None:
        """No more will come.

        Raises:
            InvalidRequest: it is not whole.
        """
        if self._preamble is not None:
            self._parse(self._preamble.removeprefix(b"\r\n"))
        try:
            self._parser.finalize()
        except ParseError as error:
            raise _not_well_formed(error) from None
        if not self._is_whole:
            raise InvalidRequest("the multipart body is incomplete: its closing boundary is missing")

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except ParseError as error:
            raise _not_well_formed(error) from None

    def _begin(self) -> None:
        self._part = Part()

    def _end(self) -> None:
        self._is_whole = True


def _not_well_formed(error: ParseError) -> InvalidRequest:
    return InvalidRequest(f"the multipart body is malformed: {error}")


def begin_part(boundary: str, headers: Iterable[tuple[str, str]]) -> bytes:
    """What stands before the body of a part; behind it comes a CR LF. The boundary must stand in none of them."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"--{boundary}\r\n{lines}\r\n".encode("latin-1")


def end_parts(boundary: str) -> bytes:
    """What stands behind the last part."""
    return f"--{boundary}--\r\n".encode("ascii")
