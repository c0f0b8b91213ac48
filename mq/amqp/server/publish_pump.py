"""Stores what a connection publishes, in order: in the step that read it, and a completion answers.

Only where a queue has to be looked for first, or a message found no room, a task of the connection goes on with a
portion. While the store has no room, publishers wait.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Final, Protocol

import trio

from mq.amqp.model.arguments import OVERFLOW
from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.protocol.connection import Connection
from mq.amqp.protocol.session import MESSAGE_OVERHEAD
from mq.amqp.server.copies import Copy
from mq.amqp.server.dead_letters import Reason
from mq.amqp.server.message_codec import Publishable, draft_of
from mq.amqp.server.state import AmqpState
from mq.broker import Published
from mq.doors.budget import UNCOUNTED_BYTES, Room
from mq.errors import BodyTooLarge, MQError, NoSuchQueue, NotServed, PublishPaused, QueueFull, StorageFull
from mq.message import QueueName

logger = logging.getLogger("mq.amqp")

OWN_RESERVE: Final = 16
"""While less than this part of the memory is free for a client, nothing more is read from its connections of which
something waits: the client may need it for other things."""
COMMON_RESERVE: Final = 3
"""The same for all clients together: others may need that."""
EARLY_PART: Final = 16
"""With this part of the memory a connection is told that it publishes too fast."""
EARLY_SECONDS: Final = 2.0
"""So is one for which the store has this much work."""
MOST_SECONDS: Final = 10.0
"""Work of one connection, before nothing more is read from it while other connections wait for the store."""
RATE_SECONDS: Final = 0.5
"""How long messages are counted before they tell how fast the store takes them."""
MOST_TOGETHER: Final = 128
"""Messages of one connection that are stored and answered together, and copies of them that are submitted in one step:
one message may go to thousands of queues. Preparing more would hold up other connections."""
MOST_STORED_NOW: Final = 1024
"""Messages of a transaction that are stored together, and copies of other messages."""
MOST_PORTIONS: Final = 3
"""Times that many that are under way at once."""
RETRY_SECONDS: Final = 1.0
"""The pause before messages that found no room are tried again."""


class Unstored:
    """The messages of a portion that are not stored in all of their queues.

    Args:
        messages: of the portion.

    Attributes:
        why: the error of the last message that no node serves now, that an operator has paused, or that is too long.
        queues: by the `id` of a message, where that was found out only while it was stored.
    """

    def __init__(self, messages: Sequence[PublishedMessage]) -> None:
        self.why = ""
        self.queues: dict[int, tuple[Queue, ...]] = {}
        self._messages = messages
        self._refused: set[int] = set()
        self._unserved: set[int] = set()
        self._unfit: set[int] = set()
        self._missing = Counter[int]()

    def __bool__(self) -> bool:
        return bool(self._refused or self._missing or self.queues)

    def note(self, copy: Copy, error: MQError) -> bool:
        """Note why a copy is not stored. False for an error that does not refuse it."""
        id_ = id(copy.publication)
        if isinstance(error, NoSuchQueue):  # deleted just now, or an unsure one that was not there
            self._missing[id_] += 1
            return True
        if isinstance(error, NotServed | PublishPaused):
            self.leave_out(copy.publication, str(error))
            return True
        if isinstance(error, BodyTooLarge):
            self._unfit.add(id_)
            self.why = str(error)
        elif not isinstance(error, QueueFull):
            return False
        self._refused.add(id_)
        return True

    def leave_out(self, message: Publishable, why: str) -> None:
        """Note that a message cannot be stored just now."""
        self._unserved.add(id(message))
        self._refused.add(id(message))
        self.why = why

    def refused(self) -> list[PublishedMessage]:
        """Messages that a queue has refused, in order."""
        return [message for message in self._messages if id(message) in self._refused]

    def stored(self) -> list[PublishedMessage]:
        """All other messages, in order."""
        return [message for message in self._messages if id(message) not in self._refused]

    def unheard(self) -> list[PublishedMessage]:
        """Messages for which a nack would not help: their channel has no confirms, or no queue will ever take them."""
        return [
            message
            for message in self._messages
            if id(message) in self._unfit or (id(message) in self._unserved and message.number is None)
        ]

    def unrouted(self) -> list[PublishedMessage]:
        """Mandatory messages that are stored nowhere: all of their queues were deleted meanwhile."""
        return [
            message
            for message in self._messages
            if message.mandatory
            and id(message) not in self._unserved
            and self._missing[id(message)] == len(self.queues.get(id(message), message.queues))
        ]


class PublisherLink(Protocol):
    """One client's connection, as what it publishes is answered."""

    @property
    def connection(self) -> Connection:
        """Its protocol, without a socket."""

    @property
    def send_answers(self) -> Callable[[], None]:
        """Sends what was written. It never raises."""

    def refused(self, unstored: Unstored) -> None:
        """Write the answers to messages of which some are not stored."""

    def start(self, work: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of the connection, unless it has ended."""

    def lose_publishes(self, error: MQError) -> None:
        """End the connection: the store has failed, or the broker ends, and what waited is not stored."""

    def end_after_error(self, error: Exception) -> None:
        """Log an internal error, and end the connection."""


class PublishPump:
    """Stores what one connection publishes.

    Args:
        state: has the queues, and what makes publishers wait.
        publisher: the connection.
        room: the memory for what waits.

    Attributes:
        lost: how many messages are not stored, or not known to be, without their publisher having been told.
        why: the error of the store that lost them.
        is_ahead: whether the client publishes faster than the store takes it.
        why_full: why its messages find no room in the store; empty while they find some.
        size: bytes that wait, or are being stored.
    """

    def __init__(self, state: AmqpState, publisher: PublisherLink, room: Room) -> None:
        self.lost = 0
        self.why = ""
        self.is_ahead = False
        self._state = state
        self._broker = state.broker
        self._progress = state.broker.progress
        self._count_consumers = state.topology.consumers.count
        self._publisher = publisher
        self._connection = publisher.connection
        self._room = room
        self._rate = _Rate()
        self._waiting: deque[PublishedMessage] = deque()
        self._portions: deque[_Portion] = deque()  # under way
        self._under_way = 0  # messages of these
        self.size = 0
        self._counted = 0  # bytes, without what was stored in the step that brought it
        self.why_full = ""
        self._stuck = 0  # portions that wait for room
        self._unstuck = trio.lowlevel.ParkingLot()  # portions that wait for these
        self._idle = trio.lowlevel.ParkingLot()  # tasks that wait until everything is stored
        self._is_taking = False  # a task has a portion: the next one begins once its messages have their place
        self._is_putting = False  # what is answered now is sent at the end of this step
        self._is_at_work = False
        self._context = copy_context()
        self._failure: MQError | None = None
        self._has_ended = False
        self._is_left = False
        self._who_wait = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the connection."""
        own = self.size
        if own <= UNCOUNTED_BYTES:
            return True
        budget, room = self._room.client.budget, self._room
        if self.why_full and own > budget.most // EARLY_PART:
            return False
        if self._is_memory_scarce or room.free < budget.most // OWN_RESERVE or room.size < own:
            return False
        return not (self._progress.others_wait and self._has_work_for(MOST_SECONDS))

    @property
    def is_idle(self) -> bool:
        """Whether everything is stored, or refused."""
        return not self.size and self._failure is None

    @property
    def is_awaited(self) -> bool:
        """Whether the connection waits for the store, so that nothing is read from its client."""
        return self._who_wait > 0

    def put(self, messages: Sequence[PublishedMessage]) -> None:
        """Store these after all that were put before."""
        if self._has_ended:
            self.lost += len(messages)
            return
        self._waiting.extend(messages)
        self.size += sum(map(_size, messages))
        self._is_putting = True
        self._go_on()
        self._is_putting = False
        self._count()

    async def wait_for_room(self) -> None:
        """Wait until more may be read from the connection."""
        with self._awaited():
            await self._state.backlog.wait_until(self._may_read)

    async def wait_for_all(self) -> None:
        """Wait until everything is stored, or refused.

        Raises:
            MQError: the store has failed, or the broker ends; what waited is not stored.
        """
        with self._awaited():
            while self._counted:
                await self._idle.park()
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """The client has gone. Its messages still wait for room, unless too much waits in all."""
        self._is_left = True

    def end(self) -> None:
        """Store nothing more. Does nothing the second time."""
        self._state.alarm.clear(self)
        self._has_ended = True
        self.lost += self._under_way + len(self._waiting)
        self._waiting.clear()
        self._portions.clear()
        self.size = self._under_way = 0
        self._count()
        self._room.give_back()

    async def store_now(self, messages: Sequence[PublishedMessage]) -> list[Unstored]:
        """Store messages after all that were put before.

        Returns:
            Those that are refused, in parts.

        Raises:
            MQError: as :meth:`wait_for_all`.
        """
        await self.wait_for_all()
        with self._awaited():
            return [
                await self._store(messages[begin : begin + MOST_STORED_NOW])
                for begin in range(0, len(messages), MOST_STORED_NOW)
            ]

    def _may_read(self) -> bool:
        return self.has_room

    def _go_on(self) -> None:
        """Store what waits, as far as it may begin now."""
        if self._is_at_work:
            return  # called by a completion in the loop below, which goes on
        self._is_at_work = True
        try:
            while self._waiting and self._may_begin():
                portion = self._next_portion()
                self._portions.append(portion)
                self._under_way += len(portion.messages)
                if not self._submit(portion):
                    self._is_taking = True
                    self._start(portion, ())
        finally:
            self._is_at_work = False

    def _may_begin(self) -> bool:
        if self._failure is not None or self._is_taking or self._stuck:
            return False
        return self._under_way <= (MOST_PORTIONS - 1) * MOST_TOGETHER

    def _submit(self, portion: _Portion) -> bool:
        """Store a portion without a task. False where something has to be waited for first, or these are more copies
        than fit in a step; then nothing has begun."""
        copies: dict[QueueName, list[tuple[PublishedMessage, Queue]]] = {}
        count = 0
        for message in portion.messages:
            for queue in message.queues:
                if queue.is_unsure:
                    return False
                copies.setdefault(queue.key, []).append((message, queue))
                count += 1
        if count > MOST_TOGETHER:
            return False
        if len(copies) > 1 and not all(map(self._broker.publishes_now, copies)):
            return False
        portion.left = len(copies)
        for name, its in copies.items():
            drafts = [draft_of(message, queue, self._count_consumers) for message, queue in its]
            stored = partial(self._stored, portion, its)
            try:
                if not self._broker.publish_now(name, drafts, stored):
                    return False  # of its only queue
            except MQError as error:
                stored([error] * len(its))
        return True

    def _stored(
        self,
        portion: _Portion,
        copies: Sequence[tuple[PublishedMessage, Queue]],
        outcomes: Sequence[Published | MQError],
    ) -> None:
        """Take the outcomes of one queue. Answer the portion with the last one."""
        for (message, queue), outcome in zip(copies, outcomes, strict=True):
            if isinstance(outcome, MQError):
                portion.refused.append((Copy(message, queue), outcome))
        portion.left -= 1
        if portion.left or self._has_ended:
            return
        try:
            if portion.refused:
                self._refuse(portion)
            else:
                self._end(portion)
        except Exception as error:  # noqa: BLE001 - it is logged, and ends the connection alone
            self._publisher.end_after_error(error)

    def _refuse(self, portion: _Portion) -> None:
        """Answer a portion of which some copies were refused. A task does what takes longer."""
        unstored = Unstored(portion.messages)
        for copy, error in portion.refused:
            if _is_buried(copy, error) or not unstored.note(copy, error):
                self._start(portion, portion.refused)
                return
        self._end(portion, unstored)

    def _start(self, portion: _Portion, outcomes: Sequence[tuple[Copy, MQError | None]]) -> None:
        self._publisher.start(self._store_portion, portion, outcomes)

    async def _store_portion(self, portion: _Portion, outcomes: Sequence[tuple[Copy, MQError | None]]) -> None:
        """Store a portion, of which these outcomes are known, and answer it."""
        is_first = not outcomes

        def has_place() -> None:
            nonlocal is_first
            if is_first:
                is_first = self._is_taking = False
                self._go_on()
                self._count()  # what was begun there may have ended in the same step

        while self._stuck and is_first:
            await self._unstuck.park()
        try:
            unstored = await self._store(portion.messages, has_place, outcomes)
        except MQError as error:
            if not self._has_ended:
                self._failure, self.why = error, str(error)
                self.end()
                self._publisher.lose_publishes(error)
            return
        if self._has_ended:
            return
        self._end(portion, unstored)
        has_place()
        self._progress.flush()

    def _end(self, portion: _Portion, unstored: Unstored | None = None) -> None:
        """Note that a portion is stored or refused, and answer it once those before it are."""
        portion.is_done, portion.unstored = True, unstored
        while self._portions and self._portions[0].is_done:
            first = self._portions.popleft()
            messages = first.messages
            self._under_way -= len(messages)
            self.size -= sum(map(_size, messages))
            self._rate.stored += len(messages)
            if not self._is_putting:
                self._progress.after(self._publisher.send_answers)
            if first.unstored:
                self._publisher.refused(first.unstored)
            else:
                self._connection.published(messages, is_stored=True)
        if not self._is_at_work:
            if self._waiting:
                self._context.copy().run(self._go_on)
            self._count()

    def _next_portion(self) -> _Portion:
        """Take the messages of a portion: fewer than usual if each goes to many queues."""
        messages: list[PublishedMessage] = []
        copies = 0
        while self._waiting and len(messages) < MOST_TOGETHER and copies < MOST_STORED_NOW:
            messages.append(self._waiting.popleft())
            copies += len(messages[-1].queues)
        return _Portion(messages)

    async def _store(
        self,
        messages: Sequence[PublishedMessage],
        has_place: Callable[[], object] | None = None,
        outcomes: Sequence[tuple[Copy, MQError | None]] = (),
    ) -> Unstored:
        """Store messages now, waiting for room if there is none. Returns those that are refused.

        Args:
            messages: in order.
            has_place: called when all that is stored from then on comes behind them; perhaps only by the end.
            outcomes: of the first try; none before it.
        """
        unstored = Unstored(messages)
        await self._route(messages, unstored)
        queues = unstored.queues
        copies = [Copy(message, queue) for message in messages for queue in queues.get(id(message), message.queues)]
        copies = [copy for copy in copies if not copy.queue.is_unrouted]
        while copies:
            stuck, why = [], ""
            outcomes = outcomes or await self._state.copies.store(copies, has_place)
            for copy, error in outcomes:
                if isinstance(error, StorageFull):
                    stuck.append(copy)
                    why = str(error)
                elif error is not None:
                    if not unstored.note(copy, error):
                        raise error
                    if _is_buried(copy, error):
                        with suppress(NotServed):  # the message is refused anyway, and its publisher told
                            await self._state.dead_letters.send(copy.queue, copy.publication, Reason.MAXLEN)
            copies, outcomes = stuck, ()
            if stuck:
                await self._pause(why)
        if not self._stuck and self.why_full:
            self.why_full = ""
            self._state.alarm.clear(self)
            self._publisher.send_answers()
        return unstored

    async def _pause(self, why: str) -> None:
        """Wait before a portion is tried again that found no room. Meanwhile no other begins."""
        if self._has_ended or (self._is_left and self._is_memory_scarce):
            raise StorageFull(why)
        self.why_full = why or "the store has no room"
        self._state.alarm.raise_alarm(self, self.why_full)
        self._publisher.send_answers()  # and with them connection.blocked
        self._stuck += 1
        try:
            await trio.sleep(RETRY_SECONDS)
        finally:
            self._stuck -= 1
            if not self._stuck:
                self._unstuck.unpark_all()

    async def _route(self, messages: Sequence[PublishedMessage], unstored: Unstored) -> None:
        """Find the queues of messages that could not be routed when they came."""
        unrouted = [message for message in messages if message.queues[0].is_unrouted]
        if not unrouted:
            return
        try:
            unstored.queues = await self._state.copies.routed(unrouted)
        except NotServed as error:
            for message in unrouted:
                unstored.leave_out(message, str(error))

    def _count(self) -> None:
        """Reserve memory for what waits, and have other connections know of it."""
        own, before = self.size, self._counted
        if own == before:
            return
        if not before:
            self._rate.begin()
        else:
            self._rate.measure()
        if own <= UNCOUNTED_BYTES:
            if self._room.size:
                self._room.shrink(0)
        elif own < before:
            self._room.shrink(own)
        else:
            self._room.cover_if_free(own)  # if it is not, nothing more is read until it is less
        part = 2 if self.is_ahead else 1  # what is ahead stays so until half of that is left
        is_early = part * own > self._room.client.budget.most // EARLY_PART
        self.is_ahead = is_early or self._has_work_for(EARLY_SECONDS / part)
        self._counted = own
        backlog = self._state.backlog
        backlog.value += own - before
        if backlog.is_awaited:
            backlog.wake()
        if not own and self._idle:
            self._idle.unpark_all()

    @property
    def _is_memory_scarce(self) -> bool:
        budget = self._room.client.budget
        return budget.free < budget.most // COMMON_RESERVE

    def _has_work_for(self, seconds: float) -> bool:
        messages, rate = self._under_way + len(self._waiting), self._rate.per_second
        return bool(rate) and messages > max(MOST_TOGETHER, rate * seconds)

    @contextmanager
    def _awaited(self) -> Iterator[None]:
        self._who_wait += 1
        try:
            yield
        finally:
            self._who_wait -= 1


def _is_buried(copy: Copy, error: MQError) -> bool:
    """Whether a refused copy goes to a dead-letter exchange."""
    return isinstance(error, QueueFull) and copy.queue.arguments.get(OVERFLOW) == "reject-publish-dlx"


class _Rate:
    """How many messages the store takes in a second while some wait.

    Attributes:
        per_second: 0 while that is not known.
        stored: messages that were stored since it was measured last.
    """

    def __init__(self) -> None:
        self.per_second = 0.0
        self.stored = 0
        self._since = 0.0
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time

    def begin(self) -> None:
        """Messages wait from now on."""
        self.stored, self._since = 0, self._now()

    def measure(self) -> None:
        """Measure it, once messages have waited for long enough."""
        seconds = self._now() - self._since
        if seconds >= RATE_SECONDS:
            latest = self.stored / seconds
            self.per_second = (self.per_second + latest) / 2 if self.per_second else latest
            self.begin()


class _Portion:
    """Messages that are stored and answered together.

    Attributes:
        messages: in order.
        left: queues without outcomes.
        refused: copies that were refused, and why.
        is_done: whether all of them are stored or refused.
        unstored: those that were refused, if any were.
    """

    __slots__ = ("is_done", "left", "messages", "refused", "unstored")

    def __init__(self, messages: Sequence[PublishedMessage]) -> None:
        self.messages = messages
        self.left = 0
        self.refused: list[tuple[Copy, MQError]] = []
        self.is_done = False
        self.unstored: Unstored | None = None


def _size(message: PublishedMessage) -> int:
    return len(message.body) + len(message.properties.raw) + MESSAGE_OVERHEAD
