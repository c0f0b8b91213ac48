"""What a daemon sends as columns, as Arrow arrays that lie in its answer: nothing is done for a single message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mq.client.errors import NotUnderstood
from mq.message import MessageId

COLUMNS: Final = "application/vnd.mq.columns"

_ID_BYTES: Final = 36
_INSTANT: Final = pa.timestamp("us", "UTC")


class Columns(NamedTuple):
    """Some messages.

    Attributes:
        sequence: the place of each in its queue.
        timestamp: when it was published.
        receives: how often it was handed out.
        id: its id.
        body: its bytes.
        said: content type and attributes of those that have any, by their number as text.
    """

    sequence: pa.Array
    timestamp: pa.Array
    receives: pa.Array
    id: pa.Array
    body: pa.Array
    said: Mapping[str, Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.sequence)


def read_columns(data: bytes) -> Columns:
    """Messages as docs/http.md has them.

    Raises:
        NotUnderstood: this is something else.
    """
    try:
        end = data.index(b"\n") + 1
        head = json.loads(data[:end])
        count, said = head["messages"], head["said"]
        rest = pa.py_buffer(data).slice(end)
        ends = rest.slice(20 * count, 4 * (count + 1))
        body_bytes = int.from_bytes(ends.slice(4 * count), "little")
        ids, bodies = rest.slice(24 * count + 4, _ID_BYTES * count), rest.slice((24 + _ID_BYTES) * count + 4)
        if len(bodies) != body_bytes:
            raise ValueError(f"{len(bodies)} bytes of bodies instead of {body_bytes}")
        ticks = _array(pa.int64(), count, rest.slice(8 * count, 8 * count))
        id_ends = pa.array(range(0, _ID_BYTES * (count + 1), _ID_BYTES), pa.int32()).buffers()[1]
        return Columns(
            _array(pa.int64(), count, rest.slice(0, 8 * count)),
            pc.divide(pc.add(ticks, MessageId.time_ns(0) // 100), 10).cast(_INSTANT),
            _array(pa.int32(), count, rest.slice(16 * count, 4 * count)),
            _array(pa.string(), count, id_ends, ids),
            _array(pa.binary(), count, ends, bodies),
            said,
        )
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise NotUnderstood(f"the daemon answered with something that is not columns of messages: {error}") from error


def _array(kind: pa.DataType, length: int, *buffers: pa.Buffer) -> pa.Array:
    array = pa.Array.from_buffers(kind, length, [None, *buffers])
    array.validate(full=True)
    return array
