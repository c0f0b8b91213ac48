"""Giving what is leased to those it is for, in the order in which it was leased."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import trio

from mq.broker.catalog import Catalog
from mq.broker.closing import close
from mq.broker.commit import error_of
from mq.broker.config import MARGIN_SECONDS
from mq.broker.deaths import Deaths
from mq.broker.fetches import Fetches, FetchRequest
from mq.broker.leases import Leases
from mq.broker.mailbox import Mailbox
from mq.broker.recent import Recent
from mq.errors import MQError, StorageError, StorageSlow
from mq.lifecycle import Kind, State
from mq.message import DamagedBody, Message
from mq.storage.interface import Entry, Move, Outcome, Result, Storage, Stored

logger = logging.getLogger("mq.broker")

LARGEST_GROUP: Final = 1024


class Upkeep(Protocol):
    """What is asked of those who keep messages moving."""

    def give_back(self, entry: Entry) -> None:
        """Make a leased message READY again at once."""


class Chosen(NamedTuple):
    """A message that is to be leased, or removed, for a request. The catalog has let it go.

    Attributes:
        request: who gets it.
        entry: where it is.
        stored: what reading it would give, where that is known.
        move: that leases or removes it.
    """

    request: FetchRequest
    entry: Entry
    stored: Stored | None
    move: Move


class _Held(NamedTuple):
    request: FetchRequest
    left: Entry
    entry: Entry
    stored: Stored | None


class Served:
    """What one request gets.

    Attributes:
        entries: where its messages are.
        messages: they.
        error: what it hears if it gets none.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.messages: list[Message] = []
        self.error: MQError | None = None

    def add(self, entry: Entry, message: Message) -> None:
        """One more."""
        self.entries.append(entry)
        self.messages.append(message)


class HandingOut:
    """Hands out. Start :meth:`run`.

    Args:
        catalog: the queues.
        storage: gives the bodies.
        fetches: the lines, for those who go away empty-handed.
        leases: says how long a lease lasts.
        upkeep: takes back what nobody gets.
        deaths: what is known of a message's earlier deaths.
        recent: has bodies that need not be read.
    """

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        fetches: Fetches,
        leases: Leases,
        upkeep: Upkeep,
        deaths: Deaths,
        recent: Recent,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._fetches = fetches
        self._leases = leases
        self._upkeep = upkeep
        self._deaths = deaths
        self._recent = recent
        self._leased: Mailbox[tuple[list[_Held], dict[FetchRequest, Served]]] = Mailbox()

    async def run(self) -> None:
        """Give what is leased to those it is for, for ever. Those whose messages turned out to be gone or damaged stand
        in line again, first."""
        while True:
            for held, served in await self._leased.drain(LARGEST_GROUP):
                await self._read(held, served)
                for request in reversed(served):
                    await self._answer(request, served[request])

    def leased(
        self, chosen: Iterable[Chosen], outcomes: Sequence[Outcome], served: dict[FetchRequest, Served], started: float
    ) -> None:
        """This is what became of them. Who has an entry in `served` is answered.

        Args:
            chosen: the messages.
            outcomes: of their moves.
            served: what is known already of those who get something.
            started: when the leases were named, by Trio's clock.
        """
        now = trio.current_time()
        held = []
        for each, outcome in zip(chosen, outcomes, strict=True):
            if outcome.result is Result.DONE and outcome.entry is not None:
                stored = each.stored or self._recent.take(each.entry.id)
                held.append(_Held(each.request, each.entry, outcome.entry, stored))
                if not each.request.takes:
                    due = now + self._leases.seconds(each.request)
                    self._catalog.end(each.entry, outcome.entry, Kind.LEASE, due, each.request.door)
            else:
                self._catalog.end(each.entry, None if outcome.result is Result.GONE else each.entry, Kind.LEASE)
                if outcome.result is not Result.GONE:
                    served[each.request].error = error_of(outcome, "lease the message")
        self._leased.put((self._in_time(held, now - started, served), served))

    def _in_time(self, held: list[_Held], seconds: float, served: dict[FetchRequest, Served]) -> list[_Held]:
        """Those that may be handed out: a lease whose barrier took too long would not outlive a restart."""
        if seconds <= MARGIN_SECONDS:
            return held
        for request, _, entry, _ in held:
            if not request.takes:
                self._upkeep.give_back(entry)
                served[request].error = StorageSlow(f"the disk took {seconds:.1f} s; nothing was handed out. Try again")
        return [each for each in held if each.request.takes]

    async def _read(self, held: list[_Held], served: dict[FetchRequest, Served]) -> None:
        """Open the bodies. What was taken is let go only then: the reaper is quick."""
        if not held:
            return
        try:
            unread = [each.entry for each in held if each.stored is None]
            read: list[Stored | None] = await self._storage.read(unread) if unread else []
            with suppress(StorageError):  # a message is worth more than its history
                await self._deaths.learn([each.left for each in held])
        except StorageError as error:
            read = [None] * len(unread)
            for request, _, entry, _ in [each for each in held if each.stored is None]:
                served[request].error = error
                if not request.takes:
                    self._upkeep.give_back(entry)
        following = iter(read)
        for request, left, entry, stored in held:
            found = stored or next(following)
            if found is not None and not isinstance(found.body, DamagedBody):
                served[request].add(entry, self._message(left, entry, found))
            elif served[request].error is None:
                _log_damage(entry, found)
            if request.takes:
                self._catalog.end(left, entry, Kind.REMOVE, door=request.door)

    def _message(self, left: Entry, entry: Entry, found: Stored) -> Message:
        return Message(
            entry.queue,
            entry.id,
            found.body,
            found.properties,
            left.meta.receives + 1,
            entry.meta.claim or "",
            self._deaths.history(left),
        )

    async def _answer(self, request: FetchRequest, served: Served) -> None:
        if request.reply.abandoned:
            await close(served.messages)
            if not request.takes:
                for entry in served.entries:
                    self._upkeep.give_back(entry)
        elif served.messages:
            request.held = served.entries
            request.reply.set(served.messages)
        elif served.error is not None:
            request.reply.fail(served.error)
        else:
            self._fetches.ask(request, first=True)


def _log_damage(entry: Entry, found: Stored | None) -> None:
    why = found.body.reason if found is not None and isinstance(found.body, DamagedBody) else "its file vanished"
    stays = "It is removed" if entry.state is State.REMOVED else "It stays where it is"
    logger.error("message %s of %s is not handed out: %s. %s", entry.id, entry.queue, why, stays)
