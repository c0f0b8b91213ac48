"""Stores that do not compare, or do not move."""

from __future__ import annotations

from mq.lifecycle import State
from mq.storage.interface import (
    QUEUE,
    Entry,
    Meta,
    Move,
    Operation,
    Outcome,
    Result,
    Unlink,
)
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import (
    ChangesMoves,
    caught_by,
)


@caught_by("every_legal_move_is_done")
class CannotExtend(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        return Outcome(Result.EXISTS) if move.entry.state is move.state is State.DELAYED else super()._move(move)


@caught_by("every_legal_move_is_done")
class CopiesInsteadOfMoving(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        kept = self._at(move.entry)
        outcome = super()._move(move)
        if kept and move.entry.state is not move.state:
            self._put(move.entry, kept)
        return outcome


@caught_by("a_move_may_lead_to_another_queue")
class StaysInItsQueue(ChangesMoves):
    def change(self, move: Move) -> Move:
        return move._replace(queue=None)


@caught_by("meta_comes_back")
class LosesMeta(ChangesMoves):
    def change(self, move: Move) -> Move:
        return move._replace(meta=Meta(receipt=move.meta.receipt))


@caught_by("meta_comes_back")
class LosesOrder(ChangesMoves):
    def change(self, move: Move) -> Move:
        return move._replace(meta=move.meta._replace(order=None))


@caught_by("meta_comes_back")
class TakesZeroForNone(ChangesMoves):
    def change(self, move: Move) -> Move:
        return move._replace(meta=move.meta._replace(deadline_ms=move.meta.deadline_ms or None))


@caught_by("meta_comes_back")
class KeepsWholeSeconds(ChangesMoves):
    def change(self, move: Move) -> Move:
        deadline = move.meta.deadline_ms
        return move._replace(meta=move.meta._replace(deadline_ms=deadline and deadline // 1000 * 1000))


@caught_by("a_move_replaces_all_of_meta")
class MergesMeta(ChangesMoves):
    def change(self, move: Move) -> Move:
        old = move.entry.meta
        return move._replace(meta=Meta(*(new or was for new, was in zip(move.meta, old, strict=True))))


@caught_by("a_stale_entry_is_gone")
class MovesByIdAlone(ChangesMoves):
    def change(self, move: Move) -> Move:
        kept = self._places.get((move.entry.state, move.entry.queue), {}).get(move.entry.id)
        return move._replace(entry=move.entry._replace(meta=kept.meta)) if kept else move


@caught_by("a_stale_entry_is_gone")
class ForgetsToCompareOrder(ChangesMoves):
    def change(self, move: Move) -> Move:
        kept = self._places.get((move.entry.state, move.entry.queue), {}).get(move.entry.id)
        if kept is None:
            return move
        meta = move.entry.meta._replace(order=kept.meta.order)
        return move._replace(entry=move.entry._replace(meta=meta))


@caught_by("a_second_move_is_gone")
@caught_by("of_racing_leases_one_is_done")
@caught_by("of_leases_in_one_batch_one_is_done")
class LetsTwoRacersWin(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        outcome = super()._move(move)
        if outcome.result is Result.GONE and move.state is State.DELAYED:
            return Outcome(Result.DONE, Entry(move.entry.queue, move.entry.id, move.state, move.meta))
        return outcome


@caught_by("of_racing_extensions_one_is_done")
class LetsTwoExtend(MovesByIdAlone):
    def change(self, move: Move) -> Move:
        return super().change(move) if move.entry.state is move.state is State.DELAYED else move


@caught_by("of_a_lease_and_a_removal_one_is_done")
class RemovesWhatIsGone(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        outcome = super()._move(move)
        if outcome.result is Result.GONE and move.state is State.REMOVED:
            return Outcome(Result.DONE, Entry(move.entry.queue, move.entry.id, move.state, move.meta))
        return outcome


@caught_by("a_move_overwrites_nothing")
class OverwritesWhenMoving(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        queue = move.queue or move.entry.queue
        if self._at(move.entry) and (move.entry.state, move.entry.queue) != (move.state, queue):
            self._places.get((move.state, queue), {}).pop(move.entry.id, None)
        return super()._move(move)


@caught_by("a_move_overwrites_nothing")
class LosesWhatCollides(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        outcome = super()._move(move)
        if outcome.result is Result.EXISTS:
            self._take(move.entry)
        return outcome


@caught_by("a_move_needs_its_queue")
class DeliversAnywhere(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        queue = move.queue or move.entry.queue
        made = self._records.setdefault(QUEUE, {})
        missing = queue not in made
        made.setdefault(queue, "{}")
        outcome = super()._move(move)
        if missing:
            del made[queue]
        return outcome


@caught_by("a_move_needs_its_queue")
class LosesWhatHasNoQueue(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        outcome = super()._move(move)
        if outcome.result is Result.NO_QUEUE:
            self._take(move.entry)
        return outcome


@caught_by("an_orphan_can_be_removed")
class KeepsOrphans(MemoryStorage):
    def _move(self, move: Move) -> Outcome:
        orphan = move.entry.queue not in self._records.get(QUEUE, {})
        return Outcome(Result.NO_QUEUE) if orphan else super()._move(move)


@caught_by("an_unlinked_entry_is_gone")
class UnlinksTwice(MemoryStorage):
    def _do(self, operation: Operation) -> Outcome:
        outcome = super()._do(operation)
        return Outcome(Result.DONE) if isinstance(operation, Unlink) else outcome


@caught_by("an_unlinked_entry_is_gone")
class UnlinksNothing(MemoryStorage):
    def _do(self, operation: Operation) -> Outcome:
        if isinstance(operation, Unlink):
            return Outcome(Result.GONE if self._at(operation.entry) is None else Result.DONE)
        return super()._do(operation)


@caught_by("of_racing_unlinks_one_is_done")
class CountsReapedTwice(UnlinksTwice):
    pass


@caught_by("a_removal_in_one_step_takes_it_out_of_its_place")
class UnlinksOnlyWhatWasRemoved(MemoryStorage):
    """And says that it has done the others."""

    def _do(self, operation: Operation) -> Outcome:
        if isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED:
            return Outcome(Result.GONE if self._at(operation.entry) is None else Result.DONE)
        return super()._do(operation)


@caught_by("a_removal_in_one_step_takes_it_out_of_its_place")
class LeavesWhatItUnlinksInRemoved(MemoryStorage):
    def _do(self, operation: Operation) -> Outcome:
        if isinstance(operation, Unlink) and operation.entry.state is not State.REMOVED:
            return super()._do(Move(operation.entry, State.REMOVED))._replace(entry=None)
        return super()._do(operation)


@caught_by("of_racing_removals_in_one_step_one_is_done")
class CountsTwoRemovalsInOneStep(UnlinksTwice):
    pass
