"""Stores that do not tell what is there."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import trio

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import (
    FRESH,
    Description,
    Entry,
)
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import (
    ChangesScan,
    caught_by,
    entries_of,
    new_id,
)


@caught_by("find_tells_where_a_message_is")
class FindsRemoved(MemoryStorage):
    async def find(self, queue: str, id: MessageId) -> Entry | None:
        return await super().find(queue, id) or next(iter(entries_of(self, State.REMOVED, queue)), None)


@caught_by("find_tells_where_a_message_is")
class ForgetsMetaWhenFinding(MemoryStorage):
    async def find(self, queue: str, id: MessageId) -> Entry | None:
        entry = await super().find(queue, id)
        return entry and entry._replace(meta=FRESH)


@caught_by("find_tells_that_a_message_is_not_there")
class FindsInAnyQueue(MemoryStorage):
    async def find(self, queue: str, id: MessageId) -> Entry | None:
        for _, other in list(self._places):
            if (found := await super().find(other, id)) is not None:
                return found
        return None


@caught_by("find_looks_in_order")
class FindsBackwards(MemoryStorage):
    async def find(self, queue: str, id: MessageId) -> Entry | None:
        for state in (State.DELAYED, State.READY, State.NEW):
            for entry in entries_of(self, state, queue):
                if entry.id == id:
                    return entry
        return None


@caught_by("contains_finds_a_message_in_every_state")
class ForgetsRemovedMessages(MemoryStorage):
    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        return any([await self.find(queue, id) is not None for queue in queues])


@caught_by("contains_finds_a_message_in_every_state")
class LooksInTheFirstQueueOnly(MemoryStorage):
    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        return await super().contains(list(queues)[:1], id)


@caught_by("contains_finds_a_message_while_it_moves")
class LooksInOneStateAfterTheOther(MemoryStorage):
    async def contains(self, queues: Collection[str], id: MessageId) -> bool:
        for state in (State.READY, State.DELAYED, State.REMOVED, State.NEW):
            if any(entry.id == id for queue in queues for entry in entries_of(self, state, queue)):
                return True
            await trio.lowlevel.checkpoint()
        return False


@caught_by("scan_lists_a_state")
class ListsTwice(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return entries + entries[:1]


@caught_by("scan_lists_a_state")
class ListsNeighbours(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return [entry for entry in entries_of(self, state, None) if entry.queue.startswith(queue or "")][:limit]


@caught_by("scan_lists_a_state")
class ListsNoRemoved(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return [] if state is State.REMOVED else entries


@caught_by("scan_lists_many")
class ListsOnePage(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return entries[:1000]


@caught_by("scan_stops_at_its_limit")
class ForgetsTheLimit(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return entries_of(self, state, queue)


@caught_by("scan_stops_at_its_limit")
class LimitsBeforeItSelects(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        first = entries_of(self, state, None)[-limit:] if limit else entries
        return [entry for entry in first if queue in (None, entry.queue)]


@caught_by("scan_of_an_unknown_queue_is_empty")
class ListsAllOfAnUnknownQueue(ChangesScan):
    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        return entries or [Entry(queue or "", new_id(), state)]


@caught_by("changes_can_be_entered_and_left")
class TellsNothing(MemoryStorage):
    def changes(self) -> Any:
        return Entered()


class Entered:
    async def __aenter__(self) -> object:
        return object()

    async def __aexit__(self, *error: object) -> None:
        pass


@caught_by("the_description_is_sane")
class DescribesItselfAsText(MemoryStorage):
    @property
    def description(self) -> Description:
        return super().description._replace(durable="no")  # type: ignore[arg-type]


@caught_by("the_description_is_sane")
class ForgetsItsAddress(MemoryStorage):
    @property
    def description(self) -> Description:
        return super().description._replace(name="memory")
