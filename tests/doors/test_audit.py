"""The audit log: what is written down, by whom, and that no name forges a line."""

from __future__ import annotations

import base64
import json
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from pamqp import commands
from trio.testing import MockClock

from mq.access import UserDirectory
from mq.broker import open_broker
from mq.doors.audit import (
    MINUTE_SECONDS,
    MOST_FAILURES,
    QUIET_SECONDS,
    AuditFile,
    LoginNotes,
    RefusalNotes,
    note,
)
from mq.doors.logins import Logins
from mq.errors import InvalidSetting
from mq.web.authorizer import Auditor, Authorizer
from mq.web.endpoints import OPERATIONS, Endpoints
from mq.web.exchange import Reply, Request
from mq.web.front import BrowserGuard
from mq.web.operations import Operation, RequestContext, Success
from tests.access.files import TOKEN, write_users
from tests.amqp.dialling import open_house
from tests.cases import for_each
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("elsewhere"), "the path is a symbolic link"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: os.mkfifo(path), "not a file"),
    ],
    ids=["a link", "a folder", "a pipe"],
)
def test_what_is_not_a_file_is_refused_without_a_traceback(path: Path, make: Any, reason: str) -> None:
    make(path)
    code = f"""
from mq.doors.audit import AuditFile
try:
    AuditFile({str(path)!r})
except Exception as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert reason in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_pipe_with_a_reader_is_no_file(path: Path) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(InvalidSetting, match="not a regular file"):
        AuditFile(str(path))
    os.close(reader)


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
        'event=login-failed protocol="http" address="192.0.2.1" user="bob" why="unknown"',
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
    web, who = 'protocol="http" address="192.0.2.1"', 'user="anna" queue="q"'
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
    acts = [line for line in found if 'protocol="amqp"' in line]
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


# What no table may forget


def changing() -> list[Operation]:
    return [each for each in OPERATIONS if each.method != "GET"]


@for_each("operation", changing())
def test_every_operation_that_changes_something_is_audited_or_says_why_not(operation: Operation) -> None:
    is_session = operation.path == "/-/session"  # the logins and the authorizer note these
    assert bool(operation.events) != (operation.is_of_messages or is_session)
    assert set(operation.events) <= set(operation.answers)


def test_an_operation_is_audited_by_its_name_unless_its_line_says_otherwise() -> None:
    async def drop_thing(context: RequestContext) -> Reply:
        raise NotImplementedError

    line = Operation("DELETE", "/-/things/ID", "administer", drop_thing, "drops it", {200: Success("gone")})
    assert line.events == {200: "drop-thing"}
    assert line.named(["7"]) == {"id": "7"}


async def test_operations_over_http_are_written_down(tmp_path: Path, path: Path, file: AuditFile) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    async with open_broker("memory:") as broker:
        gate = Authorizer(Endpoints(broker, 1024), logins)

        async def say(line: str, body: bytes = b"", query: bytes = b"") -> int:
            method, path = line.split()
            headers = {"authorization": f"Bearer {TOKEN}"}
            request = Request(method, path.encode(), query, headers, body, len(body), address="192.0.2.1")
            return (await gate.handle(request)).status

        assert await say("PUT /q") == 201
        assert await say("POST /q/consumers/c") == 200
        assert await say("DELETE /q/consumers/c") == 200
        assert await say("POST /q/writes/j", b'{"body": "x"}\n', b"part=0&number=0") == 200
        assert await say("PUT /q/writes/j", b'{"parts": ["0"], "rows": 1}') == 200
        assert await say("DELETE /q/writes/j") == 200
    who = 'protocol="http" address="192.0.2.1" user="anna" queue="q"'
    assert lines(path)[1:] == [
        f"event=queue-created {who}",
        f'event=consumer-started {who} consumer="c"',
        f'event=consumer-deleted {who} consumer="c"',
        f'event=writes-committed {who} job="j"',
        f'event=writes-aborted {who} job="j"',
    ]


LESSER = '[users.anna]\ntokens = ["TOKEN"]\nconsume = ["mine"]\nconfigure = ["mine"]\n'


async def test_a_refusal_for_lack_of_a_right_is_written_down_once(
    autojump_clock: MockClock, tmp_path: Path, path: Path, file: AuditFile
) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", LESSER)))
    async with open_broker("memory:") as broker:
        gate = Authorizer(Endpoints(broker, 1024), logins)
        headers = {"authorization": f"Bearer {TOKEN}"}
        for method, target in (("DELETE", "/q"), ("DELETE", "/q"), ("POST", "/q/messages"), ("GET", "/-/stats")):
            assert (await ask(gate, method, target, headers=headers, address="192.0.2.1")).status == 403
        assert (await ask(gate, "GET", "/-/nothing/here", headers=headers, address="192.0.2.1")).status == 403
        await trio.sleep(QUIET_SECONDS)
        assert (await ask(gate, "DELETE", "/q", headers=headers, address="192.0.2.1")).status == 403
    who = 'event=forbidden protocol="http" address="192.0.2.1" user="anna"'
    assert lines(path)[1:] == [
        f'{who} operation="DELETE /QUEUE" queue="q"',
        f'{who} operation="POST /QUEUE/messages" queue="q"',
        f'{who} operation="GET /-/stats"',
        f'{who} operation="GET"',
        'event=login protocol="http" address="192.0.2.1" user="anna"',
        f'{who} operation="DELETE /QUEUE" queue="q"',
    ]


async def test_refusals_fill_no_disk(autojump_clock: MockClock, path: Path, file: AuditFile) -> None:
    notes = RefusalNotes()
    for number in range(10_000):
        notes.refused(protocol="http", user="anna", queue=f"q{number}")
    assert len(lines(path)) == MOST_FAILURES
    await trio.sleep(MINUTE_SECONDS)
    notes.refused(protocol="http", user="anna", queue="again")
    assert lines(path)[MOST_FAILURES] == f"event=many-forbidden count={10_000 - MOST_FAILURES}"


async def test_a_page_that_is_refused_is_written_down(path: Path, file: AuditFile) -> None:
    async with open_broker("memory:") as broker:
        guard = BrowserGuard(Auditor(Endpoints(broker, 1024)), "127.0.0.1")
        headers = {"host": "127.0.0.1", "origin": "http://evil.test"}
        await ask(guard, "POST", "/q/messages", headers=headers, address="127.0.0.1")
    [line] = lines(path)
    assert line == (
        'event=forbidden protocol="http" address="127.0.0.1" operation="POST /q/messages" why="page" '
        'origin="http://evil.test"'
    )


async def test_logging_out_is_written_down(tmp_path: Path, path: Path, file: AuditFile) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    async with open_broker("memory:") as broker:
        gate = Authorizer(Endpoints(broker, 1024), logins)
        given = json.dumps({"name": "anna", "secret": TOKEN}).encode()
        reply = await ask(gate, "POST", "/-/session", given, address="192.0.2.1")
        assert isinstance(reply.body, bytes)
        headers = {
            "cookie": dict(reply.headers)["set-cookie"].partition(";")[0],
            "x-csrf-token": json.loads(reply.body)["csrf"],
        }
        assert (await ask(gate, "DELETE", "/-/session", headers=headers, address="192.0.2.1")).status == 200
    assert lines(path)[-1] == 'event=logout protocol="http" address="192.0.2.1" user="anna"'


async def test_exchanges_and_bindings_over_amqp_are_written_down(tmp_path: Path, path: Path, file: AuditFile) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", USERS)))
    async with open_house(logins=logins) as house:
        client = await house.connect(name="anna", secret=TOKEN)
        await client.declare("a")
        for _ in range(2):  # the second time nothing changes
            await client.call(commands.Exchange.Declare(exchange="e", exchange_type="topic"))
            await client.call(commands.Exchange.Declare(exchange="f", exchange_type="fanout"))
            await client.call(commands.Queue.Bind(queue="a", exchange="e", routing_key="k.#"))
            await client.call(commands.Exchange.Bind(destination="f", source="e", routing_key="x"))
        await client.call(commands.Queue.Unbind(queue="a", exchange="e", routing_key="k.#"))
        await client.call(commands.Exchange.Delete(exchange="e"))
        await client.call(commands.Queue.Delete(queue="a"))
    who = f'protocol="amqp" address="{client_address(path)}" user="anna"'
    assert lines(path)[1:] == [
        f'event=queue-created {who} queue="a"',
        f'event=exchange-created {who} exchange="e"',
        f'event=exchange-created {who} exchange="f"',
        f'event=binding-created {who} exchange="e" queue="a" routing_key="k.#"',
        f'event=binding-created {who} exchange="e" to_exchange="f" routing_key="x"',
        f'event=binding-deleted {who} exchange="e" queue="a" routing_key="k.#"',
        f'event=exchange-deleted {who} exchange="e"',
        f'event=queue-deleted {who} queue="a"',
    ]


async def test_a_right_that_is_missing_over_amqp_is_written_down(tmp_path: Path, path: Path, file: AuditFile) -> None:
    logins = Logins(UserDirectory(write_users(tmp_path / "users", LESSER)))
    async with open_house(logins=logins) as house:
        for _ in range(2):
            client = await house.connect(name="anna", secret=TOKEN)
            assert (await client.call(commands.Queue.Declare(queue="a"))).reply_code == 403
    who = f'protocol="amqp" address="{client_address(path)}" user="anna"'
    assert lines(path)[1:] == [f'event=forbidden {who} right="configure" queue="a"']


def client_address(path: Path) -> str:
    """As the login says it."""
    return lines(path)[0].split('address="')[1].partition('"')[0]
