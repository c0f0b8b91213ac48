"""An exclusion gives a queue to one consumer alone. The module is never compiled, for other code inherits from it."""

from __future__ import annotations

from mq.broker.index import QueueIndex


class Exclusion:
    """Gives a queue's messages to one consumer alone, until :meth:`end`."""

    def __init__(self, index: QueueIndex) -> None:
        self._index = index
        index.exclusion = self

    def end(self) -> None:
        """Let other consumers in again, or the first that waits for its turn. A second call does nothing."""
        if self._index.exclusion is not self:
            return
        self._index.exclusion = None
        while self._index.turns_to_exclude:
            turn = self._index.turns_to_exclude.popleft()
            if not turn.abandoned:
                turn.set(Exclusion(self._index))
                break
