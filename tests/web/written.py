"""Batches as the daemon writes them, whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mq.doors.budget import Budget
from mq.web.batches import FORMATS, BatchEntry, preferred
from mq.web.columns import block_of_entries, write_columns
from mq.web.multipart import begin_part, end_parts
from mq.web.replies import write_entries


def encode_entries(accept: str, entries: Iterable[BatchEntry]) -> tuple[str, bytes]:
    """The content type and the body, in the format that a client would rather have."""
    content_type, pieces = write_entries(preferred(accept, FORMATS), deque(entries), Budget().reserve())
    return content_type, b"".join(pieces)


def encode_columns(entries: Iterable[BatchEntry]) -> bytes:
    return b"".join(write_columns([block_of_entries(list(entries))], Budget().reserve()))


def write_parts(boundary: str, parts: Iterable[tuple[Iterable[tuple[str, str]], bytes]]) -> bytes:
    out = [b"".join((begin_part(boundary, headers), body, b"\r\n")) for headers, body in parts]
    return b"".join((*out, end_parts(boundary)))
