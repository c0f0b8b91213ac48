"""The log: a line is one line whatever a client says, JSON is JSON, and no secret is in any of it."""

from __future__ import annotations

import http.client
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from mq import log_lines
from mq.client import Access, Client, NotAllowed, amqp
from mq.doors.audit import note
from tests.access.files import OTHER_TOKEN, PASSWORD, TOKEN, write_users
from tests.e2e.daemon import Daemon

USERS = """
[users.alice]
password = "PASSWORD"
tokens = ["TOKEN"]
administer = ["*"]
"""
BODY, KEY, ATTRIBUTE, WRONG = "the-body-of-it", "the-key-of-it", "the-attribute", "wrong-secret"
SECRETS = (PASSWORD, PASSWORD.replace(" ", "%20"), TOKEN, OTHER_TOKEN, BODY, ATTRIBUTE, WRONG)


class Log:
    """A log of its own."""

    def __init__(self, format: str) -> None:
        self._stream = io.StringIO()
        self._handler = logging.StreamHandler(self._stream)
        self._handler.setFormatter(log_lines.formatter(format))
        self.logger = logging.Logger("mq.test")  # noqa: LOG001 - no other test sees it
        self.logger.addHandler(self._handler)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """What a test changes is the process's."""
    root = logging.getLogger()
    before = root.level, log_lines.REQUESTS.level
    yield
    root.setLevel(before[0])
    log_lines.REQUESTS.setLevel(before[1])


def test_a_client_begins_no_line_and_commands_no_terminal() -> None:
    log = Log(log_lines.TEXT)
    log.logger.info("closed: %s", "bye\n2026-01-01 INFO all is well\x1b[2J\u2028x\udc80")
    [line] = log.lines
    assert line.endswith(r"INFO closed: bye\n2026-01-01 INFO all is well\x1b[2J\u2028x\udc80")


def test_an_error_of_our_own_has_its_traceback_below() -> None:
    for format in log_lines.FORMATS:
        log = Log(format)
        try:
            raise ZeroDivisionError
        except ZeroDivisionError as error:
            log.logger.error("an error", exc_info=error)
        if format == log_lines.TEXT:
            assert log.lines[-1] == "ZeroDivisionError"
        else:
            [line] = log.lines
            assert "Traceback" in json.loads(line)["exception"]


def test_a_line_of_json_has_its_fields() -> None:
    log = Log(log_lines.JSON)
    log_lines.write(log.logger, "queue-purged", queue="q\n1", user=None, count=3)
    [line] = log.lines
    assert line.isascii()
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "info",
        "logger": "mq.test",
        "message": r'event=queue-purged queue="q\n1" count=3',
        "event": "queue-purged",
        "queue": "q\n1",
        "count": 3,
    }


def test_the_audit_log_has_fields_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mq.audit")
    note("login", user="x" * 1000, address=None)
    [record] = caplog.records
    found = json.loads(log_lines.JsonLines().format(record))
    assert (found["event"], len(found["user"]), "address" in found) == ("login", 300, False)


@pytest.mark.parametrize(
    ("name", "level", "is_written"), [("hpack", 10, False), ("hpack", 20, True), ("mq.x", 10, True)]
)
def test_libraries_of_others_tell_no_details(name: str, level: int, is_written: bool) -> None:
    record = logging.LogRecord(name, level, "", 0, "x", (), None)
    assert log_lines._is_for_us(record) is is_written


def test_the_level_can_be_changed() -> None:
    for level in log_lines.LEVELS:
        log_lines.change(level=level)
        assert log_lines.level() == level
    log_lines.change(requests=True)
    assert log_lines.level() == "error"
    assert log_lines.REQUESTS.isEnabledFor(logging.INFO)
    log_lines.change(requests=False)
    assert not log_lines.REQUESTS.isEnabledFor(logging.INFO)


@pytest.fixture
def daemon(temp_root: Path, tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    users = write_users(tmp_path / "users.toml", USERS)
    flags = ("--log-format", "json", "--log-level", "debug", "--users", users, "--amqp-port", str(free_port))
    with Daemon(temp_root, tmp_path / "log", *flags) as daemon:
        yield daemon


@pytest.mark.slow
def test_no_secret_is_written_down(daemon: Daemon, tmp_path: Path, free_port: int) -> None:
    """Every way to log in and to publish, at the level that tells most, with every request."""
    url = f"http://127.0.0.1:{daemon.port}"
    with Client(Access(url=url, token=TOKEN)) as client:
        assert client.logging() == {"level": "debug", "requests": False}
        client.create_queue("q")
        assert client.change_logging(every_request=True)["requests"]
        client.publish("q", BODY, attributes={"a": ATTRIBUTE}, key=KEY)
        client.publish_many("q", [BODY, BODY])
    with Client(Access(url=url, user=("alice", PASSWORD))) as client:
        message = client.fetch("q")
        assert message is not None
        client.remove(message)
        list(client.browse("q"))
        client.change_logging(level="info")
        client.change_logging(level="debug")
    trio.run(over_amqp, free_port)
    by_hand(daemon.port)
    daemon.stop()
    lines = (tmp_path / "log").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    requests = [line for line in found if line.get("event") == "request"]
    assert len(requests) >= 10
    assert ("POST", "/q/messages", 201, "alice") in {
        (line["method"], line["path"], line["status"], line.get("user")) for line in requests
    }
    assert {"login", "login-failed"} <= {line.get("event") for line in found}
    for secret in SECRETS:
        assert not [line for line in lines if secret in line], secret


def by_hand(port: int) -> None:
    """What no client of ours sends: chunks, which take the other lane; secrets in wrong places; nonsense."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    good = {"Authorization": f"Bearer {TOKEN}"}
    asked: list[tuple[str, str, Any, dict[str, str], int]] = [
        ("POST", "/q/messages", iter([BODY.encode()]), good, 201),
        ("GET", f"/q?token={TOKEN}", None, good, 400),
        ("GET", "/q", None, {"Authorization": f"Bearer {OTHER_TOKEN}"}, 401),
        ("POST", "/-/session", json.dumps({"name": "alice", "secret": PASSWORD}), {}, 200),
        ("POST", "/-/session", json.dumps({"name": "alice", "secret": WRONG}), {}, 401),
        ("PATCH", "/q", json.dumps({BODY: BODY}), good, 400),
    ]
    for method, path, body, headers, status in asked:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status, (method, path, answer.status)
    connection.close()


async def over_amqp(port: int) -> None:
    url = f"amqp://127.0.0.1:{port}"
    async with amqp.connect(url, user=("alice", PASSWORD)) as client:
        await client.declare_queue("a")
        await client.publish("a", BODY, headers={"a": ATTRIBUTE})
        got = await client.get("a")
        assert got is not None
        assert got.body == BODY.encode()
        await client.ack(got.tag)
    with pytest.raises(NotAllowed):
        async with amqp.connect(url, user=(WRONG, WRONG)):
            pass
