"""What a door declares beyond messages: queues with settings and something of its own from the beginning, and records
that are its own business."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from mq.broker.catalog import Catalog
from mq.broker.commit import Committer
from mq.broker.heirs import Heir, Heirs
from mq.broker.queues import Queues
from mq.message import QueueName
from mq.storage.interface import Storage


class Declarations:
    """What doors declare.

    Args:
        storage: keeps it.
        catalog: the queues.
        committer: knows whether the medium has failed.
        queues: makes them.
        heirs: get what dies and is a door's business.
    """

    def __init__(self, storage: Storage, catalog: Catalog, committer: Committer, queues: Queues, heirs: Heirs) -> None:
        self._storage = storage
        self._catalog = catalog
        self._committer = committer
        self._queues = queues
        self._heirs = heirs

    def knows(self, queue: str) -> bool:
        """Whether there is such a queue, as far as is known here. At once."""
        return queue in self._catalog.queues

    def ready(self, queue: str) -> int:
        """How many messages of it can be handed out now, or in a moment; 0 where there is no such queue. At once."""
        index = self._catalog.queues.get(queue)
        return 0 if index is None else self._queues.status(index).ready

    async def look(self, queue: str) -> None:
        """Let :meth:`ready` be right of a queue that is elsewhere. Here it always is."""

    def queues(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The queues that something was declared of, and what."""
        for name, index in self._catalog.queues.items():
            if index.declared is not None:
                yield name, index.declared

    async def create(
        self,
        queue: QueueName,
        settings: Mapping[str, Any],
        declared: Mapping[str, Any] | None,
        *,
        is_transient: bool,
        is_replicated: bool = False,
    ) -> bool:
        """Make a queue, in one step with what is set for it and with what is declared of it; durable on return.

        Args:
            queue: its name.
            settings: by their JSON names; the others are at their defaults.
            declared: JSON values that are kept with it.
            is_transient: it ends with this process.
            is_replicated: it is to be highly available, where there is a cluster. Here is none.

        Returns:
            False when it is there already. It stays as it is.

        Raises:
            InvalidSetting: a setting is unknown or out of its range.
            StorageError: the store cannot keep it now.
        """
        return await self._queues.create(queue, settings, declared, is_transient=is_transient)

    def on_closed(self, told: Callable[[str], None]) -> None:
        """Let somebody know of each queue that is no more, however that came."""
        self._catalog.closed = told

    def on_opened(self, told: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Let somebody know of each queue that was declared elsewhere. Nothing is, here."""

    def on_failover(self, told: Callable[[Iterable[str]], None]) -> None:
        """Let somebody know of queues whose consumers have to begin anew. There are none, here."""

    def inherit(self, heir: Heir) -> None:
        """Let a door send on, in its own way, what dies in its queues."""
        self._heirs.heir = heir

    async def put(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keep a record, durably.

        Raises:
            StorageError: the store cannot keep it now.
        """
        with self._committer.noting_failure():
            await self._storage.put_record(kind, key, value)

    async def drop(self, kind: str, key: str) -> None:
        """Forget a record, durably.

        Raises:
            StorageError: the store cannot do that now.
        """
        with self._committer.noting_failure():
            await self._storage.drop_record(kind, key)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind, by key."""
        return await self._storage.records(kind)
