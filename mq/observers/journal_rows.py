"""The lifecycle journal's rows: what the columns are, and how transitions become a batch of them.

A row is a transition, or a note of the journal itself: where a life began and ended, what was found at its start, and
how much is missing. Needs pyarrow (the extra ``journal``).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mq.lifecycle import Kind, State, Transition
from mq.message import MessageId

START: Final = "start"
"""A broker's life begins."""
QUEUE: Final = "queue"
"""At the start there was this queue: `count` messages in it, made at `since`."""
FOUND: Final = "found"
"""At the start this message was in the state `target`; null: on its way from one to another."""
CENSUS: Final = "census"
"""The list of what was there at the start is complete: `count` messages."""
GAP: Final = "gap"
"""`count` transitions are missing here, the first of them at `since`."""
STOP: Final = "stop"
"""The life ended in order: nothing of it is missing after this."""

_KINDS: Final = [*(kind.value for kind in Kind), START, QUEUE, FOUND, CENSUS, GAP, STOP]
_STATES: Final = [state.value for state in State]
_INSTANT: Final = pa.timestamp("us", "UTC")
_WORD: Final = pa.dictionary(pa.int8(), pa.string())

SCHEMA: Final = pa.schema(
    [
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("time", _INSTANT, nullable=False),
        pa.field("kind", _WORD, nullable=False),
        pa.field("queue", pa.string(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", _WORD),
        pa.field("target", _WORD),
        pa.field("size", pa.int64()),
        pa.field("receives", pa.int32(), nullable=False),
        pa.field("destination", pa.string()),
        pa.field("protocol", pa.string(), nullable=False),
        pa.field("count", pa.int64()),
        pa.field("since", _INSTANT),
    ]
)
"""The columns. `sequence` counts the rows of a broker's life, those that are missing included; the others are those of
:class:`~mq.lifecycle.Transition`, and what notes say."""

LARGEST_BATCH: Final = 8192
WIDTH: Final = len(Transition._fields)
"""How many fields a transition has."""

_KIND_WORDS: Final = pa.array(_KINDS, pa.string())
_STATE_WORDS: Final = pa.array(_STATES, pa.string())
# By the identity of the members: hashing a member of an enumeration costs as much as all the rest.
_KIND_CODES: Final = {id(kind): _KINDS.index(kind.value) for kind in Kind}
_STATE_CODES: Final = {id(None): len(_STATES), **{id(state): _STATES.index(state.value) for state in State}}
_NO_STATE: Final = len(_STATES)
_NUMBERS: Final = pa.array(range(LARGEST_BATCH), pa.int64())


def transitions_batch(fields: Sequence[Any]) -> pa.RecordBatch:
    """A batch of at most LARGEST_BATCH transitions, not numbered yet.

    Args:
        fields: of all of them, one transition after another.
    """
    columns = [fields[number::WIDTH] for number in range(WIDTH)]
    kinds, queues, ids, sources, targets, times, sizes, receives, destinations, protocols = columns
    return _batch(
        len(kinds),
        time=_instants(times),
        kind=pa.DictionaryArray.from_arrays(_bytes(map(_KIND_CODES.__getitem__, map(id, kinds))), _KIND_WORDS),
        queue=pa.array(queues, pa.string()),
        id=pa.array(ids, pa.string()),
        source=_states(sources),
        target=_states(targets),
        size=pa.array(sizes, pa.int64()),
        receives=pa.array(receives, pa.int32()),
        destination=pa.array(destinations, pa.string()),
        protocol=pa.array(protocols, pa.string()),
    )


def found_batch(queue: str, rows: Sequence[tuple[MessageId, State | None, int]], time_ns: int) -> pa.RecordBatch:
    """A batch of at most LARGEST_BATCH messages that were found: id, state, how often received."""
    ids, states, receives = zip(*rows, strict=True)
    return _batch(
        len(rows),
        time=_instants([time_ns] * len(rows)),
        kind=_word(FOUND, len(rows)),
        queue=pa.array([queue] * len(rows), pa.string()),
        id=pa.array(ids, pa.string()),
        target=_states(states),
        receives=pa.array(receives, pa.int32()),
    )


def note_batch(
    kind: str, time_ns: int, *, queue: str = "", count: int | None = None, since_ns: int | None = None
) -> pa.RecordBatch:
    """One note."""
    return _batch(
        1,
        time=_instants([time_ns]),
        kind=_word(kind, 1),
        queue=pa.array([queue], pa.string()),
        count=pa.array([count], pa.int64()),
        since=_instants([since_ns]),
    )


def numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """The batch with its rows' numbers, from `first` on."""
    numbers = pc.add(_NUMBERS.slice(0, batch.num_rows), first)
    return batch.set_column(0, SCHEMA.field(0), numbers)


def checksum(batch: pa.RecordBatch) -> str:
    """CRC-32 of what is in the columns, as text."""
    total = 0
    for column in batch.columns:
        total = _crc(column.indices if isinstance(column, pa.DictionaryArray) else column, total)
    return f"{total:08x}"


def _crc(column: pa.Array, total: int) -> int:
    """The checksum of a column. A value under a null is undefined, and left out."""
    total = zlib.crc32(str(column.null_count).encode(), total)
    if column.null_count == len(column):
        return total
    if column.null_count:
        column = pc.fill_null(column, "" if pa.types.is_string(column.type) else pa.scalar(0, column.type))
    for buffer in column.buffers()[1:]:  # the first says what is null; there may be none when nothing is
        if buffer is not None:
            total = zlib.crc32(buffer, total)
    return total


def _batch(length: int, **columns: pa.Array) -> pa.RecordBatch:
    """The columns in order. What is not given is null, empty or 0."""
    arrays = [columns[field.name] if field.name in columns else _nothing(field, length) for field in SCHEMA]
    return pa.record_batch(arrays, schema=SCHEMA)


def _nothing(field: pa.Field, length: int) -> pa.Array:
    if field.nullable:
        return _states([None] * length) if field.type == _WORD else pa.nulls(length, field.type)
    return pa.array([""] * length, pa.string()) if field.type == pa.string() else _zeros(field.type, length)


def _zeros(kind: pa.DataType, length: int) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None, pa.py_buffer(bytes(kind.bit_width // 8 * length))])


def _word(kind: str, length: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(_bytes([_KINDS.index(kind)] * length), _KIND_WORDS)


def _states(states: Iterable[State | None]) -> pa.DictionaryArray:
    codes = _bytes(map(_STATE_CODES.__getitem__, map(id, states)))
    return pa.DictionaryArray.from_arrays(pc.if_else(pc.equal(codes, _NO_STATE), None, codes), _STATE_WORDS)


def _bytes(codes: Iterable[int]) -> pa.Array:
    data = bytes(codes)
    return pa.Array.from_buffers(pa.int8(), len(data), [None, pa.py_buffer(data)])


def _instants(times_ns: Iterable[int | None]) -> pa.Array:
    return pc.divide(pa.array(times_ns, pa.int64()), 1000).cast(_INSTANT)
