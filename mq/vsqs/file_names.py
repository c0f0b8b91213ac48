"""The names of files in a VSQS folder: a number, and an extension for the state of the message.

    1415776871123                  ready
    1415776871123.new              being published
    1415776871123.1415776879654    handed out until that millisecond

A number is a Unix time in milliseconds: decimal, without leading zeros, at most 15 digits. Any other name is foreign.

:class:`FolderNames` changes names so that a crash loses no message. Where a rename survives a crash whole, a move is a
rename. Elsewhere (no journal, or nothing known) it is link, sync, unlink: the message has a durable name at every
instant. Where several processes move it, the one that unlinks the old name wins.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Final

from mq.errors import InvalidId, StorageFailed
from mq.storage.files.calls import OPEN_FOLDER
from mq.vsqs.system import FolderCalls, FolderLeft, failed, told

READY: Final = -1
NEW: Final = -2
"""Special states. The state of a message that is handed out is its expiry, in milliseconds since 1970."""

HIGHEST: Final = 10**15 - 1
"""The highest number of a message."""

_NUMBER: Final = "(0|[1-9][0-9]{0,14})"
_NAME: Final = re.compile(rf"{_NUMBER}(?:\.(?:(new)|{_NUMBER}))?")


def parse(name: str) -> tuple[int, int] | None:
    """(number, state) of a file's name; None of one that is foreign."""
    matched = _NAME.fullmatch(name)
    if matched is None:
        return None
    number, new, expiry = matched.groups()
    return int(number), READY if name == number else NEW if new else int(expiry)


def name_of(number: int, state: int) -> str:
    """The file's name; :func:`parse` undoes it."""
    return str(number) if state == READY else f"{number}.new" if state == NEW else f"{number}.{state}"


def parse_id(id: str) -> int:
    """The number of a message's id.

    Raises:
        InvalidId: it is none; nothing but digits names a message.
    """
    parsed = parse(id) if isinstance(id, str) else None
    if parsed is None or parsed[1] != READY:
        raise InvalidId(f"{id!a:.60} is not a message ID: use the number returned by publish or receive")
    return parsed[0]


def make_folder(calls: FolderCalls, path: str) -> None:
    """Make the folder of a queue, durably; not those above it. Nothing happens when it is there."""
    with told(path):
        with contextlib.suppress(FileExistsError):
            calls.mkdir(path, 0o777)
        above = calls.open(os.path.dirname(path), OPEN_FOLDER)
        try:
            calls.fsync(above)
        finally:
            calls.close(above)


class FolderNames:
    """Changes the names in one folder.

    Args:
        by_rename: whether a rename survives a crash whole.

    Raises:
        NoSuchQueue: it is not there.
        StorageUnusable: it may not be read.
    """

    def __init__(self, calls: FolderCalls, path: str, *, by_rename: bool) -> None:
        self._calls = calls
        self._path = path
        self._by_rename = by_rename
        self._failure = ""
        with told(path):
            self._folder = calls.open(path, OPEN_FOLDER)

    def path(self, number: int, state: int) -> str:
        """The path of a message's file."""
        return f"{self._path}/{name_of(number, state)}"

    def move(self, number: int, source: int, target: int) -> None:
        """Give a message another state. Durable with the next :meth:`sync`.

        A name with an expiry belongs to one receiver, which removes it when the race is lost. The name of a ready
        message belongs to all: several processes may make it ready at once, and each removes the name it had before.

        Raises:
            FileNotFoundError: another process was faster; nothing was changed.
            FileExistsError: the target is taken; nothing was changed.
        """
        old, new = self.path(number, source), self.path(number, target)
        if self._by_rename:
            self._calls.rename(old, new)
            return
        self._calls.link(old, new)
        self.sync()
        try:
            self._calls.unlink(old)
        except FileNotFoundError:
            if target == READY:
                return  # the process that unlinked it found the new name as well, and leaves or removes it
            self.drop(number, target)
            raise

    def drop(self, number: int, state: int) -> bool:
        """Remove a name. Returns whether it was there."""
        try:
            self._calls.unlink(self.path(number, state))
        except FileNotFoundError:
            return False
        return True

    def sync(self, fd: int | None = None) -> None:
        """Bring an open file to the disk, or all changes of names.

        Raises:
            StorageFailed: it failed; nothing more is changed.
        """
        try:  # once: a second fsync would report success for what is lost
            self._calls.fsync(self._folder if fd is None else fd)
        except OSError as error:
            failure = failed(self._path, error)
            self._failure = str(failure)
            raise failure from error

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Translate the errors of a block that changes the folder, as :func:`~mq.vsqs.system.told` does.

        Raises:
            StorageFailed: the disk failed, now or in a block before.
        """
        if self._failure:
            raise StorageFailed(self._failure)
        try:
            with told(self._path):
                if not self._calls.is_at(self._folder, self._path):
                    raise FolderLeft
                yield
        except StorageFailed as error:
            self._failure = str(error)
            raise

    def close(self) -> None:
        """Close the folder."""
        self._calls.close(self._folder)
