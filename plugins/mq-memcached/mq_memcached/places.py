"""Where a message is, as one value under one key; and what a batch makes of it. No I/O here.

All that is done to one message in one batch becomes one change of one value: made once, or swapped once. So of many
racers one wins, and a client that dies has changed a message whole or not at all.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageId, checksum
from mq.storage.interface import Entry, Meta, Move, Operation, Outcome, Result, Unlink, Write
from mq_memcached.protocol import Item

SIZE: Final = 288
"""Entries are padded to this, so that all take room of the same kind: what one gives free another can have."""
UNPLACED: Final = -1
"""The number of a slot that is still to be found."""
_LETTERS: Final = {State.NEW: "n", State.READY: "q", State.DELAYED: "d", State.REMOVED: "r"}
_STATES: Final = {letter: state for state, letter in _LETTERS.items()}

Incarnations = Mapping[str, str | None]
"""Queue -> what tells it from all others that had or will have its name; None when it is not there."""


class Place(NamedTuple):
    """A message in one place.

    Attributes:
        state: where it is, as it was written down. See :func:`effective`.
        queue: the queue's name.
        meta: what moves have changed so far.
        incarnation: of the queue, for READY.
        slot: the number of the slot in the queue's chain that points to it.
        mark: in the keys of its body's parts.
        parts: how many of them there are.
        size: of the body, in bytes.
        checksum: of the body, CRC-32.
    """

    state: State
    queue: str
    meta: Meta
    incarnation: str
    slot: int
    mark: str
    parts: int
    size: int
    checksum: int


class Known(NamedTuple):
    """An entry as it was read.

    Attributes:
        places: where the message is; more than one only for ids that were used twice.
        tag: drawn by its writer, unlike all others.
    """

    places: tuple[Place, ...]
    tag: str


def encode(places: list[Place], tag: str) -> bytes:
    """The value of an entry."""
    rows = [[_LETTERS[place.state], place.queue, *place.meta, *place[3:]] for place in places]
    return json.dumps([rows, tag], separators=(",", ":")).encode().ljust(SIZE)


def decode(value: bytes) -> Known:
    """The entry that has this value."""
    rows, tag = json.loads(value.decode())
    return Known(tuple(_place(row) for row in rows), tag)


def _place(row: list[Any]) -> Place:
    return Place(_STATES[row[0]], row[1], Meta(*row[2:7]), *row[7:])


def effective(place: Place, incarnations: Incarnations) -> State:
    """Where the message is: what was READY in a queue that was deleted awaits the reaper."""
    if place.state is State.READY and incarnations.get(place.queue, place.incarnation) != place.incarnation:
        return State.REMOVED
    return place.state


def entry_at(id: MessageId, place: Place, incarnations: Incarnations) -> Entry:
    """The place as others see it."""
    return Entry(place.queue, id, effective(place, incarnations), place.meta)


class Parcel(NamedTuple):
    """A body on its way, with the attributes before it.

    Attributes:
        blob: the bytes that are stored.
        size: of the body alone.
        checksum: of the body alone.
    """

    blob: bytes
    size: int
    checksum: int


def pack(body: bytes, attributes: Mapping[str, Any]) -> Parcel:
    """Body and attributes as one."""
    head = json.dumps(attributes).encode() if attributes else b""
    return Parcel(b"%08x" % len(head) + head + body, len(body), checksum(body))


def unpack(blob: bytes) -> tuple[bytes, dict[str, Any]]:
    """Body and attributes.

    Raises:
        ValueError: those bytes are none.
    """
    end = 8 + int(blob[:8], 16)
    return blob[end:], json.loads(blob[8:end]) if end > 8 else {}


class Draft:
    """What a batch makes of one message.

    Args:
        id: the message.
        item: its entry as it was read; None when there is none.
        incarnations: of all queues that its operations name.
        part: how long a part of a body may be.
    """

    def __init__(self, id: MessageId, item: Item | None, incarnations: Incarnations, part: int) -> None:
        self.id = id
        self.item = item
        self.tag = secrets.token_hex(6)
        self.outcomes: dict[int, Outcome] = {}
        self.bodies: dict[str, bytes] = {}
        self.places = list(decode(item.value).places) if item is not None else []
        self._before = tuple(self.places)
        self._incarnations = incarnations
        self._part = part

    @property
    def is_changed(self) -> bool:
        """Whether anything is to be done at all."""
        return self._before != tuple(self.places)

    @cached_property
    def value(self) -> bytes:
        """The entry as it is to be; asked for once all its places have their slots."""
        return encode(self.places, self.tag)

    def arrived(self) -> list[Place]:
        """Places that are new to their chain."""
        before = {(place.queue, place.slot) for place in self._before}
        return [place for place in self.places if (place.queue, place.slot) not in before]

    def left(self) -> list[Place]:
        """Places whose slots are of no more use."""
        kept = {(place.queue, place.slot) for place in self.places}
        return [place for place in self._before if (place.queue, place.slot) not in kept]

    def unneeded(self) -> list[Place]:
        """Places whose bodies are of no more use."""
        kept = {place.mark for place in self.places}
        return [place for place in self._before if place.mark not in kept]

    def apply(self, number: int, operation: Operation, parcel: Parcel | None) -> None:
        """Do one operation, in memory.

        Args:
            number: where its outcome stands in the batch.
            operation: what to do.
            parcel: the body of a Write; None when it was discarded.
        """
        match operation:
            case Write():
                outcome = self._write(operation, parcel)
            case Move():
                outcome = self._move(operation)
            case Unlink(entry):
                outcome = self._unlink(entry)
        self.outcomes[number] = outcome

    def fail(self, outcome: Outcome) -> None:
        """Nothing of it could be done."""
        self.places = list(self._before)
        self.outcomes = {
            number: outcome if known.result is Result.DONE else known for number, known in self.outcomes.items()
        }

    def _write(self, write: Write, parcel: Parcel | None) -> Outcome:
        if parcel is None:
            return Outcome(Result.GONE)
        if self._taken(State.NEW, write.queue):
            return Outcome(Result.EXISTS)
        mark = secrets.token_hex(4)
        parts = max(1, -(-len(parcel.blob) // self._part))
        self.places.append(
            Place(State.NEW, write.queue, write.meta, "", UNPLACED, mark, parts, parcel.size, parcel.checksum)
        )
        self.bodies[mark] = parcel.blob
        return Outcome(Result.DONE, Entry(write.queue, write.id, State.NEW, write.meta))

    def _move(self, move: Move) -> Outcome:
        target = Entry(move.queue or move.entry.queue, move.entry.id, move.state, move.meta)
        incarnation = self._incarnations.get(target.queue) if move.state is State.READY else ""
        if incarnation is None:
            return Outcome(Result.NO_QUEUE)
        at = self._find(move.entry)
        if at is None:
            return Outcome(Result.GONE)
        if self._taken(target.state, target.queue, besides=at):
            return Outcome(Result.EXISTS)
        place = self.places[at]
        slot = place.slot if place.queue == target.queue else UNPLACED
        self.places[at] = place._replace(
            state=target.state, queue=target.queue, meta=target.meta, incarnation=incarnation, slot=slot
        )
        return Outcome(Result.DONE, target)

    def _unlink(self, entry: Entry) -> Outcome:
        assert entry.state is State.REMOVED, f"not removed yet: {entry}"
        at = self._find(entry)
        if at is None:
            return Outcome(Result.GONE)
        del self.places[at]
        return Outcome(Result.DONE)

    def _find(self, entry: Entry) -> int | None:
        for number, place in enumerate(self.places):
            if entry_at(self.id, place, self._incarnations) == entry:
                return number
        return None

    def _taken(self, state: State, queue: str, besides: int | None = None) -> bool:
        return any(
            number != besides and place.queue == queue and effective(place, self._incarnations) is state
            for number, place in enumerate(self.places)
        )
