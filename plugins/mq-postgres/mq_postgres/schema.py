"""The tables of a store, and what is asked of a server before it is believed.

Where a message is stands in ``place``, what it is in ``body``: a move writes a small row and no body. ``place`` has one
index, over columns that moves leave alone, so PostgreSQL keeps the new row on the page of the old one, touches no
index, and clears the old one away by itself (a heap-only tuple). That is why no constraint says that a place holds a
message once: it would need the state in an index. One writer at a time, which the fence sees to, asks instead.

Names are compared as bytes (``COLLATE "C"``): an index survives a new version of the system's collations.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from mq.errors import StorageUnusable

VERSION: Final = 1
"""Of the tables. A store of another one is refused."""
OLDEST_SERVER: Final = 150000

_TABLES: Final = (
    """CREATE TABLE version (one boolean PRIMARY KEY DEFAULT true CHECK (one), number integer NOT NULL)""",
    # Each transaction holds this row FOR SHARE, and a successor counts it up.
    """CREATE TABLE fence (one boolean PRIMARY KEY DEFAULT true CHECK (one), epoch bigint NOT NULL)""",
    """CREATE TABLE lease (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        holder text NOT NULL, session text NOT NULL, until timestamptz NOT NULL)""",
    # The last change that was tried, and the last one that was done.
    """CREATE TABLE lane (
        one boolean PRIMARY KEY DEFAULT true CHECK (one), number bigint NOT NULL, landed bigint NOT NULL)""",
    # What a change did not do: found out here when its answer is lost.
    """CREATE TABLE refusal (change bigint NOT NULL, n integer NOT NULL, result text NOT NULL)""",
    # Keys are as long as they like, and an index is not: it has their digests.
    """CREATE TABLE record (
        kind text COLLATE "C" NOT NULL, digest bytea NOT NULL, key bytea NOT NULL, value text NOT NULL,
        PRIMARY KEY (kind, digest))""",
    # A queue that is made again has another life, so dropping one is two rows, however many messages it has.
    """CREATE SEQUENCE life""",
    """CREATE TABLE queue (name text COLLATE "C" PRIMARY KEY, life bigint NOT NULL DEFAULT nextval('life'))""",
    """CREATE TABLE grave (queue text COLLATE "C" NOT NULL, life bigint NOT NULL, PRIMARY KEY (queue, life))""",
    """CREATE SEQUENCE number""",
    """CREATE TABLE place (
        number bigint NOT NULL, life bigint NOT NULL, deadline_ms bigint, joined bigint, expires_ms bigint,
        id uuid NOT NULL, receives integer NOT NULL, queue text COLLATE "C" NOT NULL, state text COLLATE "C" NOT NULL,
        receipt text COLLATE "C")
    WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0)""",
    """CREATE INDEX place_at ON place (queue, id)""",
    """CREATE TABLE body (
        number bigint PRIMARY KEY, size bigint NOT NULL, checksum bigint NOT NULL, attributes text NOT NULL, data bytea)
    WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0)""",
    """CREATE TABLE chunk (
        number bigint NOT NULL, part integer NOT NULL, data bytea NOT NULL, PRIMARY KEY (number, part))""",
    # Bodies are often compressed already, and mq is not to wait for a second try.
    """ALTER TABLE body ALTER data SET STORAGE EXTERNAL""",
    """ALTER TABLE chunk ALTER data SET STORAGE EXTERNAL""",
    """CREATE TABLE staged (number bigint PRIMARY KEY)""",
    """
    CREATE FUNCTION begin_change(held bigint, change bigint) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM 1 FROM fence WHERE epoch = held FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'another broker has taken the store' USING ERRCODE = 'MQ001';
        END IF;
        UPDATE lane SET number = change, landed = change WHERE number < change;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'change % was withdrawn', change USING ERRCODE = 'MQ002';
        END IF;
        DELETE FROM refusal WHERE refusal.change < begin_change.change;
    END $$
    """,
    # Records as they were before the last change of them, which may have to be undone.
    """CREATE TABLE replaced (
        change bigint NOT NULL, kind text COLLATE "C" NOT NULL, digest bytea NOT NULL, key bytea NOT NULL, value text,
        PRIMARY KEY (change, kind, digest))""",
    """
    CREATE FUNCTION refuse_groups(held bigint, grouped integer[]) RETURNS TABLE (number integer, why text)
    LANGUAGE plpgsql AS $$
    DECLARE refused text;
    BEGIN
        SELECT string_agg(r.n || ' ' || r.result, ',' ORDER BY r.n) INTO refused
        FROM refusal r WHERE r.change = held AND r.n = ANY (grouped);
        IF refused IS NOT NULL THEN
            RAISE EXCEPTION 'a group is refused' USING ERRCODE = 'MQ003', DETAIL = refused;
        END IF;
    END $$
    """,
    "INSERT INTO fence (epoch) VALUES (0)",
    "INSERT INTO lane (number, landed) VALUES (0, 0)",
    "INSERT INTO lease (holder, session, until) VALUES ('', '', '-infinity')",
)

_ASKED: Final = """
SELECT current_setting('server_version_num')::int, current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'), current_setting('transaction_read_only'), pg_is_in_recovery()
"""


def check_server(connection: psycopg.Connection[Any]) -> None:
    """Believe no server that may lose what it has answered. Each session asks.

    Raises:
        StorageUnusable: it is one; the text says what to do.
    """
    row = connection.execute(_ASKED).fetchone()
    assert row is not None, "a SELECT without a row"
    version, fsync, full_page_writes, synchronous_commit, read_only, in_recovery = row
    if version < OLDEST_SERVER:
        raise StorageUnusable(
            f"this PostgreSQL server has version {version // 10000}, but mq requires version "
            f"{OLDEST_SERVER // 10000} or newer"
        )
    for setting, value in (("fsync", fsync), ("full_page_writes", full_page_writes)):
        if value != "on":
            raise StorageUnusable(
                f"PostgreSQL is running with {setting} = {value}, so confirmed changes can be lost in a power "
                f"failure: set {setting} = on in postgresql.conf and restart PostgreSQL"
            )
    if synchronous_commit != "on":
        raise StorageUnusable(
            f"this PostgreSQL server has synchronous_commit = {synchronous_commit}, but commits must wait for "
            "the disk. Set synchronous_commit = on"
        )
    if in_recovery or read_only != "off":
        raise StorageUnusable("this PostgreSQL server is a standby or read-only. Use the address of the primary")


def make_ready(connection: psycopg.Connection[Any], schema: str) -> None:
    """Make the tables where there are none.

    Raises:
        StorageUnusable: they are of another version of mq, would not outlive a crash, or may not be made.
        psycopg.Error: it cannot be done.
    """
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (f"mq {schema}",))  # two that open it at once
        if not _exists(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        if not _exists(connection, "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'version'", schema):
            connection.execute(";\n".join(_TABLES), prepare=False)
            connection.execute("INSERT INTO version (number) VALUES (%s)", (VERSION,))
    _check_tables(connection, schema)


def _check_tables(connection: psycopg.Connection[Any], schema: str) -> None:
    row = connection.execute("SELECT number FROM version").fetchone()
    version = row and row[0]
    if version != VERSION:
        raise StorageUnusable(
            f"the tables in schema {schema} have version {version}, but this version of mq-postgres "
            f"requires version {VERSION}. Use the version of mq-postgres that created the tables, or another "
            "schema"
        )
    unlogged = (
        "SELECT 1 FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' AND relpersistence <> 'p'"
    )
    if _exists(connection, unlogged, schema):
        raise StorageUnusable(
            f"a table in schema {schema} is UNLOGGED, so a PostgreSQL crash would empty it: run ALTER "
            "TABLE ... SET LOGGED"
        )


def _exists(connection: psycopg.Connection[Any], query: str, value: str) -> bool:
    return connection.execute(query, (value,)).fetchone() is not None
