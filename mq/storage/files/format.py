"""The format of a root, and how its last daemon left it: the file ``state/format``.

It is one line of a fixed length, which is overwritten in place: ``mq``, the number of the format, the :class:`RootUse`,
and a checksum. Every root has it, from before its first message or record. So a root that has lost it, or one of the
files that its use asks for, is not taken for an empty one.
"""

from __future__ import annotations

import contextlib
import enum
import os
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten, with_checksum, without_checksum
from mq.storage.files.calls import OPEN_READ, Calls, FileKind, opened, write_all
from mq.storage.files.layout import Layout
from mq.storage.files.lost import cure
from mq.storage.files.records import Records
from mq.storage.files.sync import sync, sync_folder
from mq.storage.interface import Damage

FORMAT: Final = 4
"""The number of the format. A version of mq serves roots of its own format alone."""
_LONGEST: Final = 64
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_OVERWRITE: Final = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW


class RootUse(enum.Enum):
    """How a root is used, or was when its daemon ended. The value is the word in the file."""

    LOG = "log"
    """With a log: messages may be in the log and not yet in the files. Both segments of the log exist."""
    FILES = "files"
    """Without a log, or by several daemons. A crash may have left torn files."""
    CLEAN = "clean"
    """Stopped cleanly: all is in the files, none of them is torn, and the inventory lists the records."""
    RESTORING = "restoring"
    """Half restored."""


class FormatDamaged(StorageUnusable):
    """``state/format`` is missing or cannot be read."""


def read_use(calls: Calls, layout: Layout) -> RootUse | None:
    """How a root was left; None without the file.

    Raises:
        FormatDamaged: the file is not as mq wrote it.
        StorageUnusable: another version of mq wrote it.
    """
    path = layout.format
    kind = calls.kind(path)
    if kind is None:
        return None
    if kind is not FileKind.FILE:
        raise FormatDamaged(f"{shorten(path, 200)} is not a regular file")
    try:
        with opened(calls, path, OPEN_READ) as fd:
            line = calls.read(fd, _LONGEST)
            while len(line) < _LONGEST and (more := calls.read(fd, _LONGEST)):
                line += more
    except FileNotFoundError:  # it has gone just now
        return None
    try:
        mq, number, word = without_checksum(line.removesuffix(b"\n")).decode("ascii").split()
        if mq != "mq" or not number.isdigit():
            raise ValueError("the file does not contain a format version")
        use = RootUse(word) if int(number) == FORMAT else None
    except ValueError as error:
        raise FormatDamaged(f"{shorten(path, 200)} is damaged ({error})") from error
    if use is None:
        root = os.path.dirname(layout.state)
        raise StorageUnusable(
            f"root {shorten(root)} has format {number}, according to {shorten(path, 200)}, but this version of mq "
            f"supports only format {FORMAT}. Use the version of mq that created the root"
        )
    return use


def is_in_use(calls: Calls, layout: Layout) -> bool:
    """Whether a log is in use, or was when the machine or the daemon ended, so that the files may lack its changes.
    Also true while a root is half restored, and if its format cannot be read."""
    try:
        return read_use(calls, layout) in (RootUse.LOG, RootUse.RESTORING)
    except StorageUnusable:
        return True


def note_use(calls: Calls, layout: Layout, use: RootUse) -> None:
    """Note how a root is used from now on. Durable on return."""
    line = with_checksum(f"mq {FORMAT} {use.value:9}".encode()) + b"\n"
    if calls.kind(layout.format) is FileKind.FILE:
        with opened(calls, layout.format, _OVERWRITE) as fd:
            calls.write_at(fd, line, 0)  # a few bytes of one sector: a power cut leaves the old line or the new one
            sync(calls, fd)
        return
    with opened(calls, f"{layout.format}.new", _WRITE) as fd:
        write_all(calls, fd, line)
        sync(calls, fd)
    calls.rename(f"{layout.format}.new", layout.format)
    sync_folder(calls, layout.state)


def is_half_restored(calls: Calls, layout: Layout) -> bool:
    """Whether a restore of that root was cut off."""
    with contextlib.suppress(StorageUnusable):
        return read_use(calls, layout) is RootUse.RESTORING
    return False


def open_moves_lock(calls: Calls, layout: Layout, *, make: bool) -> int:
    """Open the file that a process locks while it moves messages or repairs a root.

    Raises:
        FileNotFoundError: it is missing, and `make` is false.
    """
    return calls.open(layout.moves_lock, _LOCK if make else _LOCK & ~os.O_CREAT)


# How its last daemon left a root that is opened


def use_of_root(calls: Calls, layout: Layout) -> RootUse | None:
    """How a root was left by its last daemon; None if it is new, or has lost all of state/.

    Raises:
        FormatDamaged: nothing tells, though the root has been in use.
        StorageUnusable: another version of mq wrote it.
    """
    use = read_use(calls, layout)
    if use is None and (calls.kind(layout.log_folder) is not None or _has_records(calls, layout)):
        raise FormatDamaged(f"{layout.format} is missing")
    return use


def _has_records(calls: Calls, layout: Layout) -> bool:
    records = Records(calls, layout.records)
    return calls.kind(layout.records) is not None and any(map(records.files, records.kinds()))


def use_before(
    calls: Calls, layout: Layout, root: str, accepted: list[Damage] | None, *, alone: bool
) -> RootUse | None:
    """How the root was left by its last daemon; None if it is new, or has lost all of state/.

    Args:
        accepted: gets what is lost, where that is accepted; else None.
        alone: whether no other daemon serves the root.

    Raises:
        StorageUnusable: this version cannot serve it, or it is damaged.
    """
    try:
        use = use_of_root(calls, layout)
    except FormatDamaged as error:
        kind = calls.kind(layout.format)
        if accepted is None or kind not in (FileKind.FILE, None):
            raise StorageUnusable(
                f"cannot serve root {shorten(root, 200)}: {error}. The write-ahead log may contain messages that have "
                f"not yet been written to message files, but mq cannot check this. {cure(root)}"
            ) from error
        accepted.append(Damage("", None, layout.format, str(error)))
        if kind is FileKind.FILE:
            calls.unlink(layout.format)
        return RootUse.FILES if calls.kind(layout.log_folder) is None else RootUse.LOG
    if use is RootUse.RESTORING:
        raise StorageUnusable(
            f"root {shorten(root)} is only partially restored: run mq restore again with the same backup and the same "
            "root"
        )
    if use is None and alone:
        note_use(calls, layout, RootUse.FILES)  # before the first record and the log
    return use
