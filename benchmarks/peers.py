"""Other queues that need no daemon, made to publish as durably as VSQS does: each message on the disk at its return."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import litequeue
import persistqueue
from dirq.QueueSimple import QueueSimple

from mq.vsqs import Queue


class Peer(Protocol):
    """A queue in a folder."""

    def publish(self, body: bytes) -> None:
        """Add a message, durably."""

    def consume(self) -> bytes:
        """Take the first message and be done with it."""


class Vsqs:
    """mq's own."""

    def __init__(self, folder: str) -> None:
        self._queue = Queue(folder)

    def publish(self, body: bytes) -> None:
        """As in Peer."""
        self._queue.publish(body)

    def consume(self) -> bytes:
        """As in Peer."""
        with self._queue.receive(timeout=0) as message:
            return message.body


class Dirq:
    """dirq syncs nothing: here its file and the file's folder are synced for it."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._queue = QueueSimple(folder)

    def publish(self, body: bytes) -> None:
        """As in Peer."""
        path = self._folder / self._queue.add(body)
        _sync(path)
        _sync(path.parent)

    def consume(self) -> bytes:
        """As in Peer."""
        for name in self._queue:
            if self._queue.lock(name):
                body: bytes = self._queue.get(name)
                self._queue.remove(name)
                _sync((self._folder / name).parent)
                return body
        raise LookupError("empty")


class PersistQueue:
    """persist-queue over SQLite, as it comes: a transaction for each message, synced."""

    def __init__(self, folder: str) -> None:
        self._queue = persistqueue.FIFOSQLiteQueue(folder, auto_commit=True)
        _check_synced(self._queue._putter)

    def publish(self, body: bytes) -> None:
        """As in Peer."""
        self._queue.put(body)

    def consume(self) -> bytes:
        """As in Peer."""
        body: bytes = self._queue.get()
        return body


class LiteQueue:
    """litequeue turns SQLite's syncs off; here they are on."""

    def __init__(self, folder: str) -> None:
        self._queue = litequeue.LiteQueue(f"{folder}/queue.db")
        self._queue.conn.execute("PRAGMA synchronous = FULL")
        _check_synced(self._queue.conn)

    def publish(self, body: bytes) -> None:
        """As in Peer."""
        self._queue.put(body)

    def consume(self) -> bytes:
        """As in Peer."""
        message = self._queue.pop()
        self._queue.done(message.message_id)
        body: bytes = message.data
        return body


Maker = Callable[[str], Peer]
"""Makes a queue in an empty folder."""

PEERS: Final[dict[str, Maker]] = {
    "dirq with syncs": Dirq,
    "persist-queue": PersistQueue,
    "litequeue with syncs": LiteQueue,
}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_synced(connection: sqlite3.Connection) -> None:
    (level,) = connection.execute("PRAGMA synchronous").fetchone()
    assert level >= 2, "SQLite would not sync each transaction"
