"""Stores that lose their way with large bodies."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator

import trio

from mq.lifecycle import State
from mq.storage.interface import (
    Move,
    Outcome,
    Staged,
    Write,
)
from mq.storage.memory import MemoryStorage
from tests.storage.mutants.kit import (
    caught_by,
    new_id,
)


class ChangesStaged(MemoryStorage):
    """What is staged is not what came."""

    def join(self, chunks: list[bytes]) -> bytes:
        raise NotImplementedError

    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        joined = self.join([chunk async for chunk in chunks])

        async def one() -> AsyncIterator[bytes]:
            yield joined

        return await super().stage(one())


@caught_by("a_staged_body_comes_back_exactly")
class StopsAtAnEmptyChunk(ChangesStaged):
    def join(self, chunks: list[bytes]) -> bytes:
        return b"".join(chunks[: chunks.index(b"")] if b"" in chunks else chunks)


@caught_by("a_staged_body_moves_like_any_other")
class ForgetsWhatWasStagedWhenMoved(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        outcome = super()._write(write)
        self.staged = getattr(self, "staged", set()) | (set() if isinstance(write.body, bytes) else {write.id})
        return outcome

    def _move(self, move: Move) -> Outcome:
        kept = self._at(move.entry)
        if kept and move.entry.id in self.staged:
            self._places[move.entry.state, move.entry.queue][move.entry.id] = kept._replace(data=b"")
        return super()._move(move)


@caught_by("a_staged_body_is_no_message_yet")
class ShowsStagedBodies(MemoryStorage):
    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        staged = await super().stage(chunks)
        await self.commit([Write("staged", new_id(), b"", {})])
        return staged


@caught_by("a_written_body_is_not_discarded")
class DiscardsWrittenBodies(MemoryStorage):
    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        staged = await super().stage(chunks)

        async def discard() -> None:
            for place in self._places.values():
                for id, kept in place.items():
                    if kept.data == staged.data:  # type: ignore[attr-defined]
                        place[id] = kept._replace(data=b"")

        staged.discard = discard  # type: ignore[method-assign]
        return staged


@caught_by("a_staged_write_overwrites_nothing")
class OverwritesWhenStaged(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        if not isinstance(write.body, bytes):
            self._places.get((State.NEW, write.queue), {}).pop(write.id, None)
        return super()._write(write)


@caught_by("a_refused_write_leaves_its_staged_body")
class WritesStagedBodiesOnce(MemoryStorage):
    def _write(self, write: Write) -> Outcome:
        outcome = super()._write(write)
        if not isinstance(write.body, bytes):
            write.body.data = b""  # type: ignore[attr-defined]
        return outcome


@caught_by("what_chunks_raise_passes_through")
class HidesWhatChunksRaise(MemoryStorage):
    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        return await super().stage(until_error(chunks))


async def until_error(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    try:
        async for chunk in chunks:
            yield chunk
    except Exception:  # noqa: BLE001 - this is what is wrong with it
        return


@caught_by("staging_can_be_cancelled")
class LeavesCancelledBodies(MemoryStorage):
    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        try:
            return await super().stage(chunks)
        except trio.Cancelled:
            self._write(Write("staged", new_id(), b""))
            raise


@caught_by("bodies_are_staged_side_by_side")
class StagesUnderOneName(MemoryStorage):
    async def stage(self, chunks: AsyncIterable[bytes]) -> Staged:
        self.name = b""
        async for chunk in chunks:
            self.name += chunk
            await trio.lowlevel.checkpoint()
        joined = self.name

        async def one() -> AsyncIterator[bytes]:
            yield joined

        return await super().stage(one())
