"""Dead letters that are a door's business: it sends them on in its own way, and then they are removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mq.message import DamagedBody, Message
from mq.storage.interface import Entry, Storage


class Heir(Protocol):
    """Whose business they are."""

    def takes(self, queue: str) -> bool:
        """Whether it wants what dies in a queue."""

    async def inherit(self, dead: Sequence[tuple[Message, str]]) -> None:
        """Send messages on, in this order, each with the reason of its death; close their bodies. They are removed on
        return, and may come once more after a crash or an error.

        Raises:
            StorageError: not now.
        """


class Heirs:
    """Brings the dead to their heir.

    Args:
        storage: gives the bodies.

    Attributes:
        heir: there is at most one.
    """

    def __init__(self, storage: Storage) -> None:
        self.heir: Heir | None = None
        self._storage = storage

    def take(self, queue: str) -> bool:
        """Whether what dies in a queue has an heir."""
        return self.heir is not None and self.heir.takes(queue)

    async def inherit(self, dead: Sequence[tuple[Entry, str]]) -> None:
        """Hand over those that have an heir. A message that cannot be read any more is passed over.

        Raises:
            StorageError: not now.
        """
        wanted = [(entry, reason) for entry, reason in dead if self.take(entry.queue)]
        if self.heir is None or not wanted:
            return
        found: list[tuple[Message, str]] = []
        stored = await self._storage.read([entry for entry, _ in wanted])
        for (entry, reason), each in zip(wanted, stored, strict=True):
            if each is not None and not isinstance(each.body, DamagedBody):
                message = Message(entry.queue, entry.id, each.body, each.properties, entry.meta.receives, "")
                found.append((message, reason))
        await self.heir.inherit(found)
