"""What a server is asked before it is believed, what the role may do, and what a store asks of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from mq_postgres import link, schema
from mq_postgres.testing.server import ROLE

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.interface import Entry, Move, Write
from mq.storage.records import put_record
from mq.storage.registry import open_storage

IDS = MessageIds()


async def refusal(address: str) -> str:
    with pytest.raises(StorageUnusable) as raised:
        async with open_storage(address):
            pytest.fail("it opened")
    return str(raised.value)


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
async def test_refuses_a_server_that_forgets(place, setting: str) -> None:
    place.server.set(**{setting: "off"})
    try:
        assert f"{setting} = off" in await refusal(place.address)
    finally:
        place.server.set(**{setting: "on"})
    async with place.reopen():
        pass


@pytest.mark.parametrize("value", ["off", "local", "remote_write"])
async def test_refuses_a_session_that_does_not_wait(place, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setitem(link.SETTINGS, "synchronous_commit", value)
    assert f"synchronous_commit = {value}" in await refusal(place.address)


async def test_what_the_role_was_given_does_not_count(place) -> None:
    """An administrator's defaults for it are overruled in each session."""
    with place.server.admin() as admin:
        for setting in (
            "synchronous_commit = off",
            "statement_timeout = 1",
            "default_transaction_isolation = 'serializable'",
        ):
            admin.execute(f"ALTER ROLE {ROLE} SET {setting}".encode())
        try:
            async with place.make() as storage:
                rows = admin.execute("SELECT count(*) FROM pg_stat_activity WHERE usename = %s", (ROLE,)).fetchone()
                assert rows is not None
                assert rows[0] >= 1
                await put_record(storage, "exchange", "a", {})
        finally:
            admin.execute(f"ALTER ROLE {ROLE} RESET ALL".encode())


async def test_refuses_one_that_takes_no_changes(place) -> None:
    """As a standby would, by what it says of itself."""
    place.options = ""
    with place.server.admin() as admin:
        admin.execute(f"ALTER ROLE {ROLE} SET default_transaction_read_only = on".encode())
        try:
            text = await refusal(place.address)
        finally:
            admin.execute(f"ALTER ROLE {ROLE} RESET ALL".encode())
    assert "session is read-only" in text or "takes no changes" in text


async def test_says_that_nobody_answers(place) -> None:
    place.port = 1
    text = await refusal(place.address)
    assert "Connection refused" in text
    assert "\n" not in text


@pytest.fixture
def guarded(place) -> str:
    """The address of a store, as the role of the README: it may log in with a password, and owns one schema."""
    with place.server.admin() as admin:
        if admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'guarded'").fetchone() is None:
            admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'hunter2'")
        admin.execute(f"CREATE SCHEMA {place.schema} AUTHORIZATION guarded".encode())
    return place.address.replace(f"{ROLE}@", "guarded@")


async def test_makes_do_with_a_schema_of_its_own(place, guarded: str) -> None:
    address = guarded
    assert "password" in await refusal(address)
    password = Path(place.server.folder) / "password"
    password.write_text("hunter2\n")
    password.chmod(0o600)
    async with open_storage(f"{address}&password-file={password}") as storage:
        await put_record(storage, "exchange", "a", {})
        assert "hunter2" not in storage.description.name
    assert "permission denied" in await refusal(f"{address}9&password-file={password}")
    password.write_text("wrong\n")
    text = await refusal(f"{address}&password-file={password}")
    assert "password authentication failed" in text
    assert "wrong" not in text


async def test_takes_the_password_from_libpqs_own_file(
    place, guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"127.0.0.1:{place.port}:{ROLE}:guarded:hunter2\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    async with open_storage(guarded) as storage:
        assert await put_record(storage, "exchange", "a", {})


async def test_refuses_tables_of_another_version(place) -> None:
    async with place.make():
        pass
    with place.server.admin() as admin:
        admin.execute(f"UPDATE {place.schema}.version SET number = {schema.VERSION + 1}".encode())
    assert f"version {schema.VERSION + 1}" in await refusal(place.address)


async def test_refuses_a_table_that_a_crash_would_empty(place) -> None:
    async with place.make():
        pass
    with place.server.admin() as admin:
        kinds = "SELECT DISTINCT relpersistence::text FROM pg_class WHERE relnamespace = %s::regnamespace"
        assert admin.execute(kinds, (place.schema,)).fetchall() == [("p",)]
        admin.execute(f"ALTER TABLE {place.schema}.body SET UNLOGGED".encode())
        assert "UNLOGGED" in await refusal(place.address)


async def test_a_move_writes_no_body_and_no_index(place) -> None:
    """What makes a lease cheap: the new row lies on the page of the old one."""
    async with place.make() as storage:
        await put_record(storage, "queue", "orders", {"created": 0})
        ids = [IDS.new() for _ in range(50)]
        await storage.commit([Write("orders", id, bytes(1000)) for id in ids])
        await storage.commit([Move(Entry("orders", id, State.NEW), State.READY) for id in ids])
        query = f"SELECT count(*) FROM {place.schema}.place WHERE state = 'ready'"
        with place.server.admin() as admin:
            assert admin.execute(query.encode()).fetchone() == (50,)
            stat = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables WHERE relname = 'place' AND schemaname = %s"
            await storage.aclose()  # a session tells its counts when it ends, at the latest
            with trio.fail_after(60):
                while (row := admin.execute(stat, (place.schema,)).fetchone()) is None or row[0] == 0:
                    await trio.sleep(0.01)  # the close does not wait for the session's process to end
    assert row[0] == 50
    assert row[1] >= 30, "the first page of a fresh table fills up; the rest moves in place"
