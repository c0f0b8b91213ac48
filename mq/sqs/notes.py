"""Notes of queues, for which mq has no settings: tags, and attributes that concern this door alone.

The notes of a queue are a record of their own, beside the broker's record of the queue. They count for one queue only,
and name the instant at which it was made. Notes without an instant belong to a queue that is being made. They are
written before the queue: after a crash in between, a client that repeats its CreateQueue finds its own attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import trio

from mq.broker.api import BrokerAPI

KIND: Final = "sqs"
"""Of the records."""


class Notes(NamedTuple):
    """The notes of one queue.

    Attributes:
        attributes: the door's own ones, as text by their names in SQS; absent ones are at their defaults.
        tags: by key.
        modified: when SQS changed the queue for the last time, seconds since 1970; None for never.
    """

    attributes: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}
    modified: int | None = None


_NONE: Final = Notes()


class NoteBook:
    """The notes of all queues.

    Args:
        broker: keeps the records.
    """

    def __init__(self, broker: BrokerAPI) -> None:
        self._broker = broker
        self._is_shared = broker.description.shared
        self._loading = trio.Lock()
        self._pages: dict[str, Mapping[str, Any]] | None = None

    async def read(self, queue: str) -> Notes:
        """The notes of a queue.

        Args:
            queue: its name.

        Raises:
            NoSuchQueue: it has notes, and is there no more.
            StorageError: they cannot be read.
        """
        page = (await self._all()).get(queue)
        if page is None or page.get("created") not in (None, (await self._broker.status(queue)).created_ns):
            return _NONE
        return Notes(_texts(page.get("attributes")), _texts(page.get("tags")), page.get("modified"))

    async def write(self, queue: str, notes: Notes, created_ns: int | None) -> None:
        """Replace the notes of a queue; durable on return.

        Args:
            queue: its name.
            notes: all notes of it.
            created_ns: when the queue was made, nanoseconds since 1970; None where it is being made.

        Raises:
            StorageError: it cannot be kept now.
        """
        page = {**notes._asdict(), "created": created_ns}
        pages = await self._all()
        await self._broker.declarations.put(KIND, queue, page)
        pages[queue] = page

    async def drop(self, queue: str) -> None:
        """Forget a queue's notes.

        Raises:
            StorageError: they cannot be dropped now.
        """
        pages = await self._all()
        if queue in pages:
            await self._broker.declarations.drop(KIND, queue)
            pages.pop(queue, None)

    async def _all(self) -> dict[str, Mapping[str, Any]]:
        if self._pages is not None:
            return self._pages
        declarations = self._broker.declarations
        if self._is_shared:  # where others write them, too, they are read anew
            return dict(await declarations.records(KIND))
        async with self._loading:  # nothing is noted before all was read, so what is swept is no queue's in the making
            if self._pages is None:
                pages = dict(await declarations.records(KIND))
                await self._sweep(pages)
                self._pages = pages
        return self._pages

    async def _sweep(self, pages: dict[str, Mapping[str, Any]]) -> None:
        """Forget the notes of queues that other doors have deleted."""
        if self._broker.membership.node:  # a node of a cluster need not know all queues just now
            return
        for queue in pages.keys() - {status.name for status in await self._broker.queues()}:
            await self._broker.declarations.drop(KIND, queue)
            del pages[queue]


def _texts(value: Any) -> dict[str, str]:
    return {key: text for key, text in value.items() if isinstance(text, str)} if isinstance(value, dict) else {}
