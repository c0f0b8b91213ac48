"""Bodies of messages that were published a moment ago, which are handed out without a look at the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.message import BytesBody, MessageId, Properties, checksum
from mq.storage.interface import Stored

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all recent bodies together."""
OVERHEAD: Final = 1024
"""Bytes that a message counts besides its body: about what its id and its attributes take."""
LARGEST_BODY: Final = 1 << 16
"""Bytes of the longest body that is kept. A longer one is read from the store."""


class RecentBodies:
    """A cache of bodies by message id, each read once at the most; the oldest make room.

    Args:
        most_bytes: its size, with :data:`OVERHEAD` for each message; 0 where others change messages, too.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[MessageId, _RecentBody] = OrderedDict()
        self._bytes = 0

    def keep(self, id: MessageId, body: bytes, attributes: Mapping[str, Any]) -> None:
        """Keep the body of a message that was stored, unless it is long."""
        if len(body) > min(LARGEST_BODY, self._most_bytes):
            return
        if id in self._kept:
            self._let_go(id)
        self._kept[id] = _RecentBody(body, attributes)
        self._bytes += len(body) + OVERHEAD
        while self._bytes > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def __contains__(self, id: MessageId) -> bool:
        return id in self._kept

    def take(self, id: MessageId) -> Stored | None:
        """Return what reading the message would, and forget it; None when it is not kept."""
        if id not in self._kept:
            return None
        body, attributes = self._let_go(id)
        return Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))

    def _let_go(self, id: MessageId) -> _RecentBody:
        kept = self._kept.pop(id)
        self._bytes -= len(kept.body) + OVERHEAD
        return kept


class _RecentBody(NamedTuple):
    body: bytes
    attributes: Mapping[str, Any]
