"""What a connection publishes, on its way into the queues: in order, whatever has come together under one barrier."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import trio
from trio_util import AsyncValue

from mq.amqp.alarm import Alarm
from mq.amqp.arguments import OVERFLOW
from mq.amqp.commands import Message
from mq.amqp.copies import Copies, Copy
from mq.amqp.dead_letters import DeadLetters
from mq.amqp.dying import Reason
from mq.amqp.session import MESSAGE_OVERHEAD
from mq.errors import NoSuchQueue, NotServed, QueueFull, StorageFull

MOST_BYTES_WAITING: Final = 16 * 1024 * 1024
"""Of one connection, before nothing more is read from it."""
RETRY_SECONDS: Final = 1.0
"""How long it takes until what found no room is tried again."""


class Storing:
    """Stores what one connection publishes.

    Args:
        copies: brings messages into their queues.
        alarm: told while there is no room.
        dead_letters: gets what a full queue refuses and wants to have buried.
        told: called with messages that came to the same end, and whether that is that they are stored.
    """

    def __init__(
        self, copies: Copies, alarm: Alarm, dead_letters: DeadLetters, told: Callable[[list[Message], bool], None]
    ) -> None:
        self._copies = copies
        self._alarm = alarm
        self._dead_letters = dead_letters
        self._told = told
        self._waiting: deque[Message] = deque()
        self._bytes: AsyncValue[int] = AsyncValue(0)
        self._work = trio.Event()

    @property
    def has_room(self) -> bool:
        """Whether more may be read from the connection."""
        return bool(self._bytes.value < MOST_BYTES_WAITING)

    def put(self, messages: Sequence[Message]) -> None:
        """Store these after all that were put before."""
        self._waiting.extend(messages)
        self._bytes.value += sum(map(_size, messages))
        self._work.set()

    async def wait_for_room(self) -> None:
        """Until more may be read."""
        await self._bytes.wait_value(lambda size: size < MOST_BYTES_WAITING)

    async def wait_for_all(self) -> None:
        """Until everything is stored, or refused."""
        await self._bytes.wait_value(0)

    async def run(self) -> None:
        """Store for ever.

        Raises:
            MQError: the store has failed, or the broker ends; what waited is not stored.
        """
        try:
            while True:
                await self._work.wait()
                self._work = trio.Event()
                while self._waiting:
                    await self._store_waiting()
        finally:
            self._alarm.free(self)

    async def store(self, messages: Sequence[Message]) -> list[Message]:
        """Store these now, and wait for room if there is none; those that a queue's own limits refuse.

        Raises:
            MQError: as :meth:`run`.
        """
        copies = [Copy(message, queue) for message in messages for queue in message.queues]
        refused: dict[int, Message] = {}
        while copies:
            stuck, why = [], ""
            for copy, error in await self._copies.store(copies):
                if isinstance(error, StorageFull):
                    stuck.append(copy)
                    why = str(error)
                elif isinstance(error, QueueFull):
                    refused[id(copy.letter)] = copy.letter  # type: ignore[assignment] # it is one of `messages`
                    await self._bury(copy)
                elif isinstance(error, NotServed):
                    refused[id(copy.letter)] = copy.letter  # type: ignore[assignment] # as above
                elif error is not None and not isinstance(error, NoSuchQueue):  # one that was deleted just now
                    raise error
            copies = stuck
            if stuck:
                self._alarm.stick(self, why)
                await trio.sleep(RETRY_SECONDS)
        self._alarm.free(self)
        return list(refused.values())

    async def _store_waiting(self) -> None:
        messages = list(self._waiting)
        self._waiting.clear()
        refused = await self.store(messages)
        if refused:
            unstored = {id(message) for message in refused}
            self._told(refused, False)
            self._told([message for message in messages if id(message) not in unstored], True)
        else:
            self._told(messages, True)
        self._bytes.value -= sum(map(_size, messages))

    async def _bury(self, copy: Copy) -> None:
        if copy.queue.arguments.get(OVERFLOW) == "reject-publish-dlx":
            await self._dead_letters.send(copy.queue, copy.letter, Reason.MAXLEN)


def _size(message: Message) -> int:
    return len(message.body) + len(message.properties.raw) + MESSAGE_OVERHEAD
