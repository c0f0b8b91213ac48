"""The narrow waist: what every store can do, and what it promises.

Few verbs, batch first. A store keeps *entries* (messages) and *records* (what else must be durable). It knows
nothing of leases, order or waiting: that is the broker's. Every backend is held to this page by
:mod:`mq.storage.conformance`.

One promise carries the rest: when :meth:`Storage.commit` returns, every ``durable`` operation of the batch with the
outcome ``DONE`` survives the loss of power at any later instant.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from mq.lifecycle import State
from mq.message import Body, MessageId, Properties

MOST_MOVED_ON: Final = 1024
"""How many messages may be under way at once that are written and moved on, to DELAYED or REMOVED, by one batch. So a
store that finds torn messages after a crash knows among how many of the newest it has to look."""
QUEUE: Final = "queue"
"""The kind of record that makes a queue: its key is the queue's name, its value the queue's settings."""

WRITE_JOBS: Final = "_write-jobs@mq"
"""In place of a queue in entries that hold what write jobs have not committed yet. No queue has this name."""


class Sharing(Enum):
    """Who else works on a store."""

    ALONE = "alone"
    """One broker, and no other program of mq."""
    WATCHED = "watched"
    """One broker, and a mover or a reaper in another process."""
    PEERS = "peers"
    """Brokers in several processes."""


GIVEN_MS: Final = 10**15
"""Added to a deadline that is an instant of the wall clock, as a user gave it. No other deadline is that great."""


class Meta(NamedTuple):
    """What moves change. A fresh message has the default everywhere.

    Attributes:
        deadline_ms: when a DELAYED entry falls due, in milliseconds of the broker's steady time; from
            :data:`GIVEN_MS` on, that and an instant of the wall clock, in milliseconds since 1970.
        receives: how often the message has been handed out.
        receipt: unique to the lease that holds the entry; 16 lower-case hexadecimal digits.
        order: the time (UUID ticks) by which the message stands in its queue; None for that of its id.
        expires_ms: when it is of no use any more, in milliseconds of steady time.
    """

    deadline_ms: int | None = None
    receives: int = 0
    receipt: str | None = None
    order: int | None = None
    expires_ms: int | None = None

    def at_rest(self) -> Meta:
        """What stays when the message is READY again: no deadline, no receipt."""
        if self.deadline_ms is None and self.receipt is None:
            return self
        return Meta(None, self.receives, None, self.order, self.expires_ms)


FRESH: Final = Meta()


class Entry(NamedTuple):
    """One message in one place.

    Attributes:
        meta: what moves have changed so far.
    """

    queue: str
    id: MessageId
    state: State
    meta: Meta = FRESH

    @property
    def joined(self) -> int:
        """When the message came into its queue, in UUID ticks: by its order where it has one, else by its id."""
        return self.id.time if self.meta.order is None else self.meta.order


class Staged(Protocol):
    """A large body that lies in the store under a temporary name, waiting for its :class:`Write`."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    @property
    def checksum(self) -> int:
        """CRC-32 of the bytes."""

    @property
    def unwritten(self) -> int:
        """How many of its bytes are not in the store yet, and count in a :class:`Group` with its Write."""

    async def discard(self) -> None:
        """Take it away again. Does nothing once its Write is done."""


class Write(NamedTuple):
    """Make a message where it is to rest. One that is made in NEW may be led on by a Move behind it in the batch (at
    most :data:`MOST_MOVED_ON` at a time).

    NO_QUEUE when it is made in READY and its queue is not there. EXISTS when that place holds its id already; a store
    may refuse an id that it has in another state or queue, too.

    Attributes:
        queue: the queue it is for. Whether that exists is the broker's to know, but for READY; a shared store answers
            NO_QUEUE when another broker has deleted it.
        id: its id, never used for another message of the store.
        body: its bytes, or what :meth:`Storage.stage` gave.
        attributes: kept with the message and given back by :meth:`Storage.read`.
        meta: a deadline for one that is to be delayed, an expiry; in DELAYED perhaps a lease.
        durable: as everywhere.
        transient: it need not outlive this process. Most stores keep it all the same.
        state: NEW; READY or DELAYED only in a store that :attr:`Description.places` messages.
        has_room: room in memory is reserved for it, or it takes the place of a message there that is removed next. So
            it is stored although the memory for messages is full, unless that has half as much again.
    """

    queue: str
    id: MessageId
    body: bytes | Staged
    attributes: Mapping[str, Any] = {}
    meta: Meta = FRESH
    durable: bool = True
    transient: bool = False
    state: State = State.NEW
    has_room: bool = False

    @property
    def entry(self) -> Entry:
        """The message, once it is made."""
        return Entry(self.queue, self.id, self.state, self.meta)


class Move(NamedTuple):
    """Move a message from where `entry` says to `state`, with new `meta`: a compare-and-move.

    GONE when it is not (or no longer) exactly there; of many racers exactly one gets DONE, provided that the
    targets differ, so a move to DELAYED carries a receipt of its own. NO_QUEUE when it leads into a queue that
    is not there. EXISTS when the target is taken: nothing is overwritten. A move into another `queue` carries an
    order: the instant at which the message joins that queue. It `reads` when the message is read next: a store may
    do so ahead.
    """

    entry: Entry
    state: State
    meta: Meta = FRESH
    queue: str | None = None
    durable: bool = True
    reads: bool = False

    @property
    def target(self) -> Entry:
        """Where the message is, once it is moved."""
        return Entry(self.queue or self.entry.queue, self.entry.id, self.state, self.meta)


class Unlink(NamedTuple):
    """Take an entry out of REMOVED, for good; in a store that :attr:`~Description.removes` out of any place. GONE when
    it is not exactly there. For a deleted queue a part at a time: MORE until it is gone.

    EXISTS when nothing of mq's is left in the deleted queue, but something foreign is: asking again changes nothing.
    It may come in one batch with the Move that brings its entry to REMOVED, behind it.
    """

    entry: Entry
    durable: bool = False


class Put(NamedTuple):
    """Keep a record, replacing the one of its kind and key. Always durable.

    The Put of a QUEUE makes the queue, and is alone in its batch. Its value carries ``created``, an instant in UUID
    ticks, to be shown, and ``incarnation``, a number that no other queue of that name has or had. Where two brokers
    make a queue at once, a shared store keeps the first one's; the outcome of the other one has ``existed``. EXISTS,
    with a reason, when the name is taken by something that is not this store's queue.

    Attributes:
        key: under which it is kept.
        value: JSON.
    """

    kind: str
    key: str
    value: Mapping[str, Any]


class Drop(NamedTuple):
    """Forget a record. Always durable. GONE when it was not there.

    The Drop of a QUEUE is alone in its batch. It takes the queue's messages in READY with it. Those in NEW or DELAYED
    stay where they are, and are the broker's to remove, before it makes a queue of that name again.

    Attributes:
        key: under which it is kept.
    """

    kind: str
    key: str


class Group(NamedTuple):
    """Operations that are done together or not at all, also over a crash, with one outcome: DONE, or why none is.

    :func:`mq.storage.groups.commit` does them in every store.

    Attributes:
        operations: Writes, Moves, Puts and Drops, each of a message or a record of its own, and none of a QUEUE. What
            they move no other operation of the batch writes or moves before. A Drop of what is not there refuses
            nothing.
    """

    operations: tuple[Write | Move | Put | Drop, ...]


MessageOperation = Write | Move | Unlink
Operation = MessageOperation | Put | Drop
AnyOperation = Operation | Group
"""What :func:`mq.storage.groups.commit` does in every store, and a store by itself as its description says."""


def changes_queue(operations: Sequence[AnyOperation]) -> bool:
    """Return whether a batch is the Put or the Drop of a QUEUE."""
    return len(operations) == 1 and isinstance(operations[0], Put | Drop) and operations[0].kind == QUEUE


class Result(enum.Enum):
    """How an operation of a batch ended."""

    DONE = "done"
    MORE = "more"
    """A part is done: ask again (only for Unlink)."""
    GONE = "gone"
    """Not there (any more): the race is lost, or it never was."""
    EXISTS = "exists"
    """The target is taken; nothing was changed."""
    NO_QUEUE = "no queue"
    """The queue that it leads to is not there."""
    FULL = "full"
    """No room or no handles now; nothing was changed. Try later."""
    FAILED = "failed"
    """The medium failed; whether the operation is on it will be known when the store is opened anew."""
    UNKNOWN = "unknown"
    """May have landed (network stores); not later than the answer to another change. Repeating it is safe: a Write that
    had landed is answered EXISTS then, where the store has not taken it back."""
    FENCED = "fenced"
    """Another writer is in charge now; nothing was changed."""


class Outcome(NamedTuple):
    """What became of one operation.

    Attributes:
        entry: where the message is now, for a Write or Move that is DONE.
        reason: one line for FULL and FAILED, and for EXISTS of a Put.
        existed: the queue was there already, for a Put of a QUEUE that is DONE: its record was replaced.
    """

    result: Result
    entry: Entry | None = None
    reason: str = ""
    existed: bool = False


class Damage(NamedTuple):
    """Something of a store that was lost or cannot be read any more.

    Attributes:
        kind: of the record; "" if it is not a record.
        key: of the record; None if that is unknown.
        path: the file, or another name of the place.
        why: what is wrong and what to do, in one line.
        hint: what can still be read of a record's file. Names in it may be wrong.
    """

    kind: str
    key: str | None
    path: str
    why: str
    hint: bytes = b""


class Health:
    """What a store knows of damage. It changes while the store is open.

    Attributes:
        damages: what was found lost or unreadable when the store was opened.
        damaged: messages whose bytes or attributes are not the published ones, each with its queue and the reason.
        unchecked: how often a message was read that has no checksum.
        torn: how many torn messages the start has taken away, which were never confirmed.
        skipped: how many names that are not mq's were met in the store, and left alone.
        verified: how many messages were verified by :meth:`VerifyingStorage.verify`.
        progress: the part of a broker's present pass over all messages that is done, from 0 to 1.
        ended_seconds: when its last complete pass ended, seconds since 1970; 0 before the first.
    """

    def __init__(self) -> None:
        self.damages: list[Damage] = []
        self.damaged: dict[MessageId, tuple[str, str]] = {}
        self.unchecked = 0
        self.torn = 0
        self.skipped = 0
        self.verified = 0
        self.progress = 0.0
        self.ended_seconds = 0.0

    def __eq__(self, other: object) -> bool:  # it says how a store is, not what it is
        return isinstance(other, Health)

    __hash__ = object.__hash__

    def note(self, entry: Entry, why: str) -> None:
        """Note a message that is damaged."""
        self.damaged[entry.id] = entry.queue, why


class Stored(NamedTuple):
    """A message read from the store.

    Attributes:
        properties: what was fixed when it was written.
        body: its bytes; the caller closes it.
    """

    properties: Properties
    body: Body


class MessageColumns(NamedTuple):
    """Messages that were read together, one behind another. Numbers have their lowest byte first.

    Attributes:
        length: how many.
        times: when their ids were made, in UUID ticks, 8 bytes each.
        ends: where each body ends, with what was before the first one; 4 bytes each.
        ids: in ASCII, 36 bytes each.
        bodies: all of them.
        attributes: of those messages that have any, by their places. Equal ones may be one object.
    """

    length: int
    times: bytes
    ends: bytes
    ids: bytes
    bodies: bytes
    attributes: Mapping[int, Mapping[str, Any]]


class Change(NamedTuple):
    """Something that happened to the medium from outside this process.

    Attributes:
        entry: what appeared or vanished; None for "unknown: look again at everything".
        present: it appeared (True) or vanished (False).
    """

    entry: Entry | None
    present: bool = True


class Description(NamedTuple):
    """What a store is.

    Attributes:
        name: its address, as given to the registry.
        durable: what it answers survives the loss of power.
        shared: other processes may change it at the same time.
        max_body: the longest body in bytes; None for no limit of its own.
        journaled: its moves are atomic over a crash without a barrier. Where False, a move is made whole by a
            barrier of its own even if it was allowed to ride on the next one.
        places: a Write can make its message in READY or DELAYED. Where False it makes it in NEW, and a Move of its own
            brings it there.
        removes: an Unlink takes a message out of any place. Where False it takes it out of REMOVED, where a Move has
            brought it.
        groups: operations that a Group may have at the most; 0 where it takes no Group. Where it takes them, nothing is
            durable before what an earlier batch did, and of one message or record nothing before what was done before
            it.
        group_bytes: of the bodies, attributes and values in a Group at the most; None for no limit.
    """

    name: str
    durable: bool
    shared: bool
    max_body: int | None
    journaled: bool
    places: bool = False
    removes: bool = False
    groups: int = 0
    group_bytes: int | None = None


class Storage(Protocol):
    """A store. Verbs raise nothing but :class:`mq.errors.StorageError` and what is named here."""

    @property
    def description(self) -> Description:
        """What it is. Complete once it is open."""

    async def open(self) -> None:
        """Make it ready: create what is missing, repair what a crash left, durably.

        Raises:
            StorageUnusable: it cannot serve; the text says why and what to do.
        """

    async def aclose(self) -> None:
        """Let go of it. Safe to call twice."""

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind, by key."""

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        """Bring a large body to the medium under a temporary name. What `chunks` raises passes through, and
        nothing is left behind.

        Raises:
            StorageFull: no room.
            StorageFailed: the medium failed.
        """

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do all of them, in order, with one durability barrier. A batch is not a transaction: each operation
        has its own outcome, in the same order; only a Group is done as a whole. The list is the caller's. It is
        an :class:`~mq.storage.outcomes.Outcomes` where the batch was done in a thread.

        With ``durable=False`` an operation may ride on the next barrier instead. Groups only as the description says:
        :func:`mq.storage.groups.commit` knows another way.
        """

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """Open the messages at these places; None for one that is not (any more) there.

        A body that is damaged raises CorruptMessage when it is read.
        """

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is now, in NEW, READY or DELAYED, tried in this order."""

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state, of one queue or of all, at most `limit`; in no promised order.

        READY needs a queue. REMOVED includes deleted queues, as entries to Unlink.
        """

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        """What other processes do to the medium, as it happens; None where the medium cannot tell.

        Everything that happens after the block is entered is told, if only as "look again at everything"; but nothing
        of what has come and gone before a look.
        """


class ClusterStorage(Storage, Protocol):
    """What the store of a cluster does besides."""

    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        """Return whether one of `queues` has the message `id`, in any state, REMOVED included.

        One consistent read: a message that moves meanwhile, between these queues or to REMOVED, is found. A store that
        has each id only once may leave the queues aside.
        """

    async def check_reachable(self) -> None:
        """Ask the store's servers for a sign of life, whatever else they are busy with.

        Raises:
            StorageError: they do not answer in time.
        """


def is_for_cluster(storage: Storage) -> TypeGuard[ClusterStorage]:
    """Return whether a cluster can keep its messages in a store."""
    return hasattr(storage, "contains")


def places_transient(storage: Storage) -> bool:
    """Return whether a Write of a transient message may ask for READY or DELAYED. Where the store does not keep it in
    memory, its outcome may be in NEW all the same."""
    return storage.description.places or bool(getattr(storage, "places_transient", False))


class TellingStorage(Storage, Protocol):
    """What a store can do besides, if a batch is durable before all of it is done."""

    @property
    def tells(self) -> bool:
        """Whether it does so now. Fixed once it is open."""

    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        """As :meth:`Storage.commit`, and `hear` is called in the event loop with the outcomes of the first operations,
        in order, as they come: they count from then on.

        Returns:
            The outcomes of all others.
        """


def tells(storage: Storage) -> TypeGuard[TellingStorage]:
    """Whether a store does."""
    return bool(getattr(storage, "tells", False))


class InstantStorage(Storage, Protocol):
    """What a store can do besides, if its batches wait for nothing."""

    @property
    def is_instant(self) -> bool:
        """Whether they wait for nothing now. Fixed once it is open."""

    def commit_now(self, operations: Sequence[MessageOperation]) -> list[Outcome] | None:
        """As :meth:`Storage.commit`, in the caller's step: of a few operations, for the loop stands still meanwhile.
        None if that takes longer; then nothing was done."""


def is_instant(storage: Storage) -> TypeGuard[InstantStorage]:
    """Return whether a store commits in the caller's step."""
    return bool(getattr(storage, "is_instant", False))


MESSAGE_BYTES: Final = 600
"""What a message takes in memory besides its body and its attributes, the broker's index of it included."""


class MemoryLimitedStorage(Storage, Protocol):
    """What a store can do besides, if transient messages stay in memory, which has a limit."""

    @property
    def limits_memory(self) -> bool:
        """Whether there is a limit. Fixed."""

    def no_room_for(
        self, queue: str, size: int, beside: int = MESSAGE_BYTES, *, reserved: int = 0, reserved_in_queue: int = 0
    ) -> Outcome | None:
        """Return why a transient message has no room now; None if it has.

        Args:
            size: bytes of its body.
            beside: bytes that it takes besides.
            reserved: bytes reserved for other messages, in all queues, that are not stored yet.
            reserved_in_queue: the part of these that is for messages of the same queue.
        """


def limits_memory(storage: Storage) -> TypeGuard[MemoryLimitedStorage]:
    """Return whether a store does."""
    return bool(getattr(storage, "limits_memory", False))


Hear = Callable[[Sequence[Outcome], float], object]
"""Called with outcomes, and with how many seconds ago they were there."""


class VerifyingStorage(Protocol):
    """What a store can do besides, if its messages may rot on a disk."""

    @property
    def health(self) -> Health | None:
        """What it knows of damage; None before it is open."""

    async def verify(self, entries: Sequence[Entry]) -> None:
        """Compare messages on the medium with their checksums, and note the damaged ones in the store's health. One
        that is not there, or has no checksum, is passed over."""


def verifies(storage: Storage) -> TypeGuard[VerifyingStorage]:
    """Whether a store can."""
    return health_of(storage) is not None


def health_of(storage: Storage) -> Health | None:
    """Return what a store knows of damage; None if it finds none by itself."""
    health: Health | None = getattr(storage, "health", None)
    return health


def damages_of(storage: Storage, kind: str = "") -> list[Damage]:
    """What a store has found damaged: all of it, or the records of a kind."""
    health = health_of(storage)
    return [damage for damage in (health.damages if health is not None else ()) if kind in ("", damage.kind)]


class ColumnStorage(Protocol):
    """What a store can do besides, if it has its messages at hand."""

    async def read_columns(
        self, queue: str, messages: Sequence[int | Entry], base: int, most_bytes: int
    ) -> MessageColumns | None:
        """Read the first of some READY messages, each of them whole, as far as they can be read together.

        The next one may be gone, damaged, long, or kept in another way: :meth:`Storage.read` tells.

        Args:
            messages: each as an entry, or, if that has FRESH meta, as its id's key.
            base: what is added to the ends of their bodies.
            most_bytes: of bodies and attributes together.

        Returns:
            Their columns, perhaps of none; or None where no message of the queue can be read so.
        """


def reads_columns(storage: Storage) -> TypeGuard[ColumnStorage]:
    """Whether a store can."""
    return hasattr(storage, "read_columns")  # not runtime_checkable: that cannot be compiled
