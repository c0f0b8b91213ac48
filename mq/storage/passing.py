"""Which errors of the system pass by themselves. After any other one, what is on the medium is unknown."""

from __future__ import annotations

import errno
from typing import Final

from mq.storage.interface import Outcome, Result

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""No room on the file system, or none left for this user."""

NO_HANDLES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""This process has too many files open, or the machine has, or the kernel could not allocate."""

NO_RIGHT: Final = frozenset({errno.EACCES, errno.EPERM})
"""Permissions were taken away."""

AWAY: Final = frozenset({errno.ENOTCONN})
"""The servers of a network file system cannot be reached, or too few of them. What was asked for may have been done."""

STALE: Final = frozenset({errno.ESTALE})
"""Another machine has taken the file away while it was open here. GlusterFS says so when a file is synced, for it opens
it on its servers only then."""

PASSING: Final = NO_ROOM | NO_HANDLES | NO_RIGHT
"""Errors after which nothing was changed, and which can pass: the caller tries again later.

EROFS is none of them: nobody can mount a file system read-only while mq has a file of it open for writing. It is the
kernel who does it, when it has met an error there.
"""


_EXISTS: Final = Outcome(Result.EXISTS)


class SyncFailed(OSError):
    """A sync failed. Whatever its errno, that does not pass: what is on the medium is unknown."""


def passes(error: OSError) -> bool:
    """Whether it can be tried again later: nothing was changed, or all that was is nothing to rely on."""
    return is_away(error) or (error.errno in PASSING and not isinstance(error, SyncFailed))


def is_away(error: OSError) -> bool:
    """Whether nobody knows what was changed, and the medium may well answer again. Also when it is a sync that has
    failed: what was to be synced is answered with an error, and nothing is built on it."""
    return error.errno in AWAY | STALE


def refusal(error: OSError) -> Outcome:
    """The outcome of an operation that changed nothing; raises when that is not known."""
    if error.errno == errno.EEXIST:
        return _EXISTS
    if is_away(error):
        return Outcome(Result.UNKNOWN, reason=error.strerror or str(error))
    if passes(error):
        return Outcome(Result.FULL, reason=error.strerror or str(error))
    raise error
