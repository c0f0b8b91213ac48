"""The package mq-native, where it is installed: a batch's system calls in one go, without Python's lock.

It is compiled for one machine and need not be there. What it does is nothing new: each step of it has a twin in
:mod:`mq.storage.batch` or :mod:`mq.storage.folders`, and what did not succeed at once is done again there, which knows
every error. So it holds no rule of its own, and a store without it differs in speed only.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from mq.storage.calls import Native
from mq.storage.passing import passes

try:
    import mq_native
except ImportError:
    mq_native = None  # type: ignore[assignment]

_TWIN_KNOWS: Final = frozenset({errno.EEXIST, errno.ENOENT, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
"""Errors besides those that pass after which nothing is wrong with the medium."""


def load_native() -> Native | None:
    """mq-native; None where it is not installed."""
    return mq_native


def check_refused(result: int, path: str) -> None:
    """A step was not done: see whether its twin may try.

    Raises:
        OSError: no, for the medium has failed, and is not asked again.
    """
    error = OSError(-result, os.strerror(-result), path)
    if error.errno not in _TWIN_KNOWS and not passes(error):
        raise error
