"""One consumer that has a queue alone. A module of its own that is never compiled: others inherit from the class."""

from __future__ import annotations

from mq.broker.index import QueueIndex


class Exclusion:
    """One consumer alone has a queue's messages, until :meth:`end`."""

    def __init__(self, index: QueueIndex) -> None:
        self._index = index
        index.exclusion = self

    def end(self) -> None:
        """Let others in again. Does nothing the second time."""
        if self._index.exclusion is self:
            self._index.exclusion = None
