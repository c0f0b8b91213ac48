"""A checkpoint of the log: what the records of a segment say is brought to the medium, and then the segment is free.

Where few files were written, their bytes are written out; then the sync of one change brings all names and these bytes.
So a checkpoint does not wait for what other programs have written to the same file system, nor make them wait for it.
Many files, or a file that cannot be opened where the records say, and it is one ``syncfs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mq.storage.files.barrier import bring_in_order, close_all, write_out
from mq.storage.files.calls import OPEN_READ, SyncFailed
from mq.storage.files.folders import Folders
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.log import Record
from mq.storage.files.payload import Kept, Saying, decode
from mq.storage.files.records import Records
from mq.storage.files.redo import carried_out, fates_of, has_side, last_records

MOST_FILES: Final = 128
"""Files that are brought one by one. Each takes some five calls, beside a broker that is at work."""
_BYTES_A_FILE: Final = 1 << 13
"""Of the segment, for each of these files: so in a small one, as tests have it, many are soon too many."""
_SAYINGS_A_FILE: Final = 4
"""What records say of each file at the most: it is written, moved, moved again and removed. Beyond that many in a
segment it is not worth the reading."""
_TOGETHER: Final = 32
"""Files that are written out at a time, and open."""


def bring(folders: Folders, records: Records, segment: int, size: int, live: Iterable[Record]) -> None:
    """Bring to the medium what the records of a segment have done. Their file calls are all made.

    Args:
        folders: of the root.
        records: its records.
        segment: the segment's file, open.
        size: its length in bytes.
        live: the records, in order.

    Raises:
        OSError: the medium has failed.
    """
    keep_inventory(records)
    most = min(MOST_FILES, size // _BYTES_A_FILE) if folders.syncs.ordered else 0
    files: list[str] | None = None
    try:
        files = _few_files(folders, records, live, most) if most else None
        _write_bytes_out(folders, files or ())
    except SyncFailed:
        raise
    except OSError:  # one cannot be opened: it is elsewhere, a hand has closed it, or there is no handle for it
        files = None
    if files is None:
        folders.syncs.everything()
    else:
        bring_in_order(folders.calls, [segment])


def _few_files(folders: Folders, records: Records, live: Iterable[Record], most: int) -> list[str] | None:
    """The files with the bytes that the records have in memory; None where they are more than so many, or unknown."""
    told: list[tuple[int, list[Saying]]] = []
    count = 0
    for record in live:
        sayings = decode(record.payload)
        count += len(sayings)
        if count > most * _SAYINGS_A_FILE:
            return None
        told.append((record.sequence, sayings))
    done = [saying for sayings in carried_out(told) for saying in sayings]
    files = _messages(folders, done)
    kept = [saying for saying in last_records(done).values() if saying is not None]
    if len(files) + len(kept) > most:
        return None
    found = _newest(records, kept)
    return None if found is None else files + found


def _messages(folders: Folders, done: Iterable[Saying]) -> list[str]:
    """The files of messages that were written and are still there."""
    layout, files = folders.layout, []
    for id, fate in fates_of(done).items():
        if fate.place is None or fate.wrote is None:
            continue
        files.append(layout.above(fate.place))
        if has_side(folders, fate.wrote):
            files.append(f"{layout.properties}/{id}")
    return files


def _newest(records: Records, kept: Sequence[Kept]) -> list[str] | None:
    """The files of records; None where one has none."""
    files: list[str] = []
    for kind in {saying.kind for saying in kept}:
        keys = [saying.key for saying in kept if saying.kind == kind]
        found = records.newest(kind, keys)
        if len(found) < len(keys):
            return None
        files += found
    return files


def _write_bytes_out(folders: Folders, files: Sequence[str]) -> None:
    """Have the bytes of these files written to the disk, which may keep them in its cache.

    Raises:
        SyncFailed: the medium has failed.
        OSError: one cannot be opened.
    """
    calls = folders.calls
    for first in range(0, len(files), _TOGETHER):
        fds: list[int] = []
        try:
            for path in files[first : first + _TOGETHER]:
                fds.append(calls.open(path, OPEN_READ))
                write_out(calls, fds[-1], waits=False)
            for fd in fds:
                write_out(calls, fd, waits=True)
        finally:
            close_all(calls, fds)
