"""What clients were told, read from the marks of a recording: the promises that a crash must not break.

Clients mark what they are about to do before they ask, and what they got after they have read the whole answer:

===================================  =====================================================================
``publishing DIGEST``                a message with that digest is about to be sent
``keyed QUEUE DIGEST``               ... into that queue, with its digest as key
``published ID QUEUE DIGEST``        201
``leased ID QUEUE DIGEST UNTIL``     200; the lease lasts until UNTIL at least, nanoseconds since 1970
``removing ID``, ``removed ID``      202
``creating Q``, ``created Q``        201
``deleting Q``, ``deleted Q``        200
===================================  =====================================================================

Other marks mean nothing here.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Mark = Callable[[str], None]
"""Notes that something has happened by now."""


class Claim(enum.Enum):
    """What is known of a message or a queue."""

    THERE = "there"
    """It has to be there."""
    ASKED = "asked"
    """Somebody asked for a change and has no answer yet: it may be there or not."""
    GONE = "gone"
    """It must not be there."""


@dataclass
class Acknowledged:
    """A message that a client has been told of.

    Attributes:
        queue: its queue.
        digest: of its content.
        claim: whether it has to be there.
        leased_until_ns: until when nobody else may get it, nanoseconds since 1970.
    """

    queue: str
    digest: str
    claim: Claim = Claim.THERE
    leased_until_ns: int = 0


class Ledger:
    """What holds after these marks."""

    def __init__(self, marks: Iterable[str] = ()) -> None:
        self.messages: dict[str, Acknowledged] = {}
        self.queues: dict[str, Claim] = {}
        self.attempted: set[str] = set()
        self.keyed: set[tuple[str, str]] = set()
        verbs: dict[str, Callable[..., None]] = {
            "publishing": self.attempted.add,
            "keyed": lambda queue, key: self.keyed.add((queue, key)),
            "published": self._know,
            "leased": self._lease,
            "removing": self._ask_removal,
            "removed": self._remove,
            "creating": self._ask_creation,
            "created": self._create,
            "deleting": self._ask_deletion,
            "deleted": self._delete,
        }
        for mark in marks:
            verb, *arguments = mark.split(" ")
            if verb in verbs:
                verbs[verb](*arguments)

    def _know(self, id: str, queue: str, digest: str) -> None:
        self.messages.setdefault(id, Acknowledged(queue, digest))  # a consumer may have been faster

    def _lease(self, id: str, queue: str, digest: str, until_ns: str) -> None:
        self._know(id, queue, digest)
        message = self.messages[id]
        message.leased_until_ns = max(message.leased_until_ns, int(until_ns))

    def _ask_removal(self, id: str) -> None:
        if self.messages[id].claim is Claim.THERE:
            self.messages[id].claim = Claim.ASKED

    def _remove(self, id: str) -> None:
        self.messages[id].claim = Claim.GONE

    def _ask_creation(self, queue: str) -> None:
        self.queues[queue] = Claim.ASKED

    def _create(self, queue: str) -> None:
        self.queues[queue] = Claim.THERE

    def _ask_deletion(self, queue: str) -> None:
        self._claim(queue, Claim.ASKED)

    def _delete(self, queue: str) -> None:
        self._claim(queue, Claim.GONE)

    def _claim(self, queue: str, claim: Claim) -> None:
        self.queues[queue] = claim
        for message in self.messages.values():
            if message.queue == queue and message.claim is not Claim.GONE:
                message.claim = claim


def digest(body: bytes, content_type: str) -> str:
    """What tells a message from any other."""
    return hashlib.sha256(content_type.encode() + b"\0" + body).hexdigest()
