"""Unlinks of messages, and of deleted queues some files at a time."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Final

from mq.lifecycle import State
from mq.storage.files.calls import FileKind
from mq.storage.files.folders import Folders
from mq.storage.files.layout import parse_leaf
from mq.storage.files.outcomes import DONE, EXISTS, GONE, MORE
from mq.storage.interface import Entry, MessageOperation, Outcome, Unlink

FILES_PER_UNLINK: Final = 256
"""Files of a deleted queue that one Unlink takes away."""


def is_removal(operation: MessageOperation) -> bool:
    """Whether it takes a message out of another place than REMOVED (:attr:`Description.removes`)."""
    return isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED


def unlink(
    folders: Folders, entry: Entry, rmdir: Callable[[str], object], unlinked: Callable[[str], object]
) -> Outcome:
    """Unlink a message or a deleted queue.

    Args:
        entry: the message, or the queue's folder in remove/.
        unlinked: called with the path of a folder in which files were unlinked.

    Returns:
        MORE if files of a deleted queue are left, EXISTS if foreign files are in it.

    Raises:
        OSError: it was refused.
    """
    path = folders.layout.path(entry)
    try:
        folders.volume.reserve.give_way(folders.calls.unlink, path)
    except FileNotFoundError:
        return GONE
    except IsADirectoryError:
        return _unlink_folder(folders, entry, path, rmdir, unlinked)
    unlink_side(folders, entry.id)
    return DONE


def _unlink_folder(
    folders: Folders, entry: Entry, path: str, rmdir: Callable[[str], object], unlinked: Callable[[str], object]
) -> Outcome:
    """Unlink a deleted queue: its messages, some at a time, then the folder. Foreign files in it stay."""
    calls = folders.calls
    if path in folders.emptied:
        return GONE
    try:
        listed: list[str] = []
        has_foreign = False
        for name, kind in calls.names(path):
            if kind is FileKind.FILE and parse_leaf(name, entry.queue, State.READY):
                listed.append(name)
            else:
                has_foreign = True
                folders.skip(path, name, "not a message")
        for name in listed[:FILES_PER_UNLINK]:
            folders.volume.reserve.give_way(calls.unlink, f"{path}/{name}")
            unlink_side(folders, name.partition(",")[0])
        unlinked(path)
        if len(listed) > FILES_PER_UNLINK:
            return MORE
        if has_foreign:
            return EXISTS
        rmdir(path)
    except FileNotFoundError:
        return MORE if calls.kind(path) else GONE  # another reaper is at work on it
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return EXISTS
    return DONE


def unlink_side(folders: Folders, id: str) -> None:
    """Unlink the side file of a message, if there is one."""
    if folders.has_side_files:
        with contextlib.suppress(FileNotFoundError):
            folders.calls.unlink(f"{folders.layout.properties}/{id}")
