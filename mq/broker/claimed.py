"""The messages of claims: chosen, leased under a claim's tag, found again, and moved on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Final

import trio

from mq.broker.catalog import Catalog
from mq.broker.closing import close
from mq.broker.consumers import Consumer
from mq.broker.index import QueueIndex
from mq.broker.jobs import Change, Job
from mq.broker.leases import Leases
from mq.broker.mailbox import Mailbox
from mq.broker.upkeep import Upkeep
from mq.errors import MQError, NoSuchMessage, ReceiptMismatch
from mq.lifecycle import Kind, State
from mq.message import Message, MessageId
from mq.storage.interface import Entry, Move, Storage, Stored

LONGEST_SLICE: Final = 500
"""Messages that are opened, or moved, at a time."""


class Claimed:
    """Works on the messages of claims.

    Args:
        storage: gives the bodies.
        catalog: the queues.
        jobs: where the save workers find work.
        upkeep: knows what is dead.
        leases: says when leases end.
        random: makes receipts.
    """

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        jobs: Mailbox[Sequence[Job]],
        upkeep: Upkeep,
        leases: Leases,
        random: Random,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._jobs = jobs
        self._upkeep = upkeep
        self._leases = leases
        self._random = random

    async def choose(self, index: QueueIndex, most: int, most_bytes: int | None, up_to: int | None) -> list[Entry]:
        """The first READY messages. They are on their way from now on: lease them, or put them back.

        Raises:
            StorageError: their lengths cannot be read; none is chosen.
        """
        chosen: list[Entry] = []
        left = most_bytes
        try:
            while len(chosen) < most and (left is None or left > 0):
                some = self._first(index, min(most - len(chosen), LONGEST_SLICE), up_to)
                if not some:
                    break
                if left is not None:
                    some, left = await self._fitting(some, left, is_first=not chosen)
                chosen += some
                await trio.lowlevel.checkpoint()
        except BaseException:
            self.put_back(chosen)
            raise
        return chosen

    def put_back(self, entries: Iterable[Entry]) -> None:
        """They are not leased after all."""
        for entry in entries:
            self._catalog.end(entry, entry, Kind.LEASE)

    async def sort(self, index: QueueIndex, consumer: Consumer) -> list[Entry]:
        """Where those messages of a claim are now that nobody else has got, in their order."""
        there = []
        for id in consumer.ids:
            await self._catalog.transit.wait(id)
            entry = index.find(id)
            if entry is None or id in index.held:
                continue
            if entry.state is State.READY or consumer.has_leased(entry):
                there.append(entry)
        return there

    async def lease(self, consumer: Consumer, entries: list[Entry], seconds: float, *, is_begun: bool) -> None:
        """Lease messages under the claim's tag, slice by slice: each has its own time.

        Args:
            consumer: whose claim it is.
            entries: READY, or leased under this claim before.
            seconds: length of the lease.
            is_begun: whether they are on their way already.

        Raises:
            MQError: not all of them are leased. Asking again leases the others.
        """
        consumer.lease_ends = trio.current_time() + seconds
        for start in range(0, len(entries), LONGEST_SLICE):
            try:
                await self._lease_some(consumer, entries[start : start + LONGEST_SLICE], seconds, is_begun)
            except BaseException:
                consumer.lease_ends = 0.0
                if is_begun:
                    self.put_back(entries[start + LONGEST_SLICE :])
                raise

    async def read(self, index: QueueIndex, consumer: Consumer, ids: Sequence[MessageId]) -> list[tuple[int, Message]]:
        """Messages that the claim holds, each with its sequence. Close their bodies.

        Raises:
            ReceiptMismatch: a lease has ended.
            NoSuchMessage: one has vanished from the store.
        """
        while True:
            entries = [await self._held(index, consumer, id) for id in ids]
            stored = await self._storage.read(entries)
            found = [(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None]
            if len(found) == len(entries):
                return [(entry.joined, _message(entry, each)) for entry, each in found]
            await close([_message(entry, each) for entry, each in found])
            if all(self._stands(entry) for entry in entries):
                raise NoSuchMessage(f"a message that consumer {consumer.name} has claimed vanished from the store")

    async def move(self, entries: Sequence[Entry], state: State, kind: Kind) -> None:
        """Move those on that still are where `entries` say.

        Raises:
            MQError: not all of them are moved.
        """
        for start in range(0, len(entries), LONGEST_SLICE):
            jobs = []
            for entry in entries[start : start + LONGEST_SLICE]:
                await self._catalog.transit.wait(entry.id)
                if self._stands(entry):
                    jobs.append(self.begin(entry, state, kind))
            await _all(jobs)

    def begin(self, entry: Entry, state: State, kind: Kind) -> Change:
        """Move one on, out of the index at once."""
        self._catalog.begin(entry, is_leaving=state is State.REMOVED)
        return self._put(Move(entry, state, entry.meta.at_rest()), kind)

    # How it is done

    def _first(self, index: QueueIndex, count: int, up_to: int | None) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < count and not index.settings.paused and not index.deleted:
            entry = next(iter(index.first(1)), None)
            if entry is None or (up_to is not None and entry.joined > up_to):
                break
            if not self._upkeep.is_dead(index, entry):
                self._catalog.begin(entry)
                found.append(entry)
        return found

    async def _fitting(self, entries: list[Entry], left: int, *, is_first: bool) -> tuple[list[Entry], int]:
        """Those of the first that have together at most `left` bytes, or else the very first, and what is left; the
        others are put back."""
        try:
            stored = await self._storage.read(entries)
        except BaseException:
            self.put_back(entries)
            raise
        await close([_message(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None])
        count = 0
        for each in stored:
            left -= each.properties.size if each is not None else 0
            if left < 0 and (count or not is_first):
                break
            count += 1
        self.put_back(entries[count:])
        return entries[:count], left if count == len(entries) else 0

    async def _lease_some(self, consumer: Consumer, entries: list[Entry], seconds: float, is_begun: bool) -> None:
        jobs = []
        for entry in entries:
            if not is_begun and (entry.id in self._catalog.transit or not self._stands(entry)):
                continue  # taken, or about to end, just now: found out the next time
            meta = entry.meta._replace(
                deadline_ms=self._leases.deadline_ms(seconds),
                receives=entry.meta.receives + (entry.state is State.READY),
                claim=f"{consumer.tag}{self._random.getrandbits(24):06x}",
            )
            if not is_begun:
                self._catalog.begin(entry)
            kind = Kind.LEASE if entry.state is State.READY else Kind.EXTEND
            jobs.append(self._put(Move(entry, State.DELAYED, meta), kind, seconds))
        await _all(jobs)

    async def _held(self, index: QueueIndex, consumer: Consumer, id: MessageId) -> Entry:
        await self._catalog.transit.wait(id)
        entry = index.find(id)
        if entry is None or not consumer.has_leased(entry):
            raise ReceiptMismatch(f"message {id}: the claim's lease of it has run out. Claim the batch again")
        return entry

    def _stands(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        return index is not None and index.find(entry.id) == entry

    def _put(self, move: Move, kind: Kind, seconds: float | None = None) -> Change:
        job = Change(self._catalog, move, kind, "change a message of the claim", seconds)
        self._jobs.put([job])
        return job


async def _all(jobs: Sequence[Change]) -> None:
    """Until all are done. A message that was gone is no error.

    Raises:
        MQError: something went wrong with one, or several.
    """
    failed: MQError | None = None
    for job in jobs:
        try:
            with suppress(NoSuchMessage):
                await job.reply.get()
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


def _message(entry: Entry, found: Stored) -> Message:
    return Message(entry.queue, entry.id, found.body, found.properties, entry.meta.receives, entry.meta.claim or "")
