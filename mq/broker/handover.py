"""What is published while somebody waits for it is leased to them in the batch that writes it: one barrier makes both
durable, and who waits gets it the moment its publisher hears that it is stored.

Only what comes first in its queue is handed over, so the order is kept; what is held in memory needs no barrier, and is
offered when it is written (:mod:`mq.broker.offers`).
"""

from __future__ import annotations

from collections.abc import Sequence

import trio

from mq.broker.catalog import Catalog
from mq.broker.fetches import Fetches, FetchRequest
from mq.broker.handing_out import Chosen, HandingOut, Served
from mq.broker.index import QueueIndex
from mq.broker.leases import Leases
from mq.broker.offers import LARGEST_BODY
from mq.errors import NoSuchQueue
from mq.lifecycle import Kind, State
from mq.message import BytesBody, Properties, checksum
from mq.storage.interface import FRESH, MOST_MOVED_ON, Entry, Move, Outcome, Stored, Write


class Handover:
    """Hands over.

    Args:
        catalog: the queues.
        fetches: who waits.
        leases: names leases.
        handing_out: gives those who wait what is leased.
        is_open: whether anything is handed over here; nothing is where others fetch, too.

    Attributes:
        catalog: as given.
        handing_out: as given.
        under_way: how many messages are handed over in batches that have not ended.
    """

    def __init__(
        self, catalog: Catalog, fetches: Fetches, leases: Leases, handing_out: HandingOut, *, is_open: bool
    ) -> None:
        self.catalog = catalog
        self.handing_out = handing_out
        self.under_way = 0
        self._fetches = fetches
        self._leases = leases
        self._is_open = is_open
        self._chosen: list[Chosen] = []
        self._unsated: dict[QueueIndex, tuple[FetchRequest, int]] = {}

    def takes(self, index: QueueIndex, write: Write) -> bool:
        """Whether this message, which is about to be written, is handed over. Then :meth:`collect` tells how."""
        if not self._is_open or index.writing or self.under_way + len(self._chosen) >= MOST_MOVED_ON:
            return False
        body = write.body
        if not isinstance(body, bytes) or len(body) > LARGEST_BODY or write.meta != FRESH or write.transient:
            return False
        request = self._next(index)
        if request is None:
            return False
        entry = Entry(write.queue, write.id, State.NEW)
        stored = Stored(Properties(len(body), checksum(body), write.attributes), BytesBody(body))
        self._chosen.append(Chosen(request, entry, stored, self._leases.move(request, entry)))
        return True

    def collect(self) -> HandedOver | None:
        """What has been handed over since this was asked last."""
        if not self._chosen:
            return None
        chosen, self._chosen = self._chosen, []
        self._unsated.clear()
        self.under_way += len(chosen)
        return HandedOver(self, chosen)

    def _next(self, index: QueueIndex) -> FetchRequest | None:
        """Who gets the queue's next message. Whoever wants several gets those that are written together."""
        request, left = self._unsated.pop(index, (None, 0))
        if request is None:
            if index.ready or index.undelivered or index.settings.paused or index.deleted:
                return None
            request = self._fetches.next_to_lease(index)
            left = request.count if request is not None else 0
        if request is not None and left > 1:
            self._unsated[index] = (request, left - 1)
        return request


class HandedOver:
    """Messages that are handed over in one batch.

    Args:
        handover: of all of them.
        chosen: the messages, and who gets them.
    """

    def __init__(self, handover: Handover, chosen: Sequence[Chosen]) -> None:
        self._handover = handover
        self._chosen = chosen
        self._started = trio.current_time()

    @property
    def moves(self) -> list[Move]:
        """What the store has to do once they are written."""
        return [each.move for each in self._chosen]

    def done(self, outcomes: Sequence[Outcome]) -> None:
        """What became of these moves. What was not written is nobody's, and who should have got it waits on."""
        catalog = self._handover.catalog
        self._handover.under_way -= len(self._chosen)
        served = {each.request: Served() for each in self._chosen}
        written: list[tuple[Chosen, Outcome]] = []
        for each, outcome in zip(self._chosen, outcomes, strict=True):
            if each.entry.id not in catalog.transit:
                continue
            if each.request.index.deleted:  # and perhaps made anew: its publisher hears that, too
                catalog.end(each.entry, outcome.entry or each.entry, Kind.LEASE)
                served[each.request].error = NoSuchQueue(f"queue {each.request.index.name} was deleted meanwhile")
            else:
                written.append((each, outcome))
        self._handover.handing_out.leased(
            [each for each, _ in written], [outcome for _, outcome in written], served, self._started
        )
