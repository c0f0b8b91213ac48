"""Memory goes back to the operating system once clients do not need it any more.

What ended connections leave in cycles is frozen, or not looked at in a daemon without clients, and glibc keeps what was
freed in the middle of its heap. So an attack left its memory with the process for good.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from mq.doors.budget import MUCH_BYTES, Budget

QUIET_SECONDS: Final = 2.0
"""How long to wait after much was freed: more follows."""
GROWTH: Final = 1.1
"""Memory is returned once the process has this many times the memory that it had after the last return. Memory that
clients have reserved does not count."""
MOST_MESSAGES: Final = 10_000
"""With more messages, a collection of all garbage is put off: it takes 12 ms for so many, in one step."""
MOST_PUT_OFF: Final = 32
"""How often it is put off: until 256 MiB were given back, or 8,192 connections ended, each of which may have left some
20 KiB in cycles, or half an hour has passed."""
LONGEST_SECONDS: Final = 60.0
"""From one look at the memory to the next, if clients give back little."""
CALM_SECONDS: Final = 1.0
"""Seconds over which the event loop's load is measured before garbage is collected."""
CALM_SHARE: Final = 0.3
"""The largest share of a core that a calm event loop uses."""
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
MMAP_BYTES: Final = 512 * 1024
"""Blocks from this size on are mapped one by one, and so go back as soon as they are freed. Without a setting glibc
raises its own limit to 32 MiB with the first such block."""
ARENAS: Final = 2
"""Heaps of glibc for all threads together. It would make eight for each core, which keep their memory one by one."""


def limit_heaps() -> None:
    """Make glibc return large blocks, and share its heaps among threads. Other C libraries have no such call."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MMAP_BYTES)
        mallopt(_M_ARENA_MAX, ARENAS)


@asynccontextmanager
async def returning_memory(
    budget: Budget, collect_all: Callable[[], object], messages: Callable[[], int], forget: Callable[[], object]
) -> AsyncIterator[None]:
    """A block in which :func:`return_memory` runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(return_memory, budget, collect_all, messages, forget)
        yield
        nursery.cancel_scope.cancel()


async def return_memory(
    budget: Budget, collect_all: Callable[[], object], messages: Callable[[], int], forget: Callable[[], object]
) -> None:
    """Return freed memory, for ever: each time that clients have given much of it back, and now and then.

    Args:
        budget: tells when clients have given much back.
        collect_all: frees all garbage, in one step.
        messages: how many there are.
        forget: clears caches, which may also have messages of deleted queues.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    least, put_off = resident_bytes(), 0
    while True:
        with trio.move_on_after(LONGEST_SECONDS) as waiting:
            await budget.until_much_is_freed()
        await trio.sleep(QUIET_SECONDS)
        await _until_calm()
        budget.forget_freed()
        if resident_bytes() - budget.used <= GROWTH * least:
            continue  # clients have it; when they give it back, there will be more to return
        before = resident_bytes()
        forget()
        is_put_off = messages() > MOST_MESSAGES and put_off < MOST_PUT_OFF
        if is_put_off:
            put_off += 1
            if waiting.cancelled_caught:
                continue
        else:
            put_off = 0
            collect_all()
        if trim is not None:
            await trio.to_thread.run_sync(trim, 0)
        now = resident_bytes()
        if before - now > MUCH_BYTES:
            budget.note_freed(MUCH_BYTES)  # once more: what ended meanwhile was still in use
        elif not is_put_off:
            least = max(1, now - budget.used)


async def _until_calm() -> None:
    """Wait until the event loop has little to do.

    A collection is one step of the event loop. While clients keep it busy, that would delay all of them, and they use
    the freed memory again.
    """
    while True:
        before = time.thread_time()
        await trio.sleep(CALM_SECONDS)
        if time.thread_time() - before <= CALM_SHARE * CALM_SECONDS:
            return


def resident_bytes() -> int:
    """How much memory the process has."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
