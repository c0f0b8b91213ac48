"""How far a store had come when it last confirmed something, kept apart from the store.

A store that others keep alive may come back as a copy that lacks what was confirmed. A broker that runs remembers; one
that starts again asks here.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from mq.message import with_checksum, without_checksum

logger = logging.getLogger("mq")

_DIGITS: Final = 20
"""Of each number: a later one covers an earlier one."""


class LastConfirmed(Protocol):
    """Keeps the number of the last change that each store has confirmed."""

    async def recall(self, store: str) -> int:
        """The number for a store, by its name; 0 where there is none."""

    def note(self, store: str, number: int) -> None:
        """Keep a number, soon. From any thread, one at a time; it does not wait."""

    async def flush(self) -> None:
        """Keep what was noted, where that is not done yet. What cannot be kept now is tried at the next call."""

    def forgetting(self, store: str) -> str:
        """How an operator makes it forget a store: an imperative for an error text."""


class ConfirmedFile:
    """A :class:`LastConfirmed` in a file for each store.

    It is not synced: it outlives the process. After a loss of power it may say less, which refuses nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._has_failed = False

    async def recall(self, store: str) -> int:
        """As in :class:`LastConfirmed`."""
        path = self._path(store)
        try:
            return int(without_checksum(path.read_bytes().removesuffix(b"\n")))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            logger.error(
                "the file %s is damaged: %s. During this startup, mq cannot check that the database server still has "
                "every confirmed change",
                path,
                error,
            )
            return 0

    def note(self, store: str, number: int) -> None:
        """As in :class:`LastConfirmed`, at once."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path(store), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, with_checksum(f"{number:0{_DIGITS}}".encode()) + b"\n", 0)
            finally:
                os.close(file)
        except OSError as error:
            if not self._has_failed:
                self._has_failed = True
                logger.warning(
                    "cannot save the last confirmed change number of store %s in folder %s (%s). The next time "
                    "mq starts, it will not be able to check that the database server still has every confirmed change",
                    store,
                    self._folder,
                    error.strerror,
                )

    async def flush(self) -> None:
        """Nothing is left to be done."""

    def forgetting(self, store: str) -> str:
        """As in :class:`LastConfirmed`."""
        return f"remove {self._path(store)}"

    def _path(self, store: str) -> Path:
        return self._folder / f"confirmed-{quote(store, safe='')}"
