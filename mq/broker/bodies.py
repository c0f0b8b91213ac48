"""Bodies: their sizes and digests, where a queue's settings need them, and those that are still in memory.

The stats come from the messages themselves, so they cannot disagree with them: loaded when first needed
(:mod:`mq.broker.body_loader`), kept up to date from then on. A body that was published a moment ago is handed out
without a look at the store.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import trio

from mq.message import BytesBody, Message, MessageId, Properties, checksum, length_of
from mq.storage.interface import Stored


class _Known(NamedTuple):
    size: int
    digest: bytes | None


class BodyStats:
    """The sizes and digests of one queue's bodies.

    Attributes:
        unread: messages whose bodies are not loaded yet; a dictionary, whose order is the same in every run.
        total: bytes of the loaded bodies, without those of messages that are leaving.
        is_listed: whether every message of the queue is known or unread.
    """

    def __init__(self, ids: Iterable[MessageId], *, is_listed: bool = True) -> None:
        self.is_listed = is_listed
        self.unread = dict.fromkeys(ids)
        self.total = 0
        self._known: dict[MessageId, _Known] = {}
        self._leaving: set[MessageId] = set()
        self._ids: dict[bytes, MessageId] = {}

    def let_go(self, most: int) -> bool:
        """Forget up to so many bodies, when they are asked for no more. Whether any are left."""
        for known in (self.unread, self._known, self._ids):
            for _ in range(min(most, len(known))):
                known.popitem()
        return bool(self.unread or self._known or self._ids)

    def find(self, digest: bytes) -> MessageId | None:
        """The message whose body has this digest; None without one."""
        return self._ids.get(digest)

    def add(self, id: MessageId, size: int, digest: bytes | None) -> None:
        """Add the body of a message. A digest of None equals no other."""
        self.unread.pop(id, None)
        if id not in self._known:
            self._known[id] = _Known(size, digest)
            self.total += size
            if digest is not None:
                self._ids.setdefault(digest, id)

    def arrived(self, id: MessageId) -> None:
        """Note that a message is in the queue: new there, there already, or back after it could not leave."""
        if id in self._leaving:
            self._leaving.discard(id)
            self.total += self._known[id].size
        elif id not in self._known:
            self.unread[id] = None

    def leaving(self, id: MessageId) -> None:
        """Note that a message is leaving the queue: its bytes do not count any more, its digest still does."""
        if id in self._known and id not in self._leaving:
            self._leaving.add(id)
            self.total -= self._known[id].size

    def left(self, id: MessageId) -> None:
        """Note that a message has left the queue."""
        self.leaving(id)
        self._leaving.discard(id)
        self.unread.pop(id, None)
        known = self._known.pop(id, None)
        if known is not None and known.digest is not None and self._ids.get(known.digest) == id:
            del self._ids[known.digest]


def digest_of(data: bytes) -> bytes:
    """The digest by which bodies are compared: SHA-256."""
    return hashlib.sha256(data).digest()


async def close(messages: Sequence[Message]) -> None:
    """Close the messages' bodies, also when cancelled."""
    with trio.CancelScope(shield=True):
        for message in messages:
            await message.body.aclose()


MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all recent bodies together."""
OVERHEAD: Final = 1024
"""Bytes that a message counts besides its body: about what its id and its attributes take, if these are short."""
SHORT_ATTRIBUTES: Final = 512
"""Characters of attributes that are short. Longer ones count for themselves, and twice: as texts and encoded."""
LARGEST_BODY: Final = 1 << 16
"""Bytes of the longest body that is kept. A longer one is read from the store."""


class RecentBodies:
    """A cache of bodies by message id, each read once at the most; the oldest make room.

    Args:
        most_bytes: its size, with :data:`OVERHEAD` for each message; 0 where others change messages, too.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._longest = min(LARGEST_BODY, most_bytes)
        self._kept: OrderedDict[MessageId, tuple[bytes, Mapping[str, Any], int]] = OrderedDict()
        self._bytes = 0

    def keep(self, id: MessageId, body: bytes, attributes: Mapping[str, Any]) -> None:
        """Keep the body of a message that was stored, unless it is long, or its attributes are."""
        size = len(body) + OVERHEAD
        if attributes and (length := length_of(attributes)) > SHORT_ATTRIBUTES:
            size += 2 * length
        if size - OVERHEAD > self._longest:
            return
        if id in self._kept:
            self.take(id)
        self._kept[id] = (body, attributes, size)
        self._bytes += size
        while self._bytes > self._most_bytes:
            self._bytes -= self._kept.popitem(last=False)[1][2]

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
        self._bytes = 0

    def __contains__(self, id: MessageId) -> bool:
        return id in self._kept

    def take(self, id: MessageId) -> Stored | None:
        """Return what reading the message would, and forget it; None when it is not kept."""
        kept = self._kept.pop(id, None)
        if kept is None:
            return None
        body, attributes, size = kept
        self._bytes -= size
        return Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))
