"""Messages in columns, as docs/dev/storage-formats.md describes them: a line of JSON, padded with blanks to a multiple
of 8 bytes, and then the columns, each as it is in memory.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

from mq.broker.columns import BrowsedColumns
from mq.doors.budget import Room
from mq.web.batches import BatchEntry
from mq.web.parameters import codings_of, content_type_of, group_of, texts_of

COLUMNS: Final = "application/vnd.mq.columns"
"""The content type."""
PIECE: Final = 64 * 1024
"""Bytes that an answer is written by."""
_ALIGNED: Final = 8


class Block(NamedTuple):
    """Some messages of an answer, one behind another.

    Attributes:
        sequences: their places in their queue, 8 bytes each.
        times: when their ids were made, 8 bytes each.
        receives: how often each was handed out, 4 bytes each.
        ends: where each body ends, with those of the blocks before; 4 bytes each.
        ids: 36 bytes each.
        bodies: one or more together.
        said: content type, attributes and group of those that have any, in JSON, by their places.
    """

    length: int
    sequences: bytes
    times: bytes
    receives: bytes
    ends: bytes
    ids: bytes
    bodies: Sequence[bytes]
    said: Mapping[int, str]


def block_of_entries(entries: Collection[BatchEntry], base: int = 0) -> Block:
    """Messages that were read one by one. `base` bytes are before their bodies."""
    ids = [entry.message.id for entry in entries]
    ends = list(accumulate((len(entry.body) for entry in entries), initial=base))[1:]
    attributes = [entry.message.properties.attributes for entry in entries]
    return Block(
        len(entries),
        _numbers("q", [entry.sequence or 0 for entry in entries]),
        _numbers("q", [id.time for id in ids]),
        _numbers("i", [entry.message.receives for entry in entries]),
        _numbers("i", ends),
        "".join(ids).encode("ascii"),
        [entry.body for entry in entries],
        {place: _said(each) for place, each in enumerate(attributes) if each},
    )


def block_of_columns(browsed: BrowsedColumns) -> Block:
    """Messages that were read together. The base with which they were read is before their bodies."""
    length, times, ends, ids, bodies, attributes = browsed.columns
    texts = {id(each): each for each in attributes.values()}  # many messages share one object
    written = {number: _said(each) for number, each in texts.items()}
    said = {place: written[id(each)] for place, each in attributes.items()}
    sequences, receives = _numbers("q", browsed.sequences), _numbers("i", browsed.receives)
    return Block(length, sequences, times, receives, ends, ids, [bodies], said)


def write_columns(blocks: Sequence[Block], room: Room) -> Iterator[bytes]:
    """All blocks as one answer, in pieces of about the same length.

    Args:
        blocks: in order, each with the ones before as its base.
        room: what they have reserved; it shrinks as they are written.
    """
    bodies = deque(body for block in blocks for body in block.bodies)
    size = sum(map(len, bodies))
    head = _head(blocks)
    del blocks
    beside = max(0, room.size - size)
    return _pieces(head, bodies, room, beside)


def _pieces(head: bytes, bodies: deque[bytes], room: Room, beside: int) -> Iterator[bytes]:
    """The head, and the bodies: short ones by the piece, for they are many."""
    held, waiting, let_go = [head], len(head), beside
    while bodies:
        body = bodies.popleft()
        let_go += len(body)
        if len(body) < PIECE:
            held.append(body)
            waiting += len(body)
            if waiting < PIECE:
                continue
        yield b"".join(held)
        if len(body) >= PIECE:
            yield from cut(body)
        room.shrink(max(0, room.size - let_go))
        held, waiting, let_go = [], 0, 0
    yield b"".join(held)
    room.shrink(max(0, room.size - let_go))


def cut(body: bytes, size: int = PIECE) -> Iterator[bytes]:
    """The bytes, at most `size` at a time."""
    if len(body) <= size:
        yield body
        return
    for start in range(0, len(body), size):
        yield body[start : start + size]


def _head(blocks: Sequence[Block]) -> bytes:
    """All but the bodies, which come last. Receipts, states and deaths are left out."""
    count = sum(block.length for block in blocks)
    head = b'{"messages": %d, "said": {%s}}' % (count, ", ".join(_all_said(blocks)).encode("ascii"))
    return b"".join(
        (
            head,
            b" " * (-(len(head) + 1) % _ALIGNED),
            b"\n",
            *(block.sequences for block in blocks),
            *(block.times for block in blocks),
            *(block.receives for block in blocks),
            bytes(4),
            *(block.ends for block in blocks),
            *(block.ids for block in blocks),
        )
    )


def _all_said(blocks: Iterable[Block]) -> Iterator[str]:
    start = 0
    for block in blocks:
        for place, said in block.said.items():
            yield f'"{start + place}": {said}'
        start += block.length


def _numbers(kind: str, values: Iterable[int]) -> bytes:
    numbers = array(kind, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _said(attributes: Mapping[str, Any]) -> str:
    said: dict[str, Any] = {"content_type": content_type_of(attributes), "attributes": texts_of(attributes)}
    if (codings := codings_of(attributes)) is not None:
        said["content_encoding"] = codings
    group = group_of(attributes)
    return json.dumps(said if group is None else {**said, "group": group})
