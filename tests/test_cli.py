"""The program, from the command line to its exit status. Those that start a process are slow."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import mq
from mq import cli
from mq.broker import BrokerConfig
from mq.broker.clock import Clock
from mq.cli import build, serve
from mq.errors import StorageUnusable
from mq.lifecycle import Observer
from mq.settings import LINES, Settings
from mq.storage.files.posix import load_native
from mq.storage.interface import Sharing
from tests.cases import for_each
from tests.e2e.prepared import Popen

slow = pytest.mark.slow
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
ENVIRONMENT["MQ_AMQP_PORT"] = "0"  # others may run here, too


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the program would have served with."""
    settings: list[Settings] = []
    monkeypatch.setattr(serve, "run_program", lambda name, main, *_: settings.extend(main.args))
    for line in LINES:
        monkeypatch.delenv(line.variable, raising=False)
    return settings


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.main, args, prog_name="mq")
    return result.exit_code, result.output


def test_alone_it_serves(given: list[Settings]) -> None:
    assert run() == (0, "")
    assert given == [Settings()]


def test_the_seeds_flags(given: list[Settings]) -> None:
    assert run("--workers=4", "--peers=1", "--root=/tmp/other")[0] == 0
    assert given == [Settings(workers=4, peers=1, root="/tmp/other")]


@pytest.mark.parametrize("before", [True, False])
def test_serve_is_the_same(given: list[Settings], before: bool) -> None:
    flags = ["--port", "0", "--no-mover", "--no-reaper", "--max-body", "1KiB", "--log-level", "debug"]
    assert run(*([*flags, "serve"] if before else ["serve", *flags]))[0] == 0
    assert given == [Settings(port=0, no_mover=True, no_reaper=True, max_body=1024, log_level="debug")]


def test_the_verbs_flag_beats_the_programs(given: list[Settings]) -> None:
    assert run("--port", "1", "--workers", "2", "serve", "--port", "3")[0] == 0
    assert given == [Settings(port=3, workers=2)]


def test_the_environment_counts(given: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MQ_PORT", "99")
    assert run()[0] == 0
    assert given == [Settings(port=99)]


def test_help_names_every_setting_with_its_variable_and_default() -> None:
    status, text = run("--help")
    assert status == 0
    text = " ".join(text.split())
    for line in LINES:
        assert f"{line.flag} " in text
        assert f"[{line.variable}; default: {line.shown}]" in text or (line.is_switch and f"[{line.variable}]" in text)
    assert "--config FILE" in text
    assert "serve" in text


@for_each("name", cli.VERBS)
def test_a_verbs_line_in_the_table_is_true(name: str) -> None:
    command = cli.load_verb(name)
    assert command.name == name
    assert command.get_short_help_str(limit=100) == cli.VERBS[name].help
    assert cli.VERBS[name].help in run("--help")[1]


def test_an_unknown_verb_is_told_and_2() -> None:
    status, text = run("sevre")
    assert status == 2
    assert text == "mq: unknown command 'sevre': did you mean serve? See mq --help\n"


def test_verbs_stand_before_settings() -> None:
    text = run("--help")[1]
    assert text.index("\n  vsqs ") < text.index("--address")


def test_a_near_miss_in_the_environment_is_told_and_no_more(
    given: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MQ_PROT", "1")
    assert run() == (0, "mq: unknown environment variable MQ_PROT: did you mean MQ_PORT?\n")
    assert given == [Settings()]


@pytest.mark.parametrize(
    ("store", "durable", "said"),
    [
        ("posix:/tmp/mq", True, "/tmp/mq is inside /tmp,"),
        ("layered:posix:/var/../tmp/x", True, "inside /tmp,"),
        ("layered:memory:", False, "stores all messages in memory, so they will be lost when mq stops"),
        ("tmpfs:/dev/shm/mq", False, "messages will be lost in a power failure"),
        ("layered:posix:/var/lib/mq", True, ""),
        ("posix:/var/tmp/mq", True, ""),
        ("posix:/tmpfiles", True, ""),
        ("etcd:http://127.0.0.1:2379", True, ""),
    ],
)
def test_a_root_that_forgets_is_told_once_with_the_flag(store: str, durable: bool, said: str) -> None:
    lines = serve.forgotten(store, durable=durable)
    assert len(lines) == bool(said)
    assert all(said in line and "--root /var/lib/mq" in line for line in lines)


def test_only_serving_loads_an_event_loop() -> None:
    code = "import sys\nfrom mq.cli import main\nmain(['--help'], standalone_mode=False)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert not {"trio", "hypercorn", "quart"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("compiled", "native", "said"),
    [
        (False, None, ""),
        (False, object(), " (with mq-native)"),
        (True, None, " (compiled)"),
        (True, object(), " (compiled, with mq-native)"),
    ],
)
def test_version_says_what_of_it_is_compiled(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, native: object, said: str
) -> None:
    monkeypatch.setattr(build, "IS_COMPILED", compiled)
    monkeypatch.setattr(build, "load_native", lambda: native)
    assert run("--version") == (0, f"mq, version {mq.__version__}{said}\n")


@slow
@pytest.mark.skipif(load_native() is None, reason="mq-native is not compiled here: apt install gcc libc6-dev")
@pytest.mark.parametrize(
    ("argument", "variables", "said"),
    [("--amqp-port=0", {}, True), ("--amqp-port=0", {"MQ_NO_NATIVE": "1"}, False), ("--storage=memory:", {}, False)],
)
def test_a_daemon_says_whether_it_works_with_mq_native(
    temp_root: Path, argument: str, variables: dict[str, str], said: bool
) -> None:
    with started("--port=0", "--amqp-port=0", argument, "--root", str(temp_root), **variables) as process:
        line = process.stderr.readline()
        if argument != "--storage=memory:":
            says(process, ": engine ")  # behind it, with the reason
    assert line.startswith(f"mq {mq.__version__} ")
    assert ("with mq-native) is serving " in line) is said


def test_a_wrong_setting_is_one_line_and_2(given: list[Settings]) -> None:
    assert run("--workers", "x") == (
        2,
        "mq: workers must be a whole number from 1 to 1024, got 'x' (from --workers)\n",
    )
    assert given == []


def test_the_broker_gets_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []

    @asynccontextmanager
    async def open_storage(address: str, **options: object) -> AsyncIterator[str]:
        given.append(options)
        yield address

    def open_broker(*args: object, observers: Sequence[Observer], clock: Clock) -> None:
        given.extend(args)
        raise StorageUnusable("that will do")

    monkeypatch.setattr(serve, "open_storage", open_storage)
    monkeypatch.setattr(serve, "open_broker", open_broker)
    monkeypatch.setenv("MQ_NO_LOG", "1")
    flags = [
        "--workers=2",
        "--peers=3",
        "--visibility=0.5",
        "--max-body=1KiB",
        "--no-mover",
        "--no-reaper",
        "--root=/r",
    ]
    flags += ["--group-writable", "--root-owner=4711", "--untested-fs"]
    assert run(*flags) == (2, "mq: that will do\n")
    config = BrokerConfig(
        workers=2,
        peers=3,
        visibility_seconds=0.5,
        mover=False,
        reaper=False,
        max_body=1024,
        awaits_sink=True,
        verify_seconds=604_800,
    )
    trust = {"group_writable": True, "root_owner": 4711, "log": False, "untested": True, "confirmed": None}
    options = {"sharing": Sharing.PEERS, "native": True, **trust}
    assert given == [options, "posix:/r", config]


# As a process

UPLOAD = b"POST /q/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n"
"""The head of a request; the server's 100 shows that it runs."""


@contextmanager
def started(*args: str, program: tuple[str, ...] = ("-m", "mq"), **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = Popen(
        [sys.executable, *program, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT | variables,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Waits for the line that says where it listens."""
    line = process.stderr.readline()
    found = re.fullmatch(
        r"mq (\S+)(?: \([\w, -]+\))? is serving (\S+) \((durable|not durable)\) on (http://\S+)\n", line
    )
    assert found, line + process.stderr.read()
    url = urlsplit(found[4])
    return url.hostname, url.port


def says(process: subprocess.Popen[str], text: str) -> None:
    """Waits for the line of its log in which it says that."""
    assert any(text in line for line in iter(process.stderr.readline, "")), f"it ended, and never said {text}"


def ended(*args: str) -> tuple[int, str, str]:
    """A process that is to end by itself: status, standard output, standard error."""
    with started(*args) as process:
        out, error = process.communicate(timeout=60)
        return process.returncode, out, error


def ask(address: tuple[str, int], method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_stop(temp_root: Path, number: signal.Signals) -> None:
    with started("--port=0", f"--root={temp_root}") as process:
        address = address_of(process)
        assert ask(address, "PUT", "/queue001")[0] == 201
        assert ask(address, "POST", "/queue001/messages", b"kept")[0] == 201
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out == ""
        assert number.name in error
    with started("--port=0", f"--root={temp_root}") as process:
        assert ask(address_of(process), "GET", "/queue001/messages") == (200, b"kept")


@slow
def test_a_stop_finishes_the_request_in_flight(temp_root: Path) -> None:
    with started("--port=0", f"--root={temp_root}") as process:
        address = address_of(process)
        assert ask(address, "PUT", "/q")[0] == 201
        with socket.create_connection(address, timeout=30) as upload:
            upload.sendall(
                b"POST /q/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n"
            )
            assert b"100" in upload.recv(1000)  # it runs
            upload.sendall(b"half")
            process.send_signal(signal.SIGTERM)
            says(process, "SIGTERM")
            upload.sendall(b"half")
            assert b"HTTP/1.1 201" in upload.recv(1000)
        assert process.wait(timeout=60) == 0
    with started("--port=0", f"--root={temp_root}") as process:
        assert ask(address_of(process), "GET", "/q/messages") == (200, b"halfhalf")


@slow
def test_a_second_signal_stops_it_at_once(temp_root: Path) -> None:
    with started("--port=0", f"--root={temp_root}") as process:
        address = address_of(process)
        assert ask(address, "PUT", "/q")[0] == 201
        with socket.create_connection(address, timeout=30) as upload:
            upload.sendall(
                b"POST /q/messages HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 8\r\n\r\n"
            )
            assert b"100" in upload.recv(1000)
            process.send_signal(signal.SIGTERM)
            says(process, "SIGTERM")
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=5) == 128 + signal.SIGINT  # the upload alone would hold it for longer


@slow
def test_the_longest_body_is_a_setting() -> None:
    with started("--port=0", "--storage=memory:", "--max-body=10") as process:
        address = address_of(process)
        assert ask(address, "PUT", "/q")[0] == 201
        assert ask(address, "POST", "/q/messages", bytes(10))[0] == 201
        status, body = ask(address, "POST", "/q/messages", bytes(11))
        assert status == 413
        assert b"the body of 11 bytes exceeds the maximum of 10 bytes" in body  # told before it was read


def assert_refused(result: tuple[int, str, str], reason: str) -> None:
    status, out, error = result
    assert (status, out) == (2, "")
    assert re.fullmatch(r"mq: [^\n]+\n", error), error
    assert reason in error


@slow
def test_what_does_not_let_it_start_is_one_line_and_2(temp_root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with started("--port=0", f"--root={temp_root}") as process:
        _, port = address_of(process)
        assert_refused(ended("--port=0", f"--root={temp_root}"), "already served")
        assert_refused(ended(f"--port={port}", "--storage=memory:"), f"port {port}: Address already in use")
    assert_refused(ended("--port=0", f"--root={tmp_path}/file"), "Not a directory")
    assert_refused(ended("--port=0", "--storage=nonesuch:"), "nonesuch")
    assert_refused(ended("--port=0", "--storage=memory:", "--peers=1"), 'the storage backend "memory"')
    assert_refused(ended("--address=192.0.2.1", "--insecure", "--storage=memory:"), "cannot listen on 192.0.2.1")
    assert_refused(ended("--visibility=soon"), "visibility must be")


CRASHING = """
import contextlib, trio
from mq import cli
from mq.cli import build, serve
from mq.broker import open_broker

async def crash(asked):
    await asked.wait()
    raise LookupError("the bug")

@contextlib.asynccontextmanager
async def open_crashing(*_, **__):
    asked = trio.Event()

    async def create_queue(*_, **__):
        asked.set()

    async with trio.open_nursery() as nursery, open_broker("memory:") as broker:
        nursery.start_soon(crash, asked)
        broker.create_queue = create_queue
        yield broker

serve.open_broker = open_crashing
cli.main(["--port=0"], prog_name="mq")
"""


@slow
def test_an_unexpected_error_ends_it_with_a_clear_message() -> None:
    with (
        started(program=("-c", CRASHING)) as process,
        socket.create_connection(address_of(process), timeout=30) as client,
    ):
        client.sendall(b"PUT /q HTTP/1.1\r\nHost: localhost\r\n\r\n")
        out, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert "mq is exiting after an unexpected error" in error
    assert "LookupError: the bug" in error
