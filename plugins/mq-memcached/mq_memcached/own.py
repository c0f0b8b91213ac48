"""What this process changed while it looked: a look that began before a change and ended after it must not undo it.

Looking at many messages takes many steps, and the broker takes what comes of it for news. Without this it would hear of
its own past: that a message which it has leased meanwhile is READY.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class OwnChanges:
    """Entries that were changed, for all who are looking."""

    def __init__(self) -> None:
        self._lookers: list[dict[bytes, bytes | None]] = []

    @contextmanager
    def noted(self) -> Iterator[dict[bytes, bytes | None]]:
        """Entries that are changed during the block: key -> value, None where there is none any more."""
        changes: dict[bytes, bytes | None] = {}
        self._lookers.append(changes)
        try:
            yield changes
        finally:
            self._lookers = [each for each in self._lookers if each is not changes]

    def note(self, key: bytes, value: bytes | None) -> None:
        """An entry was changed."""
        for changes in self._lookers:
            changes[key] = value
