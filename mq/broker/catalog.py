"""The catalog: every queue's index, which messages are being moved, and the bodies that came a moment ago.

:meth:`Catalog.begin` and :meth:`Catalog.end` bracket every move; nothing else changes an index. In between the message
is locked: other work on it waits. A body that was published a moment ago is delivered without a look at the store.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import trio

from mq.broker.clock import Clock
from mq.broker.index import QueueIndex
from mq.broker.settings import REJECT
from mq.lifecycle import Histogram, Kind, Meter, Observer, Span, State, Transition
from mq.message import BytesBody, MessageId, Properties, SharedAttributes, checksum, length_of
from mq.storage.interface import FRESH, Entry, Stored

logger = logging.getLogger("mq.broker")

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all recent bodies together."""
OVERHEAD: Final = 1024
"""Bytes that a message counts besides its body: about what its id and its attributes take, if these are short."""
SHORT_ATTRIBUTES: Final = 512
"""Characters of attributes that are short. Longer ones count for themselves, and twice: as texts and encoded."""
KEPT_TICKS: Final = 10 * 10**7
"""A message that comes so much later replaces one of the first half, in UUID ticks: 10 seconds."""
_Kept: TypeAlias = tuple[bytes, Mapping[str, Any], int]
"""A body, the attributes, and the bytes that they take."""
_READY: Final = State.READY  # to look up a member of an Enum takes as long as three calls in Python 3.11
_REMOVED: Final = State.REMOVED
_PUBLISH: Final = Kind.PUBLISH
_LEASE: Final = Kind.LEASE
_REAP: Final = Kind.REAP
LARGEST_BODY: Final = 1 << 16
"""Bytes of the longest body that is kept. A longer one is read from the store."""


class Catalog:
    """The queues, and the messages that are being moved.

    Args:
        clock: gives the date for transitions.
        recent_bytes: the size of :attr:`recent`.

    Attributes:
        recent: the bodies of messages that were published a moment ago.
        queues: every queue's index, by name; :meth:`add_queue` and :meth:`drop_queue` change it.
        leaving: queues that were deleted here and of which messages are still being moved, by name.
        strangers: names without a queue of which messages may lie in NEW or DELAYED.
        closed: called with the name of each queue that is no more.
    """

    def __init__(self, observers: Sequence[Observer | Meter], clock: Clock, recent_bytes: int = MOST_BYTES) -> None:
        self.recent = RecentBodies(recent_bytes)
        self.queues: dict[str, QueueIndex] = {}
        self.leaving: dict[str, QueueIndex] = {}
        self.strangers: set[str] = set()
        self.locks = MessageLocks()
        self.events = CatalogEvents()
        self.closed: Callable[[str], None] = _close
        self._owned: Counter[str] = Counter()  # queues by owner: there may be very many to count
        self._left = trio.lowlevel.ParkingLot()
        self._meters = [cast(Meter, observer) for observer in observers if hasattr(observer, "counted")]
        self._observers = [cast(Observer, observer) for observer in observers if hasattr(observer, "saw")]
        self._clock = clock

    def add_queue(self, index: QueueIndex) -> None:
        """Add a queue; nothing happens if there is one of its name."""
        if self.queues.setdefault(index.name, index) is index and index.owner is not None:
            self._owned[index.owner] += 1

    def drop_queue(self, name: str) -> QueueIndex | None:
        """Remove a queue, and return it; None if there is none."""
        index = self.queues.pop(name, None)
        if index is not None and index.owner is not None:
            self._owned[index.owner] -= 1
            if not self._owned[index.owner]:
                del self._owned[index.owner]
        return index

    def owned(self, owner: str) -> int:
        """Return how many queues were made for a user."""
        return self._owned[owner]

    def begin(self, entry: Entry, *, is_leaving: bool = False, is_out: bool = False) -> None:
        """Begin a move: lock the message and take it out of the index. One that leaves its queue counts no more.

        Args:
            is_out: whether it is not in the index: it was just taken out, or never was there.
        """
        queue, id, _, _ = entry
        assert id not in self.locks, "two moves of one message at a time"
        index = self.queues.get(queue) or self.leaving.get(queue)
        self.locks[id] = index, is_leaving, None
        if index is None:
            return
        if not is_out:
            index.discard(id)
        index.under_way += 1
        if not is_leaving:
            index.moving += 1
        elif index.bodies is not None:
            index.bodies.leaving(id)

    def end(
        self,
        left: Entry,
        now: Entry | None,
        kind: Kind,
        due: float | None = None,
        protocol: str = "",
        *,
        is_reaped: bool = False,
    ) -> None:
        """End a move: the message is at `now`, which is `left` when it did not move, and None when it is gone.

        Args:
            is_reaped: whether it is gone because it was removed, and unlinked in the same batch.
        """
        id = left.id
        index, is_leaving, lot = self.locks.pop(id)
        if lot is not None:
            lot.unpark_all()
        is_removed = is_reaped or (now is not None and now.state is _REMOVED)
        has_left = now is None or is_removed or now.queue != left.queue
        if index is not None:
            index.under_way -= 1
            index.moving -= not is_leaving
            if has_left:
                index.returned.discard(id)
                if index.bodies is not None:
                    index.bodies.left(id)
        if is_removed:
            self.events.departed(id)
        if now is not None:
            self.place(now, due)
        if is_reaped or (now is not None and now is not left):
            self.tell(kind, left, now, None, protocol, is_reaped=is_reaped)
        if index is None:
            return
        if index.groups is not None and (index.groups.release if has_left else index.groups.rests)(id):
            self.events.freed(index)
        if index.deleted:
            self.let_go(index)

    def end_second_copy(self, left: Entry, kind: Kind) -> None:
        """End a removal that found the message in REMOVED already. One such message must not fail the others that are
        removed with it."""
        logger.error("message %s in queue %s was stored twice; one copy was removed", left.id, left.queue)
        self.end(left, None, kind)

    def published(
        self,
        entry: Entry,
        size: int,
        protocol: str,
        body: bytes | None,
        attributes: Mapping[str, Any],
        *,
        is_there: bool,
    ) -> None:
        """Tell that a message was published.

        Args:
            size: of its body, in bytes.
            body: None if it was too large for memory.
            is_there: whether it is to be found there: it was dispatched to no request, and others have not moved it.
        """
        if is_there:
            if body is not None:
                self.recent.keep(entry.id, body, attributes)
            self.place(entry)
        self.tell(_PUBLISH, None, entry, size, protocol)

    def note_returned(self, entry: Entry) -> None:
        """Note that a consumer has had a message which is READY again, or is about to be."""
        index = self.queues.get(entry.queue)
        if index is not None:
            index.returned.add(entry.id)

    def on_their_way(self, index: QueueIndex) -> list[MessageId]:
        """The messages of a queue that are being moved."""
        return [id for id, (of, _, _) in self.locks.items() if of is index]

    def place(self, entry: Entry, due: float | None = None) -> None:
        """Add an entry to the index of its queue, and tell :attr:`events` of it, but not of a fresh READY message that
        nobody waits for, in a queue that drops none.

        Args:
            due: when its lease ends (Trio's clock), if known.
        """
        if entry.state is _REMOVED:
            self.events.removed(entry)
            return
        index = self.queues.get(entry.queue)
        if index is None:
            if entry.queue in self.leaving:
                self.events.orphaned(entry)
            return  # else its folder was moved away by hand, or a peer has deleted it: it stays where it is
        index.add(entry)
        if index.bodies is not None:
            index.bodies.arrived(entry.id)
        is_fresh = entry.meta is FRESH and entry.state is _READY
        if is_fresh and not index.is_waited_for and index.settings.overflow == REJECT:
            return  # nearly always: it has no timer, no request waits for it, and it drives out no other message
        self.events.arrived(index, entry, due)

    def leave(self, index: QueueIndex) -> None:
        """Note that a queue was deleted here. Messages being moved are removed where they arrive."""
        self.leaving[index.name] = index

    def let_go(self, index: QueueIndex) -> None:
        """Note that a message of a deleted queue has arrived, or cannot; with the last the queue has left."""
        if self.leaving.get(index.name) is index:
            if not index.under_way and not index.reserved and not index.stuck:
                del self.leaving[index.name]
            self._left.unpark_all()

    async def has_left(self, queue: str) -> bool:
        """Wait until no message of a deleted queue is being moved. False when some cannot be removed for now."""
        while queue in self.leaving and not self.leaving[queue].stuck:
            await self._left.park()
        return queue not in self.leaving

    def tell(
        self,
        kind: Kind,
        left: Entry | None,
        now: Entry | None,
        size: int | None = None,
        protocol: str = "",
        *,
        is_reaped: bool = False,
    ) -> None:
        """Tell the observers of a transition.

        Args:
            is_reaped: whether the message was unlinked after it, which is another one.
        """
        entry = now or left
        assert entry is not None, "it left a place, or entered one"
        queue, id, state, meta = entry
        source = queue if left is None else left.queue
        destination = None if source == queue else queue
        for meter in self._meters:
            meter.counted(kind, source, 1, size or 0, destination, is_reaped=is_reaped)
            if kind is _LEASE:
                meter.handed_out([id.time], self._now_ns())
        if not self._observers:
            return  # nearly always: only the journal is one
        before = None if left is None else left.state
        after = _REMOVED if is_reaped else state if now is not None else None
        receives, time_ns = 0 if now is None else meta.receives, self._now_ns()
        transitions = [Transition(kind, source, id, before, after, time_ns, size, receives, destination, protocol)]
        if is_reaped:
            transitions.append(Transition(_REAP, queue, id, after, None, time_ns))
        for observer in self._observers:
            observer.saw(transitions)

    def _now_ns(self) -> int:
        """The time by which ids are dated: a wall clock that jumps makes no message old."""
        return self._clock.date_offset_ns + int(self._clock.elapsed() * 1e9)

    def histograms_of(self, span: Span) -> list[Histogram]:
        """Where to count the seconds that something takes: one for each meter."""
        return [meter.histogram(span) for meter in self._meters]

    def tell_held(self, kind: Kind, queue: str, times: Sequence[int]) -> None:
        """Tell the meters of messages that were handed out, or came back, in memory alone: when their ids were made,
        in UUID ticks."""
        for meter in self._meters:
            meter.counted(kind, queue, len(times))
            if kind is _LEASE:
                meter.handed_out(times, self._now_ns())


class CatalogEvents:
    """What a catalog tells of messages that have arrived somewhere. The methods do nothing unless a subclass does."""

    def arrived(self, index: QueueIndex, entry: Entry, due: float | None) -> None:
        """`entry` is in NEW, READY or DELAYED of that queue, with what :meth:`Catalog.place` was told of it. Not called
        for a fresh READY message that nobody waits for, in a queue that drops none."""

    def freed(self, index: QueueIndex) -> None:
        """A message group of that queue is free again, and has READY messages."""

    def removed(self, entry: Entry) -> None:
        """`entry` is in REMOVED. Its queue may be no more."""

    def orphaned(self, entry: Entry) -> object:
        """`entry` has arrived in a queue that was deleted meanwhile."""

    def departed(self, id: MessageId) -> None:
        """The message was removed."""


class MessageLocks(dict[MessageId, tuple[QueueIndex | None, bool, trio.lowlevel.ParkingLot | None]]):
    """Locks of the messages that are being moved: for each id its queue, whether it leaves that queue, and the tasks
    that wait for it, if any do."""

    async def wait(self, id: MessageId) -> None:
        """Wait until a message is not locked."""
        while id in self:
            index, is_leaving, lot = self[id]
            if lot is None:
                lot = trio.lowlevel.ParkingLot()
                self[id] = index, is_leaving, lot
            await lot.park()


class RecentBodies:
    """A cache of bodies by message id, each read once at the most.

    Of a burst that does not fit, the first messages are wanted first: half of the room is theirs for some seconds. In
    the other half those kept longest make room for each new one, so that no publisher keeps the bodies of others out.

    Args:
        most_bytes: the cache's size, with :data:`OVERHEAD` for each message; 0 where others change messages, too.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._half_bytes = most_bytes // 2
        self._longest = min(LARGEST_BODY, self._half_bytes - OVERHEAD)
        self._first: OrderedDict[MessageId, _Kept] = OrderedDict()
        self._last: OrderedDict[MessageId, _Kept] = OrderedDict()
        self._first_bytes = self._last_bytes = 0

    def has(self, id: MessageId) -> bool:
        """Return whether the body of a message is kept."""
        return id in self._first or id in self._last

    def keep(self, id: MessageId, body: bytes, attributes: Mapping[str, Any]) -> None:
        """Keep the body of a message that was stored, unless it is long, or its attributes are."""
        size = len(body) + OVERHEAD
        if attributes:
            length = attributes.length if isinstance(attributes, SharedAttributes) else -1
            if length < 0:  # not yet measured
                length = length_of(attributes)
            if length > SHORT_ATTRIBUTES:
                size += 2 * length
        if id in self._first or id in self._last:
            self.take(id)
        if size - OVERHEAD > self._longest:
            return
        first, kept = self._first, (body, attributes, size)
        while self._first_bytes + size > self._half_bytes:
            oldest = next(iter(first), None)
            if oldest is None or abs(id.time - oldest.time) < KEPT_TICKS:
                self._keep_among_last(id, kept)
                return
            old = first.pop(oldest)
            self._first_bytes -= old[2]
            self._keep_among_last(oldest, old)
        first[id] = kept
        self._first_bytes += size

    def _keep_among_last(self, id: MessageId, kept: _Kept) -> None:
        size, last = kept[2], self._last
        if size > self._half_bytes:
            return
        while self._last_bytes + size > self._half_bytes:
            self._last_bytes -= last.popitem(last=False)[1][2]
        last[id] = kept
        self._last_bytes += size

    def clear(self) -> None:
        """Forget all."""
        self._first.clear()
        self._last.clear()
        self._first_bytes = self._last_bytes = 0

    def take(self, id: MessageId) -> Stored | None:
        """Return what reading the message would, and forget it; None when it is not kept."""
        kept = self._first.pop(id, None)
        if kept is not None:
            self._first_bytes -= kept[2]
        else:
            kept = self._last.pop(id, None)
            if kept is None:
                return None
            self._last_bytes -= kept[2]
        body, attributes, _ = kept
        return Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))


def _close(queue: str) -> None:
    """Do nothing: no protocol has asked for closed queues."""
