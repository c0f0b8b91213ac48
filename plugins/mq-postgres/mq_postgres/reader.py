"""Read, find and scan, by a session of their own: a look does not wait for a commit."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Final

import psycopg

from mq.lifecycle import State
from mq.message import MessageId, Properties
from mq.storage.interface import Entry, Stored
from mq_postgres.bodies import ChunkedBody, ReadChunk, small_body
from mq_postgres.statements import CONTAINS, NAMES, PLACES, READ, entry_columns, entry_of

_IN_ORDER: Final = (State.NEW, State.READY, State.DELAYED)


def read(connection: psycopg.Connection[Any], entries: Sequence[Entry], read_chunk: ReadChunk) -> list[Stored | None]:
    """The messages at these places."""
    found: list[Stored | None] = [None] * len(entries)
    if not entries:
        return found
    for n, number, size, crc, attributes, data in connection.execute(
        READ, entry_columns(list(enumerate(entries))), binary=True
    ):
        properties = Properties(size, crc, json.loads(attributes))
        body = ChunkedBody(number, size, crc, read_chunk) if data is None else small_body(number, size, crc, data)
        found[n] = Stored(properties, body)
    return found


def chunk(connection: psycopg.Connection[Any], number: int, part: int) -> bytes | None:
    """Part of a large body; None where it is not there any more."""
    query = "SELECT data FROM chunk WHERE number = %s AND part = %s"
    row = connection.execute(query, (number, part), binary=True).fetchone()
    return None if row is None else bytes(row[0])


def find(connection: psycopg.Connection[Any], queue: str, id: MessageId) -> Entry | None:
    """Where that message is."""
    rows = connection.execute(f"{PLACES} AND p.queue = %s AND p.id = %s::uuid", (queue, str(id)))
    found = {entry.state: entry for entry in map(entry_of, rows)}
    return next((found[state] for state in _IN_ORDER if state in found), None)


def contains(connection: psycopg.Connection[Any], queues: Collection[str], id: MessageId) -> bool:
    """Return whether one of the queues has that message, in any state."""
    row = connection.execute(CONTAINS, (list(queues), str(id))).fetchone()
    return row is not None and bool(row[0])


def scan(connection: psycopg.Connection[Any], state: State, queue: str | None, limit: int | None) -> list[Entry]:
    """Entries in a state."""
    query, values = f"{PLACES} AND p.state = %s", [NAMES[state]]
    if queue is not None:
        query, values = f"{query} AND p.queue = %s", [*values, queue]
    rows = connection.execute(f"{query} LIMIT %s", (*values, limit), binary=True)
    return [entry_of(row) for row in rows]
