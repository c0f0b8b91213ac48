"""The folder that backups are written to: what lies there, and when a backup counts.

::

    mq-backup                   says that the folder is one
    lock                        locked while a backup is made, or restored
    backups/000007.jsonl        a backup: what was where, at one instant
    bodies/4a/ID                the bytes of a message, for all backups that have it

A message's bytes never change, so each body is copied once, and a backup names those that it needs. A backup counts
when it has its last line, with the checksum of all lines before. That line is written once every named body is on the
medium. So a backup that was killed half-way leaves bodies that no backup names, and no more.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from mq.errors import StorageUnusable
from mq.message import shorten
from mq.storage.files.calls import OPEN_FOLDER, OPEN_NEW, OPEN_READ, Calls, FileKind, opened, write_all
from mq.storage.files.sync import Syncs, close_all, make_folder, make_syncs, sync, sync_folder

logger = logging.getLogger("mq.storage")

FORMAT: Final = 1
_MARK: Final = "mq-backup"
_BACKUP: Final = re.compile(r"([0-9]{6,12})\.jsonl")
_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_LEFT_BY_OTHERS: Final = frozenset({"lost+found"})
"""Names that a new file system contains."""
_END: Final = re.compile(rb'\n\["end",[0-9]+\]\n\Z')
_LAST_BYTES: Final = 64
_DEPTHS: Final = {"new": 2, "delay": 2, "queues": 3}
"""Folder of a root -> parts of the path of a message in it."""
CHUNK: Final = 1 << 20
_LINES_AT_ONCE: Final = 1000
THREADS: Final = 16
"""Files that are synced at a time on a real file system."""
_MOST_WAITING: Final = 128
"""Files that are written, open, and not synced yet."""


class SavedMessage(NamedTuple):
    """A message in a backup.

    Attributes:
        size: bytes that were copied.
        crc: their CRC-32.
        sum: its extended attribute of that name; None where it had none. Bytes are text here by Latin-1.
        attributes: likewise.
        side: the content of its side file; None where it had none.
    """

    size: int
    crc: int
    sum: str | None
    attributes: str | None
    side: str | None


class BackupHeader(NamedTuple):
    """The first line of a backup.

    Attributes:
        format: of the folder.
        number: of the backup; a later one has a higher.
        instant: the moment of which it is a copy, UTC, by the clock of this machine.
        queues: how many.
        messages: how many.
        bytes: of their bodies.
    """

    format: int
    number: int
    root: str
    instant: str
    queues: int
    messages: int
    bytes: int


class Backup(NamedTuple):
    """A backup, read.

    Attributes:
        header: its first line.
        records: path below state/records/ -> content.
        removed_queues: the names of their folders in remove/.
        messages: path below the root -> what was saved of it.
    """

    header: BackupHeader
    records: dict[str, str]
    queues: list[str]
    removed_queues: list[str]
    messages: dict[str, SavedMessage]


class BackupDamaged(Exception):
    """The file of a backup is not whole."""


class FileSyncs:
    """Bring written files to the medium, several at a time: a disk, or a server, takes as long for ten as for one.

    Args:
        syncs: how that is done. Where it syncs everything at once, later, files are closed, and no more.
    """

    def __init__(self, syncs: Syncs, *, threads: int) -> None:
        self._calls = syncs.calls
        self._syncs = syncs
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None  # starts no thread before it is used
        self._waiting: list[int] = []

    def add(self, fd: int) -> None:
        """Take over a written, open file; it is closed here."""
        self._waiting.append(fd)
        if len(self._waiting) >= _MOST_WAITING:
            self.finish()

    def finish(self) -> None:
        """Wait until every added file is on the medium, or will be with everything else.

        Raises:
            SyncFailed: some of it is not known to be.
        """
        fds, self._waiting = self._waiting, []
        try:
            self._syncs.one_of(partial(self._sync, fds))
        finally:
            close_all(self._calls, fds)

    def _sync(self, fds: Sequence[int]) -> None:
        list((map if self._pool is None else self._pool.map)(partial(sync, self._calls), fds))

    def close(self) -> None:
        """Let go of what is open."""
        if self._pool is not None:
            self._pool.shutdown()
        close_all(self._calls, self._waiting)


class BackupFolder:
    """A folder of backups, locked.

    Args:
        syncfs: whether one call brings the whole file system to the medium.
        threads: where it does not: how many files are synced at a time.
    """

    def __init__(self, calls: Calls, path: str, *, syncfs: bool, threads: int) -> None:
        self.path = path
        self._calls = calls
        self._fd = calls.open(path, OPEN_FOLDER)  # before anything is written: it hears of every error since
        self._syncs = make_syncs(calls, self._fd, syncfs=syncfs)
        self._files = FileSyncs(self._syncs, threads=threads)
        self._unsynced: set[str] = set()

    def close(self) -> None:
        """Let go of it."""
        self._files.close()
        close_all(self._calls, [self._fd])

    # What is there

    def numbers(self) -> list[int]:
        """The numbers of the backups, whole or not, in their order."""
        names = (_BACKUP.fullmatch(name) for name, kind in self._names("backups") if kind is FileKind.FILE)
        return sorted(int(match[1]) for match in names if match is not None)

    def has_end(self, number: int) -> bool:
        """Whether a backup was written to its last line."""
        with opened(self._calls, self._backup(number), OPEN_READ) as fd:
            size = self._calls.file_size(fd) or 0
            return _END.search(self._calls.read_at(fd, _LAST_BYTES, max(0, size - _LAST_BYTES))) is not None

    def read(self, number: int) -> Backup:
        """Read a backup.

        Raises:
            BackupDamaged: it is not whole.
        """
        lines = self._lines(self._backup(number))
        try:
            header = BackupHeader(**next(lines))
            backup = Backup(header, {}, [], [], {})
            for kind, *values in lines:
                if kind == "m":
                    backup.messages[values[0]] = SavedMessage(*values[1:])
                elif kind == "r":
                    backup.records[values[0]] = values[1]
                else:
                    (backup.queues if kind == "q" else backup.removed_queues).append(values[0])
        except (ValueError, TypeError, IndexError, StopIteration) as error:
            raise BackupDamaged(f"the file is invalid: {error}") from error
        if header.format != FORMAT:
            raise BackupDamaged(f"this version of mq does not support backup format {header.format}")
        if header.number != number:
            raise BackupDamaged(f"the file contains backup {header.number} instead of backup {number}")
        _check_places(backup)
        return backup

    def header(self, number: int) -> BackupHeader:
        """The first line of a backup, without a look at the rest.

        Raises:
            BackupDamaged: it makes no sense.
        """
        lines = self._lines(self._backup(number))
        try:
            return BackupHeader(**next(lines))
        except (ValueError, TypeError, StopIteration) as error:
            raise BackupDamaged(f"the file is invalid: {error}") from error
        finally:
            lines.close()

    def newest(self) -> Backup | None:
        """The newest that is whole; None where there is none."""
        for number in reversed(self.numbers()):
            try:
                return self.read(number)
            except BackupDamaged as error:
                self.warn(number, error)
        return None

    def warn(self, number: int, error: BackupDamaged) -> None:
        """Log that a backup cannot be read, unless it was never written to its end."""
        if self.has_end(number):
            logger.warning("ignoring damaged backup %s: %s", shorten(self._backup(number), 300), error)

    def body(self, id: str) -> Generator[bytes]:
        """The bytes of a body, piece by piece; none where it is not there."""
        fd = self._open_body(id)
        if fd is not None:
            try:
                while chunk := self._calls.read(fd, CHUNK):
                    yield chunk
            finally:
                self._calls.close(fd)

    def has_body(self, id: str, saved: SavedMessage) -> bool:
        """Whether the body of a message is there as it was copied."""
        size = crc = 0
        for chunk in self.body(id):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
        return (size, crc) == (saved.size, saved.crc)

    def bodies(self) -> set[str]:
        """The messages whose bodies are there, damaged or not. Only names are read: ten thousand take 30 ms."""
        return {os.path.basename(path) for path in self._body_paths()}

    # What is written

    def put_body(self, id: str, read: Callable[[int], bytes]) -> tuple[int, int]:
        """Copy a body. It is on the medium after the next :meth:`commit`.

        Args:
            read: its next bytes from an offset on; empty at its end.

        Returns:
            Its size and its CRC-32.
        """
        chunk = read(0)
        if not chunk:
            return 0, 0
        there = self._compare(id, read)
        if there is not None:
            return there
        fd = self._new(self._body(id))
        try:
            size = crc = 0
            while chunk:
                write_all(self._calls, fd, chunk)
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
                chunk = read(size)
        except BaseException:
            close_all(self._calls, [fd])
            raise
        self._files.add(fd)
        return size, crc

    def _compare(self, id: str, read: Callable[[int], bytes]) -> tuple[int, int] | None:
        """Size and CRC-32 of a body that is there and the same; None where there is none, or another."""
        # An older backup may name it, or a run that was killed has left it.
        fd = self._open_body(id)
        if fd is None:
            return None
        with contextlib.ExitStack() as unless_same:
            unless_same.callback(close_all, self._calls, [fd])
            size = crc = 0
            while chunk := read(size):
                if self._calls.read(fd, len(chunk)) != chunk:
                    return None
                size, crc = size + len(chunk), zlib.crc32(chunk, crc)
            if self._calls.read(fd, 1):
                return None
            unless_same.pop_all()
        self._files.add(fd)
        self._unsynced.add(os.path.dirname(self._body(id)))
        return size, crc

    def commit(self, backup: Backup) -> None:
        """Write a backup down. Durable on return, with every body that it names."""
        self._files.finish()
        self._syncs.whole(self._sync_folders)
        self._unsynced.clear()
        fd = self._new(self._backup(backup.header.number))
        try:
            crc = 0
            for lines in _batched(_encode(backup), _LINES_AT_ONCE):
                data = b"".join(lines)
                crc = zlib.crc32(data, crc)
                write_all(self._calls, fd, data)
            sync(self._calls, fd)  # all else first: what is here must not end with its last line by chance
            write_all(self._calls, fd, _line(["end", crc]))
            sync(self._calls, fd)
        finally:
            self._calls.close(fd)
        sync_folder(self._calls, f"{self.path}/backups")

    def _sync_folders(self) -> None:
        for folder in sorted(self._unsynced):
            sync_folder(self._calls, folder)

    def drop(self, number: int) -> None:
        """Take a backup away, and leave its bodies."""
        with contextlib.suppress(FileNotFoundError):
            self._calls.unlink(self._backup(number))

    def sweep(self, needed: set[str]) -> int:
        """Remove all bodies but the needed ones, once dropped backups cannot come back."""
        sync_folder(self._calls, f"{self.path}/backups")
        taken = [path for path in self._body_paths() if os.path.basename(path) not in needed]
        for path in taken:
            self._calls.unlink(path)
        return len(taken)

    def _body_paths(self) -> Iterator[str]:
        for folder, kind in self._names("bodies"):
            if kind is FileKind.FOLDER:
                yield from (f"{self.path}/bodies/{folder}/{name}" for name, _ in self._names(f"bodies/{folder}"))

    def _open_body(self, id: str) -> int | None:
        try:
            return self._calls.open(self._body(id), OPEN_READ)
        except FileNotFoundError:
            return None

    def _new(self, path: str) -> int:
        """A new file, in the place of one that no backup names."""
        folder = os.path.dirname(path)
        if self._calls.kind(folder) is None:
            self._syncs.make_folder(folder)
            self._unsynced.add(os.path.dirname(folder))
        self._unsynced.add(folder)
        try:
            return self._calls.open(path, OPEN_NEW)
        except FileExistsError:
            self._calls.unlink(path)
            return self._calls.open(path, OPEN_NEW)

    def _lines(self, path: str) -> Generator[Any]:
        """The lines of a backup but the last, which has to be right."""
        crc, rest = 0, b""
        line: Any = None
        with opened(self._calls, path, OPEN_READ) as fd:
            while chunk := self._calls.read(fd, CHUNK):
                *lines, rest = (rest + chunk).split(b"\n")
                for text in lines:
                    if line is not None:
                        yield line
                    line = json.loads(text)
                    if not (isinstance(line, list) and line[0] == "end"):
                        crc = zlib.crc32(text + b"\n", crc)
        if rest or line != ["end", crc]:
            raise BackupDamaged("the file's last line is missing or invalid")

    def _names(self, folder: str) -> list[tuple[str, FileKind]]:
        try:
            return self._calls.names(f"{self.path}/{folder}")
        except FileNotFoundError:
            return []

    def _backup(self, number: int) -> str:
        return f"{self.path}/backups/{number:06}.jsonl"

    def _body(self, id: str) -> str:
        return f"{self.path}/bodies/{id[6:8]}/{id}"


@contextmanager
def open_backups(
    calls: Calls, path: str, *, make: bool, syncfs: bool = False, threads: int = 1
) -> Iterator[BackupFolder]:
    """Open a folder of backups, and lock it.

    Args:
        make: make it, where it is missing or empty, to write to it.
        syncfs: whether one call brings the whole file system to the medium.
        threads: where it does not: how many files are synced at a time.

    Raises:
        StorageUnusable: it is something else, or another process is at work there.
    """
    shown = shorten(path, 200)
    if make:
        _make(calls, path)
    elif calls.kind(f"{path}/{_MARK}") is not FileKind.FILE:
        raise StorageUnusable(
            f"{shown} is not a backup folder, because it does not contain {_MARK}. Use the folder given to mq backup"
        )
    with contextlib.ExitStack() as stack:
        lock = calls.open(f"{path}/lock", _LOCK if make else OPEN_READ)
        stack.callback(close_all, calls, [lock])
        try:
            calls.lock(lock, exclusive=make)
        except BlockingIOError as error:
            raise StorageUnusable(
                f"{shown} is in use by another backup or restore: wait for that operation to finish"
            ) from error
        folder = BackupFolder(calls, path, syncfs=syncfs, threads=threads)
        stack.callback(folder.close)
        yield folder


def _check_places(backup: Backup) -> None:
    """Check that no path leads out of a root: the backup may be a stranger's.

    Raises:
        BackupDamaged: something does.
    """
    places = [(name, 1) for name in (*backup.queues, *backup.removed_queues)]
    places += [(path, 2) for path in backup.records]
    places += [(path, _DEPTHS.get(str(path).partition("/")[0], 0)) for path in backup.messages]
    for path, depth in places:
        parts = path.split("/") if isinstance(path, str) else []
        if len(parts) != depth or any(part in ("", ".", "..") or "\0" in part for part in parts):
            raise BackupDamaged(f"the file contains {shorten(str(path))}, which is not a valid path inside an mq root")


def is_vacant(calls: Calls, path: str) -> bool:
    """Whether a folder is empty, but for what every new file system has."""
    return all(name in _LEFT_BY_OTHERS for name, _ in calls.names(path))


def _make(calls: Calls, path: str) -> None:
    kind = calls.kind(path)
    if kind not in (None, FileKind.FOLDER):
        raise StorageUnusable(f"{shorten(path, 200)} is not a folder: choose an empty folder or a new one")
    if kind is None:
        make_folder(calls, path)
        sync_folder(calls, os.path.dirname(path))
    folders = f"{path}/backups", f"{path}/bodies"
    there = [folder for folder in folders if calls.kind(folder) is FileKind.FOLDER]
    mark = f"{path}/{_MARK}"
    if calls.kind(mark) is not FileKind.FILE:
        _check_begun(calls, path, there)
    for folder in folders:
        if folder not in there:
            make_folder(calls, folder)
    calls.close(calls.open(f"{path}/lock", _LOCK))
    if calls.kind(mark) is None:
        with opened(calls, mark, OPEN_NEW) as fd:
            write_all(calls, fd, f"backups of mq, format {FORMAT}: see docs/backup.md\n".encode())
            sync(calls, fd)
    sync_folder(calls, path)  # also where nothing was missing: its maker may have been killed before this


def _check_begun(calls: Calls, path: str, folders: Iterable[str]) -> None:
    """Check that a folder without the mark contains only what a first backup begins with."""
    ours = {"backups", "bodies", "lock", *_LEFT_BY_OTHERS}
    if any(name not in ours for name, _ in calls.names(path)) or any(calls.names(folder) for folder in folders):
        raise StorageUnusable(
            f"{shorten(path, 200)} is not empty and does not contain {_MARK}: choose an empty folder, a new one, "
            "or one with earlier backups"
        )


def _encode(backup: Backup) -> Iterator[bytes]:
    yield _line(backup.header._asdict())
    for path, content in sorted(backup.records.items()):
        yield _line(["r", path, content])
    for name in sorted(backup.queues):
        yield _line(["q", name])
    for name in sorted(backup.removed_queues):
        yield _line(["d", name])
    for path, saved in backup.messages.items():
        yield _line(["m", path, *saved])


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _batched(lines: Iterable[bytes], count: int) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    for line in lines:
        batch.append(line)
        if len(batch) >= count:
            yield batch
            batch = []
    if batch:
        yield batch
