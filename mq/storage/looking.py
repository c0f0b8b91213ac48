"""Opens a root to look at it, with or without a daemon on it, and has it repaired when nobody serves it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.barrier import close_all
from mq.storage.calls import OPEN_FOLDER, Calls, FileKind, LinuxCalls
from mq.storage.folders import Folders
from mq.storage.inspection import Finding, Found, Seen, inspect, lasting
from mq.storage.layout import Layout
from mq.storage.mount import Mount, mount_of, syncfs_reports_errors
from mq.storage.opening import explain, open_root
from mq.storage.options import StorageOptions
from mq.storage.records import Records

_LOCK_FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
QUARANTINED: Final = frozenset({Finding.FOREIGN, Finding.DAMAGED})
"""What a quarantine takes: files that nobody hands out, and that no repair takes away."""


class Look(NamedTuple):
    """A root that is open to be looked at.

    Attributes:
        folders: its folders.
        records: its records.
        alone: whether nobody serves it, and nobody can begin to for as long as it is open.
    """

    folders: Folders
    records: Records
    alone: bool

    def seen(self, *, bodies: bool, pause: Callable[[], object], told: Callable[[], object] = lambda: None) -> Seen:
        """What is there. While a daemon serves the root: what is there for good, by two looks with a pause between.

        Args:
            bodies: hold every message to its checksum.
            pause: called between the two looks.
            told: called after each message that was looked at.
        """
        first = inspect(self.folders, self.records, bodies=bodies, told=told)
        if self.alone or not first.found:
            return first
        pause()
        second = inspect(self.folders, self.records, bodies=bodies)
        return second._replace(found=lasting(self.folders, first.found, second.found))


@contextmanager
def open_look(root: str, calls: Calls | None = None) -> Iterator[Look]:
    """Open a root to look at it. Nothing is made, repaired or moved.

    Raises:
        StorageUnusable: in one line, why not.
    """
    calls = calls or LinuxCalls()
    layout = Layout.under(os.path.abspath(root))
    handles: list[int] = []
    try:
        if any(calls.kind(folder) is not FileKind.FOLDER for folder in (layout.new, layout.queues, layout.state)):
            raise StorageUnusable(f"{shorten(root)} is no root of mq: it has no new/, queues/ and state/")
        alone = all(_lock(calls, path, handles) for path in (layout.lock, f"{layout.lock}-moves"))
        handles.append(root_fd := calls.open(layout.queues, OPEN_FOLDER))
        folders = Folders(calls, layout, Mount("unknown"), root_fd, syncfs=False, xattrs=True, whole=True)
        yield Look(folders, Records(calls, layout.records), alone)
    except OSError as error:
        raise StorageUnusable(f"cannot look at {shorten(root)}: {explain(error)}") from error
    finally:
        close_all(calls, handles)


def repair(root: str, calls: Calls | None = None) -> None:
    """Do what a daemon does at its start: bring every state that a crash can leave back to one that mq knows.

    Raises:
        StorageUnusable: in one line, why not; somebody serves the root, for one.
    """
    calls = calls or LinuxCalls()
    root = os.path.abspath(root)
    try:
        mount = mount_of(root)
    except OSError as error:
        raise StorageUnusable(f"cannot repair {shorten(root)}: {explain(error)}") from error
    syncfs = mount.syncfs and syncfs_reports_errors()
    open_root(calls, root, mount, StorageOptions(), syncfs=syncfs).close()


def quarantine(look: Look, found: Iterable[Found], folder: str) -> Iterator[tuple[str, str]]:
    """Move what is foreign or damaged out of the root, to the same place below `folder`. Each (from, to).

    Raises:
        StorageUnusable: somebody serves the root, or a file cannot be moved.
    """
    if not look.alone:
        raise StorageUnusable("somebody serves the root: nothing is moved; stop the daemon first")
    root = os.path.dirname(look.folders.layout.new)
    if os.path.commonpath([root, os.path.abspath(folder)]) == root:
        raise StorageUnusable(f"{shorten(folder)} is in the root itself: give a folder elsewhere")
    for one in found:
        if one.finding in QUARANTINED:
            target = os.path.join(folder, os.path.relpath(one.path, root))
            try:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, "something of that name is there", target)
                shutil.move(one.path, target)
            except OSError as error:
                raise StorageUnusable(f"cannot move {shorten(one.path, 200)}: {explain(error)}") from error
            yield one.path, target


def _lock(calls: Calls, path: str, handles: list[int]) -> bool:
    """Take a lock that nobody waits for. False when somebody has it."""
    try:
        handles.append(fd := calls.open(path, _LOCK_FILE))
    except FileNotFoundError:
        return True  # no daemon has ever been here
    try:
        calls.lock(fd, exclusive=True)
    except BlockingIOError:
        return False
    return True
