"""How long a master has heard of no neighbour: one that only the coordinator hears serves its own clients alone.

It then leaves, and the next oldest leads, whom the third node may reach. It does so once for a span of silence: where
no node reaches another, mastership that went round and round would help none of them.
"""

from __future__ import annotations

from collections.abc import Callable


class Silence:
    """What a node hears of its neighbours while it leads.

    Args:
        most_seconds: so much of it is borne.
        clock: seconds that only go on.
    """

    def __init__(self, most_seconds: float, clock: Callable[[], float]) -> None:
        self.most_seconds = most_seconds
        self._clock = clock
        self._since = clock()
        self._has_left = False

    def is_too_long(self, *, hears: bool, leads: bool, has_others: bool) -> bool:
        """Whether the node has to leave. Asked every now and then; True once for each span of silence.

        Args:
            hears: a neighbour's link is connected here.
            leads: this node serves the highly available queues.
            has_others: other nodes are members, by what the coordinator says: they are alive.
        """
        now = self._clock()
        if hears:
            self._has_left = False
        if hears or not leads or not has_others:
            self._since = now
            return False
        if self._has_left or now - self._since < self.most_seconds:
            return False
        self._has_left = True
        return True
