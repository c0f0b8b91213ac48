"""Queues that go when nobody has used them for a while (``x-expires``)."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

import trio

from mq.amqp.arguments import EXPIRES
from mq.amqp.declared import Queue
from mq.message import QueueName


class Unused:
    """Knows when each of them was used last: declared, got from, or left by its last consumer.

    Args:
        is_used: whether somebody consumes from a queue.
        expire: told of a queue that goes.
    """

    def __init__(self, is_used: Callable[[QueueName], bool], expire: Callable[[Queue], Awaitable[None]]) -> None:
        self._is_used = is_used
        self._expire = expire
        self._due: dict[QueueName, tuple[float, Queue]] = {}
        self._pause = trio.CancelScope()

    def touch(self, queue: Queue) -> None:
        """It is used just now. One that does not expire is passed over."""
        lasts_ms = queue.arguments.get(EXPIRES)
        if lasts_ms is not None:
            due = trio.current_time() + lasts_ms / 1000
            self._due[queue.key] = (due, queue)
            self._pause.deadline = min(self._pause.deadline, due)

    def forget(self, queue: Queue) -> None:
        """It is no more."""
        self._due.pop(queue.key, None)

    async def run(self) -> None:
        """Tell of them for ever."""
        while True:
            now = trio.current_time()
            for due, queue in list(self._due.values()):
                if self._is_used(queue.key):
                    self.touch(queue)
                elif due <= now:
                    await self._expire(queue)
            next_due = min((due for due, _ in self._due.values()), default=math.inf)
            with trio.CancelScope(deadline=next_due) as self._pause:
                await trio.sleep_forever()
