"""The outcomes that operations on files share."""

from __future__ import annotations

import errno
from typing import Final

from mq.storage.files.calls import is_transient, is_unsure
from mq.storage.interface import Outcome, Result

DONE: Final = Outcome(Result.DONE)
GONE: Final = Outcome(Result.GONE)
EXISTS: Final = Outcome(Result.EXISTS)
NO_QUEUE: Final = Outcome(Result.NO_QUEUE)
MORE: Final = Outcome(Result.MORE)


def refusal(error: OSError) -> Outcome:
    """Return the outcome of an operation that changed nothing.

    Raises:
        OSError: it is not known that nothing was changed.
    """
    if error.errno == errno.EEXIST:
        return EXISTS
    if is_unsure(error):
        return Outcome(Result.UNKNOWN, reason=error.strerror or str(error))
    if is_transient(error):
        return Outcome(Result.FULL, reason=error.strerror or str(error))
    raise error


def failed(failure: str, count: int) -> list[Outcome]:
    """Return the outcomes of so many operations on a disk that has failed."""
    return [Outcome(Result.FAILED, reason=failure)] * count
