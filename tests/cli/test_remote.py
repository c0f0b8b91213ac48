"""What the verbs that speak to a daemon have in common: flags, credentials, statuses, completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import httpx
import pytest

from mq.cli import VERBS, load_verb, remote
from mq.client import Access, Client, Retry
from tests.cases import for_each
from tests.cli.conftest import Mq
from tests.client.inside import Inside
from tests.client.scripted import Script, refused

LOCAL = ("serve", "vsqs", "user", "doctor", "backup", "restore", "certificate")
REMOTE = [name for name in VERBS if name not in LOCAL]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Access, Retry]]:
    """The daemons that the program would have spoken to."""
    found: list[tuple[Access, Retry]] = []

    def make(access: Access, *, retry: Retry, **_: Any) -> Client:
        found.append((access, retry))
        return Client(access, retry=Retry(patience=0), transport=httpx.MockTransport(Script(refused(404)).answer))

    monkeypatch.setattr(remote, "Client", make)
    return found


def test_the_daemon_next_door_is_the_default(given: list[tuple[Access, Retry]], mq: Mq) -> None:
    mq("queues")
    assert given == [(Access(url="http://127.0.0.1:8080"), Retry(patience=5.0))]


def test_flags_and_variables(
    given: list[tuple[Access, Retry]], mq: Mq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "user").write_text("me:s:x\n")
    mq("queues", "--url", "https://a:1", "--credentials", tmp_path / "user", "--patience", "9")
    assert given.pop() == (Access(url="https://a:1", user=("me", "s:x")), Retry(patience=9))
    (tmp_path / "token").write_text("abc\n")
    monkeypatch.setenv("MQ_URL", "http://b:2")
    monkeypatch.setenv("MQ_CREDENTIALS", str(tmp_path / "token"))
    monkeypatch.setenv("MQ_PATIENCE", "0")
    mq("queues")
    assert given.pop() == (Access(url="http://b:2", token="abc"), Retry(patience=0))
    monkeypatch.delenv("MQ_CREDENTIALS")
    monkeypatch.setenv("MQ_TOKEN", "def")
    mq("queues")
    assert given.pop()[0].token == "def"


@for_each(
    "args",
    [
        ("queues", "--url", "nonsense"),
        ("queues", "--url", "http://me:secret@host"),
        ("queues", "--credentials", "/nowhere"),
        ("queues", "--url", "https://host", "--ca", "/dev/null"),
        ("queues", "--url", "https://host", "--certificate", "/dev/null"),
        ("--port", "99", "queues"),
        ("send",),
        ("send", "q", "--attribute", "nonsense"),
        ("send", "q", "--message", "x", "--lines"),
        ("send", "q", "--lines", "--key", "k"),
        ("receive", "q", "--exec", "true", "--keep"),
        ("receive", "q", "--max", "0"),
        ("delete", "q", "1", "2", "--receipt", "r"),
        ("queue", "set", "q", "nonsense"),
        ("queue", "set", "q"),
        ("import", "q", "--run", "x", "--no-keys"),
        ("purge", "q"),
        ("queue", "delete", "q"),
    ],
)
def test_what_makes_no_sense_is_2_and_asks_nobody(given: list[tuple[Access, Retry]], mq: Mq, args: tuple[str]) -> None:
    done = mq(*args)
    assert done.status == 2
    assert "secret" not in done.error
    assert given == []


def test_credentials_that_are_no_line(given: list[tuple[Access, Retry]], mq: Mq, tmp_path: Path) -> None:
    (tmp_path / "c").write_bytes(b"a\nb")
    assert mq("queues", "--credentials", tmp_path / "c").status == 2
    (tmp_path / "c").write_bytes(b"\xff")
    assert mq("queues", "--credentials", tmp_path / "c").status == 2
    assert given == []


@pytest.mark.parametrize(
    ("answer", "status", "line"),
    [
        (lambda: refused(404, "no queue\nnamed q"), 1, "mq: no queue named q\n"),
        (lambda: refused(401, "who are you"), 1, "mq: who are you\n"),
        (lambda: refused(503, "full"), 4, "mq: full\n"),
        (lambda: refused(429, "full"), 4, "mq: full\n"),
        (lambda: httpx.ConnectError("refused"), 4, "mq: cannot connect to http://127.0.0.1:8080: refused\n"),
        (
            lambda: httpx.ReadError("reset"),
            4,
            "mq: the connection to http://127.0.0.1:8080 was lost: reset. The request may have been executed\n",
        ),
        (
            lambda: httpx.Response(200, text="hi"),
            1,
            "mq: the daemon returned status 200 with a body that is not JSON\n",
        ),
    ],
)
def test_an_error_is_one_line_and_its_status(
    mq: Mq, monkeypatch: pytest.MonkeyPatch, answer: Any, status: int, line: str
) -> None:
    def make(access: Access, **_: Any) -> Client:
        return Client(access, retry=Retry(patience=0), transport=httpx.MockTransport(Script(answer()).answer))

    monkeypatch.setattr(remote, "Client", make)
    done = mq("queue", "show", "q")
    assert (done.status, done.out, done.error) == (status, "", line)


@for_each("name", REMOTE)
def test_no_verb_takes_a_secret_as_an_argument(name: str) -> None:
    command = load_verb(name)
    commands = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for each in commands:
        flags = {flag for parameter in each.params for flag in parameter.opts}
        assert {"--url", "--credentials", "--ca", "--patience"} <= flags
        assert not flags & {"--token", "--password", "--user"}


# Completion


def completed(words: str, **environment: str) -> list[str]:
    """What the shell is offered for the last of `words`."""
    env = os.environ | {"_MQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    code = "from mq.cli import main; main(prog_name='mq')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env | environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.slow
def test_verbs_and_flags_are_completed() -> None:
    assert completed("mq re") == ["receive", "reschedule", "resume", "redrive", "restore"]
    assert completed("mq queue s") == ["set", "show"]
    assert "--visibility" in completed("mq receive q --vis")


def test_a_completion_without_a_daemon_is_silent() -> None:
    assert completed("mq send wo", MQ_URL="http://127.0.0.1:1") == []


def test_the_shells_get_their_scripts() -> None:
    for shell in ("bash", "zsh", "fish"):
        env = os.environ | {"_MQ_COMPLETE": f"{shell}_source"}
        code = "from mq.cli import main; main(prog_name='mq')"
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert "_MQ_COMPLETE" in done.stdout


def test_queues_are_completed(daemon: Inside, client: Client) -> None:
    for queue in ("work", "work.dead", "other"):
        client.create_queue(queue)
    context = click.Context(click.Command("send"))
    found = remote.complete_queues(context, click.Argument(["queue"]), "wo")
    assert [item.value for item in found] == ["work", "work.dead"]
