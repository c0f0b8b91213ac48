"""What the mutants have in common: a table of them, and the memory store with a place to go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from mq.lifecycle import State
from mq.message import MessageId, MessageIds
from mq.storage.interface import (
    Entry,
    Move,
    Outcome,
    Stored,
)
from mq.storage.memory import MemoryStorage

MUTANTS: Final[list[tuple[str, type[MemoryStorage]]]] = []
"""(name of the check that must catch it, a store in which one thing is wrong)."""

_Store = TypeVar("_Store", bound=type[MemoryStorage])
_ids: Final = MessageIds()


def caught_by(check: str) -> Callable[[_Store], _Store]:
    """Say which check must catch this store."""

    def enter(store: _Store) -> _Store:
        MUTANTS.append((check, store))
        return store

    return enter


def new_id() -> MessageId:
    """An id for what a mutant makes up."""
    return _ids.new()


def entries_of(store: MemoryStorage, state: State, queue: str | None) -> list[Entry]:
    """What is in a state, of one queue or of all, without a turn of anybody else."""
    return [Entry(name, id, state, kept.meta) for name, id, kept in store._there(state, queue)]


class ChangesRead(MemoryStorage):
    """What it gives back of a message is not what was written."""

    def change(self, entry: Entry, stored: Stored) -> Stored | None:
        raise NotImplementedError

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        found = await super().read(entries)
        return [stored and self.change(entry, stored) for entry, stored in zip(entries, found, strict=True)]


class ChangesMoves(MemoryStorage):
    """Does something else than it was asked for."""

    def change(self, move: Move) -> Move:
        raise NotImplementedError

    def _move(self, move: Move) -> Outcome:
        return super()._move(self.change(move))


class ChangesScan(MemoryStorage):
    """Lists something else than what is there."""

    def change(self, entries: list[Entry], state: State, queue: str | None, limit: int | None) -> list[Entry]:
        raise NotImplementedError

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        return self.change(await super().scan(state, queue, limit), state, queue, limit)
