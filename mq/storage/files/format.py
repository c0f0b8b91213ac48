"""The format of a root: which versions of mq may serve it as it is.

A root at rest is plain files, which every version serves. The file ``state/format`` exists where a version has to know
more: it holds the number of each thing to know, separated by spaces.

* While a log is in use, only a version that redoes the log may serve the root: from the start of a daemon to its clean
  end, and so after a crash, too.
* As long as a queue has message groups, only a version that keeps their order may serve the root: the queue's record
  says so.

Versions older than that file do not read it. Something that they refuse keeps them out: ``state/lock-moves``, a file
that they lock while they repair a root, is a folder meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.barrier import sync, sync_folder
from mq.storage.files.calls import OPEN_FOLDER, OPEN_READ, Calls, FileKind, write_all
from mq.storage.files.layout import Layout
from mq.storage.files.records import Records
from mq.storage.interface import NEEDS, QUEUE, WITH_GROUPS

WITH_LOG: Final = 2
"""Messages may lie in the log and not yet in the files."""
_LATEST: Final = WITH_GROUPS
_RESTORING: Final = "restoring"
_EMPTY: Final = "(empty)"
"""The content that stands for a file that this version has not written."""
_LONGEST: Final = 20
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def check_format(calls: Calls, layout: Layout, root: str) -> frozenset[int]:
    """Check that this version may serve the root. Returns the numbers of the things to know.

    Raises:
        StorageUnusable: a later version has to.
        OSError: from the system.
    """
    text = _read(calls, layout)
    if text == _RESTORING:
        raise StorageUnusable(
            f"root {shorten(root)} is half restored: run mq restore again, with the same backup and the same root"
        )
    numbers = text.split()
    if text and not all(number.isdigit() and int(number) <= _LATEST for number in numbers):
        raise StorageUnusable(
            f"root {shorten(root)} has the format {shorten(text)}, of a later mq than this one; start that one, end "
            "what this one does not know (the groups of queues), and stop it cleanly: then this one can serve it, too"
        )
    return frozenset(map(int, numbers))


def is_in_use(calls: Calls, layout: Layout) -> bool:
    """Whether a log is in use, or was when the machine or the daemon ended, so that the files may lack its changes.
    Also true while a root is half restored, or where a later version knows more of it."""
    return _read(calls, layout) not in ("", str(WITH_GROUPS))


def take_in_use(calls: Calls, layout: Layout) -> None:
    """Note that a log is in use. Durable on return. Only while no mover is at work."""
    need(calls, layout, WITH_LOG)


def need(calls: Calls, layout: Layout, number: int) -> None:
    """Note that only a version that knows `number` may serve the root. Durable on return."""
    text = _read(calls, layout)
    if str(number) not in text.split():
        if text:
            _overwrite(calls, layout, f"{text} {number}\n")
        else:
            _write(calls, layout.format, f"{number}\n".encode())
        sync_folder(calls, layout.state)  # the number first: the folder alone says nothing to this version
    if calls.kind(layout.moves_lock) is not FileKind.FOLDER:
        with contextlib.suppress(FileNotFoundError):
            calls.unlink(layout.moves_lock)
        calls.mkdir(layout.moves_lock)
    sync_folder(calls, layout.state)


def take_to_restore(calls: Calls, layout: Layout) -> None:
    """Note that a root is half restored, so that no version serves it until it is put to rest. Durable on return."""
    if not is_half_restored(calls, layout):
        _write(calls, layout.format, f"{_RESTORING}\n".encode())
        sync_folder(calls, layout.state)  # the text first, as above
    if calls.kind(layout.moves_lock) is None:
        calls.mkdir(layout.moves_lock)
    sync_folder(calls, layout.state)


def is_half_restored(calls: Calls, layout: Layout) -> bool:
    """Whether a restore of that root was cut off."""
    return _read(calls, layout) == _RESTORING


def put_to_rest(calls: Calls, layout: Layout) -> None:
    """Note that the files have everything: the log is empty. Durable on return."""
    text = _read(calls, layout)
    if text not in ("", str(WITH_LOG)) and (needed := _needed(calls, layout)):
        if text == _RESTORING:
            calls.unlink(layout.format)
            _write(calls, layout.format, f"{needed}\n".encode())
        elif text != str(needed):
            _overwrite(calls, layout, str(needed).ljust(len(text)))
        sync_folder(calls, layout.state)
        return
    if calls.kind(layout.moves_lock) is FileKind.FOLDER:
        calls.rmdir(layout.moves_lock)
    with contextlib.suppress(FileNotFoundError):
        calls.unlink(layout.format)
    sync_folder(calls, layout.state)


def open_moves_lock(calls: Calls, layout: Layout, *, make: bool) -> int:
    """Open what a process locks while it moves messages or repairs a root: a file, or a folder.

    Raises:
        FileNotFoundError: it is missing, and `make` is false.
        OSError: from the system.
    """
    try:
        return calls.open(layout.moves_lock, _LOCK if make else _LOCK & ~os.O_CREAT)
    except IsADirectoryError:
        return calls.open(layout.moves_lock, OPEN_FOLDER)


def _needed(calls: Calls, layout: Layout) -> int:
    """The number that a version needs for the queues; 0 for none."""
    return max(
        (int(record.get(NEEDS) or 0) for record in Records(calls, layout.records).all(QUEUE).values()), default=0
    )


def _read(calls: Calls, layout: Layout) -> str:
    """The content of the file; empty where there is none."""
    if calls.kind(layout.format) is None:
        return ""
    try:
        fd = calls.open(layout.format, OPEN_READ)
    except FileNotFoundError:  # it has gone just now
        return ""
    try:
        return calls.read(fd, _LONGEST).decode("ascii", "replace").strip() or _EMPTY
    finally:
        calls.close(fd)


def _overwrite(calls: Calls, layout: Layout, text: str) -> None:
    """Overwrite the file with a text that is not shorter. A power cut at any byte leaves the old text or the new
    one."""
    fd = calls.open(layout.format, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        calls.write_at(fd, text.encode(), 0)  # a few bytes of one sector: all of them
        sync(calls, fd)
    finally:
        calls.close(fd)


def _write(calls: Calls, path: str, content: bytes) -> None:
    fd = calls.open(f"{path}.new", _WRITE)
    try:
        write_all(calls, fd, content)
        sync(calls, fd)
    finally:
        calls.close(fd)
    calls.rename(f"{path}.new", path)
