"""What a VSQS folder holds, in memory: a :class:`FolderView` keeps an :class:`Index` equal to it.

Where the kernel tells every change, one listing is enough; after that only events are read. Elsewhere each refresh is a
listing, unless the folder's time of change is that of the last listing and can be trusted: it was older then than the
granularity of the file system's clock.
"""

from __future__ import annotations

import errno
import heapq
import time
from collections.abc import Iterable
from typing import Final

from mq.storage.files.calls import FileKind
from mq.vsqs.file_names import NEW, READY, parse
from mq.vsqs.system import FolderWatch, System

POLL_SECONDS: Final = 0.05
"""How often a waiter looks where the kernel tells nothing."""
COARSE_NS: Final = 2_000_000_000
"""A listing proves nothing of a folder that changed so shortly before: a second change can have the same time."""
_LISTINGS: Final = 10
"""How often a folder is listed to find it at rest."""


class FolderView:
    """Keeps an index equal to one folder.

    Attributes:
        index: what is there, as of the last look.
    """

    def __init__(self, system: System, path: str, *, heard: bool) -> None:
        self.index = Index()
        self.listings = 0
        self._system = system
        self._path = path
        self._heard = heard
        self._watch: FolderWatch | None = None
        self._known_ns: int | None = None

    def refresh(self) -> None:
        """Make the index what the folder is at some instant during this call.

        Raises:
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
        """Check a name that was not there although the index has it: refresh, and list if it stays in the index."""
        self.refresh()
        if state in self.index.states(number):
            self._list()

    def wait(self, seconds: float) -> None:
        """Wait until the folder may have changed, or for `seconds`. Call :meth:`refresh` before."""
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

    def _new_watch(self) -> FolderWatch | None:
        if not self._heard:
            return None
        try:
            return FolderWatch(self._path)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise
            self._heard = False  # no inotify, or no more of it: listings do the same, only slower
            return None

    def _hear(self, watch: FolderWatch) -> None:
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
        """List without any knowledge of what came and went before."""
        self._list()
        if self._watch is not None:  # from here on events tell of every number that is used
            self.index.spent = max(self.index.spent, self._system.now_ns() // 1_000_000)

    def _list(self) -> None:
        """List until the folder stays unchanged meanwhile."""
        # A listing can miss a file that is being renamed.
        calls = self._system.calls
        for _ in range(_LISTINGS):
            before = calls.changed_ns(self._path)
            now = time.time_ns()  # the clock that the kernel stamps the folder with
            names = calls.names(self._path)
            self.listings += 1
            if self._watch is not None or calls.changed_ns(self._path) == before:
                break  # a watch tells of what moves
        self.index.load(parsed for name, kind in names if kind is FileKind.FILE and (parsed := parse(name)))
        self._known_ns = before if abs(now - before) > COARSE_NS else None


class Index:
    """Messages by number and state, as of the last look at the folder.

    A message has one name, except that a crash or a race can leave it two for a while where names are moved by links.

    Attributes:
        new: numbers of files that are being published, or were when their publisher died.
        highest: the highest number that was ever seen; -1 when none was.
        spent: no number up to this one is free: a message had it, or may have had it before the first listing.
    """

    def __init__(self) -> None:
        self.new: set[int] = set()
        self.highest = -1
        self.spent = -1
        self._ready: set[int] = set()
        self._order: list[int] = []
        self._leases: dict[int, set[int]] = {}
        self._expiries: list[tuple[int, int]] = []

    def load(self, found: Iterable[tuple[int, int]]) -> None:
        """Forget everything but `highest` and `spent`, and add what a listing found: (number, state)."""
        self.new, self._ready, self._order, self._leases, self._expiries = set(), set(), [], {}, []
        for number, state in found:
            self.add(number, state)

    def add(self, number: int, state: int) -> None:
        """Add a name that appeared. Nothing happens when it was there."""
        self.highest = max(self.highest, number)
        if state == NEW:
            self.new.add(number)
            return
        self.spent = max(self.spent, number)
        if state == READY:
            if number not in self._ready:
                self._ready.add(number)
                heapq.heappush(self._order, number)
        elif state not in self._leases.setdefault(number, set()):
            self._leases[number].add(state)
            heapq.heappush(self._expiries, (state, number))

    def discard(self, number: int, state: int) -> None:
        """Remove a name that went away. Nothing happens when it was not there."""
        if state == NEW:
            self.new.discard(number)
        elif state == READY:
            self._ready.discard(number)
        elif number in self._leases:
            self._leases[number].discard(state)
            if not self._leases[number]:
                del self._leases[number]
                if number in self._ready:
                    heapq.heappush(self._order, number)  # head() had dropped it

    def head(self) -> int | None:
        """The lowest number that is ready and not handed out under another name as well."""
        while self._order:
            number = self._order[0]
            if number in self._ready and number not in self._leases:
                return number
            heapq.heappop(self._order)
        return None

    def next_expiry(self) -> int | None:
        """When the first lease ends, in milliseconds since 1970."""
        while self._expiries:
            expiry, number = self._expiries[0]
            if expiry in self._leases.get(number, ()):
                return expiry
            heapq.heappop(self._expiries)
        return None

    def expired(self, now_ms: int) -> list[tuple[int, int]]:
        """(number, expiry) of each lease that lies in the past, the lowest number first."""
        first = self.next_expiry()
        if first is None or first >= now_ms:
            return []
        return sorted((number, expiry) for number, ends in self._leases.items() for expiry in ends if expiry < now_ms)

    def states(self, number: int) -> list[int]:
        """The states in which a message is, but for NEW: empty when it is not there."""
        return [*((READY,) if number in self._ready else ()), *self._leases.get(number, ())]

    def __len__(self) -> int:
        return len(self._ready) + sum(number not in self._ready for number in self._leases)
