"""The daemon behind users and TLS, as a process: what it refuses, what SIGHUP changes, and what nobody gets to read."""

from __future__ import annotations

import base64
import http.client
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from hpack import Encoder
from hyperframe.frame import HeadersFrame, SettingsFrame

from mq.access.certificates import Certificates, TLSFiles
from mq.cli.guards import Protection, check_exposure, make_guards
from mq.client import Access as ClientAccess
from mq.client import Client, NotAllowed
from mq.doors.connections import is_loopback
from mq.errors import InvalidSetting
from mq.settings import Settings
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.cases import for_each
from tests.e2e.prepared import Popen, run

PATIENCE_SECONDS = 30
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
ENVIRONMENT["MQ_AMQP_PORT"] = "0"  # others may run here, too
USERS = """
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
publish = ["q"]
configure = ["q"]
"""

slow = pytest.mark.slow


class Running:
    """A daemon, what it said, and how it is asked."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, context: ssl.SSLContext | None) -> None:
        self.process = process
        self.log = log
        self.context = context
        self.port = int(self.wait_for(r"is serving memory: .* on https?://127\.0\.0\.1:(\d+)")[1])

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Real time: another process speaks."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            found = re.search(pattern, self.log.read_text())
            if found is not None:
                return found
            time.sleep(0.01)
        raise AssertionError(self.log.read_text())

    def hang_up(self, pattern: str) -> None:
        """Send SIGHUP, and wait for what it says to that."""
        self.process.send_signal(signal.SIGHUP)
        self.wait_for(pattern)

    def connect(self) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def ask(self, method: str, path: str, authorization: str = f"Bearer {TOKEN}") -> tuple[int, bytes]:
        connection = self.connect()
        try:
            return ask(connection, method, path, authorization)
        finally:
            connection.close()


def ask(connection: http.client.HTTPConnection, method: str, path: str, authorization: str) -> tuple[int, bytes]:
    connection.request(method, path, headers={"Authorization": authorization})
    response = connection.getresponse()
    return response.status, response.read()


@contextmanager
def running(
    folder: Path,
    *args: str,
    context: ssl.SSLContext | None = None,
) -> Iterator[Running]:
    log = folder / "log"
    command = [sys.executable, "-m", "mq", "--port=0", "--storage=memory:", *args]
    with (
        log.open("wb") as output,
        Popen(command, stdout=output, stderr=output, env=ENVIRONMENT) as process,
    ):
        try:
            yield Running(process, log, context)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
        finally:
            process.kill()


def basic(name: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{secret}".encode()).decode()


class Issuer:
    """An authority, and the files of what it issued last."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.files = TLSFiles(str(folder / "cert.pem"), str(folder / "key.pem"))
        self.flags = (f"--tls-cert={self.files.certificate}", f"--tls-key={self.files.key}")
        self.context = ssl.create_default_context()
        self.ca.configure_trust(self.context)
        self.issue()

    def issue(self) -> None:
        issued = self.ca.issue_cert("127.0.0.1")
        Path(self.files.key).touch(0o600)
        issued.private_key_pem.write_to_path(self.files.key)
        issued.cert_chain_pems[0].write_to_path(self.files.certificate)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path)


@pytest.fixture
def users(tmp_path: Path) -> str:
    return write_users(tmp_path / "users.toml", USERS)


# What is made of settings


def test_by_default_there_is_no_guard() -> None:
    assert make_guards(Settings()) == (None, None, None, None)


def test_what_the_settings_name_is_read(users: str, issuer: Issuer) -> None:
    guards = make_guards(Settings(users=users, tls_cert=issuer.files.certificate, tls_key=issuer.files.key))
    assert guards.logins is not None
    assert guards.logins.access.by_token(TOKEN) is not None
    assert isinstance(guards.certificates, Certificates)
    assert guards.certificates.files == issuer.files


def test_the_network_is_let_in_only_past_guards(users: str, issuer: Issuer) -> None:
    tls = {"tls_cert": issuer.files.certificate, "tls_key": issuer.files.key}
    for settings in (Settings(), Settings(users=users), Settings(**tls), Settings(users=users, tls_cert="only")):
        exposed = Settings(**{**vars(settings), "address": "0.0.0.0"})
        with pytest.raises(InvalidSetting):
            make_guards(exposed)
    make_guards(Settings(address="0.0.0.0", users=users, **tls))
    make_guards(Settings(address="0.0.0.0", tls_client_ca=issuer.files.certificate, **tls))
    assert make_guards(Settings(address="0.0.0.0", insecure=True)) == (None, None, None, None)
    assert make_guards(Settings(address="0.0.0.0", insecure=True, users=users)).logins is not None


# As a process


@slow
@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (
            ["--address=0.0.0.0"],
            "requires TLS (--tls-cert, --tls-key) and users (--users). To run without this protection, use --insecure",
        ),
        (["--users={folder}/missing.toml"], "cannot read the users file"),
        (["--users={folder}/wrong.toml"], 'users."alice"."fly" in the users file'),
        (["--tls-cert={folder}/missing.pem"], "must be used together"),
        (["--tls-cert={folder}/missing.pem", "--tls-key={folder}/missing.pem"], "No such file"),
    ],
)
def test_what_is_refused_is_one_line_and_2(tmp_path: Path, args: list[str], reason: str) -> None:
    (tmp_path / "wrong.toml").write_text("[users.alice]\nfly = true")
    command = [
        sys.executable,
        "-m",
        "mq",
        "--port=0",
        "--storage=memory:",
        *(arg.format(folder=tmp_path) for arg in args),
    ]
    done = run(command, capture_output=True, text=True, check=False, timeout=60, env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (2, "")
    told = [line for line in done.stderr.splitlines() if "every user of this machine can read the file" not in line]
    assert len(told) == 1
    assert told[0].startswith("mq: ")
    assert reason in told[0]


@slow
def test_a_hangup_changes_the_users_of_connections_that_are_open(tmp_path: Path, users: str) -> None:
    with running(tmp_path, f"--users={users}") as daemon:
        connection = daemon.connect()
        assert ask(connection, "PUT", "/q", f"Bearer {TOKEN}")[0] == 201
        socket = connection.sock
        write_users(Path(users), USERS.replace("TOKEN", "OTHER_TOKEN").replace('publish = ["q"]', ""))
        daemon.hang_up("reloaded the users file: 1 user\n")
        assert ask(connection, "PUT", "/q", f"Bearer {TOKEN}")[0] == 401
        assert ask(connection, "PUT", "/q", f"Bearer {OTHER_TOKEN}")[0] == 200
        assert ask(connection, "POST", "/q/messages", f"Bearer {OTHER_TOKEN}")[0] == 403
        Path(users).write_text("[users.alice]\nfly = true")
        daemon.hang_up('cannot reload the users file: invalid entry users."alice"."fly"')
        assert ask(connection, "PUT", "/q", f"Bearer {OTHER_TOKEN}")[0] == 200
        assert connection.sock is socket  # one connection, all the while
        connection.close()


@slow
def test_a_hangup_changes_the_certificate_of_new_connections(tmp_path: Path, issuer: Issuer) -> None:
    def serial(connection: http.client.HTTPConnection) -> object:
        assert isinstance(connection.sock, ssl.SSLSocket)
        return (connection.sock.getpeercert() or {})["serialNumber"]

    with running(tmp_path, *issuer.flags, context=issuer.context) as daemon:
        old, new, kept = daemon.connect(), daemon.connect(), daemon.connect()
        assert ask(old, "GET", "/-/live", "")[0] == 200
        issuer.issue()
        daemon.hang_up("reloaded the TLS certificates for new connections")
        new.connect()
        assert serial(new) != serial(old)
        assert ask(old, "GET", "/-/live", "")[0] == 200
        Path(issuer.files.key).write_text("")
        daemon.hang_up("cannot reload the TLS certificates: ")
        kept.connect()
        assert serial(kept) == serial(new)
        for connection in (old, new, kept):
            connection.close()


@pytest.fixture
def hangups() -> Iterator[None]:
    """What is started hears of a hangup, though these tests may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@slow
@pytest.mark.usefixtures("hangups")
def test_a_hangup_that_finds_nothing_to_read_says_so_and_ends_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        daemon.hang_up("SIGHUP ignored: no users file, TLS certificate or audit log is configured")
        assert daemon.ask("GET", "/-/live")[0] == 200


@slow
def test_our_own_client_gets_through_with_a_token_or_a_password(tmp_path: Path, users: str, issuer: Issuer) -> None:
    issuer.ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    with running(tmp_path, f"--users={users}", *issuer.flags, context=issuer.context) as daemon:
        where = {"url": f"https://127.0.0.1:{daemon.port}", "ca": tmp_path / "ca.pem"}
        with Client(ClientAccess(token=TOKEN, **where)) as client:
            assert client.create_queue("q")
            with pytest.raises(NotAllowed):
                client.fetch("q")
        with Client(ClientAccess(user=("alice", PASSWORD), **where)) as client:
            assert client.publish("q", b"x").id
            with pytest.raises(NotAllowed):
                client.create_queue("r")
        with Client(ClientAccess(user=("alice", "wrong"), **where)) as client, pytest.raises(NotAllowed):
            client.publish("q", b"x")


GIVEN_AWAY = "hunter2-hunter2"
"""A secret that nobody has, in places where it does not belong."""


def malformed(secret: str) -> list[bytes]:
    """Requests in which a secret is near what is wrong."""
    line = f"Authorization: Bearer {secret}".encode()
    return [
        b"GET /q HTTP/1.1\r\nHost: mq\r\nAuthorization : Bearer " + secret.encode() + b"\r\n\r\n",
        b"GET /q HTTP/1.1\r\nHost: mq\r\n" + line + b"\x00\r\n\r\n",
        b"GET /q HTTP/1.1\r\nHost: mq\n" + line + b"\r\n\r\n",
        b"GET /q HTTP/1.1\r\n" + line + b"\r\nHost: mq\r\nContent-Length: x\r\n\r\n",
        PREFACE + line * 100,
        line * 2000,
        *(
            PREFACE + SettingsFrame(0).serialize() + HeadersFrame(1, block, flags=["END_HEADERS"]).serialize()
            for block in header_blocks(f"Bearer {secret}")
        ),
    ]


def header_blocks(value: str) -> list[bytes]:
    """Of HTTP/2: values and names that are not allowed, and one that is cut."""
    head = [(":method", "GET"), (":scheme", "http"), (":path", "/q"), (":authority", "mq")]
    headers = [("authorization", f"{value} "), ("Authorization", value), (f"authorization {value}", value)]
    headers += [("connection", value), ("te", value), (":status", value), ("content-length", value)]
    return [Encoder().encode([*head, header]) for header in headers] + [Encoder().encode(head) + value.encode()]


@slow
@pytest.mark.parametrize("tls", [False, True])
def test_no_secret_is_in_the_log_the_errors_or_the_list_of_processes(
    tmp_path: Path, users: str, issuer: Issuer, tls: bool
) -> None:
    httpx = pytest.importorskip("httpx")
    context = issuer.context if tls else None
    replies = b""
    with running(
        tmp_path, f"--users={users}", "--log-level=debug", *(issuer.flags if tls else ()), context=context
    ) as daemon:
        for secret in (PASSWORD, TOKEN, GIVEN_AWAY):
            for authorization in (f"Bearer {secret}", basic("alice", secret), basic(secret, secret), secret):
                replies += daemon.ask("PUT", "/q", authorization)[1]
                with httpx.Client(
                    base_url=f"http{'s' if tls else ''}://127.0.0.1:{daemon.port}",
                    verify=context or True,
                    http1=False,
                    http2=True,
                ) as client:
                    replies += client.get("/q/messages", headers={"Authorization": authorization}).content
            for request in malformed(secret):
                connection = daemon.connect()
                connection.connect()
                connection.sock.sendall(request)
                connection.sock.settimeout(5)
                replies += connection.sock.recv(10_000)
                connection.close()
        Path(users).write_text(f'[users.alice]\npassword = "{PASSWORD}"\ntokens = ["{TOKEN}"]')
        daemon.hang_up("cannot reload the users file: ")
        process = Path(f"/proc/{daemon.process.pid}")
        read = [daemon.log.read_bytes(), process.joinpath("cmdline").read_bytes(), replies]
        read.append(process.joinpath("environ").read_bytes())
    assert len(replies) > 1000
    for secret in (PASSWORD, TOKEN, GIVEN_AWAY):
        for form in (secret.encode(), base64.b64encode(f"alice:{secret}".encode()), base64.b64encode(secret.encode())):
            assert not [text for text in read if form in text], form


# Which addresses may be listened on

NOTHING = Protection(has_users=False, has_tls=False, has_client_ca=False)
WITH_USERS = NOTHING._replace(has_users=True)
WITH_TLS = NOTHING._replace(has_tls=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "localhost", "LOCALHOST"])
def test_on_this_machine_nothing_is_asked_for(address: str) -> None:
    assert is_loopback(address)
    check_exposure(address, NOTHING, insecure=False)


@for_each(
    "address",
    ["0.0.0.0", "::", "192.0.2.1", "10.0.0.1", "2001:db8::1", "example.org", "localhost.example.org", "0", "127.1"],
)
@for_each(
    "protection, lacks", [(NOTHING, ("--tls-cert", "--users")), (WITH_USERS, ("--tls-cert",)), (WITH_TLS, ("--users",))]
)
def test_elsewhere_what_is_lacking_is_told(address: str, protection: Protection, lacks: tuple[str, ...]) -> None:
    assert not is_loopback(address)
    with pytest.raises(InvalidSetting) as caught:
        check_exposure(address, protection, insecure=False)
    text = str(caught.value)
    assert address in text
    assert tuple(flag for flag in ("--tls-cert", "--users") if flag in text) == lacks
    assert "--insecure" in text
    check_exposure(address, protection, insecure=True)


@pytest.mark.parametrize("protection", [WITH_TLS._replace(has_users=True), WITH_TLS._replace(has_client_ca=True)])
def test_tls_and_somebody_who_is_known_will_do(protection: Protection) -> None:
    check_exposure("0.0.0.0", protection, insecure=False)


def test_a_reload_is_in_the_audit_log(tmp_path: Path) -> None:
    users = Path(write_users(tmp_path / "users.toml", '[users.anna]\ntokens = ["TOKEN"]\npublish = ["*"]\n'))
    audit = tmp_path / "audit"
    with running(tmp_path, f"--users={users}", f"--audit={audit}") as daemon:
        daemon.hang_up("reopened the audit log")
        good = users.read_text()
        users.write_text("wrong")
        daemon.hang_up("cannot reload the users file: ")
        users.write_text(good)
    events = [line.split(" ", 2)[2] for line in audit.read_text().splitlines()]
    assert events[:2] == ['event=reloaded what="users" users=1', 'event=reloaded what="audit"']
    assert events[2].startswith('event=reload-failed what="users" why="')
