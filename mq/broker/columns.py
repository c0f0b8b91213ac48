"""Messages in columns, as the store has read them together: for readers that take very many (the Spark source)."""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from mq import turns
from mq.broker.batch_consumers import BatchConsumers
from mq.broker.core import Core
from mq.broker.index import QueueIndex, sequence_of
from mq.message import MessageId
from mq.storage.interface import ColumnStorage, Entry, MessageColumns, reads_columns

LONGEST_COLUMNS: Final = 2000
"""Messages that are read at a time: while their names are gathered, the event loop does nothing else."""

_TIME_BYTES: Final = 8
_END_BYTES: Final = 4
_ID_BYTES: Final = 36


class BrowsedColumns(NamedTuple):
    """The first of the messages that were asked for, each of them whole.

    Attributes:
        is_end: nothing is left behind them. Where False and there are none, the next is one that columns cannot have.
    """

    columns: MessageColumns
    sequences: Sequence[int]
    receives: Sequence[int]
    is_end: bool


class ColumnReader:
    """Reads messages in columns, without changing them: :attr:`Broker.columns`.

    What it leaves out, because it is damaged, long, or stored in another way, is for the other ways to read.

    Args:
        catch_up: likewise, with every message delivered that was published before.
    """

    def __init__(
        self,
        storage: ColumnStorage,
        claims: BatchConsumers,
        look_up: Callable[[str], Awaitable[QueueIndex]],
        catch_up: Callable[[str], Awaitable[QueueIndex]],
    ) -> None:
        self._storage = storage
        self._claims = claims
        self._look_up = look_up
        self._catch_up = catch_up

    @classmethod
    def of(
        cls,
        core: Core,
        claims: BatchConsumers,
        look_up: Callable[[str], Awaitable[QueueIndex]],
        catch_up: Callable[[str], Awaitable[QueueIndex]],
    ) -> ColumnReader | None:
        """The reader of a store that has messages in columns; None for any other store."""
        return cls(core.storage, claims, look_up, catch_up) if reads_columns(core.storage) else None

    async def browse(
        self, queue: str, *, after: int, up_to: int | None, most: int, base: int, most_bytes: int, bodies: bool = True
    ) -> BrowsedColumns | None:
        """The first READY messages by their sequence; None where the queue's have to be read in another way.

        Args:
            after: their sequences are greater than this.
            up_to: their sequences are not greater than this.
            base: what is added to the ends of their bodies.
            most_bytes: of bodies and attributes together.
            bodies: whether bodies and attributes are wanted. Without them no message is read, nor found to be damaged.

        Raises:
            NoSuchQueue: the queue does not exist.
        """
        index = await self._catch_up(queue)
        most = min(most, LONGEST_COLUMNS)
        sequences, messages = index.named_between(after, up_to, most)
        if bodies:
            columns = await self._storage.read_columns(queue, messages, base, most_bytes)
        else:
            columns = await _without_bodies(messages, base)
        if columns is None:
            return None
        count = _whole(sequences, columns.length)
        columns = first_of(columns, count, base)
        receives = [each.meta.receives if isinstance(each, Entry) else 0 for each in messages[:count]]
        return BrowsedColumns(columns, sequences[:count], receives, count == len(messages) < most)

    async def read_claim(
        self,
        queue: str,
        name: str,
        batch: int,
        epoch: int,
        start: int,
        stop: int,
        of: int | None,
        *,
        most: int,
        base: int,
        most_bytes: int,
    ) -> BrowsedColumns | None:
        """Up to `most` messages of an open claim from place `start` on, to before `stop`; None as for :meth:`browse`.

        Raises:
            NoSuchQueue, Conflict, ReceiptMismatch: as :meth:`mq.broker.batch_consumers.BatchConsumers.read`.
        """
        index = await self._look_up(queue)
        most = max(0, min(stop - start, most, LONGEST_COLUMNS))
        entries = await self._claims.leased(index, name, batch, epoch, start, start + most, of)
        columns = await self._storage.read_columns(queue, entries, base, most_bytes)
        if columns is None:
            return None
        count = columns.length
        read = entries[:count]
        receives = [entry.meta.receives + 1 for entry in read]  # the claim's own is not in its name
        is_end = count == len(entries) and (count < most or start + count >= stop)
        return BrowsedColumns(columns, [sequence_of(entry) for entry in read], receives, is_end)


async def _without_bodies(messages: Sequence[int | Entry], base: int) -> MessageColumns:
    """What the index knows of messages, in columns: their bodies are empty."""
    ids: list[MessageId] = []
    async for some in turns.slices(messages, turns.LIGHT // 8):
        ids += [each.id if isinstance(each, Entry) else MessageId.from_key(each) for each in some]
    count = len(ids)
    times = struct.pack(f"<{count}q", *(id.time for id in ids))
    return MessageColumns(count, times, struct.pack("<I", base) * count, "".join(ids).encode("ascii"), b"", {})


def _whole(sequences: Sequence[int], count: int) -> int:
    """How many of the first `count` there are without those whose sequence the next one has, too."""
    if 0 < count < len(sequences):
        following = sequences[count]
        while count and sequences[count - 1] == following:
            count -= 1
    return count


def first_of(columns: MessageColumns, count: int, base: int) -> MessageColumns:
    """The first `count` of messages, of which `base` was added to the ends of their bodies."""
    if count == columns.length:
        return columns
    ends = columns.ends[: count * _END_BYTES]
    size = int.from_bytes(ends[-_END_BYTES:], "little") - base if count else 0
    attributes = {place: each for place, each in columns.attributes.items() if place < count}
    return MessageColumns(
        count,
        columns.times[: count * _TIME_BYTES],
        ends,
        columns.ids[: count * _ID_BYTES],
        columns.bodies[:size],
        attributes,
    )
