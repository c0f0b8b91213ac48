"""The reaper: unlinks what is in REMOVED. The same class serves inside the broker and as the program ``mq-reaper``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import trio

from mq.broker.config import RETRY_SECONDS
from mq.broker.mailbox import Mailbox
from mq.broker.mover import Commit
from mq.message import MessageId
from mq.storage.interface import Entry, Outcome, Result, Unlink

logger = logging.getLogger("mq.reaper")

LARGEST_ROUND: Final = 256


class Reaper:
    """Unlinks entries, some at a time.

    Args:
        commit: does operations.
        end: told what became of an entry.
    """

    def __init__(self, commit: Commit, end: Callable[[Entry, Outcome], None]) -> None:
        self._commit = commit
        self._end = end
        self._removed: Mailbox[Entry] = Mailbox()
        self._stuck: set[MessageId] = set()

    def add(self, entry: Entry) -> None:
        """Unlink `entry` soon."""
        self._removed.put(entry)

    async def run(self) -> None:
        """Unlink for ever."""
        while True:
            entries = await self._removed.drain(LARGEST_ROUND)
            outcomes = await self._commit([Unlink(entry) for entry in entries])
            later = []
            for entry, outcome in zip(entries, outcomes, strict=True):
                self._end(entry, outcome)
                if outcome.result is Result.MORE:
                    self.add(entry)
                elif outcome.result in (Result.FULL, Result.UNKNOWN):
                    later.append(entry)
                elif outcome.result is Result.EXISTS and entry.id not in self._stuck:
                    self._stuck.add(entry.id)
                    logger.warning("queue %s is deleted, but foreign files are left in its folder", entry.queue)
            if later:
                logger.warning("cannot unlink %d messages now: %s", len(later), outcome.reason)
                await trio.sleep(RETRY_SECONDS)
                for entry in later:
                    self.add(entry)
