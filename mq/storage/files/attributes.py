"""A message's checksum and attributes: extended attributes of its file, or a side file if they are too long."""

from __future__ import annotations

import contextlib

from mq.message import Properties
from mq.storage.files.calls import OPEN_NEW, Calls, write_all
from mq.storage.files.layout import (
    ATTRIBUTES,
    LARGEST_ATTRIBUTES,
    SUM,
    Layout,
    Planned,
    Sum,
    encode_side,
    noted_of,
)
from mq.storage.interface import Write


class NoFileAttributes:
    """A file system without extended attributes: a message's properties are in a side file."""

    def fit(self, attributes: bytes) -> bool:
        """Whether a file itself can hold its checksum and these attributes."""
        return False

    def set(self, fd: int, name: str, value: bytes) -> None:
        """Set one extended attribute of a file.

        Raises:
            OSError: from the system.
        """

    def begin(self, fd: int) -> None:
        """Mark a file as incomplete, before its first byte.

        Raises:
            OSError: from the system.
        """

    def note(self, fd: int, attributes: bytes, size: int, crc: int) -> None:
        """Set the properties of a file, before its first byte: so a partial file can be told from a complete one.

        Raises:
            OSError: from the system.
        """


class FileAttributes(NoFileAttributes):
    """A file system with extended attributes.

    Args:
        calls: the system.
        largest: bytes of attributes that an extended attribute may hold.
    """

    def __init__(self, calls: Calls, largest: int) -> None:
        self._calls = calls
        self._largest = largest

    def fit(self, attributes: bytes) -> bool:
        """Whether they are not too long."""
        return len(attributes) <= self._largest

    def set(self, fd: int, name: str, value: bytes) -> None:
        """By the system call of that name."""
        self._calls.set_attribute(fd, name, value)

    def begin(self, fd: int) -> None:
        """By the checksum of no bytes, with a size of 0."""
        self._calls.set_attribute(fd, SUM, Sum(0, 0).encode())

    def note(self, fd: int, attributes: bytes, size: int, crc: int) -> None:
        """By two extended attributes."""
        attributes, noted = noted_of(attributes, size, crc, self._largest)
        if attributes:
            self._calls.set_attribute(fd, ATTRIBUTES, attributes)  # first: where a cut leaves the sum, all is there
        self._calls.set_attribute(fd, SUM, noted)


def make_attributes(calls: Calls, *, xattrs: bool, journaled: bool = True) -> NoFileAttributes:
    """Return what sets the attributes of files.

    Args:
        calls: the system.
        xattrs: whether the file system has extended attributes.
        journaled: whether a power cut leaves each of them as it was set.
    """
    if not xattrs:
        return NoFileAttributes()
    # Without a journal only what fits into the inode, which the sum takes: a repair can ruin the block in which other
    # attributes are, when it was a deleted file's before.
    return FileAttributes(calls, LARGEST_ATTRIBUTES if journaled else 0)


def write_side(calls: Calls, layout: Layout, planned: Planned) -> int:
    """Write the side file of a message. Returns the open file.

    Args:
        calls: the system.
        layout: the root's folders.
        planned: writes the message.

    Raises:
        OSError: it was refused, and there is none.
    """
    operation = planned.operation
    assert isinstance(operation, Write), "only a written message gets a side file"
    path = f"{layout.properties}/{operation.id}"
    fd = calls.open(path, OPEN_NEW)
    try:
        write_all(calls, fd, encode_side(Properties(planned.size, planned.checksum, operation.attributes)))
    except OSError:
        calls.close(fd)
        with contextlib.suppress(OSError):  # recovery unlinks a side file without a message
            calls.unlink(path)
        raise
    return fd
