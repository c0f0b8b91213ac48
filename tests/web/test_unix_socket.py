"""HTTP on a Unix socket: who a peer is, in both lanes, and what is asked of it."""

from __future__ import annotations

import base64
import logging
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from mq.access import UserDirectory
from mq.doors.connections import Crowd
from mq.doors.logins import Logins
from mq.web.app import WebApp
from mq.web.authorizer import Auditor, Authorizer
from mq.web.endpoints import Endpoints
from mq.web.serve import serve_socket
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.cli.test_guards import ENVIRONMENT
from tests.web.talking import http1, parse, read_all

PATIENCE_SECONDS = 30
STRANGER = "daemon"
"""A user that every machine has, and no other than runs these tests."""
US = pwd.getpwuid(os.geteuid()).pw_name
USERS = """
[users.us]
unix = "US"
administer = ["*"]
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
consume = ["q"]
"""
SERVED = USERS.replace("US", US)
NOT_SERVED = USERS.replace("US", STRANGER)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return "s"


def logins(users: str) -> Logins:
    return Logins(UserDirectory(write_users(Path("users.toml"), users)))


@pytest.fixture
async def ask(path: str, endpoints: Endpoints, nursery: trio.Nursery, fast_lane: bool):
    """Serve with these users, and ask."""

    async def begin(users: str | None):
        handler = Auditor(endpoints) if users is None else Authorizer(endpoints, logins(users))
        stop = trio.Event()
        serving = partial(serve_socket, WebApp(handler), path, 0o600, stop=stop.wait, fast_lane=fast_lane)
        assert await nursery.start(serving) == [f"unix:{path}"]

        async def exchange(method: str, target: str, *lines: str) -> int:
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(http1(method, target, None, *lines))
                await stream.send_eof()
                return parse(await read_all(stream))[0]

        return exchange

    return begin


async def test_without_users_whom_the_mode_lets_in_may_do_everything(ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exchange = await ask(None)
    assert await exchange("PUT", "/q") == 201
    assert f'event=queue-created protocol="http" address="uid:{os.geteuid()}" queue="q"' in caplog.text


async def test_a_peer_is_the_user_with_its_login_name(ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    exchange = await ask(SERVED)
    assert await exchange("PUT", "/q") == 201
    assert f'event=login protocol="http" address="uid:{os.geteuid()}" user="us"' in caplog.text
    assert f'event=queue-created protocol="http" address="uid:{os.geteuid()}" user="us" queue="q"' in caplog.text


async def test_a_peer_without_entry_is_nobody_though_it_is_root_or_the_daemons_user(
    ask, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    exchange = await ask(NOT_SERVED)
    assert await exchange("PUT", "/q") == 401
    assert f'event=login-failed protocol="http" address="uid:{os.geteuid()}" why="no credentials"' in caplog.text
    assert await exchange("GET", "/-/live") == 200


async def test_who_says_who_it_is_is_that_and_nobody_else(ask) -> None:
    exchange = await ask(SERVED)
    assert await exchange("PUT", "/q") == 201
    good = [f"Bearer {TOKEN}", "Basic " + base64.b64encode(f"alice:{PASSWORD}".encode()).decode()]
    for authorization in good:
        assert await exchange("GET", "/q/messages", f"Authorization: {authorization}") == 204
        assert await exchange("DELETE", "/q", f"Authorization: {authorization}") == 403
    for authorization in ("Bearer x", "Negotiate x", "Basic x"):
        assert await exchange("DELETE", "/q", f"Authorization: {authorization}") == 401


async def test_guessers_wait_by_user_of_the_machine(ask) -> None:
    exchange = await ask(NOT_SERVED)
    wrong = "Authorization: Basic " + base64.b64encode(b"alice:wrong").decode()
    assert [await exchange("PUT", "/q", wrong) for _ in range(2)] == [401, 503]


async def test_connections_are_not_counted(ask, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crowd.__init__, "__defaults__", (1,))
    exchange = await ask(None)
    async with await trio.open_unix_socket(path):
        assert await exchange("GET", "/-/live") == 200
        assert await exchange("GET", "/-/live") == 200


# As a process


@contextmanager
def running(*args: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "mq", "--port=0", "--storage=memory:", "--socket=s", *args]
    with (
        open("log", "wb") as log,
        subprocess.Popen(
            command, stdout=log, stderr=log, env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS  # real time: another process speaks
            while " unix:s\n" not in Path("log").read_text():
                assert time.monotonic() < deadline, Path("log").read_text()
                assert process.poll() is None, Path("log").read_text()
                time.sleep(0.01)
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0, Path("log").read_text()
        finally:
            process.kill()


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One that others can get through, unlike those of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o711)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            yield folder


def curl(*args: str, before: tuple[str, ...] = ()) -> str:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    command = [*before, "curl", "-sS", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_code}"]
    done = subprocess.run([*command, "--unix-socket", "s", *args], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("path")
def test_the_daemon_serves_under_any_name_and_takes_its_socket_away() -> None:
    with running() as daemon:
        assert os.lstat("s").st_mode & 0o777 == 0o600
        for more in ((), ("--http2-prior-knowledge",)):
            assert curl("-X", "PUT", "http://mq/queue001", *more) in ("201", "200")
            assert curl("-X", "PUT", "http://mq/queue001", "-H", "Host: evil.example", *more) == "200"
            assert curl("-X", "PUT", "http://mq/queue001", "-H", "Origin: http://evil.example", *more) == "403"
        other = subprocess.run(
            [sys.executable, "-m", "mq", "--port=0", "--storage=memory:", "--socket=s"],
            capture_output=True,
            text=True,
            env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(sys.path)},
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert (other.returncode, other.stderr) == (2, 'mq: cannot listen on "s": another program is listening there\n')
        assert daemon.poll() is None
        assert os.path.exists("s")
    assert not os.path.exists("s")


@pytest.mark.slow
def test_another_user_gets_as_far_as_the_mode_and_the_users_file_let_it(open_folder: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("takes root and setpriv, to ask as another user")
    them = pwd.getpwnam(STRANGER)
    before = ("setpriv", f"--reuid={them.pw_uid}", f"--regid={them.pw_gid}", "--clear-groups")
    with running():
        assert "000" in curl("-X", "PUT", "http://mq/q", before=before)
    write_users(Path("users.toml"), NOT_SERVED)
    with running("--users=users.toml", "--socket=s,mode=0666"):
        assert curl("-X", "PUT", "http://mq/q") == "401"
        assert curl("-X", "PUT", "http://mq/q", before=before) == "201"
        assert f'address="uid:{them.pw_uid}" user="us"' in Path("log").read_text()
