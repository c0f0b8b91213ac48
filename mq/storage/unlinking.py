"""Taking files away: a removed message, or a deleted queue a part at a time.

No barrier here: :mod:`mq.storage.batch` knows when an older name could still come back.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Sequence
from typing import Final

from mq.lifecycle import State
from mq.storage import names
from mq.storage.barrier import sync_folder
from mq.storage.calls import FileKind
from mq.storage.folders import Folders
from mq.storage.interface import Entry, Outcome, Result
from mq.storage.native import check_refused

UNLINKED_AT_ONCE: Final = 256
"""Files of a deleted queue that one Unlink takes away."""

_DONE: Final = Outcome(Result.DONE)
_MORE: Final = Outcome(Result.MORE)
_GONE: Final = Outcome(Result.GONE)
_EXISTS: Final = Outcome(Result.EXISTS)


def unlink_at_once(folders: Folders, entries: Sequence[Entry]) -> list[bool]:
    """Take away in one go what is plain: which of them are gone. The others are for :func:`unlink`.

    Raises:
        OSError: the medium has failed.
    """
    if folders.native is None or folders.sides:
        return [False] * len(entries)
    paths = [folders.layout.path(entry) for entry in entries]
    results = folders.native.do_steps([(path,) for path in paths], False)
    for path, result in zip(paths, results, strict=True):
        if result < 0:
            check_refused(result, path)
    return [result == 0 for result in results]


def unlink(folders: Folders, entry: Entry) -> Outcome:
    """Take one away: MORE when it is a queue of which something is left, EXISTS when there are foreign things in it.

    Raises:
        OSError: it was refused.
    """
    path = folders.layout.path(entry)
    try:
        folders.ballast.give_way(folders.calls.unlink, path)
    except FileNotFoundError:
        return _GONE
    except IsADirectoryError:
        return _unlink_folder(folders, entry, path)
    _unlink_side(folders, entry.id)
    return _DONE


def _unlink_folder(folders: Folders, entry: Entry, path: str) -> Outcome:
    """A deleted queue: its messages, some at a time, then the folder. Foreign things in it stay."""
    calls = folders.calls
    try:
        listed = [
            name
            for name, kind in calls.names(path)
            if kind is FileKind.FILE and names.parse_leaf(name, entry.queue, State.READY)
        ]
        for name in listed[:UNLINKED_AT_ONCE]:
            folders.ballast.give_way(calls.unlink, f"{path}/{name}")
            _unlink_side(folders, name.partition(",")[0])
        if not folders.mount.atomic_rename:
            sync_folder(calls, path)  # no name in it may outlive its file: inodes are used again
        if len(listed) > UNLINKED_AT_ONCE:
            return _MORE
        calls.rmdir(path)
    except FileNotFoundError:
        return _MORE if calls.kind(path) else _GONE  # another reaper is at work on it
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return _EXISTS
    return _DONE


def _unlink_side(folders: Folders, id: str) -> None:
    if folders.sides:
        with contextlib.suppress(FileNotFoundError):
            folders.calls.unlink(f"{folders.layout.properties}/{id}")
