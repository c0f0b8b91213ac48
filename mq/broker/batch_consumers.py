"""Durable batch consumers: they take a queue batch after batch, and can read an open batch again (as Spark does).

A batch keeps its number until the consumer acknowledges it: a restarted consumer asks for the number that it had, and
gets the same messages. A consumer's record holds its epoch, its checkpoint, the number of the last batch that it
acknowledged, and its claim. The claim is the open batch, with what was read of it. After an acknowledgement it stays
until the next is made, for its messages may still be on their way out.

A claim is durable in the record *before* its messages are leased, so a crash in between leaves a claim that the next
request completes. An acknowledgement is durable before the messages are removed: all of them go, or none, wherever
they are by then. Leases end by themselves; a consumer that asks again gets the messages that are left, and the number
of those that are lost.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

import trio

from mq.broker.bodies import close
from mq.broker.commit import BatchTimes, Future, InFlight, error_of
from mq.broker.config import MARGIN_SECONDS
from mq.broker.consuming import Remover
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters
from mq.broker.index import QueueIndex, incarnation_of
from mq.broker.jobs import MoveJob
from mq.broker.leases import Leases
from mq.broker.settings import QUEUE, VISIBILITY, check_value, count
from mq.broker.upkeep import Upkeep
from mq.errors import (
    Conflict,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    QueueHeld,
    ReceiptMismatch,
    StorageError,
    StorageFull,
    StorageUnsure,
)
from mq.lifecycle import DOOR, Kind, State
from mq.message import Message, MessageId
from mq.storage.interface import Entry, Meta, Move, Outcome, Put, Result, Stored

logger = logging.getLogger("mq.broker")

KIND: Final = "consumer"
"""The kind of the records."""
MOST_CONSUMERS: Final = 1000
"""Consumers of one queue at the most: each is a record for ever."""
LONGEST_SLICE: Final = 500
"""Messages that are opened, or moved, at a time."""
LARGEST_CLAIM: Final = 100_000
"""Messages of one claim at the most: their ids are one record, of 4 MB then."""
CLAIM_MESSAGES: Final = 10_000
"""The default for a new claim."""
_WORTH_RENEWING: Final = 0.75
"""The part of a lease that may be left when it is renewed; a renewal moves every message, so earlier it is not."""
CLAIM_SECONDS = 900.0
"""The default length of a claim's lease."""


class ClaimedBatch(NamedTuple):
    """A batch that a consumer has claimed.

    Attributes:
        batch: its number.
        messages: how many messages it has.
        lost: how many messages it had before and has no more: their leases ended, and others took them.
        first: the least sequence of its messages; None without messages.
        last: the greatest.
        is_new: whether this call made it.
    """

    batch: int
    messages: int
    lost: int = 0
    first: int | None = None
    last: int | None = None
    is_new: bool = False


class ConsumerPosition(NamedTuple):
    """How far a consumer is.

    Attributes:
        consumer: its name.
        epoch: of its last start, greater than those before; 0 for none.
        acknowledged: the number of the last batch that it acknowledged; 0 for none.
        batch: the number of the open claim; None without one.
        messages: how many messages that claim has.
        read: how many of these are noted as read.
        checkpoint: names where the consumer's own system keeps its place; None while nothing was read under one.
        high: while the broker runs, every message published from now on has a greater sequence.
    """

    consumer: str
    epoch: int
    acknowledged: int
    batch: int | None
    messages: int
    read: int
    checkpoint: str | None
    high: int


class Claims:
    """Operations of durable batch consumers, as doors call them: :attr:`Broker.claims`.

    A consumer starts, which returns an epoch; it claims a batch, reads it as often as it likes, acknowledges it, and
    claims the next. A second start under the same name ends the first one's epoch. Every method raises
    :class:`~mq.errors.NoSuchQueue` where there is no such queue. Those that change something raise
    :class:`~mq.errors.Conflict` on a store that other brokers change, too.

    Args:
        claims: carries the operations out.
        look_up: returns a queue's index.
        in_flight: keeps the broker from ending during a call.
    """

    def __init__(
        self,
        claims: BatchConsumers,
        look_up: Callable[[str], Awaitable[QueueIndex]],
        in_flight: InFlight,
    ) -> None:
        self._claims = claims
        self._look_up = look_up
        self._in_flight = in_flight

    async def consumers(self, queue: str) -> list[ConsumerPosition]:
        """Every consumer of a queue, by name."""
        return self._claims.all(await self._look_up(queue))

    async def consumer(self, queue: str, name: str) -> ConsumerPosition:
        """How far a consumer is; one that was never started is at the beginning."""
        return self._claims.position(await self._look_up(queue), _checked(name))

    async def start(self, queue: str, name: str, checkpoint: str = "", *, take_over: bool = False) -> ConsumerPosition:
        """Start a consumer, or restart it where it was, with a new epoch; durable on return. Calls with an older epoch
        fail from then on.

        Args:
            queue: the queue's name.
            name: the consumer.
            checkpoint: names where the consumer's own system keeps its place; empty for none.
            take_over: allow another checkpoint than the consumer's. Then nothing of its open claim counts as read.

        Raises:
            InvalidSetting: not a consumer's name.
            Conflict: the queue has too many consumers; or the consumer goes with another checkpoint.
        """
        with self._in_flight:
            return await self._claims.start(await self._look_up(queue), _checked(name), checkpoint, take_over=take_over)

    async def claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = CLAIM_MESSAGES,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = CLAIM_SECONDS,
    ) -> ClaimedBatch | None:
        """Make a claim, or renew the open one; None when there is nothing to claim. Durable on return.

        A repeated call returns the same messages, and leases those again whose leases had ended.

        Args:
            queue: the queue's name.
            name: the consumer.
            batch: the claim's number: the one after the last that was acknowledged.
            epoch: as :meth:`start` told it.
            most: how many messages a new claim gets at the most.
            most_bytes: how many bytes their bodies have together at the most; a longer one comes alone.
            up_to: the greatest sequence that a new claim may have.
            lease: seconds until other consumers can get its messages.

        Raises:
            InvalidSetting: a number is out of its range.
            Conflict: another epoch has begun; or it is not this batch's turn.
            QueueHeld: one consumer alone has the queue's messages.
        """
        check_value("max", most, count(LARGEST_CLAIM))
        check_value("lease", lease, VISIBILITY)
        with self._in_flight:
            index = await self._look_up(queue)
            return await self._claims.claim(
                index, name, batch, epoch, most=most, most_bytes=most_bytes, up_to=up_to, seconds=lease
            )

    async def read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int, of: int | None = None
    ) -> list[tuple[int, Message]]:
        """Messages of an open claim, each with its sequence: from place `start` to before `stop`, at most 500.

        A place keeps its message for as long as the claim has `of` messages. Close the bodies.

        Raises:
            Conflict: another epoch has begun; or that claim is not open.
            ReceiptMismatch: a lease of the claim has ended, or it does not have `of` messages. Claim it again.
        """
        with self._in_flight:
            return await self._claims.read(await self._look_up(queue), name, batch, epoch, start, stop, of)

    async def note_read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int, of: int, checkpoint: str = ""
    ) -> None:
        """Note places of an open claim as read, from `start` to before `stop`, and the checkpoint. Durable on return;
        may be repeated.

        Args:
            queue: the queue's name.
            name: the consumer.
            batch: the claim's number.
            epoch: as :meth:`start` told it.
            start: the first place, at least 0.
            stop: the place after the last.
            of: how many messages the claim had when they were read.
            checkpoint: names where the consumer's own system keeps its place; empty for none.

        Raises:
            Conflict: another epoch has begun; that claim is not open, or has no such places; or the consumer goes with
                another checkpoint.
            ReceiptMismatch: the claim has another number of messages. Claim it again, and read it again.
        """
        with self._in_flight:
            index = await self._look_up(queue)
            await self._claims.note_read(index, name, batch, epoch, start, stop, of, checkpoint)

    async def acknowledge(self, queue: str, name: str, batch: int, epoch: int, *, if_read: bool = False) -> None:
        """Remove the messages of a claim for good; a call that raises has removed all or none. May be repeated.

        Args:
            queue: the queue's name.
            name: the consumer.
            batch: the claim's number.
            epoch: as :meth:`start` told it.
            if_read: only if all of them are noted as read.

        Raises:
            Conflict: another epoch has begun; no such claim was made; or not all of it was read.
        """
        with self._in_flight:
            await self._claims.acknowledge(await self._look_up(queue), name, batch, epoch, if_read=if_read)

    async def forget(self, queue: str, name: str) -> None:
        """Delete a consumer. The messages of its open claim are READY at once."""
        with self._in_flight:
            await self._claims.forget(await self._look_up(queue), name)


class BatchConsumers:
    """Operations of durable batch consumers, on a queue's index.

    Args:
        core: what every part has.
        consumers: keeps their records.
        claimed: works on the messages of claims.
        upkeep: delivers messages in NEW.
    """

    def __init__(self, core: Core, consumers: ConsumerRecords, claimed: ClaimedMessages, upkeep: Upkeep) -> None:
        self._consumers = consumers
        self._claimed = claimed
        self._upkeep = upkeep
        self._secure_keys = core.secure_keys
        self._ids = core.ids
        self._others_move = core.config.others_move
        self._random = core.random

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Load the consumers' records.

        Raises:
            StorageError: it cannot be read.
        """
        if not self._others_move:
            await self._consumers.load(queues)
            for epoch in self._consumers.epochs():
                self._ids.observe(epoch)

    async def finish(self, queues: Mapping[str, QueueIndex]) -> None:
        """Remove the acknowledged messages that a crash has left. Called before the first request is served."""
        for index, consumer in self._consumers.unfinished(queues):
            try:
                async with consumer.changing():
                    await self._finish(index, consumer)
            except StorageError as error:  # the consumer's next request tries again
                logger.warning("cannot remove what %s acknowledged of %s now: %s", consumer.name, index.name, error)

    # Operations

    def all(self, index: QueueIndex) -> list[ConsumerPosition]:
        """Every consumer of a queue, by name."""
        return [self._position(consumer) for consumer in self._consumers.of(index)]

    def position(self, index: QueueIndex, name: str) -> ConsumerPosition:
        """How far a consumer is; one that was never started is at the beginning."""
        return self._position(self._consumers.get(index, name) or BatchConsumer(name, index.incarnation))

    async def start(
        self, index: QueueIndex, name: str, checkpoint: str = "", *, take_over: bool = False
    ) -> ConsumerPosition:
        """Start a consumer, or restart it where it was, with a new epoch. Calls with an older epoch fail from then on.

        Args:
            index: the queue.
            name: the consumer.
            checkpoint: names where the consumer's own system keeps its place; empty for none.
            take_over: allow another checkpoint than before. Then nothing of the open claim counts as read.

        Raises:
            Conflict: claims cannot be kept on this store; the queue has too many consumers; or the consumer goes with
                another checkpoint.
            StorageError: not all acknowledged messages are removed yet, or the start is not noted.
        """
        self._check_alone()
        while True:
            consumer = self._consumers.get_or_make(index, name)
            async with consumer.changing():
                if self._consumers.get(index, name) is consumer:  # else it was forgotten meanwhile
                    await self._finish(index, consumer)  # the answer says what was acknowledged: that must be gone
                    state = consumer.state
                    if state.checkpoint not in ("", checkpoint):
                        if not take_over:
                            raise _other_checkpoint(consumer, checkpoint)
                        claim = state.claim._replace(read=()) if state.claim is not None else None
                        state = state._replace(claim=claim, checkpoint="")
                    epoch = max(state.epoch + 1, self._ids.new().time)  # new also where a consumer was forgotten
                    await self._keep(index, consumer, state._replace(epoch=epoch))
                    return self._position(consumer)

    async def claim(
        self,
        index: QueueIndex,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = CLAIM_MESSAGES,
        most_bytes: int | None = None,
        up_to: int | None = None,
        seconds: float,
    ) -> ClaimedBatch | None:
        """Make a claim, or renew the open one: leased for about `seconds` from now on.

        Args:
            index: the queue.
            name: the consumer.
            batch: the claim's number: the one after the last that was acknowledged.
            epoch: as :meth:`start` told it.
            most: how many messages a new claim gets at the most.
            most_bytes: how many bytes their bodies have together at the most; a longer one comes alone.
            up_to: the greatest sequence that a new claim may have.
            seconds: length of the lease.

        Returns:
            The claim; None when there is nothing to claim.

        Raises:
            Conflict: another epoch has begun; or it is not this batch's turn.
            QueueHeld: one consumer alone has the queue's messages.
        """
        consumer = self._known(index, name, epoch)
        async with consumer.changing():
            self._check_epoch(consumer, epoch)
            self._check_turn(consumer, batch)
            if index.exclusion is not None:
                raise QueueHeld(f"queue {index.name} is one consumer's alone. Try again when it has gone")
            if consumer.state.open is not None:
                return await self._hold(index, consumer, seconds)
            return await self._make(index, consumer, batch, most, most_bytes, up_to, seconds)

    async def read(
        self, index: QueueIndex, name: str, batch: int, epoch: int, start: int, stop: int, of: int | None = None
    ) -> list[tuple[int, Message]]:
        """The messages of an open claim from place `start` to before `stop`, at most LONGEST_SLICE, each with its
        sequence. Their order never changes. Close their bodies.

        Args:
            index: the queue.
            name: the consumer.
            batch: the claim's number.
            epoch: as :meth:`start` told it.
            start: the first place.
            stop: the place after the last.
            of: how many messages the claim must have; None for any number.

        Raises:
            Conflict: another epoch has begun; or that claim is not open.
            ReceiptMismatch: a lease of the claim has ended, or it has another number of messages.
        """
        consumer = self._known(index, name, epoch)
        _check_places(consumer, batch, of)
        return await self._claimed.read(index, consumer, consumer.ids[start : min(stop, start + LONGEST_SLICE)])

    async def note_read(
        self, index: QueueIndex, name: str, batch: int, epoch: int, start: int, stop: int, of: int, checkpoint: str
    ) -> None:
        """Note the places from `start` to before `stop` as read, and `checkpoint` as the consumer's. Durable on return;
        may be repeated.

        Args:
            index: the queue.
            name: the consumer.
            batch: the claim's number.
            epoch: as :meth:`start` told it.
            start: the first place.
            stop: the place after the last.
            of: how many messages the claim had when they were read.
            checkpoint: names where the consumer's own system keeps its place; empty for none.

        Raises:
            Conflict: another epoch has begun; that claim is not open, or has no such places; or the consumer goes with
                another checkpoint.
            ReceiptMismatch: the claim has another number of messages, and so other places.
        """
        consumer = self._known(index, name, epoch)
        async with consumer.changing():
            self._check_epoch(consumer, epoch)
            claim = _check_places(consumer, batch, of)
            if not 0 <= start < stop <= of:
                raise Conflict(f"batch {batch} of consumer {name} has places 0 to {of}: none are {start} to {stop}")
            state = consumer.state
            if state.checkpoint and checkpoint not in ("", state.checkpoint):
                raise _other_checkpoint(consumer, checkpoint)
            claim = claim.with_read(start, stop)
            await self._keep(index, consumer, state._replace(claim=claim, checkpoint=checkpoint or state.checkpoint))

    async def acknowledge(self, index: QueueIndex, name: str, batch: int, epoch: int, *, if_read: bool = False) -> None:
        """Remove the messages of a claim for good, also those that others have got since a lease ended. May be
        repeated.

        Args:
            index: the queue.
            name: the consumer.
            batch: the claim's number.
            epoch: as :meth:`start` told it.
            if_read: only if all its messages are noted as read.

        Raises:
            Conflict: another epoch has begun; no such claim was made; or not all of it was read.
            StorageError: not all of it is removed. Another call removes the rest.
        """
        consumer = self._known(index, name, epoch)
        async with consumer.changing():
            self._check_epoch(consumer, epoch)
            state = consumer.state
            if batch > state.acknowledged and (state.open is None or state.open.batch != batch):
                raise Conflict(f"batch {batch} of consumer {name} is not open: there is nothing to acknowledge")
            if batch > state.acknowledged:
                if if_read:
                    _check_read(consumer)
                await self._secure_keys(consumer.ids)
                await self._keep(index, consumer, state._replace(acknowledged=batch))
            await self._finish(index, consumer)

    async def forget(self, index: QueueIndex, name: str) -> None:
        """Delete a consumer. The messages of its open claim are READY at once.

        Raises:
            StorageError: some messages are not, or the consumer may still be there.
        """
        consumer = self._consumers.get(index, name)
        if consumer is None:
            return
        async with consumer.changing():
            if consumer.state.is_acknowledged:
                await self._finish(index, consumer)
            held = self._claimed.leased(index, consumer)
            await self._consumers.drop(index, consumer)
            consumer.state = ConsumerRecord()  # a call that waits for the lock finds that its epoch is over
            await self._claimed.requeue(held)

    # Implementation

    def _position(self, consumer: BatchConsumer) -> ConsumerPosition:
        state = consumer.state
        claim = state.open
        return ConsumerPosition(
            consumer.name,
            state.epoch,
            state.acknowledged,
            None if claim is None else claim.batch,
            0 if claim is None else len(claim.ids),
            0 if claim is None else claim.messages_read,
            state.checkpoint or None,
            self._ids.new().time,
        )

    def _check_alone(self) -> None:
        if self._others_move:
            raise Conflict("claims cannot be kept on a store that others change too: serve it with --peers=0")

    def _known(self, index: QueueIndex, name: str, epoch: int) -> BatchConsumer:
        self._check_alone()
        consumer = self._consumers.get(index, name)
        if consumer is None:
            raise Conflict(f"queue {index.name} has no consumer {name}: start it first")
        self._check_epoch(consumer, epoch)
        return consumer

    def _check_epoch(self, consumer: BatchConsumer, epoch: int) -> None:
        if epoch != consumer.state.epoch:
            raise Conflict(
                f"consumer {consumer.name} was started again (epoch {consumer.state.epoch}, you have {epoch}): "
                "somebody else consumes under this name now"
            )

    def _check_turn(self, consumer: BatchConsumer, batch: int) -> None:
        state = consumer.state
        if batch <= state.acknowledged:
            raise Conflict(f"batch {batch} of consumer {consumer.name} was acknowledged: its messages are gone")
        if batch != state.acknowledged + 1:
            raise Conflict(f"batch {state.acknowledged + 1} of consumer {consumer.name} comes first")

    async def _keep(self, index: QueueIndex, consumer: BatchConsumer, state: ConsumerRecord) -> None:
        if index.deleted:
            raise NoSuchQueue(f"queue {index.name} was deleted meanwhile")
        await self._consumers.keep(index, consumer, state)

    async def _make(
        self,
        index: QueueIndex,
        consumer: BatchConsumer,
        batch: int,
        most: int,
        most_bytes: int | None,
        up_to: int | None,
        seconds: float,
    ) -> ClaimedBatch | None:
        """Claim READY messages; None without any. They are locked from the choice to the lease, so no other consumer
        gets one."""
        await self._finish(index, consumer)  # the batch before
        await self._upkeep.caught_up(index)
        chosen = await self._claimed.choose(index, most, most_bytes, up_to)
        if not chosen:
            return None
        tag = f"{self._random.getrandbits(40):010x}"
        claim = Claim(batch, tag, tuple(entry.id for entry in chosen))
        try:
            await self._keep(index, consumer, consumer.state._replace(claim=claim))
        except BaseException:
            self._claimed.put_back(chosen)
            raise
        await self._claimed.lease(consumer, chosen, seconds)
        joined = [entry.joined for entry in chosen]
        return ClaimedBatch(batch, len(chosen), 0, min(joined), max(joined), is_new=True)

    async def _hold(self, index: QueueIndex, consumer: BatchConsumer, seconds: float) -> ClaimedBatch:
        """Renew the leases of the open claim, as far as they need it. Messages that others have got are lost to it."""
        claim = consumer.state.open
        assert claim is not None
        there = self._claimed.leased(index, consumer)
        is_fresh = consumer.lease_ends - trio.current_time() > seconds * _WORTH_RENEWING
        if not (is_fresh and len(there) == len(claim.ids)):
            there = await self._claimed.take(index, consumer)
            if len(there) < len(claim.ids):
                kept = claim.only({entry.id for entry in there})
                try:
                    await self._keep(index, consumer, consumer.state._replace(claim=kept))
                except BaseException:
                    self._claimed.put_back(there)
                    raise
            await self._claimed.lease(consumer, there, seconds)
        joined = [entry.joined for entry in there]
        lost = len(claim.ids) - len(there)
        return ClaimedBatch(claim.batch, len(there), lost, min(joined, default=None), max(joined, default=None))

    async def _finish(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """Remove the messages of an acknowledged claim, if any are left."""
        if not consumer.state.is_acknowledged or consumer.is_finished:
            return
        await self._secure_keys(consumer.ids)
        await self._claimed.remove(index, consumer.ids)
        consumer.is_finished = True


class ClaimedMessages:
    """Chooses, leases, reads and removes the messages of claims.

    Args:
        core: what every part has.
        upkeep: knows which messages are dead.
        dead_letters: finds messages that have died.
        remover: removes acknowledged messages.
        leases: gives the deadlines of leases.
    """

    def __init__(self, core: Core, upkeep: Upkeep, dead_letters: DeadLetters, remover: Remover, leases: Leases) -> None:
        self._core = core
        self._storage = core.storage
        self._catalog = core.catalog
        self._jobs = core.jobs
        self._upkeep = upkeep
        self._dead_letters = dead_letters
        self._remover = remover
        self._leases = leases

    async def choose(self, index: QueueIndex, most: int, most_bytes: int | None, up_to: int | None) -> list[Entry]:
        """The first READY messages, locked from now on: lease them, or put them back.

        Raises:
            StorageError: their lengths cannot be read; none is chosen.
        """
        chosen: list[Entry] = []
        left = most_bytes
        try:
            while len(chosen) < most and (left is None or left > 0):
                last = chosen[-1].id if chosen else None
                some = self._first(index, min(most - len(chosen), LONGEST_SLICE), up_to, last)
                if not some:
                    break
                if left is not None:
                    some, left = await self._fitting(some, left, is_first=not chosen)
                chosen += some
                await trio.lowlevel.checkpoint()
        except BaseException:
            self.put_back(chosen)
            raise
        return chosen

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Unlock messages that are not leased after all."""
        for entry in entries:
            self._catalog.end(entry, entry, Kind.LEASE)

    def leased(self, index: QueueIndex, consumer: BatchConsumer) -> list[Entry]:
        """The messages that the claim leases now, in their order; without locked ones."""
        found = [index.find(id) for id in consumer.ids]
        return [entry for entry in found if entry is not None and consumer.has_leased(entry)]

    async def take(self, index: QueueIndex, consumer: BatchConsumer) -> list[Entry]:
        """The messages of a claim that no other consumer has got, in its order and locked from now on: lease them, or
        put them back."""
        taken: dict[MessageId, Entry] = {}
        try:
            for id in sorted(consumer.ids, key=_key):  # two callers in different orders could wait for each other
                await self._catalog.locks.wait(id)
                entry = index.find(id)
                if entry is not None and self._is_had(index, consumer, entry):
                    self._catalog.begin(entry)
                    taken[id] = entry
        except BaseException:
            self.put_back(taken.values())
            raise
        return [taken[id] for id in consumer.ids if id in taken]

    async def lease(self, consumer: BatchConsumer, entries: list[Entry], seconds: float) -> None:
        """Lease locked messages under the claim's tag, slice by slice; each slice's leases begin with it.

        Args:
            consumer: has the claim.
            entries: READY, or leased under this claim before.
            seconds: length of the lease.

        Raises:
            MQError: not all of them are leased. Asking again leases the others.
        """
        consumer.lease_ends = trio.current_time() + seconds
        slices = [
            LeaseSlice(self._core, self._leases, consumer.tag, entries[start : start + LONGEST_SLICE], seconds)
            for start in range(0, len(entries), LONGEST_SLICE)
        ]
        for each in slices:
            self._core.committer.submit(each.moves, len(each.entries), each.done)
        try:
            await _all([each.future for each in slices])
        except BaseException:
            consumer.lease_ends = 0.0
            raise

    async def read(
        self, index: QueueIndex, consumer: BatchConsumer, ids: Sequence[MessageId]
    ) -> list[tuple[int, Message]]:
        """Messages that the claim leases, each with its sequence. Close their bodies.

        Raises:
            ReceiptMismatch: a lease has ended.
            NoSuchMessage: one has vanished from the store.
        """
        while True:
            entries = [await self._held(index, consumer, id) for id in ids]
            stored = await self._storage.read(entries)
            found = [(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None]
            if len(found) == len(entries):
                return [(entry.joined, _message(entry, each)) for entry, each in found]
            await close([_message(entry, each) for entry, each in found])
            if all(self._stands(entry) for entry in entries):
                raise NoSuchMessage(f"a message that consumer {consumer.name} has claimed vanished from the store")

    async def remove(self, index: QueueIndex, ids: Sequence[MessageId]) -> None:
        """Remove acknowledged messages for good, wherever they are by now and also from other consumers.

        Raises:
            StorageError: not all of them are removed. Asking again removes the others.
        """
        # The record says that they go, and a start sees to it. So they must be gone only once it says less.
        durable = not self._storage.description.groups
        futures = []
        for start in range(0, len(ids), LONGEST_SLICE):
            left = ids[start : start + LONGEST_SLICE]
            while left:
                moving = [id for id in left if id in self._catalog.locks]
                found = [self._dead_letters.find(index, id) for id in left if id not in self._catalog.locks]
                there = [entry for entry in found if entry is not None]
                futures.append(self._remover.remove(there, durable=durable))  # no await since they were found unlocked
                for id in moving[:1]:
                    await self._catalog.locks.wait(id)
                left = moving
            await trio.lowlevel.checkpoint()
        for future in futures:
            await future.get()

    async def requeue(self, entries: Sequence[Entry]) -> None:
        """Make messages READY that still are leased as `entries` say.

        Raises:
            MQError: not all of them are READY.
        """
        for start in range(0, len(entries), LONGEST_SLICE):
            jobs = []
            for entry in entries[start : start + LONGEST_SLICE]:
                await self._catalog.locks.wait(entry.id)
                if self._stands(entry):
                    self._catalog.begin(entry)
                    move = Move(entry, State.READY, entry.meta.at_rest())
                    jobs.append(MoveJob(self._catalog, move, Kind.REQUEUE, "give back a message of the claim"))
                    self._jobs.put(jobs[-1:])
            await _all([job.future for job in jobs])

    # Implementation

    def _first(self, index: QueueIndex, count: int, up_to: int | None, last: MessageId | None) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < count and not index.settings.paused and not index.deleted:
            entry = index.next(last, up_to)
            if entry is None:
                break
            last = entry.id
            if not self._upkeep.is_dead(index, entry):
                self._catalog.begin(entry)
                found.append(entry)
        return found

    async def _fitting(self, entries: list[Entry], left: int, *, is_first: bool) -> tuple[list[Entry], int]:
        """The first messages that fit into `left` bytes together, and the bytes left then; the others are put back.
        The first of a claim fits always."""
        try:
            stored = await self._storage.read(entries)
        except BaseException:
            self.put_back(entries)
            raise
        await close([_message(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None])
        count = 0
        for each in stored:
            left -= each.properties.size if each is not None else 0
            if left < 0 and (count or not is_first):
                break
            count += 1
        self.put_back(entries[count:])
        return entries[:count], left if count == len(entries) else 0

    def _is_had(self, index: QueueIndex, consumer: BatchConsumer, entry: Entry) -> bool:
        """Whether the claim may lease a message: it is READY again and not dead, or leased by the claim still."""
        if entry.state is State.READY:
            return entry.id not in index.held and not self._upkeep.is_dead(index, entry)
        return consumer.has_leased(entry)

    async def _held(self, index: QueueIndex, consumer: BatchConsumer, id: MessageId) -> Entry:
        await self._catalog.locks.wait(id)
        entry = index.find(id)
        if entry is None or not consumer.has_leased(entry):
            raise ReceiptMismatch(f"message {id}: the claim's lease of it has run out. Claim the batch again")
        return entry

    def _stands(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        return index is not None and index.find(entry.id) == entry


class LeaseSlice:
    """Leases some messages of a claim, which are locked, in one batch.

    Args:
        core: what every part has.
        leases: gives their deadlines.
        tag: of the claim.
        entries: READY, or leased under this claim before.
        seconds: length of the leases, which begin with the batch.

    Attributes:
        entries: the messages.
        future: answered when all of them are leased.
    """

    def __init__(self, core: Core, leases: Leases, tag: str, entries: Sequence[Entry], seconds: float) -> None:
        self.future: Future[None] = Future()
        self._core = core
        self._leases = leases
        self._tag = tag
        self.entries = entries
        self._seconds = seconds
        self._moves: list[Move] = []
        self._began = 0.0
        self._door = DOOR.get()

    def moves(self) -> list[Move]:
        """The moves. To be called just before they are done."""
        self._began = trio.current_time()
        deadline_ms, draw = self._leases.deadline_ms(self._seconds), self._core.random.getrandbits
        for entry in self.entries:
            _, receives, _, order, expires_ms = entry.meta
            is_ready = entry.state is State.READY
            meta = Meta(deadline_ms, receives + is_ready, f"{self._tag}{draw(24):06x}", order, expires_ms)
            self._moves.append(Move(entry, State.DELAYED, meta))
        return self._moves

    def done(self, outcomes: Sequence[Outcome], barrier: BatchTimes) -> None:
        """End the moves in the catalog, and answer. A message that was gone is no error."""
        end = self._core.catalog.end
        due = trio.current_time() + self._seconds
        refusal: Outcome | None = None
        for move, outcome in zip(self._moves, outcomes, strict=True):
            left = move.entry
            kind = Kind.LEASE if left.state is State.READY else Kind.EXTEND
            if outcome.result is Result.DONE:
                end(left, move.target, kind, due, self._door)
            elif outcome.result is Result.GONE:
                end(left, None, kind)
            else:
                end(left, left, kind)
                refusal = outcome
        if refusal is not None:
            self.future.fail(error_of(refusal, "lease a message of the claim"))
        elif barrier.ended - self._began > MARGIN_SECONDS:
            self.future.fail(StorageUnsure("the disk was too slow: the lease may have ended, or not. Try again"))
        else:
            self.future.set(None)


class Claim(NamedTuple):
    """The messages that a consumer has claimed as one batch.

    Attributes:
        batch: its number.
        tag: 10 hexadecimal digits with which the receipts of its leases begin, and no others.
        ids: its messages, in order.
        read: the places noted as read: ranges, each of its first place and the one after its last, sorted and apart.
    """

    batch: int
    tag: str
    ids: tuple[MessageId, ...]
    read: tuple[tuple[int, int], ...] = ()

    @property
    def messages_read(self) -> int:
        """How many of its messages are noted as read."""
        return sum(stop - start for start, stop in self.read)

    def with_read(self, start: int, stop: int) -> Claim:
        """The claim, with the places from `start` to before `stop` read, too."""
        return self._replace(read=_merged([*self.read, (start, stop)]))

    def only(self, ids: Collection[MessageId]) -> Claim:
        """The claim, with only its messages among `ids`. What was read stays read, at its new place."""
        read = {place for start, stop in self.read for place in range(start, stop)}
        kept = [(place, id) for place, id in enumerate(self.ids) if id in ids]
        now_read = _merged((now, now + 1) for now, (place, _) in enumerate(kept) if place in read)
        return self._replace(ids=tuple(id for _, id in kept), read=now_read)


class ConsumerRecord(NamedTuple):
    """The durable state of a consumer.

    Attributes:
        epoch: of its last start; 0 for none.
        acknowledged: the number of the last batch that it acknowledged.
        claim: the last one that it made.
        checkpoint: names where the consumer's own system keeps its place; empty until something was read under one.
    """

    epoch: int = 0
    acknowledged: int = 0
    claim: Claim | None = None
    checkpoint: str = ""

    @property
    def open(self) -> Claim | None:
        """The claim that is not acknowledged; None without one."""
        return self.claim if self.claim is not None and self.claim.batch > self.acknowledged else None

    @property
    def is_acknowledged(self) -> bool:
        """Whether the last claim was acknowledged."""
        return self.claim is not None and self.open is None


class BatchConsumer:
    """One consumer of one queue.

    Args:
        name: its own name for itself.
        incarnation: its queue's; a later queue of the same name has other consumers.

    Attributes:
        state: the durable state.
        keeping: answered when the last state that was to be kept is, or is not.
        lease_ends: when the first lease of its claim ends (Trio's clock); 0 when unknown.
        is_finished: whether all messages of the acknowledged claim are known to be gone.
    """

    def __init__(self, name: str, incarnation: int, state: ConsumerRecord = ConsumerRecord()) -> None:  # noqa: B008 - frozen
        self.name = name
        self.incarnation = incarnation
        self.state = state
        self.lease_ends = 0.0
        self.is_finished = False
        self._lock = trio.Lock()
        self.keeping: Future[None] | None = None

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """A context in which no other task changes the consumer."""
        async with self._lock:
            if self.keeping is not None:  # its caller was cancelled
                with suppress(MQError):
                    await self.keeping.get()
            yield

    @property
    def ids(self) -> tuple[MessageId, ...]:
        """The messages of its claim."""
        return self.state.claim.ids if self.state.claim is not None else ()

    @property
    def tag(self) -> str:
        """The beginning of its claim's receipts; empty without a claim."""
        return self.state.claim.tag if self.state.claim is not None else ""

    def has_leased(self, entry: Entry) -> bool:
        """Whether the consumer's claim leases the message."""
        return bool(self.tag) and entry.meta.receipt is not None and entry.meta.receipt.startswith(self.tag)


class ConsumerRecords:
    """The consumers of all queues, and their records.

    Args:
        core: what every part has.
    """

    def __init__(self, core: Core) -> None:
        self._storage = core.storage
        self._committer = core.committer
        self._known: dict[str, dict[str, BatchConsumer]] = {}

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Load the records, and drop those of deleted queues.

        Raises:
            StorageError: it cannot be read.
        """
        for key, record in (await self._storage.records(KIND)).items():
            queue, _, name = key.partition("/")
            index = queues.get(queue)
            if index is None or incarnation_of(record) != index.incarnation:
                with suppress(StorageFull, StorageUnsure):  # dropped at a later start, then
                    await self._storage.drop_record(KIND, key)
            else:
                self._known.setdefault(queue, {})[name] = BatchConsumer(name, index.incarnation, _state(record))

    def unfinished(self, queues: Mapping[str, QueueIndex]) -> list[tuple[QueueIndex, BatchConsumer]]:
        """The consumers whose acknowledged messages may still be there, with their queues."""
        return [
            (queues[queue], consumer)
            for queue, known in self._known.items()
            for consumer in known.values()
            if consumer.state.is_acknowledged and not consumer.is_finished
        ]

    def epochs(self) -> list[int]:
        """The epochs of all consumers, which are instants of the message ids' clock."""
        return [consumer.state.epoch for known in self._known.values() for consumer in known.values()]

    def of(self, index: QueueIndex) -> list[BatchConsumer]:
        """All consumers of a queue, sorted by name."""
        known = self._known.get(index.name, {})
        return [known[name] for name in sorted(known) if known[name].incarnation == index.incarnation]

    def get(self, index: QueueIndex, name: str) -> BatchConsumer | None:
        """The consumer of that name; None without one."""
        consumer = self._known.get(index.name, {}).get(name)
        return consumer if consumer is not None and consumer.incarnation == index.incarnation else None

    def get_or_make(self, index: QueueIndex, name: str) -> BatchConsumer:
        """The consumer of that name, made if need be; a new one is durable with its first :meth:`keep`.

        Raises:
            Conflict: the queue has too many consumers.
        """
        consumer = self.get(index, name)
        if consumer is None:
            if len(self.of(index)) >= MOST_CONSUMERS:
                raise Conflict(f"queue {index.name} has {MOST_CONSUMERS} consumers: delete those that are of no use")
            consumer = self._known.setdefault(index.name, {})[name] = BatchConsumer(name, index.incarnation)
        return consumer

    async def keep(self, index: QueueIndex, consumer: BatchConsumer, state: ConsumerRecord) -> None:
        """Set a consumer's state; durable on return. Goes on where the caller is cancelled.

        Raises:
            StorageError: the state may not be durable, and is not set here.
        """
        consumer.keeping = keeping = Future[None]()
        put = Put(KIND, f"{index.name}/{consumer.name}", _record(consumer, state))

        def done(outcomes: list[Outcome], _: BatchTimes) -> None:
            [outcome] = outcomes
            if outcome.result is Result.DONE:
                consumer.state, consumer.is_finished = state, False
                keeping.set(None)
            else:
                keeping.fail(error_of(outcome, "note what the consumer has"))

        self._committer.submit(lambda: [put], 1, done)
        await keeping.get()

    async def drop(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """Drop a consumer and its record.

        Raises:
            StorageError: the record may still be there.
        """
        with self._committer.noting_failure():
            await self._storage.drop_record(KIND, f"{index.name}/{consumer.name}")
        self._known.get(index.name, {}).pop(consumer.name, None)


def _merged(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return tuple(merged)


def _record(consumer: BatchConsumer, state: ConsumerRecord) -> dict[str, Any]:
    record: dict[str, Any] = {
        "incarnation": consumer.incarnation,
        "epoch": state.epoch,
        "acknowledged": state.acknowledged,
        "checkpoint": state.checkpoint,
    }
    claim = state.claim
    return record if claim is None else {**record, "claim": [claim.batch, claim.tag, list(claim.ids), claim.read]}


def _state(record: Mapping[str, Any]) -> ConsumerRecord:
    return ConsumerRecord(
        record["epoch"], record["acknowledged"], _claim(record.get("claim")), record.get("checkpoint", "")
    )


def _claim(kept: Any) -> Claim | None:
    if kept is None:
        return None
    batch, tag, ids, *read = kept  # records of earlier releases do not say what was read
    return Claim(
        batch, tag, tuple(map(MessageId, ids)), tuple((start, stop) for start, stop in read[0]) if read else ()
    )


async def _all(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are answered. A message that was gone is no error.

    Raises:
        MQError: the last of those with which they failed.
    """
    failed: MQError | None = None
    for future in futures:
        try:
            with suppress(NoSuchMessage):
                await future.get()
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


def _message(entry: Entry, found: Stored) -> Message:
    return Message(entry.queue, entry.id, found.body, found.properties, entry.meta.receives, entry.meta.receipt or "")


def _key(id: MessageId) -> int:
    return id.key


def _check_places(consumer: BatchConsumer, batch: int, of: int | None) -> Claim:
    """The open claim, if it is this batch and has as many messages as the caller believes."""
    claim = consumer.state.open
    if claim is None or claim.batch != batch:
        raise Conflict(f"batch {batch} of consumer {consumer.name} is not open: claim it first")
    if of is not None and of != len(claim.ids):
        raise ReceiptMismatch(
            f"batch {batch} of consumer {consumer.name} has {len(claim.ids)} messages, no longer {of}: a lease ran "
            "out, and others took some. Claim it again, and read it from its first place"
        )
    return claim


def _check_read(consumer: BatchConsumer) -> None:
    claim = consumer.state.open
    if claim is not None and claim.messages_read < len(claim.ids):
        raise Conflict(
            f"only {claim.messages_read} of the {len(claim.ids)} messages of batch {claim.batch} of consumer "
            f"{consumer.name} are noted as read: nothing is removed. Read the others, and note it"
        )


def _other_checkpoint(consumer: BatchConsumer, checkpoint: str) -> Conflict:
    return Conflict(
        f"consumer {consumer.name} goes with checkpoint {consumer.state.checkpoint}, and this is "
        f"{checkpoint or 'none'}: go on with that one, take another name, or start it with take_over=true"
    )


def _checked(name: str) -> str:
    return str(check_value("consumer", name, QUEUE))
