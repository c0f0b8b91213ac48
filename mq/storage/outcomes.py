"""Outcomes that come with how the batch was done.

A module of its own, since a subclass of ``list`` cannot be compiled.
"""

from __future__ import annotations

from mq.storage.interface import Outcome


class Outcomes(list[Outcome]):
    """The outcomes of a batch, in order, with what the committer learns from it.

    Attributes:
        heard_late: seconds from the end of the batch until the event loop came to them, if a thread did it.
        in_memory: how many of the operations were done in memory. They share no flush, so that a smaller batch of them
            costs nothing.
    """

    heard_late: float = 0.0
    in_memory: int = 0
