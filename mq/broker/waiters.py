"""Requests that wait for messages, in a wait queue for each queue, first come, first served.

A request stays in its wait queue until a worker serves it, finds nothing for it, or its client goes away. Nothing
polls: a worker is called when a request joins and when a message is READY.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

from mq.broker.commit import BatchChannel, Future
from mq.broker.index import QueueIndex
from mq.lifecycle import DOOR
from mq.message import Message
from mq.storage.interface import Entry


class FetchRequest:
    """A request for messages of a queue, answered by its `future`.

    Args:
        index: the queue.
        count: how many at the most.
        seconds: length of the lease; None for the queue's own.
        waits: whether to wait when there is no message.
        takes: remove the messages instead of leasing them.
        holds: leave the messages READY, and note in memory that they are held.
        exclusion: the consumer's own, where it has the queue alone.

    Attributes:
        door: the front end that asks.
        held: where the messages of the answer are.
        future: the answer.
    """

    __slots__ = ("count", "door", "exclusion", "future", "held", "holds", "index", "seconds", "takes", "waits")

    def __init__(
        self,
        index: QueueIndex,
        count: int = 1,
        seconds: float | None = None,
        *,
        waits: bool = False,
        takes: bool = False,
        holds: bool = False,
        exclusion: object | None = None,
    ) -> None:
        self.index = index
        self.count = count
        self.seconds = seconds
        self.waits = waits
        self.takes = takes
        self.holds = holds
        self.exclusion = exclusion
        self.door = DOOR.get()
        self.held: list[Entry] = []
        self.future: Future[list[Message]] = Future()


class WaitQueue:
    """The requests that wait for messages of one queue.

    Attributes:
        requests: first come, first served.
        nonblocking: those that are answered at once, with nothing if there is nothing.
        wanted: how many messages they want together.
        is_called: whether the queue's worker was called and has not looked yet.
    """

    def __init__(self) -> None:
        self.requests: OrderedDict[FetchRequest, None] = OrderedDict()
        self.nonblocking: OrderedDict[FetchRequest, None] = OrderedDict()
        self.wanted = 0
        self.is_called = False

    def join(self, request: FetchRequest, *, first: bool) -> None:
        """Add a request at the end, or at the front."""
        self.requests[request] = None
        self.wanted += request.count
        if not request.waits:
            self.nonblocking[request] = None
        if first:
            self.requests.move_to_end(request, last=False)

    def first(self) -> FetchRequest | None:
        """The request whose turn it is; None without any."""
        return next(iter(self.requests), None)

    def leave(self, request: FetchRequest) -> bool:
        """Remove a request. False when it was not in the wait queue."""
        self.nonblocking.pop(request, None)
        if request not in self.requests:
            return False
        del self.requests[request]
        self.wanted -= request.count
        return True


class Waiters:
    """The wait queues of all queues, and the channels by which their workers are called.

    Args:
        workers: how many there are. Each queue has one of them for good.
    """

    def __init__(self, workers: int) -> None:
        self.channels: list[BatchChannel[QueueIndex]] = [BatchChannel() for _ in range(workers)]
        self._queues: dict[QueueIndex, WaitQueue] = {}
        self._is_closed = False

    def ask(self, request: FetchRequest, *, first: bool = False) -> None:
        """Put a request at the end of its wait queue, or back at the front. After :meth:`close` a waiting one is
        answered at once, with no message."""
        if self._is_closed and request.waits:
            request.future.set([])
            return
        self._queues.setdefault(request.index, WaitQueue()).join(request, first=first)
        self.call(request.index)

    def withdraw(self, request: FetchRequest) -> bool:
        """Remove a request from its wait queue. False when it is being served, or was answered."""
        wait_queue = self._queues.get(request.index)
        left = wait_queue is not None and wait_queue.leave(request)
        self._tidy(request.index)
        return left

    def call(self, index: QueueIndex) -> None:
        """Call the queue's worker, if requests wait: something has changed for them."""
        wait_queue = self._queues.get(index)
        if wait_queue is not None and not wait_queue.is_called:
            wait_queue.is_called = True
            self.channels[zlib.crc32(index.name.encode()) % len(self.channels)].put(index)

    def next_to_lease(self, index: QueueIndex) -> FetchRequest | None:
        """The first request, removed from its wait queue to be served; None without one, or if the first holds
        messages in memory."""
        wait_queue = self._queues.get(index)
        request = wait_queue.first() if wait_queue is not None else None
        if request is None or request.holds:
            return None
        self.withdraw(request)
        return request

    def wanted(self, index: QueueIndex) -> int:
        """How many messages the queue's requests want together."""
        wait_queue = self._queues.get(index)
        return 0 if wait_queue is None else wait_queue.wanted

    def waited_for(self) -> list[QueueIndex]:
        """The queues that requests wait for."""
        return [index for index, wait_queue in self._queues.items() if wait_queue.wanted]

    def refuse(self, index: QueueIndex, error: Exception) -> None:
        """Let every request that waits for the queue fail with `error`."""
        wait_queue = self._queues.get(index)
        for request in list(wait_queue.requests) if wait_queue is not None else ():
            self.withdraw(request)
            request.future.fail(error)

    def close(self) -> None:
        """Answer every waiting request with no message, now and from now on."""
        self._is_closed = True
        for wait_queue in self._queues.values():
            for request in list(wait_queue.requests):
                if request.waits:
                    wait_queue.leave(request)
                    request.future.set([])

    def answer_call(self, index: QueueIndex) -> WaitQueue:
        """The wait queue that a called worker is to look at."""
        wait_queue = self._queues.setdefault(index, WaitQueue())
        wait_queue.is_called = False
        return wait_queue

    def served(self, index: QueueIndex) -> None:
        """Note that the worker has done for the queue what it could."""
        self._tidy(index)

    def _tidy(self, index: QueueIndex) -> None:
        wait_queue = self._queues.get(index)
        if wait_queue is not None and not wait_queue.requests and not wait_queue.is_called:
            del self._queues[index]
