"""How a call that may block is made: in a thread, so that the event loop goes on, or at once where nothing blocks.

A call in a thread can tell the first of its results before it ends (:class:`EarlyResults`).
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import trio

from mq import threads, turns
from mq.storage.files.calls import Native, Step

_T = TypeVar("_T")

Hop = Callable[..., Awaitable[Any]]
"""How a synchronous verb is called: in a thread, or at once where nothing can block."""
HearResults = Callable[[Sequence[Any], float], None]
"""Called in the event loop with the next results of a call that has not ended, and with how many seconds ago they were
there."""

HopInParts = Callable[..., Awaitable[Any]]
"""As a :data:`Hop`, for a verb that gets a :class:`EarlyResults` first. It takes `hear` besides, a
:data:`HearResults`."""

TOLD_TOGETHER: Final = 16
"""Results of a call that are told together. Waking the event loop costs about as much as two small files."""
_TOLD: Final = struct.Struct("=qd")
"""What a thread writes to the event loop: how many results there are, and when that was, by :func:`time.monotonic`.
mq-native writes the same."""
_END: Final = -1
"""In place of a number: the call has ended."""
_MOST_READ: Final = 256 * _TOLD.size


async def inline_hop(verb: Callable[..., _T], *args: object) -> _T:
    """A hop that goes nowhere, for calls that cannot block."""
    await trio.lowlevel.checkpoint()
    return verb(*args)


class EarlyResults:
    """How far a call has come. The thread says which results come next if nothing is in the way, and then how many of
    them there are; they are told in their order.

    Args:
        fd: a pipe to the event loop, to which mq-native writes by itself; -1 for none.
        every: results after which it is worth telling.
        is_over: nothing is told.

    Attributes:
        expected: the results. What has been told of them does not change.
        is_over: nothing more is told, for what comes next is not as expected.
    """

    def __init__(self, fd: int = -1, every: int = TOLD_TOGETHER, *, is_over: bool = False) -> None:
        self.fd = fd
        self.every = every
        self.expected: list[Any] = []
        self.is_over = is_over

    def do(self, native: Native, steps: list[Step], expected: Sequence[Any]) -> list[int]:
        """Do steps of mq-native, one for each of these results, and tell of them on the way. Returns what they did."""
        if self.is_over:
            return native.do_steps(steps, False)
        results = self._do_telling(native, steps, expected)
        self.is_over = min(results) < 0
        return results

    def _do_telling(self, native: Native, steps: list[Step], expected: Sequence[Any]) -> list[int]:
        before = len(self.expected)
        self.expected += expected
        return native.do_steps_telling(steps, self.fd, self.every, before)

    def append(self, result: Any, *, is_expected: bool) -> None:
        """Add the next result, and tell of it in time; of nothing more once one is not as expected."""
        self.is_over = self.is_over or not is_expected
        if not self.is_over:
            self.expected.append(result)
            if len(self.expected) % self.every == 0:
                self.tell(len(self.expected))

    def tell(self, count: int) -> None:
        """Tell that there are the first so many of what is expected."""
        _write(self.fd, count)


class _Job:
    """A call, and what became of it."""

    __slots__ = ("args", "error", "result", "verb")

    def __init__(self, verb: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.verb = verb
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.verb(*self.args)
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self.error = error


class _Parts:
    """What a caller hears of a call's results before it ends."""

    def __init__(self, early: EarlyResults, hear: HearResults) -> None:
        self.error: Exception | None = None
        self._early = early
        self._hear = hear
        self._heard = 0

    async def hear(self, count: int, late_seconds: float) -> None:
        """The first so many results are there."""
        while self.error is None and count > self._heard:
            first = self._heard
            self._heard = min(count, first + TOLD_TOGETHER)
            await turns.spend(frames=(self._heard - first) // 4)
            try:
                self._hear(self._early.expected[first : self._heard], late_seconds)
            except Exception as error:  # noqa: BLE001 - it is raised when the call has ended
                self.error = error


class OwnThread:
    """A thread of a store's own, that makes one call at a time. A hop to it costs less than one to Trio's threads: its
    answer comes by a pipe, for which the caller waits itself.

    It finishes what it has begun, also when the caller is cancelled meanwhile.

    Attributes:
        is_free: it is started, and no call is under way. Ask for one only then.
        heard_late: seconds from the end of the last call until the event loop came to it. Look before anything else is
            awaited.
    """

    def __init__(self, name: str) -> None:
        self.is_free = False
        self.heard_late = 0.0
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._hearing = self._telling = -1  # the two ends of the pipe
        self._told = 0  # so many results of the call that is under way
        self._is_dead = False

    def start(self) -> None:
        """Start the thread, unless it has been, or there are no handles for its pipe."""
        if self._worker is not None:
            return
        try:
            self._hearing, self._telling = os.pipe2(os.O_CLOEXEC)
        except OSError:
            return
        self._worker = threads.start(self._work, self._telling, name=self._name)
        self.is_free = True

    async def hop(self, verb: Callable[..., Any], *args: object) -> Any:
        """Make the call there. What it raises is raised here."""
        return await self._make(_Job(verb, args))

    async def hop_in_parts(self, verb: Callable[..., Any], *args: object, hear: HearResults) -> Any:
        """As :meth:`hop`, for a call that gets its :class:`EarlyResults` before its other arguments: `hear` is called
        with those of which it tells."""
        early = EarlyResults(self._telling)
        return await self._make(_Job(verb, (early, *args)), _Parts(early, hear))

    def end(self) -> None:
        """End the thread once it has made its call, and wait for that. Another can be started then."""
        thread, self._worker = self._worker, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
            if self.is_free or self._is_dead:
                self.is_free = False
                self._close_pipe()

    async def _make(self, job: _Job, parts: _Parts | None = None) -> Any:
        assert self.is_free, "start it, and ask for one call at a time"
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._is_dead:
            raise threads.ThreadDied(f"thread {self._name} failed")
        self.is_free = False
        self._told = 0
        self._jobs.put(job)
        with trio.CancelScope(shield=True):  # the call was begun, so the caller has to know its outcome
            while not await self._has_ended():
                if parts is not None:
                    await parts.hear(self._told, self.heard_late)
        if self._worker is None:  # it was ended meanwhile
            self._close_pipe()
        else:
            self.is_free = True
        for error in (job.error, None if parts is None else parts.error):
            if error is not None:
                raise error
        return job.result

    async def _has_ended(self) -> bool:
        """Wait for what the thread tells next."""
        await trio.lowlevel.wait_readable(self._hearing)
        said = list(_TOLD.iter_unpack(os.read(self._hearing, _MOST_READ)))
        if not said:
            raise threads.ThreadDied(f"thread {self._name} failed, so the outcome of its last call is unknown")
        count, at = said[-1]
        self.heard_late = max(0.0, time.monotonic() - at)
        if count != _END:
            self._told = count
        return bool(count == _END)

    def _close_pipe(self) -> None:
        os.close(self._hearing)
        if not self._is_dead:
            os.close(self._telling)

    def _work(self, telling: int) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job.run()
                _write(telling, _END)
        except BaseException:
            self._is_dead = True
            os.close(telling)  # so the caller that waits for an answer gets the end of the file
            raise


def _write(fd: int, count: int) -> None:
    os.write(fd, _TOLD.pack(count, time.monotonic()))
