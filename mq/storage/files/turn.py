"""Turns: of several daemons one serves a root, as if it were alone, and the next takes it when that one ends.

The daemon in turn holds a lock of the kernel's, which ends with its process in any case. So it is only for file systems
of this machine: elsewhere a daemon may lose its lock, and live.
"""

from __future__ import annotations

import os
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import OPEN_READ, Calls, LinuxCalls, opened
from mq.storage.files.explain import or_unusable
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount, mount_of_root
from mq.storage.files.ownership import Guard, open_root_folders
from mq.storage.files.probes import is_locked
from mq.storage.files.sync import close_all
from mq.storage.options import StorageOptions

_TURN_SOCKET: Final = "turn"
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class Turn:
    """This daemon's turn on a root. Made by :func:`open_turn`.

    Args:
        state: the open folder of what is no message.

    Attributes:
        socket: the path at which the daemon in turn listens, for those that wait. It is short, wherever the
            root is, and only of use in this process.
    """

    def __init__(self, calls: Calls, layout: Layout, state: int) -> None:
        self._calls = calls
        self._layout = layout
        self._state = state
        self._lock = calls.open(layout.turn_lock, _LOCK_FILE)
        self.socket = f"/proc/self/fd/{state}/{_TURN_SOCKET}"  # a Unix socket's path has 107 bytes at the most

    def take(self) -> bool:
        """Whether it is this daemon's turn: from then on, until :meth:`close`. Returns at once.

        Raises:
            StorageUnusable: locks are not kept here.
        """
        try:
            self._calls.lock(self._lock, exclusive=True)
        except BlockingIOError:
            return False
        self._prove()
        return True

    def close(self) -> None:
        """Let the next daemon have its turn."""
        close_all(self._calls, [self._lock, self._state])

    def _prove(self) -> None:
        """See that no other open file gets the lock, too."""
        with opened(self._calls, self._layout.turn_lock, OPEN_READ) as other:
            if not is_locked(self._calls, other):
                raise StorageUnusable(
                    f"--standby does not work on {shorten(self._layout.state)}, because its file system "
                    "grants the same lock to two processes. Choose a --root on a local disk"
                )


def open_turn(root: str, options: StorageOptions, calls: Calls | None = None, mount: Mount | None = None) -> Turn:
    """Wait in line for a root: its folders are made and checked as they are for serving it.

    Args:
        calls: the system; where not given, this machine's.
        mount: the traits of its file system; where not given, they are looked up.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    calls = calls or LinuxCalls(None)
    root = os.path.abspath(root)
    layout = Layout.under(root)
    with or_unusable(f"cannot serve root {shorten(root)}"):
        mount = mount or mount_of_root(root)
        if mount.remote:
            raise StorageUnusable(
                f"--standby does not work on root {shorten(root)}, because the root is on {mount.kind}, a "
                "network file system, where a running daemon can lose its lock. Use --peers instead"
            )
        opened = open_root_folders(calls, layout, root, Guard(calls, root, options, mount))
        state = opened.pop(layout.state)
        close_all(calls, opened.values())
        try:
            return Turn(calls, layout, state)
        except OSError:
            close_all(calls, [state])
            raise
