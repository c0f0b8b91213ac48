"""Dead letters: messages that were received too often, that expired, that had to make room, or that were rejected.

A dead message goes to its queue's dead-letter queue, with its history, and is removed where there is none. The
history is durable before the message moves; it stays with the id until the message is removed for good.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer, error_of
from mq.broker.config import RETRY_SECONDS
from mq.broker.heirs import Heirs
from mq.broker.index import QueueIndex
from mq.broker.keys import Settle
from mq.broker.ledger import Ledger
from mq.broker.mailbox import Mailbox, Reply
from mq.errors import Conflict, MQError, StorageError, StorageFailed, StorageFull
from mq.lifecycle import Kind, State
from mq.message import MessageId, MessageIds
from mq.storage.interface import Entry, Meta, Move, Outcome, Result

logger = logging.getLogger("mq.broker")

KIND: Final = "death"
"""The kind of the ledger's records."""
RECEIVES: Final = "receives"
EXPIRED: Final = "expired"
DROPPED: Final = "dropped"
REJECTED: Final = "rejected"
_LARGEST_GROUP: Final = 512
_LONGEST_HISTORY: Final = 16
_FEW: Final = 512


class _Dead(NamedTuple):
    entry: Entry
    reason: str
    is_lease_over: bool
    reply: Reply[None]


class Deaths:
    """Takes care of the dead.

    Args:
        ledger: keeps the histories.
        catalog: the queues.
        committer: does the moves.
        ids: says when a message joins its new queue.
        settle: called before messages leave their queue.
        heirs: get those that are a door's business.
        look_again: learns which queues there are, and their settings, where others change them.
        clock_ns: wall clock, nanoseconds since 1970.
        is_shared: whether others bury messages, too.
    """

    def __init__(
        self,
        ledger: Ledger,
        catalog: Catalog,
        committer: Committer,
        ids: MessageIds,
        settle: Settle,
        heirs: Heirs,
        look_again: Callable[[], Awaitable[None]],
        clock_ns: Callable[[], int],
        *,
        is_shared: bool,
    ) -> None:
        self._ledger = ledger
        self._catalog = catalog
        self._committer = committer
        self._ids = ids
        self._settle = settle
        self._heirs = heirs
        self._look_again = look_again
        self._clock_ns = clock_ns
        self._is_shared = is_shared
        self._dead: Mailbox[_Dead] = Mailbox()
        self._orders: dict[MessageId, set[int]] = {}
        self._missing: set[MessageId] = set()
        self._many = _FEW

    async def load(self) -> None:
        """Learn the histories that are in the store, and forget those whose message is in no queue any more."""
        await self._load()
        for id in self._without_message():
            self.forget(id)

    async def learn(self, entries: Iterable[Entry]) -> None:
        """Among others who bury messages, too: read the histories that are not known here.

        Raises:
            StorageError: they cannot be read.
        """
        if self._is_shared and any(self._is_unknown(entry) for entry in entries):
            await self._load()

    def history(self, entry: Entry) -> tuple[Mapping[str, Any], ...]:
        """How a message died before, the latest death first. One that was noted and did not come to pass is none."""
        if not self._orders:
            return ()
        orders = sorted(self._orders.get(entry.id, ()))
        past = [order for order in orders if order <= entry.joined]
        if past:
            return tuple(self._ledger.get(_key(entry.id, past[-1])))
        return tuple(self._ledger.get(_key(entry.id, orders[0]))[1:]) if orders else ()

    def forget(self, id: MessageId) -> None:
        """The message was removed."""
        for order in self._orders.pop(id, ()):
            self._ledger.forget(_key(id, order))

    def is_worn_out(self, entry: Entry) -> bool:
        """Whether a message has been received so often that it has to die when it comes back."""
        index = self._catalog.queues.get(entry.queue)
        if index is None or index.settings.max_receives is None or entry.meta.receives < index.settings.max_receives:
            return False
        return self._grave(index) is not None

    def is_expired(self, entry: Entry) -> bool:
        """Whether a message's time is over."""
        return entry.meta.expires_ms is not None and entry.meta.expires_ms <= self._clock_ns() // 1_000_000

    def bury(self, entry: Entry, reason: str, *, is_lease_over: bool = False) -> Reply[None]:
        """A message that stands in the index is dead. Answered when that is durable."""
        self._catalog.begin(entry, is_leaving=True)
        dead = _Dead(entry, reason, is_lease_over, Reply())
        self._dead.put(dead)
        return dead.reply

    async def run(self) -> None:
        """Bury for ever."""
        while True:
            dead = [each for each in await self._dead.drain(_LARGEST_GROUP) if not self._is_reprieved(each)]
            try:
                await self._settle([each.entry.id for each in dead])
                await self._heirs.inherit([(each.entry, each.reason) for each in dead])
                moves = await self._prepare(dead)
            except (StorageFull, StorageFailed) as error:
                for each in dead:
                    self._put_back(each, error)
                await trio.sleep(RETRY_SECONDS)
                continue
            outcomes = await self._committer.commit(moves)
            refused = [
                outcome.reason
                for each, move, outcome in zip(dead, moves, outcomes, strict=True)
                if not self._end(each, move, outcome)
            ]
            if refused:
                logger.warning("cannot move %d dead messages now: %s", len(refused), refused[0])
                await trio.sleep(RETRY_SECONDS)

    # How it is done

    async def _prepare(self, dead: list[_Dead]) -> list[Move]:
        """Where each has to go; the histories of those that go on are durable."""
        self._forget_missing()
        with suppress(StorageError):  # a history that is shorter than it could be
            await self.learn(each.entry for each in dead)
        if self._is_shared and any(self._grave_of(each.entry) is None for each in dead):
            await self._look_again()  # a peer may have named one just now
        moves: list[Move] = []
        histories: dict[MessageId, tuple[int, list[Mapping[str, Any]]]] = {}
        for entry, reason, *_ in dead:
            grave = self._grave_of(entry)
            if grave is None:
                moves.append(Move(entry, State.REMOVED))
            else:
                meta = arriving(grave, self._ids, self._clock_ns)
                histories[entry.id] = (meta.order or 0, self._longer_history(entry, reason))
                moves.append(Move(entry, State.READY, meta, grave.name))
        if histories:
            await self._put(histories)
        return moves

    async def _put(self, histories: Mapping[MessageId, tuple[int, list[Mapping[str, Any]]]]) -> None:
        """A history is kept with the place that its message is about to get, by which it is known whether it got
        there. It has all of those before it."""
        for id in histories:
            self.forget(id)
        for id, (order, _) in histories.items():
            self._orders[id] = {order}
        await self._ledger.put({_key(id, order): deaths for id, (order, deaths) in histories.items()})

    async def _load(self) -> None:
        await self._ledger.load()
        self._orders.clear()
        for key in self._ledger:
            id, _, order = key.partition(",")
            self._orders.setdefault(MessageId(id), set()).add(int(order))

    def _end(self, each: _Dead, move: Move, outcome: Outcome) -> bool:
        """False when it stays where it was. It will be dead again there, and be tried again."""
        entry = each.entry
        if outcome.result is Result.DONE:
            removal = Kind.REMOVE if each.reason == REJECTED else Kind.EXPIRE
            self._catalog.end(entry, outcome.entry, removal if move.state is State.REMOVED else Kind.DIE)
            each.reply.set(None)
            return True
        self._put_back(each, error_of(outcome, "move the dead message"), is_gone=outcome.result is Result.GONE)
        return outcome.result is Result.GONE

    def _put_back(self, each: _Dead, error: MQError, *, is_gone: bool = False) -> None:
        due = trio.current_time() + RETRY_SECONDS if each.is_lease_over else None
        self._catalog.end(each.entry, None if is_gone else each.entry, Kind.DIE, due)
        each.reply.fail(error)

    def _index(self, entry: Entry) -> QueueIndex | None:
        """The queue of a message, if it still is that one and not another of the same name."""
        index = self._catalog.queues.get(entry.queue)
        return index if index is not None and entry.joined >= index.created else None

    def _grave_of(self, entry: Entry) -> QueueIndex | None:
        index = self._index(entry)
        return self._grave(index) if index is not None and not self._heirs.take(entry.queue) else None

    def _is_reprieved(self, each: _Dead) -> bool:
        """A message that was received too often dies only where there is a queue for the dead; if that was deleted
        just now, it stays where it is."""
        index = self._index(each.entry)
        if each.reason != RECEIVES or index is None or self._grave(index) is not None:
            return False
        self._put_back(each, Conflict(f"the dead-letter queue of {index.name} was deleted just now: try again"))
        return True

    def _grave(self, index: QueueIndex) -> QueueIndex | None:
        name = index.settings.dead_letter_queue
        return self._catalog.queues.get(name) if name is not None and name != index.name else None

    def _longer_history(self, entry: Entry, reason: str) -> list[Mapping[str, Any]]:
        death = {
            "queue": entry.queue,
            "reason": reason,
            "receives": entry.meta.receives,
            "time": self._clock_ns() // 1_000_000 / 1000,
        }
        return [death, *self.history(entry)][:_LONGEST_HISTORY]

    def _is_unknown(self, entry: Entry) -> bool:
        """Whether somebody else may have brought the message to its place."""
        return entry.meta.order is not None and entry.meta.order not in self._orders.get(entry.id, ())

    def _without_message(self) -> set[MessageId]:
        """The ids of histories whose message is in no queue, as far as is known here."""
        if not self._orders:
            return set()
        there = {entry.id for index in self._catalog.queues.values() for entry in index.entries()}
        return {id for id in self._orders if id not in there and id not in self._catalog.transit}

    def _forget_missing(self) -> None:
        """Others remove messages, and do not tell: a history whose message was not there twice is forgotten. It is
        looked for when there are twice as many histories as there were."""
        if self._is_shared and len(self._orders) > self._many:
            missing = self._without_message()
            for id in missing & self._missing:
                self.forget(id)
            self._missing = missing
            self._many = 2 * len(self._orders) + _FEW


def arriving(index: QueueIndex, ids: MessageIds, clock_ns: Callable[[], int]) -> Meta:
    """The meta of a message that joins `index` now, from another queue: at its end, with its time to live."""
    ttl = index.settings.ttl
    expires_ms = None if ttl is None else clock_ns() // 1_000_000 + max(1, round(ttl * 1000))
    return Meta(order=ids.new().time, expires_ms=expires_ms)


def _key(id: MessageId, order: int) -> str:
    return f"{id},{order}"
