"""Requests that wait for messages, in a wait queue for each queue: higher priorities first, equal ones in turn.

A request stays in its wait queue until a worker serves it, finds nothing for it, or its client goes away. Nothing
polls: a worker is called when a request joins and when a message is READY.
"""

from __future__ import annotations

import zlib
from bisect import insort
from collections import OrderedDict, deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final, Generic, TypeVar

import trio

from mq.broker.commit import Future, StoreProgress
from mq.broker.index import QueueIndex
from mq.lifecycle import PROTOCOL
from mq.message import Message
from mq.storage.interface import Entry

T = TypeVar("T")


class BatchChannel(Generic[T]):
    """A channel whose readers take all items at once. It has no limit: each item's sender waits for its future.

    Attributes:
        step_seconds: how long a step of the event loop took at the last :meth:`drain`.
    """

    def __init__(self) -> None:
        self._now = trio.lowlevel.current_clock().current_time  # two calls less than by trio.current_time
        self.step_seconds = 0.0
        self._called = 0.0  # when a reader was woken last
        self._items: deque[T] = deque()
        self._readers = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._items)

    def put(self, item: T) -> None:
        """Add an item, and wake one reader."""
        self._items.append(item)
        if self._readers and self._readers.unpark():
            self._called = self._now()

    def take(self, limit: int) -> list[T]:
        """Take the items that are there, at most `limit`."""
        return [self._items.popleft() for _ in range(min(limit, len(self._items)))]

    async def drain(self, limit: int) -> list[T]:
        """Wait for an item, then take all there are, at most `limit`."""
        if self._items:  # more may come meanwhile
            began = self._now()
            await trio.lowlevel.checkpoint()
            self.step_seconds = self._now() - began
        while not self._items:
            await self._readers.park()
            self.step_seconds = self._now() - self._called
        if len(self._items) > limit:
            taken = [self._items.popleft() for _ in range(limit)]
            self._readers.unpark()
            return taken
        taken = list(self._items)
        self._items.clear()
        return taken


class Handing(Enum):
    """How messages are handed out."""

    LEASE = "lease"
    """They come back when their leases end."""
    REMOVE = "remove"
    """They are removed at once."""
    HOLD = "hold"
    """They stay READY, and memory notes that they are held."""


HOLD: Final = Handing.HOLD  # quicker than an attribute of the enumeration
_REMOVE: Final = Handing.REMOVE


class Precedence:
    """A consumer's rank among those that wait for one queue.

    A consumer asks again and again. From an answer until its next request its place is kept: requests of a lower
    priority go on waiting.

    Args:
        priority: higher ones get messages first; 0 for requests without a precedence.
    """

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self._give_up: Callable[[], None] | None = None

    def keep_place(self, give_up: Callable[[], None]) -> None:
        """Note that a place is kept for its next request, and how to give it up."""
        self._give_up = give_up

    def step_aside(self) -> None:
        """Let others have the messages until the next request. Call it when the consumer cannot take more for now, and
        when it ends."""
        give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()


class FetchRequest:
    """A request for messages of a queue, answered by its `future`.

    Args:
        seconds: length of the lease; None for the queue's own.
        handing: what becomes of the messages.
        exclusion: the consumer's own, where it has the queue alone.
        precedence: the consumer's own; None for a request of priority 0 that no other follows.

    Attributes:
        takes, holds: whether `handing` is to remove, or to hold.
    """

    __slots__ = (
        "count",
        "exclusion",
        "future",
        "held",
        "holds",
        "index",
        "precedence",
        "protocol",
        "seconds",
        "takes",
        "waits",
    )

    def __init__(
        self,
        index: QueueIndex,
        count: int = 1,
        seconds: float | None = None,
        *,
        waits: bool = False,
        handing: Handing = Handing.LEASE,
        exclusion: object | None = None,
        precedence: Precedence | None = None,
    ) -> None:
        self.index = index
        self.count = count
        self.seconds = seconds
        self.waits = waits
        self.takes = handing is _REMOVE
        self.holds = handing is HOLD
        self.exclusion = exclusion
        self.precedence = precedence
        self.protocol = PROTOCOL.get()
        self.held: list[Entry] = []
        self.future: Future[list[Message]] = Future()

    @property
    def priority(self) -> int:
        """Higher ones get messages first."""
        return 0 if self.precedence is None else self.precedence.priority


class WaitQueue:
    """The requests that wait for messages of one queue.

    Attributes:
        nonblocking: those that are answered at once, with nothing if there is nothing.
        is_called: whether the queue's worker was called and has not looked yet.
    """

    def __init__(self) -> None:
        self.nonblocking: OrderedDict[FetchRequest, None] = OrderedDict()
        self.wanted = 0
        self.is_called = False
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []  # the priorities of the levels, the highest last: none of them is empty

    @property
    def requests(self) -> list[FetchRequest]:
        """All of them, in the order of their turns."""
        return [request for priority in reversed(self._order) for request in self._levels[priority].requests]

    @property
    def is_empty(self) -> bool:
        """Whether no request is here, and no place is kept."""
        return not self._order

    def join(self, request: FetchRequest, *, first: bool) -> None:
        """Add a request at the end of its priority's, or at the front."""
        requests = self._level(request.priority).requests
        requests[request] = None
        self.wanted += request.count
        if not request.waits:
            self.nonblocking[request] = None
        if first:
            requests.move_to_end(request, last=False)

    def first(self) -> FetchRequest | None:
        """The request whose turn it is; None without any."""
        return next(iter(self._in_turn()), None)

    def holders(self) -> list[FetchRequest]:
        """The requests that hold messages in memory, and share those that come now."""
        return [request for request in self._in_turn() if request.holds]

    def leave(self, request: FetchRequest) -> bool:
        """Remove a request. False when it was not in the wait queue."""
        self.nonblocking.pop(request, None)
        level = self._levels.get(request.priority)
        if level is None or request not in level.requests:
            return False
        del level.requests[request]
        self.wanted -= request.count
        self._drop_if_empty(request.priority, level)
        return True

    def keep_place(self, priority: int) -> None:
        """Let requests of a lower priority wait, until the place is given up."""
        self._level(priority).kept += 1

    def give_up_place(self, priority: int) -> bool:
        """Undo one :meth:`keep_place`. Returns whether requests have waited only for this."""
        level = self._levels[priority]
        level.kept -= 1
        was_last = self._order[-1] == priority
        return self._drop_if_empty(priority, level) and was_last and not self.is_empty

    def _in_turn(self) -> OrderedDict[FetchRequest, None]:
        """The requests of the highest priority. Where only a place is kept, those that do not wait, to be answered with
        nothing."""
        return (self._levels[self._order[-1]].requests if self._order else None) or self.nonblocking

    def _level(self, priority: int) -> _Level:
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
            insort(self._order, priority)
        return level

    def _drop_if_empty(self, priority: int, level: _Level) -> bool:
        if level.requests or level.kept:
            return False
        del self._levels[priority]
        self._order.remove(priority)
        return True


class _Level:
    """The requests of one priority, first come, first served, and how many places are kept for it."""

    __slots__ = ("kept", "requests")

    def __init__(self) -> None:
        self.requests: OrderedDict[FetchRequest, None] = OrderedDict()
        self.kept = 0


class Waiters:
    """The wait queues of all queues, and the channels by which their workers are called.

    Args:
        workers: how many there are. Each queue has one of them for good.
        progress: flushed after completions, which make messages READY.

    Attributes:
        queues: the wait queues that requests are in, or that a worker was called for, by the index of their queue.
        ready: queues that have messages, since the last flush, for requests that hold them in memory.
        push: called at the flush to serve these. Set by the :class:`~mq.broker.dispatch.UnackedDeliverer`.
    """

    push: Callable[[], None]

    def __init__(self, workers: int, progress: StoreProgress) -> None:
        self._progress = progress
        self.ready: deque[QueueIndex] = deque()
        self.channels: list[BatchChannel[QueueIndex]] = [BatchChannel() for _ in range(workers)]
        self.queues: dict[QueueIndex, WaitQueue] = {}
        self._is_closed = False

    def ask(self, request: FetchRequest, *, first: bool = False, is_vain: bool = False) -> None:
        """Put a request at the end of its wait queue, or back at the front. After :meth:`close` a waiting one is
        answered at once, with no message. Where it `is_vain` to look for messages now, no worker is called."""
        if self._is_closed and request.waits:
            request.future.set([])
            return
        if request.precedence is not None:
            request.precedence.step_aside()
        self._wait_queue(request.index).join(request, first=first)
        if not is_vain:
            self.call(request.index)

    def withdraw(self, request: FetchRequest) -> bool:
        """Remove a request from its wait queue. False when it is being served, or was answered."""
        wait_queue = self.queues.get(request.index)
        left = wait_queue is not None and wait_queue.leave(request)
        self._tidy(request.index)
        return left

    def keep_place(self, index: QueueIndex, precedence: Precedence | None) -> None:
        """Keep the place of a request that is being served, for the next one of its consumer."""
        if precedence is not None:
            self._wait_queue(index).keep_place(precedence.priority)
            precedence.keep_place(partial(self._give_up_place, index, precedence.priority))

    def _give_up_place(self, index: QueueIndex, priority: int) -> None:
        if self.queues[index].give_up_place(priority):
            self.call(index)
        self._tidy(index)

    def call(self, index: QueueIndex) -> None:
        """Have the requests of a queue served, if there are some: something has changed for them. That is at the end of
        this step for those that hold messages in memory, if a completion has made some READY; else a worker does it."""
        wait_queue = self.queues.get(index)
        if wait_queue is None or not wait_queue.wanted or wait_queue.is_called:
            return
        request = wait_queue.first() if self._progress.is_answering else None
        if request is None or not request.holds:
            self.call_worker(index, wait_queue)
            return
        wait_queue.is_called = True
        self.ready.append(index)
        self._progress.after[self.push] = None

    def call_worker(self, index: QueueIndex, wait_queue: WaitQueue) -> None:
        """Call the queue's worker."""
        wait_queue.is_called = True
        self.channels[zlib.crc32(index.name.encode()) % len(self.channels)].put(index)

    def next_to_lease(self, index: QueueIndex) -> FetchRequest | None:
        """The first request, removed from its wait queue to be served; None without one, or if the first holds
        messages in memory."""
        wait_queue = self.queues.get(index)
        request = wait_queue.first() if wait_queue is not None else None
        if request is None or request.holds:
            return None
        self.keep_place(index, request.precedence)
        self.withdraw(request)
        return request

    def waited_for(self) -> list[QueueIndex]:
        """The queues that requests wait for."""
        return [index for index, wait_queue in self.queues.items() if wait_queue.wanted]

    def refuse(self, index: QueueIndex, error: Exception) -> None:
        """Let every request that waits for the queue fail with `error`."""
        wait_queue = self.queues.get(index)
        for request in wait_queue.requests if wait_queue is not None else ():
            self.withdraw(request)
            request.future.fail(error)

    def close(self) -> None:
        """Answer every waiting request with no message, now and from now on."""
        self._is_closed = True
        for wait_queue in self.queues.values():
            for request in wait_queue.requests:
                if request.waits:
                    wait_queue.leave(request)
                    request.future.set([])

    def answer_call(self, index: QueueIndex) -> WaitQueue:
        """The wait queue that a called worker is to look at."""
        wait_queue = self._wait_queue(index)
        wait_queue.is_called = False
        return wait_queue

    def served(self, index: QueueIndex) -> None:
        """Note that the worker has done for the queue what it could."""
        self._tidy(index)

    def _wait_queue(self, index: QueueIndex) -> WaitQueue:
        """The queue's wait queue, which is made if it has none."""
        wait_queue = self.queues.get(index)
        if wait_queue is None:
            index.is_waited_for = True
            wait_queue = self.queues[index] = WaitQueue()
        return wait_queue

    def _tidy(self, index: QueueIndex) -> None:
        wait_queue = self.queues.get(index)
        if wait_queue is not None and wait_queue.is_empty and not wait_queue.is_called:
            del self.queues[index]
            index.is_waited_for = False
