"""Processes that share a root: which of them live, what a dead one left, and the alarm that its medium has failed.

:class:`PeerLease`: each broker has a file in state/peers/, with a lock that ends with the broker, and a folder in
state/stage/ in which bodies arrive. A broker that finds another's file unlocked clears the other's folder, then removes
the file. Everything else that a dead peer leaves (messages in NEW, DELAYED and REMOVED) has no owner: peers that see it
go on with it.

On a file system of several machines a lock is not enough: a peer that is cut off loses its lock and lives. There the
file says how long its owner counts as alive, and the owner renews it in time. A peer counts as dead only once lock and
time are over. The peer's clock may have been wrong, so it counts as dead, too, when its file stays the same for as long
by the reader's clock.

:class:`Alarm`: the kernel reports a failed sync to one process. Changes of other processes in the same folder are lost
as well, and where there is no journal their own next sync succeeds. So a process that sees a failure leaves a file, and
all of them look for it before they rely on a sync. The kernel shows the file at once, be it durable or not.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from mq import threads
from mq.storage.files.calls import OPEN_FOLDER, OPEN_NEW, Calls, FileKind, write_all
from mq.storage.files.layout import Layout
from mq.storage.files.sync import close_all

logger = logging.getLogger("mq.storage")

EXPIRY_SECONDS: Final = 15.0
"""How long a peer that did not renew its file still counts as alive, where locks can be lost."""
HEARTBEAT_SECONDS: Final = 4.0
"""How often a peer renews its file, and looks for dead ones."""
_NAME: Final = re.compile(r"[0-9a-f]{16}")
"""A broker's name here."""
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_ANEW: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCKABLE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_DIGITS: Final = 16


def is_peer_name(name: str) -> bool:
    """Whether a file or folder of that name is a broker's."""
    return _NAME.fullmatch(name) is not None


class PeerLease:
    """One broker's lease on a shared root.

    Args:
        expires: whether locks can be lost here while their holder lives.
        clock_ns: wall clock, nanoseconds since 1970.
        seconds: a clock that is never set.

    Attributes:
        stage: the folder in which its bodies arrive.
    """

    def __init__(
        self,
        calls: Calls,
        layout: Layout,
        *,
        expires: bool,
        clock_ns: Callable[[], int] = time.time_ns,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls = calls
        self._peers = layout.peers
        self._stages = layout.stage
        self._name = secrets.token_hex(8)
        self._file = f"{layout.peers}/{self._name}"
        self._expires = expires
        self._clock_ns = clock_ns
        self._seconds = seconds
        self._heard: dict[str, tuple[bytes, float]] = {}  # what each file says, and since when
        self._lock: int | None = None
        self.stage = f"{layout.stage}/{self._name}"

    def announce(self) -> None:
        """Take the lease."""
        # The file is locked before it has content: an empty one may be just beginning.
        with contextlib.suppress(FileExistsError):
            self._calls.mkdir(self._peers)
        self._let_go()
        self._lock = self._calls.open(self._file, _MAKE)
        self._calls.lock(self._lock, exclusive=True)
        with contextlib.suppress(FileExistsError):
            self._calls.mkdir(self.stage)
        write_all(self._calls, self._lock, self._until())

    def beat(self) -> None:
        """Renew the lease; take it again if peers took this process for dead."""
        if self._calls.kind(self._file) is None or self._calls.kind(self.stage) is None:
            logger.warning(
                "the other daemons on this root assumed that this daemon had stopped, so they discarded its "
                "unconfirmed incoming messages. Nothing else was lost"
            )
            self.announce()
        elif self._expires:
            fd = self._calls.open(self._file, _ANEW)
            try:
                write_all(self._calls, fd, self._until())
            finally:
                close_all(self._calls, [fd])

    def sweep(self, *, alone: bool = False) -> int:
        """Clear what dead peers left; how many others may be alive.

        Args:
            alone: this process has the root's lock, so no other is just beginning.
        """
        living = 0
        try:
            listed = self._calls.names(self._peers)
        except FileNotFoundError:
            return 0
        for name, kind in listed:
            if kind is FileKind.FILE and is_peer_name(name) and name != self._name:
                living += not self._clear_if_dead(name, alone=alone)
        return living

    def outwait(self, *, alone: bool, pause: Callable[[float], object] = time.sleep) -> int:
        """As :meth:`sweep`. Where a peer's time ends later than any clock that agrees with ours can say, first wait
        until its file changes, or has stayed the same for long enough."""
        end = self._seconds() + EXPIRY_SECONDS
        living = self.sweep(alone=alone)
        while living and self._seconds() < end:
            if not any(self._is_far(said) for said, _ in self._heard.values()):
                break
            pause(HEARTBEAT_SECONDS / 4)
            living = self.sweep(alone=alone)
        return living

    def leave(self) -> None:
        """Give the lease up. After an error peers clear what is left."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._clear(self._name)
            self._let_go()

    def _clear_if_dead(self, name: str, *, alone: bool) -> bool:
        """Clear what a peer left, if it is dead. True when it was."""
        try:
            fd = self._calls.open(f"{self._peers}/{name}", _LOCKABLE)
        except FileNotFoundError:
            return True
        try:
            try:
                self._calls.lock(fd, exclusive=True)
            except BlockingIOError:
                return False
            said = self._calls.read(fd, _DIGITS)
            if not said and not alone:
                return False
            if self._expires and self._may_live(name, said):
                return False
            self._heard.pop(name, None)
            self._clear(name)
            logger.info("cleaned up the files left by a stopped daemon on this root (%s)", name)
            return True
        finally:
            close_all(self._calls, [fd])

    def _may_live(self, name: str, said: bytes) -> bool:
        """Whether a peer that lost its lock may be alive: its time is not over, and its file changed not long ago."""
        if not said.isdigit() or int(said) <= self._clock_ns() // 1_000_000:
            return False
        before, since = self._heard.get(name, (b"", 0.0))
        if said != before:
            self._heard[name] = said, since = said, self._seconds()
        return self._seconds() - since < EXPIRY_SECONDS

    def _is_far(self, said: bytes) -> bool:
        return int(said) > self._clock_ns() // 1_000_000 + round(EXPIRY_SECONDS * 1000)

    def _clear(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a link is not ours, and leads elsewhere
            self._empty(name)
            self._calls.rmdir(f"{self._stages}/{name}")
        with contextlib.suppress(FileNotFoundError):
            self._calls.unlink(f"{self._peers}/{name}")

    def _empty(self, name: str) -> None:
        """Remove the bodies that were arriving there: from the open folder, wherever its name leads now."""
        fds = [self._calls.open(self._stages, OPEN_FOLDER)]
        try:
            fds.append(folder := self._calls.open(name, OPEN_FOLDER, dir_fd=fds[0]))
            for left, kind in self._calls.names(folder):
                if kind is FileKind.FILE:
                    self._calls.unlink(left, dir_fd=folder)
        finally:
            close_all(self._calls, fds)

    def _until(self) -> bytes:
        return b"%0*d" % (_DIGITS, self._clock_ns() // 1_000_000 + round(EXPIRY_SECONDS * 1000))

    def _let_go(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            close_all(self._calls, [fd])


class Heartbeat:
    """A thread that renews a broker's lease, and clears what dead peers left."""

    def __init__(self, peer_lease: PeerLease) -> None:
        self._peer_lease = peer_lease
        self._stopped = threading.Event()
        self._thread = threads.start(self._work, name="mq-heart")

    def stop(self) -> None:
        """End the thread, and give the lease up."""
        self._stopped.set()
        self._thread.join()
        self._peer_lease.leave()

    def _work(self) -> None:
        while not self._stopped.wait(HEARTBEAT_SECONDS):
            try:
                self._peer_lease.beat()
                self._peer_lease.sweep()
            except OSError as error:
                logger.warning("cannot send the heartbeat to the other daemons on this root: %s", error.strerror)


class PeerFailed(OSError):
    """Another process on this root has seen the medium fail."""


class Alarm:
    """The file that tells all processes on a root that its medium has failed."""

    def __init__(self, calls: Calls, path: str) -> None:
        self._calls = calls
        self._path = path

    def set(self) -> None:
        """Tell the others, as far as the medium still allows it."""
        with contextlib.suppress(OSError):
            self._calls.close(self._calls.open(self._path, OPEN_NEW))

    def check(self) -> None:
        """Check that no other process has set it. Call it before relying on a sync.

        Raises:
            PeerFailed: one has.
        """
        if self.is_set():
            raise PeerFailed(errno.EIO, "another daemon that serves this root reported a disk failure", self._path)

    def is_set(self) -> bool:
        """Whether a process has set it."""
        return self._calls.kind(self._path) is not None

    def clear(self) -> None:
        """Remove it, once no other process has to see it."""
        if self.is_set():
            self._calls.unlink(self._path)
