"""Changes of this process in the watched folders, so that its watch tells it of others only.

The kernel also tells a watcher of its own changes. So every call that changes a name in a watched folder is noted
*before* it is made, for its event may be read before the call returns; the event removes the note. A lost note costs a
look at an event. A note that is left over hides an event of others, which the next comparison with the store finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from mq.storage.files.calls import Calls, Native, Step

MOST_NOTED: Final = 1 << 16
"""Changes with events to come: four times what the kernel keeps before it drops events."""


class OwnChanges:
    """The changes of names with events that are still to come. Used by several threads.

    A change is a path and whether its name appears there (True) or vanishes (False).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._folders: set[str] = set()
        self._noted: dict[tuple[str, bool], int] = {}

    def watch(self, folder: str) -> None:
        """Note changes in that folder from now on."""
        with self._lock:
            self._folders.add(folder)

    def ignore(self, folder: str) -> None:
        """Note no more changes there: no event of them will come."""
        with self._lock:
            self._folders.discard(folder)
            for change in [change for change in self._noted if _folder(change[0]) == folder]:
                del self._noted[change]

    def forget(self) -> None:
        """Forget all changes: the kernel has dropped events."""
        with self._lock:
            self._noted.clear()

    def end(self) -> None:
        """Note nothing more: the watch has ended."""
        with self._lock:
            self._folders.clear()
            self._noted.clear()

    def note(self, changes: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """Note changes that are about to be made. Returns those that were noted, for :meth:`withdraw`."""
        if not self._folders:
            return []
        with self._lock:
            noted = [change for change in changes if _folder(change[0]) in self._folders]
            if len(self._noted) > MOST_NOTED:
                self._noted.clear()
            for change in noted:
                self._noted[change] = self._noted.get(change, 0) + 1
        return noted

    def withdraw(self, changes: Sequence[tuple[str, bool]]) -> None:
        """Take back notes of changes that were not made, as far as they were noted."""
        for path, appears in changes:
            self.take(path, appears=appears)

    def take(self, path: str, *, appears: bool) -> bool:
        """Whether an event is of this process's own doing. Removes its note."""
        change = (path, appears)
        with self._lock:
            count = self._noted.get(change, 0)
            if count > 1:
                self._noted[change] = count - 1
            elif count:
                del self._noted[change]
        return count > 0


class NotedCalls:
    """Calls that note which names they change.

    Args:
        inner: makes them.
        own: has the notes.
    """

    def __init__(self, inner: Calls, own: OwnChanges) -> None:
        self._inner = inner
        self._own = own
        self.native: Native | None = None if inner.native is None else _NotedNative(inner.native, own)
        self.open, self.close = inner.open, inner.close
        self.read, self.write = inner.read, inner.write
        self.read_at, self.write_at, self.write_in_place = inner.read_at, inner.write_at, inner.write_in_place
        self.fdatasync, self.fsync, self.syncfs = inner.fdatasync, inner.fsync, inner.syncfs
        self.file_size, self.changed_ns, self.kind = inner.file_size, inner.changed_ns, inner.kind
        self.mkdir, self.rmdir, self.names = inner.mkdir, inner.rmdir, inner.names
        self.ownership, self.lock = inner.ownership, inner.lock
        self.set_attribute, self.get_attribute = inner.set_attribute, inner.get_attribute

    def rename(self, source: str, target: str) -> None:
        """Move a name; EEXIST, and nothing done, where the target is taken."""
        self._noting([(source, False), (target, True)], lambda: self._inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        """The system call of that name."""
        self._noting([(target, True)], lambda: self._inner.link(source, target))

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        """The system call of that name."""
        self._noting([(path, False)], lambda: self._inner.unlink(path, dir_fd=dir_fd))

    def _noting(self, changes: Sequence[tuple[str, bool]], call: Callable[[], None]) -> None:
        noted = self._own.note(changes)
        try:
            call()
        except OSError:
            self._own.withdraw(noted)
            raise


class _NotedNative:
    def __init__(self, inner: Native, own: OwnChanges) -> None:
        self._inner = inner
        self._own = own
        self.read_files = inner.read_files

    def do_steps(self, steps: list[Step], keep: bool, /) -> list[int]:
        changes = [_changes_of(step) for step in steps]
        self._own.note([change for each in changes for change in each])
        results = self._inner.do_steps(steps, keep)
        for each, result in zip(changes, results, strict=True):
            if result < 0:
                self._own.withdraw(each)
        return results


def _changes_of(step: Step) -> list[tuple[str, bool]]:
    """The names that a step changes. A written file is told when it is closed, as others' are."""
    if len(step) == 2:  # a move
        return [(step[0], False), (step[1], True)]
    return [(step[0], False)] if len(step) == 1 else []


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
