"""Messages that one connection publishes, stored in order: in the step that read them, and answered by a completion.

Only where a queue has to be looked for first, or a message found no room, a task of the connection stores a batch.
While the store has no room, publishers wait.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import trio
from pamqp import commands as methods

from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.protocol.connection import Connection
from mq.amqp.protocol.session import MESSAGE_OVERHEAD
from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.server.copies import Copy
from mq.amqp.server.dead_letters import Reason
from mq.amqp.server.message_codec import draft_of
from mq.amqp.server.refusals import refusal_of
from mq.amqp.server.submitted_batch import SubmittedBatch, is_dead_lettered
from mq.amqp.wire.errors import Code, Refusal
from mq.amqp.wire.properties import LONGEST_REMEMBERED, BasicProperties
from mq.broker import Draft, Published
from mq.doors.budget import UNCOUNTED_BYTES, Use
from mq.errors import MQError, NotServed, StorageFull
from mq.message import QueueName
from mq.quantities import show_count

logger = logging.getLogger("mq.amqp")

MOST_TOGETHER: Final = 128
"""Messages in a batch, and copies that are submitted in one step: one message may go to thousands of queues. Preparing
more would hold up other connections."""
MOST_COPIES: Final = 1024
"""Copies in a batch whose messages go to many queues each, and messages of a transaction that are stored together."""
MOST_BATCHES: Final = 3
"""The most batches of one connection that are submitted and not answered."""
RETRY_SECONDS: Final = 1.0
"""The pause before messages that found no room are tried again."""

OWN_RESERVE: Final = 16
"""While less than this part of the memory is free for a client, nothing more is read from its connections that have a
backlog: the client may need the memory for other things."""
COMMON_RESERVE: Final = 3
"""The limit across all clients, which share the memory."""
EARLY_PART: Final = 16
"""A connection whose backlog takes this part of the memory is told that it publishes too fast."""
EARLY_SECONDS: Final = 2.0
"""So is one with this much work for the store."""
MOST_SECONDS: Final = 10.0
"""The most work in one connection's backlog while other connections wait for the store; beyond it nothing is read."""
RATE_SECONDS: Final = 0.5
"""How long messages are counted before they tell how fast the store takes them."""
FEWEST_AHEAD: Final = 128
"""A backlog of no more messages is never too much work."""


class PublishQueue:
    """Messages of one connection on their way to the store.

    The next batch begins if the store works, fewer than ``MOST_BATCHES`` full batches are unanswered, and none of these
    states prevents it:

    ==================  ================================================  ==========================================
    State               Meaning                                           Ends
    ==================  ================================================  ==========================================
    ``_is_submitting``  The loop in ``_submit_waiting`` is running. A     With the loop, which also submits batches
                        completion that it calls does not start another.  for which the completion made room.
    ``_is_taking``      A task stores a batch that could not be           Once the store is certain to order later
                        submitted in the step that read it.               messages after that batch.
    ``_stuck`` > 0      The number of batches with ``is_stuck``: some of  Once tasks have stored, dead-lettered or
                        their messages found no room or are to be         refused the rest of these batches.
                        dead-lettered. Later ones must not overtake them.
    ==================  ================================================  ==========================================

    ``_is_reading`` does not prevent a batch. While it is set, completions do not schedule the sending of answers: the
    connection sends them all at the end of the step that reads.

    A connection whose backlog, the messages that the store has not taken, is too large is not read from.

    Attributes:
        lost: how many are not stored, or not known to be, without their publisher having been told.
        size: bytes of the backlog.
        is_ahead: whether the client publishes faster than the store takes it.
        failure: the error of the store with which the backlog was given up; None while it works.
    """

    def __init__(self, client: ClientConnection) -> None:
        self.lost = 0
        self.size = 0
        self.is_ahead = False
        self.failure: MQError | None = None
        self._client = client
        self._connection = client.connection
        self._state = client.state
        self._broker = client.state.broker
        self._progress = client.state.broker.progress
        self._count_consumers = client.state.topology.consumers.count
        self._everything = client.state.backlog
        self._room = client.memory.reserve(Use.BACKLOG)
        self._messages = 0  # of the backlog
        self._counted = 0  # bytes, without messages that were stored in the step that brought them
        self._why_full = ""  # why messages find no room in the store; empty while they find some
        self._idle = trio.lowlevel.ParkingLot()  # tasks that wait until everything is stored
        self._waiting_tasks = 0
        self._per_second = 0.0  # messages that the store takes while some wait; 0 while that is not known
        self._stored_count = 0  # messages that the store has taken, or refused, since that was measured
        self._since = 0.0
        self._now = client.now
        self._waiting: deque[PublishedMessage] = deque()
        self._batches: deque[SubmittedBatch] = deque()  # submitted and not answered
        self._under_way = 0  # messages of these
        self._stuck = 0  # how many batches are
        self._changed = trio.lowlevel.ParkingLot()  # tasks of batches that wait for those before them
        self._is_taking = False  # a task has a batch: the next one begins once its messages have their place
        self._is_reading = False  # answers are sent at the end of this step
        self._is_submitting = False
        self._properties: BasicProperties | None = None  # those of the last draft, and all of it but the body
        self._queue: Queue | None = None
        self._said: tuple[str, str, tuple[str, ...]] = ("", "", ())
        self._rest: tuple[Any, ...] = ()
        self._context = copy_context()
        self._has_ended = False
        self._is_left = False

    def put(self, messages: Sequence[PublishedMessage]) -> None:
        """Store these after all that were put before."""
        if self._has_ended:
            self.lost += len(messages)
            return
        self._waiting.extend(messages)
        self._messages += len(messages)
        self.size += sum(map(_size, messages))
        self._is_reading = True
        self._submit_waiting()
        self._is_reading = False
        self._settle()

    async def store_now(self, messages: Sequence[PublishedMessage]) -> list[SubmittedBatch]:
        """Store messages after all that were put before. Returns them in batches, with what is refused.

        Raises:
            MQError: the store has failed, or the broker ends.
        """
        await self.wait_until_empty()
        batches = [SubmittedBatch(messages[at : at + MOST_COPIES]) for at in range(0, len(messages), MOST_COPIES)]
        with self._awaited():
            for batch in batches:
                await self._store(batch)
        return batches

    def leave(self) -> None:
        """The client has gone. Its messages still wait for room, unless too much waits in all."""
        self._is_left = True

    def end(self) -> None:
        """Store nothing more. Does nothing the second time."""
        self._state.alarm.clear(self)
        self._has_ended = True
        self._waiting.clear()
        self._batches.clear()
        self._under_way = 0
        self._changed.unpark_all()
        self.lost += self._messages
        self._messages = self.size = 0
        self._settle()
        self._room.give_back()

    # Submitting

    def _submit_waiting(self) -> None:
        if self._is_submitting:
            return  # called by a completion in the loop below, which goes on
        self._is_submitting = True
        try:
            while self._waiting and not (self._is_taking or self._stuck) and self.failure is None:
                if self._under_way > (MOST_BATCHES - 1) * MOST_TOGETHER:
                    break
                batch = self._next_batch()
                self._batches.append(batch)
                self._under_way += len(batch.messages)
                if not self._submit(batch):
                    self._is_taking = True
                    self._client.start(self._store_batch, batch, ())
        finally:
            self._is_submitting = False

    def _next_batch(self) -> SubmittedBatch:
        """Take the messages of a batch: fewer than usual if each goes to many queues."""
        messages: list[PublishedMessage] = []
        copies = 0
        while self._waiting and len(messages) < MOST_TOGETHER and copies < MOST_COPIES:
            messages.append(self._waiting.popleft())
            copies += len(messages[-1].queues)
        return SubmittedBatch(messages)

    def _submit(self, batch: SubmittedBatch) -> bool:
        """Submit a batch in this step. False where something has to be waited for first, or these are more copies than
        fit in a step; then nothing has begun."""
        copies: dict[QueueName, list[tuple[PublishedMessage, Queue]]] = {}
        count = 0
        for message in batch.messages:
            for queue in message.queues:
                if queue.is_unsure:
                    return False
                copies.setdefault(queue.key, []).append((message, queue))
                count += 1
        if count > MOST_TOGETHER:
            return False
        if len(copies) > 1 and not all(map(self._broker.publishes_now, copies)):
            return False
        batch.left = len(copies)
        for name, its in copies.items():
            drafts = [self._draft(message, queue) for message, queue in its]
            stored = partial(self._stored, batch, its)
            try:
                if not self._broker.publish_now(name, drafts, stored):
                    batch.left = 0
                    return False  # of its only queue
            except MQError as error:
                stored([error] * len(its))
        return True

    def _draft(self, message: PublishedMessage, queue: Queue) -> Draft:
        """Return the draft of a copy. Publishers mostly say the same of each message, so that only its body differs."""
        said = (message.exchange, message.routing_key, message.hidden_keys)
        if message.properties is self._properties and queue is self._queue and said == self._said:
            return Draft(message.body, *self._rest)
        draft = draft_of(message, queue, self._count_consumers)
        if draft.ttl is None and len(message.properties.raw) <= LONGEST_REMEMBERED:
            self._properties, self._queue, self._said, self._rest = message.properties, queue, said, draft[1:]
        return draft

    # Answering

    def _stored(
        self,
        batch: SubmittedBatch,
        copies: Sequence[tuple[PublishedMessage, Queue]],
        outcomes: Sequence[Published | MQError],
    ) -> None:
        """Take the outcomes of one queue. Answer the batch with the last one."""
        for (message, queue), outcome in zip(copies, outcomes, strict=True):
            if isinstance(outcome, MQError):
                batch.failed.append((Copy(message, queue), outcome))
                if isinstance(outcome, StorageFull):  # those of its other queues may come late
                    self._hold_up(batch)
        batch.left -= 1
        if batch.left or self._has_ended:
            return
        if batch.failed and not batch.refuse_failed():
            self._hold_up(batch)
            self._client.start(self._store_batch, batch, batch.failed)
            return
        try:
            self._end(batch)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self._client.end_after_error(error)

    def _end(self, batch: SubmittedBatch) -> None:
        """Note that a batch is stored or refused, and answer it once those before it are."""
        batch.is_done = True
        while self._batches and self._batches[0].is_done:
            first = self._batches.popleft()
            messages = first.messages
            self._under_way -= len(messages)
            self._messages -= len(messages)
            self.size -= sum(map(_size, messages))
            self._stored_count += len(messages)
            if not self._is_reading:
                self._progress.after[self._client.send_answers] = None
            if first.is_stored:
                self._connection.published(messages, is_stored=True)
            else:
                self._answer_refused(first)
        if self._changed:
            self._changed.unpark_all()
        if not self._is_submitting:
            if self._waiting:
                self._context.copy().run(self._submit_waiting)
            self._settle()

    def _answer_refused(self, batch: SubmittedBatch) -> None:
        connection = self._connection
        return_messages(connection, batch.unrouted())
        connection.published(batch.refused(), is_stored=False)
        connection.published(batch.stored(), is_stored=True)
        lost = batch.beyond_nack()
        if lost:
            logger.warning(
                "could not store %s from AMQP client %s: %s",
                show_count(len(lost), "message"),
                self._client.peer,
                batch.why,
            )
            self._close_channels(lost, batch.why)

    def _close_channels(self, messages: Sequence[PublishedMessage], why: str) -> None:
        """Close the channels of messages that are not stored where a nack would not help."""
        for key, count in Counter(message.channel for message in messages).items():
            text = f"1 message was not stored: {why}" if count == 1 else f"{count} messages were not stored: {why}"
            channel = self._connection.channel(key)
            if channel is not None:
                channel.lose(Refusal(Code.PRECONDITION_FAILED, text), methods.Basic.Publish())
        self._client.start(self._client.work_again)

    # Batches for which something has to be waited for

    async def _store_batch(self, batch: SubmittedBatch, outcomes: Sequence[tuple[Copy, MQError | None]]) -> None:
        """Store a batch in a task, and answer it.

        Args:
            outcomes: of the first try; none before it.
        """
        is_taking = not outcomes

        def has_place() -> None:
            nonlocal is_taking
            if is_taking:
                is_taking = self._is_taking = False
                self._submit_waiting()
                self._settle()  # what was begun there may have ended in the same step

        while self._stuck and is_taking:
            await self._changed.park()
        try:
            await self._store(batch, has_place, outcomes)
        except MQError as error:
            if not self._has_ended:
                self.failure = error
                self.end()
                self._client.fail(refusal_of(error))
            return
        if self._has_ended:
            return
        self._end(batch)
        has_place()
        self._progress.flush()

    async def _store(
        self,
        batch: SubmittedBatch,
        has_place: Callable[[], object] | None = None,
        outcomes: Sequence[tuple[Copy, MQError | None]] = (),
    ) -> None:
        """Store a batch, waiting for room if there is none.

        Args:
            has_place: called when all that is stored from then on comes behind them; perhaps only by the end.
        """
        await self._route(batch)
        copies = batch.copies()
        while copies:
            stuck, why = [], ""
            if not outcomes:
                batch.left = 1
                outcomes = await self._state.copies.store(copies, has_place)
                batch.left = 0
            for copy, error in outcomes:
                if isinstance(error, StorageFull):
                    stuck.append(copy)
                    why = why or str(error)
                elif error is not None:
                    if not batch.refuse(copy.publication, error):
                        raise error
                    if is_dead_lettered(copy, error):
                        with suppress(NotServed):  # the message is refused anyway, and its publisher told
                            await self._state.dead_letters.send(copy.queue, copy.publication, Reason.MAXLEN)
            copies, outcomes = stuck, ()
            if stuck:
                self._hold_up(batch)
                await self._wait_for_room(batch, why)
        self._let_go_on(batch)

    def _hold_up(self, batch: SubmittedBatch) -> None:
        """Let no other batch begin before the rest of this one is stored: its messages would overtake that."""
        if not batch.is_stuck:
            batch.is_stuck = True
            self._stuck += 1

    def _let_go_on(self, batch: SubmittedBatch) -> None:
        """Let others begin after a batch that may have held them up."""
        if batch.is_stuck:
            batch.is_stuck = False
            self._stuck -= 1
        if self._stuck:
            return
        self._changed.unpark_all()
        if self._why_full:
            self._why_full = ""
            self._note_blocked()
            self._state.alarm.clear(self)
            self._client.send_answers()

    async def _wait_for_room(self, batch: SubmittedBatch, why: str) -> None:
        """Wait before a batch is tried again that found no room."""
        self._check_patience(why)
        self._why_full = why or "the store has no room"
        self._note_blocked()
        self._state.alarm.raise_alarm(self, self._why_full)
        self._client.send_answers()  # and with them connection.blocked
        self._changed.unpark_all()
        await trio.sleep(RETRY_SECONDS)
        # A later batch is tried after it, and the store has answered all of them, or one might overtake it.
        while self._batches and (self._batches[0] is not batch or any(each.left for each in self._batches)):
            await self._changed.park()
        self._check_patience(why)

    def _check_patience(self, why: str) -> None:
        if self._has_ended or (self._is_left and self._is_memory_scarce):
            raise StorageFull(why)

    async def _route(self, batch: SubmittedBatch) -> None:
        """Find the queues of messages that could not be routed when they came."""
        unrouted = [message for message in batch.messages if message.queues[0].is_unrouted]
        if unrouted:
            try:
                batch.route(await self._state.copies.routed(unrouted))
            except NotServed as error:
                for message in unrouted:
                    batch.refuse(message, error)

    # The backlog

    def _settle(self) -> None:
        """Reserve memory for the backlog as it is, and let other connections know of it."""
        own, before = self.size, self._counted
        if own == before:
            return
        if not before:
            self._begin_measuring()
        else:
            self._measure()
        if own <= UNCOUNTED_BYTES:
            if self._room.size:
                self._room.shrink(0)
        elif own < before:
            self._room.shrink(own)
        else:
            self._room.cover_if_free(own)  # if it is not, nothing more is read until it is less
        part = 2 if self.is_ahead else 1  # what is ahead stays so until half of that is left
        is_early = part * own > self._room.client.budget.most // EARLY_PART
        is_ahead = is_early or self._has_work_for(EARLY_SECONDS / part)
        if is_ahead != self.is_ahead:
            self.is_ahead = is_ahead
            self._note_blocked()
        self._counted = own
        self._everything.value += own - before
        if self._everything.is_awaited:
            self._everything.wake()
        if not own and self._idle:
            self._idle.unpark_all()

    def is_empty(self) -> bool:
        """Whether everything is stored, or refused."""
        return not self.size and self.failure is None

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the connection."""
        own = self.size
        if own <= UNCOUNTED_BYTES:
            return True
        budget, room = self._room.client.budget, self._room
        if self._why_full and own > budget.most // EARLY_PART:
            return False
        if self._is_memory_scarce or room.free < budget.most // OWN_RESERVE or room.size < own:
            return False
        return not (self._progress.others_wait and self._has_work_for(MOST_SECONDS))

    @property
    def _is_memory_scarce(self) -> bool:
        """Whether little memory is left for all clients."""
        budget = self._room.client.budget
        return budget.free < budget.most // COMMON_RESERVE

    @property
    def is_awaited(self) -> bool:
        """Whether the connection waits for the store, so that nothing is read from its client."""
        return self._waiting_tasks > 0

    async def wait_for_room(self) -> None:
        """Wait until more may be read from the connection."""
        with self._awaited():
            await self._everything.wait_until(lambda: self.has_room)

    async def wait_until_empty(self) -> None:
        """Wait until everything is stored, or refused.

        Raises:
            MQError: the store has failed, or the broker ends; the rest is not stored.
        """
        with self._awaited():
            while self._counted:
                await self._idle.park()
        if self.failure is not None:
            raise self.failure

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        """A block in which the connection waits for the store."""
        self._waiting_tasks += 1
        try:
            yield
        finally:
            self._waiting_tasks -= 1

    def _note_blocked(self) -> None:
        ahead = "publishing faster than the store can write" if self.is_ahead else ""
        if why := self._why_full or ahead:
            self._connection.block(why)
        else:
            self._connection.unblock()

    def _has_work_for(self, seconds: float) -> bool:
        rate = self._per_second
        return bool(rate) and self._messages > max(FEWEST_AHEAD, rate * seconds)

    def _begin_measuring(self) -> None:
        self._stored_count, self._since = 0, self._now()

    def _measure(self) -> None:
        seconds = self._now() - self._since
        if seconds >= RATE_SECONDS:
            latest = self._stored_count / seconds
            self._per_second = (self._per_second + latest) / 2 if self._per_second else latest
            self._begin_measuring()


def return_messages(connection: Connection, messages: Iterable[PublishedMessage]) -> None:
    """Return mandatory messages that no queue takes. Call it before they are confirmed."""
    for message in messages:
        channel = connection.channel(message.channel)
        if channel is not None:
            channel.give_back(message)


def _size(message: PublishedMessage) -> int:
    return len(message.body) + len(message.properties.raw) + MESSAGE_OVERHEAD
