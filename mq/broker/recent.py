"""The bodies of messages that were published a moment ago, so that who consumes as fast as others publish needs nothing
read back.

What is here is what was stored: a body never changes. It is given once; what leaves its queue otherwise stays until
newer ones need its room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mq.message import BytesBody, MessageId, Properties, checksum
from mq.storage.interface import Stored

MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all bodies together."""
OVERHEAD: Final = 1024
"""Bytes that a message is counted as besides its body, about what its id and its attributes take."""


class _Kept(NamedTuple):
    body: bytes
    attributes: Mapping[str, Any]


class Recent:
    """Bodies by id; the oldest make room.

    Args:
        most_bytes: how many may be kept, with :data:`OVERHEAD` for each message.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[MessageId, _Kept] = OrderedDict()
        self._bytes = 0

    def keep(self, id: MessageId, body: bytes, attributes: Mapping[str, Any]) -> None:
        """A message was stored."""
        self._kept[id] = _Kept(body, attributes)
        self._bytes += len(body) + OVERHEAD
        while self._bytes > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def __contains__(self, id: MessageId) -> bool:
        return id in self._kept

    def take(self, id: MessageId) -> Stored | None:
        """What reading the message would give; None when that is not known, or not any more."""
        if id not in self._kept:
            return None
        body, attributes = self._let_go(id)
        return Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))

    def _let_go(self, id: MessageId) -> _Kept:
        kept = self._kept.pop(id)
        self._bytes -= len(kept.body) + OVERHEAD
        return kept
