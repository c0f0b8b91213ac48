"""The instrument of these tests: what each step of the event loop costs, in processor time or in counted work."""

from __future__ import annotations

import gc
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import trio


class Steps(trio.abc.Instrument):
    """Measures each step of every task but the test's own, and those below its clients' nurseries.

    Attributes:
        longest: seconds of this thread's processor time that a step has used, the most.
        longest_pass: the same of all steps in one pass of the event loop: another client waits for some thirty of them.
        calls_of: the functions that a step of each task has called, the most, where they are counted: of Python and of
            C. Tasks are known by their names.
    """

    def __init__(self, *, counts: bool = False) -> None:
        self.longest = self.longest_pass = self._pass = 0.0
        self.task = ""
        self.calls_of: Counter[str] = Counter()
        self.steps = 0
        self.total = 0.0
        self._counts = counts
        self._clients = {trio.lowlevel.current_task()}
        self._called = 0
        self._began = 0.0
        self.since: float | None = None

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._clients:
            return
        if self._counts:
            self._called = 0
            sys.setprofile(self._call)
        self.since = time.perf_counter()
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self._began
        self.since = None
        if task in self._clients:
            return
        if self._counts:
            sys.setprofile(None)
            self.calls_of[task.name] = max(self.calls_of[task.name], self._called)
        self.steps += 1
        self.total += took
        self._pass += took
        if took > self.longest:
            self.longest, self.task = took, task.name

    def before_io_wait(self, timeout: float) -> None:
        self.longest_pass = max(self.longest_pass, self._pass)
        self._pass = 0.0

    def _call(self, frame: Any, event: str, argument: Any) -> None:
        self._called += event in ("call", "c_call")


@contextmanager
def measured(*, counts: bool = False) -> Iterator[Steps]:
    """Measure the steps of the block. What garbage collection takes is not the job's."""
    gc.collect()
    gc.disable()
    steps = Steps(counts=counts)
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)
        gc.enable()


@contextmanager
def explained(steps: Steps, seconds: float = 0.02) -> Iterator[Counter[str]]:
    """Where this thread was in steps that took longer: for the author of a loop, not for a test."""
    found: Counter[str] = Counter()
    me, is_over = threading.get_ident(), threading.Event()

    def watch() -> None:
        while not is_over.wait(0.004):
            since = steps.since
            if since is not None and time.perf_counter() - since > seconds:
                with suppress(KeyError):
                    stack = traceback.extract_stack(sys._current_frames()[me])
                    ours = [
                        f"{each.filename.rpartition('/mq/')[2]}:{each.lineno}"
                        for each in stack
                        if "/mq/" in each.filename
                    ]
                    found[" > ".join(ours[-4:])] += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        watcher.join()
