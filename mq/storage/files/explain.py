"""The text of an error from the system, for an operator."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mq.errors import StorageUnusable
from mq.message import shorten

_IN_PLACE: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""Errors where something else is in the place of a file or a folder."""


def explain(error: OSError) -> str:
    """The text of an error from the system, for an operator."""
    advice = {
        errno.EACCES: "; grant this user write permission, or choose another --root",
        errno.EROFS: "; choose a --root on a writable file system",
        errno.ENOTDIR: "; choose a folder as --root",
        errno.ENOSPC: "; free some space first",
    }
    where = f" ({shorten(str(error.filename), 200)}: move it elsewhere)" if error.errno in _IN_PLACE else ""
    if error.filename and not where:
        where = f" ({shorten(str(error.filename), 200)})"
    return f"{error.strerror or error}{advice.get(error.errno or 0, '')}{where}"


@contextmanager
def or_unusable(refusal: str) -> Iterator[None]:
    """Refuse a root if the block meets an error from the system.

    Args:
        refusal: what mq cannot do, for the operator.

    Raises:
        StorageUnusable: it cannot, with the reason.
    """
    try:
        yield
    except OSError as error:
        raise StorageUnusable(f"{refusal}: {explain(error)}") from error
