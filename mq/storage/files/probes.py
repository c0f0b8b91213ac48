"""Probes of a file system: whether it has the calls that mq needs, before a root on it is served."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import OPEN_NEW, Calls, FileKind
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount
from mq.storage.files.sync import close_all, sync

_PROBE: Final = "user.mq.probe"
_WRITABLE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
"""NFS gives an exclusive lock on a file that is open for writing alone (EBADF)."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_SUCH_CALL: Final = frozenset(
    {errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EPERM, errno.ENOLCK, errno.EXDEV, errno.EBADF}
)
"""Errors of a file system for a call that it does not have."""


def check_calls(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether an unknown file system has the calls that mq needs."""
    if not mount.atomic_rename:
        _check_links(calls, layout, root, mount)
    if mount.remote:
        _check_moves_and_locks(calls, layout, root, mount)


def _check_moves_and_locks(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether files can be synced, names moved, and locks relied upon."""
    written, moved = (f"{layout.stage}/probe-{secrets.token_hex(8)}" for _ in range(2))  # peers may try just now
    handles = [calls.open(written, OPEN_NEW)]
    try:
        with named(root, mount, "fsync"):
            sync(calls, handles[0])
        with named(root, mount, "rename"):
            calls.rename(written, moved)
        if calls.kind(written) is not None or calls.kind(moved) is not FileKind.FILE:
            raise StorageUnusable(
                f"root {shorten(root)} is on {mount.kind}, where rename does not remove the old name. Choose a "
                "--root on a local disk"
            )
        with named(root, mount, "flock"):
            calls.lock(handles[0], exclusive=True)
            handles.append(calls.open(moved, _WRITABLE))
            if not is_locked(calls, handles[1]):
                raise StorageUnusable(
                    f"root {shorten(root)} is on {mount.kind}, which grants the same lock (flock) to two "
                    "processes, so two daemons could serve the root at once. Choose a --root on a local disk"
                )
    finally:
        close_all(calls, handles)
        for name in (written, moved):
            with contextlib.suppress(FileNotFoundError):
                calls.unlink(name)


def _check_links(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether hard links are possible, where moves are made by links."""
    names = f"{layout.stage}/probe-a", f"{layout.stage}/probe-b"
    calls.close(calls.open(names[0], os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        calls.link(*names)
    except (FileExistsError, FileNotFoundError):
        return  # another broker tries just now
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}, which may not support hard links and atomic renames. "
            "Choose a --root on a local disk"
        ) from error
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                calls.unlink(name)


@contextlib.contextmanager
def named(root: str, mount: Mount, call: str) -> Iterator[None]:
    """Name the call that the file system does not have in the error."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}, where the call {call} fails ({error.strerror}), but mq "
            "requires it. Choose a --root on a local disk"
        ) from error


def is_locked(calls: Calls, fd: int) -> bool:
    """Whether another open file has the lock of this one. If not, this one has it now."""
    try:
        calls.lock(fd, exclusive=True)
    except BlockingIOError:
        return True
    return False


def has_xattrs(calls: Calls, lock: int) -> bool:
    """Whether files here can have user extended attributes."""
    # tried on a file that is there, for which a full disk has room
    try:
        calls.set_attribute(lock, _PROBE, b"")
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return False
    return True
