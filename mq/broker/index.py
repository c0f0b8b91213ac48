"""A queue's index in memory, so that a fetch never lists a folder.

The disk is the truth. At peers = 0 the index mirrors it exactly. On a shared store the index is a hint: a move finds
out whether the message is still there.
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import chain, takewhile
from typing import Any, Final

from mq.broker.bodies import BodyStats
from mq.broker.message_groups import GroupTurns, MessageGroups, heaps_of
from mq.broker.settings import DEFAULTS, QueueSettings
from mq.lifecycle import State
from mq.message import OF_A_PROCESS, MessageId
from mq.storage.interface import FRESH, GIVEN_MS, Entry, Meta

_KEY_BITS: Final = 128
_KEY: Final = (1 << _KEY_BITS) - 1
_FIRST_GIVEN: Final = GIVEN_MS << _KEY_BITS
_READY: Final = State.READY  # quicker than an attribute of the enumeration
_DELAYED: Final = State.DELAYED
_STALE_DEADLINES: Final = 64
"""Deadlines of messages that are gone may stay in the heap up to this number, and more in a long one."""


class FarOff:
    """Delayed messages of one queue, by their deadlines.

    Deadlines of steady time and instants that users gave are apart. One that was never leased, and has no time to live,
    costs a key, and its deadline and key as one integer in a heap.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._there: dict[int, int | Entry] = {}
        self._steady: list[int] = []
        self._given: list[int] = []
        self._ages: dict[int, int] = {}  # of those that have one

    def __len__(self) -> int:
        return len(self._there)

    @property
    def has_given(self) -> bool:
        """Whether there may be messages with an instant that a user gave."""
        return bool(self._there and self._given)

    def __iter__(self) -> Iterator[Entry]:
        for key in self._there:  # compiled, a generator expression would be a list, and no iterator
            yield self._entry(key)

    def seen(self) -> Iterator[Entry]:
        """Those that are there now, as far as they still are when it is their turn: they may change meanwhile."""
        keys = list(self._there)
        return (self._entry(key) for key in keys if key in self._there)

    def odd(self) -> Iterator[Entry]:
        """Those that were leased before, have a time to live, or an order."""
        return (entry for entry in self._there.values() if not isinstance(entry, int))

    def add(self, entry: Entry, key: int, age_ms: int = 0) -> None:
        """Add a delayed message that no delivery holds, or replace its entry.

        Args:
            age_ms: by so much its deadline is over sooner than steady time says.
        """
        deadline_ms, receives, _, order, expires_ms = entry.meta
        assert deadline_ms is not None, "what has no deadline is not delayed"
        is_plain = not receives and order is None and expires_ms is None
        # One integer for both: the deadline's own came with the listing, all of whose memory it would keep.
        due = deadline_ms << _KEY_BITS | key
        self._there[key] = due if is_plain else entry
        self._set_age(key, age_ms)
        if deadline_ms < GIVEN_MS:
            heapq.heappush(self._steady, due - (age_ms << _KEY_BITS))
        else:
            heapq.heappush(self._given, due)

    def find(self, id: MessageId) -> Entry | None:
        """The message of that id; None without it."""
        if not self._there:
            return None
        key = id.key
        return self._entry(key) if key in self._there else None

    def discard(self, id: MessageId) -> Entry | None:
        """Take a message out; None when it was not there."""
        entry = self.find(id)
        if entry is not None:
            del self._there[id.key]
            self._ages.pop(id.key, None)
            self._compact()
        return entry

    def take(self, up_to_ms: int, most: int) -> list[Entry]:
        """Take out up to `most` messages, those with the first deadlines, and none with one later than `up_to_ms`: of
        steady time, or of instants that users gave where `up_to_ms` is such an instant."""
        taken: list[Entry] = []
        heap = self._steady if up_to_ms < GIVEN_MS else self._given
        while heap and len(taken) < most and heap[0] >> _KEY_BITS <= up_to_ms:
            first = heapq.heappop(heap)
            key = first & _KEY
            if key in self._there and self._due(key) == first:
                taken.append(self._entry(key))
                del self._there[key]
                self._ages.pop(key, None)
        return taken

    def after(self, key: int, count: int) -> list[Entry]:
        """The first `count` messages by their ids, from the one after `key` on. Takes time in proportion to all."""
        return [self._entry(found) for found in heapq.nsmallest(count, (each for each in self._there if each > key))]

    def _entry(self, key: int) -> Entry:
        there = self._there[key]
        if isinstance(there, int):
            return Entry(self._queue, MessageId.from_key(key), State.DELAYED, Meta(there >> _KEY_BITS))
        return there

    def set_ages(self, age_ms: Callable[[Entry], int]) -> None:
        """Have other ages from now on: those that a function returns."""
        for key in self._there:
            self._set_age(key, age_ms(self._entry(key)))
        self._rebuild()

    def _set_age(self, key: int, age_ms: int) -> None:
        if age_ms:
            self._ages[key] = age_ms
        elif self._ages:
            self._ages.pop(key, None)

    def _due(self, key: int) -> int:
        """What the heap has for a message: its deadline, sooner by its age, and its key."""
        deadline_ms = self._entry(key).meta.deadline_ms
        assert deadline_ms is not None, "what has no deadline is not delayed"
        age_ms = self._ages.get(key, 0) if self._ages and deadline_ms < GIVEN_MS else 0
        return (deadline_ms - age_ms) << _KEY_BITS | key

    def _compact(self) -> None:
        """Rebuild the heaps when most of their deadlines are of messages that were taken out."""
        if len(self._steady) + len(self._given) > 2 * len(self._there) + _STALE_DEADLINES:
            self._rebuild()

    def _rebuild(self) -> None:
        has_ages = bool(self._ages)
        dues = [
            self._due(key) if has_ages or not isinstance(entry, int) else entry for key, entry in self._there.items()
        ]
        self._steady = [due for due in dues if due < _FIRST_GIVEN]
        self._given = [due for due in dues if due >= _FIRST_GIVEN]
        heapq.heapify(self._steady)
        heapq.heapify(self._given)


_TAIL_BITS: Final = 64
_TAIL: Final = (1 << _TAIL_BITS) - 1
_STALE_KEYS: Final = 64
"""Keys of messages that are gone may stay in the heap up to this number, and more in a long queue."""
PRIORITY_TICKS: Final = 1 << 49
"""What each step of priority adds to a message's order, in UUID ticks: about 650 days. So the order keeps the priority,
whatever the queue makes of it."""


class QueueIndex:
    """One queue's messages by state: READY ones in order, the others by id.

    A READY message that was never leased costs one integer in the heap and one key in a dictionary. Its key says when
    it joined the queue; each priority has a heap of its own. So another `max_priority` applies at once to all messages.

    Args:
        created: when it was made, in UUID ticks. Only shown: clocks are set, so nothing compares it.
        declared: a server's own value for the queue, in JSON; the broker does not read it.
        is_transient: whether it ends with this process.
        incarnation: tells it from every other queue that has or had its name; 0 for one that was made by hand.
        purges: how many purges have made it forget the keys that a purge ends.
        owner: the user who made it; None where there are no users.

    Attributes:
        under_way: how many of its messages are being moved, to any place.
        stuck: how many messages of the deleted queue cannot be removed for now.
        is_going: whether it is being deleted; the store may have removed its messages already.
        delivering: messages that are being moved from NEW to READY, but for those to be dropped.
        dropping: the others of these: they are over a limit of the queue, and no longer count. Each is dropped once it
            arrives, for a message that is being moved cannot be.
        moving: how many messages are being moved from one place in the queue to another.
        reserved_bytes: bytes of their bodies together.
        writing: how many of those are being written, and are dispatched to no request.
        writing_moved: how many of these will stand in NEW, from where they are moved.
        leased: how many messages in DELAYED are leased.
        bodies: the body stats, where the settings need them.
        far_off: those of them that are due in more than half a day.
        held: READY messages that connections hold, in memory only.
        claims: which batch consumer's claim holds a message, by its id: wherever that is READY, it is claimed.
        claimed: READY messages that claims hold.
        has_batch_consumers: whether the queue has, or had, a batch consumer since the broker's start.
        returned: messages that a connection has held, and has put back.
        is_waited_for: whether requests wait for its messages, or a worker was called for them. Set by
            :class:`~mq.broker.waiters.Waiters`.
        exclusion: of the one consumer that has the queue alone; None without one.
        turns_to_exclude: of the consumers that wait to have it alone, in their order.
        groups: the message groups; None where the settings have none.
    """

    def __init__(
        self,
        name: str,
        created: int,
        settings: QueueSettings = DEFAULTS,
        declared: Mapping[str, Any] | None = None,
        *,
        is_transient: bool = False,
        incarnation: int = 0,
        purges: int = 0,
        owner: str | None = None,
    ) -> None:
        self.name = name
        self.created = created
        self.incarnation = incarnation
        self.purges = purges
        self.owner = owner
        self.settings = settings
        self.declared = declared
        self.is_transient = is_transient
        self.deleted = False
        self.under_way = 0
        self.stuck = 0
        self.is_going = False
        self.delivering: dict[MessageId, Entry] = {}
        self.dropping: dict[MessageId, Entry] = {}
        self.moving = 0
        self.reserved = 0
        self.reserved_bytes = 0
        self.writing = self.writing_moved = 0
        self.leased = 0
        self.bodies: BodyStats | None = None
        self.new: dict[MessageId, Entry] = {}
        self.delayed: dict[MessageId, Entry] = {}
        self.far_off = FarOff(name)
        self.held: dict[MessageId, Entry] = {}
        self.claims: dict[MessageId, object] = {}
        self.claimed: dict[MessageId, Entry] = {}
        self.has_batch_consumers = False
        self.returned: set[MessageId] = set()
        self.is_waited_for = False
        self.exclusion: object | None = None
        self.turns_to_exclude: deque[Any] = deque()
        self._heap: list[int] = []  # of the messages without a priority
        self._higher: dict[int, list[int]] = {}  # of the others, by their priority
        self._ready: dict[int, Entry | None] = {}
        self._sorted: list[int] = []
        self._reordered: dict[MessageId, int] = {}
        self._turns: GroupTurns | None = None  # from the first message with a group, in a queue without groups
        self.groups = MessageGroups(self._ready) if settings.groups else None

    def record(self, settings: QueueSettings, purges: int | None = None) -> dict[str, Any]:
        """The queue's record in the store, with these settings, and after so many purges; None for the present ones."""
        optional = {
            "incarnation": self.incarnation,
            "purges": self.purges if purges is None else purges,
            "settings": settings.kept(),
            "declared": self.declared,
            "transient": self.is_transient,
            "owner": self.owner,
        }
        return {"created": self.created} | {name: value for name, value in optional.items() if value}

    @property
    def undelivered(self) -> bool:
        """Whether messages are in NEW, or being moved from there."""
        return bool(self.new or self.delivering or self.dropping)

    @property
    def is_returning(self) -> bool:
        """Whether messages that were put back may be in NEW, or being moved from there."""
        if not self.returned:
            return False
        is_moved = bool(self.delivering or self.dropping)
        return is_moved or not self.new.keys().isdisjoint(self.returned)

    def is_plain(self) -> bool:
        """Whether its order is that of its READY messages alone: no groups take turns, and none is undelivered."""
        return self.groups is None and self._turns is None and not (self.new or self.delivering or self.dropping)

    @property
    def ready(self) -> int:
        """How many messages are READY, and neither held nor claimed."""
        return len(self._ready)

    @property
    def total(self) -> int:
        """How many messages the queue has, with those that are being published or moved within it."""
        there = len(self.new) + len(self._ready) + len(self.held) + len(self.claimed) + len(self.delayed)
        return there + len(self.far_off) + self.moving + self.reserved

    @property
    def counted(self) -> int:
        """How many messages count for the queue's limit: all but those held in memory, and those to be dropped."""
        return self.total - len(self.held) - len(self.dropping)

    def regroup(self, moving: Iterable[MessageId]) -> None:
        """Begin or end message groups, as the settings say now. They hand out nothing before :meth:`regroup_some` has
        been called until it says that nothing is left.
        """
        self._turns = None
        self.groups = MessageGroups(self._ready) if self.settings.groups else None
        if self.groups is None:
            if any(not key & OF_A_PROCESS for key in self._ready):  # mostly none has a group
                self._turns = GroupTurns(self._ready, heaps_of(self._ready))
            return
        odd = (entry.id for entry in self.far_off.odd())
        self.groups.begin(chain(self.new, self.held, self.claimed, self.delayed, odd))
        for id in moving:
            self.groups.block(id)
            self.groups.moves(id)

    def regroup_some(self, most: int, is_moving: Callable[[MessageId], bool]) -> bool:
        """Go on to begin message groups, with up to `most` messages. Whether any are left."""
        groups = self.groups
        if groups is None:
            return False
        for _ in range(most):
            id = groups.next_elsewhere()
            if id is not None:
                self._note_elsewhere(groups, id, is_moving)
                continue
            key = groups.unread()
            if key is None:
                return False
            entry = self._entry(key)
            groups.ready(entry.id, key, has_come_back=entry.meta.receives > 0)
        return True

    def add(self, entry: Entry) -> None:
        """Add a message, or replace its entry."""
        if entry.state is _READY:
            if entry.id not in self.claims:
                self._add_ready(entry)
                return
            self.claimed[entry.id] = entry
            if self.groups is not None:
                self.groups.block(entry.id, _key_of(entry))
            return
        if entry.state is _DELAYED:
            before = self.delayed.get(entry.id)
            self.delayed[entry.id] = entry
            self.leased += (entry.meta.receipt is not None) - (before is not None and before.meta.receipt is not None)
        elif entry.state is State.NEW:
            self.new[entry.id] = entry
        if self.groups is not None:
            self._note_in_group(self.groups, entry)

    def put_off(self, entry: Entry, key: int, age_ms: int = 0) -> None:
        """Note that a delayed message, which was just added, is far off.

        Args:
            age_ms: by so much its deadline is over sooner than steady time says.
        """
        del self.delayed[entry.id]
        self.far_off.add(entry, key, age_ms)

    def all_delayed(self) -> Iterator[Entry]:
        """The messages in DELAYED, in no order."""
        yield from self.delayed.values()
        yield from self.far_off

    def outside_folder(self) -> Iterator[Entry]:
        """The messages in NEW and DELAYED as they are now. The index may change while they are looked at: of those far
        off, what has gone by then is left out."""
        return chain(list(self.new.values()), list(self.delayed.values()), self.far_off.seen())

    def take(self, last: MessageId | None = None) -> Entry | None:
        """Take the next READY message out of the index; None without one. In a queue with message groups it comes from
        that of `last`, which the same request got just before, or else from a free group. In any other, groups that
        messages name take turns, unless priorities say what comes first."""
        if self.groups is not None:
            next_key = self.groups.next(last)
            return None if next_key is None else self._take_key(next_key)
        if self._turns is not None and not self.settings.max_priority:
            next_key = self._turns.take()
            return None if next_key is None else self._take_key(next_key)
        heap = self._first_heap()
        if heap is not None:
            return self._take_key(heapq.heappop(heap))
        self._sorted = []
        return None

    def first(self, count: int) -> list[Entry]:
        """The first `count` READY messages; they stay in the index."""
        found: dict[int, list[int]] = {}
        while len(found) < count and (heap := self._first_heap()) is not None:
            found[heapq.heappop(heap)] = heap
        for key, heap in found.items():
            heapq.heappush(heap, key)
        return [self._entry(key) for key in found]

    def next(self, last: MessageId | None = None, up_to: int | None = None) -> Entry | None:
        """What :meth:`take` would take, if its sequence is at most `up_to`; it stays in the index."""
        if self.groups is not None:
            key = self.groups.next(last, up_to)
            return None if key is None else self._entry(key)
        heap = self._first_heap()
        first = None if heap is None else heap[0]
        if first is not None and up_to is not None and first >> _TAIL_BITS > up_to:
            # Only with priorities an earlier one may stand behind the first.
            there = (key for key in self._ready if key >> _TAIL_BITS <= up_to) if self._higher else ()
            first = min(there, key=self._place, default=None)
        return None if first is None else self._entry(first)

    def oldest(self) -> Entry | None:
        """The message that has been in the queue for longest and is not leased or held; None without one. It may be in
        NEW, or among those in :attr:`delivering`."""
        held_back = None
        if len(self.delayed) > self.leased:  # else all of them are leased
            held_back = next((entry for entry in self.delayed.values() if entry.meta.receipt is None), None)
        far = next(iter(self.far_off), None)
        new, coming = (next(iter(entries.values()), None) for entries in (self.new, self.delivering))
        first = next(iter(self.first(1)), None)
        found = (entry for entry in (held_back, far, new, coming, first) if entry is not None)
        return min(found, key=_joined, default=None)

    def deliver(self, entry: Entry) -> None:
        """Note that a message is being moved from NEW to READY."""
        self.delivering[entry.id] = entry

    def drop_delivered(self, entry: Entry) -> None:
        """Note that a message which is being delivered is to be dropped. It no longer counts."""
        self.dropping[entry.id] = self.delivering.pop(entry.id)
        if self.bodies is not None:
            self.bodies.leaving(entry.id)

    def delivered(self, id: MessageId) -> None:
        """Note that the delivery of a message has ended, however it did: it counts again."""
        if self.delivering.pop(id, None) is None:
            del self.dropping[id]

    def find(self, id: MessageId) -> Entry | None:
        """Where the message is, as far as the index knows; None without it."""
        delayed = self.delayed.get(id)  # first, for a message is mostly looked for while it is leased
        if delayed is not None:
            return delayed
        if id in self.claimed:
            return self.claimed[id]
        key = self._key(id)
        if key is not None:
            return self._entry(key)
        return self.new.get(id) or self.held.get(id) or self.far_off.find(id)

    def hold(self, entry: Entry) -> None:
        """Note that a connection holds a message just taken out."""
        self.held[entry.id] = entry
        if self.groups is not None:
            self.groups.rests(entry.id)

    def claim(self, id: MessageId, consumer: object) -> None:
        """Let a consumer's claim hold a message, which is not handed out then: at once if it is READY, or when it is
        READY again."""
        self.claims[id] = consumer
        key = self._key(id)
        if key is not None:
            self.claimed[id] = self._take_key(key)
            self._compact()
            if self.groups is not None:
                self.groups.rests(id)

    def unclaim(self, id: MessageId) -> Entry | None:
        """Let no claim hold a message. Returns it if it is READY: it is out of the index until it is added again."""
        self.claims.pop(id, None)
        if self.groups is not None:
            self.groups.moves(id)
        return self.claimed.pop(id, None)

    def is_out(self, id: MessageId) -> bool:
        """Whether a READY message is held or claimed."""
        return id in self.held or id in self.claimed

    def ids(self, state: State) -> set[MessageId]:
        """The messages in a state."""
        if state is State.READY:
            return {self._entry(key).id for key in self._ready}
        if state is State.NEW:
            return set(self.new)
        return {entry.id for entry in self.all_delayed()}

    def after(self, id: MessageId | None, count: int) -> list[Entry]:
        """The first `count` READY messages after `id` (None: from the start). Takes time in proportion to the queue."""
        place = self._place
        if not (self._higher and self.settings.max_priority):
            start = -1 if id is None else self._reordered.get(id) or id.key
            return [self._entry(key) for key in heapq.nsmallest(count, (key for key in self._ready if key > start))]
        behind: Iterable[int] = self._ready
        if id is not None:
            last = place(self._reordered.get(id) or id.key)
            behind = (key for key in self._ready if place(key) > last)
        return [self._entry(key) for key in heapq.nsmallest(count, behind, key=place)]

    def sequences(self) -> list[int]:
        """The sequences of the READY messages, sorted. Takes time in proportion to the queue."""
        return [key >> _TAIL_BITS for key in self._keys() if key in self._ready]

    def between(self, after: int, up_to: int | None, count: int) -> tuple[list[int], list[Entry]]:
        """The first `count` READY messages whose sequence is greater than `after` and at most `up_to`, and those that
        have the last one's sequence, too: their sequences, and their entries. The first call after a message came out
        of order takes time in proportion to the queue."""
        keys = self._between(after, up_to, count)
        return [key >> _TAIL_BITS for key in keys], [self._entry(key) for key in keys]

    def named_between(self, after: int, up_to: int | None, count: int) -> tuple[list[int], list[int | Entry]]:
        """As :meth:`between`, with the id's key instead of the entry of each message that has FRESH meta."""
        keys, ready = self._between(after, up_to, count), self._ready
        return [key >> _TAIL_BITS for key in keys], [ready[key] or key for key in keys]

    def among(
        self, ids: Iterable[MessageId], after: int, up_to: int | None, count: int
    ) -> tuple[list[int], list[Entry]]:
        """As :meth:`between`, messages of these ids. Takes time in proportion to the ids."""
        keys = sorted({key for key in map(self._key, ids) if key is not None})
        start, stop = self._places(keys, after, up_to)
        found = keys[start : min(stop, start + count)]
        found += takewhile(lambda key: key >> _TAIL_BITS == found[-1] >> _TAIL_BITS, keys[start + len(found) : stop])
        return [key >> _TAIL_BITS for key in found], [self._entry(key) for key in found]

    def of_group(
        self, number: int, after: int, up_to: int | None, count: int, looks: int
    ) -> tuple[list[int], list[Entry], int | None]:
        """As :meth:`between`, the messages of the group of that number, among the first `looks` messages. The third is
        the sequence to go on after; None at the end."""
        keys = self._keys()
        start, stop = self._places(keys, after, up_to)
        found: list[int] = []
        last = -1
        for place in range(start, stop):
            # Messages of one sequence stay together, as the next call begins behind it.
            if (len(found) >= count or place - start >= looks) and keys[place] >> _TAIL_BITS != last:
                return [key >> _TAIL_BITS for key in found], [self._entry(key) for key in found], last
            last = keys[place] >> _TAIL_BITS
            if MessageId.group_in(keys[place]) == number and keys[place] in self._ready:
                found.append(keys[place])
        return [key >> _TAIL_BITS for key in found], [self._entry(key) for key in found], None

    @staticmethod
    def _places(keys: list[int], after: int, up_to: int | None) -> tuple[int, int]:
        """The places of the keys whose sequences are greater than `after` and at most `up_to`."""
        stop = len(keys) if up_to is None else bisect.bisect_left(keys, (up_to + 1) << _TAIL_BITS)
        return bisect.bisect_left(keys, (after + 1) << _TAIL_BITS), stop

    def _between(self, after: int, up_to: int | None, count: int) -> list[int]:
        keys, ready = self._keys(), self._ready
        start, stop = self._places(keys, after, up_to)
        found: list[int] = []
        while start < stop and len(found) < count:
            some = keys[start : min(stop, start + count - len(found))]
            found += [key for key in some if key in ready]
            start += len(some)
        # Brokers may give two messages one sequence: what comes after the first would pass over the second.
        while found and start < stop and keys[start] >> _TAIL_BITS == found[-1] >> _TAIL_BITS:
            found += [key for key in keys[start : start + 1] if key in ready]
            start += 1
        return found

    def in_order(self) -> Iterator[Entry]:
        """The READY messages in their order. Takes time in proportion to the queue. The index may change while they are
        looked at: what has gone by then is left out."""
        keys = sorted(self._ready, key=self._place if self._higher else None)
        return (self._entry(key) for key in keys if key in self._ready)

    def seen(self) -> Iterator[Entry]:
        """As :meth:`entries`, as they are now. The index may change while they are looked at: what has gone by then is
        left out."""
        ready = list(self._ready)
        others = [*self.held.values(), *self.claimed.values()]
        return chain(others, (self._entry(key) for key in ready if key in self._ready), self.outside_folder())

    def entries(self) -> Iterator[Entry]:
        """All messages that are not being moved, in no order."""
        yield from self.new.values()
        yield from self.held.values()
        yield from self.claimed.values()
        yield from (self._entry(key) for key in self._ready)
        yield from self.all_delayed()

    def expiring(self) -> list[MessageId]:
        """The ids of the READY messages that expire."""
        return [entry.id for entry in self._ready.values() if entry is not None and entry.meta.expires_ms is not None]

    def discard(self, id: MessageId) -> Entry | None:
        """Take a message out of the index, in any state. None when it was not in it.

        If it was READY or out, its group is blocked until it is added again, or released: it is gone.
        """
        if self.groups is not None:
            self.groups.moves(id)
        if id in self.held:
            return self.held.pop(id)
        if id in self.delayed:
            entry = self.delayed.pop(id)
            self.leased -= entry.meta.receipt is not None
            return entry
        if id in self.claimed:
            return self.claimed.pop(id)
        key = self._key(id)
        if key is not None:
            entry = self._take_key(key)
            self._compact()
            return entry
        return self.new.pop(id, None) or self.far_off.discard(id)

    def _note_elsewhere(self, groups: MessageGroups, id: MessageId, is_moving: Callable[[MessageId], bool]) -> None:
        """Note where a message is that was not READY when the groups began. If it is READY by now, that is noted."""
        if is_moving(id):
            groups.block(id)
            groups.moves(id)
        elif self._key(id) is None or id in self.claimed:
            entry = self.find(id)
            if entry is not None:
                self._note_in_group(groups, entry)

    def _note_in_group(self, groups: MessageGroups, entry: Entry) -> None:
        """Note a message that is not READY: whether others of its group have to wait for it."""
        if entry.state is State.NEW and entry.meta.deadline_ms is None:
            groups.coming(entry.id, _key_of(entry))
        elif entry.state is not State.NEW and (entry.state is State.READY or _was_handed_out(entry)):
            groups.block(entry.id, _key_of(entry))

    def _add_ready(self, entry: Entry) -> None:
        meta, ready = entry.meta, self._ready
        own = entry.id.key
        key = own if meta.order is None else _key_of(entry)
        while key in ready and self._entry(key).id != entry.id:
            key += 1 << _TAIL_BITS  # two brokers gave two messages one instant: one goes behind the other
        if key != own:
            self._reordered[entry.id] = key
        is_new = key not in ready
        if is_new:
            if self.groups is None and (self._turns is not None or not key & OF_A_PROCESS):
                self._note_turn(key)
            priority = 0 if meta.order is None else priority_of(entry)
            heapq.heappush(self._higher.setdefault(priority, []) if priority else self._heap, key)
            if self._sorted:
                self._sort_in(key)
        ready[key] = None if key == own and meta == FRESH else entry
        if is_new and self.groups is not None:
            self.groups.ready(entry.id, key, has_come_back=meta.receives > 0)

    def _note_turn(self, key: int) -> None:
        """Note a message that is about to be READY, where groups take turns or begin to with it."""
        if self._turns is None:
            self._turns = GroupTurns(self._ready, heaps_of(self._ready))
        self._turns.ready(key)

    def _keys(self) -> list[int]:
        """The sorted keys of the READY messages, and perhaps a few of messages that are gone."""
        # Kept for the next page, until a message comes in between.
        if not self._sorted or len(self._sorted) > 2 * len(self._ready) + _STALE_KEYS:
            self._sorted = sorted(self._ready)
        return self._sorted

    def _sort_in(self, key: int) -> None:
        last = self._sorted[-1]
        if key < last or len(self._sorted) > 2 * len(self._ready) + _STALE_KEYS:
            self._sorted = []
        elif key > last:
            self._sorted.append(key)

    def _key(self, id: MessageId) -> int | None:
        """The key of a READY message; None for any other."""
        key = self._reordered.get(id) or id.key
        if key not in self._ready:
            return None
        # Another message may stand at this key: a broker whose clock showed the instant of this id requeued it there.
        there = self._ready[key]
        return key if there is None or there.id == id else None

    def _entry(self, key: int) -> Entry:
        return self._ready[key] or Entry(self.name, MessageId.from_key(key), State.READY)

    def _take_key(self, key: int) -> Entry:
        entry = self._ready.pop(key) or Entry(self.name, MessageId.from_key(key), _READY)
        if self._reordered:
            self._reordered.pop(entry.id, None)
        if self.groups is not None:
            self.groups.taken(entry.id, key)
            self._compact()
        elif self._turns is not None:
            self._turns.left()
            self._compact()
            if not self._ready:
                self._turns, self._heap, self._higher = None, [], {}
        return entry

    def _compact(self) -> None:
        """Rebuild the heap when most of its keys are of messages that were taken from the middle."""
        if len(self._heap) + sum(map(len, self._higher.values())) <= 2 * len(self._ready) + _STALE_KEYS:
            return
        # Without a Python step for each message: it holds up all other work.
        ready = self._ready.keys()
        self._higher = {priority: list(ready & heap) for priority, heap in self._higher.items()}
        self._heap = list(ready & self._heap) if self._higher else list(ready)
        for heap in (self._heap, *self._higher.values()):
            heapq.heapify(heap)

    def _first_heap(self) -> list[int] | None:
        """The heap whose first key is that of the first READY message; None without one."""
        heap, ready = self._heap, self._ready
        while heap and heap[0] not in ready:  # as `_without_stale`: that of every message that is taken
            heapq.heappop(heap)
        if not self._higher:
            return heap or None
        top = self.settings.max_priority
        heaps = {0: heap, **self._higher}
        places: list[tuple[int, int, int]] = []
        for priority, heap in heaps.items():
            if _without_stale(heap, ready):
                places.append((-min(priority, top), heap[0], priority))
            elif priority:
                del self._higher[priority]
        return heaps[min(places)[2]] if places else None

    def _priority(self, key: int) -> int:
        """The priority of the READY message at `key`, whatever the queue makes of it."""
        entry = self._ready.get(key)
        return 0 if entry is None else priority_of(entry)

    def _place(self, key: int) -> tuple[int, int]:
        """Where the message at `key` stands among the READY ones: priorities come first, as far as the queue has
        them."""
        return -min(self._priority(key), self.settings.max_priority), key


def _without_stale(heap: list[int], ready: Container[int]) -> list[int]:
    """A heap of keys, after those of messages that are gone were taken from its top."""
    while heap and heap[0] not in ready:
        heapq.heappop(heap)
    return heap


def _key_of(entry: Entry) -> int:
    """Where a message stands in its queue once it is READY, among those of its priority."""
    key = entry.id.key
    return key if entry.meta.order is None else sequence_of(entry) << _TAIL_BITS | key & _TAIL


def _was_handed_out(entry: Entry) -> bool:
    """Whether a delayed message is leased, or held back after a failure, and not only to come later."""
    return entry.meta.receipt is not None or entry.meta.receives > 0


def incarnation_of(record: Mapping[str, Any]) -> int:
    """The incarnation of a queue, from its record or from another record that names it; 0 if the record is damaged."""
    return int(record.get("incarnation") or 0)


def priority_of(entry: Entry) -> int:
    """The priority with which a message was published, from 0 to 255."""
    return max(0, entry.joined - entry.id.time) // PRIORITY_TICKS


def sequence_of(entry: Entry) -> int:
    """When a message came into its queue, in UUID ticks, whatever its priority."""
    if entry.meta.order is None:
        return entry.id.time  # a start asks this of every message
    return entry.joined - priority_of(entry) * PRIORITY_TICKS


def order_of(sequence: int, priority: int) -> int:
    """The order of a message that comes into its queue then: it keeps the priority, too."""
    return sequence + priority * PRIORITY_TICKS


def _joined(entry: Entry) -> tuple[int, int]:
    return (sequence_of(entry), entry.id.key)
