"""What stands under which key. Nothing else makes keys.

e:ID                where the message is, with its meta; one value, so a move is one swap
b:ID:MARK:PART      a part of its body, with its attributes before the first byte
r:KIND:DIGEST       a record
h:CHAIN, t:CHAIN    head and tail of a chain: where the next slot goes, and the first that may be of use
s:CHAIN:NUMBER      a slot: what it points to
v:CHAIN             counts changes of what the chain points to
l:CHAIN             the lock of the client that tidies the chain
e:NUMBER            ballast: room for a move when there is no other
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from mq.message import MessageId

_PLAIN: Final = re.compile(r"[!-~]{1,100}")


class Keys:
    """The keys of one store, which all begin with `prefix`."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}/".encode() if prefix else b""
        self.registry = b"chains"

    def entry(self, id: MessageId) -> bytes:
        """The key of a message."""
        return b"%be:%b" % (self._prefix, id.encode())

    def id_of(self, key: bytes) -> MessageId:
        """The id of the message with that entry."""
        return str.__new__(MessageId, key[-36:].decode())

    def ballast(self, number: int) -> bytes:
        """A key as long as that of an entry, so that one gives its room to the other."""
        return b"%be:%036d" % (self._prefix, number)

    def part(self, id: bytes, mark: bytes, number: int) -> bytes:
        """The key of a part of a body."""
        return b"%bb:%b:%b:%d" % (self._prefix, id, mark, number)

    def record(self, kind: str, key: str) -> bytes:
        """The key of a record."""
        return self.recorded(kind, _digest(key))

    def recorded(self, kind: str, digest: bytes) -> bytes:
        """The key of the record with that digest of its name."""
        return b"%br:%b:%b" % (self._prefix, _plain(kind), digest)

    def digest(self, key: str) -> bytes:
        """The digest by which a chain of records points to one."""
        return _digest(key)

    def chain_of_queue(self, queue: str) -> bytes:
        """The name of the chain of a queue's messages."""
        return b"q." + _plain(queue)

    def chain_of_kind(self, kind: str) -> bytes:
        """The name of the chain of the records of a kind."""
        return b"r." + _plain(kind)

    def head(self, chain: bytes) -> bytes:
        """The key of the number of the next slot."""
        return b"%bh:%b" % (self._prefix, chain)

    def tail(self, chain: bytes) -> bytes:
        """The key of the number of the first slot that may be of use."""
        return b"%bt:%b" % (self._prefix, chain)

    def slot(self, chain: bytes, number: int) -> bytes:
        """The key of a slot."""
        return b"%bs:%b:%d" % (self._prefix, chain, number)

    def changes(self, chain: bytes) -> bytes:
        """The key of the count of changes."""
        return b"%bv:%b" % (self._prefix, chain)

    def lock(self, chain: bytes) -> bytes:
        """The key of the lock."""
        return b"%bl:%b" % (self._prefix, chain)


def _plain(name: str) -> bytes:
    return name.encode() if _PLAIN.fullmatch(name) else b"#" + _digest(name)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest().encode()
