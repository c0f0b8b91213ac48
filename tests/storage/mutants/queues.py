"""Stores that take too much or too little with a queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mq.lifecycle import State
from mq.storage.interface import (
    QUEUE,
    Move,
    Outcome,
    Result,
)
from mq.storage.memory import MemoryStorage
from tests.record_hooks import RecordHooks
from tests.storage.mutants.kit import (
    caught_by,
    entries_of,
)


@caught_by("new_settings_leave_messages_alone")
class MakesAnewWithNewSettings(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        old = await self.drop_record(kind, key)
        await super().put_record(kind, key, value)
        return not old


@caught_by("dropping_a_queue_takes_what_is_ready")
class KeepsWhatIsReady(RecordHooks, MemoryStorage):
    async def drop_record(self, kind: str, key: str) -> bool:
        ready = self._places.get((State.READY, key), {})
        found = await super().drop_record(kind, key)
        if ready:
            self._places[State.READY, key] = ready
        return found


@caught_by("dropping_a_queue_takes_what_is_ready")
class DropsEveryQueue(RecordHooks, MemoryStorage):
    async def drop_record(self, kind: str, key: str) -> bool:
        for place in [place for place in self._places if place[0] is State.READY]:
            del self._places[place]
        return await super().drop_record(kind, key)


@caught_by("nothing_is_delivered_to_a_dropped_queue")
class DeliversToDroppedQueues(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        queues = self._records.get(QUEUE, {})
        if queues:
            return super()._move(move)
        queues[move.entry.queue] = "{}"
        outcome = super()._move(move)
        queues.clear()
        return outcome


class MakesAgain(RecordHooks, MemoryStorage):
    """Does something to the messages under the name of a queue that is new."""

    def touch(self, queue: str) -> None:
        raise NotImplementedError

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        new = await super().put_record(kind, key, value)
        if new and kind == QUEUE:
            self.touch(key)
        return new


@caught_by("a_queue_made_again_is_empty")
class DeliversLeftovers(MakesAgain):
    def touch(self, queue: str) -> None:
        for state in (State.NEW, State.DELAYED):
            for entry in entries_of(self, state, queue):
                self._move(Move(entry, State.READY))


@caught_by("messages_may_come_before_their_queue")
class ForgetsEarlyMessages(MakesAgain):
    def touch(self, queue: str) -> None:
        self._places.pop((State.NEW, queue), None)


@caught_by("messages_may_come_before_their_queue")
class ForgetsEarlyLeases(MakesAgain):
    def touch(self, queue: str) -> None:
        self._places.pop((State.DELAYED, queue), None)


@caught_by("a_queue_made_again_can_be_dropped_unreaped")
class DropsOnce(RecordHooks, MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.dropped: set[str] = set()

    async def drop_record(self, kind: str, key: str) -> bool:
        if kind == QUEUE and key in self.dropped:
            return False
        self.dropped.add(key)
        return await super().drop_record(kind, key)


@caught_by("leftovers_can_be_removed")
class KeepsLeftoversForEver(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        queues = self._records.get(QUEUE, {})
        return Outcome(Result.GONE) if queues == {} and move.state is State.REMOVED else super()._move(move)
