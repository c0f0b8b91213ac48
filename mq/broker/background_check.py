"""Verifies stored messages in the background: bits rot on a disk, and a message may wait for months.

A pass takes about as long as the configuration says, however many messages there are, and goes on where the last
process has stopped. What it finds is in the store's health (:class:`mq.storage.interface.Health`), and with its
progress in a record for ``mq doctor``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import trio

from mq.broker.core import Core
from mq.broker.index import QueueIndex
from mq.errors import StorageError
from mq.storage.interface import Entry, Health, Sharing, VerifyingStorage, verifies
from mq.storage.records import put_record

logger = logging.getLogger("mq.broker")

KIND: Final = "check"
"""The kind of record that holds the progress."""
KEY: Final = "messages"
_TOGETHER: Final = 16
"""Messages that are verified between two pauses."""
_LONGEST_PAUSE_SECONDS: Final = 600.0
"""Where there are few messages a pass ends early."""
_IDLE_SECONDS: Final = 60.0
_KEPT_EVERY_SECONDS: Final = 600.0
_MOST_KEPT: Final = 1000
"""Damaged messages that the record names."""


class PassProgress(NamedTuple):
    """How far the background check is.

    Attributes:
        began_ms: when its pass began, milliseconds since 1970; 0 before the first.
        after: the sequence in that queue up to which it is.
        total: how many messages there were when the pass began.
        ended_ms: when the last complete pass ended, milliseconds since 1970; 0 before the first.
    """

    began_ms: int = 0
    queue: str = ""
    after: int = -1
    checked: int = 0
    total: int = 0
    ended_ms: int = 0

    @classmethod
    def stored(cls, record: Mapping[str, Any]) -> PassProgress:
        """The progress in a record; the start of a pass where it makes no sense."""
        found: dict[str, Any] = {name: record.get(name) for name in cls._fields}
        fits = all(isinstance(found[name], type(value)) for name, value in cls._field_defaults.items())
        return cls(**found) if fits else cls()


class BackgroundCheck:
    """Verifies all stored messages again and again."""

    def __init__(self, core: Core) -> None:
        self.progress = PassProgress()
        self._core = core
        self._is_kept = core.config.sharing is not Sharing.PEERS
        self._next_keep = 0.0
        self._known_damaged = 0

    async def run(self) -> None:
        """Verify for ever. Returns at once where the store cannot, or the configuration says never."""
        storage, seconds = self._core.storage, self._core.config.verify_seconds
        if not seconds or not verifies(storage):
            return
        health = storage.health
        assert health is not None, "verifies() says so"
        if self._is_kept:
            record = (await self._core.storage.records(KIND)).get(KEY)
            self.progress = PassProgress.stored(record or {})
        while True:
            await self._pass(storage, health, seconds)

    async def _pass(self, storage: VerifyingStorage, health: Health, seconds: float) -> None:
        """Verify all messages once, or the rest of a pass."""
        queues = self._core.catalog.queues
        total = sum(index.total for index in queues.values())
        if not total:
            await trio.sleep(_IDLE_SECONDS)
            return
        if not self.progress.queue:
            began_ms = self._core.clock.wall_ms()
            self.progress = self.progress._replace(began_ms=began_ms, checked=0, total=total)
        pause = min(seconds * _TOGETHER / total, _LONGEST_PAUSE_SECONDS)
        for name in sorted(queues):
            index = queues.get(name)
            if index is not None and name >= self.progress.queue:
                begin = self.progress.after if name == self.progress.queue else -1
                for after, entries in _portions(index, begin):
                    await trio.sleep(pause)
                    await self._verify(storage, entries)
                    checked = self.progress.checked + len(entries)
                    self.progress = self.progress._replace(queue=name, after=after, checked=checked)
                    await self._keep(health)
        ended_ms = self._core.clock.wall_ms()
        logger.info(
            "background verification finished: %d messages checked, %d damaged",
            self.progress.checked,
            len(health.damaged),
        )
        self.progress = self.progress._replace(queue="", after=-1, ended_ms=ended_ms)
        await self._keep(health, is_end=True)

    async def _verify(self, storage: VerifyingStorage, entries: Sequence[Entry]) -> None:
        try:
            await storage.verify(entries)
        except StorageError as error:
            logger.warning("temporarily unable to verify messages: %s", error)

    async def _keep(self, health: Health, *, is_end: bool = False) -> None:
        """Keep the progress now and then, and with each finding."""
        health.progress = min(1.0, self.progress.checked / (self.progress.total or 1))
        health.ended_seconds = self.progress.ended_ms / 1000
        now, damaged = trio.current_time(), len(health.damaged)
        if not self._is_kept or not (is_end or damaged != self._known_damaged or now >= self._next_keep):
            return
        self._next_keep, self._known_damaged = now + _KEPT_EVERY_SECONDS, damaged
        some = [[queue, str(id), why] for id, (queue, why) in list(health.damaged.items())[:_MOST_KEPT]]
        try:
            await put_record(self._core.storage, KIND, KEY, self.progress._asdict() | {"damaged": some})
        except StorageError as error:
            logger.warning("temporarily unable to save the background verification's progress: %s", error)


def _portions(index: QueueIndex, after: int) -> Iterator[tuple[int, Sequence[Entry]]]:
    """The messages of a queue that wait, by their sequence, then the others: some at a time, each with the
    sequence up to which they are done."""
    while not index.deleted:
        sequences, entries = index.between(after, None, _TOGETHER)
        if not entries:
            break
        after = sequences[-1]
        yield after, entries
    others = index.outside_folder()
    while some := list(islice(others, _TOGETHER)):
        yield after, some
