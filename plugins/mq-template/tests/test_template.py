"""The promises of a store, checked by mq's own checks; and what those cannot provoke from outside."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mq_template.database import SETTINGS
from mq_template.storage import MAX_BODY, TemplateStorage

from mq.errors import StorageFailed, StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import (
    check_storage,
    check_whole,
)
from mq.storage.interface import QUEUE, Entry, Move, Outcome, Result, Sharing, Storage, Write
from mq.storage.records import put_record
from mq.storage.registry import open_storage

IDS = MessageIds()


class Place:
    """Where the stores of a test are: one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    @property
    def address(self) -> str:
        """Of the file that was made last."""
        return f"template:{self._folder / f'{self._made}.db'}"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Storage]:
        self._made += 1
        async with self.reopen() as storage:
            yield storage

    @asynccontextmanager
    async def reopen(self) -> AsyncIterator[Storage]:
        async with open_storage(self.address) as storage:
            yield storage


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
async def storage(place: Place) -> AsyncIterator[TemplateStorage]:
    """An open store with the queue `orders`; looked over at the end, and once more when it is opened again."""
    async with place.make() as storage:
        assert isinstance(storage, TemplateStorage)
        await put_record(storage, QUEUE, "orders", {"created": 0})
        yield storage
        await check_whole(storage)
    async with place.reopen() as again:
        await check_whole(again)


# All that an author needs; to see each promise as a test of its own, parametrize over CHECKS and call run_check.
@pytest.mark.slow
async def test_keeps_every_promise(place: Place) -> None:
    await check_storage(place.make, place.reopen)


async def test_every_commit_is_synced(storage: TemplateStorage) -> None:
    """By what SQLite says of itself: a write-ahead log, and FULL, which is 2."""
    found = [storage._database._run(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert found == ["wal", 2]
    await publish(storage)


@pytest.mark.parametrize(("setting", "value"), SETTINGS.items())
async def test_refuses_a_file_where_a_setting_does_not_hold(
    place: Place, monkeypatch: pytest.MonkeyPatch, setting: str, value: object
) -> None:
    monkeypatch.setitem(SETTINGS, setting, "nonsense")
    with pytest.raises(StorageUnusable, match=f"SQLite has {setting} = "):
        async with place.make():
            pytest.fail("it opened")


async def test_a_full_disk_is_answered_and_passes(storage: TemplateStorage) -> None:
    kept = await publish(storage)
    [pages] = storage._database._run("PRAGMA page_count").fetchone()
    storage._database._run(f"PRAGMA max_page_count = {pages}")
    large = Write("orders", IDS.new(), b"x" * 100_000)
    outcomes = await storage.commit([large, Move(kept, State.READY)])
    assert [outcome.result for outcome in outcomes] == [Result.FULL] * 2
    assert "full. Try again later" in outcomes[0].reason
    with pytest.raises(StorageFull):
        await put_record(storage, "exchange", "large", {"text": "x" * 100_000})
    assert await storage.scan(State.NEW) == [kept]
    assert [outcome.result for outcome in await storage.commit([Move(kept, State.READY)])] == [Result.DONE]
    storage._database._run("PRAGMA max_page_count = 1000000")
    assert [outcome.result for outcome in await storage.commit([large])] == [Result.DONE]


class FailsToCommit:
    """A connection whose next sync fails; the one after that would say that all is well."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._failed = False

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT" and not self._failed:
            self._failed = True
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._connection.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


async def test_after_a_failed_sync_nothing_more_is_changed(storage: TemplateStorage, place: Place) -> None:
    kept = await publish(storage)
    connection = storage._database._connection
    assert connection is not None
    storage._database._connection = FailsToCommit(connection)  # type: ignore[assignment]
    for _ in range(2):
        [outcome] = await storage.commit([Write("orders", IDS.new(), b"lost")])
        assert outcome.result is Result.FAILED
        assert "disk I/O error" in outcome.reason
    with pytest.raises(StorageFailed, match="until it is opened again"):
        await put_record(storage, QUEUE, "other", {"created": 0})
    assert await storage.scan(State.NEW) == [kept], "it can still be read"
    await storage.aclose()
    async with place.reopen() as again:
        assert await again.scan(State.NEW) == [kept]
        await put_record(again, QUEUE, "other", {"created": 0})
    await storage.open()  # for the look over it


async def test_a_second_process_is_refused(storage: TemplateStorage, place: Place) -> None:
    with pytest.raises(StorageUnusable, match=r"database is locked.*The file may be in use"):
        async with place.reopen():
            pytest.fail("it opened")
    await publish(storage)


KILLED = """
import sys, trio
from mq.message import MessageIds
from mq.storage.interface import QUEUE, Write
from mq.storage.records import put_record
from mq.storage.registry import open_storage

async def main():
    ids = MessageIds()
    async with open_storage(sys.argv[1]) as storage:
        await put_record(storage, QUEUE, "orders", {"created": 0})
        while True:
            [outcome] = await storage.commit([Write("orders", ids.new(), b"body")])
            print(outcome.entry.id, flush=True)

trio.run(main)
"""


@pytest.fixture
def killed(place: Place) -> Iterator[list[str]]:
    """Ids that a process had published before it was killed in the middle of its work."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, place.address], stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        answered = [process.stdout.readline().strip() for _ in range(50)]
        process.send_signal(signal.SIGKILL)
        answered += process.stdout.read().split("\n")[:-1]
    return answered


async def test_what_was_answered_outlives_a_kill(place: Place, killed: list[str]) -> None:
    async with place.reopen() as storage:
        assert {entry.id for entry in await storage.scan(State.NEW)} >= set(killed)
        await check_whole(storage)


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("template:", {}, "requires a file path"),
        ("template:x.db", {"sharing": Sharing.PEERS}, "can be used by only one process"),
        ("template:x.db", {"sharing": Sharing.WATCHED}, "can be used by only one process"),
        ("template:/no/such/folder/x.db", {}, "cannot serve /no/such/folder/x.db: unable to open"),
    ],
)
async def test_says_what_it_cannot_serve(address: str, options: dict[str, bool], text: str) -> None:
    with pytest.raises(StorageUnusable, match=text):
        async with open_storage(address, **options):
            pytest.fail("it opened")


async def test_refuses_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"these are notes, not messages\n" * 100)
    with pytest.raises(StorageUnusable, match="not a database"):
        async with open_storage(f"template:{tmp_path / 'notes.txt'}"):
            pytest.fail("it opened")


@pytest.mark.slow
async def test_refuses_a_body_that_is_too_long(storage: TemplateStorage) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            yield bytes(MAX_BODY // 2)

    async with aclosing(chunks()) as endless:
        with pytest.raises(StorageFull, match=str(MAX_BODY)):
            await storage.stage(endless)


async def publish(storage: Storage) -> Entry:
    [outcome] = await storage.commit([Write("orders", IDS.new(), b"body")])
    assert outcome == Outcome(Result.DONE, outcome.entry)
    assert outcome.entry is not None
    return outcome.entry
