"""Turns: how much work a task does before the other tasks run.

Every loop over messages, frames or bytes that a client can make long spends its work here: with :func:`in_turns` or
:func:`slices` around the loop, or :func:`spend` inside it. A step of the event loop that has used up its turn ends, and
other tasks run before the loop goes on. Where several tasks use up their turns at once, one of them continues in each
pass of the event loop, so that many long jobs delay a short request no more than one.

The same object, a Trio instrument, measures each pass of the event loop, in which every task that can run makes one
step: ``mq_event_loop_step_seconds``, and a log line for a step that took too long.

This module knows nothing of the rest of mq.
"""

from __future__ import annotations

import logging
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar, runtime_checkable

import trio
from trio.lowlevel import current_task

T = TypeVar("T")

logger = logging.getLogger("mq.turns")

TURN: Final = 1 << 18
"""Units of work, of some 20 ns each, that readers do in one pass of the event loop: about 5 ms of processor time, and
on a machine three times as slow still less than the 20 ms that a step may take."""
JOB: Final = TURN // 4
"""Units in the turn of a loop. To publish a message and get it takes another client some thirty passes of the event
loop, and each may hold one such turn: of 1.25 ms, so that together they stay well below 100 ms."""
FIRST: Final = JOB // 8
"""Units in the first turn of a loop that begins in a pass in which another one has used up its turn."""
BYTE: Final = 1
"""Units for a byte that Python parses or writes as text: 64 KiB a turn."""
FRAME: Final = 1 << 10
"""Units for a frame, a header line or a row, of about 10 to 20 µs: 64 a turn."""
LIGHT: Final = 1 << 9
"""Units for one of several small steps about a message, of 5 to 10 µs: 128 a turn."""
MESSAGE: Final = 1 << 12
"""Units for a message that is moved, published or delivered, of up to 80 µs: 16 a turn."""

MESSAGES_A_TURN: Final = JOB // MESSAGE
FRAMES_A_TURN: Final = TURN // FRAME
BYTES_A_TURN: Final = JOB // BYTE

PASS_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds: the upper bounds of the histogram of passes."""
LONG_STEP_SECONDS: Final = 0.1
"""A longer step is logged with the name of its task, and a longer pass without one where its steps are not measured."""
BUSY_PASSES_PER_SECOND: Final = 1000
"""While the event loop makes more passes, or spends half of its time in long ones, steps are not measured one by one:
that costs up to 5 % of a message."""
WATCH_SECONDS: Final = 60.0
"""After a long pass steps are measured for so long all the same, so that the next long one is logged with its task."""
PASSES_A_LOOK: Final = 64
"""How often the event loop looks how busy it is. A power of two."""
_QUIET_SECONDS: Final = 10.0
"""After a log line about a long step, until the next."""

CROWDED_SWITCH_SECONDS: Final = 0.0001
"""While a job lets others run: how long a thread waits for Python's lock before the event loop has to let go of it.
Beside 50 clients that list 10,000 queues, one publish in a hundred took 200 ms with 1 ms, and takes 50 ms with this."""


@runtime_checkable
class WaitClock(Protocol):
    """A clock that knows when the event loop began to wait for events.

    Attributes:
        waits_since: when that was last, by :meth:`current_time`.
    """

    waits_since: float

    def current_time(self) -> float:
        """Seconds."""


class LoopTurns(trio.abc.Instrument):
    """The turns of one event loop. Get it by :func:`of_run`, once before a loop.

    Attributes:
        passes: of the event loop so far, the present one included.
        long_passes: those of more than a millisecond, up to each of :data:`PASS_BOUNDS`, and at last longer ones.
            Durations are of the wall clock, as the other tasks see them.
    """

    __slots__ = (
        "_began",
        "_clock",
        "_ended_in",
        "_is_pacing",
        "_left",
        "_line",
        "_lines",
        "_long_before",
        "_looked",
        "_now",
        "_pass",
        "_silent_until",
        "_steps",
        "_task",
        "_unlogged",
        "_usual_switch",
        "_watches_until",
        "long_passes",
        "long_seconds",
        "passes",
    )

    def __init__(self) -> None:
        self.passes = 0
        self.long_passes = [0] * (len(PASS_BOUNDS) + 1)
        self.long_seconds = 0.0
        self._left = 0  # units of work that the present step may still do
        self._pass = -1  # that of the present step
        self._task: trio.lowlevel.Task | None = None  # its task
        self._ended_in = -1  # the pass in which a task used up its turn last
        self._line = trio.lowlevel.ParkingLot()
        self._is_pacing = False
        self._lines = 0  # of tasks that wait for their turn
        self._usual_switch = 0.0  # seconds
        self._clock: WaitClock = _Waits()
        self._now = self._clock.current_time
        self._began = self._looked = 0.0  # the present pass, and the last look at how busy the loop is
        self._long_before = 0.0  # `long_seconds` at that look
        self._steps: _Steps | None = None
        self._watches_until = float("-inf")
        self._silent_until = float("-inf")
        self._unlogged = 0

    def start(self) -> None:
        """Measure the event loop that runs here."""
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, WaitClock):
            self._clock = clock
        else:
            self._clock = waits = _Waits()
            trio.lowlevel.add_instrument(waits)
        self._now = self._clock.current_time
        self._began = self._looked = self._now()
        trio.lowlevel.add_instrument(self)
        self._measure_steps(True)

    def spend(self, units: int) -> bool:
        """Count work that is about to be done. True if the turn is used up: await :meth:`end` then."""
        task = current_task()
        if self._task is not task or self._pass != self.passes:
            self._begin_step(task)
        self._left -= units
        return self._left <= 0

    def take(self, units: int, least: int = 1) -> bool:
        """Count work that is about to be done if at least so much of the turn is left. Else False: await :meth:`end`,
        and try again."""
        task = current_task()
        if self._task is not task or self._pass != self.passes:
            self._begin_step(task)
        if self._left < least:
            return False
        self._left -= units
        return True

    def _begin_step(self, task: trio.lowlevel.Task) -> None:
        """Give the present step its turn. A task makes one step in each pass, so this needs no hook in every step."""
        self._pass, self._task = self.passes, task
        # A pass in which a turn was used up has had it: what begins a loop now does little before it waits in line.
        self._left = FIRST if self._ended_in == self.passes else JOB

    async def end(self) -> None:
        """Let other tasks run, and begin a new turn. Not cancelled in between: a loop over messages ends with all of
        them done."""
        is_alone = self._ended_in != self.passes and not self._is_pacing
        self._ended_in = self.passes
        if is_alone:
            self.begin_line()
            try:
                await trio.lowlevel.cancel_shielded_checkpoint()
            finally:
                self.end_line()
        else:
            if not self._is_pacing:
                self._is_pacing = True
                self.begin_line()
                trio.lowlevel.spawn_system_task(self._pace)
            with trio.CancelScope(shield=True):
                await self._line.park()
        self._pass, self._task, self._left = self.passes, current_task(), JOB

    def histogram(self) -> tuple[list[tuple[str, int]], float]:
        """For each bound in seconds, and at last for ``+Inf``: how many passes took no longer. And how long those of
        more than a millisecond took together."""
        found, so_far = [], self.passes - sum(self.long_passes)
        for bound, count in zip((*map(str, PASS_BOUNDS), "+Inf"), self.long_passes, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found, self.long_seconds

    async def _pace(self) -> None:
        """Let one task of those whose turn is used up go on in each pass of the event loop."""
        try:
            while self._line:
                self._line.unpark()
                await trio.lowlevel.checkpoint()
        finally:
            self._is_pacing = False
            self.end_line()

    def begin_line(self) -> None:
        """Note that jobs let others run from now on: threads, such as the store's, get Python's lock sooner.

        The interval is the process's own: with several event loops in one process, it may stay short.
        """
        # Each time the event loop looks for events it lets go of the lock, which wakes a thread that waits, and takes
        # it back before that thread runs: its wait begins anew. A loop with short passes and always more to do kept the
        # store's thread waiting for hundreds of milliseconds.
        self._lines += 1
        if self._lines == 1:
            self._usual_switch = sys.getswitchinterval()
            sys.setswitchinterval(min(CROWDED_SWITCH_SECONDS, self._usual_switch))

    def end_line(self) -> None:
        """Note that one of these jobs goes on."""
        self._lines -= 1
        if not self._lines:
            sys.setswitchinterval(self._usual_switch)

    # The instrument: one hook a pass, of some 0.5 µs. A hook in each step would cost a message twice as much.

    def after_io_wait(self, timeout: float, short: float = PASS_BOUNDS[0]) -> None:
        """Begin a pass, and end the measurement of the one before."""
        self.passes = passes = self.passes + 1
        now = self._now()
        if now - self._began > short:  # the wait included, which is short while there is much to do
            self._note_long(self._clock.waits_since if timeout > 0 else now)
        self._began = now
        if not passes % PASSES_A_LOOK:
            self._look(now)

    def _look(self, now: float) -> None:
        """Measure single steps while that costs little, or is needed to find a slow one."""
        took, long_seconds = now - self._looked, self.long_seconds - self._long_before
        is_busy = took < PASSES_A_LOOK / BUSY_PASSES_PER_SECOND or long_seconds > took / 2
        self._looked, self._long_before = now, self.long_seconds
        self._measure_steps(not is_busy or now < self._watches_until)

    def _measure_steps(self, is_wanted: bool) -> None:
        if is_wanted and self._steps is None:
            self._steps = _Steps(self._now)
            trio.lowlevel.add_instrument(self._steps)
        elif not is_wanted and self._steps is not None:
            trio.lowlevel.remove_instrument(self._steps)
            self._steps = None

    def _note_long(self, ended: float) -> None:
        """Count a pass of more than a millisecond, and log one that held up the other tasks for long."""
        took = ended - self._began
        if took <= PASS_BOUNDS[0]:
            return
        self.long_passes[bisect_left(PASS_BOUNDS, took)] += 1
        self.long_seconds += took
        if took <= LONG_STEP_SECONDS:
            return
        self._watches_until = ended + WATCH_SECONDS
        if self._steps is None:
            self._measure_steps(True)
            text = "an event loop iteration took %.0f ms; the slowest task will be logged if this happens again soon"
            logger.warning(text, took * 1000)
            return
        took, name = self._steps.longest(self._began, ended)
        if took <= LONG_STEP_SECONDS:
            return
        self._unlogged += 1
        if ended >= self._silent_until:
            text = "task %s blocked the event loop for %.0f ms (slow iterations since the last report: %d)"
            logger.warning(text, name, took * 1000, self._unlogged)
            self._unlogged, self._silent_until = 0, ended + _QUIET_SECONDS


class _Waits(trio.abc.Instrument):
    """Notes when the event loop begins to wait, where its clock does not: a second hook a pass."""

    __slots__ = ("waits_since",)

    def __init__(self) -> None:
        self.waits_since = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """Note the time."""
        self.waits_since = time.perf_counter()

    def current_time(self) -> float:
        """Seconds of a clock that tests do not set."""
        return time.perf_counter()


class _Steps(trio.abc.Instrument):
    """Finds the longest step of a pass."""

    __slots__ = ("_began", "_longest", "_now", "_task")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._task: trio.lowlevel.Task | None = None
        self._began = 0.0
        self._longest = (0.0, "")

    def after_io_wait(self, timeout: float) -> None:
        """Forget the pass before."""
        self._task, self._longest = None, (0.0, "")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """End the measurement of the step before, and begin that of this one."""
        began = self._now()
        self._end(began)
        self._began, self._task = began, task

    def longest(self, pass_began: float, ended: float) -> tuple[float, str]:
        """Seconds of the longest step in the pass that ends now, and the name of its task."""
        self._end(ended)
        self._task = None
        return self._longest

    def _end(self, ended: float) -> None:
        if self._task is not None and ended - self._began > self._longest[0]:
            self._longest = (ended - self._began, self._task.name)


_TURNS: Final[trio.lowlevel.RunVar[LoopTurns]] = trio.lowlevel.RunVar("turns")


def of_run() -> LoopTurns:
    """The turns of the event loop that runs here."""
    try:
        return _TURNS.get()
    except LookupError:
        turns = LoopTurns()
        _TURNS.set(turns)
        turns.start()
        return turns


async def spend(*, messages: int = 0, frames: int = 0, size: int = 0) -> None:
    """Count work that was just done, and let other tasks run if the turn is used up.

    Args:
        frames: and other small parts, such as rows or lines.
    """
    turns = of_run()
    if turns.spend(messages * MESSAGE + frames * FRAME + size * BYTE):
        await turns.end()


def in_turns(items: Iterable[T], units: int = MESSAGE) -> AsyncIterator[T]:
    """Iterate over items, and let other tasks run whenever a turn is used up.

    ``async for message in in_turns(messages): ...``
    """
    return _InTurns(items, units)


def slices(items: Sequence[T], units: int = MESSAGE) -> AsyncIterator[Sequence[T]]:
    """Iterate over parts of a sequence, each of which is one turn's work. Costs nothing an item.

    ``async for some in slices(messages): ...``
    """
    return _Slices(items, units)


class _InTurns(Generic[T]):
    __slots__ = ("_items", "_turns", "_units")

    def __init__(self, items: Iterable[T], units: int) -> None:
        self._items = iter(items)
        self._units = units
        self._turns = of_run()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        if not self._turns.take(self._units):
            await self._turns.end()
            self._turns.take(self._units)
        try:
            return next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None


class _Slices(Generic[T]):
    __slots__ = ("_at", "_items", "_most", "_turns", "_units")

    def __init__(self, items: Sequence[T], units: int) -> None:
        self._items = items
        self._units = units
        self._most = max(1, JOB // units)
        self._at = 0
        self._turns = of_run()

    def __aiter__(self) -> AsyncIterator[Sequence[T]]:
        return self

    async def __anext__(self) -> Sequence[T]:
        if self._at >= len(self._items):
            raise StopAsyncIteration
        some = self._items if len(self._items) <= self._most else self._items[self._at : self._at + self._most]
        self._at += len(some)
        units = len(some) * self._units
        least = min(units, JOB)
        if not self._turns.take(units, least):
            await self._turns.end()
            self._turns.take(units, least)
        return some


def parts(items: Sequence[T], most: int = MESSAGES_A_TURN) -> Iterator[Sequence[T]]:
    """The items in parts of at most `most`, for a caller whose own work on each part ends its step."""
    if len(items) <= most:
        if items:
            yield items
        return
    for at in range(0, len(items), most):
        yield items[at : at + most]


async def apart(size: int, function: Callable[[], T]) -> T:
    """Call a function here, or in a thread if its input is larger than a turn.

    It is for work in one piece, such as parsing one JSON value. Python runs one thread at a time, and changes threads
    every 5 ms only between its own instructions: a parser in C still holds the others up, so bound its input as well.

    Args:
        size: bytes of the input, or of what is written.
        function: without side effects, as the caller may be cancelled meanwhile.
    """
    if size <= BYTES_A_TURN:
        await spend(size=size)
        return function()
    return await trio.to_thread.run_sync(function)
