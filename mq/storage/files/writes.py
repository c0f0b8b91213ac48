"""The file of a message: what its calls need to know of an operation, worked out once (:class:`Planned`), and how it
is written: its properties, its body and its name; and its side file, if it has one."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Mapping
from typing import NamedTuple

from mq.lifecycle import State
from mq.message import MessageId, Properties, SharedAttributes, checksum, encode_attributes, with_checksum
from mq.storage.files.calls import OPEN_NEW, Calls, write_all
from mq.storage.files.folders import Folders
from mq.storage.files.layout import ATTRIBUTES, NO_ATTRIBUTES, SUM, encode_side, leaf_name
from mq.storage.files.outcomes import GONE, NO_QUEUE
from mq.storage.files.staging import StagedBody
from mq.storage.interface import FRESH, Entry, MessageOperation, Move, Outcome, Write


class Planned(NamedTuple):
    """An operation, and what its record in a log and its file calls need to know of it.

    Attributes:
        entry: where its message is after it; of an Unlink, before it.
        source: of a Move, the path before it.
        size, crc: of a Write, the length of its body in bytes, and the body's CRC-32.
        encoded: of a Write, its attributes as :func:`mq.message.encode_attributes` gives them.
        attributes, sum, has_side: of a Write, as :func:`noted_of` gives them.
    """

    operation: MessageOperation
    entry: Entry
    path: str
    source: str = ""
    size: int = 0
    crc: int = 0
    encoded: bytes = b""
    attributes: bytes = b""
    sum: bytes = b""
    has_side: bool = False


def plan(folders: Mapping[State, str], operation: MessageOperation, largest: int) -> Planned:
    """Return an operation, worked out.

    Args:
        folders: as :attr:`Layout.by_state`.
        largest: as :attr:`mq.storage.files.folders.Folders.largest_attributes`.
    """
    if isinstance(operation, Write):
        queue, id, body, attributes, meta, _, _, state, _ = operation
        entry = Entry(queue, id, state, meta)
        size, crc = (len(body), checksum(body)) if isinstance(body, bytes) else (body.size, body.checksum)
        encoded = attributes.json if isinstance(attributes, SharedAttributes) else b""
        if attributes and not encoded:  # else there are none, or an earlier message had the same
            encoded = encode_attributes(attributes)
        noted = noted_of(encoded, size, crc, largest)
        return Planned(operation, entry, _path_of(folders, entry), "", size, crc, encoded, *noted)
    if isinstance(operation, Move):
        left, state, meta, into, _, _ = operation
        entry = Entry(into or left.queue, left.id, state, meta)
        return Planned(operation, entry, _path_of(folders, entry), _path_of(folders, left))
    return Planned(operation, operation.entry, _path_of(folders, operation.entry))


def _path_of(folders: Mapping[State, str], entry: Entry) -> str:
    """Return the same as :meth:`Layout.path`. Each message of every client pays for it, so it makes no further call."""
    queue, id, state, meta = entry
    name = id if meta is FRESH else leaf_name(id, meta)
    return f"{folders[state]}/{queue}/{name}" if state is State.READY else f"{folders[state]}/{queue}:{name}"


def noted_of(attributes: bytes, size: int, crc: int, largest: int) -> tuple[bytes, bytes, bool]:
    """Return what the two extended attributes of a file hold: its attributes with their checksum, empty if there are
    none or more than `largest` bytes of them, and its sum, which says where they are. Then whether it has a side file.

    Args:
        attributes: as :func:`encode_attributes` gives them.
        size: of the body, in bytes.
        crc: its CRC-32.
        largest: bytes of attributes that a file may have, or :data:`NO_ATTRIBUTES`.
    """
    if largest == NO_ATTRIBUTES:
        return b"", b"", True
    if not attributes:
        return b"", b"%d:%08x" % (size, crc), False
    if len(attributes) > largest:
        return b"", b"%d:%08x:f" % (size, crc), True
    return with_checksum(attributes), b"%d:%08x:a" % (size, crc), False


def write_message(
    folders: Folders, planned: Planned, path: str, name: Callable[[Calls, int, str, str], object]
) -> int | Outcome:
    """Write the file of a message. Returns the open file, or why there is none.

    Args:
        path: the file for a body in memory. A staged body is in a file already.
        name: gives an open file its name: called with the calls, the file, its path and the path of the message, if the
            paths differ.

    Raises:
        OSError: it was refused, and nothing of it is left.
    """
    operation, entry, target, *_, attributes, noted, _ = planned
    assert isinstance(operation, Write), "only a Write makes a file"
    body = operation.body
    try:
        if isinstance(body, bytes):
            fd = folders.calls.open(path, OPEN_NEW)
        else:
            assert isinstance(body, StagedBody), "staged in another store"
            path, taken = body.file.path, body.file.take()
            if taken is None:
                return GONE  # discarded by its stager
            fd = taken
        try:
            set_properties(folders.calls, fd, attributes, noted)
            # nearly always all of it at once
            if isinstance(body, bytes) and (written := folders.calls.write(fd, body)) < len(body):
                write_all(folders.calls, fd, body[written:])
            if path != target:
                name(folders.calls, fd, path, target)
        except OSError:
            _undo(folders, planned, fd, path)
            raise
    except FileNotFoundError:
        if folders.is_queue_missing(entry):
            return NO_QUEUE
        raise
    return fd


def set_properties(calls: Calls, fd: int, attributes: bytes, noted: bytes) -> None:
    """Set the extended attributes of a message's file, before its first byte: so a partial file can be told from a
    complete one.

    Args:
        attributes, noted: as :func:`noted_of` gives them. An empty one is not set.
    """
    if attributes:
        calls.set_attribute(fd, ATTRIBUTES, attributes)  # first: where a cut leaves the sum, all is there
    if noted:
        calls.set_attribute(fd, SUM, noted)


def _undo(folders: Folders, planned: Planned, fd: int, path: str) -> None:
    """Leave nothing of a refused Write behind, and a staged body as it was.

    Raises:
        OSError: the file cannot be removed.
    """
    operation = planned.operation
    if isinstance(operation, Write) and isinstance(operation.body, StagedBody):
        operation.body.file.give_back(fd)
        return
    folders.calls.close(fd)
    if path != planned.path or planned.entry.state is State.NEW:
        with contextlib.suppress(OSError):  # recovery takes away what is left in state/stage/, or torn in new/
            folders.calls.unlink(path)
        return
    try:
        folders.volume.reserve.give_way(folders.calls.unlink, path)
    except OSError as error:  # no start would take it for torn, once the log says nothing of it
        raise OSError(errno.EIO, "cannot remove one of the message's files", path) from error


def write_side(folders: Folders, planned: Planned) -> int:
    """Write the side file of a message. Returns the open file.

    Raises:
        OSError: it was refused, and there is none.
    """
    operation = planned.operation
    assert isinstance(operation, Write), "only a written message gets a side file"
    fd = folders.calls.open(f"{folders.layout.properties}/{operation.id}", OPEN_NEW)
    try:
        write_all(folders.calls, fd, encode_side(Properties(planned.size, planned.crc, operation.attributes)))
    except OSError:
        folders.calls.close(fd)
        undo_side(folders, operation.id)
        raise
    return fd


def undo_side(folders: Folders, id: MessageId) -> None:
    """Unlink the side file of a message that is refused."""
    with contextlib.suppress(OSError):  # recovery unlinks a side file without a message
        folders.calls.unlink(f"{folders.layout.properties}/{id}")
