"""Holding messages for as long as a connection lasts: hold, acknowledge, put back, reject.

Where this broker alone hands out the store's messages, a hold is in memory (:mod:`mq.broker.holds`). Among peers it is
a lease like any other, which is renewed here until it is settled: if this broker dies, it runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from mq.broker.catalog import Catalog
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Consuming
from mq.broker.deaths import REJECTED, Deaths
from mq.broker.exclusion import Exclusion
from mq.broker.fetches import Fetches, FetchRequest
from mq.broker.holds import Holds
from mq.broker.index import QueueIndex
from mq.broker.jobs import RANK_TICKS, Change, Job
from mq.broker.keys import Settle
from mq.broker.mailbox import Mailbox, Reply
from mq.broker.removing import Remover
from mq.errors import Conflict, MQError, NoSuchMessage, QueueHeld, ReceiptMismatch
from mq.lifecycle import Kind, State
from mq.message import Message, MessageId, MessageIds
from mq.storage.interface import Entry, Move


class Held(NamedTuple):
    """A message that somebody holds.

    Attributes:
        message: as any other; close its body.
        redelivered: whether somebody may have had it before.
        entry: where it was when it was handed out.
    """

    message: Message
    redelivered: bool
    entry: Entry


class Holding:
    """What those ask for who hold messages.

    Args:
        catalog: the queues.
        fetches: where requests stand in line.
        holds: serves them in memory.
        consuming: leases, among peers.
        deaths: takes care of what is rejected.
        settle: called before messages leave their queue.
        remover: takes away what is acknowledged.
        jobs: where the save workers find work.
        ids: says when a message joins the back of its queue.
        config: how the broker works.
    """

    def __init__(
        self,
        catalog: Catalog,
        fetches: Fetches,
        holds: Holds,
        consuming: Consuming,
        deaths: Deaths,
        settle: Settle,
        remover: Remover,
        jobs: Mailbox[Sequence[Job]],
        ids: MessageIds,
        config: BrokerConfig,
    ) -> None:
        self._catalog = catalog
        self._fetches = fetches
        self._holds = holds
        self._consuming = consuming
        self._deaths = deaths
        self._settle = settle
        self._remover = remover
        self._jobs = jobs
        self._ids = ids
        self._config = config
        self._renewed: dict[tuple[str, MessageId], Held] = {}

    async def hold(self, request: FetchRequest, wait: float) -> list[Held]:
        """Messages for the request; none when there are none, or when none came within `wait` seconds."""
        index = request.index
        messages = await self._consuming.fetch(request, wait)
        held = [
            Held(message, message.receives > 1 or entry.id in index.returned, entry)
            for message, entry in zip(messages, request.held, strict=True)
        ]
        if not request.holds:
            self._renewed |= {(each.entry.queue, each.entry.id): each for each in held}
        return held

    def exclude(self, index: QueueIndex) -> Exclusion:
        """Let one consumer alone have the queue's messages. Whoever waits for them hears of it.

        Raises:
            Conflict: among peers, whose consumers are not known here.
            QueueHeld: somebody has it already.
        """
        if self._config.peers:
            raise Conflict("a queue cannot be one consumer's alone among peers: serve it with --peers=0")
        self._consuming.check_exclusion(index, None)
        exclusion = Exclusion(index)
        self._fetches.refuse(index, QueueHeld(f"queue {index.name} is one consumer's alone. Try again later"))
        return exclusion

    async def acknowledge(self, held: Sequence[Held], *, durable: bool = False) -> None:
        """Remove them. Those that somebody else has removed, or got, are passed over.

        Raises:
            StorageError: some could not be removed; they are READY again.
        """
        await self._settle([each.entry.id for each in held])
        in_memory, leased = _split(held)
        entries = list(dict.fromkeys(each.entry for each in in_memory if self._in_memory(each.entry)))
        reply = self._remover.remove(entries, durable=durable)
        await self._change(leased, lambda entry: self._remover.remove([entry], durable=durable))
        await reply.get()

    async def put_back(self, held: Sequence[Held], *, redelivered: bool = True, to_back: bool = False) -> None:
        """Let others have them: in their places, or behind all the others of their queue.

        Raises:
            StorageError: some could not be moved; they are where they were.
        """
        if to_back:
            await self._change(held, self._send_back)
            return
        in_memory, leased = _split(held)
        for index, entries in self._by_queue(in_memory):
            self._holds.put_back(index, entries, is_returned=redelivered)
        await self._change(leased, self._requeue)

    async def reject(self, held: Sequence[Held]) -> None:
        """Nobody can use them: to their queue's dead-letter queue, or removed where there is none.

        Raises:
            StorageError: some could not be moved; they are where they were.
        """
        await self._change(held, lambda entry: self._deaths.bury(entry, REJECTED))

    async def run(self) -> None:
        """Renew the leases of what is held among peers, for ever."""
        while True:
            await trio.sleep(self._config.delay_seconds / 3)
            async with trio.open_nursery() as nursery:
                for each in list(self._renewed.values()):
                    nursery.start_soon(self._renew, each)

    # How it is done

    async def _renew(self, held: Held) -> None:
        entry, index = held.entry, self._catalog.queues.get(held.entry.queue)
        try:
            if index is None:
                raise NoSuchMessage("its queue was deleted")
            await self._consuming.extend(index, entry.id, self._config.delay_seconds, entry.meta.claim)
        except (NoSuchMessage, ReceiptMismatch):
            self._forget(held)
        except MQError:
            pass  # tried again in a while; if that is too late, it was leased

    async def _change(self, held: Sequence[Held], change: Callable[[Entry], Reply[Entry] | Reply[None]]) -> None:
        """Do this to each that is still held, in one batch."""
        replies: list[Reply[Entry] | Reply[None]] = []
        for each in held:
            entry = await self._current(each)
            self._forget(each)
            if entry is not None:
                replies.append(change(entry))
        failed: MQError | None = None
        for reply in replies:
            try:
                await reply.get()
            except NoSuchMessage:
                pass  # somebody else was faster
            except MQError as error:
                failed = error
        if failed is not None:
            raise failed

    async def _current(self, held: Held) -> Entry | None:
        """Where a held message is now; None when it is not held any more."""
        entry = held.entry
        if entry.meta.claim is None:
            return self._in_memory(entry)
        index = self._catalog.queues.get(entry.queue)
        if index is None:
            return None
        await self._catalog.transit.wait(entry.id)  # its lease is being renewed
        now = index.find(entry.id)
        return now if now is not None and now.meta.claim == entry.meta.claim else None

    def _in_memory(self, entry: Entry) -> Entry | None:
        """The entry, if it is still held."""
        index = self._catalog.queues.get(entry.queue)
        return entry if index is not None and index.held.get(entry.id) == entry else None

    def _send_back(self, entry: Entry) -> Reply[Entry]:
        self._catalog.begin(entry)
        self._catalog.queues[entry.queue].returned.add(entry.id)
        rank = max(0, entry.joined - entry.id.time) // RANK_TICKS  # behind the others of its rank, no further
        meta = entry.meta.at_rest()._replace(order=self._ids.new().time + rank * RANK_TICKS)
        return self._put(Move(entry, State.READY, meta, durable=False), Kind.REQUEUE, "requeue the message")

    def _requeue(self, entry: Entry) -> Reply[Entry]:
        self._catalog.begin(entry)
        return self._put(Move(entry, State.READY, entry.meta.at_rest()), Kind.REQUEUE, "requeue the message")

    def _put(self, move: Move, kind: Kind, what: str) -> Reply[Entry]:
        job = Change(self._catalog, move, kind, what)
        self._jobs.put([job])
        return job.reply

    def _by_queue(self, held: Sequence[Held]) -> list[tuple[QueueIndex, list[Entry]]]:
        entries: dict[str, list[Entry]] = {}
        for each in held:
            entries.setdefault(each.entry.queue, []).append(each.entry)
        queues = self._catalog.queues
        return [(queues[name], listed) for name, listed in entries.items() if name in queues]

    def _forget(self, held: Held) -> None:
        self._renewed.pop((held.entry.queue, held.entry.id), None)


def _split(held: Sequence[Held]) -> tuple[list[Held], list[Held]]:
    """Those that are held in memory, and those that are leased."""
    in_memory = [each for each in held if each.entry.meta.claim is None]
    return in_memory, [each for each in held if each.entry.meta.claim is not None]
