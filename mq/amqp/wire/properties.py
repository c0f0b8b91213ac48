"""The properties of a message, kept as the bytes that came and decoded one by one where needed.

A consumer gets what the publisher sent, byte for byte. The properties' order, types and flags: AMQP 0-9-1, section
4.2.6.1.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from functools import _lru_cache_wrapper
from typing import Any, Final, TypeVar

from mq.amqp.wire import tables
from mq.amqp.wire.errors import Code, Refusal

PERSISTENT: Final = 2
"""The delivery mode of a message that must last."""
LONGEST_EXPIRATION_MS: Final = 315_576_000_000
"""Ten years, as for every other time to live."""

MOST_COPIES: Final = 256
"""Routing keys in ``CC`` and ``BCC`` together. Each costs as much as a publish, and is not confirmed for itself."""

LONGEST_REMEMBERED: Final = 2048
"""Bytes of properties for which :func:`remembered` results are kept."""

_SHORT: Final = 0
_TABLE: Final = -1
_LAYOUT: Final = (
    ("content_type", _SHORT),
    ("content_encoding", _SHORT),
    ("headers", _TABLE),
    ("delivery_mode", 1),
    ("priority", 1),
    ("correlation_id", _SHORT),
    ("reply_to", _SHORT),
    ("expiration", _SHORT),
    ("message_id", _SHORT),
    ("timestamp", 8),
    ("type", _SHORT),
    ("user_id", _SHORT),
    ("app_id", _SHORT),
    ("cluster_id", _SHORT),
)
"""In the order of the flags, from the highest bit on, each with its size in bytes or the kind of its length."""
_UNKNOWN_FLAGS: Final = 0b11
_CHECKED: Final = frozenset({"headers", "reply_to", "expiration", "user_id"})
"""Properties that the server looks at as a message is published, apart from the delivery mode and the priority."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_EMPTY_TABLE: Final = b"\0\0\0\0"


T = TypeVar("T")


def remembered(function: _lru_cache_wrapper[T], raw: bytes | str) -> Callable[..., T]:
    """Return the cached function for short properties, and for long ones the function without its cache: caches full
    of properties of 128 KiB would take a hundred MiB, and never give them back.
    """
    return function if len(raw) <= LONGEST_REMEMBERED else function.__wrapped__


class BasicProperties:
    """The properties of one message.

    Args:
        raw: the flags and the properties, as in a content header.

    Attributes:
        raw: as given.
        is_plain: whether a publish has nothing to check: no headers, no reply-to, no expiration, no user.
        is_persistent: whether the message must last, if its queue does.
        priority: from 0, the default, to 255.

    Raises:
        Refusal: 502; the lengths do not add up, or unknown flags are set.
    """

    __slots__ = ("_decoded", "_spans", "is_persistent", "is_plain", "priority", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._spans = spans = _spans(raw)
        self._decoded: dict[str, Any] | None = None
        self.is_plain = _CHECKED.isdisjoint(spans)
        self.is_persistent = "delivery_mode" in spans and raw[spans["delivery_mode"][0]] == PERSISTENT
        self.priority = raw[spans["priority"][0]] if "priority" in spans else 0

    @property
    def expiration_ms(self) -> int | None:
        """Milliseconds after which the message expires.

        Raises:
            Refusal: 406; the text is not a number, or too large.
        """
        if "expiration" not in self._spans:
            return None
        text = self.text("expiration")
        if not _NUMBER.fullmatch(text) or int(text) > LONGEST_EXPIRATION_MS:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"invalid expiration '{text}'. Use a number of milliseconds (at most ten years)",
            )
        return int(text)

    def text(self, name: str) -> str:
        """A property that is a short string; empty where there is none. What is not UTF-8 in it is replaced."""
        start, end = self._spans.get(name, (0, 1))
        return self.raw[start + 1 : end].decode("utf-8", "replace")

    @property
    def has_headers(self) -> bool:
        """Whether there is a table of headers, which may be empty."""
        return "headers" in self._spans

    def headers(self) -> Mapping[str, Any]:
        """The table of headers. It is decoded once: do not change it.

        Raises:
            Refusal: 502; it is malformed.
        """
        if self._decoded is None:
            self._decoded = tables.decoded(self._headers)
        return self._decoded

    def copied_to(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """More routing keys of the message: those in the header ``CC``, and those in ``BCC``, which no consumer may
        see.

        Raises:
            Refusal: 502, the table of headers is malformed; 406, one of the two is no list, or they are too many.
        """
        # Looked for in the bytes first: most messages have neither, and decoding takes time.
        if not self.has_headers or (b"\x02CC" not in self._headers and b"\x03BCC" not in self._headers):
            return (), ()
        headers = self.headers()
        shown, hidden = (_keys(name, headers.get(name, [])) for name in ("CC", "BCC"))
        if len(shown) + len(hidden) > MOST_COPIES:
            raise Refusal(
                Code.PRECONDITION_FAILED,
                f"the headers CC and BCC together contain more than {MOST_COPIES} routing keys",
            )
        return shown, hidden

    def changed(self, headers: Mapping[str, Any], without: frozenset[str] = frozenset()) -> BasicProperties:
        """These properties with some headers changed, None for "take it out", and without some properties.

        Raises:
            Refusal: 502; the table of headers is malformed.
        """
        parts = {name: self.raw[start:end] for name, (start, end) in self._spans.items() if name not in without}
        if not headers:
            return _joined(parts)
        parts["headers"] = tables.changed(self._headers, headers)
        joined = _joined(parts)
        if self._decoded is not None:
            kept = {name: value for name, value in self._decoded.items() if name not in headers}
            joined._decoded = kept | {name: value for name, value in headers.items() if value is not None}
        return joined

    def with_more(
        self, entries: bytes, values: Mapping[str, Any], without: frozenset[str] = frozenset()
    ) -> BasicProperties:
        """These properties with more headers, and without some properties.

        Args:
            entries: the headers as a table has them, without its length. None of them is there yet.

        Raises:
            Refusal: 502; the table of headers is malformed.
        """
        known = self.headers()
        parts = {name: self.raw[start:end] for name, (start, end) in self._spans.items() if name not in without}
        headers = self._headers[4:] + entries
        parts["headers"] = struct.pack(">I", len(headers)) + headers
        joined = _joined(parts)
        joined._decoded = {**known, **values}
        return joined

    def replying_to(self, queue: str) -> BasicProperties:
        """These properties with another ``reply-to``."""
        parts = {name: self.raw[start:end] for name, (start, end) in self._spans.items()}
        written = queue.encode()
        return _joined({**parts, "reply_to": bytes([len(written)]) + written})

    @property
    def _headers(self) -> bytes:
        start, end = self._spans.get("headers", (0, 0))
        return self.raw[start:end] or _EMPTY_TABLE


def _keys(name: str, listed: Any) -> tuple[str, ...]:
    if not isinstance(listed, list):
        raise Refusal(Code.PRECONDITION_FAILED, f"invalid message: the header {name} must be a list of routing keys")
    return tuple(key for key in listed if isinstance(key, str))


def _joined(parts: Mapping[str, bytes]) -> BasicProperties:
    """Properties from each one's bytes."""
    flags, written = 0, []
    for place, (name, _) in enumerate(_LAYOUT):
        if name in parts:
            flags |= 0x8000 >> place
            written.append(parts[name])
    return BasicProperties(struct.pack(">H", flags) + b"".join(written))


def _spans(raw: bytes) -> dict[str, tuple[int, int]]:
    """The start and end of each property that is present."""
    flags = int.from_bytes(raw[:2])
    if len(raw) < 2 or flags & _UNKNOWN_FLAGS:
        raise Refusal(Code.SYNTAX_ERROR, "the property flags are malformed")
    spans, at = {}, 2
    for place, (name, size) in enumerate(_LAYOUT):
        if flags & (0x8000 >> place):
            start = at
            at += size or 1 + int.from_bytes(raw[at : at + 1])
            if size == _TABLE:
                at = start + 4 + int.from_bytes(raw[start : start + 4])
            spans[name] = (start, at)
    if at != len(raw):
        raise Refusal(Code.SYNTAX_ERROR, "the length of the properties does not match the size of the content header")
    return spans


NONE: Final = BasicProperties(b"\0\0")
"""No properties at all."""
