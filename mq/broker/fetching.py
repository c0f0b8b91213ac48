"""The fetch workers: each serves some of the queues. It chooses for one group of fetches after another, and does not
wait for the leases of one before it chooses for the next; what is leased is handed out in the same order
(:mod:`mq.broker.handing_out`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import groupby
from operator import attrgetter
from random import Random
from typing import Final, Protocol

import trio

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.fetches import Fetches, FetchRequest, Line
from mq.broker.handing_out import Chosen, HandingOut, Served
from mq.broker.holds import Hand, Holds, deal
from mq.broker.index import QueueIndex
from mq.broker.keys import Settle
from mq.broker.leases import Leases
from mq.broker.mailbox import Mailbox
from mq.broker.offers import Offers, Taken
from mq.broker.recent import Recent
from mq.errors import NoSuchQueue, StorageError
from mq.lifecycle import Kind
from mq.storage.interface import Entry, Move, Outcome

LARGEST_GROUP: Final = 1024
_LONGEST_PAUSE_SECONDS: Final = 0.009


class Upkeep(Protocol):
    """What a fetch asks of those who keep messages moving."""

    async def settle(self, index: QueueIndex) -> None:
        """Wait until messages in NEW have been delivered, where that is under way."""

    def deliver_offers(self, index: QueueIndex) -> None:
        """Nobody takes what else is offered: deliver it."""

    def is_dead(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether a READY message must not be handed out any more. Then it is on its way out."""


class FetchWorker:
    """Serves the fetches of its queues, one group at a time. Start :meth:`run`.

    Args:
        catalog: the queues.
        committer: does the moves.
        calls: the queues at whose lines it has to look.
        fetches: the lines.
        leases: names leases.
        settle: called before messages leave their queue.
        upkeep: keeps messages moving.
        holds: serves those who hold messages in memory.
        offers: what stands in NEW for them.
        recent: has bodies that need not be read.
        handing_out: gives those who asked what is leased.
        peers: how many other brokers fetch from the same store.
        random: chooses among candidates.
        refresh: looks at the store again for READY messages of a queue; used at peers > 0.
    """

    def __init__(
        self,
        catalog: Catalog,
        committer: Committer,
        calls: Mailbox[QueueIndex],
        fetches: Fetches,
        leases: Leases,
        settle: Settle,
        upkeep: Upkeep,
        holds: Holds,
        offers: Offers,
        recent: Recent,
        handing_out: HandingOut,
        *,
        peers: int,
        random: Random,
        refresh: Callable[[QueueIndex], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._committer = committer
        self._calls = calls
        self._fetches = fetches
        self._leases = leases
        self._settle = settle
        self._upkeep = upkeep
        self._holds = holds
        self._offers = offers
        self._recent = recent
        self._handing_out = handing_out
        self._peers = peers
        self._random = random
        self._refresh = refresh

    async def run(self) -> None:
        """Choose messages for those who want some, and have them leased, for ever."""
        while True:
            chosen, hands = await self._next_chosen()
            await self._holds.serve(hands)
            for part in self._parts(chosen):
                await self._lease(part)

    async def _next_chosen(self) -> tuple[list[Chosen], list[Hand]]:
        """What those get at whose lines it was called to look."""
        chosen: list[Chosen] = []
        hands: list[Hand] = []
        for index in await self._calls.drain(LARGEST_GROUP):
            line = self._fetches.answer_call(index)
            await self._look(index, line)
            leased, dealt = self._choose(index, line)
            self._upkeep.deliver_offers(index)
            chosen += leased
            hands += dealt
            self._fetches.served(index)
        return chosen, hands

    def _parts(self, chosen: list[Chosen]) -> Iterator[list[Chosen]]:
        """As much as is best handed over together; what one request gets is not parted."""
        part: list[Chosen] = []
        share = self._committer.share
        for _, of_request in groupby(chosen, key=attrgetter("request")):
            part += of_request
            if len(part) >= share:
                yield part
                part = []
        if part:
            yield part

    async def _look(self, index: QueueIndex, line: Line) -> None:
        """What is there for those in the line? They hear of it if that cannot be known."""
        try:
            await self._prepare(index, line)
        except StorageError as error:
            _fail(list(line.impatient), line, error)
        if index.deleted:
            _fail(list(line.requests), line, NoSuchQueue(f"queue {index.name} was deleted meanwhile"))

    def _choose(self, index: QueueIndex, line: Line) -> tuple[list[Chosen], list[Hand]]:
        """Entries for those whose turn it is: begun, or held. Who does not wait and gets none is answered."""
        chosen: list[Chosen] = []
        hands: list[Hand] = []
        while (request := line.first()) is not None and not index.settings.paused:
            if request.holds:
                hands += self._deal(index, line)
                if line.first() is request:
                    break
                continue
            messages = [] if request.reply.abandoned else self._next(index, request.count)
            if not messages and not request.reply.abandoned:
                break
            line.leave(request)
            chosen += [Chosen(request, *taken, self._move(request, taken)) for taken in messages]
        for request in list(line.impatient):
            line.leave(request)
            request.reply.set([])
        return chosen, hands

    def _deal(self, index: QueueIndex, line: Line) -> list[Hand]:
        """Messages for all who hold them, one each in turn."""
        holders = [request for request in line.requests if request.holds]
        for request in holders:
            if request.reply.abandoned:
                line.leave(request)
        hands = deal([request for request in holders if not request.reply.abandoned], partial(self._take, index))
        for hand in hands:
            line.leave(hand.request)
            for entry, _ in hand.messages:
                index.hold(entry)
        return hands

    async def _prepare(self, index: QueueIndex, line: Line) -> None:
        """See that what is there can be seen, for those who do not wait; who waits is called when it can be.

        Raises:
            StorageError: the store cannot be looked at.
        """
        if not line.impatient or index.deleted:
            return
        if index.ready < sum(request.count for request in line.impatient) and index.undelivered:
            await self._upkeep.settle(index)
        if self._peers and index.ready <= self._peers:
            await trio.sleep(self._random.uniform(0, _LONGEST_PAUSE_SECONDS))
            await self._refresh(index)

    def _next(self, index: QueueIndex, count: int) -> list[Taken]:
        """The first messages; with peers, any of the first `peers + 1`, so that brokers seldom want the same one."""
        messages: list[Taken] = []
        while len(messages) < count:
            taken = self._take(index)
            if taken is None:
                break
            self._catalog.begin(taken.entry)
            messages.append(taken)
        return messages

    def _take(self, index: QueueIndex) -> Taken | None:
        """Take the next message that may be handed out, out of the index.

        A peer may have brought here what this broker believes elsewhere, and is just moving from there: that is let be
        until the store is looked at again.
        """
        while (taken := self._offers.take(index)) is None:
            entry = self._candidate(index)
            if entry is None:
                break
            if entry.id not in self._catalog.transit and not self._upkeep.is_dead(index, entry):
                return Taken(entry)
        return taken

    def _candidate(self, index: QueueIndex) -> Entry | None:
        if not self._peers:
            return index.take()
        candidates = index.first(self._peers + 1)
        return index.discard(self._random.choice(candidates).id) if candidates else None

    def _move(self, request: FetchRequest, taken: Taken) -> Move:
        reads = taken.stored is None and taken.entry.id not in self._recent
        return self._leases.move(request, taken.entry, reads=reads)

    async def _lease(self, chosen: list[Chosen]) -> None:
        """Have them leased. What is chosen next is leased after them, though it need not wait for that."""
        served = {each.request: Served() for each in chosen}
        chosen = await self._settled(chosen, served)
        started = trio.current_time()

        def leased(outcomes: list[Outcome]) -> None:
            self._handing_out.leased(chosen, outcomes, served, started)

        self._committer.submit([each.move for each in chosen], len(chosen), leased)

    async def _settled(self, chosen: list[Chosen], served: dict[FetchRequest, Served]) -> list[Chosen]:
        """Those that may be moved now: a message that is to be taken leaves its queue."""
        taken = [each for each in chosen if each.request.takes]
        if not taken:
            return chosen
        try:
            await self._settle([each.entry.id for each in taken])
        except StorageError as error:
            for each in taken:
                self._catalog.end(each.entry, each.entry, Kind.REMOVE)
                served[each.request].error = error
            return [each for each in chosen if not each.request.takes]
        return chosen


def _fail(requests: list[FetchRequest], line: Line, error: Exception) -> None:
    for request in requests:
        line.leave(request)
        request.reply.fail(error)
