"""Durable batch consumers: they take a queue batch after batch, and can read an open batch again (as Spark does).

A batch keeps its number until the consumer acknowledges it: a restarted consumer asks for the number that it had, and
gets the same messages. A consumer's record holds its epoch, its checkpoint, the number of the last batch that it
acknowledged, and its claim. The claim is the open batch, with what was read of it. After an acknowledgement it stays
until the next is made, for its messages may still be on their way out.

A claim's lease is one for all its messages, and is in the record, with its deadline: the messages stay READY in the
store, and are taken out of what the index hands out (:attr:`QueueIndex.claims`), at the start before anything is. So a
claim, and each renewal, is one durable record. A lease that ends by itself is ended in the record first, which says how
often each message was received by then; then each becomes READY with that number. An acknowledgement is durable before
the messages are removed: all of them go, or none, wherever they are by then. A consumer that asks again gets the
messages that are left, and the number of lost ones.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import trio

from mq import turns
from mq.broker.bodies import close
from mq.broker.commit import BatchTimes, Future
from mq.broker.config import GRACE_SECONDS, LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.broker.consuming import Remover
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters
from mq.broker.index import QueueIndex, incarnation_of, sequence_of
from mq.broker.leases import Leases
from mq.broker.lost_messages import DeadLettered, LostMessages, find_lost
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
from mq.lifecycle import Kind, State
from mq.message import Message, MessageId, MessageIds
from mq.quantities import show_count
from mq.storage.interface import QUEUE as QUEUE_RECORD
from mq.storage.interface import Entry, Outcome, Put, Result, Stored, damages_of
from mq.storage.records import drop_record, error_of

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger("mq.broker")

KIND: Final = "consumer"
"""The kind of the records."""
MOST_CONSUMERS: Final = 1000
"""Consumers of one queue at the most: each is a record for ever."""
LONGEST_SLICE: Final = 500
"""Messages that are chosen, opened or moved at a time."""
_REMOVED_TOGETHER: Final = 8
"""Slices whose removal is under way together for a caller with a limit of time: 4,000 messages take 5 seconds where a
file system without a journal needs 1.2 ms for each."""
LARGEST_CLAIM: Final = 100_000
"""Messages of one claim at the most: their ids are one record, of 4 MB then."""
CLAIM_MESSAGES: Final = 10_000
"""The default for a new claim."""
_WORTH_RENEWING: Final = 0.75
"""The part of a lease that may be left when it is renewed; a renewal writes down every id, so earlier it is not."""
CLAIM_SECONDS = 900.0
"""The default length of a claim's lease."""


class ClaimedBatch(NamedTuple):
    """A batch that a consumer has claimed.

    Attributes:
        lost: how many messages it had before this call and has no more.
        first: the least sequence of its messages; None without messages.
        missing: how many messages it had when it was made and has no more, by where they are now: see
            :class:`~mq.broker.lost_messages.LostTo`.
        dead_letters: the queues in which the dead-lettered ones of them are.
        lease_expired: True if its lease had ended when messages were lost.
    """

    batch: int
    messages: int
    lost: int = 0
    first: int | None = None
    last: int | None = None
    is_new: bool = False
    missing: Mapping[str, int] = MappingProxyType({})
    dead_letters: tuple[DeadLettered, ...] = ()
    lease_expired: bool = False


class ConsumerPosition(NamedTuple):
    """How far a consumer is.

    Attributes:
        epoch: of its last start, greater than those before; 0 for none.
        acknowledged: the number of the last batch that it acknowledged; 0 for none.
        batch: the number of the open claim; None without one.
        checkpoint: names where the consumer's own system keeps its place; None while nothing was read under one.
        high_watermark: while the broker runs, every message published from now on has a greater sequence.
        incarnation: tells the queue from every other one that had its name, or will have it.
        remaining: how many messages of the last acknowledged batch are not removed yet.
    """

    consumer: str
    epoch: int
    acknowledged: int
    batch: int | None
    messages: int
    read: int
    checkpoint: str | None
    high_watermark: int
    incarnation: int
    remaining: int


class BatchConsumers:
    """Operations of durable batch consumers: :attr:`Broker.claims`.

    A consumer starts, which returns an epoch; it claims a batch, reads it as often as it likes, acknowledges it, and
    claims the next. A second start under the same name ends the first one's epoch. Every operation raises
    :class:`~mq.errors.NoSuchQueue` where there is no such queue. Those that change something raise
    :class:`~mq.errors.Conflict` on a store that other brokers change, too.
    """

    def __init__(
        self,
        core: Core,
        consumers: ConsumerRecords,
        claimed: ClaimedMessages,
        upkeep: Upkeep,
        look_up: Callable[[str], Awaitable[QueueIndex]],
    ) -> None:
        self._look_up = look_up
        self._in_flight = core.in_flight
        self._consumers = consumers
        self._claimed = claimed
        self._upkeep = upkeep
        self._ends = LeaseEnds(self._end)
        self._clock = core.clock
        self._secure_keys = core.secure_keys
        self._ids = core.ids
        self._others_move = core.config.others_move

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Load the consumers' records, and have their claims hold their messages. Called before the first delivery."""
        if self._others_move:
            return
        await self._consumers.load(queues)
        for index, consumer in self._consumers.latest_first(queues):
            index.has_batch_consumers = True
            self._ids.observe(max(consumer.state.epoch, consumer.stamp))
            if consumer.is_held or consumer.state.is_acknowledged:
                # Of two records with one message the later is true: of the other no answer said that it is kept.
                async for id in turns.in_turns(consumer.ids, turns.LIGHT // 2):
                    if id not in index.claims:
                        index.claim(id, consumer)
        for index, consumer in self._consumers.latest_first(queues):
            async for entry in turns.in_turns(consumer.returning(index), turns.LIGHT // 2):
                index.claim(entry.id, consumer)

    async def resume(self, nursery: trio.Nursery, queues: Mapping[str, QueueIndex]) -> None:
        """Go on with the leases of before the start, which get their grace from now on, and with their ends."""
        self._ends.start(nursery)
        for index, consumer in self._consumers.latest_first(queues):
            async for some in turns.slices(consumer.received_before(), turns.LIGHT // 4):
                self._upkeep.return_claimed(consumer.behind(index, some))
            if consumer.is_held:
                left = consumer.seconds_left(self._clock.steady_ns())
                consumer.lease_ends = trio.current_time() + max(GRACE_SECONDS, left)
                self._ends.add(index, consumer)
            elif consumer.state.open is not None:
                self._claimed.let_go(index, consumer, consumer.ids)

    async def finish(self, queues: Mapping[str, QueueIndex]) -> None:
        """Remove the acknowledged messages that a crash has left. Called before the first request is served."""
        for index, consumer in self._consumers.unfinished(queues):
            try:
                async with consumer.changing():
                    await self._finish(index, consumer)
            except StorageError as error:  # the consumer's next request tries again
                logger.warning(
                    "temporarily unable to remove the messages that consumer %s acknowledged in queue %s: %s",
                    consumer.name,
                    index.name,
                    error,
                )

    # Operations

    async def consumers(self, queue: str) -> list[ConsumerPosition]:
        """Every consumer of a queue, by name."""
        index = await self._look_up(queue)
        return [self._position(consumer) for consumer in self._consumers.of(index)]

    async def consumer(self, queue: str, name: str) -> ConsumerPosition:
        """How far a consumer is; one that was never started is at the beginning."""
        index = await self._look_up(queue)
        known = self._consumers.get(index, _checked(name))
        return self._position(known or BatchConsumer(name, index.incarnation))

    async def start(
        self, queue: str, name: str, checkpoint: str = "", *, take_over: bool = False, within: float = math.inf
    ) -> ConsumerPosition:
        """Start a consumer, or restart it where it was, with a new epoch; durable on return. Calls with an older epoch
        fail from then on.

        Args:
            checkpoint: names where the consumer's own system keeps its place; empty for none.
            take_over: allow another checkpoint than the consumer's. Then nothing of its open claim counts as read.
            within: seconds after which it returns though messages of the last acknowledged batch are left:
                :meth:`acknowledge` that batch again until none is.

        Raises:
            InvalidSetting: not a consumer's name.
            Conflict: the queue has too many consumers; or the consumer goes with another checkpoint.
        """
        with self._in_flight:
            index = await self._look_up(queue)
            _checked(name)
            self._check_alone()
            until = trio.current_time() + within
            while True:
                consumer = self._consumers.get_or_make(index, name)
                async with consumer.changing():
                    if self._consumers.get(index, name) is consumer:  # else it was forgotten meanwhile
                        # The answer says what was acknowledged: that is gone, but for what the answer says is left.
                        await self._finish(index, consumer, until)
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
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        *,
        most: int = CLAIM_MESSAGES,
        most_bytes: int | None = None,
        up_to: int | None = None,
        lease: float = CLAIM_SECONDS,
        regain: bool = False,
    ) -> ClaimedBatch | None:
        """Make a claim, or renew the open one; None when there is nothing to claim. Durable on return.

        A repeated call returns the same messages, and leases those again whose leases had ended.

        Args:
            batch: the claim's number: the one after the last that was acknowledged.
            most_bytes: how many bytes their bodies have together at the most; a longer one comes alone.
            lease: seconds until other consumers can get its messages.
            regain: take messages again that an earlier call has lost, if they are READY by now, each at its old place.

        Raises:
            InvalidSetting: a number is out of its range.
            Conflict: another epoch has begun; or it is not this batch's turn.
            QueueHeld: one consumer alone has the queue's messages.
        """
        check_value("max", most, count(LARGEST_CLAIM))
        lease = check_value("lease", lease, VISIBILITY)
        with self._in_flight:
            index = await self._look_up(queue)
            consumer = self._known(index, name, epoch)
            async with consumer.changing():
                self._check_epoch(consumer, epoch)
                self._check_turn(consumer, batch)
                if index.exclusion is not None:
                    raise QueueHeld(
                        f"queue {index.name} has an exclusive consumer. Try again after that consumer has disconnected"
                    )
                if consumer.state.open is not None:
                    return await self._hold(index, consumer, lease, regain=regain)
                return await self._make(index, consumer, batch, most, most_bytes, up_to, lease)

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
            index = await self._look_up(queue)
            consumer = self._of_claim(index, name, batch, epoch, of)
            return await self._claimed.read(index, consumer, consumer.ids[start : min(stop, start + LONGEST_SLICE)])

    async def leased(
        self, index: QueueIndex, name: str, batch: int, epoch: int, start: int, stop: int, of: int | None
    ) -> list[Entry]:
        """Where the messages are that :meth:`read` would read, as many as are asked for.

        Raises:
            Conflict, ReceiptMismatch: as :meth:`read`.
        """
        consumer = self._of_claim(index, name, batch, epoch, of)
        return await self._claimed.entries_of(index, consumer, consumer.ids[start:stop])

    def _of_claim(self, index: QueueIndex, name: str, batch: int, epoch: int, of: int | None) -> BatchConsumer:
        consumer = self._known(index, name, epoch)
        _check_places(consumer, batch, of)
        return consumer

    async def note_read(
        self, queue: str, name: str, batch: int, epoch: int, start: int, stop: int, of: int, checkpoint: str = ""
    ) -> None:
        """Note places of an open claim as read, from `start` to before `stop`, and the checkpoint. Durable on return;
        may be repeated.

        Args:
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
            consumer = self._known(index, name, epoch)
            async with consumer.changing():
                self._check_epoch(consumer, epoch)
                claim = _check_places(consumer, batch, of)
                if not 0 <= start < stop <= of:
                    raise Conflict(
                        f"the range {start} to {stop} is not within batch {batch} of consumer {name}: the batch has "
                        f"{show_count(of, 'message')} (positions start at 0, and the end of the range is exclusive)"
                    )
                state = consumer.state
                if state.checkpoint and checkpoint not in ("", state.checkpoint):
                    raise _other_checkpoint(consumer, checkpoint)
                claim = claim.with_read(start, stop)
                await self._keep(
                    index, consumer, state._replace(claim=claim, checkpoint=checkpoint or state.checkpoint)
                )

    async def acknowledge(
        self, queue: str, name: str, batch: int, epoch: int, *, if_read: bool = False, within: float = math.inf
    ) -> int:
        """Remove the messages of a claim for good. May be repeated. Returns how many are left to be removed.

        It is durable before the first is removed that all of them go: a call that raises before has removed none.

        Args:
            within: seconds after which it returns though messages are left: call it again until none is.

        Raises:
            Conflict: another epoch has begun; no such claim was made; or not all of it was read.
        """
        with self._in_flight:
            index = await self._look_up(queue)
            consumer, until = self._known(index, name, epoch), trio.current_time() + within
            async with consumer.changing():
                self._check_epoch(consumer, epoch)
                state = consumer.state
                if batch > state.acknowledged and (state.open is None or state.open.batch != batch):
                    raise Conflict(
                        f"batch {batch} of consumer {name} is not open, so it cannot be acknowledged. Claim "
                        "the batch first"
                    )
                if batch > state.acknowledged:
                    if if_read:
                        _check_read(consumer)
                    await self._secure_keys(consumer.ids)
                    await self._keep(index, consumer, state._replace(acknowledged=batch))
                return await self._finish(index, consumer, until)

    async def forget(self, queue: str, name: str) -> None:
        """Delete a consumer. The messages of its open claim are READY at once."""
        with self._in_flight:
            index = await self._look_up(queue)
            consumer = self._consumers.get(index, _checked(name))
            if consumer is None:
                return
            async with consumer.changing():
                if consumer.state.is_acknowledged:
                    await self._finish(index, consumer)
                if consumer.is_held:
                    await self._end_lease(index, consumer)
                else:
                    self._claimed.let_go(index, consumer, consumer.ids)  # what was refused before, at once
                if not await self._claimed.returned(index, consumer):
                    raise StorageFull(
                        f"some messages claimed by consumer {name} could not be requeued. Try again later"
                    )
                await self._consumers.drop(index, consumer)
                consumer.state = ConsumerRecord()  # a call that waits for the lock finds that its epoch is over

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
            consumer.incarnation,
            consumer.left,
        )

    def _check_alone(self) -> None:
        if self._others_move:
            raise Conflict(
                "batch consumers (as used by Spark streams) are not supported when other programs share the root "
                "folder. Run a single daemon, without --peers or --no-mover"
            )

    def _known(self, index: QueueIndex, name: str, epoch: int) -> BatchConsumer:
        self._check_alone()
        consumer = self._consumers.get(index, name)
        if consumer is None:
            raise Conflict(f"queue {index.name} has no consumer named {name}. Start the consumer first")
        self._check_epoch(consumer, epoch)
        return consumer

    def _check_epoch(self, consumer: BatchConsumer, epoch: int) -> None:
        if epoch != consumer.state.epoch:
            raise Conflict(
                f"another program has started consumer {consumer.name}, so this program can no longer use it "
                f"(current epoch: {consumer.state.epoch}, epoch of this request: {epoch})"
            )

    def _check_turn(self, consumer: BatchConsumer, batch: int) -> None:
        state = consumer.state
        if batch <= state.acknowledged:
            raise Conflict(
                f"batch {batch} of consumer {consumer.name} was already acknowledged, and its messages have been "
                "removed"
            )
        if batch != state.acknowledged + 1:
            raise Conflict(
                f"batch {batch} of consumer {consumer.name} cannot be claimed yet. Claim batch "
                f"{state.acknowledged + 1} first"
            )

    async def _keep(self, index: QueueIndex, consumer: BatchConsumer, state: ConsumerRecord) -> None:
        if index.deleted:
            raise NoSuchQueue(f"queue {index.name} was deleted during the request")
        await self._consumers.keep(index, consumer, state)

    async def _lease(
        self, index: QueueIndex, consumer: BatchConsumer, claim: Claim, taken: Sequence[MessageId], seconds: float
    ) -> None:
        """Keep a claim that is leased from then on. `taken` are those of its messages that it did not hold before; they
        are put back where it is not kept, also where the caller has gone."""
        before = consumer.state.open.planned if consumer.state.open is not None else ()

        def done(is_kept: bool) -> None:
            if not is_kept:
                self._claimed.put_back_in_turns(index, taken)
                return
            left = set(before).difference(claim.ids)
            self._claimed.put_back_in_turns(index, [id for id in left if index.claims.get(id) is consumer])
            self._claimed.told(index, taken)
            self._ends.add(index, consumer)

        if index.deleted:
            done(is_kept=False)
            raise NoSuchQueue(f"queue {index.name} was deleted during the request")
        await self._consumers.keep(index, consumer, consumer.state._replace(claim=claim), seconds=seconds, done=done)

    async def _end(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """End the lease of the open claim, if it is over."""
        async with consumer.changing():
            if consumer.is_held and consumer.lease_ends <= trio.current_time():
                await self._end_lease(index, consumer)

    async def _end_lease(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """End the lease of the open claim: durable on return. Its messages are READY soon, received once more."""
        if index.deleted:
            raise NoSuchQueue(f"queue {index.name} was deleted during the request")
        claim = consumer.state.open
        assert claim is not None, "what has no open claim has no lease"
        returning: list[int] = []
        async for some in turns.slices(claim.ids, turns.LIGHT // 4):
            returning += _once_more(index.claimed.get(id) if index.claims.get(id) is consumer else None for id in some)
        ended = claim._replace(deadline_ms=None, returning=tuple(returning))

        def done(is_kept: bool) -> None:
            if is_kept:
                self._claimed.let_go(index, consumer, claim.ids)

        await self._consumers.keep(index, consumer, consumer.state._replace(claim=ended), done=done)

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
        """Claim READY messages; None without any."""
        await self._finish(index, consumer)  # the batch before
        await self._upkeep.caught_up(index)
        chosen = await self._claimed.choose(index, consumer, most, most_bytes, up_to)
        if not chosen:
            return None
        ids = tuple(entry.id for entry in chosen)
        claim = Claim(batch, ids, returning=tuple(await _in_slices(_once_more, chosen)))
        try:
            await self._lease(index, consumer, claim, ids, seconds)
        except StorageFull as error:  # a full disk, or a record longer than the store takes
            raise StorageFull(
                f"{error}. The claim record (messages: {len(ids)}) may be too large for the store. If "
                "possible, claim fewer messages"
            ) from None
        places = await _in_slices(_sequences, chosen)
        return ClaimedBatch(batch, len(chosen), 0, min(places), max(places), is_new=True)

    async def _hold(self, index: QueueIndex, consumer: BatchConsumer, seconds: float, *, regain: bool) -> ClaimedBatch:
        """Renew the leases of the open claim, as far as they need it. Messages that others have got are lost to it, and
        with `regain` it gets those again that it has lost and that are READY by now."""
        claim = consumer.state.open
        assert claim is not None
        there = await self._claimed.leased(index, consumer)
        is_fresh = consumer.lease_ends - trio.current_time() > seconds * _WORTH_RENEWING
        wanted = claim.planned if regain else claim.ids
        if not (is_fresh and len(there) == len(wanted)):
            taken = await self._claimed.take(index, consumer, wanted)
            there = await self._claimed.held(index, consumer, wanted)
            returning = await _in_slices(_once_more, there)
            renewed = claim.only({entry.id for entry in there})._replace(returning=tuple(returning))
            if renewed.lost:
                renewed = renewed._replace(ended=claim.ended or claim.deadline_ms is None)
            if not is_fresh or renewed.ids != claim.ids:
                await self._lease(index, consumer, renewed, taken, seconds)
        else:
            renewed = claim
        places = await _in_slices(_sequences, there)
        lost = await self._claimed.find_lost(index, consumer, [id for _, id in renewed.lost])
        return ClaimedBatch(
            claim.batch,
            len(there),
            len(set(claim.ids).difference(renewed.ids)),
            min(places, default=None),
            max(places, default=None),
            missing=lost.missing,
            dead_letters=lost.dead_letters,
            lease_expired=renewed.ended,
        )

    async def _finish(self, index: QueueIndex, consumer: BatchConsumer, until: float = math.inf) -> int:
        """Remove the messages of an acknowledged claim, if any are left. Stops at `until` (Trio's clock), with some of
        them removed; returns how many are left."""
        if not consumer.left:
            return 0
        if not consumer.removed:
            await self._secure_keys(consumer.ids)
        consumer.removed += await self._claimed.remove(index, consumer.ids[consumer.removed :], until)
        if consumer.left:
            return consumer.left
        async for id in turns.in_turns(consumer.ids, turns.LIGHT // 4):
            index.claims.pop(id, None)
        consumer.is_finished = True
        return 0


class ClaimedMessages:
    """Chooses, leases, reads and removes the messages of claims."""

    def __init__(self, core: Core, upkeep: Upkeep, dead_letters: DeadLetters, remover: Remover) -> None:
        self._storage = core.storage
        self._catalog = core.catalog
        self._upkeep = upkeep
        self._dead_letters = dead_letters
        self._remover = remover

    async def choose(
        self, index: QueueIndex, consumer: BatchConsumer, most: int, most_bytes: int | None, up_to: int | None
    ) -> list[Entry]:
        """The first READY messages, which the consumer's claim holds from now on: lease them, or put them back.

        Raises:
            StorageError: their lengths cannot be read; none is chosen.
        """
        chosen: list[Entry] = []
        left = most_bytes
        try:
            while len(chosen) < most and (left is None or left > 0):
                last = chosen[-1].id if chosen else None
                some = self._first(index, consumer, min(most - len(chosen), LONGEST_SLICE), up_to, last)
                if not some:
                    break
                if left is not None:
                    some, left = await self._fitting(index, some, left, is_first=not chosen)
                chosen += some
                await trio.lowlevel.checkpoint()  # a caller that goes away claims nothing
        except BaseException:
            self.put_back(index, [entry.id for entry in chosen])
            raise
        return chosen

    def put_back(self, index: QueueIndex, ids: Iterable[MessageId]) -> None:
        """Let messages go that are not leased after all: they are READY in their places, and were not received."""
        for id in ids:
            entry = index.unclaim(id)
            if entry is not None and not index.deleted:  # another queue may have its name by now
                self._catalog.place(entry)

    def put_back_in_turns(self, index: QueueIndex, ids: Sequence[MessageId]) -> None:
        """As :meth:`put_back`; very many are put back in turns."""
        self._upkeep.in_turns(ids, lambda some: self.put_back(index, some))

    async def leased(self, index: QueueIndex, consumer: BatchConsumer) -> list[Entry]:
        """The messages that the claim has now, in their order; without locked ones."""

        def leased(ids: Sequence[MessageId]) -> list[Entry]:
            found = [index.find(id) for id in ids]
            return [entry for entry in found if entry is not None and consumer.has(index, entry)]

        return await _in_slices(leased, consumer.ids)

    async def take(self, index: QueueIndex, consumer: BatchConsumer, wanted: Sequence[MessageId]) -> list[MessageId]:
        """Have the claim hold those of the messages that no other consumer has by now. Returns those that it did not
        hold before: lease them, or put them back."""
        await self._upkeep.jobs_done()  # they may be giving back what was the claim's
        is_held = consumer.is_held
        taken: list[MessageId] = []
        try:
            async for id in turns.in_turns(wanted, turns.LIGHT // 2):
                while id in self._catalog.locks:
                    await self._catalog.locks.wait(id)
                if not (is_held and index.claims.get(id) is consumer) and self._is_to_be_had(index, consumer, id):
                    self._upkeep.keep_claimed(id)
                    index.claim(id, consumer)
                    taken.append(id)
        except BaseException:
            self.put_back(index, taken)
            raise
        return taken

    async def held(self, index: QueueIndex, consumer: BatchConsumer, wanted: Sequence[MessageId]) -> list[Entry]:
        """Those of the messages that the claim holds, in their order, whether or not its lease is in the record yet;
        without locked ones."""

        def held(ids: Sequence[MessageId]) -> list[Entry]:
            return [index.claimed[id] for id in ids if id in index.claimed and index.claims.get(id) is consumer]

        return await _in_slices(held, wanted)

    async def find_lost(self, index: QueueIndex, consumer: BatchConsumer, ids: Sequence[MessageId]) -> LostMessages:
        """Find the messages that a claim has lost."""
        return await find_lost(self._catalog, self._dead_letters, index, consumer, ids)

    def told(self, index: QueueIndex, ids: Sequence[MessageId]) -> None:
        """Tell the observers of messages that a claim has from now on."""
        self._upkeep.in_turns(
            ids, lambda some: self._catalog.tell_held(Kind.LEASE, index.name, [id.time for id in some])
        )

    def let_go(self, index: QueueIndex, consumer: BatchConsumer, ids: Sequence[MessageId]) -> None:
        """Have the messages of a claim returned, after its lease has ended."""

        def let_go(some: Sequence[MessageId]) -> None:
            held = [id for id in some if index.claims.get(id) is consumer]
            for id in held:
                if id not in index.claimed:  # it is being moved, or gone
                    index.unclaim(id)
            self._upkeep.return_claimed([index.claimed[id] for id in held if id in index.claimed])

        self._upkeep.in_turns(ids, let_go)

    async def returned(self, index: QueueIndex, consumer: BatchConsumer) -> bool:
        """Wait for what the claim holds no more. Whether all of it was returned."""
        await self._upkeep.returned()
        async for some in turns.slices(consumer.ids, turns.LIGHT // 4):
            if any(index.claims.get(id) is consumer for id in some):
                return False
        return True

    async def read(
        self, index: QueueIndex, consumer: BatchConsumer, ids: Sequence[MessageId]
    ) -> list[tuple[int, Message]]:
        """Messages that the claim leases, each with its sequence. Close their bodies.

        Raises:
            ReceiptMismatch: a lease has ended.
            NoSuchMessage: one has vanished from the store.
            NoSuchQueue: the queue is being deleted, or was.
        """
        while True:
            entries = await self.entries_of(index, consumer, ids)
            stored = await self._storage.read(entries)
            found = [(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None]
            if len(found) == len(entries):
                return [(sequence_of(entry), _message(entry, each)) for entry, each in found]
            await close([_message(entry, each) for entry, each in found])
            if index.is_going or index.deleted:  # its messages go with it: none has vanished, and none comes again
                raise NoSuchQueue(f"queue {index.name} was deleted during the request")
            if all(self._stands(entry) for entry in entries):
                vanished = [entry for entry, each in zip(entries, stored, strict=True) if each is None]
                for entry in vanished:  # taken away by hand: the next renewal does without it
                    self._catalog.begin(entry, is_leaving=True)
                    self._catalog.end(entry, None, Kind.REMOVE)
                raise NoSuchMessage(
                    f"message {vanished[0].id}, claimed by consumer {consumer.name}, has disappeared "
                    "from the store. Claim the batch again"
                )

    async def entries_of(self, index: QueueIndex, consumer: BatchConsumer, ids: Sequence[MessageId]) -> list[Entry]:
        """Where messages are that the claim leases.

        Raises:
            ReceiptMismatch: a lease has ended.
        """
        return [await self._held(index, consumer, id) for id in ids]

    async def remove(self, index: QueueIndex, ids: Sequence[MessageId], until: float) -> int:
        """Remove acknowledged messages for good, wherever they are by now and also from other consumers.

        Args:
            until: when to stop (Trio's clock), after some of them at the least.

        Returns:
            How many of the first of them are gone.

        Raises:
            StorageError: not all of them are removed. Asking again removes the others.
        """
        # The record says that they go, and a start sees to it. So they must be gone only once it says less.
        durable = not self._storage.description.groups
        futures: list[Future[None]] = []
        stop = 0
        for start in range(0, len(ids), LONGEST_SLICE):
            left = ids[start : start + LONGEST_SLICE]
            stop = start + len(left)
            while left:
                moving = [id for id in left if id in self._catalog.locks]
                found = [self._dead_letters.find(index, id) for id in left if id not in self._catalog.locks]
                there = [entry for entry in found if entry is not None]
                futures.append(self._remover.remove(there, durable=durable))  # no await since they were found unlocked
                for id in moving[:1]:
                    await self._catalog.locks.wait(id)
                left = moving
            await trio.lowlevel.checkpoint()
            if until < math.inf and len(futures) >= _REMOVED_TOGETHER:
                # A caller with a limit of time hears of what is done, so little more may be under way then.
                await futures.pop(0).get()
                if trio.current_time() >= until:
                    break
        for future in futures:
            await future.get()
        return stop

    # Implementation

    def _first(
        self, index: QueueIndex, consumer: BatchConsumer, count: int, up_to: int | None, last: MessageId | None
    ) -> list[Entry]:
        found: list[Entry] = []
        while len(found) < count and not index.settings.paused and not index.deleted:
            entry = index.next(last, up_to)
            if entry is None:
                break
            last = entry.id
            if not self._upkeep.is_dead(index, entry):
                index.claim(entry.id, consumer)
                found.append(entry)
        return found

    async def _fitting(
        self, index: QueueIndex, entries: list[Entry], left: int, *, is_first: bool
    ) -> tuple[list[Entry], int]:
        """The first messages that fit into `left` bytes together, and the bytes left then; the others are put back.
        The first of a claim fits always."""
        try:
            stored = await self._storage.read(entries)
        except BaseException:
            self.put_back(index, [entry.id for entry in entries])
            raise
        await close([_message(entry, each) for entry, each in zip(entries, stored, strict=True) if each is not None])
        count = 0
        for each in stored:
            left -= each.properties.size if each is not None else 0
            if left < 0 and (count or not is_first):
                break
            count += 1
        self.put_back(index, [entry.id for entry in entries[count:]])
        return entries[:count], left if count == len(entries) else 0

    def _is_to_be_had(self, index: QueueIndex, consumer: BatchConsumer, id: MessageId) -> bool:
        """Whether the claim may have a message again: it is READY, not dead and not held."""
        entry = index.find(id)
        if entry is None or id in index.held or index.claims.get(id, consumer) is not consumer:
            return False
        return entry.state is State.READY and (id in index.claimed or not self._upkeep.is_dead(index, entry))

    async def _held(self, index: QueueIndex, consumer: BatchConsumer, id: MessageId) -> Entry:
        if id in self._catalog.locks:
            await self._catalog.locks.wait(id)
        entry = index.find(id)
        if entry is None or not consumer.has(index, entry):
            raise ReceiptMismatch(
                f"message {id} was removed from the claimed batch. Claim the batch again"
                if consumer.is_held
                else (
                    f"message {id} is no longer part of the claimed batch, because its lease has expired. Claim the "
                    "batch again"
                )
            )
        return entry

    def _stands(self, entry: Entry) -> bool:
        index = self._catalog.queues.get(entry.queue)
        return index is not None and index.find(entry.id) == entry


_FEW_LEASES: Final = 1000
"""Timers that are kept, whether they are needed or not."""


class LeaseEnds:
    """Calls when the leases of claims end. Call :meth:`start` before the first is given.

    Args:
        end: ends the lease of a consumer's claim, unless it was renewed or acknowledged meanwhile.
    """

    def __init__(self, end: Callable[[QueueIndex, BatchConsumer], Awaitable[None]]) -> None:
        self._end = end
        self._nursery: trio.Nursery | None = None
        self._heap: list[tuple[float, int, QueueIndex, BatchConsumer]] = []
        self._count = 0
        self._most = _FEW_LEASES
        self._changed = trio.Event()

    def start(self, nursery: trio.Nursery) -> None:
        """Run the timers there, once there are any."""
        self._nursery = nursery

    def add(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """Set the timer of a consumer whose lease was given just now."""
        self._count += 1
        if self._nursery is not None:
            self._nursery.start_soon(self._run)
            self._nursery = None
        heapq.heappush(self._heap, (consumer.lease_ends, self._count, index, consumer))
        if len(self._heap) > self._most:
            self._forget_renewed()
        if self._heap[0][1] == self._count:
            self._changed.set()

    def _forget_renewed(self) -> None:
        """Leave only the leases that run. One may be renewed very often, and its queue deleted, before it ends."""
        self._heap = [each for each in self._heap if each[3].lease_ends == each[0] and not each[2].deleted]
        heapq.heapify(self._heap)
        self._most = max(_FEW_LEASES, 2 * len(self._heap))

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                await trio.lowlevel.checkpoint()
                self._changed = trio.Event()
                with trio.move_on_at(self._heap[0][0] if self._heap else math.inf):
                    await self._changed.wait()
                while self._heap and self._heap[0][0] <= trio.current_time():
                    due, _, index, consumer = heapq.heappop(self._heap)
                    if consumer.lease_ends == due:
                        nursery.start_soon(self._see_it_ended, index, consumer)

    async def _see_it_ended(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """End a lease, as soon as the medium takes it. After a failure of the medium a start does."""
        while not index.deleted:
            try:
                await self._end(index, consumer)
                return
            except (StorageFull, StorageUnsure) as error:
                logger.warning(
                    "temporarily unable to requeue messages with expired leases (consumer %s, queue %s): %s",
                    consumer.name,
                    index.name,
                    error,
                )
                await trio.sleep(RETRY_SECONDS)
            except MQError:
                return


class Claim(NamedTuple):
    """The messages that a consumer has claimed as one batch.

    Attributes:
        read: the places noted as read: ranges, each of its first place and the one after its last, sorted and apart.
        deadline_ms: until when it holds its messages, in milliseconds since 1970; None when its lease has ended.
        stamp: when its lease was given, in UUID ticks: later than that of every lease given before.
        returning: for each of its messages how often it has been received when it is READY again; 0 for one that was
            gone by then. It counts from the end of the lease on. Before, it only keeps the room that the end needs: a
            store takes records up to some length, and must not take a claim whose end is too long for it.
        lost: messages that it had when it was made and has no more, each with its place among all of them, in order.
        ended: whether its lease had ended when the first of them was lost.
    """

    batch: int
    ids: tuple[MessageId, ...]
    read: tuple[tuple[int, int], ...] = ()
    deadline_ms: int | None = None
    stamp: int = 0
    returning: tuple[int, ...] = ()
    lost: tuple[tuple[int, MessageId], ...] = ()
    ended: bool = False

    @property
    def planned(self) -> tuple[MessageId, ...]:
        """The messages that it had when it was made, in their order."""
        if not self.lost:
            return self.ids
        lost, there = dict(self.lost), iter(self.ids)
        return tuple(lost.get(place) or next(there) for place in range(len(self.ids) + len(lost)))

    @property
    def messages_read(self) -> int:
        """How many of its messages are noted as read."""
        return sum(stop - start for start, stop in self.read)

    def with_read(self, start: int, stop: int) -> Claim:
        """The claim, with the places from `start` to before `stop` read, too."""
        return self._replace(read=_merged([*self.read, (start, stop)]))

    def only(self, ids: Collection[MessageId]) -> Claim:
        """The claim, with only those of its messages, lost ones too, that are among `ids`. What was read stays read, at
        its new place; what comes back to it comes back to its old place, and was not read."""
        if len(ids) == len(self.ids) and not self.lost:
            return self
        read = {self.ids[place] for start, stop in self.read for place in range(start, stop)}
        kept, lost = [], []
        for place, id in enumerate(self.planned):
            if id in ids:
                kept.append(id)
            else:
                lost.append((place, id))
        now_read = _merged((now, now + 1) for now, id in enumerate(kept) if id in read)
        return self._replace(ids=tuple(kept), read=now_read, lost=tuple(lost))


class ConsumerRecord(NamedTuple):
    """The durable state of a consumer.

    Attributes:
        epoch: of its last start; 0 for none.
        acknowledged: the number of the last batch that it acknowledged.
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
        incarnation: its queue's; a later queue of the same name has other consumers.

    Attributes:
        keeping: answered when the last state that was to be kept is, or is not.
        lease_ends: when the lease of its claim ends (Trio's clock); 0 when unknown.
        is_finished: whether all messages of the acknowledged claim are known to be gone.
        removed: how many of its first messages are known to be gone.
    """

    def __init__(self, name: str, incarnation: int, state: ConsumerRecord = ConsumerRecord()) -> None:  # noqa: B008 - frozen
        self.name = name
        self.incarnation = incarnation
        self.state = state
        self.lease_ends = 0.0
        self.is_finished = False
        self.removed = 0
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
    def left(self) -> int:
        """How many messages of its acknowledged claim may still be there."""
        return 0 if self.is_finished or not self.state.is_acknowledged else len(self.ids) - self.removed

    @property
    def is_held(self) -> bool:
        """Whether it has an open claim whose lease has not been ended."""
        claim = self.state.open
        return claim is not None and claim.deadline_ms is not None

    @property
    def stamp(self) -> int:
        """When its claim was leased last, in UUID ticks; 0 for never."""
        return self.state.claim.stamp if self.state.claim is not None else 0

    def seconds_left(self, now_ns: int) -> float:
        """How long the lease of its open claim runs from `now_ns` on: by the wall clock, within the longest lease."""
        claim = self.state.open
        deadline_ms = claim.deadline_ms if claim is not None else None
        left = 0.0 if deadline_ms is None else (deadline_ms * 1_000_000 - now_ns) / 1e9
        return min(max(left, 0.0), LONGEST_LEASE_SECONDS + MARGIN_SECONDS)

    def has(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether the lease of the consumer's claim holds the message."""
        return entry.state is State.READY and self.is_held and index.claims.get(entry.id) is self

    def received_before(self) -> Sequence[tuple[MessageId, int]]:
        """The messages of its claim, each with how often it was received before the claim and by it."""
        claim = self.state.claim
        return () if claim is None else list(zip(claim.ids, claim.returning, strict=False))

    def behind(self, index: QueueIndex, received: Sequence[tuple[MessageId, int]]) -> Iterator[Entry]:
        """Those messages, of :meth:`received_before`, that a crash has brought back to the lease or delay which they
        had before the claim."""
        # Their move to READY was not durable, and the claim is. A lease that came after the claim counts once more.
        for id, receives in received:
            entry = index.find(id) if index.claims.get(id) is self else None
            if entry is not None and entry.state is State.DELAYED and entry.meta.receives < receives:
                yield entry

    def returning(self, index: QueueIndex) -> Iterator[Entry]:
        """Those of its messages which a crash kept from being READY as often received as the record says."""
        claim = self.state.open
        if claim is None or self.is_held:
            return
        for id, receives in zip(claim.ids, claim.returning, strict=False):
            entry = index.find(id)
            if entry is None or entry.state is not State.READY or id in index.claims:
                continue
            if entry.meta.receives < receives:
                yield entry


class ConsumerRecords:
    """The consumers of all queues, and their records."""

    def __init__(self, core: Core, leases: Leases) -> None:
        self._leases = leases
        self._ids = core.ids
        self._storage = core.storage
        self._committer = core.committer
        self._known: dict[str, dict[str, BatchConsumer]] = {}

    async def load(self, queues: Mapping[str, QueueIndex]) -> None:
        """Load the records, and drop those of deleted queues."""
        damaged = {damage.key for damage in damages_of(self._storage, QUEUE_RECORD)}
        for key, record in (await self._storage.records(KIND)).items():
            queue, _, name = key.partition("/")
            index = queues.get(queue)
            if index is None and queue in damaged:
                logger.error(
                    "consumer %s is suspended because its queue's settings file is damaged. Run mq doctor to "
                    "find the damaged file",
                    key,
                )
            elif index is None or incarnation_of(record) != index.incarnation:
                with suppress(StorageFull, StorageUnsure):  # dropped at a later start, then
                    await drop_record(self._storage, KIND, key)
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

    def latest_first(self, queues: Mapping[str, QueueIndex]) -> list[tuple[QueueIndex, BatchConsumer]]:
        """All consumers, with their queues; first those whose claims were leased last."""
        found = [(queues[queue], each) for queue, known in self._known.items() for each in known.values()]
        return sorted(found, key=lambda each: each[1].stamp, reverse=True)

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
                raise Conflict(
                    f"queue {index.name} has reached the maximum of {MOST_CONSUMERS} consumers. Delete unused consumers"
                )
            consumer = self._known.setdefault(index.name, {})[name] = BatchConsumer(name, index.incarnation)
            index.has_batch_consumers = True
        return consumer

    async def keep(
        self,
        index: QueueIndex,
        consumer: BatchConsumer,
        state: ConsumerRecord,
        *,
        seconds: float | None = None,
        done: Callable[[bool], None] | None = None,
    ) -> None:
        """Set a consumer's state; durable on return. Goes on where the caller is cancelled.

        Args:
            seconds: how long the lease of its claim lasts from then on; None to leave it as `state` says.
            done: called in any case, with whether the state is set.

        Raises:
            StorageUnsure: it is set, but the disk was too slow for the lease to outlive a restart.
            StorageError: the state may not be durable, and is not set here.
        """
        keeping = _Keeping(index, consumer, state, seconds, done)
        consumer.keeping = keeping.future
        self._committer.submit(partial(keeping.put, self._leases, self._ids), 1, keeping.end)
        await keeping.future.get()

    async def drop(self, index: QueueIndex, consumer: BatchConsumer) -> None:
        """Drop a consumer and its record.

        Raises:
            StorageError: the record may still be there.
        """
        with self._committer.noting_failure():
            await drop_record(self._storage, KIND, f"{index.name}/{consumer.name}")
        self._known.get(index.name, {}).pop(consumer.name, None)


class _Keeping:
    """A consumer's state on its way to the store; see :meth:`ConsumerRecords.keep`."""

    def __init__(
        self,
        index: QueueIndex,
        consumer: BatchConsumer,
        state: ConsumerRecord,
        seconds: float | None,
        done: Callable[[bool], None] | None,
    ) -> None:
        self.future: Future[None] = Future()
        self._key = f"{index.name}/{consumer.name}"
        self._consumer = consumer
        self._state = state
        self._seconds = seconds
        self._done = done

    def put(self, leases: Leases, ids: MessageIds) -> list[Put]:
        """The record. To be called just before it is written, for it has the lease's deadline."""
        claim = self._state.claim
        if self._seconds is not None and claim is not None:
            leased = claim._replace(deadline_ms=leases.deadline_ms(self._seconds), stamp=ids.new().time)
            self._state = self._state._replace(claim=leased)
        return [Put(KIND, self._key, _record(self._consumer, self._state))]

    def end(self, outcomes: Sequence[Outcome], barrier: BatchTimes) -> None:
        """Set the state, if it is durable, and answer."""
        [outcome] = outcomes
        consumer, is_kept = self._consumer, outcome.result is Result.DONE
        if is_kept:
            before, consumer.state = consumer.state, self._state
            if before.claim is not self._state.claim or before.acknowledged != self._state.acknowledged:
                consumer.is_finished, consumer.removed = False, 0
            if self._seconds is not None:
                consumer.lease_ends = trio.current_time() + self._seconds
        if self._done is not None:
            self._done(is_kept)
        if not is_kept:
            self.future.fail(error_of(outcome, "cannot store the consumer's state"))
        elif self._seconds is not None and barrier.ended - barrier.began > MARGIN_SECONDS:
            self.future.fail(StorageUnsure("the disk was too slow, so the lease may have expired. Try again"))
        else:
            self.future.set(None)


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
    if state.claim is None:
        return record
    claim = state.claim
    batch, _, *lease, lost, ended = claim
    # Ranges of places are few numbers: a record may be too long.
    places = _merged((place, place + 1) for place, _ in lost)
    return {**record, "claim": [batch, list(claim.planned), *lease, places, ended]}


def _state(record: Mapping[str, Any]) -> ConsumerRecord:
    return ConsumerRecord(record["epoch"], record["acknowledged"], _claim(record.get("claim")), record["checkpoint"])


def _claim(kept: Sequence[Any] | None) -> Claim | None:
    if kept is None:
        return None
    batch, planned, read, deadline_ms, stamp, returning, lost, ended = kept
    ids = tuple(map(MessageId, planned))
    places = {place for start, stop in lost for place in range(start, stop)}
    return Claim(
        batch,
        tuple(id for place, id in enumerate(ids) if place not in places),
        tuple((start, stop) for start, stop in read),
        deadline_ms,
        stamp,
        tuple(returning),
        tuple((place, ids[place]) for place in sorted(places)),
        ended,
    )


async def _in_slices(some_of: Callable[[Sequence[T]], Iterable[R]], items: Sequence[T]) -> list[R]:
    """The results for all items, which are looked at in turns."""
    found: list[R] = []
    async for some in turns.slices(items, turns.LIGHT // 4):
        found += some_of(some)
    return found


def _sequences(entries: Iterable[Entry]) -> list[int]:
    return [sequence_of(entry) for entry in entries]


def _once_more(entries: Iterable[Entry | None]) -> tuple[int, ...]:
    """How often each message has been received with one more time; 0 for one that is gone."""
    return tuple(0 if entry is None else entry.meta.receives + 1 for entry in entries)


def _message(entry: Entry, found: Stored) -> Message:
    # The claim's own receive is in its record alone, not in the message's name.
    return Message(entry.queue, entry.id, found.body, found.properties, entry.meta.receives + 1, "")


def _check_places(consumer: BatchConsumer, batch: int, of: int | None) -> Claim:
    """The open claim, if it is this batch and has as many messages as the caller believes."""
    claim = consumer.state.open
    if claim is None or claim.batch != batch:
        raise Conflict(f"batch {batch} of consumer {consumer.name} is not open. Claim the batch first")
    if of is not None and of != len(claim.ids):
        raise ReceiptMismatch(
            f"batch {batch} of consumer {consumer.name} has {len(claim.ids)} messages, but the request expected {of}. "
            "Claim the batch again to get its current messages, then read it from position 0"
        )
    return claim


def _check_read(consumer: BatchConsumer) -> None:
    claim = consumer.state.open
    if claim is not None and claim.messages_read < len(claim.ids):
        raise Conflict(
            f"only {claim.messages_read} of the {len(claim.ids)} messages in batch {claim.batch} of "
            f"consumer {consumer.name} are marked as read, so nothing was removed. Read the remaining messages and "
            "mark them as read"
        )


def _other_checkpoint(consumer: BatchConsumer, checkpoint: str) -> Conflict:
    return Conflict(
        f"consumer {consumer.name} was started with checkpoint {consumer.state.checkpoint}, but this request "
        f"has checkpoint {checkpoint or 'none'}. Use the original checkpoint or another consumer name, or start the "
        "consumer with take_over=true"
    )


def _checked(name: str) -> str:
    return str(check_value("consumer", name, QUEUE))
