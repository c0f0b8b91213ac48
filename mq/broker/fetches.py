"""Who wants messages of which queue, in the order in which they came.

A fetch stands in its queue's line until it is served, until it is clear that there is nothing for it now, or, when it
is willing to wait, until it goes away. Nobody polls: a line is looked at when somebody joins it and when a message is
ready.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict

from mq.broker.index import QueueIndex
from mq.broker.mailbox import Mailbox, Reply
from mq.lifecycle import DOOR
from mq.message import Message
from mq.storage.interface import Entry


class FetchRequest:
    """Somebody wants messages of a queue.

    Args:
        index: the queue.
        count: how many at the most.
        seconds: length of the lease; None for what the queue says.
        waits: whether to wait when there is none.
        takes: remove the message instead of leasing it.
        holds: let it be where it is, and know only in memory that somebody has it.
        exclusion: by which the queue may be this consumer's alone.
    """

    __slots__ = ("count", "door", "exclusion", "held", "holds", "index", "reply", "seconds", "takes", "waits")

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
        self.reply: Reply[list[Message]] = Reply()


class Line:
    """One queue's fetches.

    Attributes:
        requests: first come, first served.
        impatient: those that do not wait.
        wanted: how many messages they want together.
        is_called: whether a worker has been told to look at it.
    """

    def __init__(self) -> None:
        self.requests: OrderedDict[FetchRequest, None] = OrderedDict()
        self.impatient: OrderedDict[FetchRequest, None] = OrderedDict()
        self.wanted = 0
        self.is_called = False

    def join(self, request: FetchRequest, *, first: bool) -> None:
        """At the end, or at the front."""
        self.requests[request] = None
        self.wanted += request.count
        if not request.waits:
            self.impatient[request] = None
        if first:
            self.requests.move_to_end(request, last=False)

    def first(self) -> FetchRequest | None:
        """Whose turn it is."""
        return next(iter(self.requests), None)

    def leave(self, request: FetchRequest) -> bool:
        """False when it was not in the line."""
        self.impatient.pop(request, None)
        if request not in self.requests:
            return False
        del self.requests[request]
        self.wanted -= request.count
        return True


class Fetches:
    """The lines of all queues, and the workers that serve them.

    Args:
        workers: how many there are; a queue is always the same one's.
    """

    def __init__(self, workers: int) -> None:
        self.mailboxes: list[Mailbox[QueueIndex]] = [Mailbox() for _ in range(workers)]
        self._lines: dict[QueueIndex, Line] = {}
        self._is_closed = False

    def ask(self, request: FetchRequest, *, first: bool = False) -> None:
        """Join the line: at its end, or again at its front. Nobody waits once that is over."""
        if self._is_closed and request.waits:
            request.reply.set([])
            return
        self._lines.setdefault(request.index, Line()).join(request, first=first)
        self.call(request.index)

    def withdraw(self, request: FetchRequest) -> bool:
        """Leave the line. False when it is not in it any more: being served, or answered."""
        line = self._lines.get(request.index)
        left = line is not None and line.leave(request)
        self._tidy(request.index)
        return left

    def call(self, index: QueueIndex) -> None:
        """Something has changed for those who wait for this queue, if anybody does."""
        line = self._lines.get(index)
        if line is not None and not line.is_called:
            line.is_called = True
            self.mailboxes[zlib.crc32(index.name.encode()) % len(self.mailboxes)].put(index)

    def next_to_lease(self, index: QueueIndex) -> FetchRequest | None:
        """The first of the line, who leaves it to be served; None when nobody is there, or who is holds messages."""
        line = self._lines.get(index)
        request = line.first() if line is not None else None
        if request is None or request.holds:
            return None
        self.withdraw(request)
        return request

    def wanted(self, index: QueueIndex) -> int:
        """How many messages those in the line want."""
        line = self._lines.get(index)
        return 0 if line is None else line.wanted

    def waited_for(self) -> list[QueueIndex]:
        """The queues in whose lines somebody stands."""
        return [index for index, line in self._lines.items() if line.wanted]

    def refuse(self, index: QueueIndex, error: Exception) -> None:
        """Whoever stands in this line gets that for an answer."""
        line = self._lines.get(index)
        for request in list(line.requests) if line is not None else ():
            self.withdraw(request)
            request.reply.fail(error)

    def close(self) -> None:
        """Whoever waits for messages waits no longer, and gets none."""
        self._is_closed = True
        for line in self._lines.values():
            for request in list(line.requests):
                if request.waits:
                    line.leave(request)
                    request.reply.set([])

    def answer_call(self, index: QueueIndex) -> Line:
        """The line of a queue whose worker was called."""
        line = self._lines.setdefault(index, Line())
        line.is_called = False
        return line

    def served(self, index: QueueIndex) -> None:
        """The worker is through with this line for now."""
        self._tidy(index)

    def _tidy(self, index: QueueIndex) -> None:
        line = self._lines.get(index)
        if line is not None and not line.requests and not line.is_called:
            del self._lines[index]
