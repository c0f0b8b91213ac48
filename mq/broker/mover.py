"""The mover delivers messages in NEW at once, and requeues those in DELAYED when their timers end; the reaper unlinks
messages in REMOVED.

One heap has all timers, one task serves them, and nothing polls. What is due stands in a line where queues take turns,
so that a queue with a long backlog holds up no message of another. The classes work inside the broker and in the
programs ``mq-mover`` and ``mq-reaper``.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import trio

from mq import turns
from mq.broker.config import RETRY_SECONDS
from mq.broker.fairness import FairLine
from mq.broker.waiters import BatchChannel
from mq.lifecycle import State
from mq.message import MessageId
from mq.quantities import show_count
from mq.storage.interface import Entry, MessageOperation, Move, Outcome, Result, Unlink

logger = logging.getLogger("mq.mover")
reaper_logger = logging.getLogger("mq.reaper")

Commit = Callable[[Sequence[MessageOperation]], Awaitable[list[Outcome]]]

LARGEST_ROUND = 256
"""Moves in one batch. Not Final: a compiled constant cannot be changed, and the simulation makes this one smaller."""
FEW: Final = 16
"""Entries of a round that are not counted as part of a turn: a batch of them ends its step anyway."""
MOST_UNLINKED: Final = 256
"""Unlinks in one batch of the reaper."""
AT_ONCE: Final = -math.inf
"""The due time of an entry that is to be moved at once."""


class Mover:
    """Moves entries to READY when they are due. Start :meth:`run`.

    Args:
        begin: called before an entry is moved; returns False for one that is not to be moved.
        aim: returns the move of an entry; None for :func:`to_ready`.

    Attributes:
        due: for each entry with a timer when it ends, and the timer's number.
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
        self.due: dict[MessageId, tuple[float, int, Entry]] = {}
        self._heap: list[tuple[float, int, MessageId]] = []  # timers, and stale ones, which are passed over
        self._line: FairLine[tuple[int, MessageId]] = FairLine()  # what is due, by queue; some of it is stale
        self._count = 0
        self._changed = trio.Event()
        self._round = trio.Event()
        self._moving: dict[object, int] = {}  # queues with entries in the present round, and the first one's number

    def add(self, entry: Entry, due: float = AT_ONCE) -> None:
        """Move `entry` at `due` (Trio's clock, seconds); replaces its earlier timer."""
        id = entry.id
        self._count = number = self._count + 1
        is_replaced = id in self.due
        self.due[id] = (due, number, entry)
        if due == AT_ONCE:
            self._line.put(entry.queue, (number, id))
            self._changed.set()
            return
        heapq.heappush(self._heap, (due, number, id))
        if is_replaced:
            self._compact()
        if self._heap[0][1] == number:
            self._changed.set()

    async def postpone(self, entries: Iterable[Entry], until: float) -> None:
        """Move none of these before that instant."""
        async for entry in turns.in_turns(entries, turns.LIGHT):
            due, _, known = self.due.get(entry.id, (math.inf, 0, entry))
            if due < until and known == entry:
                self.add(entry, until)

    def cancel(self, id: MessageId) -> None:
        """Remove a timer."""
        known = self.due.pop(id, None)
        if known is not None:
            self._compact()
            if known[0] == AT_ONCE:
                self._tell_waiting()  # there may be no round that would

    async def caught_up(self, queue: str | None = None) -> None:
        """Wait until every entry that is due by now was moved or refused, of one queue or of all."""
        last = self._count
        while min(map(self._first, [queue] if queue else [*self._moving, *self._line.items]), default=math.inf) <= last:
            await self._round.wait()

    async def run(self) -> None:
        """Move for ever."""
        while True:
            await self._wait()
            entries = await self._begin_due()
            if entries:
                await self._move(entries)
            self._moving.clear()
            self._tell_waiting()

    def _first(self, queue: object) -> float:
        """The number of a queue's first entry that is due or being moved; infinity without one."""
        waiting = (number for number, id in self._line.items.get(queue, ()) if self._is_current(number, id))
        return min(self._moving.get(queue, math.inf), next(waiting, math.inf))

    def _is_current(self, number: int, id: MessageId) -> bool:
        """Whether that timer of a message was neither replaced nor cancelled."""
        known = self.due.get(id)
        return known is not None and known[1] == number

    def _tell_waiting(self) -> None:
        finished, self._round = self._round, trio.Event()
        finished.set()

    async def _wait(self) -> None:
        """Wait until a timer is due."""
        await trio.lowlevel.checkpoint()
        while True:
            self._changed = trio.Event()
            next_due = self._next_due()
            if self._line or next_due <= trio.current_time():
                return
            with trio.move_on_at(next_due):
                await self._changed.wait()

    def _next_due(self) -> float:
        """When the next timer ends."""
        while self._heap:
            due, number, id = self._heap[0]
            if self._is_current(number, id):
                return due
            heapq.heappop(self._heap)
        return math.inf

    async def _begin_due(self) -> list[Entry]:
        """Begin to move what is due, up to one round."""
        begun: list[Entry] = []
        taken = 0
        while most := min(LARGEST_ROUND - taken, turns.FRAMES_A_TURN):
            # What is taken begins in the same step: after that, a timer that is cancelled has to be there.
            some = self._take_due(most)
            begun += [entry for entry in some if self._begin(entry)]
            taken += len(some)
            if taken > FEW:
                await turns.spend(frames=len(some))
            if len(some) < most:
                break
        return begun

    def _take_due(self, most: int) -> list[Entry]:
        """Take the next entries in line, behind which those come whose timers have ended."""
        now = trio.current_time()
        for _ in range(most):
            if self._next_due() > now:
                break
            _, number, id = heapq.heappop(self._heap)
            self.due[id] = (AT_ONCE, number, self.due[id][2])
            self._line.put(self.due[id][2].queue, (number, id))
        taken: list[Entry] = []
        while self._line and len(taken) < most:
            _, _, (number, id) = self._line.take()
            if self._is_current(number, id):
                taken.append(self.due.pop(id)[2])
                self._moving.setdefault(taken[-1].queue, number)
        return taken

    def _compact(self) -> None:
        """Rebuild the heap when most of its timers were replaced or removed."""
        if len(self._heap) > 2 * len(self.due) + 64:
            self._heap = [(due, number, id) for id, (due, number, _) in self.due.items() if due != AT_ONCE]
            heapq.heapify(self._heap)

    async def _move(self, entries: list[Entry]) -> None:
        outcomes = await self._commit([self._aim(entry) for entry in entries])
        moved = zip(entries, outcomes, strict=True)
        if len(entries) <= FEW:
            for entry, outcome in moved:
                self._end_move(entry, outcome)
            return
        async for entry, outcome in turns.in_turns(moved, turns.FRAME):
            self._end_move(entry, outcome)

    def _end_move(self, entry: Entry, outcome: Outcome) -> None:
        self._end(entry, outcome)
        if outcome.result in (Result.FULL, Result.UNKNOWN):
            logger.warning(
                "temporarily unable to move message %s into the folder of queue %s: %s",
                entry.id,
                entry.queue,
                outcome.reason,
            )
            self.add(entry, trio.current_time() + RETRY_SECONDS)


def to_ready(entry: Entry) -> Move:
    """The move that delivers or requeues an entry."""
    return Move(entry, State.READY, entry.meta.at_rest(), durable=False)  # the next start repeats what a crash undoes


class Reaper:
    """Unlinks entries, batch by batch. Start :meth:`run`."""

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
                    reaper_logger.warning(
                        "queue %s was deleted, but its folder remains because it contains files not created by mq",
                        entry.queue,
                    )
            if later:
                reaper_logger.warning(
                    "temporarily unable to delete the files of %s: %s",
                    show_count(len(later), "message"),
                    outcome.reason,
                )
                await trio.sleep(RETRY_SECONDS)
                for entry in later:
                    self.add(entry)
