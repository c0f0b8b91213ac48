"""Looks at a VSQS folder: keeps an :class:`~mq.vsqs.index.Index` equal to it, with as few listings as may be.

Where the kernel tells every change, there is one listing, and after that only what was told. Elsewhere each look is a
listing, unless the folder has not changed since the last one, and that one was made when the last change was older than
the file system's clock is coarse.
"""

from __future__ import annotations

import errno
import time
from typing import Final

from mq.storage.calls import FileKind
from mq.vsqs.index import Index
from mq.vsqs.names import parse
from mq.vsqs.system import System
from mq.vsqs.watch import Watch

POLL_SECONDS: Final = 0.05
"""How often a waiter looks where the kernel tells nothing."""
COARSE_NS: Final = 2_000_000_000
"""A change within so long before a listing may have a twin that the folder's time does not show."""
_LISTINGS: Final = 10
"""How often a folder is listed to find it at rest."""


class Look:
    """One folder.

    Args:
        system: where it lives.
        path: of the folder.
        heard: whether the kernel tells what others do there.

    Attributes:
        index: what is there, as of the last look.
        listings: how many were made.
    """

    def __init__(self, system: System, path: str, *, heard: bool) -> None:
        self.index = Index()
        self.listings = 0
        self._system = system
        self._path = path
        self._heard = heard
        self._watch: Watch | None = None
        self._known_ns: int | None = None

    def refresh(self) -> None:
        """Make the index what the folder is at some instant during this call.

        Raises:
            OSError: the folder cannot be listed.
            FolderLeft: it is not at its path any more.
        """
        try:
            if self._watch is None:
                self._watch = self._new_watch()
                if self._watch is None and self._known_ns == self._system.calls.changed_ns(self._path):
                    return
                self._list_anew()
            if self._watch is not None:
                self._hear(self._watch)
        except BaseException:
            self.close()  # what was told, or should have been listed, is lost
            raise

    def doubt(self, number: int, state: int) -> None:
        """A name was not there although the index has it: look again, and list if that does not settle it."""
        self.refresh()
        if state in self.index.states(number):
            self._list()

    def wait(self, seconds: float) -> None:
        """Until somebody may have changed the folder, or for so long. Call :meth:`refresh` before."""
        if self._watch is not None:
            self._watch.wait(seconds)
        else:
            self._system.sleep(max(0.0, min(seconds, POLL_SECONDS)))

    def fileno(self) -> int | None:
        """A descriptor that is readable when the folder has changed; None where there is none, so look now and then."""
        return self._watch.fileno() if self._watch is not None else None

    def close(self) -> None:
        """Forget what was known; the next look starts anew."""
        if self._watch is not None:
            self._watch.close()
        self._watch = None
        self._known_ns = None

    def _new_watch(self) -> Watch | None:
        if not self._heard:
            return None
        try:
            return Watch(self._path)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise
            self._heard = False  # no inotify, or no more of it: listings do the same, only slower
            return None

    def _hear(self, watch: Watch) -> None:
        events = watch.events()
        if events is None:
            self._list_anew()
            self._hear(watch)
            return
        for name, present in events:
            parsed = parse(name)
            if parsed is not None:
                (self.index.add if present else self.index.discard)(*parsed)

    def _list_anew(self) -> None:
        """List, knowing nothing of what came and went before. From here on all of that is told, where it is told."""
        self._list()
        if self._watch is not None:
            self.index.spent = max(self.index.spent, self._system.now_ns() // 1_000_000)

    def _list(self) -> None:
        """List until nothing moves meanwhile: a listing can miss a file that is being renamed."""
        calls = self._system.calls
        for _ in range(_LISTINGS):
            before = calls.changed_ns(self._path)
            now = time.time_ns()  # the clock that the kernel stamps the folder with
            names = calls.names(self._path)
            self.listings += 1
            if self._watch is not None or calls.changed_ns(self._path) == before:
                break  # whatever moves is told
        self.index.load(parsed for name, kind in names if kind is FileKind.FILE and (parsed := parse(name)))
        self._known_ns = before if abs(now - before) > COARSE_NS else None
