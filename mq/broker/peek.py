"""Peeking at messages without taking them: one by its id, a page of a state, ranges of READY ones by sequence."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Final, NamedTuple

from mq import turns
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters
from mq.broker.index import QueueIndex
from mq.errors import StorageError
from mq.lifecycle import State
from mq.message import Message, MessageId, group_number
from mq.storage.interface import Entry

READY: Final = "ready"
LEASED: Final = "leased"
DELAYED: Final = "delayed"
_LOOKS: Final = 4096
"""Messages whose group is looked at in one step: the work of a turn."""
CONNECTION: Final = "connection"
CONSUMER: Final = "consumer"


class Seen(NamedTuple):
    """A message that was peeked at.

    Attributes:
        message: close its body. Its receipt is that of the delivery holding it.
        state: ``ready``, ``leased`` or ``delayed``.
        sequence: its place in its queue; None in answers without sequences.
        at_ms: when it can be fetched again: its delay, or the lease that holds it, ends then (milliseconds since 1970).
            None where it is ready, or held without a lease.
        leased_by: who holds it without a lease: ``connection`` until that has ended, ``consumer`` in a batch; else
            None.
    """

    message: Message
    state: str
    sequence: int | None = None
    at_ms: int | None = None
    leased_by: str | None = None


class Browsed(NamedTuple):
    """One page of READY messages.

    Attributes:
        messages: in order, each with its sequence; close their bodies.
        after: the `after` of the next page; None when nothing is left.
    """

    messages: Sequence[Seen]
    after: int | None


class Ranges(NamedTuple):
    """A queue cut into parts of about the same number of messages.

    Attributes:
        high_watermark: while the broker runs, every message published from now on has a greater sequence.
        bounds: the greatest sequence of each part.
    """

    messages: int
    high_watermark: int
    bounds: Sequence[int]


class Peek:
    """Reads messages without changing them."""

    def __init__(self, core: Core, dead_letters: DeadLetters) -> None:
        self._storage = core.storage
        self._clock = core.clock
        self._locks = core.catalog.locks
        self._dead_letters = dead_letters

    async def show(self, index: QueueIndex, id: MessageId) -> Seen | None:
        """One message of a queue, in any state; None without it."""
        while True:
            await self._locks.wait(id)
            entry = index.find(id) or await self._storage.find(index.name, id)
            if id in self._locks:
                continue
            seen = await self.see(index, [entry]) if entry is not None else []
            if seen or entry is None or (id not in self._locks and index.find(id) in (None, entry)):
                return seen[0] if seen else None

    async def page(self, index: QueueIndex, state: str, after: MessageId | None, most: int) -> list[Seen]:
        """Up to `most` messages of a queue that are in a state, in their order, from the one after `after` on."""
        if state == READY:
            entries = index.after(after, most)
        else:
            start = -1 if after is None else after.key
            there = [each for each in index.delayed.values() if state_of(each) == state and each.id.key > start]
            if state == LEASED:
                there += [each for each in (*index.held.values(), *index.claimed.values()) if each.id.key > start]
            else:
                there += index.far_off.after(start, most)
            entries = heapq.nsmallest(most, there, key=lambda entry: entry.id.key)
        return await self.see(index, entries)

    async def see(
        self, index: QueueIndex, entries: Sequence[Entry], sequences: Iterable[int | None] = repeat(None)
    ) -> list[Seen]:
        """The messages of the entries that are still there, each with its sequence where one is given."""
        with suppress(StorageError):  # a message is worth more than its history
            await self._dead_letters.learn(entries)
        stored = await self._storage.read(entries)
        history = self._dead_letters.history
        seen = []
        for (queue, id, place, meta), found, sequence, entry in zip(entries, stored, sequences, entries, strict=False):
            if found is not None:
                properties, body = found
                state = LEASED if index.is_out(id) else READY if place is State.READY else state_of(entry)
                receives = meta.receives + index.is_out(id)  # a delivery that its name does not count yet
                message = Message(queue, id, body, properties, receives, meta.receipt or "", history(entry))
                at_ms = None if place is State.READY else self._due_ms(entry)
                seen.append(Seen(message, state, sequence, at_ms, _holder(index, id)))
        return seen

    def _due_ms(self, entry: Entry) -> int | None:
        deadline_ms = entry.meta.deadline_ms
        return None if deadline_ms is None else self._clock.shown_ms(deadline_ms - self._clock.delay_age_ms(entry))


class SequenceBrowser:
    """Reads READY messages by their sequence, without changing them: :attr:`Broker.browsing`.

    Args:
        look_up: returns a queue's index, with every message delivered that was published before.
    """

    def __init__(self, core: Core, peek: Peek, look_up: Callable[[str], Awaitable[QueueIndex]]) -> None:
        self._peek = peek
        self._ids = core.ids
        self._look_up = look_up

    async def browse(
        self,
        queue: str,
        *,
        after: int = 0,
        up_to: int | None = None,
        most: int = 100,
        ids: Sequence[str] | None = None,
        group: str | None = None,
    ) -> Browsed:
        """One page of READY messages by their sequence; close their bodies.

        Args:
            after: their sequences are greater than this.
            up_to: their sequences are not greater than this.
            most: how many at the most, but for those that have the last one's sequence, too.
            ids: only messages of these ids; None for any.
            group: only messages of this group, and, very rarely, of another one whose number is the same; None for any.
                A page may have none of them, and others follow. Not used with `ids`.

        Raises:
            NoSuchQueue: the queue does not exist.
            InvalidId: one of the ids is none.
        """
        index = await self._look_up(queue)
        if group is not None and ids is None:
            await turns.spend(frames=turns.FRAMES_A_TURN)
            sequences, entries, last = index.of_group(group_number(group), after, up_to, most, _LOOKS)
            return Browsed(await self._peek.see(index, entries, sequences) if entries else (), last)
        if ids is not None:
            sequences, entries = index.among(map(MessageId, ids), after, up_to, most)
        else:
            sequences, entries = index.between(after, up_to, most)
        messages = await self._peek.see(index, entries, sequences)
        return Browsed(messages, sequences[-1] if len(sequences) >= most else None)

    async def ranges(self, queue: str, parts: int) -> Ranges:
        """A queue's READY messages, cut into at most `parts` ranges, which can be browsed side by side.

        Raises:
            NoSuchQueue: the queue does not exist.
        """
        sequences = (await self._look_up(queue)).sequences()
        count = len(sequences)
        parts = min(parts, count)
        bounds = sorted({sequences[(part + 1) * count // parts - 1] for part in range(parts)})
        return Ranges(count, self._ids.new().time, bounds)


def _holder(index: QueueIndex, id: MessageId) -> str | None:
    return CONNECTION if id in index.held else CONSUMER if id in index.claimed else None


def state_of(entry: Entry) -> str:
    """The state that users see: a message in NEW is ready in a moment, unless it is delayed."""
    if entry.meta.receipt is not None:
        return LEASED
    if entry.state is State.DELAYED or (entry.state is State.NEW and entry.meta.deadline_ms is not None):
        return DELAYED
    return READY
