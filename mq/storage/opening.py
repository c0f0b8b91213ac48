"""Opening a root: check it, lock it, make its folders, learn what its file system can do, repair it."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from mq.errors import StorageFull, StorageUnusable
from mq.message import shorten
from mq.storage.ballast import Ballast
from mq.storage.barrier import Spare, close_all, sync_folder
from mq.storage.calls import OPEN_FOLDER, Calls, FileKind
from mq.storage.folders import Folders
from mq.storage.layout import Layout
from mq.storage.mount import Mount
from mq.storage.options import StorageOptions
from mq.storage.passing import NO_HANDLES, NO_ROOM, passes
from mq.storage.presence import Heart, Presence
from mq.storage.records import Records
from mq.storage.recovery import recover

_PROBE: Final = "user.mq.probe"
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class RootBusy(StorageUnusable):
    """Another daemon has the root for itself: for good, or just while it repairs it."""


class OpenRoot(NamedTuple):
    """A root that is ready to serve.

    Attributes:
        folders: its messages.
        records: its records.
        handles: open files to keep for as long as it is served.
        heart: says to others who share it that we live.
    """

    folders: Folders
    records: Records
    handles: tuple[int, ...]
    heart: Heart | None = None

    def close(self) -> None:
        """Let go of it."""
        if self.heart is not None:
            self.heart.stop()
        close_all(self.folders.calls, self.handles)
        for spare in (self.folders.syncs.spare, self.folders.reading):
            if spare is not None:
                spare.close()


def open_root(
    calls: Calls,
    root: str,
    mount: Mount,
    options: StorageOptions,
    clock: Callable[[], float] = time.perf_counter,
    *,
    syncfs: bool = False,
    peers: bool = False,
) -> OpenRoot:
    """Make a root ready. `mount` is what its file system keeps; `clock` measures what syncing costs; `syncfs` says
    whether that call may be used, `peers` whether those who share a root tell each other that they live.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    if mount.flaw:
        raise StorageUnusable(f"root {shorten(root)} {mount.flaw}")
    try:
        return _open(calls, root, mount, options, clock, syncfs=syncfs, peers=peers)
    except StorageUnusable as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in NO_ROOM or not mount.size:
            raise
        try:
            Ballast(calls, Layout.under(root), mount.size, shared=True).give_up()
        except OSError as failed:
            raise StorageUnusable(f"cannot serve root {shorten(root)}: {explain(failed)}") from failed
        return _open(calls, root, mount, options, clock, syncfs=syncfs, peers=peers)


def _open(
    calls: Calls,
    root: str,
    mount: Mount,
    options: StorageOptions,
    clock: Callable[[], float],
    *,
    syncfs: bool,
    peers: bool,
) -> OpenRoot:
    layout = Layout.under(root)
    handles: list[int] = []
    presence = Presence(calls, layout, expires=mount.remote)
    try:
        _make_folders(calls, layout, root)
        handles.append(lock := calls.open(layout.lock, _LOCK_FILE))
        alone = _lock(calls, lock, root, shared=options.shared)
        if peers:
            alone = _meet_peers(presence, root, options, alone=alone)
        handles.append(root_fd := calls.open(root, OPEN_FOLDER))
        held: dict[str, int] = {}
        for folder in (layout.new, layout.delay, layout.remove):
            held[folder] = calls.open(folder, OPEN_FOLDER)
            handles.append(held[folder])
        if not mount.atomic_rename:
            _check_links(calls, layout, root, mount)
        folders = Folders(
            calls,
            layout,
            mount,
            root_fd,
            held,
            clock,
            syncfs=syncfs,
            xattrs=_has_xattrs(calls, lock),
            whole=options.shared or options.watched,
            stage=presence.stage if peers and options.shared else "",
        )
        records = Records(calls, layout.records)
        if alone:
            with _nobody_moves(calls, layout, root):
                recover(folders, records)
                folders.alarm.stop()
        elif folders.careful and folders.alarm.rings():
            raise StorageUnusable(
                f"cannot serve root {shorten(root)}: another mq on it has seen the medium fail. Stop all of them, "
                "repair the disk, remount it, and start again"
            )
        if options.shared:
            _lock_shared(calls, lock, root)
        _take_ballast(folders)
        if not syncfs:
            folders.syncs.spare = Spare(calls, root)
        folders.reading = Spare(calls, root)
        heart = Heart(presence) if folders.stage != layout.stage else None
    except (OSError, StorageFull, StorageUnusable) as error:
        presence.leave()
        close_all(calls, handles)
        if isinstance(error, StorageUnusable):
            raise
        why = explain(error) if isinstance(error, OSError) else error
        raise StorageUnusable(f"cannot serve root {shorten(root)}: {why}") from error
    return OpenRoot(folders, records, tuple(handles), heart)


def _meet_peers(presence: Presence, root: str, options: StorageOptions, *, alone: bool) -> bool:
    """Clear what dead ones left, and join those who live. Whether there are none."""
    living = presence.sweep(alone=alone)
    if options.shared:
        presence.announce()
    elif living:
        raise RootBusy(
            f"root {shorten(root)} was served by a daemon with --peers a moment ago, which may be cut off and alive; "
            "stop it, or try again in 15 seconds"
        )
    return alone and not living


def _take_ballast(folders: Folders) -> None:
    """On a full disk that waits: what is there can be fetched and removed meanwhile."""
    try:
        folders.ballast.take()
    except OSError as error:
        if not passes(error):
            raise


def explain(error: OSError) -> str:
    """An error from the system as an operator wants to read it."""
    advice = {
        errno.EACCES: "; give this user the right to write there, or choose another --root",
        errno.EROFS: "; choose a --root on a file system that can be written",
        errno.ENOTDIR: "; choose a folder as --root",
        errno.ENOSPC: "; make room first",
    }
    return f"{error.strerror or error}{advice.get(error.errno or 0, '')}"


def _make_folders(calls: Calls, layout: Layout, root: str) -> None:
    if (kind := calls.kind(root)) is FileKind.OTHER:
        raise StorageUnusable(f"root {shorten(root)} is a link or worse; give the folder that it leads to as --root")
    if kind is FileKind.FILE:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
    _make_root(calls, root)
    for folder in layout.all():
        with contextlib.suppress(FileExistsError):
            calls.mkdir(folder)
        if calls.kind(folder) is not FileKind.FOLDER:
            raise StorageUnusable(f"cannot serve root {shorten(root)}: {shorten(folder)} is not a folder; move it away")
    for folder in (root, layout.state):
        sync_folder(calls, folder)


def _make_root(calls: Calls, root: str) -> None:
    """The root and what is missing above it, each durable in its parent."""
    if calls.kind(root) is None:
        parent = os.path.dirname(root.rstrip("/")) or "."
        _make_root(calls, parent)
        with contextlib.suppress(FileExistsError):
            calls.mkdir(root)
        sync_folder(calls, parent)


def _lock(calls: Calls, lock: int, root: str, *, shared: bool) -> bool:
    """Take the root's lock. True when nobody else serves the root."""
    try:
        calls.lock(lock, exclusive=True)
        return True
    except BlockingIOError as error:
        if not shared:
            raise StorageUnusable(
                f"root {shorten(root)} is already served by another daemon; stop that one, choose another --root, "
                "or start all of them with --peers=N, N being the number of the others"
            ) from error
    _lock_shared(calls, lock, root)
    return False


def _lock_shared(calls: Calls, lock: int, root: str) -> None:
    """Share the root. For an instant nobody holds a lock that changes from exclusive to shared: another daemon that is
    starting may get it."""
    try:
        calls.lock(lock, exclusive=False)
    except BlockingIOError as error:
        raise RootBusy(
            f"root {shorten(root)} is served by a daemon with --peers=0; restart that one with --peers=1 or more"
        ) from error


@contextlib.contextmanager
def _nobody_moves(calls: Calls, layout: Layout, root: str) -> Iterator[None]:
    """Keep movers and reapers of their own away, which hold no lock else: where moves are made by links, one of them
    would take a repair for somebody who has won the message, and take the name away that was meant to stay."""
    fd = calls.open(f"{layout.lock}-moves", _LOCK_FILE)
    try:
        try:
            calls.lock(fd, exclusive=True)
        except BlockingIOError as error:
            raise RootBusy(
                f"root {shorten(root)} cannot be repaired while a mover or a reaper is at work; stop it"
            ) from error
        yield
    finally:
        calls.close(fd)


@contextlib.contextmanager
def unrepaired(calls: Calls, layout: Layout) -> Iterator[bool]:
    """For a mover or a reaper of its own: whether messages may be moved now, and for the length of the block."""
    try:
        fd = calls.open(f"{layout.lock}-moves", _LOCK_FILE & ~os.O_CREAT)
    except OSError as error:  # no broker's root, or not for this user; or no handle is free just now
        yield error.errno not in NO_HANDLES
        return
    try:
        calls.lock(fd, exclusive=False)
        free = True
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        calls.close(fd)


def _check_links(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Where a move is made by links they must be possible: by trying."""
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
            f"root {shorten(root)} is on {mount.kind}, which has no hard links and of whose renames mq knows nothing; "
            "choose a --root on a local disk"
        ) from error
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                calls.unlink(name)


def _has_xattrs(calls: Calls, lock: int) -> bool:
    """Whether files here can have user extended attributes: by trying, on one that is there, for which a full disk has
    room."""
    try:
        calls.set_attribute(lock, _PROBE, b"")
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return False
    return True
