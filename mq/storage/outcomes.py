"""Outcomes that come with how late they were heard of.

A module of its own, since a subclass of ``list`` cannot be compiled.
"""

from __future__ import annotations

from mq.storage.interface import Outcome


class Outcomes(list[Outcome]):
    """The outcomes of a batch that was done in a thread, in order.

    Attributes:
        heard_late: seconds from the end of the batch until the event loop came to them.
    """

    heard_late: float = 0.0
