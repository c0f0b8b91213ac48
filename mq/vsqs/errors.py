"""What VSQS says when the operating system refuses: mq's errors, by whose fault, with what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from mq.errors import MQError, NoSuchQueue, StorageFailed, StorageFull, StorageUnusable
from mq.vsqs.watch import FolderLeft

_PASSING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_REFUSED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.EISDIR, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}
)


@contextlib.contextmanager
def told(path: str) -> Iterator[None]:
    """For a block that uses the folder `path`: what it raises of the operating system's comes out as mq's.

    Raises:
        NoSuchQueue: the folder is not there.
        StorageFull: no room or no handles just now.
        StorageUnusable: not permitted, or not possible there.
        StorageFailed: anything else.
    """
    try:
        yield
    except FolderLeft as error:
        raise _no_queue(path) from error
    except OSError as error:
        raise _translated(path, error) from error


def failed(path: str, error: OSError) -> StorageFailed:
    """The error for a disk that does not do its work."""
    return StorageFailed(
        f"{path}: {error.strerror}; what is on the disk is unknown: repair it, remount it, and open the queue anew"
    )


def _translated(path: str, error: OSError) -> MQError:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return _no_queue(path)
    if error.errno in _PASSING:
        return StorageFull(f"{path}: {error.strerror}; try again later")
    if error.errno in _REFUSED:
        return StorageUnusable(f"{path}: {error.strerror}; a queue's folder has to be readable, writable and lockable")
    return failed(path, error)


def _no_queue(path: str) -> NoSuchQueue:
    return NoSuchQueue(f"{path} is not there, or not the folder that was opened: make it with mkdir, open it anew")
