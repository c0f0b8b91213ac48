"""Readers: the connections of all listeners take turns at being read, by the work that their bytes make.

Trio runs every task that can run in each pass of the event loop, so a pass takes as long as the work of all connections
that have sent something. Therefore readers share a bounded amount of work in each pass. While that is enough for all of
them, it costs them two comparisons. When it is not, they wait in a line, and their bytes stay in the kernel, where
waiting costs least. The connection that has had the least work done goes first: start-time fair queueing, with each
connection as a flow. So a connection that sends little is not behind those that send without end, however many there
are; and of those each gets the same.

One step of a reader ends with its turn, as every long loop does (:mod:`mq.turns`).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

import trio

from mq import turns

SHARE: Final = turns.TURN // 2
"""Units of work for all readers together in one pass of the event loop, but for the turn that goes beyond."""
SHORT_TURN: Final = turns.TURN // 4
"""Units of one reader's turn while others wait. One that is alone has a whole turn: it ends its step less often."""
REQUEST: Final = turns.MESSAGE
"""Units for one request over HTTP on the fast path, from its head to its answer: 32 a pass."""
FULL_REQUEST: Final = 4 * turns.MESSAGE
"""The same on the full path: 8 a pass."""
COMMAND: Final = turns.MESSAGE
"""Units for one command over AMQP that is neither a message nor an acknowledgement."""
CONNECTION: Final = 4 * turns.MESSAGE
"""Units for a new connection: 8 a pass."""
ACCEPTING: Final = 16
"""The weight of a listener: one reader that acts for all clients that connect."""
HANDSHAKE: Final = 8 * turns.MESSAGE
"""Units for the server's part of a TLS handshake: 4 a pass."""


class Readers:
    """All readers of one event loop. Get it by :func:`of_run`.

    Attributes:
        left: units of work that readers may still begin in this pass.
        line: readers that wait: the virtual time at which their turn will end, number, the time at which it begins,
            units, task. The least comes first.
        now: the virtual time, which goes on while readers wait: how much work each of them has had done.
    """

    def __init__(self) -> None:
        self.left = SHARE
        self.line: list[tuple[int, int, int, int, trio.lowlevel.Task]] = []
        self.now = 0
        self._turns = turns.of_run()
        self._pass = -1  # to which `left` belongs
        self._came = 0
        self._is_serving = False

    def take(self, units: int = 0) -> bool:
        """Count work of a reader that may begin now: there is room in this pass, and no other waits for it. Else
        False."""
        if self.line:
            return False
        if self._pass != self._turns.passes:
            self._pass, self.left = self._turns.passes, SHARE
        if self.left <= 0:
            return False
        self.left -= units
        return True

    async def wait(self, start: int, end: int, units: int) -> None:
        """Wait for room in a pass.

        Args:
            start: when its turn begins, in virtual time.
            units: of work that the reader will do. They are counted when it begins.
        """
        if not self._is_serving:
            self._is_serving = True
            self._turns.begin_line()
            trio.lowlevel.spawn_system_task(self._serve)
        self._came += 1
        # By the end, not the begin: of two that are due, the one with less to do goes first.
        place = (end, self._came, start, units, trio.lowlevel.current_task())
        heappush(self.line, place)

        def leave(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self.line.remove(place)
            heapify(self.line)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    async def _serve(self) -> None:
        """Let as many readers begin as each pass has room for, until the line is empty."""
        try:
            while self.line:
                await trio.lowlevel.checkpoint()
                if self._pass != self._turns.passes:  # a turn that went beyond the pass before is made up for
                    self._pass, self.left = self._turns.passes, min(SHARE, self.left + SHARE)
                while self.line and self.left > 0:
                    _, _, start, units, task = heappop(self.line)
                    self.now = max(self.now, start)
                    self.left -= units
                    trio.lowlevel.reschedule(task)
        finally:
            self._is_serving = False
            self._turns.end_line()


_READERS: Final[trio.lowlevel.RunVar[Readers]] = trio.lowlevel.RunVar("readers")


def of_run() -> Readers:
    """The readers of the event loop that runs here."""
    try:
        return _READERS.get()
    except LookupError:
        readers = Readers()
        _READERS.set(readers)
        return readers


class Reader:
    """One connection, or one listener, that takes turns with the others.

    A loop over what comes begins each turn by :meth:`begin_at_once` or :meth:`begin`, does at most :attr:`turn`
    and counts it by :meth:`spend`; or it cuts what has come into pieces of at most :attr:`next_turn`, and says how much
    work the next one makes.
    Other tasks of the connection :meth:`pay` for theirs.

    Args:
        weight: it gets so many times the work of another reader.

    Attributes:
        turn: units of work in this turn.
        pay_at_once: counts so many units of work that may be done now. False if they have to wait: await :meth:`pay`
            then.
    """

    __slots__ = ("_paid", "_readers", "_start", "_used", "_weight", "pay_at_once", "turn")

    def __init__(self, weight: int = 1) -> None:
        self._readers = of_run()
        self._weight = weight
        self._start = 0  # the virtual time at which its next turn begins, if others wait
        self._used = 0  # in this turn
        self._paid = 0  # of this turn, in advance
        self.turn = turns.TURN
        self.pay_at_once = self._readers.take

    @property
    def next_turn(self) -> int:
        """Units of work in a turn that begins now."""
        return turns.TURN if self._readers.take() else SHORT_TURN

    def begin_at_once(self) -> bool:
        """Begin a turn if it is this reader's. Else False: await :meth:`begin` then."""
        if not self._readers.take():
            return False
        self._start -= self._paid
        self._used = self._paid = 0
        self.turn = turns.TURN
        return True

    async def begin(self, units: int | None = None) -> None:
        """Begin a turn, once it is this reader's. A checkpoint if it has to wait.

        Args:
            units: of its work; None while that is not known. A connection that has just begun would else be ahead of
                those with little work, and a crowd that connects again and again always.
        """
        if self.begin_at_once():
            return
        self._start -= self._paid
        self._paid = min(self._used, SHORT_TURN) if units is None else units  # else about as much as in the turn before
        self._used, self.turn = 0, SHORT_TURN
        await self._wait(self._paid)

    def spend(self, units: int) -> None:
        """Count work of this turn."""
        self._used += units
        if self._paid:
            advance = min(units, self._paid)
            self._paid -= advance
            units -= advance
        self._readers.left -= units
        if self._readers.line:
            self._start += units

    async def pay(self, units: int) -> None:
        """Wait until so much work may be done. A checkpoint if it has to wait."""
        if not self.pay_at_once(units):
            await self._wait(units)

    async def _wait(self, units: int) -> None:
        # While there was room for all, nothing was counted: what a reader used then is not held against it.
        start = max(self._start, self._readers.now)
        self._start = start + units // self._weight
        await self._readers.wait(start, self._start, units)
