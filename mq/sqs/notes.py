"""Notes of queues, for which mq has no settings: tags, and attributes that concern this protocol alone.

They are a part of the queue's own record (:data:`~mq.broker.settings.SQS`). So a queue is made together with them, they
go with it, and those of a cluster queue are the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import trio

from mq.broker.api import BrokerAPI
from mq.broker.settings import SQS, QueueSettings
from mq.message import QueueName

_FRESH_SECONDS: Final = 1.0
"""For so long a node of a cluster goes by what it has read of a queue, where messages are sent and received."""
_MOST_KEPT: Final = 1000
"""Queues of which a node keeps the notes."""


class Notes(NamedTuple):
    """The notes of one queue.

    Attributes:
        attributes: the protocol's own ones, as text by their names in SQS; absent ones are at their defaults.
        modified: when SQS changed the queue for the last time, seconds since 1970; None for never.
    """

    attributes: Mapping[str, str] = {}
    tags: Mapping[str, str] = {}
    modified: int | None = None

    @classmethod
    def of(cls, settings: QueueSettings) -> Notes:
        """The notes among a queue's settings."""
        return cls(**settings.sqs) if settings.sqs else _NO_NOTES

    def setting(self) -> dict[str, Any]:
        """The same as a change of a queue's settings, which leaves other attributes and tags as they are. An empty
        attribute is at its default."""
        given = {"attributes": {name: text or None for name, text in self.attributes.items()}, "tags": dict(self.tags)}
        return {SQS: given if self.modified is None else {**given, "modified": self.modified}}


_NO_NOTES: Final = Notes()


class NoteBook:
    """The notes of all queues."""

    def __init__(self, broker: BrokerAPI) -> None:
        self._broker = broker
        self._recent: dict[str, tuple[float, Notes]] = {}

    async def read(self, queue: str) -> Notes:
        """The notes of a queue as they are now.

        Raises:
            NoSuchQueue: it does not exist.
        """
        notes = Notes.of(await self._broker.settings(queue))
        if self._broker.membership.node:
            self._keep(queue, notes)
        return notes

    async def recent(self, queue: str) -> Notes:
        """The notes of a queue. A node of a cluster asks the master about a queue once a second, and not for each
        message: changes that another node has made count there after a second at the latest.

        Raises:
            NoSuchQueue: it does not exist.
        """
        until, notes = self._recent.get(queue, (0.0, Notes()))
        return notes if until > trio.current_time() else await self.read(queue)

    async def change(self, queue: QueueName, patch: Mapping[str, Any]) -> None:
        """Change settings and notes of a queue: all of `patch`, or nothing. Durable on return.

        Raises:
            NoSuchQueue: it does not exist.
            InvalidSetting: a setting is out of its range, or two contradict each other.
            Conflict: a setting that cannot be kept here and now.
        """
        try:
            await self._broker.change_settings(queue, patch)
        finally:
            self.forget(queue)  # afterwards: a receive meanwhile has read the notes as they were

    def forget(self, queue: str) -> None:
        """Read the notes of a queue again when they are needed next: it is changed or deleted."""
        self._recent.pop(queue, None)

    def _keep(self, queue: str, notes: Notes) -> None:
        if len(self._recent) >= _MOST_KEPT:
            self._recent.clear()
        self._recent[queue] = trio.current_time() + _FRESH_SECONDS, notes
