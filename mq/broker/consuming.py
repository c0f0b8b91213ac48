"""Consuming: fetch, take, remove, requeue, extend."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import trio

from mq.broker.catalog import Catalog
from mq.broker.closing import close
from mq.broker.config import BrokerConfig
from mq.broker.deaths import RECEIVES, Deaths
from mq.broker.fetches import Fetches, FetchRequest
from mq.broker.holds import Holds
from mq.broker.index import QueueIndex
from mq.broker.jobs import Change, Job
from mq.broker.keys import Settle
from mq.broker.leases import Leases
from mq.broker.mailbox import Mailbox
from mq.broker.removing import Remover
from mq.broker.upkeep import Upkeep
from mq.errors import MQError, NoSuchMessage, NotLeased, QueueHeld, ReceiptMismatch
from mq.lifecycle import Kind, State
from mq.message import Message, MessageId, shorten
from mq.storage.interface import Entry, Meta, Move, Storage


class Removal(NamedTuple):
    """A message that is to be removed.

    Attributes:
        id: the message.
        receipt: of the delivery that must still hold it; None for "whoever holds it".
    """

    id: str
    receipt: str | None = None


class Consuming:
    """What consumers ask for.

    Args:
        storage: knows where a message is, on a followed store.
        catalog: the queues.
        fetches: where fetches stand in line.
        jobs: where the save workers find work.
        upkeep: takes back what nobody took.
        deaths: takes care of what was received too often.
        settle: called before messages leave their queue.
        leases: names leases.
        holds: serves those who hold messages in memory.
        remover: removes where nobody else can have moved a message meanwhile.
        config: how the broker works.
    """

    def __init__(
        self,
        storage: Storage,
        catalog: Catalog,
        fetches: Fetches,
        jobs: Mailbox[Sequence[Job]],
        upkeep: Upkeep,
        deaths: Deaths,
        settle: Settle,
        leases: Leases,
        holds: Holds,
        remover: Remover,
        config: BrokerConfig,
    ) -> None:
        self._storage = storage
        self._catalog = catalog
        self._fetches = fetches
        self._jobs = jobs
        self._upkeep = upkeep
        self._deaths = deaths
        self._remover = remover
        self._settle = settle
        self._leases = leases
        self._holds = holds
        self._config = config

    async def fetch(self, request: FetchRequest, wait: float) -> list[Message]:
        """The messages that the request gets; none when there are none, or when none came within `wait` seconds.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        self.check_exclusion(request.index, request.exclusion)
        self._fetches.ask(request)
        try:
            if not request.waits:
                return await request.reply.get()
            with trio.move_on_after(wait):
                return await request.reply.get()
            request.reply.abandoned, request.waits = False, False
            if self._fetches.withdraw(request):
                return []
            return await request.reply.get()  # it is being served just now
        except trio.Cancelled:
            self._fetches.withdraw(request)
            await self._take_back(request)
            raise

    def check_exclusion(self, index: QueueIndex, exclusion: object | None) -> None:
        """Let one consumer alone have the messages of a queue.

        Raises:
            QueueHeld: it is another one.
        """
        if index.exclusion is not None and index.exclusion is not exclusion:
            raise QueueHeld(f"queue {index.name} is one consumer's alone. Try again when it has gone")

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Messages that were fetched in vain: READY again at once, and not counted as received. Closes their bodies."""
        await close(messages)
        for message in messages:
            index = self._catalog.queues.get(message.queue)
            entry = index.find(message.id) if index is not None else None
            if entry is not None and entry.meta.claim == message.receipt:
                self._upkeep.give_back(entry)

    async def remove(self, index: QueueIndex, removal: Removal) -> None:
        """Remove a message for good, wherever in its queue it is.

        Raises:
            NoSuchMessage: it is not in it.
            ReceiptMismatch: another delivery holds it.
        """
        id = MessageId(removal.id)
        await self._settle([id])
        if not self._config.followed:
            entry = await self._locate(index, id, removal.receipt)
            await self._remover.remove([entry], durable=True, strict=True).get()
            return
        while not await self._removed(await self._locate(index, id, removal.receipt)):
            pass
        if self._has_other_names:
            await self._remove_other_names(index, id)

    async def _removed(self, entry: Entry) -> bool:
        """Remove it from there; False when a peer has moved it meanwhile."""
        with suppress(NoSuchMessage):
            await self._begin(self._removal(entry), Kind.REMOVE, "remove the message").reply.get()
            return True
        return False

    async def remove_many(self, index: QueueIndex, removals: Sequence[Removal]) -> list[MQError | None]:
        """Remove them in one batch; what became of each, in their order. None is "removed". Of several removals of one
        message the first counts."""
        errors: list[MQError | None] = [None] * len(removals)

        async def remove(number: int) -> None:
            try:
                await self.remove(index, removals[number])
            except MQError as error:
                errors[number] = error

        first = {removal.id: number for number, removal in reversed(list(enumerate(removals)))}
        numbers = list(first.values())
        left = numbers if self._config.followed else await self._remove_still(index, removals, numbers, errors)
        async with trio.open_nursery() as nursery:
            for number in left:
                nursery.start_soon(remove, number)
        for number, removal in enumerate(removals):
            if first[removal.id] != number:
                await remove(number)
        return errors

    async def _remove_still(
        self,
        index: QueueIndex,
        removals: Sequence[Removal],
        numbers: Sequence[int],
        errors: list[MQError | None],
    ) -> list[int]:
        """Remove in one batch those that nobody is moving just now, and note what they failed by. The others."""
        found: dict[int, Entry] = {}
        moving = []
        try:
            ids = [MessageId(removals[number].id) for number in numbers]
            await self._settle(ids)
        except MQError:
            return list(numbers)  # each will hear of it, or succeed
        for number, id in zip(numbers, ids, strict=True):
            if id in self._catalog.transit:
                moving.append(number)
                continue
            try:
                found[number] = _checked(index, id, index.find(id), removals[number].receipt)
            except MQError as error:
                errors[number] = error
        for number, reply in zip(found, self._remover.remove_each(list(found.values())), strict=True):
            try:
                await reply.get()
            except MQError as error:
                errors[number] = error
        return moving

    async def requeue(self, index: QueueIndex, id: str, receipt: str | None) -> None:
        """End a message's lease: it is READY again, in its old place; or dead, when that was its last one.

        Raises:
            NoSuchMessage: it is not in the queue.
            NotLeased: no lease of it is running.
            ReceiptMismatch: another delivery holds it.
        """
        while True:
            entry = await self._leased(index, id, receipt)
            if self._deaths.is_worn_out(entry):
                await self._deaths.bury(entry, RECEIVES).get()
                return
            job = self._begin(Move(entry, State.READY, entry.meta.at_rest()), Kind.REQUEUE, "requeue the message")
            try:
                await job.reply.get()
                return
            except NoSuchMessage:
                if not self._config.followed:
                    raise

    async def extend(self, index: QueueIndex, id: str, seconds: float, receipt: str | None) -> None:
        """Let a message's lease end in so many seconds from now.

        Raises:
            As :meth:`requeue`.
        """
        while True:
            entry = await self._leased(index, id, receipt)
            meta = entry.meta._replace(deadline_ms=self._leases.deadline_ms(seconds))
            if meta == entry.meta:
                meta = meta._replace(deadline_ms=self._leases.deadline_ms(seconds) + 1)  # a move leads elsewhere
            job = self._begin(Move(entry, State.DELAYED, meta), Kind.EXTEND, "extend the lease", seconds)
            try:
                await job.reply.get()
                return
            except NoSuchMessage:
                if not self._config.followed:
                    raise

    # How it is done

    async def _take_back(self, request: FetchRequest) -> None:
        """Whoever asked went in the very step in which the answer came: nobody has the messages."""
        if request.holds:
            self._holds.put_back(request.index, request.held, is_returned=False)
        elif not request.takes:
            for entry in request.held:
                self._upkeep.give_back(entry)
        await close(request.reply.value or [])

    def _begin(self, move: Move, kind: Kind, what: str, seconds: float | None = None) -> Change:
        """Put a job that moves an entry which stands in the index, or on a followed store somewhere."""
        self._catalog.begin(move.entry, is_leaving=move.state is State.REMOVED)
        job = Change(self._catalog, move, kind, what, seconds)
        self._jobs.put([job])
        return job

    async def _leased(self, index: QueueIndex, id: str, receipt: str | None) -> Entry:
        entry = await self._locate(index, MessageId(id), receipt)
        if entry.state is not State.DELAYED or entry.meta.claim is None:
            raise NotLeased(f"message {id} of queue {index.name} is not leased: fetch it first")
        return entry

    async def _locate(self, index: QueueIndex, id: MessageId, receipt: str | None) -> Entry:
        """Where the message is now, and that nobody moves it."""
        while True:
            await self._catalog.transit.wait(id)
            entry = index.find(id)
            if entry is None and self._config.followed:
                entry = await self._storage.find(index.name, id)
            if id not in self._catalog.transit:
                break
        return _checked(index, id, entry, receipt)

    @property
    def _has_other_names(self) -> bool:
        """Whether a message may have more than one."""
        return self._config.followed and not self._storage.description.journaled

    def _removal(self, entry: Entry) -> Move:
        """Where a message may have more than one name, each of them goes to a name of its own in REMOVED."""
        claim = self._leases.meta(entry, 0).claim if self._has_other_names else None
        return Move(entry, State.REMOVED, Meta(claim=claim))

    async def _remove_other_names(self, index: QueueIndex, id: MessageId) -> None:
        """Where moves are link and unlink, a peer that was killed in between has left the message under two names."""
        while True:
            await self._catalog.transit.wait(id)
            entry = await self._storage.find(index.name, id)
            if id in self._catalog.transit:
                continue
            if entry is None:
                return
            with suppress(NoSuchMessage):
                await self._begin(self._removal(entry), Kind.REMOVE, "remove the message").reply.get()


def _checked(index: QueueIndex, id: MessageId, entry: Entry | None, receipt: str | None) -> Entry:
    """The entry of a message, if there is one, and whoever has the receipt may change it."""
    if entry is None:
        raise NoSuchMessage(f"message {shorten(id)} is not in queue {index.name}")
    if receipt is not None and (entry.state is not State.DELAYED or entry.meta.claim != receipt):
        raise ReceiptMismatch(f"message {id}: your lease has run out. Fetch it again")
    return entry
