"""How a call that may block is made: in a thread, so that the event loop goes on, or at once where nothing blocks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
from typing import Any, NoReturn, TypeVar

import trio

_T = TypeVar("_T")

Hop = Callable[..., Awaitable[Any]]
"""How a synchronous verb is called: in a thread, or at once where nothing can block."""


async def inline_hop(verb: Callable[..., _T], *args: object) -> _T:
    """A hop that goes nowhere, for calls that cannot block."""
    await trio.lowlevel.checkpoint()
    return verb(*args)


class _Job:
    """A call, and what became of it."""

    __slots__ = ("args", "clock", "ended", "error", "result", "task", "token", "verb")

    def __init__(self, verb: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.verb = verb
        self.args = args
        self.task = trio.lowlevel.current_task()
        self.token = trio.lowlevel.current_trio_token()
        self.clock = trio.lowlevel.current_clock()
        self.ended = 0.0
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.verb(*self.args)
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self.error = error
        self.ended = self.clock.current_time()
        with contextlib.suppress(trio.RunFinishedError):
            self.token.run_sync_soon(trio.lowlevel.reschedule, self.task)


class OwnThread:
    """A thread of a store's own, that makes one call after another. A hop to it costs less than one to Trio's threads.

    It is started when it is first needed, and finishes what it has begun, also when the caller is cancelled meanwhile.

    Args:
        name: the thread's.

    Attributes:
        is_free: every call that was asked for is answered.
        heard_late: seconds from the end of the last call until the event loop came to it. Look before anything else is
            awaited.
    """

    def __init__(self, name: str) -> None:
        self.is_free = True
        self.heard_late = 0.0
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._asked = 0

    async def hop(self, verb: Callable[..., Any], *args: object) -> Any:
        """Make the call there, after those asked for before. What it raises is raised here."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._worker.start()
        job = _Job(verb, args)
        self._asked += 1
        self.is_free = False
        self._jobs.put(job)
        await trio.lowlevel.wait_task_rescheduled(_go_on)
        self._asked -= 1
        self.is_free = self._asked == 0
        self.heard_late = trio.current_time() - job.ended
        if job.error is not None:
            raise job.error
        return job.result

    def end(self) -> None:
        """End the thread once it has made all calls, and wait for that. Another hop starts another thread."""
        thread, self._worker = self._worker, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


def _go_on(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
    """Let a cancelled caller wait for the end all the same."""
    return trio.lowlevel.Abort.FAILED  # the call was begun, so the caller has to know its outcome
