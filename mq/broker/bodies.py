"""Bodies: their sizes and digests, where a queue's settings need them.

The stats come from the messages themselves, so they cannot disagree with them: loaded when first needed
(:mod:`mq.broker.body_loader`), kept up to date from then on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import trio

from mq.message import Message, MessageId


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

    def __init__(self, ids: Iterable[MessageId]) -> None:
        self.is_listed = False
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
