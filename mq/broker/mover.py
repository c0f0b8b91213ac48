"""The mover delivers messages in NEW at once, and requeues those in DELAYED when their timers end; the reaper unlinks
messages in REMOVED.

One heap has all timers, one task serves them, and nothing polls. The classes work inside the broker and in the programs
``mq-mover`` and ``mq-reaper``.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import trio

from mq import turns
from mq.broker.commit import BatchChannel
from mq.broker.config import RETRY_SECONDS
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink

logger = logging.getLogger("mq.mover")
reaper_logger = logging.getLogger("mq.reaper")

Commit = Callable[[Sequence[Operation]], Awaitable[list[Outcome]]]

LARGEST_ROUND = 1024
"""Moves in one batch. Not Final: a compiled constant cannot be changed, and the simulation makes this one smaller."""
MOST_UNLINKED: Final = 256
"""Unlinks in one batch of the reaper."""
AT_ONCE: Final = -math.inf
"""The due time of an entry that is to be moved at once."""


class Mover:
    """Moves entries to READY when they are due. Start :meth:`run`.

    Args:
        commit: commits operations.
        begin: called before an entry is moved; returns False for one that is not to be moved.
        end: called with each entry and its outcome.
        aim: returns the move of an entry; None for :func:`to_ready`.
    """

    def __init__(
        self,
        commit: Commit,
        begin: Callable[[Entry], bool],
        end: Callable[[Entry, Outcome], None],
        aim: Callable[[Entry], Move] | None = None,
    ) -> None:
        self._commit = commit
        self._begin = begin
        self._end = end
        self._aim = aim or to_ready
        self._due: dict[MessageId, tuple[float, int, Entry]] = {}
        self._heap: list[tuple[float, int, MessageId]] = []
        self._count = 0
        self._changed = trio.Event()
        self._round = trio.Event()
        self._moving_now: float = math.inf

    def add(self, entry: Entry, due: float = AT_ONCE) -> None:
        """Move `entry` at `due` (Trio's clock, seconds); replaces its earlier timer."""
        self._count += 1
        self._due[entry.id] = (due, self._count, entry)
        heapq.heappush(self._heap, (due, self._count, entry.id))
        self._compact()
        if self._heap[0][1] == self._count:
            self._changed.set()

    async def postpone(self, entries: Iterable[Entry], until: float) -> None:
        """Move none of these before that instant."""
        async for entry in turns.in_turns(entries, turns.LIGHT):
            due, _, known = self._due.get(entry.id, (math.inf, 0, entry))
            if due < until and known == entry:
                self.add(entry, until)

    def cancel(self, id: MessageId) -> None:
        """Remove a timer."""
        known = self._due.pop(id, None)
        if known is not None:
            self._compact()
            if known[0] == AT_ONCE:
                self._tell_waiting()  # there may be no round that would

    async def caught_up(self) -> None:
        """Wait until every entry that is to be moved at once by now was moved or refused."""
        last = self._count
        while min(self._moving_now, self._next_at_once()) <= last:
            await self._round.wait()

    async def run(self) -> None:
        """Move for ever."""
        while True:
            await self._wait()
            entries = await self._begin_due()
            if entries:
                await self._move(entries)
            self._moving_now = math.inf
            self._tell_waiting()

    def _next_at_once(self) -> float:
        """The number of the first timer that is due at once; infinity without one."""
        return self._heap[0][1] if self._next_due() == AT_ONCE else math.inf

    def _tell_waiting(self) -> None:
        finished, self._round = self._round, trio.Event()
        finished.set()

    async def _wait(self) -> None:
        """Wait until a timer is due."""
        await trio.lowlevel.checkpoint()
        while True:
            self._changed = trio.Event()
            next_due = self._next_due()
            if next_due <= trio.current_time():
                return
            with trio.move_on_at(next_due):
                await self._changed.wait()

    def _next_due(self) -> float:
        while self._heap:
            due, count, id = self._heap[0]
            known = self._due.get(id)
            if known is not None and known[1] == count:
                return due
            heapq.heappop(self._heap)
        return math.inf

    async def _begin_due(self) -> list[Entry]:
        """Begin to move what is due, up to one round."""
        begun: list[Entry] = []
        taken = 0
        # What is taken begins in the same step: after that, a timer that is cancelled has to be there.
        while taken < LARGEST_ROUND and (some := self._take_due(min(LARGEST_ROUND - taken, turns.FRAMES_A_TURN))):
            begun += [entry for entry in some if self._begin(entry)]
            taken += len(some)
            await turns.spend(frames=len(some))
        return begun

    def _take_due(self, most: int) -> list[Entry]:
        now = trio.current_time()
        taken: list[Entry] = []
        while self._next_due() <= now and len(taken) < most:
            due, count, id = heapq.heappop(self._heap)
            taken.append(self._due.pop(id)[2])
            if due == AT_ONCE:
                self._moving_now = min(self._moving_now, count)
        return taken

    def _compact(self) -> None:
        """Rebuild the heap when most of its timers were replaced or removed."""
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [(due, count, id) for id, (due, count, _) in self._due.items()]
            heapq.heapify(self._heap)

    async def _move(self, entries: list[Entry]) -> None:
        outcomes = await self._commit([self._aim(entry) for entry in entries])
        async for entry, outcome in turns.in_turns(zip(entries, outcomes, strict=True), turns.FRAME):
            self._end(entry, outcome)
            if outcome.result in (Result.FULL, Result.UNKNOWN):
                logger.warning("cannot move %s of %s now: %s", entry.id, entry.queue, outcome.reason)
                self.add(entry, trio.current_time() + RETRY_SECONDS)


def to_ready(entry: Entry) -> Move:
    """The move that delivers or requeues an entry."""
    return Move(entry, State.READY, entry.meta.at_rest(), durable=False)  # the next start repeats what a crash undoes


class Reaper:
    """Unlinks entries, batch by batch. Start :meth:`run`.

    Args:
        commit: commits operations.
        end: called with each entry and its outcome.
    """

    def __init__(self, commit: Commit, end: Callable[[Entry, Outcome], None]) -> None:
        self._commit = commit
        self._end = end
        self._removed: BatchChannel[Entry] = BatchChannel()
        self._stuck: set[MessageId] = set()

    def add(self, entry: Entry) -> None:
        """Unlink `entry` soon."""
        self._removed.put(entry)

    async def run(self) -> None:
        """Unlink for ever."""
        while True:
            entries = await self._removed.drain(MOST_UNLINKED)
            outcomes = await self._commit([Unlink(entry) for entry in entries])
            later = []
            async for entry, outcome in turns.in_turns(zip(entries, outcomes, strict=True), turns.FRAME):
                self._end(entry, outcome)
                if outcome.result is Result.MORE:
                    self.add(entry)
                elif outcome.result in (Result.FULL, Result.UNKNOWN):
                    later.append(entry)
                elif outcome.result is Result.EXISTS and entry.id not in self._stuck:
                    self._stuck.add(entry.id)
                    reaper_logger.warning("queue %s is deleted, but foreign files are left in its folder", entry.queue)
            if later:
                reaper_logger.warning("cannot unlink %d messages now: %s", len(later), outcome.reason)
                await trio.sleep(RETRY_SECONDS)
                for entry in later:
                    self.add(entry)
