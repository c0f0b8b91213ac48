"""Messages published a moment ago: bodies still in memory, and offers, which a worker can lease straight from NEW.

An offer is an entry in NEW that the mover does not know of yet. The worker that serves the queue next takes it, or has
it delivered. Only a message that is the queue's first is offered, which keeps the order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from mq.broker.index import QueueIndex
from mq.message import BytesBody, MessageId, Properties, checksum
from mq.storage.interface import FRESH, Entry, Stored

MOST_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all recent bodies together."""
OVERHEAD: Final = 1024
"""Bytes that a message counts besides its body: about what its id and its attributes take."""
MOST_OFFERS: Final = 64
"""Offers of one queue: their bodies stay in memory until a worker comes."""
LARGEST_BODY: Final = 1 << 16
"""Bytes of the longest body that is offered. A longer one is delivered, and read from the store."""


class RecentBodies:
    """A cache of bodies by message id, each read once at the most; the oldest make room.

    Args:
        most_bytes: its size, with :data:`OVERHEAD` for each message.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[MessageId, _RecentBody] = OrderedDict()
        self._bytes = 0

    def keep(self, id: MessageId, body: bytes, attributes: Mapping[str, Any]) -> None:
        """Keep the body of a message that was stored."""
        if id in self._kept:
            self._let_go(id)
        self._kept[id] = _RecentBody(body, attributes)
        self._bytes += len(body) + OVERHEAD
        while self._bytes > self._most_bytes:
            self._let_go(next(iter(self._kept)))

    def __contains__(self, id: MessageId) -> bool:
        return id in self._kept

    def take(self, id: MessageId) -> Stored | None:
        """Return what reading the message would, and forget it; None when it is not kept."""
        if id not in self._kept:
            return None
        body, attributes = self._let_go(id)
        return Stored(Properties(len(body), checksum(body), attributes), BytesBody(body))

    def _let_go(self, id: MessageId) -> _RecentBody:
        kept = self._kept.pop(id)
        self._bytes -= len(kept.body) + OVERHEAD
        return kept


class _RecentBody(NamedTuple):
    body: bytes
    attributes: Mapping[str, Any]


class Candidate(NamedTuple):
    """A message that was taken out of its queue's index, to be handed out.

    Attributes:
        entry: where it is.
        stored: what a read would return, where memory has it.
    """

    entry: Entry
    stored: Stored | None = None


class Offers:
    """The messages in NEW that are offered.

    Args:
        wanted: returns how many messages of a queue are waited for.
        recent: gets the bodies of messages that are not offered.
        is_open: whether to offer at all; not on a store from which other brokers take messages, too.
    """

    def __init__(self, wanted: Callable[[QueueIndex], int], recent: RecentBodies, *, is_open: bool) -> None:
        self._wanted = wanted
        self._recent = recent
        self._is_open = is_open
        self._offers: dict[QueueIndex, dict[MessageId, Candidate]] = {}

    def consider(self, index: QueueIndex, entry: Entry, body: object, attributes: Mapping[str, Any]) -> None:
        """Offer a message that was written and is about to stand in NEW, if it qualifies."""
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
            self._offers.setdefault(index, offers)[entry.id] = Candidate(entry, stored)
            return True
        return False

    def is_offered(self, index: QueueIndex, entry: Entry) -> bool:
        """Whether a message is offered."""
        return entry.id in self._offers.get(index, ())

    def take(self, index: QueueIndex) -> Candidate | None:
        """Take the first offer, out of the index too; None without one, or if a READY message comes before it."""
        offers = self._offers.get(index)
        while offers:
            offer = offers[min(offers, key=_place)]  # offers come in any order: that in which publishers were answered
            ready = index.first(1)  # a later message may have been delivered meanwhile, an earlier one have come back
            if ready and ready[0].joined < offer.entry.id.time:
                return None
            del offers[offer.entry.id]
            if index.new.get(offer.entry.id) == offer.entry:
                del index.new[offer.entry.id]
                return offer
        return None

    def leave(self, index: QueueIndex) -> list[Entry]:
        """Withdraw the queue's offers, and return those that are still in NEW, to be delivered."""
        offers = self._offers.pop(index, {})
        return [offer.entry for offer in offers.values() if index.new.get(offer.entry.id) == offer.entry]


def _place(id: MessageId) -> int:
    return id.key
