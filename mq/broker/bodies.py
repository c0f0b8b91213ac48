"""What a queue knows of its messages' bodies: their sizes and digests, where its settings ask for them.

Derived from the messages themselves, so that it cannot disagree with them: read when it is first needed, kept up to
date from then on. What has not been read yet is in :attr:`Bodies.unread`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

from mq.message import MessageId


class _Known(NamedTuple):
    size: int
    digest: bytes | None


class Bodies:
    """The bodies of one queue's messages.

    Attributes:
        unread: messages whose bodies are not known yet; its keys, in an order that every run has.
        total: bytes of the known bodies, those of messages on their way out left out.
    """

    def __init__(self, ids: Iterable[MessageId]) -> None:
        self.unread = dict.fromkeys(ids)
        self.total = 0
        self._known: dict[MessageId, _Known] = {}
        self._leaving: set[MessageId] = set()
        self._ids: dict[bytes, MessageId] = {}

    def find(self, digest: bytes) -> MessageId | None:
        """The message with this body."""
        return self._ids.get(digest)

    def add(self, id: MessageId, size: int, digest: bytes | None) -> None:
        """This is `id`'s body; a digest of None is the same as no other."""
        self.unread.pop(id, None)
        if id not in self._known:
            self._known[id] = _Known(size, digest)
            self.total += size
            if digest is not None:
                self._ids.setdefault(digest, id)

    def arrived(self, id: MessageId) -> None:
        """`id` is in the queue, perhaps since long, perhaps back from a way out that it could not take."""
        if id in self._leaving:
            self._leaving.discard(id)
            self.total += self._known[id].size
        elif id not in self._known:
            self.unread[id] = None

    def leaving(self, id: MessageId) -> None:
        """`id` is on its way out of the queue: its bytes do not count any more, its body does."""
        if id in self._known and id not in self._leaving:
            self._leaving.add(id)
            self.total -= self._known[id].size

    def left(self, id: MessageId) -> None:
        """`id` is not in the queue any more."""
        self.leaving(id)
        self._leaving.discard(id)
        self.unread.pop(id, None)
        known = self._known.pop(id, None)
        if known is not None and known.digest is not None and self._ids.get(known.digest) == id:
            del self._ids[known.digest]


def digest_of(data: bytes) -> bytes:
    """By which two bodies are the same: SHA-256."""
    return hashlib.sha256(data).digest()
