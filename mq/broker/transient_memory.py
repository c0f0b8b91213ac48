"""Room in memory for transient messages. It is reserved when a message is taken, not when it is stored.

So a message that finds no room is refused in the step that brought it, and those behind it can be refused with it:
otherwise smaller ones would be stored before it, and its publisher's messages would change their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mq.message import encode_attributes
from mq.storage.interface import MESSAGE_BYTES, Storage, limits_memory
from mq.storage.records import error_of


class TransientMemory:
    """What messages that are on their way to memory will take there, beside those that the store has."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage if limits_memory(storage) else None
        self._reserved: Counter[str] = Counter()  # bytes, by queue
        self._total = 0

    def reserve(self, queue: str, body: bytes, attributes: Mapping[str, Any]) -> int:
        """Reserve room for a message; the bytes to give back once it is stored, or is not going to be.

        Raises:
            StorageFull: there is none now.
        """
        if self._storage is None:
            return 0
        beside = len(encode_attributes(attributes)) + MESSAGE_BYTES
        size = len(body)
        full = self._storage.no_room_for(
            queue, size, beside, reserved=self._total, reserved_in_queue=self._reserved[queue]
        )
        if full is not None:
            raise error_of(full, "cannot store the message")
        self._reserved[queue] += size + beside
        self._total += size + beside
        return size + beside

    def give_back(self, queue: str, size: int) -> None:
        """Give reserved bytes back."""
        self._total -= size
        self._reserved[queue] -= size
        if not self._reserved[queue]:
            del self._reserved[queue]
