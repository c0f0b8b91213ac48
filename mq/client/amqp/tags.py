"""The tags of a connection: what a program calls the messages that it holds. Pure.

AMQP counts deliveries channel by channel; the seed counts them connection by connection, and always upwards.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")


class Held(NamedTuple, Generic[C]):
    """A message that was handed out: its channel, and its number there."""

    channel: C
    number: int


class Tags(Generic[C]):
    """What was handed out and not settled yet."""

    def __init__(self) -> None:
        self._last = 0
        self._held: dict[int, Held[C]] = {}
        self._counts: Counter[C] = Counter()

    def hand_out(self, channel: C, number: int) -> int:
        """The tag of the next message."""
        self._last += 1
        self._held[self._last] = Held(channel, number)
        self._counts[channel] += 1
        return self._last

    def settle(self, tag: int) -> Held[C] | None:
        """Whose tag it is, which it then is no longer; None when it is nobody's."""
        held = self._held.pop(tag, None)
        if held is not None:
            self._counts[held.channel] -= 1
        return held

    def holds(self, channel: C) -> bool:
        """Whether something of a channel is not settled."""
        return self._counts[channel] > 0

    def forget(self, channel: C) -> None:
        """A channel ended, and the server has taken back what was held on it."""
        if self._counts.pop(channel, 0):
            self._held = {tag: held for tag, held in self._held.items() if held.channel is not channel}
