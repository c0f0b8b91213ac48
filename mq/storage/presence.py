"""Who shares a root, and what those who died have left of what was theirs alone.

Each broker has a file in state/peers/ and holds a lock on it that ends with it, and a folder in state/stage/ in which
bodies arrive. Whoever finds the file of another one unlocked clears that one's folder, then takes its file away.
Whatever else a dead peer leaves (messages in NEW, DELAYED and REMOVED) has no owner, and is taken over by who sees it.

On a file system of several machines a lock is not enough: one that is cut off loses it and lives. There the file says
until when its owner is to be taken for alive, and is written anew in time; it counts as dead only when both have ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from mq.storage.barrier import close_all
from mq.storage.calls import Calls, FileKind
from mq.storage.layout import Layout
from mq.storage.staging import write_all

logger = logging.getLogger("mq.storage")

EXPIRY_SECONDS: Final = 15.0
"""How long somebody who said nothing more is still taken for alive, where locks can be lost."""
BEAT_SECONDS: Final = 4.0
"""How often it is said anew, and looked who does not."""
_NAME: Final = re.compile(r"[0-9a-f]{16}")
"""How a broker is called here."""
_MAKE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_ANEW: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_LOCKABLE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_DIGITS: Final = 16


def is_peer(name: str) -> bool:
    """Whether a file or folder of that name is a broker's."""
    return _NAME.fullmatch(name) is not None


class Presence:
    """One broker on a shared root.

    Args:
        calls: the system.
        layout: the root's folders.
        expires: whether locks can be lost here while their holder lives.
        clock_ns: wall clock, nanoseconds since 1970.

    Attributes:
        stage: the folder in which its bodies arrive.
    """

    def __init__(
        self, calls: Calls, layout: Layout, *, expires: bool, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._calls = calls
        self._peers = layout.peers
        self._stages = layout.stage
        self._name = secrets.token_hex(8)
        self._file = f"{layout.peers}/{self._name}"
        self._expires = expires
        self._clock_ns = clock_ns
        self._lock: int | None = None
        self.stage = f"{layout.stage}/{self._name}"

    def announce(self) -> None:
        """Be there. The file is locked before it says anything: one that says nothing is no dead one's yet."""
        with contextlib.suppress(FileExistsError):
            self._calls.mkdir(self._peers)
        self._let_go()
        self._lock = self._calls.open(self._file, _MAKE)
        self._calls.lock(self._lock, exclusive=True)
        with contextlib.suppress(FileExistsError):
            self._calls.mkdir(self.stage)
        write_all(self._calls, self._lock, self._until())

    def beat(self) -> None:
        """Say that we still live; be there again if others thought otherwise."""
        if self._calls.kind(self._file) is None or self._calls.kind(self.stage) is None:
            logger.warning("others on this root took us for dead: nothing of ours was lost but what was arriving")
            self.announce()
        elif self._expires:
            fd = self._calls.open(self._file, _ANEW)
            try:
                write_all(self._calls, fd, self._until())
            finally:
                close_all(self._calls, [fd])

    def sweep(self, *, alone: bool = False) -> int:
        """Clear what dead ones left; how many others may be alive.

        Args:
            alone: nobody is just beginning, for we have the root's lock.
        """
        living = 0
        try:
            listed = self._calls.names(self._peers)
        except FileNotFoundError:
            return 0
        for name, kind in listed:
            if kind is FileKind.FILE and is_peer(name) and name != self._name:
                living += not self._bury(name, alone=alone)
        return living

    def leave(self) -> None:
        """Be there no more. What stays after an error, others will clear."""
        if self._lock is not None:
            with contextlib.suppress(OSError):
                self._clear(self._name)
            self._let_go()

    def _bury(self, name: str, *, alone: bool) -> bool:
        """Clear what that one left, if it is dead."""
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
            if self._expires and said.isdigit() and int(said) > self._clock_ns() // 1_000_000:
                return False
            self._clear(name)
            logger.info("cleared what a dead peer left: %s", name)
            return True
        finally:
            close_all(self._calls, [fd])

    def _clear(self, name: str) -> None:
        folder = f"{self._stages}/{name}"
        with contextlib.suppress(FileNotFoundError):
            for left, kind in self._calls.names(folder):
                if kind is FileKind.FILE:
                    self._calls.unlink(f"{folder}/{left}")
            self._calls.rmdir(folder)
        with contextlib.suppress(FileNotFoundError):
            self._calls.unlink(f"{self._peers}/{name}")

    def _until(self) -> bytes:
        return b"%0*d" % (_DIGITS, self._clock_ns() // 1_000_000 + round(EXPIRY_SECONDS * 1000))

    def _let_go(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            close_all(self._calls, [fd])


class Heart:
    """A thread that says for a broker that it lives, and looks who does not.

    Args:
        presence: the broker's.
    """

    def __init__(self, presence: Presence) -> None:
        self._presence = presence
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mq-heart", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End, and be there no more."""
        self._stopped.set()
        self._thread.join()
        self._presence.leave()

    def _work(self) -> None:
        while not self._stopped.wait(BEAT_SECONDS):
            try:
                self._presence.beat()
                self._presence.sweep()
            except OSError as error:
                logger.warning("cannot tell the others on this root that we live: %s", error.strerror)
