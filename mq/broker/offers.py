"""What was just published and somebody waits for is offered to them straight from NEW: it need not be delivered first,
and need not be read back.

An offer is an entry in NEW that the mover has not been told of. Whoever serves the queue next takes it, or leaves it to
the mover. Only what is first in its queue is offered, so the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mq.broker.index import QueueIndex
from mq.broker.recent import Recent
from mq.message import BytesBody, MessageId, Properties, checksum
from mq.storage.interface import FRESH, Entry, Stored

MOST_OFFERS: Final = 64
"""Of one queue: their bodies are in memory until a worker comes."""
LARGEST_BODY: Final = 1 << 16
"""Bytes of a body that is offered; a longer one is delivered, and read from the store."""


class Taken(NamedTuple):
    """A message that was taken out of its queue's index.

    Attributes:
        entry: where it is.
        stored: what reading it would give, where that is known.
    """

    entry: Entry
    stored: Stored | None = None


class Offers:
    """The messages that are offered just now.

    Args:
        wanted: how many of a queue's messages are waited for.
        recent: gets the bodies of what is not offered.
        is_open: whether messages are offered here at all; they are not where others take them, too.
    """

    def __init__(self, wanted: Callable[[QueueIndex], int], recent: Recent, *, is_open: bool) -> None:
        self._wanted = wanted
        self._recent = recent
        self._is_open = is_open
        self._offers: dict[QueueIndex, dict[MessageId, Taken]] = {}

    def consider(self, index: QueueIndex, entry: Entry, body: object, attributes: Mapping[str, Any]) -> None:
        """A message has been written, and is about to stand in NEW. If it is not offered it is to be delivered."""
        if not self._is_open or not isinstance(body, bytes) or len(body) > LARGEST_BODY:
            return
        if entry.meta == FRESH and self._offer(index, entry, body, attributes):
            return
        self._recent.keep(entry.id, body, attributes)

    def _offer(self, index: QueueIndex, entry: Entry, body: bytes, attributes: Mapping[str, Any]) -> bool:
        offers = self._offers.get(index, {})
        is_first = not index.ready and not index.delivering and len(index.new) == len(offers)
        if is_first and not index.settings.paused and len(offers) < min(self._wanted(index), MOST_OFFERS):
            stored = Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))
            self._offers.setdefault(index, offers)[entry.id] = Taken(entry, stored)
            return True
        return False

    def is_offered(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether it is offered."""
        return entry.id in self._offers.get(index, ())

    def take(self, index: QueueIndex) -> Taken | None:
        """Take the first message that is offered, out of the index too; None when one that is READY comes before it.

        Offers come in the order in which their writers were told, and that is any. What was published after them may
        have been delivered meanwhile, and what was published before may have come back.
        """
        offers = self._offers.get(index)
        while offers:
            offer = offers[min(offers, key=_place)]
            ready = index.first(1)
            if ready and ready[0].joined < offer.entry.id.time:
                return None
            del offers[offer.entry.id]
            if index.new.get(offer.entry.id) == offer.entry:
                del index.new[offer.entry.id]
                return offer
        return None

    def leave(self, index: QueueIndex) -> list[Entry]:
        """Nobody takes the others: those that are still there, to be delivered."""
        offers = self._offers.pop(index, {})
        return [offer.entry for offer in offers.values() if index.new.get(offer.entry.id) == offer.entry]


def _place(id: MessageId) -> int:
    return id.key
