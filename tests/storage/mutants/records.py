"""Stores with a bad memory for records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mq.storage.interface import (
    QUEUE,
)
from mq.storage.memory import MemoryStorage
from tests.record_hooks import RecordHooks
from tests.storage.mutants.kit import (
    caught_by,
)


@caught_by("a_record_comes_back")
class DropsNulls(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await super().put_record(kind, key, {name: item for name, item in value.items() if item is not None})


@caught_by("a_record_is_replaced")
class MergesRecords(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await super().put_record(kind, key, {**(await self.records(kind)).get(key, {}), **value})


@caught_by("a_record_is_replaced")
class SaysNewEachTime(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        await super().put_record(kind, key, value)
        return True


@caught_by("a_record_is_dropped")
class DropsWhatIsNotThere(RecordHooks, MemoryStorage):
    async def drop_record(self, kind: str, key: str) -> bool:
        await super().drop_record(kind, key)
        return True


@caught_by("a_record_is_dropped")
class EmptiesDroppedRecords(RecordHooks, MemoryStorage):
    async def drop_record(self, kind: str, key: str) -> bool:
        found = await super().drop_record(kind, key)
        if found:
            await self.put_record(kind, key, {})
        return found


@caught_by("keys_may_be_odd")
class FoldsCase(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await super().put_record(kind, key.lower(), value)


@caught_by("keys_may_be_odd")
class CutsKeys(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await super().put_record(kind, key[:1000], value)


@caught_by("every_queue_name_will_do")
class KeepsNamesOfItsOwn(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return key != "tmp" and await super().put_record(kind, key, value)


@caught_by("kinds_do_not_mix")
class MixesKinds(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        return await super().put_record(kind if kind == QUEUE else "other", key, value)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return await super().records(kind if kind == QUEUE else "other")


@caught_by("a_record_is_a_snapshot")
class SharesRecords(RecordHooks, MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[str, str], Mapping[str, Any]] = {}

    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        self.values[kind, key] = value
        return await super().put_record(kind, key, value)

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        return {key: self.values[kind, key] for key in await super().records(kind)}


@caught_by("records_are_put_side_by_side")
class WritesAllRecordsAnew(RecordHooks, MemoryStorage):
    async def put_record(self, kind: str, key: str, value: Mapping[str, Any]) -> bool:
        before = {other: dict(records) for other, records in self._records.items()}
        new = await super().put_record(kind, key, value)
        self._records = {**before, kind: {**before.get(kind, {}), key: self._records[kind][key]}}
        return new
