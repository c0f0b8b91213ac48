"""How much room etcd has left, so that it is never full to the last byte.

etcd that is full refuses moves too, until an operator has made room: so new messages are refused when two fifths of its
quota are in use, and what is there can be fetched and removed. The room of what was removed is free when etcd has been
*compacted*: its history is thrown away, here once a minute, and at once when there is no more room. A compaction writes
each page anew from which something goes, and gives the old ones back only afterwards: for a moment the file may become
twice as large, so less than half of the quota is for messages.
"""

from __future__ import annotations

import logging
import math
from typing import Final

import trio

from mq_etcd.client import Client
from mq_etcd.errors import EtcdError, NoSpace

logger = logging.getLogger("mq.storage.etcd")

SHARE: Final = 0.4
"""Of the quota, for messages and their history: a compaction may need as much again (38 MB became 60 MB)."""
LOOK_SECONDS: Final = 2.0
LAG_SECONDS: Final = 0.25
"""What etcd says of its size may be older than that by a tenth of a second."""
COMPACT_SECONDS: Final = 60.0
MEND_SECONDS: Final = 5.0
LONGEST_MEND_SECONDS: Final = 300.0
"""Between two times that etcd is defragmented, where its alarm comes again and again."""


class Room:
    """Keeps an eye on etcd's size.

    Args:
        key: written when what is free has to be counted anew.
        quota: bytes that it may hold.
    """

    def __init__(self, client: Client, key: str, quota: int) -> None:
        self._client = client
        self._key = key
        self._limit = int(quota * SHARE)
        self._used = 0
        self._written = 0
        self._lagging = 0
        self._looked = -math.inf
        self._compacted = trio.current_time()
        self._old_revision = 0
        self._mended = -math.inf
        self._mend_pause = MEND_SECONDS

    async def refusal(self, size: int) -> str:
        """Why there is no room for `size` bytes more; empty where there is."""
        now = trio.current_time()
        if now - self._looked > (LAG_SECONDS if self._is_short(size) else LOOK_SECONDS):
            await self._look(size)
        if not self._is_short(size):
            self._written += size
            return ""
        return (
            f"etcd's database has {self._used} bytes, but mq uses at most {self._limit} bytes ({SHARE:.0%} of "
            "etcd's quota)"
        )

    async def mend(self) -> None:
        """Make room, and end the alarm, after etcd itself has refused a change because it is full."""
        now = trio.current_time()
        since = now - self._mended
        if since < self._mend_pause:
            return
        # Each member stands still while it is defragmented: where that does not help for long, it is done less often.
        self._mend_pause = (
            MEND_SECONDS if since > LONGEST_MEND_SECONDS else min(2 * self._mend_pause, LONGEST_MEND_SECONDS)
        )
        self._mended, self._looked = now, -math.inf
        logger.warning(
            "etcd raised its NOSPACE alarm; compacting and defragmenting the database, then disarming the alarm"
        )
        try:
            await self._compact((await self._client.status()).revision)
            # etcd counts the pages that a compaction frees at its next write, which the alarm refuses. A defragmented
            # file has none. What is in use is not asked for: without the alarm messages can be removed, however many
            # there are, and refusal() still keeps new ones out.
            await self._client.defragment()
            await self._client.disarm()
        except EtcdError as error:
            logger.warning("cannot free space in etcd: %s", error)

    def _is_short(self, size: int) -> bool:
        return self._used + self._lagging + self._written + size > self._limit

    async def _look(self, size: int) -> None:
        """See how much is in use; where `size` bytes more find no room, throw the history away first."""
        self._looked = now = trio.current_time()
        try:
            found = await self._client.status()
            if found.used + size > self._limit:
                await self._compact(found.revision)
                # etcd counts the pages that a compaction gave back when it writes next. Where mq refuses all for want
                # of room there is no write, and it would stay full for ever.
                try:
                    await self._client.put(self._key, b"")
                except NoSpace:
                    await self.mend()  # or else nothing does: what is refused here does not meet the alarm
                found = await self._client.status()
            elif now - self._compacted > COMPACT_SECONDS:
                if self._old_revision:
                    await self._compact(self._old_revision)
                self._old_revision, self._compacted = found.revision, now
        except EtcdError as error:
            logger.warning("cannot read the size of etcd's database: %s", error)
            return
        self._used = found.used
        self._lagging, self._written = self._written, 0

    async def _compact(self, revision: int) -> None:
        if revision:
            await self._client.compact(revision)
