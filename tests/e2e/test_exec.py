"""``mq receive --exec`` ends all that a command has started before its message can come back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from mq.client import Client
from tests.cases import proof
from tests.e2e.daemon import TREE, Daemon
from tests.e2e.prepared import Popen

pytestmark = pytest.mark.slow

PATIENCE_SECONDS: Final = 40.0

WORKER: Final = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else signal.SIG_DFL)
with open("works", "a") as log:
    log.write(f"{os.getpid()}\\n")
time.sleep(60)
"""
"""Works until it is ended, and says that it has begun."""

SUCCESSOR: Final = """
import os
def runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
with open("works") as log:
    left = [pid for pid in map(int, log) if runs(pid)]
with open("succeeded", "w") as log:
    log.write(repr(left))
"""
"""Does the same work after it: says which processes of the first consumer still run."""

COMMANDS: Final = {
    "the shell itself": ("exec WORKER", 1),
    "a shell that starts others": ("WORKER & WORKER | cat; WORKER", 2),
    "a shell with jobs in groups of their own": ("set -m; WORKER & WORKER", 2),
    "processes that ignore SIGTERM": ("trap '' TERM; WORKER stubborn & WORKER stubborn", 2),
    "a process that has left the session": ("setsid WORKER stubborn & wait", 1),
    "an orphan that has left the session": ("(setsid WORKER stubborn &); WORKER", 2),
}
"""What is tried -> a command, and how many processes of it say that they work."""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.create_queue("q")
        yield client


class Consumers:
    """Programs that receive from q, each in the folder `folder`."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.folder = folder
        self._url = f"http://127.0.0.1:{daemon.port}"
        self._running: list[subprocess.Popen[bytes]] = []
        (folder / "worker.py").write_text(WORKER)
        (folder / "successor.py").write_text(SUCCESSOR)
        (folder / "works").touch()

    def start(self, command: str, *flags: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start one with a command, whose words WORKER and SUCCESSOR are those above."""
        for word in ("WORKER", "SUCCESSOR"):
            command = command.replace(word, f"{sys.executable} -SE {word.lower()}.py")
        env = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
        args = [*before, sys.executable, "-m", "mq", "receive", "q", "--url", self._url, *flags, "--exec", command]
        with (self.folder / f"errors{len(self._running)}").open("wb") as log:
            here = {"PYTHONPATH": str(TREE)}
            self._running.append(Popen(args, cwd=self.folder, env=env | here, stderr=log))
        return self._running[-1]

    def works(self) -> list[int]:
        """Processes that have said that they work."""
        return [int(line) for line in (self.folder / "works").read_text().splitlines()]

    def errors(self, number: int = 0) -> str:
        """What a program has said."""
        return (self.folder / f"errors{number}").read_text()

    def kill(self) -> None:
        """End what is left."""
        for process in self._running:
            process.kill()
            process.wait()
        for pid in filter(runs, self.works()):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def consumers(daemon: Daemon, tmp_path: Path) -> Iterator[Consumers]:
    consumers = Consumers(daemon, tmp_path)
    with ExitStack() as stack:
        for number in (signal.SIGHUP, signal.SIGINT):
            if signal.getsignal(number) == signal.SIG_IGN:  # under nohup(1): programs would inherit that
                stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        stack.callback(consumers.kill)
        yield consumers


def until(is_so: Callable[[], object], why: str) -> None:
    """Wait for other processes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, why
        time.sleep(0.02)


def state(pid: int) -> str:
    """The kernel's letter for the state of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def runs(pid: int) -> bool:
    return state(pid) not in ("", "Z", "X")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("an orphan that has left the session", signal.SIGTERM),
        ("a shell that starts others", signal.SIGINT),
        *(proof(name, signal.SIGTERM) for name in COMMANDS if name != "an orphan that has left the session"),
        proof("a shell that starts others", signal.SIGHUP),
    ],
)
def test_no_process_of_a_command_runs_when_its_message_is_given_back(
    name: str, number: signal.Signals, client: Client, consumers: Consumers
) -> None:
    client.publish("q", "x")
    command, count = COMMANDS[name]
    first = consumers.start(command, "--grace", "0.5")
    until(lambda: len(consumers.works()) == count, "the work has begun")
    second = consumers.start("SUCCESSOR", "--wait", "60")
    first.send_signal(number)
    assert first.wait(PATIENCE_SECONDS) == 128 + number
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (consumers.folder / "succeeded").read_text() == "[]", "the same work was done twice at the same time"


@pytest.mark.parametrize("name", ["processes that ignore SIGTERM", proof("a shell that starts others")])
def test_no_process_of_a_command_runs_when_a_lease_ends_that_cannot_be_extended(
    name: str, client: Client, daemon: Daemon, consumers: Consumers
) -> None:
    client.publish("q", "x")
    command, count = COMMANDS[name]
    first = consumers.start(command, "--visibility", "6", "--patience", "0")
    until(lambda: len(consumers.works()) == count, "the work has begun")
    second = consumers.start("SUCCESSOR", "--wait", "60")
    os.kill(daemon.pid, signal.SIGSTOP)  # it answers nothing more, and its clock goes on
    until(lambda: not any(map(runs, consumers.works())), "the work ends, though the daemon says nothing")
    os.kill(daemon.pid, signal.SIGCONT)
    assert first.wait(PATIENCE_SECONDS) in (1, 4)
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (consumers.folder / "succeeded").read_text() == "[]"


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("name", ["processes that ignore SIGTERM", proof("a shell that starts others")])
def test_no_process_of_a_command_runs_when_the_lease_of_a_killed_program_ends(
    name: str, client: Client, consumers: Consumers
) -> None:
    client.publish("q", "x")
    command, count = COMMANDS[name]
    first = consumers.start(command, "--visibility", "12", "--grace", "1")
    until(lambda: len(consumers.works()) == count, "the work has begun")
    first.kill()
    second = consumers.start("SUCCESSOR", "--wait", "60")
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (consumers.folder / "succeeded").read_text() == "[]"


def test_no_process_of_a_command_that_fails_runs_when_its_message_is_given_back(
    client: Client, consumers: Consumers
) -> None:
    client.publish("q", "x")
    gate = consumers.folder / "gate"
    first = consumers.start(f"WORKER & while ! [ -e {gate} ]; do sleep 0.05; done; exit 7", "--retry-delay", "0")
    until(consumers.works, "the work has begun")
    second = consumers.start("SUCCESSOR", "--wait", "60")
    gate.touch()
    assert first.wait(PATIENCE_SECONDS) == 1
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (consumers.folder / "succeeded").read_text() == "[]"


def test_a_process_that_a_command_leaves_behind_goes_on_when_it_has_succeeded(
    client: Client, consumers: Consumers
) -> None:
    client.publish("q", "x")
    first = consumers.start("WORKER & while ! [ -s works ]; do sleep 0.05; done")
    assert first.wait(PATIENCE_SECONDS) == 0
    assert client.queue("q").leased == 0
    assert all(map(runs, consumers.works()))


def test_a_second_signal_does_not_wait_for_the_grace(client: Client, consumers: Consumers) -> None:
    client.publish("q", "x")
    first = consumers.start("trap '' TERM; WORKER stubborn", "--grace", "1000")
    until(consumers.works, "the work has begun")
    first.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1)
    assert client.queue("q").leased == 1, "its work has not ended"
    first.terminate()
    assert first.wait(PATIENCE_SECONDS) == 143
    assert not any(map(runs, consumers.works()))
    assert client.queue("q").ready == 1


def test_a_second_signal_does_not_wait_for_a_daemon_that_is_away(
    client: Client, daemon: Daemon, consumers: Consumers
) -> None:
    client.publish("q", "x")
    first = consumers.start("WORKER", "--patience", "1000", "--visibility", "600")
    until(consumers.works, "the work has begun")
    daemon.kill()
    first.terminate()
    until(lambda: not any(map(runs, consumers.works())), "the work ends")
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1)
    first.terminate()
    assert first.wait(PATIENCE_SECONDS) == 143


def test_a_hangup_that_is_ignored_ends_nothing(client: Client, consumers: Consumers) -> None:
    client.publish("q", "x")
    first = consumers.start("WORKER", before=["nohup"])
    until(consumers.works, "the work has begun")
    first.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(1)
    assert all(map(runs, consumers.works()))


def test_a_command_is_stopped_and_goes_on_together_with_its_program(client: Client, consumers: Consumers) -> None:
    client.publish("q", "x")
    first = consumers.start("WORKER & WORKER", "--visibility", "60")
    until(lambda: len(consumers.works()) == 2, "the work has begun")
    first.send_signal(signal.SIGTSTP)
    until(lambda: state(first.pid) == "T", "Control-Z stops the program")
    until(lambda: [state(pid) for pid in consumers.works()] == ["T", "T"], "and what it has started")
    first.send_signal(signal.SIGCONT)
    until(lambda: [state(pid) for pid in consumers.works()] == ["S", "S"], "they go on")


def test_a_command_does_not_go_on_once_its_lease_has_ended(client: Client, consumers: Consumers) -> None:
    client.publish("q", "x")
    first = consumers.start("WORKER", "--visibility", "1")
    until(consumers.works, "the work has begun")
    first.send_signal(signal.SIGTSTP)
    until(lambda: state(first.pid) == "T", "Control-Z stops the program")
    until(lambda: client.queue("q").ready, "the lease ends")
    second = consumers.start("SUCCESSOR")
    assert second.wait(PATIENCE_SECONDS) == 0
    assert (consumers.folder / "succeeded").read_text() == repr(consumers.works()), "there, but stopped"
    first.send_signal(signal.SIGCONT)
    until(lambda: not any(map(runs, consumers.works())), "it ends")
    assert first.wait(PATIENCE_SECONDS) == 1
    assert "may be processed twice" in consumers.errors()


# The first process of a container

ISOLATED: Final = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


def is_isolated() -> bool:
    """Whether this machine lets us start a process that is the first of its namespace."""
    if shutil.which(ISOLATED[0]) is None or shutil.which("nsenter") is None:
        return False
    return subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode == 0


isolated: Final = pytest.mark.skipif(not is_isolated(), reason="unshare(1) and root make a namespace of processes")


def child(pid: int) -> int:
    found: list[int] = []

    def look() -> bool:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        found[:] = map(int, text.split())
        return len(found) == 1

    until(look, "it has started one")
    return found[0]


def end_an_orphan(pid: int) -> None:
    """Leave an orphan in the namespace of a process, as ``docker exec`` may, and end it once the process has it."""
    before = children(pid)
    inside = ["nsenter", "-t", str(pid), "-p", "sh", "-c", "sh -c 'sleep 1000 > /dev/null 2>&1 &'"]
    subprocess.run(inside, check=True, timeout=PATIENCE_SECONDS)
    until(lambda: children(pid) - before, "the orphan is its child now")
    for orphan in children(pid) - before:
        os.kill(int(orphan), signal.SIGKILL)


def guards(pid: int) -> set[str]:
    """The guard of a receiver, which has other children while it starts."""
    found = set()
    for one in children(pid):
        with contextlib.suppress(OSError):  # has ended
            if b"mq-guard" in Path(f"/proc/{one}/cmdline").read_bytes():
                found.add(one)
    return found


def children(pid: int) -> set[str]:
    return set(Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


@isolated
def test_a_daemon_that_is_the_first_process_reaps_orphans(tmp_path: Path) -> None:
    class Contained(Daemon):
        def _program(self) -> list[str]:
            return [*ISOLATED, *super()._program()]

    with Contained(tmp_path / "root", tmp_path / "log") as daemon:
        inner = child(daemon.pid)
        end_an_orphan(inner)
        until(lambda: not children(inner), "it is reaped")
        os.kill(inner, signal.SIGTERM)
        until(lambda: not runs(inner), "it stops")


@isolated
def test_a_receiver_that_is_the_first_process_reaps_orphans(client: Client, consumers: Consumers) -> None:
    outer = consumers.start("(sleep 0.1 &); (setsid sleep 0.1 &); exec sleep 0.3", "--follow", before=ISOLATED)
    inner = child(outer.pid)
    until(lambda: guards(inner), "its guard has started")
    guard = guards(inner)
    for _ in range(3):
        client.publish("q", "x")
    until(lambda: client.queue("q").ready + client.queue("q").leased == 0, "all are done")
    end_an_orphan(inner)
    until(lambda: children(inner) == guard, "nothing of them is left")
    os.kill(inner, signal.SIGTERM)
    assert outer.wait(PATIENCE_SECONDS) == 143
