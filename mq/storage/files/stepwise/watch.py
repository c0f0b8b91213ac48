"""What others do to folders: as it happens, by inotify(7), or on the next look, by when a folder was changed.

:func:`watch_folders` tells of the four folders. A file is told when it is complete: when its name has been moved in, or
when its writer has closed it. Where moves are links (no atomic rename) a new name is complete at once. Queues that come
and go, and an overflow of the kernel's queue, are told as "look again at everything". A name of others' that came and
went between two looks is not told.

Nor is what this process does itself, though the kernel tells a watcher of its own changes, too. So :class:`NotedCalls`
note every change of a name in a watched folder *before* it is made, for its event may be read before the call returns;
the event removes the note. A lost note costs a look at an event. A note that is left over hides an event of others,
which the next comparison with the store finds.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final, Generic, NamedTuple, TypeVar

import inotify_simple
import trio

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.storage.files.calls import Calls, FileKind, ForwardedCalls
from mq.storage.files.folders import Folders
from mq.storage.files.layout import parse_flat, parse_leaf
from mq.storage.interface import Change, Entry

logger = logging.getLogger("mq.storage")

MOST_NOTED: Final = 1 << 16
"""Changes with events to come: four times what the kernel keeps before it drops events."""
_PAUSE_SECONDS: Final = 1.0
_GATHER_SECONDS: Final = 0.01
"""The shortest time between two looks, and so the longest until what happens is told. Events of a batch come one by
one: each would wake the event loop, and hold up the thread that makes the next. And a name that has come and gone in
that time need not be told."""
_FLAGS: Final = inotify_simple.flags
_ARRIVED: Final = int(_FLAGS.MOVED_TO | _FLAGS.CREATE)
"""The name was not there before."""
_APPEARED: Final = int(_FLAGS.MOVED_TO | _FLAGS.CLOSE_WRITE)
_VANISHED: Final = int(_FLAGS.MOVED_FROM | _FLAGS.DELETE)
_OVERFLOW: Final = int(_FLAGS.Q_OVERFLOW)
_IS_FOLDER: Final = int(_FLAGS.ISDIR)
_LOOK_AGAIN: Final = Change(None)


@asynccontextmanager
async def watch_folders(
    folders: Folders, states: frozenset[State], own: OwnChanges | None = None
) -> AsyncIterator[AsyncIterator[Change]]:
    """Changes in the folders of these states, while the block lasts.

    Args:
        states: their folders are watched.
        own: the changes of this process, which are left out; where not given, all changes are told.

    Raises:
        StorageUnusable: the machine has no more watches.
    """
    with _no_watch_is_unusable():
        notifier = inotify_simple.INotify(nonblocking=True)
    own = own or OwnChanges()
    try:
        with _no_watch_is_unusable():
            watch = _Watch(notifier, folders, states, own)
        async with aclosing(watch.changes()) as changes:
            yield changes
    finally:
        own.end()
        notifier.close()


class _Place(NamedTuple):
    """What a watch looks at."""

    state: State
    queue: str | None
    folder: str


class _Name:
    """What happened to a name in a watched folder since the last look.

    Attributes:
        present: it is there now.
        is_folder: it names a folder.
        is_own: the last change was this process's.
        passed: it was not there before, and others alone have changed it.
    """

    def __init__(self) -> None:
        self.present = self.is_folder = self.is_own = False
        self.passed = True

    def changed(self, mask: int, *, is_own: bool) -> None:
        """Note one more change; the first says whether it was there before."""
        self.present = not mask & _VANISHED
        self.is_folder = bool(mask & _IS_FOLDER)
        self.is_own = is_own
        self.passed = self.passed and not is_own


class _Watch:
    def __init__(
        self, notifier: inotify_simple.INotify, folders: Folders, states: frozenset[State], own: OwnChanges
    ) -> None:
        self._notifier = notifier
        self._folders = folders
        self._own = own
        self._places: dict[int, _Place] = {}
        self._queues: dict[str, int] = {}
        self._appeared = _APPEARED if folders.volume.mount.atomic_rename else _APPEARED | _FLAGS.CREATE
        for state in states - {State.READY}:
            self._add(None, state)
        self._queues_watch: int | None = None
        self._stale = False
        if State.READY in states:
            self._queues_watch = notifier.add_watch(
                folders.layout.queues, _FLAGS.CREATE | _VANISHED | _FLAGS.MOVED_TO | _FLAGS.ONLYDIR
            )
            self._add_queues()

    async def changes(self) -> AsyncGenerator[Change]:
        while True:
            with _no_watch_is_unusable():
                names = self._look(self._notifier.read(timeout=0))
            if self._stale:
                await self._add_queues_in_time()
                yield _LOOK_AGAIN
            for (descriptor, name), seen in names.items():
                place = self._places.get(descriptor)
                change = None if place is None else self._change(place, name, seen)
                if change is not None:
                    yield change
            await trio.sleep(_GATHER_SECONDS)
            await trio.lowlevel.wait_readable(self._notifier.fileno())

    def _look(self, events: Sequence[inotify_simple.Event]) -> dict[tuple[int, str], _Name]:
        """What happened to each name, in the order of its last change."""
        names: dict[tuple[int, str], _Name] = {}
        for descriptor, mask, _, name in events:
            place = self._places.get(descriptor)
            if place is not None:
                seen = names.pop((descriptor, name), None)
                if seen is None:
                    seen = _Name()
                    seen.passed = bool(mask & _ARRIVED)
                is_own = self._own.take(f"{place.folder}/{name}", appears=bool(mask & self._appeared))
                seen.changed(mask, is_own=is_own)
                names[descriptor, name] = seen
            elif mask & _OVERFLOW:
                for queue in list(self._queues):
                    self._forget_queue(queue)  # it may have been deleted and made again
                self._own.forget()
                self._stale = True
            elif descriptor == self._queues_watch:
                if mask & _VANISHED:
                    self._forget_queue(name)  # its folder is still watched, in remove/
                self._stale = True
        return names

    def _change(self, place: _Place, name: str, seen: _Name) -> Change | None:
        """What there is to tell of a name."""
        if seen.is_own or (seen.passed and not seen.present):
            return None
        state, queue, folder = place
        entry = parse_flat(name, state) if queue is None else parse_leaf(name, queue, state)
        if entry is not None and not (seen.present and self._is_foreign(entry, is_folder=seen.is_folder)):
            return Change(entry, seen.present)
        if seen.present:
            self._folders.skip(folder, name, "not a message")
        return None

    def _is_foreign(self, entry: Entry, *, is_folder: bool) -> bool:
        """Whether something else lies there under a message's name; not when it has left already."""
        if is_folder:
            return entry.state is not State.REMOVED
        return self._folders.calls.kind(self._folders.layout.path(entry)) is FileKind.OTHER

    async def _add_queues_in_time(self) -> None:
        """Watch the queues that are there now; without file handles, once there are some."""
        while self._stale:
            with _no_watch_is_unusable():
                try:
                    self._add_queues()
                    self._stale = False
                except OSError as error:
                    if error.errno not in (errno.EMFILE, errno.ENFILE):
                        raise
                    logger.warning("temporarily unable to scan for new queues: %s", error.strerror)
                    await trio.sleep(_PAUSE_SECONDS)

    def _add_queues(self) -> None:
        if self._queues_watch is not None:
            for queue in self._folders.queues():
                if queue not in self._queues:
                    with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # deleted again meanwhile
                        self._queues[queue] = self._add(queue, State.READY)

    def _forget_queue(self, queue: str) -> None:
        descriptor = self._queues.pop(queue, None)
        if descriptor is not None:
            self._own.ignore(self._places.pop(descriptor).folder)
            with contextlib.suppress(OSError):  # it went with its folder
                self._notifier.rm_watch(descriptor)

    def _add(self, queue: str | None, state: State) -> int:
        mask = self._appeared | _VANISHED | _FLAGS.ONLYDIR | _FLAGS.DONT_FOLLOW
        folder = self._folders.layout.folder(state, queue or "")
        descriptor: int = self._notifier.add_watch(folder, mask)
        self._places[descriptor] = _Place(state, queue, folder)
        self._own.watch(folder)  # not before: of a change that is noted an event has to come
        return descriptor


@contextlib.contextmanager
def _no_watch_is_unusable() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageUnusable(
            f"cannot watch the folders: {error.strerror}. Raise fs.inotify.max_user_instances or max_user_watches"
        ) from error


T = TypeVar("T")

GRANULARITY_NS: Final = 20_000_000
"""Two changes of a folder that are farther apart have different instants: the kernel's clock for them ticks at least a
hundred times a second."""


class KeptLook(Generic[T]):
    """The result of a look at some folders of this machine, kept until one of them changes. One thread may look while
    another one asks for what is kept.

    Args:
        folders: a change of these contradicts what is kept.
        clock_ns: wall clock, nanoseconds since 1970.
    """

    def __init__(self, calls: Calls, folders: Sequence[str], clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._calls = calls
        self._folders = folders
        self._clock_ns = clock_ns
        self._kept: tuple[list[int], T] | None = None

    def get(self) -> T | None:
        """The result of the last look; None when something may have changed since, or nothing is kept."""
        kept = self._kept
        return kept[1] if kept is not None and self._changed_ns() == kept[0] else None

    def look(self, look: Callable[[], tuple[T, bool]]) -> T:
        """Look anew.

        Args:
            look: returns the result, and whether it may be kept.
        """
        changed, began = self._changed_ns(), self._clock_ns()
        found, is_sure = look()
        # A change in the same tick as one before the look would not show.
        is_settled = all(0 <= at < began - GRANULARITY_NS for at in changed)
        self._kept = (changed, found) if is_sure and is_settled else None
        return found

    def _changed_ns(self) -> list[int]:
        """When each folder was changed; 0 for one that is not there."""
        found = []
        for folder in self._folders:
            try:
                found.append(self._calls.changed_ns(folder))
            except FileNotFoundError:
                found.append(0)
        return found


# What this process changes


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


class NotedCalls(ForwardedCalls):
    """Calls that note which names they change."""

    def __init__(self, inner: Calls, own: OwnChanges) -> None:
        super().__init__(inner)
        self._inner = inner
        self._own = own
        self.native = None  # its changes would not be noted
        self.rename, self.link, self.unlink = self._rename, self._link, self._unlink

    def _rename(self, source: str, target: str) -> None:
        self._noting([(source, False), (target, True)], lambda: self._inner.rename(source, target))

    def _link(self, source: str, target: str) -> None:
        self._noting([(target, True)], lambda: self._inner.link(source, target))

    def _unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        self._noting([(path, False)], lambda: self._inner.unlink(path, dir_fd=dir_fd))

    def _noting(self, changes: Sequence[tuple[str, bool]], call: Callable[[], None]) -> None:
        noted = self._own.note(changes)
        try:
            call()
        except OSError:
            self._own.withdraw(noted)
            raise


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
