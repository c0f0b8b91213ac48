"""Unacknowledged deliveries: a connection holds messages until it acknowledges them, puts them back or rejects them.

Where no peer hands out messages of the store, a hold is in memory (:mod:`mq.broker.dispatch`). Among peers it is a
lease that the broker renews until the message is settled; when the broker dies, the lease runs out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from mq import turns
from mq.broker.commit import Done, Future
from mq.broker.consuming import Consumption, Removal, Remover
from mq.broker.core import Core
from mq.broker.dead_letters import LIMIT, RECEIVES, REJECTED, DeadLetters
from mq.broker.dispatch import UnackedDeliverer
from mq.broker.exclusion import Exclusion
from mq.broker.index import QueueIndex, order_of, priority_of
from mq.broker.jobs import MoveJob, last_error
from mq.broker.leases import Leases
from mq.broker.waiters import HOLD, FetchRequest, Precedence, Waiters
from mq.errors import Conflict, MQError, NoSuchMessage, QueueHeld, ReceiptMismatch
from mq.lifecycle import Kind, State
from mq.message import BytesBody, Message, MessageId, Properties
from mq.storage.interface import Entry, Move, Sharing


class UnackedMessage(NamedTuple):
    """A message that a connection holds.

    Attributes:
        redelivered: whether a consumer may have had it before.
    """

    message: Message
    redelivered: bool
    entry: Entry

    def to_settle(self) -> UnackedMessage:
        """The same without its message: a client may hold very many for very long, and bodies and attributes are
        long."""
        return UnackedMessage(_DELIVERED, self.redelivered, self.entry)


Received = Callable[[list[UnackedMessage], Exception | None], object]
"""Called with messages that a connection holds from now on; or with the error of a request for them."""

_LEASE: Final = Kind.LEASE  # quicker than an attribute of the enumeration
_NO_ID: Final = MessageId("00000000-0000-1000-8000-000000000000")
_DELIVERED: Final = Message("", _NO_ID, BytesBody(b""), Properties(0, None), 0, "")
"""In place of a message that was delivered."""


class Unacked:
    """Operations of connections that hold messages. Among peers, start :meth:`run`."""

    def __init__(
        self,
        core: Core,
        waiters: Waiters,
        unacked_deliverer: UnackedDeliverer,
        consuming: Consumption,
        dead_letters: DeadLetters,
        remover: Remover,
        leases: Leases,
    ) -> None:
        self._leases = leases
        self._in_flight = core.in_flight
        self._known = core.catalog.queues
        self._random = core.random
        self._catalog = core.catalog
        self._waiters = waiters
        self._unacked_deliverer = unacked_deliverer
        self._consuming = consuming
        self._dead_letters = dead_letters
        self._secure_keys, self._unsecured = core.secure_keys, core.unsecured
        self._remover = remover
        self._jobs = core.jobs
        self._committer = core.committer
        self._ids = core.ids
        self._config = core.config
        self._others_move = core.config.others_move
        self._are_leased = core.config.sharing is Sharing.PEERS
        self._renewed: dict[tuple[str, MessageId], UnackedMessage] = {}
        self._loaded_until = 0  # the time of the youngest message that was in the store at the start, in UUID ticks

    def loaded(self) -> None:
        """Note that the store's messages are loaded: each of them may have been delivered before."""
        if not self._are_leased:  # else its receives say so: a hold in memory leaves no trace on disk
            self._loaded_until = self._ids.last

    def hold_now(
        self,
        queue: str,
        most: int = 1,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> list[UnackedMessage] | None:
        """As :meth:`Broker.hold`, in the caller's step; none if none is READY. None where that takes longer: then ask
        by that method.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        index = self._known.get(queue)
        if index is None:
            return None
        in_flight = self._in_flight
        if in_flight.is_closed or self._committer.failure:
            in_flight.check()
        if self._others_move:
            return None
        if index.exclusion is not None:
            self._consuming.check_exclusion(index, exclusion)
        if precedence is not None:
            precedence.step_aside()
        messages = self._unacked_deliverer.deliver_now(index, most)
        if not messages:
            return None if messages is None else []
        if precedence is not None:
            self._waiters.keep_place(index, precedence)
        return self._begin(index, messages)

    async def hold(self, request: FetchRequest, wait: float) -> list[UnackedMessage]:
        """The messages for the request; none if there are none, or none came within `wait` seconds."""
        return self._received(request, await self._consuming.fetch(request, wait))

    def hold_when_ready(
        self,
        queue: str,
        most: int,
        done: Received,
        *,
        exclusion: Exclusion | None = None,
        precedence: Precedence | None = None,
    ) -> Callable[[], None] | None:
        """As :meth:`Broker.hold` that waits without an end, in the caller's step; None where only a task can wait.

        Args:
            done: called once, with the messages or an error: in the step that makes the first one READY, as far as
                that is possible. With no message when the broker ends.

        Returns:
            What to call to wait no longer, before `done` was called.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        index = self._known.get(queue)
        if index is None or self._others_move:
            return None
        request = FetchRequest(index, most, waits=True, handing=HOLD, exclusion=exclusion, precedence=precedence)

        def answered(error: Exception | None) -> None:
            held = [] if error is not None else self._received(request, request.future.value or [])
            self._in_flight.__exit__()
            done(held, error)

        def withdraw() -> None:
            request.future.abandoned = True  # a worker that serves it just now puts its messages back
            self._waiters.withdraw(request)
            self._in_flight.__exit__()

        self._consuming.check_exclusion(index, exclusion)
        self._in_flight.__enter__()
        request.future.then(answered)
        self._waiters.ask(request, is_vain=not index.ready and not index.deleted)
        return withdraw

    def _received(self, request: FetchRequest, messages: Sequence[Message]) -> list[UnackedMessage]:
        held = self._begin(request.index, zip(request.held, messages, strict=True))
        if not request.holds:
            self._renewed |= {(each.entry.queue, each.entry.id): each.to_settle() for each in held}
        return held

    def _begin(self, index: QueueIndex, messages: Iterable[tuple[Entry, Message]]) -> list[UnackedMessage]:
        """Note that a connection holds messages from now on."""
        held, times = [], []
        for entry, message in messages:
            id = entry.id
            time = id.time
            times.append(time)
            is_known = time <= self._loaded_until or message.receives > 1 or id in index.returned
            held.append(UnackedMessage(message, is_known, entry))
        if times and not self._are_leased:  # a lease is a transition
            self._catalog.tell_held(_LEASE, index.name, times)
        return held

    def exclude(self, index: QueueIndex) -> Exclusion:
        """Give a queue to one consumer alone. Requests that wait for its messages fail.

        Raises:
            Conflict: the store has peers, whose consumers this broker does not know.
            QueueHeld: another consumer has it alone already.
        """
        if self._config.sharing is Sharing.PEERS:
            raise Conflict(
                "exclusive consumers are not supported when several daemons share a root folder. Run a single daemon, "
                "without --peers"
            )
        self._consuming.check_exclusion(index, None)
        exclusion = Exclusion(index)
        self._waiters.refuse(index, QueueHeld(f"queue {index.name} has an exclusive consumer. Try again later"))
        return exclusion

    async def exclude_in_turn(self, index: QueueIndex) -> Exclusion:
        """As :meth:`exclude`, after the consumers that have the queue alone or asked for it before."""
        if index.exclusion is None:
            return self.exclude(index)
        turn: Future[Exclusion] = Future()
        index.turns_to_exclude.append(turn)
        return await turn.get()

    def acknowledge_now(self, held: Sequence[UnackedMessage], done: Done) -> bool:
        """Begin to remove held messages in the caller's step. False where something has to be waited for first: nothing
        has begun, and :meth:`acknowledge` does it.

        Args:
            done: called once they are removed, or with the error of one that is READY again.
        """
        in_flight = self._in_flight
        if in_flight.is_closed or self._committer.failure:
            in_flight.check()
        if len(held) > self._committer.portion:
            return False
        if self._unsecured and not self._unsecured.isdisjoint([each.entry.id for each in held]):
            return False
        entries: dict[Entry, None] = {}
        for _, _, entry in held:
            queue, id, _, meta = entry
            if meta.receipt is not None:
                return False
            index = self._known.get(queue)
            if index is not None and index.held.get(id) == entry:
                entries[entry] = None
        self._remover.submit(list(entries), done, durable=False, were_held=True)
        return True

    async def acknowledge(self, held: Sequence[UnackedMessage], *, durable: bool = False) -> None:
        """Remove held messages. Those that others have removed or got meanwhile are passed over.

        Args:
            durable: whether the removal must be durable on return; else it is soon after.

        Raises:
            StorageError: some could not be removed; they are READY again, and come as redelivered.
        """
        await self._in_portions(held, partial(self._acknowledge, durable=durable))

    async def put_back(
        self,
        held: Sequence[UnackedMessage],
        *,
        redelivered: bool = True,
        to_back: bool = False,
        failed: bool = False,
        most: int | None = None,
    ) -> None:
        """Make held messages READY.

        Args:
            redelivered: whether a consumer has had them.
            to_back: put them behind all others of their queue, not in their places.
            failed: whether the work on them failed: where their queues' settings say so they count as received, and are
                held back first, or die.
            most: then they count in any case, and die when they were received so often; None for no such limit.

        Raises:
            StorageError: some could not be moved; they are where they were.
        """
        await self._in_portions(
            held, partial(self._put_back, redelivered=redelivered, to_back=to_back, failed=failed, most=most)
        )

    async def reject(self, held: Sequence[UnackedMessage]) -> None:
        """Move held messages to their queue's dead-letter queue; remove them where there is none.

        Raises:
            StorageError: some could not be moved; they are where they were.
        """
        await self._in_portions(
            held,
            lambda some: self._change(some, lambda entry: self._dead_letters.dead_letter(entry, REJECTED)),
        )

    async def run(self) -> None:
        """Renew the leases of held messages, for ever."""
        while True:
            await trio.sleep(self._config.visibility_seconds / 3)
            async with trio.open_nursery() as nursery:
                for each in list(self._renewed.values()):
                    nursery.start_soon(self._renew, each)

    # Implementation

    async def _in_portions(
        self, held: Sequence[UnackedMessage], change: Callable[[Sequence[UnackedMessage]], Awaitable[None]]
    ) -> None:
        """Change messages portion by portion: others' operations come in between, and what fails for one is tried for
        the next.

        Raises:
            MQError: the last error.
        """
        if len(held) <= self._committer.portion:
            await change(held)
            await turns.spend(frames=len(held) // 4)  # what is held in memory was changed without a wait
            return
        failed: MQError | None = None
        at = 0
        try:
            while at < len(held):
                some = held[at : at + self._committer.portion]
                at += len(some)
                try:
                    await change(some)
                except MQError as error:
                    failed = error
                await turns.spend(frames=len(some) // 4)
        except BaseException:  # cut off: no connection holds the others any more
            self._return(held[at:])
            raise
        if failed is not None:
            raise failed

    async def _acknowledge(self, held: Sequence[UnackedMessage], *, durable: bool) -> None:
        try:
            await self._secure_keys([each.entry.id for each in held])
        except BaseException:
            self._return(held)
            raise
        in_memory, leased = _split(held)
        entries = list(dict.fromkeys(each.entry for each in in_memory if self._in_memory(each.entry)))
        future = self._remover.remove(entries, durable=durable, were_held=True)
        if self._remover.second_names.may_exist:
            await self._remove_all_names(leased)
        else:
            await self._change(leased, lambda entry: self._remover.remove([entry], durable=durable))
        await future.get()

    async def _put_back(
        self, held: Sequence[UnackedMessage], *, redelivered: bool, to_back: bool, failed: bool, most: int | None
    ) -> None:
        counted: list[UnackedMessage] = []
        others: list[UnackedMessage] = []
        counts = self._config.counts_returns and redelivered
        for each in held:  # all at once: the settings may change while one is put back
            is_counted = counts or (failed and (most is not None or self._counts(each)))
            (counted if is_counted else others).append(each)
        try:
            await self._change(counted, partial(self._fail, to_back=to_back, most=most, retries=failed))
        finally:
            await self._make_ready(others, redelivered=redelivered, to_back=to_back)

    async def _remove_all_names(self, leased: Sequence[UnackedMessage]) -> None:
        """Remove leased messages, durably and each under all its names."""
        failed: MQError | None = None

        async def remove(held: UnackedMessage) -> None:
            nonlocal failed
            entry = held.entry
            self._forget(held)
            if (index := self._catalog.queues.get(entry.queue)) is None:
                return
            try:
                await self._consuming.remove_from(index, Removal(entry.id, entry.meta.receipt))
            except (NoSuchMessage, ReceiptMismatch):
                pass  # others have removed it, or got it
            except MQError as error:
                failed = error

        async with trio.open_nursery() as nursery:
            for each in leased:
                nursery.start_soon(remove, each)
        if failed is not None:
            raise failed

    async def _make_ready(self, held: Sequence[UnackedMessage], *, redelivered: bool, to_back: bool) -> None:
        if to_back:
            await self._change([each for each in held if not self._is_grouped(each)], self._send_back)
            held = [each for each in held if self._is_grouped(each)]
        self._return(held, redelivered=redelivered)
        await self._change(_split(held)[1], self._requeue)

    def _return(self, held: Sequence[UnackedMessage], *, redelivered: bool = True) -> None:
        """Make READY again what is held in memory."""
        in_memory, _ = _split(held)
        for index, entries in self._by_queue(in_memory):
            self._unacked_deliverer.put_back(index, entries, is_returned=redelivered)
            if redelivered:
                self._catalog.tell_held(Kind.REQUEUE, index.name, [entry.id.time for entry in entries])

    async def _renew(self, held: UnackedMessage) -> None:
        entry, index = held.entry, self._catalog.queues.get(held.entry.queue)
        try:
            if index is None:
                raise NoSuchMessage("the message's queue was deleted")
            await self._consuming.extend_in(index, entry.id, self._config.visibility_seconds, entry.meta.receipt)
        except (NoSuchMessage, ReceiptMismatch):
            self._forget(held)
        except MQError:
            pass  # the next round tries again; if the lease has ended by then, others get the message

    async def _change(
        self, held: Sequence[UnackedMessage], change: Callable[[Entry], Future[Entry] | Future[None]]
    ) -> None:
        """Apply `change` to each message that is still held, in one batch."""
        futures: list[Future[Entry] | Future[None]] = []
        for each in held:
            entry = await self._current(each)
            self._forget(each)
            if entry is not None:
                futures.append(change(entry))
        failed = await last_error(futures)
        if failed is not None:
            raise failed

    async def _current(self, held: UnackedMessage) -> Entry | None:
        """Where a held message is now; None when the hold is over."""
        entry = held.entry
        if entry.meta.receipt is None:
            return self._in_memory(entry)
        index = self._catalog.queues.get(entry.queue)
        if index is None:
            return None
        await self._catalog.locks.wait(entry.id)  # its lease may be being renewed
        now = index.find(entry.id)
        return now if now is not None and now.meta.receipt == entry.meta.receipt else None

    def _in_memory(self, entry: Entry) -> Entry | None:
        """The entry, if it is still held in memory; else None."""
        index = self._catalog.queues.get(entry.queue)
        return entry if index is not None and index.held.get(entry.id) == entry else None

    def _send_back(self, entry: Entry) -> Future[Entry]:
        self._catalog.begin(entry)
        self._catalog.queues[entry.queue].returned.add(entry.id)
        meta = entry.meta.at_rest()._replace(order=self._last(entry))
        return self._put(Move(entry, State.READY, meta, durable=False), Kind.REQUEUE, "requeue the message")

    def _is_grouped(self, held: UnackedMessage) -> bool:
        """Whether a message's queue has groups: there it never goes behind others, but is the first of its group."""
        index = self._catalog.queues.get(held.entry.queue)
        return index is not None and index.groups is not None

    def _last(self, entry: Entry) -> int:
        """The order behind the others of its priority."""
        return order_of(self._ids.new().time, priority_of(entry))

    def _counts(self, held: UnackedMessage) -> bool:
        """Whether the queue's settings say what becomes of a message after its work failed."""
        index = self._catalog.queues.get(held.entry.queue)
        return index is not None and (index.settings.retry_delay > 0 or index.settings.max_receives is not None)

    def _fail(
        self, entry: Entry, *, to_back: bool, most: int | None, retries: bool = True
    ) -> Future[Entry] | Future[None]:
        """Count a message as received, and make it READY. Where it `retries`, that may be after a while."""
        index = self._catalog.queues[entry.queue]
        receives = entry.meta.receives + (entry.meta.receipt is None)  # a hold in memory was not counted yet
        if self._dead_letters.is_worn_out(entry._replace(meta=entry.meta._replace(receives=receives))):
            return self._dead_letters.dead_letter(entry, RECEIVES)
        if most is not None and receives >= most:
            return self._dead_letters.dead_letter(entry, LIMIT)
        self._catalog.begin(entry)
        index.returned.add(entry.id)
        seconds = index.settings.retry_seconds(receives, self._random) if retries else 0.0
        if seconds:
            return self._put(self._leases.delayed(entry, seconds, receives), Kind.DELAY, "delay the message")
        meta = entry.meta.at_rest()._replace(receives=receives)
        if to_back and index.groups is None:
            meta = meta._replace(order=self._last(entry))
        return self._put(Move(entry, State.READY, meta), Kind.REQUEUE, "requeue the message")

    def _requeue(self, entry: Entry) -> Future[Entry]:
        self._catalog.begin(entry)
        return self._put(Move(entry, State.READY, entry.meta.at_rest()), Kind.REQUEUE, "requeue the message")

    def _put(self, move: Move, kind: Kind, what: str) -> Future[Entry]:
        job = MoveJob(self._catalog, move, kind, what)
        self._jobs.put([job])
        return job.future

    def _by_queue(self, held: Sequence[UnackedMessage]) -> list[tuple[QueueIndex, list[Entry]]]:
        entries: dict[str, list[Entry]] = {}
        for each in held:
            entries.setdefault(each.entry.queue, []).append(each.entry)
        queues = self._catalog.queues
        return [(queues[name], listed) for name, listed in entries.items() if name in queues]

    def _forget(self, held: UnackedMessage) -> None:
        self._renewed.pop((held.entry.queue, held.entry.id), None)


def _split(held: Sequence[UnackedMessage]) -> tuple[list[UnackedMessage], list[UnackedMessage]]:
    """The messages that are held in memory, and those that are leased."""
    in_memory = [each for each in held if each.entry.meta.receipt is None]
    return in_memory, [each for each in held if each.entry.meta.receipt is not None]
