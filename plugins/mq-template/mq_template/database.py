"""One SQLite file that keeps the promises of a store. Synchronous; one thread at a time."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from mq.errors import StorageError, StorageFailed, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import BytesBody, MessageId, Properties, checksum
from mq.storage.interface import QUEUE, Drop, Entry, Meta, Move, Operation, Outcome, Put, Result, Stored, Unlink, Write

SETTINGS: Final = {
    "locking_mode": "exclusive",  # a second process that opens the file is refused
    # A commit is one sync of the log. With a rollback journal FULL is not enough: the journal's deletion, which is
    # the commit, would not be synced.
    "journal_mode": "wal",
    "synchronous": 2,  # FULL
    "foreign_keys": 1,
}
SCHEMA: Final = (
    """
    CREATE TABLE IF NOT EXISTS record (
        kind TEXT, key TEXT, value TEXT NOT NULL, PRIMARY KEY (kind, key)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE IF NOT EXISTS entry (
        number INTEGER PRIMARY KEY,
        queue TEXT NOT NULL, id TEXT NOT NULL, state TEXT NOT NULL,
        deadline_ms INTEGER, receives INTEGER NOT NULL, claim TEXT, position INTEGER, expires_ms INTEGER,
        UNIQUE (state, queue, id)
    )
    """,
    # Apart from the entry, so that a move does not write the body again.
    """
    CREATE TABLE IF NOT EXISTS body (
        number INTEGER PRIMARY KEY REFERENCES entry ON DELETE CASCADE,
        checksum INTEGER NOT NULL, attributes TEXT NOT NULL, data BLOB NOT NULL
    )
    """,
)
EXACTLY: Final = (
    "queue = ? AND id = ? AND state = ?"
    " AND deadline_ms IS ? AND receives = ? AND claim IS ? AND position IS ? AND expires_ms IS ?"
)
"""Where an entry is: all of it, meta included. This is the compare in compare-and-move."""

PASSING: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,  # no room on the disk
        sqlite3.SQLITE_CANTOPEN,  # no file handle free
        sqlite3.SQLITE_NOMEM,  # no memory
        sqlite3.SQLITE_READONLY,  # mounted read-only, or permission taken away
    }
)
"""Errors after which nothing was changed and which can pass. After any other, what is in the file is unknown."""


class Database:
    """The file at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._failure = ""

    def open(self) -> None:
        """Make the file and its tables, and lock it.

        Author: believe no setting that you have not read back. SQLite says nothing when it cannot follow one.

        Raises:
            sqlite3.Error: it cannot be done.
            StorageUnusable: the promises could not be kept here.
        """
        # The thread is another one each time, but never two at once.
        self._connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        for setting, value in SETTINGS.items():
            self._connection.execute(f"PRAGMA {setting} = {value}")
            [found] = self._connection.execute(f"PRAGMA {setting}").fetchone()
            if found != value:
                raise StorageUnusable(f"{self._path}: SQLite has {setting} = {found}, but mq requires {value}")
        with self._transaction():
            for table in SCHEMA:
                self._connection.execute(table)

    def close(self) -> None:
        """Let go of the file, if it is open."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # -- changing

    def commit(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Do a batch in one transaction.

        Author: a batch need not be a transaction, but no outcome may be told before what it says is durable.
        """
        try:
            with self._changing():
                outcomes = [self._do(operation) for operation in operations]
        except StorageFull as error:
            return [Outcome(Result.FULL, reason=str(error))] * len(operations)
        except StorageFailed as error:
            return [Outcome(Result.FAILED, reason=str(error))] * len(operations)
        return outcomes

    def _do(self, operation: Operation) -> Outcome:
        try:
            match operation:
                case Write():
                    return self._write(operation)
                case Move():
                    return self._move(operation)
                case Unlink(entry):
                    gone = self._run(f"DELETE FROM entry WHERE {EXACTLY}", *_row(entry)).rowcount == 0
                    return Outcome(Result.GONE if gone else Result.DONE)
                case Put():
                    return self._put(operation)
                case Drop():
                    return self._drop(operation)
        except sqlite3.IntegrityError:  # the place is taken; this statement is undone, the transaction goes on
            return Outcome(Result.EXISTS)

    def _write(self, write: Write) -> Outcome:
        # Author: a body that came through your own stage() is an object of yours.
        data = write.body if isinstance(write.body, bytes) else write.body.data  # type: ignore[attr-defined]
        entry = write.entry
        if entry.state is State.READY and not self._has_queue(entry.queue):
            return Outcome(Result.NO_QUEUE)
        number = self._run("INSERT INTO entry VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)", *_row(entry)).lastrowid
        attributes = json.dumps(write.attributes)
        self._run("INSERT INTO body VALUES (?, ?, ?, ?)", number, checksum(data), attributes, data)
        return Outcome(Result.DONE, entry)

    def _move(self, move: Move) -> Outcome:
        target = Entry(move.queue or move.entry.queue, move.entry.id, move.state, move.meta)
        if target.state is State.READY and not self._has_queue(target.queue):
            return Outcome(Result.NO_QUEUE)
        # One statement compares and moves, so that of many racers one wins. The place that is taken is the
        # UNIQUE constraint's to see.
        columns = "queue = ?, id = ?, state = ?, deadline_ms = ?, receives = ?, claim = ?, position = ?, expires_ms = ?"
        moved = self._run(f"UPDATE entry SET {columns} WHERE {EXACTLY}", *_row(target), *_row(move.entry)).rowcount
        return Outcome(Result.DONE, target) if moved else Outcome(Result.GONE)

    def _put(self, put: Put) -> Outcome:
        found = self._run("SELECT 1 FROM record WHERE kind = ? AND key = ?", put.kind, put.key).fetchone()
        self._run("REPLACE INTO record VALUES (?, ?, ?)", put.kind, put.key, json.dumps(put.value))
        return Outcome(Result.DONE, existed=found is not None)

    def _drop(self, drop: Drop) -> Outcome:
        """Forget a record; with a queue's, its READY messages.

        Author: where taking many messages away takes long, make the queue an entry of REMOVED instead, and let
        Unlink answer MORE until it is gone.
        """
        found = self._run("DELETE FROM record WHERE kind = ? AND key = ?", drop.kind, drop.key).rowcount > 0
        if drop.kind == QUEUE:
            self._run("DELETE FROM entry WHERE state = ? AND queue = ?", State.READY.value, drop.key)
        return Outcome(Result.DONE if found else Result.GONE)

    def _has_queue(self, queue: str) -> bool:
        return self._run("SELECT 1 FROM record WHERE kind = ? AND key = ?", QUEUE, queue).fetchone() is not None

    # -- looking

    def records(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """All records of a kind."""
        with self._translated():
            return {
                key: json.loads(value) for key, value in self._run("SELECT key, value FROM record WHERE kind = ?", kind)
            }

    def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """The messages at these places."""
        with self._translated():
            return [self._read(entry) for entry in entries]

    def find(self, queue: str, id: MessageId) -> Entry | None:
        """Where that message is."""
        with self._translated():
            for state in (State.NEW, State.READY, State.DELAYED):
                where = "state = ? AND queue = ? AND id = ?"
                row = self._run(f"SELECT * FROM entry WHERE {where}", state.value, queue, id).fetchone()
                if row is not None:
                    return _entry(row)
            return None

    def scan(self, state: State, queue: str | None, limit: int | None) -> list[Entry]:
        """Entries in a state."""
        where = "state = ? AND ? IN (queue, '')"
        with self._translated():
            rows = self._run(
                f"SELECT * FROM entry WHERE {where} LIMIT ?", state.value, queue or "", -1 if limit is None else limit
            )
            return [_entry(row) for row in rows]

    def _read(self, entry: Entry) -> Stored | None:
        query = f"SELECT checksum, attributes, data FROM body JOIN entry USING (number) WHERE {EXACTLY}"
        row = self._run(query, *_row(entry)).fetchone()
        if row is None:
            return None
        crc, attributes, data = row
        # Author: a medium that can damage bytes without noticing compares the checksum in Body.read.
        return Stored(Properties(len(data), crc, json.loads(attributes)), BytesBody(data))

    # -- underneath

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        assert self._connection is not None, "the store is not open"
        return self._connection.execute(statement, values)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        if self._failure:
            raise StorageFailed(self._failure)
        try:
            with self._translated(), self._transaction():
                yield
        except StorageFailed as error:
            # Author: never try a failed sync again. The second one says that all is well, and the bytes are not there.
            self._failure = f"{error}. The store is read-only until it is opened again"
            raise

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        assert self._connection is not None, "the store is not open"
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Author: no error of the medium's own goes further than this; its cause stays attached."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error

    def _error(self, error: sqlite3.Error) -> StorageError:
        primary = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if primary in PASSING:
            return StorageFull(f"{self._path}: {error}. Try again later")
        return StorageFailed(f"{self._path}: {error}")


def _row(entry: Entry) -> tuple[object, ...]:
    return (entry.queue, entry.id, entry.state.value, *entry.meta)


def _entry(row: tuple[Any, ...]) -> Entry:
    _, queue, id, state, *meta = row
    return Entry(queue, MessageId(id), State(state), Meta(*meta))
