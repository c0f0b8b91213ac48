"""The four folders of a root: what is in them, and how it is read. Synchronous; no threads, no waiting.

The two engines change them (:mod:`mq.storage.files.engine`), :mod:`mq.storage.files.recovery` repairs them. The
protocol, and every state that a crash can leave, is in docs/dev/storage-formats.md.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from mq.errors import StorageFull
from mq.lifecycle import State
from mq.message import MessageId, Properties, checksum, shorten
from mq.storage.files.calls import NO_HANDLES, OPEN_READ, UNREACHABLE, Calls, FileKind, Native, NativeColumns, opened
from mq.storage.files.layout import (
    ATTRIBUTES,
    NO_ATTRIBUTES,
    SUM,
    Layout,
    Senseless,
    Sum,
    announced_size,
    decode_attributes,
    decode_side,
    is_queue_name,
    leaf_name,
    parse_flat,
    parse_leaf,
)
from mq.storage.files.spare import Spare
from mq.storage.files.sync import close_all
from mq.storage.files.volume import Volume
from mq.storage.interface import Damage, Entry, Health, MessageColumns

logger = logging.getLogger("mq.storage")

READ_AT_ONCE: Final = 256 * 1024
"""Bodies up to this size, in bytes, are read and checked whole; larger ones are streamed."""
EMPTY: Final = "without bytes and without a checksum"
"""The flaw of a file that nothing was ever written to."""
_NO_SUM: Final = f"the message's extended attribute {SUM} is missing"
_REMEMBERED_SKIPS: Final = 1000


class Opened(NamedTuple):
    """A message's file as it was read.

    Attributes:
        properties: what was fixed when it was written.
        data: the bytes, when they are few.
        fd: the open file, when they are many; the caller closes it.
        damage: why the bytes are not those that were published, or why that is unknown; empty when they are.
        is_senseless: whether that is unknown, because the note of them is not mq's.
    """

    properties: Properties
    data: bytes = b""
    fd: int | None = None
    damage: str = ""
    is_senseless: bool = False


class Folders:
    """The folders of one root.

    Args:
        largest_attributes: bytes of attributes that a message's file may have
            (:func:`mq.storage.files.layout.largest_attributes`).
        has_side_files: whether a message may have a side file.
        native: mq-native, to read messages; None where it is not used.

    Attributes:
        read_spare: a handle for reading a message, when there is no other.
        emptied: folders of removed queues that are kept for now, although nothing is left in them.
    """

    def __init__(
        self,
        calls: Calls,
        layout: Layout,
        volume: Volume,
        *,
        largest_attributes: int = NO_ATTRIBUTES,
        has_side_files: bool = True,
        native: Native | None = None,
    ) -> None:
        self.calls = calls
        self.layout = layout
        self.volume = volume
        self.largest_attributes = largest_attributes
        self.has_side_files = has_side_files
        self.native = native
        self.read_spare: Spare | None = None
        self.health = Health()
        self.emptied: set[str] = set()
        self._skipped: set[str] = set()

    def note_damage(self, damage: Damage) -> None:
        """Log what is lost or cannot be read, and count it."""
        self.health.damages.append(damage)
        logger.error("damaged: %s: %s", shorten(damage.path, 300), damage.why)

    def note_damaged(self, entry: Entry, why: str) -> None:
        """Log a message that is damaged, and count it, once."""
        if entry.id not in self.health.damaged:
            logger.error("damaged: %s: %s", shorten(self.layout.path(entry), 300), why)
        self.health.note(entry, why)

    def queues(self) -> list[str]:
        """The queues there are: the folders in queues/ whose name is a queue's."""
        found = []
        for name, kind in self.calls.names(self.layout.queues):
            if kind is FileKind.FOLDER and is_queue_name(name):
                found.append(name)
            else:
                self.skip(self.layout.queues, name, "not the folder of a queue")
        return found

    def is_queue_missing(self, target: Entry) -> bool:
        """Whether the queue of an entry in READY has no folder."""
        folder = f"{self.layout.queues}/{target.queue}"
        return target.state is State.READY and self.calls.kind(folder) is not FileKind.FOLDER

    def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        """Entries in a state, at most `limit`, in no order."""
        if limit is None:
            return list(self._entries(state, queue))
        found: list[Entry] = []
        for entry in self._entries(state, queue):
            found.append(entry)
            if len(found) >= limit:
                break
        return found

    def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is: NEW, READY, DELAYED in this order."""
        for state in (State.NEW, State.READY, State.DELAYED):
            bare = Entry(queue, id, state)
            if self.calls.kind(self.layout.path(bare)) is FileKind.FILE:
                return bare
            for entry in self._entries(state, queue):
                if entry.id == id:
                    return entry
        return None

    def read(self, entry: Entry) -> Opened | None:
        """Open a message; None when it is not there.

        Raises:
            StorageFull: no file handle is free.
        """
        if self.read_spare is None:
            return self._read(entry)
        self.read_spare.keep()
        try:
            return self._read(entry)
        except StorageFull:
            with self.read_spare.lent():
                return self._read(entry)

    def read_many(self, entries: Sequence[Entry]) -> list[Opened | None]:
        """Open messages; None for each that is not there.

        Raises:
            StorageFull: no file handle is free.
        """
        if self.read_spare is not None:
            self.read_spare.keep()
        at_once = self._read_files(entries, READ_AT_ONCE)
        opened: list[Opened | None] = []
        try:
            for entry, read in zip(entries, at_once, strict=True):
                opened.append((None if isinstance(read, int) else _opened_whole(*read)) or self.read(entry))
        except StorageFull:
            close_all(self.calls, (each.fd for each in opened if each is not None and each.fd is not None))
            raise
        return opened

    def read_plain(self, entries: Sequence[Entry], largest: int) -> list[Opened | None]:
        """Read messages of at most `largest` bytes in one go; None for each that takes more than that."""
        read = self._read_files(entries, largest)
        return [None if isinstance(each, int) else _opened_whole(*each) for each in read]

    def _read_files(self, entries: Sequence[Entry], largest: int) -> Sequence[tuple[bytes, bytes, bytes] | int]:
        """As :meth:`Native.read_files` does it, with or without mq-native."""
        if self.native is not None:
            return self.native.read_files([self.layout.path(entry) for entry in entries], largest)
        return [self._read_file(entry, largest) for entry in entries]

    def read_columns(
        self, queue: str, messages: Sequence[int | Entry], base: int, most_bytes: int
    ) -> MessageColumns | None:
        """As :meth:`mq.storage.interface.ColumnStorage.read_columns`."""
        native = self.calls.native  # with both engines: Spark reads very many messages
        folder = self.layout.folder(State.READY, queue)
        if native is None or os.fsencode(folder) != folder.encode(errors="replace"):  # it is told paths in UTF-8 only
            return None
        names = [each.to_bytes(16) if isinstance(each, int) else leaf_name(each.id, each.meta) for each in messages]
        return _decoded(native.read_columns(folder, names, base, most_bytes, READ_AT_ONCE), base)

    def verify(self, entry: Entry) -> None:
        """Compare a message on the medium with its checksum, and note the result.

        Raises:
            StorageFull: no file handle is free.
        """
        self._drop_cached(entry)
        opened = self.read(entry)
        if opened is None:  # it has moved on
            return
        damage = opened.damage
        if opened.fd is not None:
            try:
                damage = self._flaw_of_large(opened, opened.fd) or ""
            except OSError as error:
                damage = f"{error.strerror}"
            finally:
                self.calls.close(opened.fd)
        self.health.verified += 1
        self.health.unchecked += opened.properties.checksum is None and not damage
        if damage and self.calls.kind(self.layout.path(entry)) is not None:
            self.note_damaged(entry, damage)
        elif not damage:
            self.health.damaged.pop(entry.id, None)

    def _drop_cached(self, entry: Entry) -> None:
        path = self.layout.path(entry)
        with contextlib.suppress(OSError), opened(self.calls, path, OPEN_READ) as fd:  # if it fails, the read says why
            self.calls.drop_cached(fd)

    def flaw(self, entry: Entry) -> str | None:
        """Why a message's file is not whole: "" when it is, None when that is unknown (no checksum, or unreadable)."""
        opened = self.read(entry)
        return opened.damage if opened is not None and opened.is_senseless else self._tear(opened)

    def tear(self, entry: Entry) -> str | None:
        """As :meth:`flaw`, but None, too, where its checksum makes no sense."""
        # No crash leaves such a checksum: the bytes may well be those of an acknowledged message.
        return self._tear(self.read(entry))

    def read_chunk(self, fd: int) -> bytes:
        """The next bytes of a large body."""
        return self.calls.read(fd, READ_AT_ONCE)

    def _tear(self, opened: Opened | None) -> str | None:
        """Why a message's file is torn: "" when it is not, None when that is unknown."""
        if opened is None:
            return "the file does not exist"
        if opened.fd is not None:
            try:
                return self._flaw_of_large(opened, opened.fd)
            except OSError:
                return None
            finally:
                self.calls.close(opened.fd)
        if opened.properties.checksum is None:
            # A file of ours gets its checksum before its first byte: without either it is torn, with bytes it is
            # foreign.
            if opened.damage == _NO_SUM:
                return _NO_SUM
            return None if opened.properties.size or opened.damage else EMPTY
        return opened.damage

    def _read_file(self, entry: Entry, largest: int) -> tuple[bytes, bytes, bytes] | int:
        """The data, sum and attributes of a file; 0 if these do not tell what it is."""
        calls = self.calls
        try:
            fd = calls.open(self.layout.path(entry), OPEN_READ)
        except OSError:
            return 0
        try:
            noted = calls.get_attribute(fd, SUM)
            size = announced_size(noted)
            if noted is None or size is None or size > largest:
                return 0
            attributes = calls.get_attribute(fd, ATTRIBUTES) if noted.endswith(b":a") else None
            return calls.read(fd, size + 1), noted, attributes or b""
        except OSError:
            return 0
        finally:
            calls.close(fd)

    def _read(self, entry: Entry) -> Opened | None:
        try:
            fd = self.calls.open(self.layout.path(entry), OPEN_READ)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            return _unreadable(error)
        try:
            opened = self._read_open(entry, fd)
        except OSError as error:
            self.calls.close(fd)
            return _unreadable(error)
        if opened is None or opened.fd is None:
            self.calls.close(fd)
        return opened

    def _read_open(self, entry: Entry, fd: int) -> Opened | None:
        size = self.calls.file_size(fd)
        if size is None:
            return None
        try:
            expected = self._properties(entry, fd) or Properties(size, None)
        except Senseless as error:
            return Opened(Properties(size, None), damage=str(error), is_senseless=True)
        if size != expected.size:
            return Opened(expected, damage=f"{size} bytes instead of {expected.size}")
        if size > READ_AT_ONCE:
            return Opened(expected, fd=fd)
        data = self._read_all(fd, size)
        if len(data) != size or (expected.checksum is not None and checksum(data) != expected.checksum):
            return Opened(expected, damage="the content does not match its checksum")
        return Opened(expected, data)

    def _properties(self, entry: Entry, fd: int) -> Properties | None:
        noted = Sum.decode(self.calls.get_attribute(fd, SUM))
        if noted is None:
            if self.calls.get_attribute(fd, ATTRIBUTES) is not None:
                raise Senseless(_NO_SUM)  # mq sets both: the other one was lost, or not set yet
            return self._side(entry) if self.has_side_files else None
        if not noted.attributes:
            return Properties(noted.size, noted.checksum)
        if noted.attributes == "a":
            attributes = decode_attributes(self.calls.get_attribute(fd, ATTRIBUTES))
            return Properties(noted.size, noted.checksum, attributes)
        side = self._side(entry)
        if side is None:
            raise Senseless("the message's attributes file is missing")
        if (side.size, side.checksum) != (noted.size, noted.checksum):
            raise Senseless(
                "the message's attributes file does not match the checksum in the message file's extended "
                f"attribute {SUM}"
            )
        return side

    def _side(self, entry: Entry) -> Properties | None:
        try:
            with opened(self.calls, f"{self.layout.properties}/{entry.id}", OPEN_READ) as fd:
                return decode_side(self._read_all(fd, self.calls.file_size(fd) or 0))
        except FileNotFoundError:
            return None

    def _read_all(self, fd: int, size: int) -> bytes:
        data = self.calls.read(fd, size)
        while len(data) < size and (more := self.calls.read(fd, size - len(data))):
            data += more
        return data

    def _flaw_of_large(self, opened: Opened, fd: int) -> str | None:
        if opened.properties.checksum is None:
            return None
        found = 0
        while chunk := self.read_chunk(fd):
            found = checksum(chunk, found)
        return "" if found == opened.properties.checksum else "the content does not match its checksum"

    def _entries(self, state: State, queue: str | None) -> Iterator[Entry]:
        if state is State.READY:
            assert queue is not None, "a scan of READY needs a queue"
        folder = self.layout.folder(state, queue or "")
        try:
            listed = self.calls.names(folder)
        except FileNotFoundError:
            return
        listed.reverse()
        while listed:  # each name goes when its entry comes: a million of both would stay in the process's memory
            name, kind = listed.pop()
            entry = parse_leaf(name, queue or "", state) if state is State.READY else parse_flat(name, state)
            if entry is None or not (kind is FileKind.FILE or (kind is FileKind.FOLDER and state is State.REMOVED)):
                self.skip(folder, name, "not a message")
            elif (queue is None or entry.queue == queue) and f"{folder}/{name}" not in self.emptied:
                yield entry

    def skip(self, folder: str, name: str, why: str) -> None:
        """Log once that a foreign name is left alone; after very many of them, that there are more."""
        path = f"{folder}/{name}"
        if path in self._skipped or len(self._skipped) >= _REMEMBERED_SKIPS:
            return
        self._skipped.add(path)
        self.health.skipped = len(self._skipped)
        logger.warning("ignored, %s: %s", why, ascii(path))
        if len(self._skipped) == _REMEMBERED_SKIPS:
            logger.warning("ignored %d files so far; further ignored files will not be logged", _REMEMBERED_SKIPS)


def _opened_whole(data: bytes, noted: bytes, attributes: bytes) -> Opened | None:
    """A file with its properties; None where these do not tell what it is."""
    found = checksum(data)
    whole = b"%d:%08x" % (len(data), found)
    if noted == whole:
        return Opened(Properties(len(data), found), data)
    if attributes and noted == whole + b":a":
        with contextlib.suppress(Senseless):
            return Opened(Properties(len(data), found, decode_attributes(attributes)), data)
    return None


def _decoded(columns: NativeColumns, base: int) -> MessageColumns:
    """Columns with their attributes decoded, up to the first message with some that make no sense."""
    *_, noted = columns
    known: dict[bytes, Mapping[str, Any]] = {}
    attributes: dict[int, Mapping[str, Any]] = {}
    for place, value in noted.items():
        if value not in known:
            try:
                known[value] = decode_attributes(value)
            except Senseless:
                return _first(place, columns, base)._replace(attributes=attributes)
        attributes[place] = known[value]
    return MessageColumns(*columns[:-1], attributes)


def _first(length: int, columns: NativeColumns, base: int) -> MessageColumns:
    _, times, ends, ids, bodies, _ = columns
    size = int.from_bytes(ends[4 * length - 4 : 4 * length], "little") - base if length else 0
    return MessageColumns(length, times[: 8 * length], ends[: 4 * length], ids[: 36 * length], bodies[:size], {})


def _unreadable(error: OSError) -> Opened:
    if error.errno in NO_HANDLES | UNREACHABLE:
        raise StorageFull(f"temporarily unable to open a message: {error.strerror}. Try again later") from error
    return Opened(Properties(0, None), damage=f"{error.strerror}")
