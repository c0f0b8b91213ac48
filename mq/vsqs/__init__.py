"""VSQS, the Very Simple Queueing System: a folder that programs share as a FIFO queue, with no daemon.

Any number of processes open the same folder and publish, receive and delete. A message is handed out for a visibility
timeout. Its receiver deletes it when the work is done; a message that is not deleted in time comes back, at its old
place::

    with Queue("/var/spool/letters") as queue:
        queue.publish(b"hello")
        with queue.receive(visibility_timeout=30) as message:
            print(message.body)  # deleted at the end of the block, given back when it raises

This file has :class:`Queue` and :class:`Message`. It is synchronous and needs nothing but the standard library. Below:

* ``system``: what VSQS needs of an operating system: calls, clock, inotify; and its errors as mq's.
* ``file_names``: the names of files, which are the states of messages, and how they are changed durably.
* ``view``: what the folder holds, kept in memory with as few listings as possible.
* ``publisher``: a message written, synced and named; files of dead publishers removed.
* ``receiver``: the first message hidden, given back, removed; expired ones requeued.
* ``trio``: the same queue for Trio.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from types import TracebackType
from typing import Final

from mq.errors import InvalidSetting, StorageUnusable
from mq.storage.files.mount import Mount
from mq.vsqs.file_names import FolderNames, make_folder, parse_id
from mq.vsqs.publisher import ALONE_SECONDS, FolderPublisher, Orphans, QueueFull
from mq.vsqs.receiver import FolderReceiver, HiddenMessage
from mq.vsqs.system import System, told
from mq.vsqs.view import FolderView

__all__ = ["Message", "Queue", "QueueFull"]

logger = logging.getLogger("mq.vsqs.mount")

VISIBILITY_SECONDS: Final = 10.0
LONGEST_VISIBILITY_SECONDS: Final = 10**9
_LONGEST_WAIT_SECONDS: Final = 60.0
"""So that a waiter notices a clock that was set."""

_TWO_NAMES: Final = (
    "where a rename may not survive a crash. mq therefore links, syncs and unlinks each message, so a "
    "message has two names for a moment. A program that follows only the VSQS specification may receive it a "
    "second time"
)


class Message:
    """A message that was handed out. As a context manager it is deleted at the end, and released on an error.

    Attributes:
        id: names it until it is deleted, in every process.
        body: the published bytes.
        expires_ms: when it becomes visible again, milliseconds since 1970.
    """

    def __init__(self, queue: Queue, taken: HiddenMessage) -> None:
        self.id = str(taken.number)
        self.body = taken.body
        self.expires_ms = taken.expiry_ms
        self._queue = queue
        self._settled = False

    def delete(self) -> bool:
        """Remove it: the work is done. As :meth:`Queue.delete` with its id."""
        self._settled = True
        return self._queue.delete(self.id)

    def release(self) -> bool:
        """Give it back for another receiver. As :meth:`Queue.release`."""
        self._settled = True
        return self._queue.release(self)

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._settled:
            return
        if error is None:
            self.delete()
        else:
            self.release()


class Queue:
    """One folder. Not to be shared between threads: give each its own. A fork may go on with it.

    Args:
        path: of the folder; it *is* the queue.
        capacity: how many messages it may hold, those being processed included; None for no bound. Each publisher
            keeps to its own, and several that meet at the last place may all be refused.
        create: make the folder when it is not there.

    Attributes:
        caution: a warning about this folder's file system, for programs that follow the text alone; mostly empty. It is
            in the log, too, once for each folder.

    Raises:
        NoSuchQueue: the folder is not there.
        StorageUnusable: it may not be used, or lies on a file system that ignores syncs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        create: bool = False,
        system: System = System(),  # noqa: B008 - it holds nothing that changes
    ) -> None:
        if capacity is not None and capacity < 1:
            raise InvalidSetting(f"capacity must be at least 1, got {capacity}")
        self._system = system
        self._path = os.path.realpath(path)
        if create:
            make_folder(system.calls, self._path)
        mount = _usable_mount(system, self._path)
        self.caution = "" if mount.atomic_rename else f"{self._path} is on {mount.kind}, {_TWO_NAMES}"
        if self.caution:
            _say_once(self.caution)
        self._names = FolderNames(system.calls, self._path, by_rename=mount.atomic_rename)
        self._view = FolderView(system, self._path, heard=mount.kind in system.heard)
        self._orphans = Orphans(system, self._names, self._view)
        self._publisher = FolderPublisher(system, self._names, self._view, self._orphans, capacity)
        self._consumer = FolderReceiver(system, self._names, self._view)
        self._pid = os.getpid()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder. What was received stays hidden until it expires."""
        self._view.close()
        self._names.close()

    def publish(self, body: bytes) -> str:
        """Add a message at the end. It is on the disk when this returns.

        Returns:
            Its id.

        Raises:
            QueueFull: the capacity is reached.
            StorageFull: no room just now. Nothing was published.
            StorageFailed: the disk failed. Whether it was published is unknown.
        """
        with self._names.told():
            self._mind_fork()
            return str(self._publisher.publish(body))

    def receive(self, visibility_timeout: float = VISIBILITY_SECONDS, timeout: float | None = None) -> Message | None:
        """Take the first message. It is durably hidden from all receivers when this returns.

        Args:
            visibility_timeout: seconds until it comes back, counted from just before it is hidden; rounded up to
                whole milliseconds.
            timeout: how many seconds to wait for one; None for ever, 0 not at all.

        Returns:
            None when there was none in that time.
        """
        if not 0 < visibility_timeout <= LONGEST_VISIBILITY_SECONDS:
            raise InvalidSetting(
                f"visibility_timeout must be more than 0 and at most {LONGEST_VISIBILITY_SECONDS} seconds, "
                f"got {visibility_timeout}"
            )
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            message = self._receive_now(visibility_timeout)
            left = deadline - time.monotonic()
            if message is not None or left <= 0:
                return message
            self._view.wait(min(left, self.patience_seconds()))

    def _receive_now(self, visibility_seconds: float) -> Message | None:
        with self._names.told():
            self._mind_fork()
            taken = self._consumer.take(visibility_seconds)
            if taken is not None:
                return Message(self, taken)
            self._orphans.sweep()  # when there is nothing else to do
            return None

    def release(self, message: Message) -> bool:
        """Give back a message that was received here or elsewhere, to its old place, before its time runs out.

        Returns:
            False when its time had run out, or it was deleted; nothing was changed.
        """
        with self._names.told():
            self._mind_fork()
            return self._consumer.release(parse_id(message.id), message.expires_ms)

    def delete(self, id: str) -> bool:
        """Remove a message durably, received here or elsewhere, even after its visibility timeout.

        Returns:
            False when there is none: it was deleted before, or never published.

        Raises:
            InvalidId: `id` names no message.
        """
        number = parse_id(id)
        with self._names.told():
            self._mind_fork()
            return self._consumer.remove(number)

    def size(self) -> int:
        """How many messages there are, ready ones and those being processed."""
        with told(self._path):
            self._mind_fork()
            self._view.refresh()
            return len(self._view.index)

    def fileno(self) -> int | None:
        """A descriptor that is readable when the folder has changed since the last call; None where there is none.

        For event loops: call ``receive(timeout=0)``, then wait for this, but no longer than :meth:`patience_seconds`.
        """
        return self._view.fileno()

    def patience_seconds(self) -> float:
        """How long to wait for :meth:`fileno` before the next try: until the next message expires, at the latest."""
        seconds = _LONGEST_WAIT_SECONDS
        expiry_ms = self._view.index.next_expiry()
        if expiry_ms is not None:
            seconds = min(seconds, (expiry_ms + 1) / 1e3 - self._system.now_ns() / 1e9)
        if self._view.index.new:
            seconds = min(seconds, ALONE_SECONDS)
        return max(0.0, seconds)

    def _mind_fork(self) -> None:
        """Start anew in the child of a fork."""
        # Parent and child would share one inotify queue, and each event reaches only the first reader.
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._view.close()


@functools.lru_cache(maxsize=256)
def _say_once(caution: str) -> None:
    logger.warning("%s", caution)


def _usable_mount(system: System, path: str) -> Mount:
    with told(path):
        mount = system.mount(path)
    if mount.flaw:
        raise StorageUnusable(f"{path} {mount.flaw}")
    return mount
