"""The heads of plain HTTP/1.1 requests.

Plain is what nearly every client sends nearly always. Whatever else HTTP/1.1 has (codings, upgrades, expectations, a
header that is there twice) is somebody else's to understand or to refuse, so this page can be strict without a word:
one expression says what is plain, and what fits it can be read in one way only.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple

LONGEST_REMEMBERED: Final = 1024
"""Heads up to so many bytes are remembered: a client's next request mostly begins like its last one."""
_REMEMBERED: Final = 512

_ODD: Final = frozenset({"transfer-encoding", "upgrade", "expect", "http2-settings", "te", "trailer"})
_LENGTH: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_PLAIN: Final = re.compile(
    rb"(?:GET|HEAD|POST|PUT|PATCH|DELETE) /[\x21-\x7e]* HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*\r\n)+\r\n"
)
"""RFC 9112, sections 3 and 5, without what is optional or obsolete there."""


class Head(NamedTuple):
    """A request's line and headers.

    Attributes:
        method: in capitals.
        path: as it came, without the query.
        query: what followed the question mark.
        headers: by name in small letters. Not to be changed: it may be another request's, too.
        content_length: of the body; None without one.
        is_last: the client wants the connection to end with it.
    """

    method: str
    path: bytes
    query: bytes
    headers: dict[str, str]
    content_length: int | None
    is_last: bool


def parse_head(head: bytes) -> Head | None:
    """A whole head, up to and with its empty line; None when it is not plain."""
    return _recall(head) if len(head) <= LONGEST_REMEMBERED else _parse(head)


def _parse(head: bytes) -> Head | None:
    if _PLAIN.fullmatch(head) is None:
        return None
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ")
    headers: dict[str, str] = {}
    for each in lines:
        name, _, value = each.partition(":")
        headers[name.lower()] = value.strip(" \t")
    length, connection = headers.get("content-length"), headers.get("connection", "").lower()
    if (
        len(headers) != len(lines)
        or "host" not in headers
        or not _ODD.isdisjoint(headers)
        or connection not in ("", "keep-alive", "close")
        or (length is not None and _LENGTH.fullmatch(length) is None)
    ):
        return None
    path, _, query = target.encode("latin-1").partition(b"?")
    return Head(method, path, query, headers, None if length is None else int(length), connection == "close")


_recall = lru_cache(_REMEMBERED)(_parse)
