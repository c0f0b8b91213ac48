"""A checkpoint of the log: what the records of a segment say is brought to the medium, and then the segment is free.

Where few files were written, their bytes are written out; then the sync of one change brings all names and these bytes.
So a checkpoint does not wait for what other programs have written to the same file system, nor make them wait for it.
Many files, or a file that cannot be opened where the records say, and it is one ``syncfs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, NamedTuple

from mq.storage.files.calls import OPEN_READ, SyncFailed
from mq.storage.files.folders import Folders
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.logged.fates import carried_out, fates_of, last_records
from mq.storage.files.logged.record import Forgotten, Kept, QueueRemoved, Removed, Saying, decode
from mq.storage.files.logged.redo import has_side
from mq.storage.files.logged.segments import Record
from mq.storage.files.records import Records
from mq.storage.files.sync import bring_in_order, close_all, write_out

MOST_FILES: Final = 128
"""Files that are brought one by one. Each takes some five calls, beside a broker that is at work."""
_BYTES_A_FILE: Final = 1 << 13
"""Of the segment, for each of these files: so in a small one, as tests have it, many are soon too many."""
_SAYINGS_A_FILE: Final = 4
"""What records say of each file at the most: it is written, moved, moved again and removed. Beyond that many in a
segment it is not worth the reading."""
_REMOVALS: Final = (Removed, QueueRemoved, Forgotten)
_TOGETHER: Final = 32
"""Files that are written out at a time, and open."""


def bring(folders: Folders, records: Records, segment: int, size: int, live: Iterable[Record]) -> None:
    """Bring to the medium what the records of a segment have done. Their file calls are all made.

    Args:
        segment: the segment's file, open.
        size: its length in bytes.
    """
    keep_inventory(records)
    most = min(MOST_FILES, size // _BYTES_A_FILE) if folders.volume.mount.ordered else 0
    files: _Files | None = None
    try:
        files = _few_files(folders, records, live, most) if most else None
        if files is not None:
            _write_bytes_out(folders, files)
    except SyncFailed:
        raise
    except OSError:  # one cannot be opened: it is elsewhere, a hand has closed it, or there is no handle for it
        files = None
    if files is None:
        folders.volume.syncs.everything()
    else:
        bring_in_order(folders.calls, [segment])


class _Files(NamedTuple):
    """Files to write out.

    Attributes:
        may_be_removed: paths that need not exist any more.
    """

    paths: list[str]
    may_be_removed: set[str]


def _few_files(folders: Folders, records: Records, live: Iterable[Record], most: int) -> _Files | None:
    """The files with the bytes that the records have in memory; None where they are more than so many, or unknown."""
    told: list[tuple[int, list[Saying]]] = []
    count = 0
    for record in live:
        sayings = decode(record.payload)
        count += len(sayings)
        if count > most * _SAYINGS_A_FILE:
            return None
        told.append((record.sequence, sayings))
    done = carried_out(told)
    # If file calls of the last record fail, the record that says so is the first one of the next segment, which is
    # written after this checkpoint. So a removal in the last record may not have happened.
    certain = list(chain.from_iterable(done[:-1]))
    certain += [saying for saying in chain.from_iterable(done[-1:]) if not isinstance(saying, _REMOVALS)]
    files = _messages(folders, certain)
    kept = [saying for saying in last_records(certain).values() if saying is not None]
    if len(files) + len(kept) > most:
        return None
    found = _newest(records, kept)
    if found is None:
        return None
    return _Files(files + found, set(files) - set(_messages(folders, chain.from_iterable(done))))


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


def _write_bytes_out(folders: Folders, files: _Files) -> None:
    """Have the bytes of these files written to the disk, which may keep them in its cache."""
    calls = folders.calls
    for first in range(0, len(files.paths), _TOGETHER):
        fds: list[int] = []
        try:
            for path in files.paths[first : first + _TOGETHER]:
                try:
                    fds.append(calls.open(path, OPEN_READ))
                except FileNotFoundError:
                    if path not in files.may_be_removed:
                        raise
                    continue
                write_out(calls, fds[-1], waits=False)
            for fd in fds:
                write_out(calls, fd, waits=True)
        finally:
            close_all(calls, fds)
