"""Dead letters: messages that were received too often, expired, had to make room, or were rejected.

A dead message goes to its queue's dead-letter queue, with its history, and is removed where there is none; a server may
send it on in its own way instead. The history is durable before the message moves, and stays with the id until the
message is removed for good.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

import trio
from trio_util import AsyncBool

from mq import turns
from mq.broker.clock import Clock
from mq.broker.commit import Future
from mq.broker.config import RETRY_SECONDS
from mq.broker.core import Core
from mq.broker.index import QueueIndex, order_of, priority_of, sequence_of
from mq.broker.ledger import Ledger
from mq.broker.second_names import SecondNames
from mq.broker.waiters import BatchChannel
from mq.errors import Conflict, MQError, NotServed, StorageError, StorageFailed, StorageFull, StorageUnsure
from mq.lifecycle import Kind, State
from mq.message import DamagedBody, Message, MessageId, MessageIds
from mq.quantities import show_count
from mq.storage.interface import Entry, Meta, Move, Outcome, Result, Sharing, Storage, Unlink
from mq.storage.records import error_of

logger = logging.getLogger("mq.broker")

KIND: Final = "death"
"""The kind of the ledger's records."""
RECEIVES: Final = "receives"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"
REJECTED: Final = "rejected"
LIMIT: Final = "delivery_limit"
LONGEST_REASON: Final = 200
"""Characters of the reason of a failure: many of them are one record."""
_FAILURE: Final = 0
"""In place of an order, in the ledger: why the work on a message failed last."""
_MANY_EXPIRED: Final = 10
"""So many messages of a queue that expire within :data:`_REPORT_SECONDS` are worth a warning."""
_MOST_REMOVALS: Final = 100_000
"""Removed messages whose reason is remembered, as batch consumers may miss them: as many as a claim may have."""
_REPORT_SECONDS: Final = 60.0
"""How often expired messages are logged."""
_FIRST_REPORT_SECONDS: Final = 5.0
_LONGEST_HISTORY: Final = 16
_FEWEST_HISTORIES: Final = 512
"""Histories from which on missing messages are looked for."""


class DeadLetters:
    """Moves dead messages to their dead-letter queues, and keeps their histories. Start :meth:`run`.

    Args:
        sinks: gets the messages that a server's sink takes.
        second_names: removes the other names of messages that are removed.
        look_again: loads the queues and their settings, where others change them.
    """

    def __init__(
        self,
        core: Core,
        ledger: Ledger[Any],
        sinks: DeadLetterSinks,
        second_names: SecondNames,
        look_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._ledger = ledger
        self._catalog = core.catalog
        self._committer = core.committer
        self._ids = core.ids
        self._secure_keys = core.secure_keys
        self._storage = core.storage
        self._reaps = core.config.joins_reaping
        self._sinks = sinks
        self._second_names = second_names
        self._look_again = look_again
        self._clock = core.clock
        self._is_shared = core.config.sharing is Sharing.PEERS
        self._dead: BatchChannel[_Dead] = BatchChannel()
        self._moved = trio.lowlevel.ParkingLot()
        self._orders: dict[MessageId, set[int]] = {}
        self._failed: set[MessageId] = set()
        self._missing: set[MessageId] = set()
        self._many: float = float(_FEWEST_HISTORIES)
        self._expired: Counter[str] = Counter()  # by queue, since they were logged
        self._sent_on: dict[MessageId, str] = {}  # by a sink, and not removed yet: the queue in which it died
        self._removals: dict[MessageId, str] = {}  # the latest, in order: their reasons
        self._has_expired = trio.Event()

    async def load(self) -> None:
        """Load the histories, and forget those whose message is in no queue any more."""
        await self._load()
        async for id in turns.in_turns(await self._without_message(), turns.LIGHT):
            self.forget(id)

    async def learn(self, entries: Iterable[Entry]) -> None:
        """Load the histories of messages that a peer has dead-lettered."""
        if self._is_shared and any(self._is_unknown(entry) for entry in entries):
            await self._load()

    def history(self, entry: Entry) -> tuple[Mapping[str, Any], ...]:
        """How a message died before, the latest death first, without one that was noted and did not happen."""
        if not self._orders:
            return ()
        orders = sorted(self._orders.get(entry.id, ()))
        past = [order for order in orders if order <= entry.joined]
        if past:
            return tuple(self._ledger.get(_key(entry.id, past[-1])) or ())
        return tuple((self._ledger.get(_key(entry.id, orders[0])) or ())[1:]) if orders else ()

    async def note_failure(self, entry: Entry, reason: str) -> None:
        """Note why the work on a message failed, for the case that it dies of it. Durable on return, if it can be."""
        self._failed.add(entry.id)
        with suppress(StorageError):  # the message is worth more than the reason
            await self._ledger.put({_key(entry.id, _FAILURE): reason[:LONGEST_REASON]})

    def forget(self, id: MessageId) -> None:
        """Forget the history of a message that was removed."""
        self._sent_on.pop(id, None)
        if id in self._failed:
            self._failed.discard(id)
            self._ledger.forget(_key(id, _FAILURE))
        for order in self._orders.pop(id, ()):
            self._ledger.forget(_key(id, order))

    def is_worn_out(self, entry: Entry) -> bool:
        """Whether a message has been received so often that it has to die when it comes back."""
        index = self._catalog.queues.get(entry.queue)
        if index is None or index.settings.max_receives is None or entry.meta.receives < index.settings.max_receives:
            return False
        return self._target(index) is not None

    def find(self, index: QueueIndex, id: MessageId) -> Entry | None:
        """Where a message of a queue is now: there or, when it died, in a dead-letter queue. None without it."""
        found, target = index.find(id), self._target(index)
        while found is None and target is not None:
            found, target = target.find(id), self._target(target)
        return found

    def neighbours(self, index: QueueIndex, deaths: Sequence[Mapping[str, Any]]) -> list[str]:
        """The queues to or from which a message of `index` was moved last, if it died: that where it died, and that
        where those of `index` go."""
        target = self._target(index)
        return [death["queue"] for death in deaths[:1]] + ([] if target is None else [target.name])

    def is_expired(self, entry: Entry) -> bool:
        """Whether a message's time to live is over."""
        return self._clock.is_expired(entry)

    def has_history(self, id: MessageId) -> bool:
        """Whether a message was dead-lettered, and still exists as far as the index knows."""
        return id in self._orders

    def removal(self, id: MessageId) -> str | None:
        """The reason why a message that a batch consumer may miss was removed instead of dead-lettered; None if it was
        not, or not lately: after a restart nothing is known."""
        return self._removals.get(id)

    def dead_letter(self, entry: Entry, reason: str, *, is_lease_over: bool = False) -> Future[None]:
        """Move a message of the index to where its queue's dead go, or remove it. Answered when that is durable."""
        self._catalog.begin(entry, is_leaving=True)
        dead = _Dead(entry, reason, is_lease_over, Future())
        self._dead.put(dead)
        return dead.future

    async def has_room(self) -> None:
        """Wait until few dead messages wait to be moved. For callers that find very many at once: those that a client
        rejects meanwhile do not wait for all of them."""
        while len(self._dead) >= self._committer.portion:
            await self._moved.park()

    async def run(self) -> None:
        """Move dead messages for ever."""
        await self._sinks.wait_for_sink()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_expired)
            while True:
                await self._move_some(nursery)
                self._moved.unpark_all()

    # Implementation

    async def _report_expired(self) -> None:
        """Log how many messages expired, by queue, once a minute at the most."""
        while True:
            await self._has_expired.wait()
            await trio.sleep(_FIRST_REPORT_SECONDS)
            expired, self._expired, self._has_expired = self._expired, Counter(), trio.Event()
            for queue, count in expired.items():
                level = logging.WARNING if count >= _MANY_EXPIRED else logging.INFO
                logger.log(level, "%s expired in queue %s", show_count(count, "message"), queue)
            await trio.sleep(_REPORT_SECONDS - _FIRST_REPORT_SECONDS)

    async def _move_some(self, nursery: trio.Nursery) -> None:
        """Move the dead messages that wait. What else has to be done for one is left to the nursery."""
        dead = [each for each in await self._dead.drain(self._committer.portion) if not self._is_reprieved(each)]
        try:
            await self._secure_keys([each.entry.id for each in dead])
            dead, refused = await self._send_on(dead)
            moves = await self._prepare(dead)
        except (StorageFull, StorageFailed, StorageUnsure, NotServed) as error:
            for each in dead:
                self._put_back(each, error)
            await trio.sleep(RETRY_SECONDS)
            return
        outcomes = await self._committer.commit(moves)
        async for each, move, outcome in turns.in_turns(zip(dead, moves, outcomes, strict=True), turns.FRAME):
            if not self._end(each, move, outcome, nursery):
                refused.append(outcome.reason)
        if refused:
            logger.warning("temporarily unable to move %d dead letters: %s", len(refused), refused[0])
            await trio.sleep(RETRY_SECONDS)

    async def _send_on(self, dead: list[_Dead]) -> tuple[list[_Dead], list[str]]:
        """Give dead messages to the protocol's sink, and put back those that it cannot send on now. Return the others,
        and why the refused ones were. One that was sent on and could not be removed is not sent on again."""
        unsent = [each for each in dead if self._sent_on.get(each.entry.id) != each.entry.queue]
        errors = await self._sinks.dead_letter([(each.entry, each.reason) for each in unsent])
        for number, each in enumerate(unsent):
            if number in errors:
                self._put_back(each, errors[number])
            elif self._sinks.take(each.entry.queue):
                self._sent_on[each.entry.id] = each.entry.queue
        refused = {unsent[number].entry.id for number in errors}
        left = [each for each in dead if each.entry.id not in refused] if refused else dead
        return left, [str(error) for error in errors.values()]

    async def _prepare(self, dead: list[_Dead]) -> list[Move | Unlink]:
        """The moves of dead messages; the histories of those that go to a dead-letter queue are durable."""
        await self._forget_missing()
        with suppress(StorageError):  # at worst the history is shorter
            await self.learn(each.entry for each in dead)
        if self._is_shared and any(self._target_of(each.entry) is None for each in dead):
            await self._look_again()  # a peer may have named one just now
        moves: list[Move | Unlink] = []
        histories: dict[MessageId, tuple[int, list[Mapping[str, Any]]]] = {}
        unlinks = self._reaps and self._storage.description.removes and not self._second_names.may_exist
        async for entry, reason, *_ in turns.in_turns(dead, turns.LIGHT):
            target = self._target_of(entry)
            if target is None:
                moves.append(Unlink(entry) if unlinks else self._second_names.removal(entry))
            else:
                meta = arriving(target, entry, self._ids, self._clock)
                histories[entry.id] = (meta.order or 0, self._longer_history(entry, reason))
                moves.append(Move(entry, State.READY, meta, target.name))
        if histories:
            await self._put(histories)
        return moves

    async def _put(self, histories: Mapping[MessageId, tuple[int, list[Mapping[str, Any]]]]) -> None:
        """Make histories durable, each with the order that its message is about to get."""
        # The order tells later whether the message got there. A history includes those before it.
        for id in histories:
            self.forget(id)
        for id, (order, _) in histories.items():
            self._orders[id] = {order}
        await self._ledger.put({_key(id, order): deaths for id, (order, deaths) in histories.items()})

    async def _load(self) -> None:
        await self._ledger.load()
        self._orders.clear()
        self._failed.clear()
        async for name in turns.in_turns(list(self._ledger), turns.LIGHT):
            id, order = HistoryCodec.split(name)
            if order == _FAILURE:
                self._failed.add(id)
            else:
                self._orders.setdefault(id, set()).add(order)

    def _end(self, each: _Dead, move: Move | Unlink, outcome: Outcome, nursery: trio.Nursery) -> bool:
        """End the move of a dead message. False when it stays where it was, where it dies again and is tried again."""
        entry = each.entry
        if outcome.result is Result.DONE:
            if each.reason == EXPIRED:
                self._expired[entry.queue] += 1
                self._has_expired.set()
            is_refused = each.reason in (REJECTED, LIMIT)
            removal = Kind.REMOVE if is_refused else Kind.EXPIRE
            is_removed = isinstance(move, Unlink) or move.state is State.REMOVED
            if is_removed:
                self._note_removal(entry, each.reason)
            if isinstance(move, Unlink):
                self._catalog.end(entry, None, removal, is_reaped=True)
                each.future.set(None)
                return True
            deaths = self.history(entry)  # the removal forgets them
            self._catalog.end(entry, outcome.entry, removal if is_removed else Kind.DEAD_LETTER)
            if is_removed and is_refused and self._second_names.may_exist:
                # Other work on the same message may wait for this task: it cannot wait for that here.
                nursery.start_soon(self._remove_second_names, each, deaths)
            else:
                each.future.set(None)  # what expires, or makes room, does so under another name, too
            return True
        if outcome.result is Result.EXISTS and isinstance(move, Move) and move.state is State.REMOVED:
            self._catalog.end_second_copy(entry, Kind.REMOVE)
            each.future.set(None)
            return True
        self._put_back(each, error_of(outcome, "cannot move the dead letter"), is_gone=outcome.result is Result.GONE)
        return outcome.result is Result.GONE

    def _note_removal(self, entry: Entry, reason: str) -> None:
        index = self._catalog.queues.get(entry.queue)
        if index is not None and index.has_batch_consumers:
            self._removals[entry.id] = reason
            if len(self._removals) > _MOST_REMOVALS:
                del self._removals[next(iter(self._removals))]

    async def _remove_second_names(self, each: _Dead, deaths: Sequence[Mapping[str, Any]]) -> None:
        """Remove a rejected message under its other names, too, and answer then."""
        entry, index = each.entry, self._catalog.queues.get(each.entry.queue)
        try:
            if index is not None:
                await self._second_names.remove(entry.queue, entry.id, self.neighbours(index, deaths))
        except MQError as error:
            each.future.fail(error)
        else:
            each.future.set(None)

    def _put_back(self, each: _Dead, error: MQError, *, is_gone: bool = False) -> None:
        due = trio.current_time() + RETRY_SECONDS if each.is_lease_over else None
        if each.reason in (REJECTED, LIMIT) and not is_gone:
            self._catalog.note_returned(each.entry)
        self._catalog.end(each.entry, None if is_gone else each.entry, Kind.DEAD_LETTER, due)
        each.future.fail(error)

    def _target_of(self, entry: Entry) -> QueueIndex | None:
        index = self._catalog.queues.get(entry.queue)
        return self._target(index) if index is not None and not self._sinks.take(entry.queue) else None

    def _is_reprieved(self, each: _Dead) -> bool:
        """Whether a message stays, because its dead-letter queue was deleted. A message that was received too often
        dies only where there is such a queue."""
        index = self._catalog.queues.get(each.entry.queue)
        if each.reason != RECEIVES or index is None or self._target(index) is not None:
            return False
        self._put_back(
            each, Conflict(f"the dead-letter queue of queue {index.name} was deleted during the request. Try again")
        )
        return True

    def _target(self, index: QueueIndex) -> QueueIndex | None:
        name = index.settings.dead_letter_queue
        return self._catalog.queues.get(name) if name is not None and name != index.name else None

    def _longer_history(self, entry: Entry, reason: str) -> list[Mapping[str, Any]]:
        death = {
            "queue": entry.queue,
            "reason": reason,
            "receives": entry.meta.receives,
            "time": self._clock.date_ns() // 1_000_000 / 1000,
        }
        if entry.id in self._failed:
            death["error"] = self._ledger.get(_key(entry.id, _FAILURE)) or ""
        return [death, *self.history(entry)][:_LONGEST_HISTORY]

    def _is_unknown(self, entry: Entry) -> bool:
        """Whether a peer may have moved the message to its place."""
        return entry.meta.order is not None and entry.meta.order not in self._orders.get(entry.id, ())

    async def _without_message(self) -> set[MessageId]:
        """The ids of histories whose message is in no queue, as far as the index knows."""
        missing = self._orders.keys() | self._failed
        for index in list(self._catalog.queues.values()) if missing else ():
            async for entry in turns.in_turns(index.seen(), turns.LIGHT // 4):
                missing.discard(entry.id)
        # A message may have come to a queue that was looked at before.
        return {id for id in missing if id not in self._catalog.locks and not self._is_anywhere(id)}

    def _is_anywhere(self, id: MessageId) -> bool:
        return any(index.find(id) is not None for index in self._catalog.queues.values())

    async def _forget_missing(self) -> None:
        """Forget histories whose messages were missing at this look and at the one before."""
        # Peers remove messages without notice. A look is due when there are twice as many histories as at the last one.
        if self._is_shared and len(self._orders) > self._many:
            self._many = math.inf  # one look at a time
            missing = await self._without_message()
            for id in missing & self._missing:
                self.forget(id)
            self._missing = missing
            self._many = float(2 * len(self._orders) + _FEWEST_HISTORIES)


class DeadLetterSink(Protocol):
    """A server that takes the dead letters of its own queues."""

    def takes(self, queue: str) -> bool:
        """Whether the sink takes messages that die in a queue."""

    async def dead_letter(self, dead: Sequence[tuple[Message, str]]) -> Sequence[MQError | None]:
        """Send messages on, in this order, each with the reason of its death, and close their bodies. The caller
        removes them then; after a crash they may come once more.

        Returns:
            For each message why it cannot be sent on now, and has to stay where it is; else None.
        """


class DeadLetterSinks:
    """Gives dead messages to the protocol's sink, if there is one.

    Attributes:
        sink: the one sink; None without one.
    """

    def __init__(self, storage: Storage, *, is_awaited: bool) -> None:
        self.sink: DeadLetterSink | None = None
        self._storage = storage
        self._is_awaited = AsyncBool(is_awaited)

    def set(self, sink: DeadLetterSink) -> None:
        """Have a sink from now on."""
        self.sink = sink
        self._is_awaited.value = False

    async def wait_for_sink(self) -> None:
        """Wait for a sink that there will be. What died before, such as all that expired while no daemon ran, would be
        removed without it."""
        if self._is_awaited.value:
            await self._is_awaited.wait_value(False)

    def take(self, queue: str) -> bool:
        """Whether the sink takes messages that die in a queue."""
        return self.sink is not None and self.sink.takes(queue)

    async def dead_letter(self, dead: Sequence[tuple[Entry, str]]) -> dict[int, MQError]:
        """Give messages to the sink that takes them. One that cannot be read any more is passed over.

        Returns:
            Which ones cannot be sent on now, by their places in `dead`, and why.
        """
        if self.sink is None:
            return {}
        taken = {queue: self.take(queue) for queue in {entry.queue for entry, _ in dead}}
        wanted = [number for number, (entry, _) in enumerate(dead) if taken[entry.queue]]
        if not wanted:
            return {}
        found: dict[int, tuple[Message, str]] = {}
        stored = await self._storage.read([dead[number][0] for number in wanted])
        for number, each in zip(wanted, stored, strict=True):
            if each is not None and not isinstance(each.body, DamagedBody):
                entry, reason = dead[number]
                message = Message(entry.queue, entry.id, each.body, each.properties, entry.meta.receives, "")
                found[number] = (message, reason)
        errors = await self.sink.dead_letter(list(found.values()))
        return {number: error for number, error in zip(found, errors, strict=True) if error is not None}


class _Dead(NamedTuple):
    entry: Entry
    reason: str
    is_lease_over: bool
    future: Future[None]


def arriving(index: QueueIndex, entry: Entry, ids: MessageIds, clock: Clock) -> Meta:
    """The meta with which `entry` joins `index` now, from another queue: at its end, with its priority and the time to
    live of that queue."""
    # A peer's ids may be ahead: a message that joins a queue later must have the later order.
    ids.observe(sequence_of(entry))
    ttl = index.settings.ttl
    expires_ms = None if ttl is None else clock.steady_ms() + max(1, round(ttl * 1000))
    return Meta(order=order_of(ids.new().time, priority_of(entry)), expires_ms=expires_ms)


class HistoryCodec:
    """What a history is in the ledger: JSON, also in memory."""

    width = 24

    @staticmethod
    def split(name: bytes) -> tuple[MessageId, int]:
        """The message and the order that :meth:`name` was given."""
        return MessageId.from_key(int.from_bytes(name[:16])), int.from_bytes(name[16:])

    def name(self, key: str) -> bytes:
        """Both as bytes."""
        id, _, order = key.partition(",")
        return MessageId(id).key.to_bytes(16) + int(order).to_bytes(8)

    def pack(self, value: Any) -> bytes:
        """Its JSON."""
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    def unpack(self, packed: bytes) -> Any:
        """From JSON."""
        return json.loads(packed.decode("utf-8", "surrogatepass"))

    def to_json(self, value: Any) -> Any:
        """As it is."""
        return value

    def from_json(self, key: str, kept: Any) -> Any:
        """As it is."""
        return kept


def _key(id: MessageId, order: int) -> str:
    return f"{id},{order}"
