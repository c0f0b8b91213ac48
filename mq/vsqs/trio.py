"""VSQS for Trio: the same folder and the same promises as :mod:`mq.vsqs`, without holding up the event loop.

As in::

    async with open_queue("/var/spool/letters") as queue:
        await queue.publish(b"hello")
        async with await queue.receive() as message:
            print(message.body)
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TypeVar

import trio

from mq.vsqs import VISIBILITY_SECONDS, Message, Queue
from mq.vsqs.view import POLL_SECONDS

__all__ = ["TrioMessage", "TrioQueue", "open_queue"]

T = TypeVar("T")


@asynccontextmanager
async def open_queue(
    path: str | os.PathLike[str], *, capacity: int | None = None, create: bool = False
) -> AsyncIterator[TrioQueue]:
    """A queue for the length of the block. Arguments and errors are those of :class:`mq.vsqs.Queue`."""
    changing = await trio.to_thread.run_sync(partial(Queue, path, capacity=capacity, create=create))
    try:
        receiving = await trio.to_thread.run_sync(Queue, path)
        try:
            yield TrioQueue(changing, receiving)
        finally:
            receiving.close()
    finally:
        changing.close()


class TrioMessage:
    """A message that was handed out; deleted at the end of its ``async with``, released on an error or a cancellation.

    Attributes:
        id: names it until it is deleted, in every process.
        body: the published bytes.
        expires_ms: when it becomes visible again, milliseconds since 1970.
    """

    def __init__(self, queue: TrioQueue, message: Message) -> None:
        self.id = message.id
        self.body = message.body
        self.expires_ms = message.expires_ms
        self._queue = queue
        self._message = message
        self._settled = False

    async def delete(self) -> bool:
        """As :meth:`mq.vsqs.Message.delete`."""
        self._settled = True
        return await self._queue.delete(self.id)

    async def release(self) -> bool:
        """As :meth:`mq.vsqs.Message.release`."""
        self._settled = True
        return await self._queue.release(self._message)

    async def __aenter__(self) -> TrioMessage:
        return self

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._settled:
            return
        with trio.CancelScope(shield=True):  # as long as it takes a thread to change one name
            await (self.delete() if error is None else self.release())


class TrioQueue:
    """One folder, for any number of tasks. Made by :func:`open_queue`.

    Receiving has a queue object of its own: tasks that publish or delete read none of its events. A receiving task
    leaves nothing ready behind, or its own change of the folder wakes the next waiting task.
    """

    def __init__(self, changing: Queue, receiving: Queue) -> None:
        self._changing = changing
        self._changing_lock = trio.Lock()
        self._receiving = receiving
        self._receiving_lock = trio.Lock()
        self._waiting_lock = trio.Lock()

    async def publish(self, body: bytes) -> str:
        """As :meth:`mq.vsqs.Queue.publish`."""
        return await self._change(partial(self._changing.publish, body))

    async def receive(self, visibility_timeout: float = VISIBILITY_SECONDS) -> TrioMessage:
        """As :meth:`mq.vsqs.Queue.receive`, waiting until there is one. Cancelled, it has hidden no message."""
        while True:
            message = await self.receive_now(visibility_timeout)
            if message is not None:
                return message
            await self._wait()

    async def receive_now(self, visibility_timeout: float = VISIBILITY_SECONDS) -> TrioMessage | None:
        """Receive without waiting: None when there is no message."""
        async with self._receiving_lock:
            message = await trio.to_thread.run_sync(self._receiving.receive, visibility_timeout, 0)
        return None if message is None else TrioMessage(self, message)

    async def delete(self, id: str) -> bool:
        """As :meth:`mq.vsqs.Queue.delete`."""
        return await self._change(partial(self._changing.delete, id))

    async def release(self, message: Message) -> bool:
        """As :meth:`mq.vsqs.Queue.release`."""
        return await self._change(partial(self._changing.release, message))

    async def size(self) -> int:
        """As :meth:`mq.vsqs.Queue.size`."""
        return await self._change(self._changing.size)

    async def _change(self, act: Callable[[], T]) -> T:
        async with self._changing_lock:
            return await trio.to_thread.run_sync(act)

    async def _wait(self) -> None:
        fd = self._receiving.fileno()
        if fd is None:
            await trio.sleep(min(POLL_SECONDS, self._receiving.patience_seconds()))
            return
        async with self._waiting_lock:
            with trio.move_on_after(self._receiving.patience_seconds()):
                await trio.lowlevel.wait_readable(fd)
