"""Stores that change what is written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from mq.lifecycle import State
from mq.message import BytesBody, MessageId
from mq.storage.interface import (
    FRESH,
    QUEUE,
    Entry,
    Move,
    Operation,
    Outcome,
    Result,
    Stored,
    Write,
)
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import (
    ChangesRead,
    caught_by,
)


@caught_by("a_body_comes_back_exactly")
class StripsBodies(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        assert isinstance(stored.body, BytesBody)
        return stored._replace(body=BytesBody(stored.body.data.rstrip(b"\n\0")))


class LosesTheLastChunk(BytesBody):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.data[:-1]


@caught_by("a_body_comes_back_exactly")
class StreamsTooLittle(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        assert isinstance(stored.body, BytesBody)
        return stored._replace(body=LosesTheLastChunk(stored.body.data))


@caught_by("properties_describe_the_body")
class CountsWrong(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        return stored._replace(properties=stored.properties._replace(size=stored.properties.size + 1))


@caught_by("properties_describe_the_body")
class SumsWrong(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        return stored._replace(properties=stored.properties._replace(checksum=1))


@caught_by("attributes_come_back")
class DropsAttributes(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        return stored._replace(properties=stored.properties._replace(attributes={}))


@caught_by("attributes_come_back")
class DropsLargeAttributes(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        small = len(str(stored.properties.attributes)) < 50_000
        return stored if small else stored._replace(properties=stored.properties._replace(attributes={}))


@caught_by("attributes_stay_through_every_state")
class DropsAttributesOfLeased(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        if entry.state is not State.DELAYED:
            return stored
        return stored._replace(properties=stored.properties._replace(attributes={}))


@caught_by("attributes_are_a_snapshot")
class SharesAttributes(ChangesRead):
    def __init__(self) -> None:
        super().__init__()
        self.attributes: dict[MessageId, Mapping[str, Any]] = {}

    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        self.attributes.update({write.id: write.attributes for write in operations if isinstance(write, Write)})
        return await super().commit(operations)

    def change(self, entry: Entry, stored: Stored) -> Stored:
        return stored._replace(properties=stored.properties._replace(attributes=self.attributes[entry.id]))


@caught_by("a_write_is_in_new")
class DeliversAtOnce(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        outcome = super()._write(write)
        return self._move(Move(outcome.entry, State.READY)) if outcome.entry else outcome


@caught_by("a_write_is_where_it_says")
class WritesToNewAllTheSame(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        return super()._write(write._replace(state=State.NEW))


@caught_by("a_write_is_where_it_says")
class OverwritesWhereItPlaces(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        self._places.get((write.state, write.queue), {}).pop(write.id, None)
        return super()._write(write)


@caught_by("a_write_to_ready_needs_its_queue")
class PlacesWithoutAQueue(MemoryStorage):
    def _is_queue_missing(self, target: Entry) -> bool:
        return False


@caught_by("a_write_needs_no_queue")
class WantsAQueue(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        return super()._write(write) if write.queue in self._records.get(QUEUE, {}) else Outcome(Result.NO_QUEUE)


@caught_by("a_write_overwrites_nothing")
class OverwritesWhenWriting(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        self._places.get((State.NEW, write.queue), {}).pop(write.id, None)
        return super()._write(write)


@caught_by("a_write_overwrites_nothing")
class OverwritesAttributesAllTheSame(SharesAttributes):
    """Says EXISTS; but the attributes lie beside the message, and were replaced before that was known."""


@caught_by("of_equal_writes_one_is_done")
class SaysDoneToEqualWrites(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        super()._write(write)
        return Outcome(Result.DONE, Entry(write.queue, write.id, State.NEW))


@caught_by("reading_finds_only_what_is_there")
class ReadsByIdAlone(MemoryStorage):
    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        found = [await self.find(entry.queue, entry.id) for entry in entries]
        return await super().read([other or entry for entry, other in zip(entries, found, strict=True)])


@caught_by("reading_finds_only_what_is_there")
class LeavesOutWhatIsNotThere(MemoryStorage):
    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        return [stored for stored in await super().read(entries) if stored]


@caught_by("many_bodies_are_read_at_once")
class ReadsInItsOwnOrder(MemoryStorage):
    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        return await super().read(sorted(entries))


class ClosesForEver(BytesBody):
    closed: ClassVar[set[bytes]] = set()

    async def read(self) -> bytes:
        return b"" if self.data[:20] in self.closed else self.data

    async def aclose(self) -> None:
        self.closed.add(self.data[:20])


@caught_by("a_body_can_be_closed_unread")
class ClosesTheMessage(ChangesRead):
    def change(self, entry: Entry, stored: Stored) -> Stored:
        assert isinstance(stored.body, BytesBody)
        return stored._replace(body=ClosesForEver(stored.body.data))


@caught_by("a_write_keeps_its_meta")
class ForgetsTheMetaOfAWrite(MemoryStorage):
    async def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        return await super().commit(
            [operation._replace(meta=FRESH) if isinstance(operation, Write) else operation for operation in operations]
        )
