"""A backup of a root that may be served meanwhile: everything as it was at one instant, near the end of the run.

Names change and bytes do not. So the backup copies or opens bodies while it follows the names (``live_names``), until
at one instant every message is copied or open. That is the backup's instant: everything acknowledged before it is saved
as it was, as after a power cut just then. Messages that are open and not copied by then are copied after it.

The log is left alone: files are the truth as long as the machine is up. A root is refused when its daemon has not ended
cleanly and does not run: the log may have changes that the files lack.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, Properties, shorten
from mq.storage.files.backup_folder import (
    CHUNK,
    FORMAT,
    THREADS,
    Backup,
    BackupDamaged,
    BackupFolder,
    BackupHeader,
    SavedMessage,
    open_backups,
)
from mq.storage.files.calls import NO_PERMISSION, NO_ROOM, OPEN_FOLDER, OPEN_READ, Calls, FileKind, LinuxCalls, opened
from mq.storage.files.format import RootUse, open_moves_lock, read_use
from mq.storage.files.layout import ATTRIBUTES, SUM, Layout, Senseless, Sum, decode_side, parse_path
from mq.storage.files.live_names import QUEUES, RECORDS, Inotify, LiveNames, Notifier, Overflowed
from mq.storage.files.logged.boots import is_of_this_boot, life_of, lives_of
from mq.storage.files.logged.segments import LogDamaged, read_log
from mq.storage.files.mount import mount_of
from mq.storage.files.movers import try_lock
from mq.storage.files.records import decode_record
from mq.storage.files.recovery import rank
from mq.storage.files.sync import close_all
from mq.storage.interface import Entry

MOST_HELD: Final = 256
"""Files that are open at a time. An open file cannot be taken away before it is copied."""
_MOST_OVERFLOWS: Final = 20
_PAUSE_SECONDS: Final = 0.01
_MOST_PAUSES: Final = 3000
_LOCK_FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class _Held(NamedTuple):
    """A message's file that was opened.

    Attributes:
        side: the content of its side file.
        is_new: whether it may be half written: it was in new/, or its batch may still be under way.
    """

    id: MessageId
    fd: int
    side: bytes | None
    is_new: bool


class BackupReport(NamedTuple):
    """What a backup did.

    Attributes:
        copied: how many bodies were not there before.
        dropped: how many older backups were taken away.
    """

    header: BackupHeader
    copied: int
    dropped: int


def back_up(
    root: str, folder: str, *, keep: int, told: Callable[[int, int], object] = lambda done, total: None
) -> BackupReport:
    """Back up a root, served or not, into a folder of backups.

    Args:
        folder: the folder; made where it is missing.
        keep: how many backups stay there, this one included.
        told: called with how many messages are saved, and how many there are, now and then.

    Raises:
        StorageUnusable: in one line, why not and what to do.
        StorageFull: there is no room for it; earlier backups stay whole.
    """
    calls = LinuxCalls()
    root, folder = os.path.realpath(root), os.path.realpath(folder)
    if os.path.commonpath([root, folder]) in (root, folder):
        raise StorageUnusable(
            f"the backup folder {shorten(folder, 200)} must not be inside the root or contain it: choose another folder"
        )
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(servable(calls, root, is_remote=mount_of(root).remote))
            notifier = Inotify()
            stack.callback(notifier.close)
            above = mount_of(os.path.dirname(folder) if calls.kind(folder) is None else folder)
            syncfs = above.can_syncfs()
            backups = stack.enter_context(open_backups(calls, folder, make=True, syncfs=syncfs, threads=THREADS))
            return save(calls, root, backups, notifier, keep=keep, told=told)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull(
                f"no space left for the backup in {shorten(folder, 200)}: free some space, or keep fewer "
                "backups (--keep). Earlier backups remain complete"
            ) from error
        where = f" ({shorten(str(error.filename), 200)})" if error.filename else ""
        who = "; run it as the user who serves the root, or as root" if error.errno in NO_PERMISSION else ""
        raise StorageUnusable(f"cannot back up {shorten(root, 200)}: {error.strerror}{where}{who}") from error


@contextmanager
def servable(calls: Calls, root: str, *, is_remote: bool) -> Iterator[None]:
    """Check that the files of a root are all there is of it. Where other machines may change the root, keep them out
    for the length of the block.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    layout, shown = Layout.under(root), shorten(root, 200)
    if any(calls.kind(path) is not FileKind.FOLDER for path in (layout.new, layout.queues, layout.state)):
        raise StorageUnusable(f"{shown} is not an mq root, because the folders new/, queues/ and state/ are missing")
    use = read_use(calls, layout)
    if use is RootUse.RESTORING:
        raise StorageUnusable(
            f"{shown} is only partially restored: run mq restore again with the same backup and the same root"
        )
    if use is RootUse.LOG:
        _check_log(calls, layout, shown)
    locks: list[int] = []
    try:
        if is_remote and not try_lock(calls, partial(calls.open, layout.lock, _LOCK_FILE), locks, exclusive=True):
            raise StorageUnusable(
                f"{shown} is on a network file system that does not report changes made by other machines, and "
                "daemons are using it: stop all daemons during the backup"
            )
        yield
    finally:
        close_all(calls, locks)


def _check_log(calls: Calls, layout: Layout, shown: str) -> None:
    """Check that the files have all changes of a log in use.

    Raises:
        StorageUnusable: they may not.
    """
    with opened(calls, layout.state, OPEN_FOLDER) as state:
        life = life_of(state)
    try:
        lives = lives_of(calls, layout.log_folder)
    except (FileNotFoundError, LogDamaged):
        lives = {""}  # its daemon has just begun with it, or will say what is wrong
    if life and lives == {life}:
        return  # all that was done since the log was begun is in the kernel; no lock is tried, which a start could meet
    locks: list[int] = []
    try:
        is_served = not try_lock(calls, partial(calls.open, layout.lock, _LOCK_FILE), locks, exclusive=True)
        is_repaired = not try_lock(calls, partial(open_moves_lock, calls, layout, make=False), locks, exclusive=False)
    finally:
        close_all(calls, locks)
    if not is_served and _has_records(calls, layout):
        raise StorageUnusable(
            f"the daemon that served {shown} did not stop cleanly, and its write-ahead log may contain changes that "
            "are missing from the message files. Start the daemon or run mq doctor --repair, then create the backup"
        )
    if is_served and (is_repaired or not all(map(is_of_this_boot, lives))):
        raise StorageUnusable(f"a daemon that is starting up is repairing {shown}. Try again later")


def _has_records(calls: Calls, layout: Layout) -> bool:
    try:
        return bool(read_log(calls, layout.log_folder))
    except LogDamaged:
        return True


def save(
    calls: Calls,
    root: str,
    backups: BackupFolder,
    notifier: Notifier,
    *,
    keep: int,
    told: Callable[[int, int], object] = lambda done, total: None,
    instant: Callable[[], object] = lambda: None,
    pause: Callable[[float], object] = time.sleep,
) -> BackupReport:
    """Save a root.

    Args:
        backups: where to.
        notifier: tells what becomes of names in the root.
        keep: how many backups stay.
        told: as in :func:`back_up`.
        instant: called when the instant of the backup is over.
        pause: lets so many seconds pass.

    Raises:
        StorageUnusable: the folder has another root's backups, or the root changes too fast.
    """
    before = backups.newest()
    if before is not None and before.header.root != root:
        raise StorageUnusable(
            f"{shorten(backups.path, 200)} contains backups of root {shorten(before.header.root, 200)}: "
            f"choose another backup folder for root {shorten(root, 200)}"
        )
    known = {_id_of(path): saved for path, saved in before.messages.items()} if before is not None else {}
    # A body that is gone from the folder is copied again. Without this no backup would have it as long as it waits.
    there = backups.bodies()
    known = {id: saved for id, saved in known.items() if id in there or not saved.size}
    number = max(backups.numbers(), default=0) + 1
    saver = _Saver(calls, Layout.under(root), notifier, backups, known, told, pause)
    try:
        saver.reach_instant()
        moment = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        instant()
        saver.finish()
    finally:
        saver.close()
    backup = saver.backup(number, root, moment)
    backups.commit(backup)
    return BackupReport(backup.header, saver.copied, _drop_old(backups, backup, keep))


def _drop_old(backups: BackupFolder, newest: Backup, keep: int) -> int:
    numbers = backups.numbers()
    whole = [number for number in numbers if backups.has_end(number)]
    kept = set(whole[-keep:])
    old = [number for number in numbers if number not in kept]
    if not old:
        return 0
    for number in old:
        backups.drop(number)
    needed = {_id_of(path) for path in newest.messages}
    for number in kept - {newest.header.number}:
        with contextlib.suppress(BackupDamaged):
            needed.update(_id_of(path) for path in backups.read(number).messages)
    backups.sweep(needed)
    return len(old)


class _Saver:
    """One backup, until its instant and after it."""

    def __init__(
        self,
        calls: Calls,
        layout: Layout,
        notifier: Notifier,
        backups: BackupFolder,
        known: Mapping[str, SavedMessage],
        told: Callable[[int, int], object],
        pause: Callable[[float], object],
    ) -> None:
        self.copied = 0
        self._calls = calls
        self._layout = layout
        self._pause = pause
        self._names = LiveNames(calls, layout, notifier)
        self._backups = backups
        self._known = known
        self._told = told
        self._saved: dict[str, SavedMessage] = {}
        self._held: dict[str, _Held] = {}
        self._torn: dict[str, _Held] = {}
        self._refused: set[str] = set()
        self._records: dict[str, bytes] = {}
        self._torn_records: dict[str, int] = {}

    def close(self) -> None:
        """Let go of what is open."""
        messages = (*self._held.values(), *self._torn.values())
        close_all(self._calls, [*(held.fd for held in messages), *self._torn_records.values()])

    def reach_instant(self) -> None:
        """Save messages, until at one instant all of them are saved, or open."""
        for _ in range(_MOST_OVERFLOWS):
            with contextlib.suppress(Overflowed):  # what is saved stays saved
                self._names.begin()
                self._names.catch_up()
                pauses = 0
                while self._reach(list(self._names.fresh())) or self._names.is_half:
                    pauses = pauses + 1 if self._names.is_half else 0
                    self._outwait_half(pauses)
                    self._names.catch_up()
                return
        raise StorageUnusable(
            "the root is changing faster than inotify can report: raise fs.inotify.max_queued_events, or try "
            "again when the load is lower"
        )

    def _outwait_half(self, pauses: int) -> None:
        """Give groups that may be half done time to be ended.

        Raises:
            StorageUnusable: they had a lot of it.
        """
        if pauses > _MOST_PAUSES:
            raise StorageUnusable(
                "the daemon is not completing its pending changes: it may be suspended, or its disk may have failed. "
                "Restart the daemon, then create the backup"
            )
        if pauses:
            self._pause(_PAUSE_SECONDS)

    def finish(self) -> None:
        """Copy the open messages, and again those that were half written: they are whole now, or were not acknowledged
        at the instant."""
        for held in [*self._held.values(), *self._torn.values()]:
            saved = self._saved[held.id] = self._save(held)
            if held.is_new and _is_torn(saved):
                self._refused.add(held.id)  # by a full disk, or its daemon was killed: no answer said that it is stored
        for path, fd in self._torn_records.items():
            self._records[path] = self._read(fd)

    def backup(self, number: int, root: str, instant: str) -> Backup:
        """The backup: the root as it was at the instant."""
        records: dict[str, str] = {}
        queues: list[str] = []
        places: dict[str, tuple[Entry, str]] = {}
        for folder, names in self._names.files.items():
            if folder.startswith(RECORDS):
                paths = [_record(folder, name) for name in names]
                records.update((path, self._records[path].decode("latin-1")) for path in paths)
                continue
            if folder.startswith(QUEUES):
                queues.append(folder.removeprefix(f"{QUEUES}/"))
            for name in names:
                _note_place(places, parse_path(f"{folder}/{name}"), f"{folder}/{name}")
        is_kept = {
            id: entry.state is not State.REMOVED and id not in self._refused for id, (entry, _) in places.items()
        }
        here = [(path, id) for id, (_, path) in places.items() if is_kept[id]]
        messages = {path: self._saved[id] for path, id in here}
        size = sum(saved.size for saved in messages.values())
        header = BackupHeader(FORMAT, number, root, instant, len(queues), len(messages), size)
        return Backup(header, records, queues, sorted(self._names.removed_queues), messages)

    # Until the instant

    def _reach(self, fresh: list[tuple[str, str]]) -> bool:
        """Save or open new messages. True when that took time, so that the instant is yet to come."""
        took = False
        for folder, name in fresh:
            if folder.startswith(RECORDS):
                took = True
                self._save_record(folder, name)
            else:
                entry = parse_path(f"{folder}/{name}")
                if entry is not None and entry.state is not State.REMOVED and not self._is_reached(entry.id):
                    took = True
                    self._hold(entry, folder, name)
            if len(self._held) >= MOST_HELD:
                self._copy_held()
        return took

    def _is_reached(self, id: str) -> bool:
        if id not in self._saved and id in self._known:
            self._saved[id] = self._known[id]
        return id in self._saved or id in self._held or id in self._torn

    def _hold(self, entry: Entry, folder: str, name: str) -> None:
        """Open a message, unless it has moved on: then its next name follows."""
        fd = self._open(folder, name)
        if fd is None:
            return
        noted = self._calls.get_attribute(fd, SUM)
        # It was there before the message had a name, so it is there now, if the message still is.
        side = self._read_side(entry.id) if noted is None or noted.endswith(b":f") else None
        is_new = entry.state is State.NEW or entry.meta.receives <= 1
        self._held[entry.id] = _Held(entry.id, fd, side, is_new)

    def _copy_held(self) -> None:
        """Copy the open messages, and keep those open that are half written."""
        total = sum(map(len, self._names.files.values()))
        while self._held:
            held = next(iter(self._held.values()))
            saved = self._save(held, follow=self._names.catch_up)
            del self._held[held.id]
            if held.is_new and _is_torn(saved):
                self._torn[held.id] = held
            else:
                self._saved[held.id] = saved
                self._calls.close(held.fd)
            self._told(len(self._saved), total)

    def _save_record(self, folder: str, name: str) -> None:
        fd = self._open(folder, name)
        if fd is None:
            return
        path = _record(folder, name)
        self._records[path] = self._read(fd)
        close_all(self._calls, [old for old in [self._torn_records.pop(path, None)] if old is not None])
        if _is_record(self._records[path]):
            self._calls.close(fd)
        else:
            self._torn_records[path] = fd

    # Reading

    def _open(self, folder: str, name: str) -> int | None:
        path = self._layout.above(f"{folder}/{name}")
        try:
            fd = self._calls.open(path, OPEN_READ)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            self._names.discard(folder, name)  # a link, or a socket
            return None
        if self._calls.file_size(fd) is None:
            self._names.discard(folder, name)
            self._calls.close(fd)
            return None
        return fd

    def _save(self, held: _Held, follow: Callable[[], object] = lambda: None) -> SavedMessage:
        def read(offset: int) -> bytes:
            follow()
            return self._calls.read_at(held.fd, CHUNK, offset)

        size, crc = self._backups.put_body(held.id, read)
        self.copied += 1
        noted, attributes = (self._calls.get_attribute(held.fd, name) for name in (SUM, ATTRIBUTES))
        return SavedMessage(size, crc, _text(noted), _text(attributes), _text(held.side))

    def _read_side(self, id: MessageId) -> bytes | None:
        try:
            with opened(self._calls, f"{self._layout.properties}/{id}", OPEN_READ) as fd:
                return self._read(fd)
        except FileNotFoundError:
            return None

    def _read(self, fd: int) -> bytes:
        content = b""
        while chunk := self._calls.read_at(fd, CHUNK, len(content)):
            content += chunk
        return content


def _note_place(places: dict[str, tuple[Entry, str]], entry: Entry | None, path: str) -> None:
    """Note a message's place; of several, the one that a start would keep."""
    if entry is not None:
        other = places.get(entry.id)
        if other is None or rank(entry) > rank(other[0]):
            places[entry.id] = entry, path


def _record(folder: str, name: str) -> str:
    return f"{folder.removeprefix(f'{RECORDS}/')}/{name}"


def _id_of(path: str) -> str:
    return path.rpartition("/")[2].rpartition(":")[2].partition(",")[0]


def _is_torn(saved: SavedMessage) -> bool:
    """Whether a message may be half written yet."""
    try:
        if saved.side is not None:
            told: Sum | Properties | None = decode_side(saved.side.encode("latin-1"))
        else:
            told = Sum.decode(None if saved.sum is None else saved.sum.encode("latin-1"))
    except Senseless:
        return False
    return (told.size, told.checksum) != (saved.size, saved.crc) if told is not None else not saved.size


def _is_record(content: bytes) -> bool:
    try:
        decode_record(content)
    except ValueError:
        return False
    return True


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
