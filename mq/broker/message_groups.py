"""A queue's message groups: which of its groups may hand out a message next.

The messages of one group are handed out one after the other, in the order of the queue. A group is *blocked* while one
of its messages is out: leased, held, held back after a failure, or being moved. Only one that was out itself, and has
come back, may be handed out while later ones, which the same request got, are still out. While any is being moved it
waits, too: of several that are given back together none comes before all are there. Free groups take turns, so a long
backlog of one keeps no other waiting. The costs are those of the group at hand, however many there are.

A message that is damaged is *passed over*: it cannot be handed out, so it is a group of its own from then on, and keeps
no other waiting.

A queue without the setting may have messages with groups, too, from servers where a group is a hint: there groups take
turns (:class:`GroupTurns`), and are never blocked.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from mq.message import OF_A_PROCESS, MessageId

_SEQUENCE_BITS: Final = 64
"""How far left in a key the sequence stands."""
_STALE_KEYS: Final = 16
"""A group's heap may keep up to this number of keys of messages that are gone, and so may the turns of groups."""


_NO_KEY: Final = -1
"""Before every key."""


class _Group:
    """One group: the keys of its messages in their order, the sorted keys of those that are out, and how many of these
    are being moved."""

    __slots__ = ("has_turn", "heap", "live", "moving", "number", "out")

    def __init__(self, number: int) -> None:
        self.number = number
        self.heap: list[int] = []  # with keys of messages that are gone
        self.live = 0
        self.out: list[int] = []
        self.moving = 0
        self.has_turn = False

    def blocks(self, key: int, last: int, *, has_come_back: bool) -> bool:
        """Whether a message at `key` has to wait for one that is out.

        Args:
            last: the key of the message that the same request got just before: those up to that are its own.
            has_come_back: whether it was out before. Then it waits for earlier ones alone.
        """
        place = bisect_right(self.out, last)
        return place < len(self.out) and (self.out[place] < key or not has_come_back)


class _Out(NamedTuple):
    """A message that is out: the number of its group, and its key there."""

    number: int
    key: int


class MessageGroups:
    """The groups of one queue. A message without a group is a group of its own.

    Args:
        ready: the keys of the queue's READY messages, always as they are now.
    """

    def __init__(self, ready: Collection[int]) -> None:
        self._ready = ready
        self._groups: dict[int, _Group] = {}
        self._turns: deque[_Group] = deque()
        self._out: dict[MessageId, _Out] = {}
        self._moving: set[MessageId] = set()
        self._come_back: set[int] = set()
        self._coming: dict[MessageId, int] = {}
        self._coming_keys: set[int] = set()
        self._passed_over: set[MessageId] = set()
        self._unread: set[int] = set()
        self._elsewhere: deque[MessageId] = deque()

    def begin(self, elsewhere: Iterable[MessageId]) -> None:
        """Begin in a queue that has messages: until each was asked for by :meth:`next_elsewhere` and :meth:`unread`,
        none is handed out.

        Args:
            elsewhere: those that are not READY, and not being moved.
        """
        self._unread = set(self._ready)
        self._elsewhere.extend(elsewhere)

    def next_elsewhere(self) -> MessageId | None:
        """A message that was not READY when the groups began: the caller has to note where it is now. None when there
        are no more."""
        return self._elsewhere.popleft() if self._elsewhere else None

    def unread(self) -> int | None:
        """The key of a message that was READY when the groups began, and still is: the caller has to say so by
        :meth:`ready` at once. None when there are no more."""
        return self._unread.pop() if self._unread else None

    def let_go(self, most: int) -> bool:
        """Forget up to so many groups, when they are asked for no more. Whether any are left."""
        for _ in range(min(most, len(self._groups))):
            self._groups.popitem()
            if self._turns:
                self._turns.popleft()
        return bool(self._groups)

    def __len__(self) -> int:
        """How many groups have messages."""
        return len(self._groups)

    def coming(self, id: MessageId, key: int) -> None:
        """Note a message that stands in NEW, and will be READY at `key`: none behind it in its group comes first."""
        if id in self._out:
            self._forget(id)
        if id not in self._coming:
            self._coming[id] = key
            self._coming_keys.add(key)
            self._push(self._group(self._number(id, key)), key)

    def ready(self, id: MessageId, key: int, *, has_come_back: bool = False) -> None:
        """Note that a message is READY at `key`; and whether it was out before, also in an earlier life."""
        group = self._group(self._number(id, key))
        self._push(group, key)
        if has_come_back or id in self._out:
            self._come_back.add(key)
        if id in self._out or id in self._coming:
            self._forget(id)
        self._give_turn(group)

    def taken(self, id: MessageId, key: int) -> None:
        """Note that a message that was READY at `key` is out."""
        if key in self._unread:
            self._unread.discard(key)
            self.block(id, key)
            self.moves(id)
            return
        group = self._groups[self._number(id, key)]
        group.live -= 1
        self._come_back.discard(key)
        if self._turns and self._turns[0] is group:
            self._turns.popleft()
            group.has_turn = False
        self._put_out(group, id, key)
        self.moves(id)
        if group.heap[0] == key:
            heapq.heappop(group.heap)
        elif len(group.heap) > 2 * group.live + _STALE_KEYS:
            group.heap = sorted({each for each in group.heap if self._is_live(each)})

    def block(self, id: MessageId, key: int | None = None) -> None:
        """Note that a message is out: its group is blocked. One that was out already stays so.

        Args:
            key: where it stands in its queue once it is READY; None for where its id puts it.
        """
        if id not in self._out:
            self._put_out(self._group(self._number(id, key)), id, id.key if key is None else key)
            self._forget(id, stays_out=True)

    def moves(self, id: MessageId) -> None:
        """Note that a message that is out is being moved. Does nothing for one that is not out."""
        out = self._out.get(id)
        if out is not None and id not in self._moving:
            self._moving.add(id)
            self._groups[out.number].moving += 1

    def rests(self, id: MessageId) -> bool:
        """Note that a message that is out has arrived where it stays out. Whether its group may hand out another."""
        out = self._out.get(id)
        if out is None or id not in self._moving:
            return False
        self._moving.discard(id)
        group = self._groups[out.number]
        group.moving -= 1
        self._give_turn(group)
        return group.has_turn

    def is_blocked(self, id: MessageId) -> bool:
        """Whether a message of that id would have to wait for another one of its group."""
        return self._is_beginning or number_of(id) in self._groups

    def pass_over(self, id: MessageId) -> bool:
        """Note that a message, which is out, is damaged. Whether its group may hand out another."""
        group = self._groups.get(number_of(id))
        out = self._out.get(id)
        if group is None or out is None or out.number != group.number:
            return False
        self._forget(id)
        self._passed_over.add(id)
        self.block(id, out.key)
        return group.has_turn

    def release(self, id: MessageId) -> bool:
        """Note that a message is out no more, and not in the queue, either. Whether its group may hand out another."""
        out = self._out.get(id)
        group = self._groups.get(self._number(id) if out is None else out.number)
        self._forget(id)
        self._passed_over.discard(id)
        return group is not None and group.has_turn

    def next(self, last: MessageId | None = None, up_to: int | None = None) -> int | None:
        """The key of the message to hand out next; None without one. It stays where it is.

        Args:
            last: the message that the same request has got just before: others of its group may follow it.
            up_to: no message with a greater sequence.
        """
        if self._is_beginning:
            return None  # one that is not read may be the first of its group
        if last is not None and (group := self._groups.get(self._number(last))) is not None:
            before = self._out.get(last)
            first = self._next_of(group, _NO_KEY if before is None else before.key)
            if first is not None and (up_to is None or first >> _SEQUENCE_BITS <= up_to):
                return first
        for _ in range(len(self._turns)):
            group = self._turns[0]
            first = self._next_of(group)
            if first is None:
                self._turns.popleft()
                group.has_turn = False
            elif up_to is None or first >> _SEQUENCE_BITS <= up_to:
                return first
            else:
                self._turns.rotate(-1)
        return None

    @property
    def _is_beginning(self) -> bool:
        return bool(self._unread or self._elsewhere)

    def _number(self, id: MessageId, key: int | None = None) -> int:
        return id.key if id in self._passed_over else number_of(id, key)

    def _group(self, number: int) -> _Group:
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = _Group(number)
        return group

    def _push(self, group: _Group, key: int) -> None:
        heapq.heappush(group.heap, key)
        group.live += 1

    def _put_out(self, group: _Group, id: MessageId, key: int) -> None:
        self._out[id] = _Out(group.number, key)
        insort(group.out, key)

    def _next_of(self, group: _Group, last: int = _NO_KEY) -> int | None:
        """The key of the group's message that may be handed out now; None without one.

        Args:
            last: the key of the message that the same request got just before: messages up to that are its own.
        """
        if group.moving and last == _NO_KEY:
            return None
        first = self._first(group)
        if first is None or group.blocks(first, last, has_come_back=first in self._come_back):
            return None
        return first

    def _first(self, group: _Group) -> int | None:
        """The key of the group's first message; None without one, or when that is not READY yet."""
        heap = group.heap
        while heap and not self._is_live(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap and heap[0] in self._ready else None

    def _is_live(self, key: int) -> bool:
        return key in self._ready or key in self._coming_keys

    def _forget(self, id: MessageId, *, stays_out: bool = False) -> None:
        """Forget that a message was coming, or out."""
        out = None if stays_out else self._out.pop(id, None)
        if out is not None:
            group = self._groups[out.number]
            del group.out[bisect_right(group.out, out.key) - 1]
            if id in self._moving:
                self._moving.discard(id)
                group.moving -= 1
            self._tidy(group)
        key = self._coming.pop(id, None)
        if key is not None:
            self._coming_keys.discard(key)
            group = self._groups[self._number(id)]
            group.live -= 1
            self._tidy(group)

    def _tidy(self, group: _Group) -> None:
        """Give its turn to a group that may be free now, and forget one without messages."""
        if not group.live and not group.out:
            del self._groups[group.number]
            group.heap = []  # a turn that it may still have leads nowhere
            if len(self._turns) > 2 * len(self._groups) + _STALE_KEYS:
                self._turns = deque(each for each in self._turns if self._groups.get(each.number) is each)
        else:
            self._give_turn(group)

    def _give_turn(self, group: _Group) -> None:
        if not group.has_turn and self._next_of(group) is not None:
            group.has_turn = True
            self._turns.append(group)


class GroupTurns:
    """The turns of groups that are never blocked: each hands out one message, then the next group has its turn.

    All messages without a group share the turns of one. What it costs is a key in a heap for each message.

    Args:
        ready: the keys of the queue's READY messages, always as they are now.
        heaps: the keys that are there already, a heap for each group that has any (:func:`heaps_of`).
    """

    def __init__(self, ready: Collection[int], heaps: dict[int | None, list[int]]) -> None:
        self._ready = ready
        self._heaps = heaps
        self._turns: deque[int | None] = deque(heaps)
        self._size = sum(map(len, heaps.values()))  # with keys of messages that are gone

    def ready(self, key: int) -> None:
        """Note that a message is READY at `key`."""
        number = MessageId.group_in(key)
        heap = self._heaps.get(number)
        if heap is None:
            heap = self._heaps[number] = []
            self._turns.append(number)
        heapq.heappush(heap, key)
        self._size += 1

    def take(self) -> int | None:
        """The key of the message to hand out now, which ends its group's turn; None without one."""
        while self._turns:
            heap = self._heaps[self._turns[0]]
            while heap:
                key = heapq.heappop(heap)
                self._size -= 1
                if key in self._ready:
                    self._turns.rotate(-1)
                    return key
            del self._heaps[self._turns.popleft()]
        return None

    def left(self) -> None:
        """Note that a message is READY no more."""
        if self._size > 2 * len(self._ready) + _STALE_KEYS:
            self._tidy()

    def _tidy(self) -> None:
        """Forget the keys of messages that are gone, and then groups without keys."""
        live = {number: sorted({key for key in heap if key in self._ready}) for number, heap in self._heaps.items()}
        self._heaps = {number: heap for number, heap in live.items() if heap}
        self._turns = deque(number for number in self._turns if number in self._heaps)
        self._size = sum(map(len, self._heaps.values()))


def heaps_of(keys: Collection[int]) -> dict[int | None, list[int]]:
    """Keys of messages by the numbers of their groups, each group's as a heap; None has those without a group."""
    # One step for all messages of a queue, most of which have no group.
    plain = [key for key in keys if key & OF_A_PROCESS]
    heaps: dict[int | None, list[int]] = {None: plain} if plain else {}
    if len(plain) < len(keys):
        for key in keys:
            if not key & OF_A_PROCESS:
                heaps.setdefault(MessageId.group_in(key), []).append(key)
    for heap in heaps.values():
        heapq.heapify(heap)
    return heaps


def number_of(id: MessageId, key: int | None = None) -> int:
    """The number of a message's group: for one without a group a number that no other message has.

    Args:
        key: its key, or that by which it stands in its queue; None to work it out.
    """
    group = MessageId.group_in(id.key if key is None else key)
    return id.key if group is None else group
