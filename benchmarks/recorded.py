"""A store that notes what it is asked for: how its batches are made up, and which system calls it makes."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from mq.lifecycle import State
from mq.storage.calls import Calls, LinuxCalls
from mq.storage.interface import Entry, Move, Operation, Outcome, Stored, Unlink, Write
from mq.storage.options import StorageOptions
from mq.storage.posix import FolderStorage, mount_of_root

Step = tuple[State, State]

_VERBS: Final = tuple(name for name in vars(Calls) if not name.startswith("_"))


class Group(NamedTuple):
    """What was done together.

    Attributes:
        writes: messages written.
        moves: how many messages were moved, by (from, to).
        unlinks: messages taken away for good.
        reads: messages read. They stand in a group of their own.
        durable: a barrier was asked for.
    """

    writes: int = 0
    moves: tuple[tuple[Step, int], ...] = ()
    unlinks: int = 0
    reads: int = 0
    durable: bool = False


class CountingCalls(LinuxCalls):
    """The kernel, and how often each of its calls was made."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        for verb in _VERBS:
            setattr(self, verb, functools.partial(self._call, verb, getattr(self, verb)))

    def _call(self, verb: str, call: Any, *args: Any, **options: Any) -> Any:
        self.counts[verb] += 1
        return call(*args, **options)


class RecordedStorage(FolderStorage):
    """The POSIX store, and what it was asked for. What it notes while the clock runs is next to nothing."""

    def __init__(self, root: str, calls: LinuxCalls) -> None:
        super().__init__(f"posix:{root}", root, calls, StorageOptions(), mount=mount_of_root)
        self._asked: list[Sequence[Operation] | int] = []

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """As the store does it."""
        outcomes = await super().commit(operations)
        self._asked.append(operations)
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """As the store does it."""
        found = await super().read(entries)
        self._asked.append(len(entries))
        return found

    def take_groups(self) -> list[Group]:
        """How the batches and reads since the last time were made up, in the order in which they ended."""
        asked, self._asked = self._asked, []
        return [Group(reads=each) if isinstance(each, int) else _group(each) for each in asked]


@asynccontextmanager
async def open_recorded(root: str, calls: LinuxCalls | None = None) -> AsyncIterator[RecordedStorage]:
    """An open store below `root` for the length of the block."""
    storage = RecordedStorage(root, calls or LinuxCalls())
    try:
        await storage.open()
        yield storage
    finally:
        await storage.aclose()


def _group(operations: Sequence[Operation]) -> Group:
    moves: Counter[Step] = Counter()
    writes = unlinks = 0
    durable = False
    for operation in operations:
        if isinstance(operation, Write):
            writes += 1
        elif isinstance(operation, Move):
            moves[operation.entry.state, operation.state] += 1
        elif isinstance(operation, Unlink):
            unlinks += 1
        durable |= operation.durable
    return Group(writes, tuple(moves.items()), unlinks, 0, durable)


def mean_group(groups: Sequence[Group]) -> float:
    """How many operations shared a barrier, on average."""
    sizes = [group.writes + sum(number for _, number in group.moves) for group in groups if group.durable]
    return sum(sizes) / len(sizes) if sizes else 0.0
