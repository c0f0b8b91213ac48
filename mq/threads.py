"""Threads that must not end unnoticed: a process whose commit thread is gone would go on, and answer nothing.

:func:`start` starts one. If it ends on an error, each task that runs :func:`watch` gets the error. Every program of mq
and every broker has such a task, and ends by it. What was acknowledged is in the store: starting anew is recovery.

This module knows nothing of the rest of mq.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import trio

logger = logging.getLogger("mq")

_lock: Final = threading.Lock()
_watchers: Final[dict[object, Callable[[ThreadDied], None]]] = {}
_unwatched: Final[list[ThreadDied]] = []
"""Threads that died while no task watched: the next one that does gets their ends."""


class ThreadDied(RuntimeError):
    """A thread has ended on an error, which is the cause: mq has a bug, or the process is short of something."""


def start(work: Callable[..., object], *args: Any, name: str) -> threading.Thread:
    """Start a thread that ends with the process at the latest.

    Args:
        work: the function that it runs. That returns when it is told to end; an error ends the tasks that watch.
    """
    thread = threading.Thread(target=_run, args=(work, args), name=name, daemon=True)
    thread.start()
    return thread


def _run(work: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        work(*args)
    except BaseException as error:  # noqa: BLE001 - also what would end a thread without a word, as SystemExit
        died(error)


def died(error: BaseException) -> None:
    """Note that this thread ends on an error. Call it in the thread, once no other waits for it any more."""
    name = threading.current_thread().name
    logger.critical("thread %s failed; mq is exiting", name, exc_info=error)
    end = ThreadDied(f"thread {name} failed: {error!r}")
    end.__cause__ = error
    with _lock:
        watchers = list(_watchers.values())
        if not watchers:
            _unwatched.append(end)
    for tell in watchers:
        tell(end)


async def watch() -> None:
    """Wait for the first thread of this process that dies, for ever.

    Raises:
        ThreadDied: one has.
    """
    ends: list[ThreadDied] = []
    has_ended, token = trio.Event(), trio.lowlevel.current_trio_token()

    def hear(end: ThreadDied) -> None:
        ends.append(end)
        has_ended.set()

    def tell(end: ThreadDied) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(hear, end)

    with _lock:
        if _unwatched:
            raise _unwatched.pop()
        _watchers[has_ended] = tell
    try:
        await has_ended.wait()
    finally:
        with _lock:
            del _watchers[has_ended]
    raise ends[0]


@contextlib.contextmanager
def hooked() -> Iterator[None]:
    """A block in which threads that others start, such as a library's, are watched as well."""

    def excepthook(args: threading.ExceptHookArgs) -> None:
        died(args.exc_value or args.exc_type())

    before, threading.excepthook = threading.excepthook, excepthook
    try:
        yield
    finally:
        threading.excepthook = before
