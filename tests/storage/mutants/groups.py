"""Stores that do a part of a group."""

from __future__ import annotations

from collections.abc import Sequence

from mq.storage.interface import AnyOperation, Drop, Group, Outcome, Put, Result
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import caught_by


@caught_by("a_batch_keeps_and_forgets_records")
class LeavesRecordsForLater(MemoryStorage):
    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        order = sorted(range(len(operations)), key=lambda number: isinstance(operations[number], Put))
        outcomes = await super().commit([operations[number] for number in order])
        return [outcome for _, outcome in sorted(zip(order, outcomes, strict=True), key=lambda pair: pair[0])]


@caught_by("a_group_is_done_as_a_whole")
class LeavesOutWhatAGroupForgets(MemoryStorage):
    async def _do_group(self, group: Group) -> Outcome:
        return await super()._do_group(Group(tuple(each for each in group.operations if not isinstance(each, Drop))))


@caught_by("a_group_is_refused_as_a_whole")
class DoesAGroupHalf(MemoryStorage):
    async def _do_group(self, group: Group) -> Outcome:
        outcomes = await self.commit(group.operations)
        return next((each for each in outcomes if each.result is not Result.DONE), Outcome(Result.DONE))


@caught_by("a_group_is_refused_as_a_whole")
class KeepsTheRecordsOfARefusedGroup(MemoryStorage):
    async def _do_group(self, group: Group) -> Outcome:
        outcome = await super()._do_group(group)
        for operation in group.operations:
            if isinstance(operation, Put):
                await self._do_long(operation)
        return outcome


@caught_by("a_group_may_be_large")
class CutsLargeGroups(MemoryStorage):
    async def _do_group(self, group: Group) -> Outcome:
        return await super()._do_group(Group(group.operations[-128:]))
