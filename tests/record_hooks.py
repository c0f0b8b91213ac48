"""Hooks into the Puts and Drops that a store does one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from mq.storage.interface import AnyOperation, Drop, Outcome, Put, Result
from mq.storage.records import drop_record, put_record


class Unhooked:
    """A store as it commits now, whatever hooks it gets later."""

    def __init__(self, storage: Any) -> None:
        self.commit = storage.commit


class RecordHooks:
    """Mixed into a subclass of a store, before it: each Put or Drop that is a batch of its own is a call of
    :meth:`put_record` or :meth:`drop_record`, which the subclass overrides."""

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await put_record(Unhooked(super()), kind, key, value)  # type: ignore[arg-type]

    async def drop_record(self, kind: str, key: str) -> bool:
        return await drop_record(Unhooked(super()), kind, key)  # type: ignore[arg-type]

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        real: Callable[..., Awaitable[list[Outcome]]] = super().commit  # type: ignore[misc]
        return await _hooked(real, self.put_record, self.drop_record, operations)


def hook_records(
    storage: Any,
    *,
    put: Callable[..., Awaitable[bool]] | None = None,
    drop: Callable[..., Awaitable[bool]] | None = None,
) -> Callable[[], None]:
    """Let a store call these for each Put or Drop that is a batch of its own. Returns what ends that."""
    real = storage.commit

    async def commit(operations: Sequence[AnyOperation]) -> list[Outcome]:
        return await _hooked(real, put, drop, operations)

    def end() -> None:
        storage.commit = real

    storage.commit = commit
    return end


async def _hooked(
    real: Callable[..., Awaitable[list[Outcome]]],
    put: Callable[..., Awaitable[bool]] | None,
    drop: Callable[..., Awaitable[bool]] | None,
    operations: Sequence[AnyOperation],
) -> list[Outcome]:
    match operations:
        case [Put() as operation] if put is not None:
            return [Outcome(Result.DONE, existed=not await put(*operation))]
        case [Drop() as operation] if drop is not None:
            return [Outcome(Result.DONE if await drop(*operation) else Result.GONE)]
    return await real(operations)
