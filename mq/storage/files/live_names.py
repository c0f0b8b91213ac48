"""The names below a root as they are at one instant, while its brokers go on to change them.

A listing takes time, and a message that moves meanwhile can be missed, or be seen twice. So the kernel tells of every
change (inotify), and the changes are applied to the listing in their order. The result is the folders at the last
change that was read: a state in which a kill at that instant would have left them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import inotify_simple

from mq.errors import StorageUnusable
from mq.storage.files.calls import Calls, FileKind
from mq.storage.files.layout import Layout

FLAT: Final = ("new", "delay", "remove")
QUEUES: Final = "queues"
RECORDS: Final = "state/records"
LOG: Final = "state/log"
_STATE: Final = "state"
_PARENTS: Final = (QUEUES, RECORDS, _STATE)
_FLAGS: Final = inotify_simple.flags
_APPEARED: Final = _FLAGS.CREATE | _FLAGS.MOVED_TO
_VANISHED: Final = _FLAGS.DELETE | _FLAGS.MOVED_FROM
_MASK: Final = _APPEARED | _VANISHED | _FLAGS.ONLYDIR | _FLAGS.DONT_FOLLOW


class NameEvent(NamedTuple):
    """A name came into a folder, or left it.

    Attributes:
        move: the number that both ends of a move have; 0 where it is none.
    """

    watch: int
    name: str
    appeared: bool
    is_folder: bool = False
    move: int = 0


class Overflowed(Exception):
    """Changes were lost: there were more than the kernel keeps."""


class Notifier(Protocol):
    """Tells the changes of names in folders, of all folders in one order."""

    def watch(self, path: str) -> int:
        """Tell of this folder from now on, wherever it moves; its number.

        Raises:
            OSError: it is not there, or there are too many.
        """

    def forget(self, watch: int) -> None:
        """Tell of that folder no more."""

    def changes(self) -> list[NameEvent]:
        """The changes since the last call, without waiting.

        Raises:
            Overflowed: not all of it is known.
        """

    def close(self) -> None:
        """Tell of nothing more."""


class Inotify:
    """The kernel's notifier, for a file system that only this machine changes.

    Raises:
        StorageUnusable: the machine has no more watches.
    """

    def __init__(self) -> None:
        try:
            self._inner = inotify_simple.INotify(nonblocking=True)
        except OSError as error:
            raise StorageUnusable(
                f"cannot watch the root: {error.strerror}. Raise fs.inotify.max_user_instances"
            ) from error

    def watch(self, path: str) -> int:
        return int(self._inner.add_watch(path, _MASK))

    def forget(self, watch: int) -> None:
        with contextlib.suppress(OSError):  # it went with its folder
            self._inner.rm_watch(watch)

    def changes(self) -> list[NameEvent]:
        found: list[NameEvent] = []
        for watch, mask, move, name in self._inner.read(timeout=0):
            if mask & _FLAGS.Q_OVERFLOW:
                raise Overflowed
            if mask & (_APPEARED | _VANISHED):
                found.append(NameEvent(watch, name, bool(mask & _APPEARED), bool(mask & _FLAGS.ISDIR), move))
        return found

    def close(self) -> None:
        self._inner.close()


class LiveNames:
    """The names of messages, queues and records below a root.

    Attributes:
        files: the names of files, by their folder's path below the root; a queue without messages has an empty set.
        is_half: whether a group of operations may be half done.
    """

    def __init__(self, calls: Calls, layout: Layout, notifier: Notifier) -> None:
        self.files: dict[str, set[str]] = {}
        self.removed_queues: set[str] = set()
        self.is_half = False
        self._calls = calls
        self._layout = layout
        self._notifier = notifier
        self._folders: dict[int, str] = {}
        self._watches: dict[str, int] = {}
        self._fresh: list[tuple[str, str]] = []
        self._has_listed = False

    def begin(self) -> None:
        """List everything, from nothing.

        Raises:
            StorageUnusable: there are more folders than the kernel watches.
        """
        for folder in list(self._watches):
            self._drop(folder)
        self._fresh.clear()
        self.removed_queues.clear()
        self.is_half = False
        for folder in (*FLAT, *_PARENTS):
            self._add(folder)

    def catch_up(self) -> None:
        """Apply all changes until now. The attributes are then the names at one instant, a moment ago.

        Raises:
            Overflowed: some changes are unknown: begin again.
        """
        half = self._follow()
        while half or self._has_listed:
            # A listing saw what came after the changes that were read: those up to its end are to be made, too.
            self._has_listed = False
            for folder in half:
                self._outwait_move(folder)
            half = self._follow()

    def fresh(self) -> Iterator[tuple[str, str]]:
        """Folder and name of each file that has come since the last call, and is still there."""
        fresh, self._fresh = self._fresh, []
        return (found for found in fresh if found[1] in self.files.get(found[0], ()))

    def discard(self, folder: str, name: str) -> None:
        """Leave out a name that is not a file's."""
        self.files.get(folder, set()).discard(name)

    def _follow(self) -> set[str]:
        """Apply the changes told so far. Returns folders that a name left for a place not told yet."""
        half: dict[int, str] = {}
        for watch, name, appeared, is_folder, move in self._notifier.changes():
            folder = self._folders.get(watch)
            if appeared:
                half.pop(move, None)
            elif move and folder is not None:
                half[move] = folder
            if folder is not None:
                (self._appear if appeared else self._vanish)(folder, name, is_folder)
        return set(half.values())

    def _outwait_move(self, folder: str) -> None:
        """Wait for the end of a move out of this folder, of which one half was told."""
        # The kernel tells of both ends while it holds both folders locked, and looks a name up under the same lock,
        # unless it has met it before.
        self._calls.kind(self._layout.above(f"{folder}/{os.urandom(8).hex()}"))

    def _appear(self, folder: str, name: str, is_folder: bool) -> None:
        if folder in _PARENTS:
            if is_folder and (folder != _STATE or name == _name_of(LOG)):
                self._add(f"{folder}/{name}")
        elif folder == LOG:
            self.is_half = self.is_half or name == _name_of(self._layout.half)
        elif not is_folder:
            self.files[folder].add(name)
            self._fresh.append((folder, name))
        elif folder == "remove":
            self.removed_queues.add(name)

    def _vanish(self, folder: str, name: str, is_folder: bool) -> None:
        if folder in _PARENTS:
            if is_folder:
                self._drop(f"{folder}/{name}")
        elif folder == LOG:
            self.is_half = self.is_half and name != _name_of(self._layout.half)
        else:
            self.files[folder].discard(name)
            self.removed_queues.discard(name)

    def _add(self, folder: str) -> None:
        """Watch a folder, then list it: what comes or goes meanwhile is told."""
        path = self._layout.above(folder)
        self._has_listed = True
        self._drop(folder)
        try:
            watch = self._notifier.watch(path)
            self._folders[watch], self._watches[folder] = folder, watch
            if folder not in _PARENTS and folder != LOG:
                self.files[folder] = set()
            for name, kind in self._calls.names(path):
                if kind is not FileKind.OTHER:
                    self._appear(folder, name, kind is FileKind.FOLDER)
        except (FileNotFoundError, NotADirectoryError):
            return  # it is gone again, and that is told, too
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise StorageUnusable(
                f"cannot watch {path}: {error.strerror}. Raise fs.inotify.max_user_watches"
            ) from error

    def _drop(self, folder: str) -> None:
        self.files.pop(folder, None)
        self.is_half = self.is_half and folder != LOG
        watch = self._watches.pop(folder, None)
        if watch is not None:
            del self._folders[watch]
            self._notifier.forget(watch)


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]
