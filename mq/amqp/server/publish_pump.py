"""Stores what a connection publishes, in order: in the step that read it, and a completion answers.

Only where a queue has to be looked for first, or a message found no room, a task of the connection goes on with a
portion. While the store has no room, publishers wait: a :class:`FullStoreAlarm` tells all connections.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from typing import Final, NamedTuple

import trio
from trio_util import AsyncValue

from mq.amqp.model.arguments import OVERFLOW
from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import PublishedMessage
from mq.amqp.protocol.session import MESSAGE_OVERHEAD
from mq.amqp.server.copies import Copies, Copy
from mq.amqp.server.dead_letters import DeadLetterRouter, Reason
from mq.doors.budget import Room
from mq.errors import BodyTooLarge, MQError, NoSuchQueue, NotServed, PublishPaused, QueueFull, StorageFull

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
"""Messages of one connection that are stored and answered together. Preparing more would hold up other connections."""
MOST_STORED_NOW: Final = 1024
"""Messages of a transaction that are stored together, and copies of other messages: one message may go to thousands of
queues."""
MOST_PORTIONS: Final = 3
"""Times that many that are under way at once."""
RETRY_SECONDS: Final = 1.0
"""The pause before messages that found no room are tried again."""


class Unstored(NamedTuple):
    """Messages that were not stored in all of their queues.

    Attributes:
        full: refused by the limits of a queue.
        unserved: for a queue that no node serves just now, or that an operator has paused.
        unfit: too long for a queue, which will never take them.
        why: the error of the last message in one of these two.
        unrouted: mandatory, and stored nowhere: all of their queues were deleted meanwhile.
    """

    full: list[PublishedMessage]
    unserved: list[PublishedMessage]
    unfit: list[PublishedMessage]
    why: str
    unrouted: list[PublishedMessage]


class PublishPump:
    """Stores what one connection publishes.

    Args:
        alarm: told while there is no room.
        dead_letters: gets the refusals of full queues that dead-letter them.
        backlog: bytes that wait, of all connections.
        told: called with messages that are stored or refused, and with the refused ones among them. It has the store's
            progress send what it has written.
        complete: calls a completion. If that raises, it ends the connection.

    Attributes:
        lost: how many messages are not stored, or not known to be, without their publisher having been told.
        why: the error of the store that lost them.
        is_ahead: whether the client publishes faster than the store takes it.
    """

    def __init__(
        self,
        copies: Copies,
        alarm: FullStoreAlarm,
        dead_letters: DeadLetterRouter,
        backlog: AsyncValue[int],
        room: Room,
        told: Callable[[Sequence[PublishedMessage], Unstored], None],
        complete: Callable[..., None],
    ) -> None:
        self.lost = 0
        self.why = ""
        self.is_ahead = False
        self._copies = copies
        self._alarm = alarm
        self._dead_letters = dead_letters
        self._backlog = backlog
        self._room = room
        self._progress = copies.progress
        self._rate = _Rate()
        self._told = told
        self._complete = complete
        self._waiting: deque[PublishedMessage] = deque()
        self._portions: deque[_Portion] = deque()  # under way
        self._under_way = 0  # messages of these
        self._size = 0  # bytes that wait, or are under way
        self._stuck: AsyncValue[int] = AsyncValue(0)  # portions that wait for room
        self._bytes: AsyncValue[int] = AsyncValue(0)  # the same, without what was stored in the step that brought it
        self._is_taking = False  # a task has a portion: the next one begins once its messages have their place
        self._is_at_work = False
        self._nursery: trio.Nursery | None = None
        self._context = copy_context()
        self._failure: MQError | None = None
        self._has_ended = False
        self._is_left = False
        self._who_wait = 0

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the connection."""
        own = self._size
        if not own:
            return True
        budget, room = self._room.client.budget, self._room
        if self._is_memory_scarce or room.free < budget.most // OWN_RESERVE or room.size < own:
            return False
        return not (self._progress.others_wait and self._has_work_for(MOST_SECONDS))

    @property
    def is_idle(self) -> bool:
        """Whether everything is stored, or refused."""
        return not self._size and self._failure is None

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
        self._size += sum(map(_size, messages))
        self._go_on()
        self._count()

    async def wait_for_room(self) -> None:
        """Wait until more may be read from the connection."""
        with self._awaited():
            await self._backlog.wait_value(lambda _: self.has_room)

    async def wait_for_all(self) -> None:
        """Wait until everything is stored, or refused.

        Raises:
            MQError: the store has failed, or the broker ends; what waited is not stored.
        """
        with self._awaited():
            await self._bytes.wait_value(0)
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """The client has gone. Its messages still wait for room, unless too much waits in all."""
        self._is_left = True

    async def run(self) -> None:
        """Store for ever.

        Raises:
            MQError: the store has failed, or the broker ends; what waited is not stored.
        """
        try:
            async with trio.open_nursery() as self._nursery:
                self._context = copy_context()
                self._go_on()
                try:
                    await trio.sleep(math.inf)  # behind sleep_forever mypy sees nothing, and the end is below
                finally:
                    self._nursery = None  # it takes no task any more
            if self._failure is not None:
                raise self._failure
        finally:
            self._nursery = None
            self._alarm.clear(self)
            self._has_ended = True
            self.lost += self._under_way + len(self._waiting)
            self._waiting.clear()
            self._portions.clear()
            self._size = 0
            self._count()
            self._room.give_back()

    async def store_now(self, messages: Sequence[PublishedMessage]) -> Unstored:
        """Store messages after all that were put before. Returns those that are refused.

        Raises:
            MQError: as :meth:`run`.
        """
        await self.wait_for_all()
        with self._awaited():
            parts = [
                await self._store(messages[begin : begin + MOST_STORED_NOW])
                for begin in range(0, len(messages), MOST_STORED_NOW)
            ]
        return Unstored(
            [message for part in parts for message in part.full],
            [message for part in parts for message in part.unserved],
            [message for part in parts for message in part.unfit],
            next((part.why for part in reversed(parts) if part.why), ""),
            [message for part in parts for message in part.unrouted],
        )

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
                if not self._copies.submit(portion.messages, partial(self._complete, self._submitted, portion)):
                    self._is_taking = True
                    self._start(portion, ())
        finally:
            self._is_at_work = False

    def _may_begin(self) -> bool:
        if self._nursery is None or self._failure is not None or self._is_taking or self._stuck.value:
            return False
        return self._under_way <= (MOST_PORTIONS - 1) * MOST_TOGETHER

    def _submitted(self, portion: _Portion, refused: Sequence[tuple[Copy, MQError]]) -> None:
        """Answer a portion that was stored without a task, or have one go on with those that were not."""
        if self._has_ended:
            return
        if refused:
            self._start(portion, refused)
        else:
            self._end(portion, ALL_STORED)

    def _start(self, portion: _Portion, outcomes: Sequence[tuple[Copy, MQError | None]]) -> None:
        if self._nursery is not None:
            self._context.copy().run(self._nursery.start_soon, self._store_portion, portion, outcomes)

    async def _store_portion(self, portion: _Portion, outcomes: Sequence[tuple[Copy, MQError | None]]) -> None:
        """Store a portion, of which these outcomes are known, and answer it."""
        is_first = not outcomes

        def has_place() -> None:
            nonlocal is_first
            if is_first:
                is_first = self._is_taking = False
                self._go_on()

        while self._stuck.value and is_first:
            await self._stuck.wait_value(0)
        try:
            unstored = await self._store(portion.messages, has_place, outcomes)
        except MQError as error:
            if self._failure is None:
                self._failure, self.why = error, str(error)
            if self._nursery is not None:
                self._nursery.cancel_scope.cancel()
            return
        self._end(portion, unstored)
        has_place()
        self._progress.flush()

    def _end(self, portion: _Portion, unstored: Unstored) -> None:
        """Note that a portion is stored or refused, and answer it once those before it are."""
        portion.unstored = unstored
        while self._portions and (unstored_now := self._portions[0].unstored) is not None:
            messages = self._portions.popleft().messages
            self._under_way -= len(messages)
            self._size -= sum(map(_size, messages))
            self._rate.stored += len(messages)
            self._told(messages, unstored_now)
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
        full, unfit, missing = set[int](), set[int](), Counter[int]()
        queues, reason = await self._route(messages)
        unserved = {id(message) for message in messages if id(message) not in queues}
        copies = [Copy(message, queue) for message in messages for queue in queues.get(id(message), ())]
        while copies:
            stuck, why = [], ""
            outcomes = outcomes or await self._copies.store(copies, has_place)
            for copy, error in outcomes:
                if isinstance(error, StorageFull):
                    stuck.append(copy)
                    why = str(error)
                elif isinstance(error, NotServed | PublishPaused):
                    unserved.add(id(copy.publication))
                    reason = str(error)
                elif isinstance(error, QueueFull):
                    full.add(id(copy.publication))
                    await self._bury(copy)
                elif isinstance(error, BodyTooLarge):
                    unfit.add(id(copy.publication))
                    reason = str(error)
                elif isinstance(error, NoSuchQueue):  # deleted just now, or an unsure one that was not there
                    missing[id(copy.publication)] += 1
                elif error is not None:
                    raise error
            copies, outcomes = stuck, ()
            if stuck:
                await self._pause(why)
        if not self._stuck.value:
            self._alarm.clear(self)
        mandatory = [message for message in messages if message.mandatory and id(message) in queues]
        unrouted = [message for message in mandatory if missing[id(message)] == len(queues[id(message)])]
        if not (full or unserved or unfit or unrouted):
            return ALL_STORED
        return Unstored(
            [message for message in messages if id(message) in full],
            [message for message in messages if id(message) in unserved],
            [message for message in messages if id(message) in unfit],
            reason,
            unrouted,
        )

    async def _pause(self, why: str) -> None:
        """Wait before a portion is tried again that found no room. Meanwhile no other begins."""
        if self._is_left and self._is_memory_scarce:
            raise StorageFull(why)
        self._alarm.raise_alarm(self, why)
        self._stuck.value += 1
        try:
            await trio.sleep(RETRY_SECONDS)
        finally:
            self._stuck.value -= 1

    async def _route(self, messages: Sequence[PublishedMessage]) -> tuple[dict[int, tuple[Queue, ...]], str]:
        """The queues of messages, by the messages' `id`; and why some are not among them, whose queues cannot be found
        out just now."""
        queues = {id(message): message.queues for message in messages if not message.queues[0].is_unrouted}
        if len(queues) == len(messages):
            return queues, ""
        try:
            return queues | await self._copies.routed(messages), ""
        except NotServed as error:
            return queues, str(error)

    async def _bury(self, copy: Copy) -> None:
        if copy.queue.arguments.get(OVERFLOW) == "reject-publish-dlx":
            with suppress(NotServed):  # the message is refused anyway, and its publisher told
                await self._dead_letters.send(copy.queue, copy.publication, Reason.MAXLEN)

    def _count(self) -> None:
        """Reserve memory for what waits, and have other connections know of it."""
        own, before = self._size, self._bytes.value
        if own == before:
            return
        if not before:
            self._rate.begin()
        else:
            self._rate.measure()
        if own < before:
            self._room.shrink(own)
        else:
            self._room.cover_if_free(own)  # if it is not, nothing more is read until it is less
        part = 2 if self.is_ahead else 1  # what is ahead stays so until half of that is left
        is_early = part * own > self._room.client.budget.most // EARLY_PART
        self.is_ahead = is_early or self._has_work_for(EARLY_SECONDS / part)
        self._bytes.value = own
        self._backlog.value += own - before

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

    def begin(self) -> None:
        """Messages wait from now on."""
        self.stored, self._since = 0, trio.current_time()

    def measure(self) -> None:
        """Measure it, once messages have waited for long enough."""
        seconds = trio.current_time() - self._since
        if seconds >= RATE_SECONDS:
            latest = self.stored / seconds
            self.per_second = (self.per_second + latest) / 2 if self.per_second else latest
            self.begin()


class _Portion:
    """Messages that are stored and answered together.

    Attributes:
        messages: in order.
        unstored: those that were refused; None while that is not known.
    """

    __slots__ = ("messages", "unstored")

    def __init__(self, messages: Sequence[PublishedMessage]) -> None:
        self.messages = messages
        self.unstored: Unstored | None = None


ALL_STORED: Final = Unstored([], [], [], "", [])


def _size(message: PublishedMessage) -> int:
    return len(message.body) + len(message.properties.raw) + MESSAGE_OVERHEAD


class FullStoreAlarm:
    """On while the messages of any connection find no room.

    Attributes:
        why: what the store says; empty while it is off.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.why = ""
        self._changed = changed
        self._stuck: set[Hashable] = set()

    def raise_alarm(self, who: Hashable, why: str) -> None:
        """Turn it on: the messages of `who` find no room."""
        self._stuck.add(who)
        if not self.why:
            self.why = why or "no room"
            logger.warning("AMQP publishers are blocked: %s", why)
            self._changed()

    def clear(self, who: Hashable) -> None:
        """The messages of `who` found room, or are gone. Turns the alarm off if they were the last that were stuck."""
        self._stuck.discard(who)
        if self.why and not self._stuck:
            self.why = ""
            logger.warning("AMQP publishers are no longer blocked")
            self._changed()
