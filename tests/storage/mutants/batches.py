"""Stores that mix their outcomes up."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from mq.storage.interface import (
    Hear,
    MessageOperation,
    Move,
    Operation,
    Outcome,
    Result,
    Unlink,
    Write,
)
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import (
    caught_by,
)


@caught_by("outcomes_stand_in_order")
@caught_by("outcomes_carry_their_own_entry")
class ReversesOutcomes(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        return (await super().commit(operations))[::-1]


@caught_by("outcomes_stand_in_order")
class StopsAtTheFirstBad(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for operation in operations:
            bad = any(outcome.result is not Result.DONE for outcome in outcomes)
            outcomes += [Outcome(Result.GONE)] if bad else await super().commit([operation])
        return outcomes


@caught_by("outcomes_stand_in_order")
class LeavesBadOutcomesOut(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        outcomes = await super().commit(operations)
        return [outcome for outcome in outcomes if outcome.result is not Result.NO_QUEUE]


@caught_by("outcomes_carry_their_own_entry")
class DropsTheEndOfLargeBatches(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        return await super().commit(operations[:128])


@caught_by("operations_see_those_before_them")
class MovesBeforeItWrites(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        order = sorted(range(len(operations)), key=lambda number: isinstance(operations[number], Write))
        outcomes = await super().commit([operations[number] for number in order])
        return [outcome for _, outcome in sorted(zip(order, outcomes, strict=True), key=lambda pair: pair[0])]


@caught_by("operations_may_wait_for_the_next_barrier")
class ForgetsWhatMayWait(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        lost = [isinstance(operation, Move) and not operation.durable for operation in operations]
        done = iter(await super().commit([op for op, gone in zip(operations, lost, strict=True) if not gone]))
        return [Outcome(Result.DONE) if gone else next(done) for gone in lost]


@caught_by("a_removal_and_its_unlink_may_come_together")
class UnlinksBeforeItMoves(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        order = sorted(range(len(operations)), key=lambda number: not isinstance(operations[number], Unlink))
        outcomes = await super().commit([operations[number] for number in order])
        return [outcome for _, outcome in sorted(zip(order, outcomes, strict=True), key=lambda pair: pair[0])]


@caught_by("an_empty_batch_is_nothing")
class AnswersAnEmptyBatch(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        return await super().commit(operations) or [Outcome(Result.DONE)]


@caught_by("batches_run_side_by_side")
class MixesBatches(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        self.operations = list(operations)
        await trio.lowlevel.checkpoint()
        return await super().commit(self.operations)


@caught_by("a_cancelled_commit_leaves_the_store_in_order")
class LeavesCancelledWritesHalf(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        try:
            await trio.lowlevel.checkpoint()
            return await super().commit(operations)
        except trio.Cancelled:
            for operation in operations:
                if isinstance(operation, Write):
                    self._write(operation._replace(body=b""))
            raise


class Tells(MemoryStorage):
    """A store that tells of all but the last of a batch."""

    tells = True

    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        first = [*await super().commit(operations[:-1])]
        told = next((at for at, outcome in enumerate(first) if outcome.result is not Result.DONE), len(first))
        hear(first[:told], 0.0)
        return first[told:] + await super().commit(operations[-1:])


@caught_by("what_is_told_early_is_so")
class ReturnsWhatItHasTold(Tells):
    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        told: list[Outcome] = []

        def note(outcomes: Sequence[Outcome], late_seconds: float) -> None:
            told.extend(outcomes)
            hear(outcomes, late_seconds)

        return told + await super().commit_in_parts(operations, note)


@caught_by("what_is_told_early_is_so")
class TellsBeforeItIsSo(Tells):
    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        first = operations[0]
        assert isinstance(first, Write)
        hear([Outcome(Result.DONE, first.entry)], 0.0)
        await trio.testing.wait_all_tasks_blocked()
        return (await super().commit(operations))[1:]


@caught_by("what_is_told_early_is_so")
class TellsOfARefusalAsOfTheRest(Tells):
    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        def doing(outcome: Outcome, operation: Operation) -> Outcome:
            return outcome if not isinstance(operation, Write) else Outcome(Result.DONE, operation.entry)

        outcomes = await super().commit(operations)
        hear([doing(*each) for each in zip(outcomes[:-1], operations, strict=False)], 0.0)
        return outcomes[-1:]


@caught_by("what_is_told_early_is_so")
class TellsOfOutcomesThatWereNeverThere(Tells):
    async def commit_in_parts(self, operations: Sequence[Operation], hear: Hear) -> list[Outcome]:
        return await super().commit_in_parts(operations, lambda outcomes, _: hear(outcomes, -1.0))


@caught_by("a_batch_in_one_step_is_done")
class DoesNothingInOneStep(MemoryStorage):
    def commit_now(self, operations: Sequence[MessageOperation]) -> list[Outcome] | None:
        outcomes = super().commit_now(operations) or []
        self._places.clear()
        return outcomes


@caught_by("a_batch_in_one_step_is_done")
class LeavesRefusalsOutInOneStep(MemoryStorage):
    def commit_now(self, operations: Sequence[MessageOperation]) -> list[Outcome] | None:
        return [each for each in super().commit_now(operations) or [] if each.result is Result.DONE]
