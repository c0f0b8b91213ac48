"""What the broker knows of a queue, so that a fetch never lists a folder.

The disk is the truth. At peers = 0 the index mirrors it exactly; on a shared store it is a hint, and whoever acts on it
finds out at the move.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mq.broker.bodies import Bodies
from mq.broker.queue_settings import DEFAULTS, QueueSettings
from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import FRESH, Entry

_TAIL_BITS: Final = 64
_TAIL: Final = (1 << _TAIL_BITS) - 1
_FEW_KEYS: Final = 64
"""Keys of messages that are gone do not matter, as long as they are few."""


class QueueIndex:
    """One queue's messages by place. READY ones in order, the others by id.

    A READY message that was never leased costs one integer in the heap and one key in a dictionary.

    Args:
        name: the queue's name.
        created: when it was made, in UUID ticks; earlier messages are a deleted queue's.
        settings: what is set for it.
        declared: what a door keeps with the queue, as JSON values; nothing here looks at it.
        is_transient: whether it ends with this process.

    Attributes:
        deleted: whether it is no more.
        delivering: how many messages are on their way from NEW to READY.
        moving: how many messages of the queue are on their way from one place in it to another.
        reserved: how many messages are being published.
        reserved_bytes: and how long their bodies are together.
        writing: how many of those are being written, and will stand in NEW.
        leased: how many messages in DELAYED are leased.
        bodies: what is known of the bodies, where the settings ask for it.
        new: messages in NEW.
        delayed: messages in DELAYED: leased, or held back.
        held: READY messages that somebody holds, in memory only.
        returned: messages that somebody has held, and has put back.
        exclusion: who alone may have messages of the queue; None is everybody.
    """

    def __init__(
        self,
        name: str,
        created: int,
        settings: QueueSettings = DEFAULTS,
        declared: Mapping[str, Any] | None = None,
        *,
        is_transient: bool = False,
    ) -> None:
        self.name = name
        self.created = created
        self.settings = settings
        self.declared = declared
        self.is_transient = is_transient
        self.deleted = False
        self.delivering = 0
        self.moving = 0
        self.reserved = 0
        self.reserved_bytes = 0
        self.writing = 0
        self.leased = 0
        self.bodies: Bodies | None = None
        self.new: dict[MessageId, Entry] = {}
        self.delayed: dict[MessageId, Entry] = {}
        self.held: dict[MessageId, Entry] = {}
        self.returned: set[MessageId] = set()
        self.exclusion: object | None = None
        self._heap: list[int] = []
        self._ready: dict[int, Entry | None] = {}
        self._sorted: list[int] = []
        self._reordered: dict[MessageId, int] = {}

    def record(self, settings: QueueSettings) -> dict[str, Any]:
        """What the store keeps of the queue, with these settings."""
        optional = {"settings": settings.kept(), "declared": self.declared, "transient": self.is_transient}
        return {"created": self.created} | {name: value for name, value in optional.items() if value}

    @property
    def undelivered(self) -> bool:
        """Whether messages are in NEW, or on their way from there."""
        return bool(self.new) or self.delivering > 0

    @property
    def ready(self) -> int:
        """How many messages are READY, and nobody holds them."""
        return len(self._ready)

    @property
    def total(self) -> int:
        """How many messages the queue has, those included that are being published or moved within it."""
        return len(self.new) + len(self._ready) + len(self.held) + len(self.delayed) + self.moving + self.reserved

    @property
    def counted(self) -> int:
        """How many messages count for the queue's limit: all but those that somebody holds in memory."""
        return self.total - len(self.held)

    def add(self, entry: Entry) -> None:
        """This message is there."""
        if entry.state is State.NEW:
            self.new[entry.id] = entry
        elif entry.state is State.DELAYED:
            before = self.delayed.get(entry.id)
            self.delayed[entry.id] = entry
            self.leased += (entry.meta.claim is not None) - (before is not None and before.meta.claim is not None)
        elif entry.state is State.READY:
            self._add_ready(entry)

    def take(self) -> Entry | None:
        """Take the first READY message out of the index."""
        while self._heap:
            key = heapq.heappop(self._heap)
            if key in self._ready:
                return self._take_key(key)
        self._sorted = []
        return None

    def first(self, count: int) -> list[Entry]:
        """The first `count` READY messages; they stay in the index."""
        keys: list[int] = []
        while self._heap and len(keys) < count:
            key = heapq.heappop(self._heap)
            if key in self._ready and key not in keys:
                keys.append(key)
        for key in keys:
            heapq.heappush(self._heap, key)
        return [self._entry(key) for key in keys]

    def oldest(self) -> Entry | None:
        """The message that nobody holds and that has been in the queue for longest; what is in NEW comes to that."""
        held_back = next((entry for entry in self.delayed.values() if entry.meta.claim is None), None)
        first = next(iter(self.first(1)), None)
        return min((entry for entry in (held_back, first) if entry is not None), key=_joined, default=None)

    def find(self, id: MessageId) -> Entry | None:
        """Where the message is, as far as is known here."""
        key = self._key(id)
        if key is not None:
            return self._entry(key)
        return self.new.get(id) or self.delayed.get(id) or self.held.get(id)

    def hold(self, entry: Entry) -> None:
        """Somebody holds this message, which was taken out just now."""
        self.held[entry.id] = entry

    def ids(self, state: State) -> set[MessageId]:
        """The messages in a state."""
        if state is State.READY:
            return {self._entry(key).id for key in self._ready}
        return set(self.new if state is State.NEW else self.delayed)

    def after(self, id: MessageId | None, count: int) -> list[Entry]:
        """The READY messages that come after `id` (None: all), the first `count` of them; in a time that grows with the
        queue."""
        start = -1 if id is None else self._reordered.get(id) or id.key
        return [self._entry(key) for key in heapq.nsmallest(count, (key for key in self._ready if key > start))]

    def sequences(self) -> list[int]:
        """The places of the READY messages in their order; in a time that grows with the queue."""
        return [key >> _TAIL_BITS for key in self._keys() if key in self._ready]

    def between(self, after: int, up_to: int | None, count: int) -> tuple[list[int], list[Entry]]:
        """The first `count` READY messages whose sequence is greater than `after` and at most `up_to`: their sequences,
        and they. The first time after messages came out of order, in a time that grows with the queue."""
        keys, ready = self._keys(), self._ready
        start = bisect.bisect_left(keys, (after + 1) << _TAIL_BITS)
        stop = len(keys) if up_to is None else bisect.bisect_left(keys, (up_to + 1) << _TAIL_BITS)
        found: list[int] = []
        while start < stop and len(found) < count:
            some = keys[start : min(stop, start + count - len(found))]
            found += [key for key in some if key in ready]
            start += len(some)
        return [key >> _TAIL_BITS for key in found], [self._entry(key) for key in found]

    def in_order(self) -> Iterator[Entry]:
        """The READY messages in their order, in a time that grows with the queue."""
        return (self._entry(key) for key in sorted(self._ready))

    def entries(self) -> Iterator[Entry]:
        """All messages that are not on their way, in no order."""
        yield from self.new.values()
        yield from self.held.values()
        yield from (self._entry(key) for key in self._ready)
        yield from self.delayed.values()

    def expiring(self) -> list[MessageId]:
        """The READY messages that expire."""
        return [entry.id for entry in self._ready.values() if entry is not None and entry.meta.expires_ms is not None]

    def discard(self, id: MessageId) -> Entry | None:
        """Take a message out of the index, wherever it is. None when it was not in it."""
        if id in self.held:
            return self.held.pop(id)
        key = self._key(id)
        if key is not None:
            entry = self._take_key(key)
            self._compact()
            return entry
        if id in self.delayed:
            entry = self.delayed.pop(id)
            self.leased -= entry.meta.claim is not None
            return entry
        return self.new.pop(id, None)

    def _add_ready(self, entry: Entry) -> None:
        key = own = entry.id.key
        if entry.meta.order is not None:
            key = entry.meta.order << _TAIL_BITS | key & _TAIL
        while key in self._ready and self._entry(key).id != entry.id:
            key += 1 << _TAIL_BITS  # two brokers gave two messages one instant: one of them stands behind the other
        if key != own:
            self._reordered[entry.id] = key
        if key not in self._ready:
            heapq.heappush(self._heap, key)
            if self._sorted:
                self._sort_in(key)
        self._ready[key] = None if key == own and entry.meta == FRESH else entry

    def _keys(self) -> list[int]:
        """The keys of the READY messages in their order, and perhaps some of messages that were. They are kept for
        whoever reads on, until one comes in between."""
        if not self._sorted or len(self._sorted) > 2 * len(self._ready) + _FEW_KEYS:
            self._sorted = sorted(self._ready)
        return self._sorted

    def _sort_in(self, key: int) -> None:
        last = self._sorted[-1]
        if key < last or len(self._sorted) > 2 * len(self._ready) + _FEW_KEYS:
            self._sorted = []
        elif key > last:
            self._sorted.append(key)

    def _key(self, id: MessageId) -> int | None:
        """By which a READY message stands in the order. One that is not READY has none, though another may stand at the
        very instant of its id: of the same writer, brought there by a broker whose clock showed that instant."""
        key = self._reordered.get(id) or id.key
        if key not in self._ready:
            return None
        there = self._ready[key]
        return key if there is None or there.id == id else None

    def _entry(self, key: int) -> Entry:
        return self._ready[key] or Entry(self.name, MessageId.from_key(key), State.READY)

    def _take_key(self, key: int) -> Entry:
        entry = self._entry(key)
        del self._ready[key]
        self._reordered.pop(entry.id, None)
        return entry

    def _compact(self) -> None:
        """Messages removed from the middle leave their keys in the heap: rebuild it before they outnumber the rest."""
        if len(self._heap) > 2 * len(self._ready) + _FEW_KEYS:
            self._heap = list(self._ready)
            heapq.heapify(self._heap)


def _joined(entry: Entry) -> tuple[int, int]:
    return (entry.joined, entry.id.key)
