"""The lock between a broker and the programs mq-mover and mq-reaper, which hold no other lock; and locks that are only
tried."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from mq.message import shorten
from mq.storage.files.calls import NO_HANDLES, Calls
from mq.storage.files.format import is_in_use, open_moves_lock
from mq.storage.files.layout import Layout
from mq.storage.files.ownership import RootBusy


@contextlib.contextmanager
def nobody_moves(calls: Calls, layout: Layout, root: str) -> Iterator[None]:
    """Keep mq-mover and mq-reaper away for the length of the block.

    Raises:
        RootBusy: one of them is running.
    """
    # Where moves are made by links, one of them would take a repair for a racer that has won the message, and remove
    # the name that was meant to stay.
    fd = lock_moves(calls, layout, root)
    try:
        yield
    finally:
        calls.close(fd)


def lock_moves(calls: Calls, layout: Layout, root: str) -> int:
    """Keep mq-mover and mq-reaper away for as long as the handle is open.

    Raises:
        RootBusy: one of them is running.
    """
    fd = open_moves_lock(calls, layout, make=True)
    try:
        calls.lock(fd, exclusive=True)
    except OSError as error:
        calls.close(fd)
        if not isinstance(error, BlockingIOError):
            raise
        raise RootBusy(
            f"root {shorten(root)} cannot be repaired while mq-mover or mq-reaper is running: stop these programs first"
        ) from error
    return fd


def try_lock(calls: Calls, opens: Callable[[], int], handles: list[int], *, exclusive: bool) -> bool:
    """Take a lock without waiting. Returns False if another process has it.

    Args:
        opens: opens its file.
        handles: gets the open file.
    """
    try:
        handles.append(fd := opens())
    except FileNotFoundError:
        return True  # no daemon has ever been here
    try:
        calls.lock(fd, exclusive=exclusive)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def unrepaired(calls: Calls, layout: Layout) -> Iterator[bool]:
    """Whether mq-mover or mq-reaper may move messages now, and for the length of the block."""
    try:
        fd = open_moves_lock(calls, layout, make=False)
    except OSError as error:  # no broker's root, or not for this user; or no handle is free just now
        yield error.errno not in NO_HANDLES and not is_in_use(calls, layout)
        return
    try:
        calls.lock(fd, exclusive=False)
        free = not is_in_use(calls, layout)
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        calls.close(fd)
