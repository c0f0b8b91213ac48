"""The audit log: what is written down, by whom, and that no name forges a line."""

from __future__ import annotations

import base64
import logging
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.access import UserDirectory
from mq.broker import open_broker
from mq.doors.audit import MINUTE_SECONDS, MOST_FAILURES, QUIET_SECONDS, AuditFile, LoginNotes, note
from mq.doors.logins import Logins
from mq.errors import InvalidSetting
from mq.web.authorizer import Auditor, Authorizer
from mq.web.endpoints import Endpoints
from tests.access.files import TOKEN, write_users
from tests.amqp.dialling import open_house
from tests.web.talking import ask

USERS = '[users.anna]\ntokens = ["TOKEN"]\nadminister = ["*"]\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


@pytest.fixture
def file(path: Path) -> Iterator[AuditFile]:
    file = AuditFile(str(path))
    yield file
    file.close()


def lines(path: Path) -> list[str]:
    """Without their times."""
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines()]


def test_a_file_is_nobody_elses_and_goes_on_when_it_is_opened_anew(path: Path, file: AuditFile) -> None:
    note("one", queue="q")
    path.rename(path.with_name("old"))
    note("two")
    file.reopen()
    note("three")
    assert lines(path.with_name("old")) == ['event=one queue="q"', "event=two"]
    assert lines(path) == ["event=three"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_had_is_refused_and_the_old_one_goes_on(path: Path, file: AuditFile) -> None:
    path.rename(path.with_name("old"))
    path.symlink_to("elsewhere")
    with pytest.raises(InvalidSetting, match="audit log"):
        file.reopen()
    note("still")
    assert lines(path.with_name("old")) == ["event=still"]


def test_without_a_file_it_is_a_part_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        note("one", user="anna", count=3, queue=None)
    assert caplog.messages == ['event=one user="anna" count=3']


@pytest.mark.parametrize("name", ["a\nevent=login", 'a" user="root', "a\r\x1b[2J", "a\u2028b\x85c", "\udcff"])
def test_no_name_forges_a_line_or_a_pair(path: Path, file: AuditFile, name: str) -> None:
    note("login-failed", user=name, why="unknown")
    [line] = lines(path)
    assert line.isprintable()
    assert line.isascii()
    assert line.count(' user="') == 1


async def test_who_guesses_all_day_fills_no_disk(autojump_clock: MockClock, path: Path, file: AuditFile) -> None:
    notes = LoginNotes()
    for number in range(10_000):
        notes.failed("http", "192.0.2.1", f"n{number}", "x" * 10_000)
    assert len(lines(path)) == MOST_FAILURES
    await trio.sleep(MINUTE_SECONDS)
    notes.failed("http", "192.0.2.1", "bob", "unknown")
    assert lines(path)[-2:] == [
        f"event=logins-failed count={10_000 - MOST_FAILURES}",
        'event=login-failed door="http" address="192.0.2.1" user="bob" why="unknown"',
    ]
    assert max(map(len, lines(path))) < 1000


async def test_each_user_is_written_down_once_in_a_while(
    autojump_clock: MockClock, path: Path, file: AuditFile
) -> None:
    notes = LoginNotes()
    for _ in range(2):
        for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
            notes.succeeded("http", address, "anna")
        await trio.sleep(QUIET_SECONDS)
    assert len(lines(path)) == 4


async def test_over_both_doors_it_is_said_who_did_what(
    autojump_clock: MockClock, tmp_path: Path, path: Path, file: AuditFile
) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    async with open_house(logins=logins) as house:
        gate = Authorizer(Endpoints(house.broker, 1024), logins)

        async def say(line: str, body: bytes = b"", authorization: str = f"Bearer {TOKEN}") -> None:
            method, path = line.split()
            headers = {"authorization": authorization} if authorization else {}
            await ask(gate, method, path, body, headers=headers, address="192.0.2.1")

        for line in ("PUT /q", "PUT /q", "POST /q/messages", "POST /q/purge", "GET /q", "DELETE /nonesuch"):
            await say(line)
        await say("PATCH /q", b'{"max_messages": 7}')
        await say("PATCH /q", b'{"max_messages": "many"}')
        await say("POST /q/redrive", b"{}")
        await say("DELETE /q")
        await say("PUT /q", b"", "Basic " + base64.b64encode(b"anna:").decode())
        await say("PUT /q", b"", "Basic " + base64.b64encode(f"{TOKEN}:anna".encode()).decode())
        await say("PUT /q", b"", "Bearer x")
        client = await house.connect(name="anna", secret=TOKEN)
        await client.declare("a")
        await client.declare("a")
        await client.call(commands.Queue.Purge(queue="a"))
        await client.call(commands.Queue.Delete(queue="a"))
        await client.call(commands.Queue.Delete(queue="a"))
    web, who = 'door="http" address="192.0.2.1"', 'user="anna" queue="q"'
    found = lines(path)
    assert found[0] == f'event=login {web} user="anna"'
    redriven = [line for line in found if "redriven" in line]
    assert [line for line in found[1:] if "http" in line and line not in redriven] == [
        f"event=queue-created {web} {who}",
        f"event=queue-purged {web} {who}",
        f"event=queue-changed {web} {who}",
        f"event=queue-deleted {web} {who}",
        f'event=login-failed {web} user="anna" why="unknown"',
        f'event=login-failed {web} why="unknown"',
        f'event=login-failed {web} why="unknown"',
    ]
    acts = [line for line in found if 'door="amqp"' in line]
    assert [line.split()[0] for line in acts] == [
        "event=login",
        "event=queue-created",
        "event=queue-purged",
        "event=queue-deleted",
    ]
    assert all('user="anna"' in line for line in acts)
    assert TOKEN not in str(found)


@pytest.mark.parametrize("purge", ["/q/purge", "/q/%70urge", "http://mq/q/purge"])
async def test_without_users_it_is_said_from_where(path: Path, file: AuditFile, purge: str) -> None:
    async with open_broker("memory:") as broker:
        noted = Auditor(Endpoints(broker, 1024))
        await ask(noted, "PUT", "/q", address="192.0.2.1")
        await ask(noted, "POST", "/q/messages", b"x", address="192.0.2.1")
        await ask(noted, "POST", purge, address="192.0.2.1")
    assert [line.split()[0] for line in lines(path)] == ["event=queue-created", "event=queue-purged"]
    assert all(line.endswith('address="192.0.2.1" queue="q"') for line in lines(path))
