"""Stores that are not what they were when they are opened again."""

from __future__ import annotations

import json

from mq.lifecycle import State
from mq.storage.interface import FRESH, QUEUE, Description, Move, Operation, Outcome, Unlink
from mq.storage.memory import MemoryStorage
from tests.record_hooks import RecordHooks
from tests.storage.mutants.kit import caught_by, entries_of


class Kept(MemoryStorage):
    """A memory store that outlives its closing: nothing is wrong with it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.openings = 0

    async def open(self) -> None:
        self.openings += 1
        if self.openings > 1:
            self.forget()

    async def aclose(self) -> None:
        """Everything stays."""

    def forget(self) -> None:
        """What goes wrong when it is opened again."""


@caught_by("messages_stay_where_they_are")
class ForgetsMessages(Kept):
    def forget(self) -> None:
        self._places.clear()


@caught_by("messages_stay_where_they_are")
class ForgetsMetaOverClosing(Kept):
    def forget(self) -> None:
        for place in self._places.values():
            for id, kept in place.items():
                place[id] = kept._replace(meta=FRESH)


@caught_by("messages_stay_where_they_are")
class DeliversLeasedOnOpening(Kept):
    def forget(self) -> None:
        for state, queue in [place for place in self._places if place[0] is State.DELAYED]:
            self._places.setdefault((State.READY, queue), {}).update(self._places.pop((state, queue)))


@caught_by("bodies_and_attributes_stay")
class ForgetsAttributes(Kept):
    def forget(self) -> None:
        for place in self._places.values():
            for id, kept in place.items():
                place[id] = kept._replace(attributes="{}")


@caught_by("what_left_stays_away")
class BringsUnlinkedBack(Kept):
    def _do(self, operation: Operation) -> Outcome:
        if isinstance(operation, Unlink) and (kept := self._at(operation.entry)):
            self.unlinked = (operation.entry, kept)
        return super()._do(operation)

    def forget(self) -> None:
        if hasattr(self, "unlinked"):
            self._put(*self.unlinked)


@caught_by("records_stay")
class ForgetsRecords(Kept):
    def forget(self) -> None:
        self._records.clear()


@caught_by("records_stay")
class BringsDroppedRecordsBack(RecordHooks, Kept):
    async def drop_record(self, kind: str, key: str) -> bool:
        self.dropped = (kind, key)
        return await super().drop_record(kind, key)

    def forget(self) -> None:
        kind, key = getattr(self, "dropped", (QUEUE, "dropped"))
        self._records.setdefault(kind, {})[key] = "{}"


@caught_by("a_dropped_queue_stays_away")
class BringsDroppedQueuesBack(RecordHooks, Kept):
    async def drop_record(self, kind: str, key: str) -> bool:
        self.old = dict(self._places)
        return await super().drop_record(kind, key)

    def forget(self) -> None:
        for place, messages in getattr(self, "old", {}).items():
            self._places.setdefault(place, messages)


@caught_by("a_queue_made_again_stays_empty")
class DeliversLeftoversOnOpening(Kept):
    def forget(self) -> None:
        for entry in entries_of(self, State.NEW, None):
            self._move(Move(entry, State.READY))


@caught_by("a_queue_made_again_stays_empty")
class ForgetsLeasesOfYoungQueues(Kept):
    def forget(self) -> None:
        for state, queue in list(self._places):
            if state is State.DELAYED:
                del self._places[state, queue]


@caught_by("a_message_moved_into_a_younger_queue_stays")
class JudgesByIdAlone(Kept):
    def forget(self) -> None:
        made = {queue: json.loads(text)["created"] for queue, text in self._records[QUEUE].items()}
        for entry in entries_of(self, State.DELAYED, None):
            if entry.id.time < made[entry.queue]:
                self._take(entry)


@caught_by("the_description_stays")
class DescribesItselfAnew(Kept):
    @property
    def description(self) -> Description:
        return super().description._replace(name=f"memory:{self.openings}")
