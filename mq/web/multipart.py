"""multipart/mixed (RFC 2046, section 5.1): parts with headers and bytes as they are. It knows nothing of messages."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from python_multipart.exceptions import ParseError
from python_multipart.multipart import MultipartParser

from mq.errors import BatchTooLarge, InvalidRequest

MOST_HEADERS: Final = 128
"""Of a part."""
LONGEST_HEADER_BYTES: Final = 32 * 1024
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]", re.ASCII)

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of what is answered with 400 anyway


class Part:
    """One part.

    Attributes:
        headers: by name in small letters, values in Latin-1; those that are there twice joined by commas.
        body: its bytes.
    """

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.name = bytearray()
        self.value = bytearray()

    def end_header(self) -> None:
        """Its name and its value are whole."""
        name, value = self.name.decode("latin-1").lower(), self.value.decode("latin-1").strip(" \t")
        self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.name.clear()
        self.value.clear()


def read_parts(boundary: str, body: bytes, most: int) -> list[Part]:
    """The parts of a multipart body. What stands before the first and after the last one does not count.

    Args:
        boundary: that stands between them.
        body: all of it.
        most: how many parts there may be.

    Raises:
        InvalidRequest: it is not one, or not whole.
        BatchTooLarge: it has too many parts.
    """
    if _BOUNDARY.fullmatch(boundary) is None:
        raise InvalidRequest("multipart/mixed needs a boundary of 1 to 70 characters in Content-Type")
    parts: list[Part] = []
    is_whole = False

    def begin() -> None:
        if len(parts) == most:
            raise BatchTooLarge(f"the batch has more than {most} entries: send it in parts")
        parts.append(Part())

    def end() -> None:
        nonlocal is_whole
        is_whole = True

    def adds(place: str) -> Callable[[bytes, int, int], None]:
        return lambda data, start, stop: getattr(parts[-1], place).extend(data[start:stop])

    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": begin,
            "on_header_field": adds("name"),
            "on_header_value": adds("value"),
            "on_header_end": lambda: parts[-1].end_header(),
            "on_part_data": adds("body"),
            "on_end": end,
        },
        max_header_count=MOST_HEADERS,
        max_header_size=LONGEST_HEADER_BYTES,
    )
    try:
        parser.write(body[_first(boundary.encode("ascii"), body) :])
        parser.finalize()
    except ParseError as error:
        raise InvalidRequest(f"this is not well-formed multipart: {error}") from None
    if not is_whole:
        raise InvalidRequest("the multipart body has no end: its last boundary is missing")
    return parts


def write_parts(boundary: str, parts: Iterable[tuple[Sequence[tuple[str, str]], bytes]]) -> bytes:
    """A multipart body of headers and bytes. The boundary must stand in none of them."""
    out = bytearray()
    for headers, body in parts:
        out += f"--{boundary}\r\n".encode("ascii")
        out += b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
        out += b"\r\n" + body + b"\r\n"
    return bytes(out + f"--{boundary}--\r\n".encode("ascii"))


def _first(boundary: bytes, body: bytes) -> int:
    """Where the first boundary stands; the parser knows of no text before it."""
    if body.startswith(b"--" + boundary):
        return 0
    return max(body.find(b"\r\n--" + boundary), 0)
