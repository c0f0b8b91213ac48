"""Records, and with those of queues what becomes of their messages. Dropped queues, which the reaper takes away."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.interface import QUEUE, Drop, Entry, Outcome, Put, Result
from mq_postgres.changes import Changes, Refusals, Statement

UNLINKED_AT_ONCE: Final = 2000
"""Messages of a dropped queue: a transaction of some tens of milliseconds, behind which others wait."""
_GRAVE_BIT: Final = 1 << 63
"""In an id without a time: it means a dropped queue, whose life is the rest."""

_PUT: Final = """
WITH given AS (SELECT %s::bigint AS change, 'queue' AS kind, %s::bytea AS key, %s::text AS value),
was AS MATERIALIZED (SELECT r.digest FROM record r JOIN given g ON r.kind = g.kind AND r.digest = sha256(g.key)),
put AS (
    INSERT INTO record (kind, digest, key, value) SELECT kind, sha256(key), key, value FROM given
    ON CONFLICT (kind, digest) DO UPDATE SET value = excluded.value
), made AS (
    INSERT INTO queue (name) SELECT convert_from(key, 'UTF8') FROM given ON CONFLICT DO NOTHING
), refused AS (INSERT INTO refusal SELECT change, 0, 'exists' FROM given WHERE EXISTS (SELECT FROM was))
SELECT 0, 'exists' FROM was
"""
_DROP: Final = """
WITH given AS (SELECT %s::bigint AS change, 'queue' AS kind, %s::bytea AS key),
dropped AS (DELETE FROM record r USING given g WHERE r.kind = g.kind AND r.digest = sha256(g.key) RETURNING 1),
ended AS (
    DELETE FROM queue q USING given g WHERE q.name = convert_from(g.key, 'UTF8') RETURNING q.*
), buried AS (INSERT INTO grave (queue, life) SELECT name, life FROM ended),
refused AS (INSERT INTO refusal SELECT change, 0, 'gone' FROM given WHERE NOT EXISTS (SELECT FROM dropped))
SELECT 0, 'gone' WHERE NOT EXISTS (SELECT FROM dropped)
"""
_LEVEL: Final = """
WITH given AS (SELECT %s::bigint AS change, %s::text AS queue, %s::bigint AS life, %s::int AS most),
there AS MATERIALIZED (SELECT v.* FROM grave v JOIN given g ON v.queue = g.queue AND v.life = g.life),
going AS MATERIALIZED (
    SELECT p.id, p.number FROM place p JOIN there v ON p.queue = v.queue AND p.life = v.life
    WHERE p.state = 'ready' LIMIT (SELECT most FROM given)
), gone AS (
    DELETE FROM place p USING going o, there v WHERE p.queue = v.queue AND p.id = o.id AND p.number = o.number
), bodies AS (DELETE FROM body b USING going o WHERE b.number = o.number),
chunks AS (DELETE FROM chunk c USING going o WHERE c.number = o.number),
judged AS MATERIALIZED (
    SELECT change, CASE WHEN NOT EXISTS (SELECT FROM there) THEN 'gone'
        WHEN (SELECT count(*) FROM going) = most THEN 'more' ELSE 'done' END AS result FROM given
), levelled AS (
    DELETE FROM grave v USING there t, judged j WHERE v.queue = t.queue AND v.life = t.life AND j.result = 'done'
), refused AS (INSERT INTO refusal SELECT change, 0, result FROM judged WHERE result <> 'done')
SELECT 0, result FROM judged WHERE result <> 'done'
"""


def change_queue(changes: Changes, operation: Put | Drop) -> Outcome:
    """Put or drop a queue. Raises as :meth:`Changes.change` does."""
    name = key_bytes(operation.key)
    if isinstance(operation, Put):
        text = json.dumps(operation.value, separators=(",", ":"))
        return Outcome(Result.DONE, existed=bool(changes.change([Statement(_PUT, (name, text))], _stays)))
    return Outcome(Result.GONE if changes.change([Statement(_DROP, (name,))], _stays) else Result.DONE)


def level(changes: Changes, entry: Entry) -> Outcome:
    """Take away some of what was READY in a dropped queue; at last the queue itself."""
    refusals = changes.change([Statement(_LEVEL, (entry.queue, life_of(entry), UNLINKED_AT_ONCE))], _stays)
    return Outcome(Result(refusals.get(0, "done")))


def all_records(connection: psycopg.Connection[Any], kind: str) -> dict[str, dict[str, Any]]:
    """The records of a kind, by key."""
    rows = connection.execute("SELECT key, value FROM record WHERE kind = %s", (kind,), binary=True)
    return {bytes(key).decode("utf-8", "surrogatepass"): json.loads(value) for key, value in rows}


def graves(connection: psycopg.Connection[Any], queue: str | None) -> list[Entry]:
    """Dropped queues of which something may be left."""
    query = "SELECT queue, life FROM grave WHERE %s::text IS NULL OR queue = %s"
    rows = connection.execute(query, (queue, queue))
    return [Entry(name, MessageId.from_key(_GRAVE_BIT | life), State.REMOVED) for name, life in rows]


def life_of(entry: Entry) -> int | None:
    """The life of the dropped queue that an entry means; None when it means a message."""
    key = entry.id.key
    return key & ~_GRAVE_BIT if key >> 63 == 1 else None


def key_bytes(key: str) -> bytes:
    """A key as it is kept."""
    return key.encode("utf-8", "surrogatepass")


def _stays(number: int, refused: Refusals) -> list[Statement]:
    """Nothing takes it back: a caller that heard that its record may be kept asks again."""
    return []


assert QUEUE == "queue", "the statements name the kind"
