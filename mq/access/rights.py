"""What users may do, and on which queues."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from mq.access.user_limits import NO_LIMITS, UserLimits
from mq.lifecycle import QueueOwner

EVERY_QUEUE: Final = "*"
"""The pattern that also stands for the broker as a whole."""


class Right(StrEnum):
    """What a user may be allowed to do. The values are the words of the users file and of ``--right``."""

    PUBLISH = "publish"
    CONSUME = "consume"
    CONFIGURE = "configure"
    PAUSE = "pause"
    MONITOR = "monitor"
    ADMINISTER = "administer"


@dataclass(frozen=True)
class User:
    """A user that has logged in.

    Attributes:
        rights: patterns of queue names by right; what is not there is not allowed.
    """

    name: str
    rights: Mapping[Right, tuple[str, ...]]
    limits: UserLimits = NO_LIMITS

    def may(self, right: Right, queue: str | None) -> bool:
        """Whether the user has that right on a queue. The right to administer it includes all others.

        Args:
            queue: its name, whether the queue exists or not; None is the broker as a whole.
        """
        patterns = self.rights.get(right, ()) + self.rights.get(Right.ADMINISTER, ())
        if queue is None:
            return EVERY_QUEUE in patterns
        return any(_compiled(pattern).match(queue) for pattern in patterns)

    def may_something(self, queue: str) -> bool:
        """Whether the user has any right on that queue."""
        return any(_compiled(pattern).match(queue) for pattern in self.patterns)

    @functools.cached_property
    def patterns(self) -> frozenset[str]:
        """The patterns of all rights, each once: a list of ten thousand queues is matched with each."""
        return frozenset(pattern for patterns in self.rights.values() for pattern in patterns)


def owner_of(user: User | None) -> QueueOwner | None:
    """A user, as the broker keeps it with the queues that are made for it."""
    return None if user is None else QueueOwner(user.name, user.limits.queues)


@functools.lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    """As a shell has it, for whole names, with capitals told apart: ``*`` any characters, ``?`` one. No brackets."""
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))
