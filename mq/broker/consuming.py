"""Consuming: fetch, take, remove, requeue, extend.

A :class:`Remover` moves messages that are acknowledged together to REMOVED in one batch. The same batch unlinks them,
for a store may do both in one step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from mq import turns
from mq.broker.bodies import close
from mq.broker.commit import LARGEST_BATCH, BatchTimes, Done, Future, Together
from mq.broker.core import Core
from mq.broker.dead_letters import RECEIVES, DeadLetters
from mq.broker.dispatch import Lessor, UnackedDeliverer
from mq.broker.index import QueueIndex
from mq.broker.jobs import MoveJob
from mq.broker.second_names import SecondNames
from mq.broker.settings import DELAY, VISIBILITY, check_time, check_value
from mq.broker.waiters import FetchRequest
from mq.errors import MQError, NoSuchMessage, NotLeased, QueueHeld, ReceiptMismatch, StorageFull
from mq.lifecycle import PROTOCOL, Kind, State
from mq.message import Message, MessageId, shorten
from mq.storage.interface import Entry, Move, Operation, Outcome, Result, Unlink
from mq.storage.records import error_of


class Removal(NamedTuple):
    """A message that is to be removed.

    Attributes:
        receipt: of the delivery that must still hold it; None for any.
    """

    id: str
    receipt: str | None = None


class Consumption:
    """Operations of consumers, on a queue's index.

    Args:
        remover: removes messages on a store that no other broker changes.
        find_queue: as :meth:`mq.broker.queues.Queues.get`.
    """

    def __init__(
        self,
        core: Core,
        dead_letters: DeadLetters,
        unacked_deliverer: UnackedDeliverer,
        remover: Remover,
        lessor: Lessor,
        find_queue: Callable[..., Awaitable[QueueIndex]],
    ) -> None:
        self._find_queue = find_queue
        self._storage = core.storage
        self._in_flight = core.in_flight
        self._committer = core.committer
        self._known = core.catalog.queues
        self._lessor = lessor
        self._catalog = core.catalog
        self._clock = core.clock
        self._waiters = lessor.deliverer.waiters
        self._jobs = core.jobs
        self._upkeep = lessor.deliverer.upkeep
        self._dead_letters = dead_letters
        self._remover = remover
        self._second_names = remover.second_names
        self._secure_keys, self._unsecured = core.secure_keys, core.unsecured
        self._leases = lessor.deliverer.leases
        self._unacked_deliverer = unacked_deliverer
        self._config = core.config
        self._others_move = core.config.others_move
        self._random = core.random

    async def fetch(self, request: FetchRequest, wait: float) -> list[Message]:
        """The messages for the request; none if there are none, or none came within `wait` seconds.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        self.check_exclusion(request.index, request.exclusion)
        if not self._lessor.lease_now(request):
            self._waiters.ask(request)
        try:
            if not request.waits:
                return await request.future.get()
            with trio.move_on_after(wait):
                return await request.future.get()
            request.future.abandoned, request.waits = False, False
            if self._waiters.withdraw(request):
                return []
            return await request.future.get()  # a worker is serving it
        except trio.Cancelled:
            self._waiters.withdraw(request)  # does nothing if it was served
            await self._take_back(request)
            raise

    def fetch_now(
        self, queue: str, most: int, *, visibility: float | None = None
    ) -> Future[list[Message]] | list[Message] | None:
        """As :meth:`Broker.fetch_many` without a wait, begun in the caller's step. If the client goes before the
        answer, abandon the future: the messages are READY again then.

        Returns:
            An empty list if none is READY; None where it takes longer: then nothing has begun.

        Raises:
            QueueHeld: one consumer alone has the queue's messages.
        """
        index, in_flight = self._known.get(queue), self._in_flight
        if index is None:
            return None
        if visibility is not None:
            visibility = check_value("visibility", visibility, VISIBILITY)
        if in_flight.is_closed or self._committer.failure:
            in_flight.check()
        if not (index.ready or index.undelivered or self._others_move or index.deleted or index.exclusion):
            return []
        request = FetchRequest(index, most, visibility)
        self.check_exclusion(index, None)
        if not self._lessor.lease_now(request):
            return None
        if not request.future.answered:
            in_flight.running += 1
            request.future.then(in_flight.__exit__)
        return request.future

    async def take(self, request: FetchRequest, wait: float) -> list[Message]:
        """As :meth:`fetch`, for a request that removes what it gets."""
        messages = await self.fetch(request, wait)
        try:
            for message in messages if self._second_names.may_exist else ():
                neighbours = self._dead_letters.neighbours(request.index, message.dead_letter_history)
                await self._second_names.remove(message.queue, message.id, neighbours)
        except BaseException:
            await close(messages)
            raise
        return messages

    def check_exclusion(self, index: QueueIndex, exclusion: object | None) -> None:
        """Check that a consumer may have messages of a queue.

        Raises:
            QueueHeld: another one has the queue alone.
        """
        if index.exclusion is not None and index.exclusion is not exclusion:
            raise QueueHeld(
                f"queue {index.name} has an exclusive consumer. Try again after that consumer has disconnected"
            )

    async def give_back(self, messages: Sequence[Message]) -> None:
        """Make fetched messages READY again at once, without counting them as received. Closes their bodies."""
        await close(messages)
        for message in messages:
            index = self._catalog.queues.get(message.queue)
            entry = index.find(message.id) if index is not None else None
            if entry is not None and entry.meta.receipt == message.receipt:
                self._upkeep.give_back(entry)

    async def remove(self, queue: str, id: str, *, receipt: str | None = None) -> None:
        """Remove a message for good, wherever in its queue it is.

        Args:
            receipt: of the delivery that must still hold it.

        Raises:
            NoSuchMessage: the message is not in it.
            ReceiptMismatch: another delivery holds it, or none does any more.
        """
        index = self._known.get(queue) or await self._find_queue(queue, is_wanted=False)
        await self.remove_from(index, Removal(id, receipt))

    async def remove_from(self, index: QueueIndex, removal: Removal) -> None:
        """As :meth:`remove`."""
        id = MessageId(removal.id)
        await self._secure_keys([id])
        if not self._others_move:
            entry = await self._locate(index, id, removal.receipt)
            await self._remover.remove([entry], durable=True, strict=True).get()
            return
        while True:
            entry = await self._locate(index, id, removal.receipt)
            deaths = self._dead_letters.history(entry)  # the removal forgets them
            if await self._removed(entry):
                break
        if self._second_names.may_exist:
            await self._second_names.remove(index.name, id, self._dead_letters.neighbours(index, deaths))

    def remove_now(self, queue: str, id: str, done: Done, *, receipt: str | None = None) -> bool:
        """As :meth:`remove`, begun in the caller's step. False where something has to be waited for first: then nothing
        has begun.

        Args:
            done: called once it is removed, or with the error.
            receipt: of the delivery that must still hold it.

        Raises:
            As :meth:`remove`.
        """
        index, in_flight = self._known.get(queue), self._in_flight
        if index is None or self._others_move:
            return False
        if in_flight.is_closed or self._committer.failure:
            in_flight.check()
        checked_id = MessageId(id)
        if checked_id in self._catalog.locks or checked_id in self._unsecured:
            return False
        entry = _checked(index, checked_id, index.find(checked_id), receipt)
        self._remover.put([self._remover.begin(entry, done)])
        return True

    async def _removed(self, entry: Entry) -> bool:
        """Remove a message from where it is; False when a peer has moved it meanwhile."""
        if self._second_names.may_exist:
            removal = self._second_names.removal(entry)
            return await self._has_moved(self._begin(removal, Kind.REMOVE, "cannot remove the message").future)
        with suppress(NoSuchMessage):
            await self._remover.remove([entry], durable=True, strict=True).get()
            return True
        return False

    async def remove_many(self, queue: str, removals: Sequence[Removal]) -> list[MQError | None]:
        """Remove messages in one batch, or a few; for each, in their order, its error, or None when it was removed."""
        index = await self._find_queue(queue, is_wanted=False)
        errors: list[MQError | None] = []
        for some in turns.parts(removals, LARGEST_BATCH):
            errors += await self._remove_together(index, some)
        return errors

    async def _remove_together(self, index: QueueIndex, removals: Sequence[Removal]) -> list[MQError | None]:
        # Of several removals of one message the first counts: the others are tried after it.
        errors: list[MQError | None] = [None] * len(removals)

        async def remove(number: int) -> None:
            try:
                await self.remove_from(index, removals[number])
            except MQError as error:
                errors[number] = error

        first = {removal.id: number for number, removal in reversed(list(enumerate(removals)))}
        numbers = list(first.values())
        left = numbers if self._others_move else await self._remove_still(index, removals, numbers, errors)
        if left:
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
        """Remove the messages that are not locked in one batch, and note their errors. Returns the other numbers."""
        begun: list[RemovalBatch] = []
        moving = []
        ended: Future[None] = Future()
        left = 0

        def end(number: int, error: MQError | None) -> None:
            nonlocal left
            errors[number] = error
            left -= 1
            if not left:
                ended.set(None)

        try:
            ids = [MessageId(removals[number].id) for number in numbers]
            await turns.spend(frames=len(ids) // 8)
            await self._secure_keys(ids)
        except MQError:
            return list(numbers)  # one by one each gets its own error, or succeeds
        async for number, id in turns.in_turns(zip(numbers, ids, strict=True), turns.FRAME):
            if id in self._catalog.locks:
                moving.append(number)
                continue
            try:
                entry = _checked(index, id, index.find(id), removals[number].receipt)
            except MQError as error:
                errors[number] = error
            else:
                begun.append(self._remover.begin(entry, partial(end, number)))
        left = len(begun)
        if begun:
            self._remover.put(begun)
            await ended.get()
        return moving

    async def requeue(
        self, queue: str, id: str, *, receipt: str | None = None, delay: float | None = 0.0, reason: str = ""
    ) -> None:
        """End a message's lease: it is READY again, in its old place, or dead if it was received too often.

        Args:
            receipt: of the delivery that must still hold it; None for any.
            delay: seconds for which it is held back; None for as long as its queue says.
            reason: why the work on it failed; kept with it, and told when it dies.

        Raises:
            NoSuchMessage: it is not in the queue.
            NotLeased: no lease of it is running.
            ReceiptMismatch: another delivery holds it.
            InvalidSetting: `delay` is out of its range.
        """
        if delay is not None:
            delay = check_value("delay", delay, DELAY)
        index = await self._find_queue(queue)
        if reason:
            await self._dead_letters.note_failure(await self._leased(index, id, receipt), reason)
        while not await self._has_moved(
            self._put(self._requeued(index, await self._leased(index, id, receipt), delay))
        ):
            pass

    async def change_leases(self, queue: str, changes: Sequence[tuple[str, str, float]]) -> list[MQError | None]:
        """Let leases end at other times, in one batch; for each, in their order, its error, or None if it was changed.
        Those of messages that are being moved, and further changes of one message, wait and hold up no other.

        Args:
            changes: of each the message, the receipt of the delivery that must still hold it, and the seconds until
                its lease is to end; 0 to requeue it.
        """
        index = await self._find_queue(queue)
        errors: list[MQError | None] = [None] * len(changes)
        begun: list[tuple[int, MoveJob | Future[None]]] = []
        left: list[int] = []

        async def change(number: int) -> None:
            id, receipt, seconds = changes[number]
            try:
                entry = await self._leased(index, id, receipt)
                while not await self._has_moved(self._put(self._with_lease(index, entry, seconds))):
                    entry = await self._leased(index, id, receipt)
            except MQError as error:
                errors[number] = error

        async for number, (text, receipt, seconds) in turns.in_turns(enumerate(changes), turns.FRAME):
            try:
                id = MessageId(text)
                if self._others_move or id in self._catalog.locks:
                    left.append(number)
                    continue
                entry = _checked(index, id, index.find(id), receipt)
                begun.append((number, self._with_lease(index, _checked_lease(index, entry), seconds)))
            except MQError as error:
                errors[number] = error
        self._jobs.put([job for _, job in begun if isinstance(job, MoveJob)])
        async with trio.open_nursery() as nursery:
            for number in left:
                nursery.start_soon(change, number)
            for number, job in begun:
                try:
                    await (job.future if isinstance(job, MoveJob) else job).get()
                except MQError as error:
                    errors[number] = error
        return errors

    def _with_lease(self, index: QueueIndex, entry: Entry, seconds: float) -> MoveJob | Future[None]:
        """The job that lets a lease end then, still to be put; the dead letter of a message that was requeued too
        often."""
        if not seconds:
            return self._requeued(index, entry, 0.0)
        return self._extended(entry, check_value("visibility", seconds, VISIBILITY))

    def _requeued(self, index: QueueIndex, entry: Entry, delay: float | None) -> MoveJob | Future[None]:
        if self._dead_letters.is_worn_out(entry):
            return self._dead_letters.dead_letter(entry, RECEIVES)
        receives = entry.meta.receives
        seconds = index.settings.retry_seconds(receives, self._random) if delay is None else delay
        if seconds > 0:
            return self._job(self._leases.delayed(entry, seconds, receives), Kind.DELAY, "delay the message")
        return self._job(Move(entry, State.READY, entry.meta.at_rest()), Kind.REQUEUE, "requeue the message")

    async def reschedule(
        self, queue: str, id: str, *, receipt: str | None = None, delay: float = 0.0, at_ms: int | None = None
    ) -> None:
        """Change when a delayed message that no delivery holds can be fetched.

        Args:
            receipt: of a delivery that must still hold it; but then it has no such time.
            delay: seconds from now; 0 for at once.
            at_ms: an instant instead, in milliseconds since 1970; at once where it is over.

        Raises:
            NoSuchMessage: it is not in the queue.
            ReceiptMismatch: the delivery of that receipt does not hold it.
            NotLeased: it is not delayed, either.
            InvalidSetting: the time is out of its range.
            StorageFull: the store has refused to move it for now.
        """
        seconds = check_value("delay", delay, DELAY)
        index = await self._find_queue(queue)
        on_its_way: Entry | None = None
        if at_ms is not None and self._clock.is_over(check_time(at_ms, self._clock.wall_ms())):
            seconds, at_ms = 0.0, None
        while True:
            entry = await self._locate(index, MessageId(id), receipt)
            if entry.state is State.NEW and entry.meta.deadline_ms is not None and self._config.mover:
                if entry == on_its_way:  # nothing more happens to it until the mover tries again
                    raise StorageFull(f"message {id} in queue {index.name} could not be changed. Try again later")
                on_its_way = entry
                await self._upkeep.caught_up(index)  # it is on its way to DELAYED
                continue
            if entry.state is not State.DELAYED or entry.meta.receipt is not None:
                raise NotLeased(f"message {id} in queue {index.name} is not delayed, so its delay cannot be changed")
            if seconds > 0 or at_ms is not None:
                move = self._leases.delayed(entry, seconds, entry.meta.receives, at_ms)
                if move.meta == entry.meta:
                    return
                job = self._begin(move, Kind.DELAY, "delay the message")
            else:
                job = self._begin(Move(entry, State.READY, entry.meta.at_rest()), Kind.REQUEUE, "requeue the message")
            if await self._has_moved(job.future):
                return

    async def extend(self, queue: str, id: str, seconds: float, *, receipt: str | None = None) -> None:
        """Let a message's lease end `seconds` from now.

        Raises:
            As :meth:`requeue`; and InvalidSetting when `seconds` is out of its range.
        """
        seconds = check_value("visibility", seconds, VISIBILITY)
        await self.extend_in(await self._find_queue(queue), id, seconds, receipt)

    async def extend_in(self, index: QueueIndex, id: str, seconds: float, receipt: str | None) -> None:
        """As :meth:`extend`."""
        while not await self._has_moved(self._put(self._extended(await self._leased(index, id, receipt), seconds))):
            pass

    def _extended(self, entry: Entry, seconds: float) -> MoveJob:
        meta = entry.meta._replace(deadline_ms=self._leases.deadline_ms(seconds))
        if meta == entry.meta:
            # A move to the very same name is none: it ends a millisecond later.
            meta = meta._replace(deadline_ms=self._leases.deadline_ms(seconds) + 1)
        return self._job(Move(entry, State.DELAYED, meta), Kind.EXTEND, "extend the lease", seconds)

    # Implementation

    async def _take_back(self, request: FetchRequest) -> None:
        """Give back the messages of a request that was cancelled in the very step of its answer."""
        if request.holds:
            self._unacked_deliverer.put_back(request.index, request.held, is_returned=False)
        elif not request.takes:
            for entry in request.held:
                self._upkeep.give_back(entry)
        await close(request.future.value or [])

    def _begin(self, move: Move, kind: Kind, what: str, seconds: float | None = None) -> MoveJob:
        """Submit a job that moves an entry."""
        job = self._job(move, kind, what, seconds)
        self._jobs.put([job])
        return job

    def _job(self, move: Move, kind: Kind, what: str, seconds: float | None = None) -> MoveJob:
        """A job that moves an entry, which is locked from now on: the caller must submit it. Where others change the
        store, the index need not have the entry."""
        self._catalog.begin(move.entry, is_leaving=move.state is State.REMOVED)
        return MoveJob(self._catalog, move, kind, what, seconds)

    def _put(self, job: MoveJob | Future[None]) -> Future[Entry] | Future[None]:
        """Submit a job, unless it is a dead letter, which is submitted already."""
        if not isinstance(job, MoveJob):
            return job
        self._jobs.put([job])
        return job.future

    async def _has_moved(self, move: Future[Entry] | Future[None]) -> bool:
        """Wait for a move; False when a peer has moved the message meanwhile."""
        try:
            await move.get()
        except NoSuchMessage:
            if not self._others_move:
                raise
            return False
        return True

    async def _leased(self, index: QueueIndex, id: str, receipt: str | None) -> Entry:
        return _checked_lease(index, await self._locate(index, MessageId(id), receipt, is_leased=True))

    async def _locate(self, index: QueueIndex, id: MessageId, receipt: str | None, *, is_leased: bool = False) -> Entry:
        """Where the message is now; it is not locked.

        Args:
            receipt: of the delivery that must hold it; None for any.

        Raises:
            NoSuchMessage: it is not in the queue.
            ReceiptMismatch: another delivery holds it.
        """
        locks = self._catalog.locks
        while True:
            if id in locks:
                await locks.wait(id)
            entry = index.find(id)
            # A look that began before this broker leased the message may have put its old place into the index. That
            # of a queue that a peer has deleted is out of the catalog, and failed moves leave their entries in it.
            if self._others_move and (index.deleted or not _agrees(entry, receipt, is_leased=is_leased)):
                entry = await self._storage.find(index.name, id)
                if receipt is not None and self._second_names.may_exist and _is_leased_to_another(entry, receipt):
                    entry = await self._lease_of(index.name, id, receipt) or entry
            if id not in locks:
                break
        return _checked(index, id, entry, receipt)

    async def _lease_of(self, queue: str, id: MessageId, receipt: str) -> Entry | None:
        """The name by which a delivery holds a message. A peer that has lost the race for it has a name of its own
        there, until its sync ends."""
        leased = await self._storage.scan(State.DELAYED, queue)
        return next((entry for entry in leased if entry.id == id and entry.meta.receipt == receipt), None)


_DONE: Final = Result.DONE  # quicker than an attribute of the enumeration
_DELAYED: Final = State.DELAYED
_REMOVE: Final = Kind.REMOVE
_ANSWERS: Final = 4
"""How many answers of a store (:attr:`Committer.together`) are a part of a removal. What is done for one part is done
while the store removes the next."""


def removing(entries: Sequence[Entry], *, in_one_step: bool, durable: bool) -> list[Operation]:
    """The operations that remove messages for good, in one batch: one for each, in their order, where a store removes
    in one step; or else all moves to REMOVED and then all unlinks."""
    if in_one_step:
        return [Unlink(entry, durable) for entry in entries]
    moves = [Move(entry, State.REMOVED, durable=durable) for entry in entries]
    return [*moves, *(Unlink(Entry(queue, id, State.REMOVED)) for queue, id, *_ in entries)]


class Remover:
    """Removes messages that stand in the index. A removal counts as in flight until it is answered.

    Args:
        second_names: removes the other names of removed messages, where the caller asks it to.
    """

    def __init__(self, core: Core, second_names: SecondNames) -> None:
        self.second_names = second_names
        self._catalog = core.catalog
        self._in_flight = core.in_flight
        self._removes = core.storage.description.removes
        self._committer = core.committer
        self._reaps = core.config.joins_reaping
        self._most_answered = _ANSWERS * core.committer.together
        self._batches: Together[RemovalBatch] = Together(core.committer)
        self._batches.begin = _together

    def remove(
        self, entries: Sequence[Entry], *, durable: bool, strict: bool = False, were_held: bool = False
    ) -> Future[None]:
        """As :meth:`submit`. Returns the answer, whether or not the caller waits for it."""
        future: Future[None] = Future()
        self.submit(entries, future.end, durable=durable, strict=strict, were_held=were_held)
        return future

    def submit(
        self, entries: Sequence[Entry], done: Done, *, durable: bool, strict: bool = False, were_held: bool = False
    ) -> None:
        """Remove messages.

        Args:
            done: called once they are removed; with an error if one could not be removed and stays where it was.
            durable: whether the answer waits until the removal is durable.
            strict: whether a message that is gone is an error.
            were_held: whether a connection held them in memory. One that stays comes again as redelivered.
        """
        most = min(self._most_answered, self._committer.pace.limit)
        if not entries:
            done(None)
        elif len(entries) <= most:
            batch = self._batch(entries, done, durable=durable, strict=strict, were_held=were_held)
            self._batches.put([batch], len(entries))
        else:
            parts = [entries[begin : begin + most] for begin in range(0, len(entries), most)]
            end = _Parts(done, len(parts)).end
            for part in parts:
                self.submit(part, end, durable=durable, strict=strict, were_held=were_held)

    def begin(self, entry: Entry, end: Callable[[MQError | None], object]) -> RemovalBatch:
        """Begin to remove a message by itself, durably and strictly. Nothing else moves it until :meth:`put`.

        Args:
            end: called once it is removed, or with the error.
        """
        return self._batch([entry], end, durable=True, strict=True)

    def put(self, begun: Sequence[RemovalBatch]) -> None:
        """Remove what was begun, under one barrier."""
        self._batches.put(begun)

    def _batch(
        self,
        entries: Sequence[Entry],
        end: Callable[[MQError | None], object],
        *,
        durable: bool,
        strict: bool,
        were_held: bool = False,
    ) -> RemovalBatch:
        for entry in entries:
            self._catalog.begin(entry, is_leaving=True)
        self._in_flight.running += 1
        operations: list[Operation]
        if self._reaps:
            operations = removing(entries, in_one_step=self._removes, durable=durable)
        else:
            operations = [Move(entry, State.REMOVED, durable=durable) for entry in entries]
        return RemovalBatch(self, entries, operations, end, strict, were_held)

    def end(self, batch: RemovalBatch, outcomes: Sequence[Outcome]) -> None:
        """End the moves of a batch in the catalog, and answer: perhaps with the error of the last message that could
        not be removed."""
        self._in_flight.end(1)
        error: MQError | None = None
        unlinked = outcomes[len(batch.entries) :] or outcomes  # the same where each is removed by one operation
        for left, outcome, last in zip(batch.entries, outcomes, unlinked, strict=False):
            if outcome.result is _DONE:
                is_reaped = self._reaps and last.result is _DONE
                now = None if is_reaped else outcome.entry
                self._catalog.end(left, now, _REMOVE, None, batch.protocol, is_reaped=is_reaped)
            elif outcome.result in (Result.GONE, Result.EXISTS):
                if outcome.result is Result.EXISTS:
                    self._catalog.end_second_copy(left, Kind.REMOVE)
                else:
                    self._catalog.end(left, None, Kind.REMOVE)
                if batch.is_strict:
                    error = error_of(outcome._replace(result=Result.GONE), "cannot remove the message")
            else:
                if batch.were_held:
                    self._catalog.note_returned(left)
                self._catalog.end(left, left, Kind.REMOVE)
                error = error_of(outcome, "cannot remove the message")
        batch.answer(error)


class _Parts:
    """The parts of a removal. The last one that ends answers the caller."""

    __slots__ = ("_done", "_error", "_left")

    def __init__(self, done: Done, parts: int) -> None:
        self._done = done
        self._left = parts
        self._error: Exception | None = None

    def end(self, error: Exception | None) -> None:
        """Note that one more is done, or failed."""
        self._error = error or self._error
        self._left -= 1
        if not self._left:
            self._done(self._error)


class RemovalBatch:
    """Messages that are removed together. Once they are, :class:`Remover` ends their moves and answers.

    Attributes:
        entries: where the messages were.
        protocol: over which they were removed, for the journal.
        operations: one for each, in their order; and behind these perhaps an unlink for each.
        answer: called once they are removed, or with the last error.
        is_strict: whether one that is gone is an error.
        were_held: whether a connection held them in memory.
    """

    __slots__ = ("_remover", "answer", "entries", "is_strict", "operations", "protocol", "were_held")

    def __init__(
        self,
        remover: Remover,
        entries: Sequence[Entry],
        operations: list[Operation],
        answer: Callable[[MQError | None], object],
        is_strict: bool,
        were_held: bool,
    ) -> None:
        self._remover = remover
        self.entries = entries
        self.operations = operations
        self.answer = answer
        self.is_strict = is_strict
        self.were_held = were_held
        self.protocol = PROTOCOL.get()

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        """End the removal."""
        self._remover.end(self, outcomes)


class _Removals:
    """Batches that are removed under one barrier."""

    def __init__(self, batches: Sequence[RemovalBatch]) -> None:
        self._batches = batches
        self.operations = [operation for batch in batches for operation in batch.operations]

    def done(self, outcomes: list[Outcome], barrier: BatchTimes) -> None:
        start = 0
        for batch in self._batches:
            stop = start + len(batch.operations)
            batch.done(outcomes[start:stop], barrier)
            start = stop


def _together(batches: Sequence[RemovalBatch]) -> RemovalBatch | _Removals:
    return batches[0] if len(batches) == 1 else _Removals(batches)


def _agrees(entry: Entry | None, receipt: str | None, *, is_leased: bool) -> bool:
    """Whether an index has a message where its caller says that it is."""
    if entry is None:
        return False
    return entry.meta.receipt == receipt if receipt is not None else not is_leased or entry.meta.receipt is not None


def _is_leased_to_another(entry: Entry | None, receipt: str) -> bool:
    return entry is not None and entry.state is State.DELAYED and entry.meta.receipt != receipt


def _checked(index: QueueIndex, id: MessageId, entry: Entry | None, receipt: str | None) -> Entry:
    """The entry of a message, if there is one and the receipt, if any, holds it."""
    if entry is None:
        raise NoSuchMessage(f"message {shorten(id)} is not in queue {index.name}")
    if receipt is not None and (entry.state is not _DELAYED or entry.meta.receipt != receipt):
        raise ReceiptMismatch(f"the lease of message {id} has expired. Fetch the message again")
    return entry


def _checked_lease(index: QueueIndex, entry: Entry) -> Entry:
    """The entry, if a delivery of its own holds the message."""
    if entry.id in index.claimed:
        raise NotLeased(
            f"message {entry.id} in queue {index.name} was claimed as part of a batch, and all messages of the "
            "batch share one lease. Renew or acknowledge the whole batch instead"
        )
    if entry.state is not State.DELAYED or entry.meta.receipt is None:
        raise NotLeased(f"message {entry.id} in queue {index.name} is not leased. Fetch the message first")
    return entry
