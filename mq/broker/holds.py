"""Serving those who hold messages: a held message stays READY in the store, and that somebody has it is known in memory
only. So it costs no move, and whoever holds it must be there: with the process, all holds end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from mq.broker.catalog import Catalog
from mq.broker.closing import close
from mq.broker.deaths import Deaths
from mq.broker.fetches import Fetches, FetchRequest
from mq.broker.index import QueueIndex
from mq.broker.jobs import Change, Job
from mq.broker.leases import Leases
from mq.broker.mailbox import Mailbox
from mq.broker.offers import Taken
from mq.broker.recent import Recent
from mq.errors import StorageError
from mq.lifecycle import Kind, State
from mq.message import DamagedBody, Message, MessageId
from mq.storage.interface import Entry, Move, Storage, Stored

logger = logging.getLogger("mq.broker")


class Hand(NamedTuple):
    """What is dealt to one request.

    Attributes:
        request: whose it is.
        messages: in their order.
    """

    request: FetchRequest
    messages: list[Taken]


def deal(requests: Iterable[FetchRequest], take: Callable[[], Taken | None]) -> list[Hand]:
    """Deal messages, one each in turn, until there are none or nobody wants more.

    Args:
        requests: in the order of their turns.
        take: gives the next message; None when there is none.

    Returns:
        The hands that are not empty. Whose turn is next comes first.
    """
    hands: dict[FetchRequest, list[Taken]] = {}
    turns = deque(requests)
    while turns and (taken := take()) is not None:
        request = turns.popleft()
        hand = hands.pop(request, [])
        hand.append(taken)
        hands[request] = hand
        if len(hand) < request.count:
            turns.append(request)
    return [Hand(request, messages) for request, messages in hands.items()]


class Holds:
    """Hands out what is held, and puts it back.

    Args:
        catalog: the queues.
        storage: gives the bodies.
        fetches: where requests stand in line.
        deaths: what is known of a message's earlier deaths.
        leases: names leases.
        jobs: where the save workers find work.
        recent: has bodies that need not be read.
        seconds: so long nobody gets a message that cannot be handed out.
    """

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        fetches: Fetches,
        deaths: Deaths,
        leases: Leases,
        jobs: Mailbox[Sequence[Job]],
        recent: Recent,
        seconds: float,
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._fetches = fetches
        self._deaths = deaths
        self._leases = leases
        self._jobs = jobs
        self._recent = recent
        self._seconds = seconds

    async def serve(self, hands: Sequence[Hand]) -> None:
        """Read the bodies, and hand out. Those whose messages turned out to be gone or damaged stand in line again."""
        if not hands:
            return
        try:
            stored = await self._read([taken for hand in hands for taken in hand.messages])
        except StorageError as error:
            for request, messages in hands:
                self.put_back(request.index, [entry for entry, _ in messages], is_returned=False)
                request.reply.fail(error)
            return
        answers = [(hand.request, self._messages(hand, stored)) for hand in hands]
        for request, found in answers:
            await self._answer(request, found)

    def put_back(self, index: QueueIndex, entries: Iterable[Entry], *, is_returned: bool = True) -> None:
        """Those that are still held are READY again, in their places.

        Args:
            index: their queue.
            entries: as they were held.
            is_returned: whether somebody has had them.
        """
        for entry in entries:
            if index.held.get(entry.id) == entry:
                del index.held[entry.id]
                if is_returned:
                    index.returned.add(entry.id)
                self._catalog.place(entry)

    async def _read(self, messages: Sequence[Taken]) -> Mapping[MessageId, Stored | None]:
        found = {entry.id: stored or self._recent.take(entry.id) for entry, stored in messages}
        unread = [entry for entry, _ in messages if found[entry.id] is None]
        if unread:
            for entry, stored in zip(unread, await self._storage.read(unread), strict=True):
                found[entry.id] = stored
        return found

    def _messages(self, hand: Hand, stored: Mapping[MessageId, Stored | None]) -> list[tuple[Entry, Message]]:
        messages = []
        for entry, _ in hand.messages:
            found = stored[entry.id]
            if hand.request.index.held.get(entry.id) != entry:
                continue  # somebody has removed it meanwhile
            body = None if found is None else found.body
            if found is not None and not isinstance(body, DamagedBody):
                messages.append((entry, self._message(entry, found)))
                continue
            why = body.reason if isinstance(body, DamagedBody) else "its file vanished"
            logger.error("message %s of %s is not handed out: %s. It stays there", entry.id, entry.queue, why)
            self._set_aside(entry)
        return messages

    def _message(self, entry: Entry, found: Stored) -> Message:
        history = self._deaths.history(entry)
        return Message(entry.queue, entry.id, found.body, found.properties, entry.meta.receives + 1, "", history)

    def _set_aside(self, entry: Entry) -> None:
        """Lease it to nobody, so that it does not come up again at once."""
        self._catalog.begin(entry)
        move = Move(entry, State.DELAYED, self._leases.meta(entry, self._seconds))
        self._jobs.put([Change(self._catalog, move, Kind.LEASE, "set the message aside", self._seconds)])

    async def _answer(self, request: FetchRequest, messages: list[tuple[Entry, Message]]) -> None:
        if request.reply.abandoned:
            await close([message for _, message in messages])
            self.put_back(request.index, [entry for entry, _ in messages], is_returned=False)
        elif messages:
            request.held = [entry for entry, _ in messages]
            request.reply.set([message for _, message in messages])
        else:
            self._fetches.ask(request, first=True)
