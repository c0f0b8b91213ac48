"""A thread of a store's own, that does one thing after another. A hop to it costs less than one to Trio's threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NoReturn

import trio


class _Job:
    """A call, and what became of it."""

    __slots__ = ("args", "error", "result", "task", "token", "verb")

    def __init__(self, verb: Callable[..., Any], args: tuple[object, ...]) -> None:
        self.verb = verb
        self.args = args
        self.task = trio.lowlevel.current_task()
        self.token = trio.lowlevel.current_trio_token()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.verb(*self.args)
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self.error = error
        with contextlib.suppress(trio.RunFinishedError):
            self.token.run_sync_soon(trio.lowlevel.reschedule, self.task)


class OwnThread:
    """A thread, started when it is first needed. What it has begun it finishes, whoever is cancelled meanwhile.

    Args:
        name: the thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker: threading.Thread | None = None
        self._asked = 0

    @property
    def is_free(self) -> bool:
        """Whether nothing has been asked for that is not answered."""
        return self._asked == 0

    async def hop(self, verb: Callable[..., Any], *args: object) -> Any:
        """Call it there, after what was asked for before. What it raises is raised here."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._worker is None:
            self._worker = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._worker.start()
        job = _Job(verb, args)
        self._asked += 1
        self._jobs.put(job)
        await trio.lowlevel.wait_task_rescheduled(_go_on)
        self._asked -= 1
        if job.error is not None:
            raise job.error
        return job.result

    def end(self) -> None:
        """Let it end when it has done what it was asked for, and wait for that. Who hops again starts another."""
        thread, self._worker = self._worker, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()


def _go_on(raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
    """Whoever waits is not let go before the end: what was begun has an outcome that somebody has to know."""
    return trio.lowlevel.Abort.FAILED
