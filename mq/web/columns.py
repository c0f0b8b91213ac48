"""Messages as columns of numbers and bytes, for readers that make columns of them anyway. Described in docs/http.md.

A line of JSON, filled up with blanks to a multiple of 8 bytes, and then the columns one after another, each as it lies
in memory: so neither side does anything for a single message but copy its bytes.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

from mq.web.batches import Entry
from mq.web.parameters import content_type_of, texts_of

COLUMNS: Final = "application/vnd.mq.columns"
"""The content type."""

_ALIGNED: Final = 8


def encode_columns(entries: Sequence[Entry]) -> bytes:
    """All of them. Receipts, states and deaths are left out."""
    bodies = [entry.body for entry in entries]
    ids = [entry.message.id for entry in entries]
    columns = (
        _numbers("q", [entry.sequence or 0 for entry in entries]),
        _numbers("q", [id.time for id in ids]),
        _numbers("i", [entry.message.receives for entry in entries]),
        _numbers("i", accumulate(map(len, bodies), initial=0)),
        "".join(ids).encode("ascii"),
        *bodies,
    )
    said = {number: _said(entry) for number, entry in enumerate(entries) if entry.message.properties.attributes}
    head = json.dumps({"messages": len(entries), "said": said}).encode("ascii")
    return b"".join((head, b" " * (-(len(head) + 1) % _ALIGNED), b"\n", *columns))


def _numbers(kind: str, values: Iterable[int]) -> bytes:
    numbers = array(kind, values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _said(entry: Entry) -> dict[str, Any]:
    return {"content_type": content_type_of(entry.message), "attributes": texts_of(entry.message)}
