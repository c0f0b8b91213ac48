"""The text of an error from the system, for an operator."""

from __future__ import annotations

import errno
from typing import Final

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
