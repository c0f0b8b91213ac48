"""Browsing: what is READY, by sequence, without taking it. Ranges of sequences can be read side by side."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from mq.broker.index import QueueIndex
from mq.broker.looking import Looking, Seen
from mq.message import MessageIds


class Browsed(NamedTuple):
    """Messages that were looked at.

    Attributes:
        messages: in order, each with its sequence; close their bodies.
        after: go on from here; None when nothing is left.
    """

    messages: Sequence[Seen]
    after: int | None


class Ranges(NamedTuple):
    """A queue cut into parts of about the same number of messages.

    Attributes:
        messages: how many there are.
        high: no message published from now on, while the broker runs, has a sequence as low as this.
        bounds: the greatest sequence of each part.
    """

    messages: int
    high: int
    bounds: Sequence[int]


class Browsing:
    """Shows READY messages by sequence, without taking them. Got as :attr:`Broker.browsing`.

    Args:
        looking: shows messages.
        ids: makes sequences.
        look_up: gives a queue, with all in it that was published before.
    """

    def __init__(self, looking: Looking, ids: MessageIds, look_up: Callable[[str], Awaitable[QueueIndex]]) -> None:
        self._looking = looking
        self._ids = ids
        self._look_up = look_up

    async def browse(self, queue: str, *, after: int = 0, up_to: int | None = None, most: int = 100) -> Browsed:
        """Some READY messages by their sequence; close their bodies.

        Args:
            queue: the queue's name.
            after: they come after this one.
            up_to: and not after this one.
            most: how many at the most.

        Raises:
            NoSuchQueue: there is none.
        """
        index = await self._look_up(queue)
        sequences, entries = index.between(after, up_to, most)
        messages = await self._looking.see(index, entries, sequences)
        return Browsed(messages, sequences[-1] if len(sequences) >= most else None)

    async def ranges(self, queue: str, parts: int) -> Ranges:
        """A queue's READY messages cut into at most so many parts, which can be browsed side by side.

        Raises:
            NoSuchQueue: there is none.
        """
        sequences = (await self._look_up(queue)).sequences()
        count = len(sequences)
        parts = min(parts, count)
        bounds = sorted({sequences[(part + 1) * count // parts - 1] for part in range(parts)})
        return Ranges(count, self._ids.new().time, bounds)
