"""The SQL of a batch. Arrays go in, one element an operation; what comes out is what was not done.

An array is written here as PostgreSQL's text, and bodies are one value that the server cuts up: a driver that looks at
each element, and writes each byte of a body as two digits, took more than half of a publish.

Each statement's first parameter is the number of the change. ``meta`` is compared whole: that is the compare in
compare-and-move. READY counts only in the present life of its queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import Entry, Meta

NAMES: Final = {state: state.name.lower() for state in State}
"""How a state is called in the tables."""
_STATES: Final = {name: state for state, name in NAMES.items()}

_ENTRIES: Final = (
    "%s::int[], %s::text[], %s::text[]::uuid[], %s::text[],"
    " %s::bigint[], %s::int[], %s::text[], %s::bigint[], %s::bigint[]"
)
_ENTRY_COLUMNS: Final = "n, queue, id, state, deadline_ms, receives, receipt, joined, expires_ms"
_IS_THERE: Final = """
p.queue = g.queue AND p.id = g.id AND p.state = g.state AND (p.state <> 'ready' OR p.life = source.life)
    AND p.receives = g.receives AND p.deadline_ms IS NOT DISTINCT FROM g.deadline_ms
    AND p.receipt IS NOT DISTINCT FROM g.receipt AND p.joined IS NOT DISTINCT FROM g.joined
    AND p.expires_ms IS NOT DISTINCT FROM g.expires_ms
"""

WRITE: Final = f"""
WITH given AS (
    SELECT %s::bigint AS change, g.*
    FROM unnest({_ENTRIES}, %s::bigint[], %s::bigint[], %s::text[], %s::int[], %s::bigint[])
        AS g({_ENTRY_COLUMNS}, size, checksum, attributes, starts, staged)
), judged AS MATERIALIZED (
    SELECT g.*, target.life, CASE
        WHEN g.state = 'ready' AND target.life IS NULL THEN 'no queue'
        WHEN EXISTS (
            SELECT FROM place p WHERE p.queue = g.queue AND p.id = g.id AND (p.state <> 'ready' OR p.life = target.life)
        ) THEN 'exists'
        WHEN g.staged IS NOT NULL AND NOT EXISTS (SELECT FROM staged s WHERE s.number = g.staged) THEN 'gone'
        ELSE 'done' END AS result
    FROM given g LEFT JOIN queue target ON target.name = g.queue
), numbered AS MATERIALIZED (
    SELECT j.*, coalesce(j.staged, nextval('number')) AS number FROM judged j WHERE j.result = 'done'
), placed AS (
    INSERT INTO place (number, life, deadline_ms, joined, expires_ms, id, receives, queue, state, receipt)
    SELECT number, CASE state WHEN 'ready' THEN life ELSE 0 END, deadline_ms, joined, expires_ms, id, receives, queue,
        state, receipt FROM numbered
), kept AS (
    INSERT INTO body (number, size, checksum, attributes, data)
    SELECT number, size, checksum, attributes, substr(%b::bytea, starts, size::int) FROM numbered
), unstaged AS (
    DELETE FROM staged s USING numbered m WHERE s.number = m.staged
), refused AS (
    INSERT INTO refusal SELECT change, n, result FROM judged WHERE result <> 'done'
)
SELECT n, result FROM judged WHERE result <> 'done'
"""
"""Messages into the states where they rest, or into NEW. The last parameter is all bodies in one: each has its `size`,
and `starts` at its byte, counted from 1. A staged one starts nowhere."""

MOVE: Final = f"""
WITH given AS (
    SELECT %s::bigint AS change, g.*
    FROM unnest({_ENTRIES}, %s::text[], %s::text[], %s::bigint[], %s::int[], %s::text[], %s::bigint[], %s::bigint[])
        AS g({_ENTRY_COLUMNS}, to_queue, to_state, to_deadline_ms, to_receives, to_receipt, to_joined, to_expires_ms)
), judged AS MATERIALIZED (
    SELECT g.*, p.number, target.life AS to_life, CASE
        WHEN g.to_state = 'ready' AND target.life IS NULL THEN 'no queue'
        WHEN p.number IS NULL THEN 'gone'
        WHEN EXISTS (
            SELECT FROM place t WHERE t.queue = g.to_queue AND t.id = g.id AND t.state = g.to_state
                AND (t.state <> 'ready' OR t.life = target.life) AND t.number <> p.number
        ) THEN 'exists'
        ELSE 'done' END AS result
    FROM given g
    LEFT JOIN queue source ON source.name = g.queue
    LEFT JOIN queue target ON target.name = g.to_queue
    LEFT JOIN place p ON {_IS_THERE}
), moved AS (
    UPDATE place p SET queue = j.to_queue, state = j.to_state, deadline_ms = j.to_deadline_ms,
        receives = j.to_receives, receipt = j.to_receipt, joined = j.to_joined, expires_ms = j.to_expires_ms,
        life = CASE j.to_state WHEN 'ready' THEN j.to_life ELSE p.life END
    FROM judged j
    WHERE j.result = 'done' AND p.queue = j.queue AND p.id = j.id AND p.number = j.number
), refused AS (
    INSERT INTO refusal SELECT change, n, result FROM judged WHERE result <> 'done'
)
SELECT n, result FROM judged WHERE result <> 'done'
"""
"""Messages from place to place."""

UNLINK: Final = f"""
WITH given AS (
    SELECT %s::bigint AS change, g.* FROM unnest({_ENTRIES}) AS g({_ENTRY_COLUMNS})
), judged AS MATERIALIZED (
    SELECT g.*, p.number FROM given g
    LEFT JOIN queue source ON source.name = g.queue
    LEFT JOIN place p ON {_IS_THERE}
), gone AS (
    DELETE FROM place p USING judged j WHERE p.queue = j.queue AND p.id = j.id AND p.number = j.number
), bodies AS (
    DELETE FROM body b USING judged j WHERE b.number = j.number
), chunks AS (
    DELETE FROM chunk c USING judged j WHERE c.number = j.number
), refused AS (
    INSERT INTO refusal SELECT change, n, 'gone' FROM judged WHERE number IS NULL
)
SELECT n, 'gone' FROM judged WHERE number IS NULL
"""
"""Messages out of the store, from wherever they are."""

_GIVEN_RECORDS: Final = """
WITH given AS (
    SELECT %s::bigint AS change, g.*, sha256(g.key) AS digest FROM unnest({}) AS g({})
), noted AS (
    INSERT INTO replaced (change, kind, digest, key, value)
    SELECT g.change, g.kind, g.digest, g.key, r.value
    FROM given g LEFT JOIN record r ON r.kind = g.kind AND r.digest = g.digest ON CONFLICT DO NOTHING
), cleared AS (
    DELETE FROM replaced r WHERE r.change < (SELECT min(change) FROM given)
)"""
PUT: Final = f"""{_GIVEN_RECORDS.format("%s::text[], %s::bytea[], %s::text[]", "kind, key, value")},
put AS (
    INSERT INTO record (kind, digest, key, value) SELECT kind, digest, key, value FROM given
    ON CONFLICT (kind, digest) DO UPDATE SET value = excluded.value
)
SELECT 0, 'done' WHERE false
"""
"""Records. What was there before is noted, until a later change of records."""

DROP: Final = f"""{_GIVEN_RECORDS.format("%s::int[], %s::text[], %s::bytea[]", "n, kind, key")},
dropped AS MATERIALIZED (
    DELETE FROM record r USING given g WHERE r.kind = g.kind AND r.digest = g.digest RETURNING g.n
), refused AS (
    INSERT INTO refusal SELECT change, n, 'gone' FROM given WHERE n NOT IN (SELECT n FROM dropped)
)
SELECT n, 'gone' FROM given WHERE n NOT IN (SELECT n FROM dropped)
"""
"""Records away, noted as above."""

RESTORE: Final = """
WITH given AS (SELECT %s::bigint AS change, %s::bigint AS undone),
was AS MATERIALIZED (DELETE FROM replaced r USING given g WHERE r.change = g.undone RETURNING r.*),
back AS (
    INSERT INTO record (kind, digest, key, value) SELECT kind, digest, key, value FROM was WHERE value IS NOT NULL
    ON CONFLICT (kind, digest) DO UPDATE SET value = excluded.value
), gone AS (
    DELETE FROM record r USING was w WHERE w.value IS NULL AND r.kind = w.kind AND r.digest = w.digest
)
SELECT 0, 'done' WHERE false
"""
"""Records as they were before a change."""

REFUSE: Final = "SELECT * FROM refuse_groups(%s, %s::int[])"
"""The transaction as a whole, where something of a group was refused: these are the operations of groups."""

READ: Final = f"""
SELECT g.n, b.number, b.size, b.checksum, b.attributes, b.data
FROM unnest({_ENTRIES}) AS g({_ENTRY_COLUMNS})
LEFT JOIN queue source ON source.name = g.queue
JOIN place p ON {_IS_THERE}
JOIN body b ON b.number = p.number
"""
"""Bodies, by the numbers of the entries. No change: without the first parameter."""

CONTAINS: Final = "SELECT EXISTS (SELECT FROM place WHERE queue = ANY (%s) AND id = %s::uuid)"
"""Whether a message is in one of these queues, in any state."""

PLACES: Final = """
SELECT p.queue, p.id::text, p.state, p.deadline_ms, p.receives, p.receipt, p.joined, p.expires_ms
FROM place p LEFT JOIN queue source ON source.name = p.queue
WHERE (p.state <> 'ready' OR p.life = source.life)
"""
"""Entries. What is asked of them comes behind."""


def entry_columns(numbered: Sequence[tuple[int, Entry]]) -> list[str]:
    """The parameters that say where messages are, a column each."""
    rows = [(n, e.queue, str(e.id), NAMES[e.state], *meta_row(e.meta)) for n, e in numbered]
    return columns(rows)


def key_text(key: str) -> str:
    """A record's key as PostgreSQL writes bytes: one may have what no text there may."""
    return "\\x" + key.encode("utf-8", "surrogatepass").hex()


def meta_row(meta: Meta) -> tuple[Any, ...]:
    """A meta, in the order of the columns."""
    return (meta.deadline_ms, meta.receives, meta.receipt, meta.order, meta.expires_ms)


def columns(rows: Sequence[tuple[Any, ...]]) -> list[str]:
    """Rows of texts, numbers and None, turned into columns: PostgreSQL's arrays. There is at least one row."""
    return [f"{{{','.join(map(_element, column))}}}" for column in zip(*rows, strict=True)]


def _element(value: str | int | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def entry_of(row: tuple[Any, ...]) -> Entry:
    """An entry, out of a row of PLACES."""
    queue, id, state, *meta = row
    return Entry(queue, MessageId(id), _STATES[state], Meta(*meta))
