"""Refuses roots that a stranger may change, or that another process has to itself.

A user with the right to write in a folder can replace its contents by another folder, or by a link. So a stranger could
prepare a root, move its messages away, and lead mq's own removals to other folders.

Every folder is opened below a checked one, never by following a link, and checked while it is open. So mq uses the very
folder that it checked, whatever becomes of its name meanwhile. docs/access.md says what that guards.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import logging
import os
import pwd
import stat
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import OPEN_FOLDER, Calls, FileKind, Ownership
from mq.storage.files.layout import Layout, is_queue_name
from mq.storage.files.mount import Mount
from mq.storage.files.sync import close_all, sync, sync_folder
from mq.storage.options import StorageOptions

logger = logging.getLogger("mq.storage")

_NO_FOLDER: Final = frozenset({errno.ENOTDIR, errno.ELOOP})


class RootBusy(StorageUnusable):
    """Another daemon has the root to itself: for good, or just while it repairs it."""


class Guard:
    """Refuses folders that others may change.

    Args:
        options: which users its operator trusts.
        mount: the file system below it.
        failing: the beginning of a refusal: what mq does not do.
    """

    def __init__(
        self, calls: Calls, root: str, options: StorageOptions, mount: Mount, failing: str = "cannot serve root"
    ) -> None:
        self._calls = calls
        self._failing = failing
        self._root = root
        self._trusts_group = options.group_writable
        self._owner = options.root_owner
        self._mount = mount

    def check_above(self) -> None:
        """Check that no stranger can put another folder in the place of the root.

        Raises:
            StorageUnusable: one can.
        """
        parent = os.path.dirname(self._root)
        for path in sorted({*_up_from(parent), *_up_from(os.path.realpath(parent))}):
            if self._calls.kind(path) is not FileKind.FOLDER:
                continue
            found = self._calls.ownership(path)
            if found.mode & stat.S_IWOTH and not found.mode & stat.S_ISVTX:
                mode = _octal(found)
                raise self._refusal(
                    f"every user of this machine can write to the parent folder {_shown(path)} (mode "
                    f"{mode}), so any of them could replace the root with another folder. Restrict access to "
                    "the parent folder (chmod o-w), or choose another --root"
                )
            if self._is_strange(found):
                logger.warning(
                    "%s is owned by %s, who can replace the root with another folder. Choose another --root "
                    "unless you trust this user",
                    _shown(path),
                    _user(found.user),
                )

    def open(self, name: str, dir_fd: int | None, path: str) -> int:
        """Open a folder and check it.

        Args:
            dir_fd: the open folder above it; None where `name` is a path.
            path: the same for the operator.

        Raises:
            StorageUnusable: it is no folder, or a stranger may write there.
        """
        try:
            fd = self._calls.open(name, OPEN_FOLDER, dir_fd=dir_fd)
        except OSError as error:
            if error.errno in _NO_FOLDER:
                raise self._refusal(f"{_shown(path)} is not a folder: move it elsewhere") from None
            raise
        try:
            self.check(self._calls.ownership(fd), path)
        except BaseException:
            close_all(self._calls, [fd])
            raise
        return fd

    def check(self, found: Ownership, path: str) -> None:
        """Check that only this user, root, and users trusted by a setting may write there.

        Raises:
            StorageUnusable: a stranger may.
        """
        if self._is_strange(found):
            raise self._strange(found, path)
        if found.mode & stat.S_IWOTH:
            raise self._open_to_all(found, path)
        if found.mode & stat.S_IWGRP and not self._trusts_group:
            group, mode = _group(found.group), _octal(found)
            raise self._refusal(
                f"the members of group {group} can write to {_shown(path)} (mode {mode}), so they could use "
                "symbolic links to redirect mq to other folders. Restrict access (chmod g-w), or trust the group "
                "with --group-writable"
            )

    def check_inside(self, fd: int, path: str) -> None:
        """Check the folders in a folder of mq's own."""
        for name, kind in self._calls.names(fd):
            if kind is FileKind.FOLDER:
                with contextlib.suppress(FileNotFoundError):  # a peer has taken it away
                    self.check(self._calls.ownership(name, dir_fd=fd), f"{path}/{name}")

    def check_queues(self, fd: int, path: str) -> None:
        """Check the queues' folders. These may be made by hand: one that a group may write in gets a warning, and one
        that a member of a trusted group has made is allowed."""
        of_group: list[str] = []
        for name, kind in self._calls.names(fd):
            if kind is not FileKind.FOLDER or not is_queue_name(name):
                continue
            with contextlib.suppress(FileNotFoundError):
                found = self._calls.ownership(name, dir_fd=fd)
                if self._is_strange(found) and not self._trusts_group:
                    raise self._strange(found, f"{path}/{name}")
                if found.mode & stat.S_IWOTH:
                    raise self._open_to_all(found, f"{path}/{name}")
                if found.mode & stat.S_IWGRP and not self._trusts_group:
                    of_group.append(name)
        if of_group:
            logger.warning(
                "these queue folders are group-writable: %s. Group members can therefore add and remove "
                "messages. Restrict access with chmod g-w",
                shorten(", ".join(sorted(of_group)), 200),
            )

    def _is_strange(self, found: Ownership) -> bool:
        return found.user not in (0, os.geteuid(), self._owner)

    def _strange(self, found: Ownership, path: str) -> StorageUnusable:
        owner, user = _user(found.user), _user(os.geteuid())
        mapped = f", also where {self._mount.kind} shows users by other names" if self._mount.remote else ""
        return self._refusal(
            f"{_shown(path)} is owned by {owner}, but mq runs as {user}. {owner} could use symbolic links to "
            f"redirect mq to other folders. Do one of the following: run mq as {owner}; check the folder's contents, "
            f"then change its owner (chown); choose another --root; or trust {owner} with --root-owner {owner}{mapped}"
        )

    def _open_to_all(self, found: Ownership, path: str) -> StorageUnusable:
        mode = _octal(found)
        return self._refusal(
            f"every user of this machine can write to {_shown(path)} (mode {mode}), so any of them could "
            "use symbolic links to redirect mq to other folders. Check the folder's contents and restrict access "
            "(chmod go-w), or choose another --root"
        )

    def _refusal(self, why: str) -> StorageUnusable:
        return StorageUnusable(f"{self._failing} {_shown(self._root)}: {why}")


def open_folders(calls: Calls, layout: Layout, root: str, guard: Guard, *, make: bool) -> dict[str, int]:
    """Open the root and all its folders, and check them and those inside. Handles by path: the caller closes them.

    Args:
        make: make those that are missing; else they are left out.

    Raises:
        StorageUnusable: a stranger may write in one of them, or it is none.
    """
    opened: dict[str, int] = {}
    try:
        opened[root] = guard.open(root, None, root)
        for path in layout.all():
            parent, name = os.path.split(path)
            parent_fd = opened.get(parent, opened[root])
            if make:
                with contextlib.suppress(FileExistsError):
                    calls.mkdir(name, dir_fd=parent_fd)
            with contextlib.nullcontext() if make else contextlib.suppress(FileNotFoundError):
                opened[path] = guard.open(name, parent_fd, path)
        for path in (layout.state, layout.records, layout.stage):  # one order, so that a simulation repeats
            if path in opened:
                guard.check_inside(opened[path], path)
        if layout.queues in opened:
            guard.check_queues(opened[layout.queues], layout.queues)
    except BaseException:
        close_all(calls, opened.values())
        raise
    return opened


def open_root_folders(calls: Calls, layout: Layout, root: str, guard: Guard) -> dict[str, int]:
    """Make the root and its folders where they are missing, and check them. Open handles by path: the caller closes
    them.

    Raises:
        StorageUnusable: a stranger may write in one of them, or it is none.
    """
    if (kind := calls.kind(root)) is FileKind.OTHER:
        raise StorageUnusable(
            f"root {shorten(root)} is not a folder, but a symbolic link or a special file. Use a folder as --root (for "
            "a link, the folder to which it points)"
        )
    if kind is FileKind.FILE:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
    guard.check_above()
    _make_root(calls, root)
    opened = open_folders(calls, layout, root, guard, make=True)
    try:
        for folder in (root, layout.state):
            sync(calls, opened[folder])
    except OSError:
        close_all(calls, opened.values())
        raise
    return opened


def _make_root(calls: Calls, root: str) -> None:
    """The root and what is missing above it, each durable in its parent."""
    if calls.kind(root) is None:
        parent = os.path.dirname(root.rstrip("/")) or "."
        _make_root(calls, parent)
        with contextlib.suppress(FileExistsError):
            calls.mkdir(root)
        sync_folder(calls, parent)


def check_root(calls: Calls, root: str, options: StorageOptions, mount: Mount) -> None:
    """Check that no stranger can change an existing root.

    Raises:
        StorageUnusable: one can.
    """
    guard = Guard(calls, root, options, mount)
    guard.check_above()
    close_all(calls, open_folders(calls, Layout.under(root), root, guard, make=False).values())


def _up_from(path: str) -> list[str]:
    found = [path]
    while (parent := os.path.dirname(found[-1])) != found[-1]:
        found.append(parent)
    return found


def _shown(path: str) -> str:
    """The end of a path, which tells it from others, shortened for an error."""
    return shorten(path, 200)


def _octal(found: Ownership) -> str:
    return f"{found.mode:04o}"


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
