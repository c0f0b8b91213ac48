"""The seed's three daemons as three processes over one root: what each does alone, and all of them together."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path

import inotify_simple
import pytest

from tests.e2e.prepared import Popen

PATIENCE_SECONDS = 30
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Before a command: root too is bound by permissions, then."""
ID = "4ad814ab-213e-11e3-a9a3-0025904f6e08"
Start = Callable[..., subprocess.Popen[bytes]]

pytestmark = pytest.mark.slow


@pytest.fixture
def start(temp_root: Path) -> Iterator[Start]:
    """Starts a program of mq's. At the end, before the root goes, each is told to stop and has to end well."""
    running: list[subprocess.Popen[bytes]] = []

    def start_one(program: str, *arguments: object) -> subprocess.Popen[bytes]:
        process = Popen([Path(sys.executable).with_name(program), *map(str, arguments)])
        running.append(process)
        return process

    try:
        yield start_one
        for process in running:
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        for process in running:
            process.kill()
            process.wait()


def until(true: Callable[[], object]) -> None:
    """Real time: other processes are at work."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    try:
        connection.request(method, path, body)
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.headers.get("x-message-id", "")
    finally:
        connection.close()


def answers(port: int) -> bool:
    try:
        return ask(port, "GET", "/-/live")[0] == 200
    except OSError:
        return False


def lay(root: Path) -> Path:
    for folder in ("new", "queues/queue001", "delay", "remove"):
        (root / folder).mkdir(parents=True)
    return root / "queues" / "queue001" / ID


def test_mover_moves_what_is_there_and_what_comes(start: Start, temp_root: Path) -> None:
    delivered = lay(temp_root)
    (temp_root / "new" / f"queue001:{ID}").write_bytes(b"there")
    start("mq-mover", "--source", temp_root / "new", "--destination", temp_root / "queues")
    until(delivered.exists)
    assert delivered.read_bytes() == b"there"
    delivered.rename(temp_root / "new" / f"queue001:{ID}")
    until(delivered.exists)


def test_mover_waits_for_its_delay(start: Start, temp_root: Path) -> None:
    delivered = lay(temp_root)
    start("mq-mover", "--source", temp_root / "delay", "--destination", temp_root / "queues", "--delay", 1)
    arrived = time.monotonic()
    (temp_root / "delay" / f"queue001:{ID}").write_bytes(b"later")
    until(delivered.exists)
    assert time.monotonic() - arrived >= 1


def test_reaper_unlinks(start: Start, temp_root: Path) -> None:
    lay(temp_root)
    removed = temp_root / "remove" / f"queue001:{ID}"
    removed.write_bytes(b"removed")
    start("mq-reaper", "--source", temp_root / "remove")
    until(lambda: not removed.exists())


def test_mover_and_reaper_say_what_they_leave_alone(
    start: Start, temp_root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is there, and what comes, each name once."""
    delivered = lay(temp_root)
    seen = ""

    def is_told(name: str) -> bool:
        nonlocal seen
        seen += capfd.readouterr().err
        return f"{name}'" in seen

    (temp_root / "new" / "there").touch()
    (temp_root / "remove" / "there").touch()
    start("mq-mover", "--source", temp_root / "new", "--destination", temp_root / "queues")
    start("mq-reaper", "--source", temp_root / "remove")
    for folder in ("new", "remove"):
        until(lambda folder=folder: is_told(f"/{folder}/there"))
        (temp_root / folder / "comes").touch()
        until(lambda folder=folder: is_told(f"/{folder}/comes"))
    (temp_root / "new" / f"queue001:{ID}").write_bytes(b"moves on all the same")
    until(delivered.exists)
    assert seen.count("ignored, not a message") == 4


class Seen:
    """Where messages appear, and when they are unlinked from remove/, in order. Where a rename is not atomic, a move
    unlinks its old name, too: that is passed over."""

    def __init__(self, root: Path) -> None:
        self._notifier = inotify_simple.INotify()
        mask = inotify_simple.flags.CREATE | inotify_simple.flags.MOVED_TO | inotify_simple.flags.DELETE
        self._folders = {
            self._notifier.add_watch(root / folder, mask): folder
            for folder in ("new", "queues/queue001", "delay", "remove")
        }
        self._steps: list[str] = []

    def steps(self, id: str) -> list[str]:
        """Those of one message, whatever its name goes on with."""
        for event in self._notifier.read(timeout=0):
            folder, what = self._folders[event.wd], "-" if event.mask & inotify_simple.flags.DELETE else "+"
            if what == "+" or folder == "remove":
                self._steps.append(f"{what} {folder}/{event.name.partition(',')[0]}")
        return [step for step in self._steps if id in step]

    def close(self) -> None:
        self._notifier.close()


@pytest.fixture
def open_seen() -> Iterator[Callable[[Path], Seen]]:
    with ExitStack() as stack:
        yield lambda root: stack.enter_context(closing(Seen(root)))


def is_open(port: int) -> bool:
    """Whether a daemon without any endpoint for that serves."""
    try:
        return ask(port, "GET", "/nothing")[0] == 404
    except OSError:
        return False


def test_the_seeds_session_to_the_letter(
    start: Start,
    temp_root: Path,
    free_port: int,
    open_seen: Callable[[Path], Seen],
    capfd: pytest.CaptureFixture[str],
) -> None:
    """One program does the work of all, and each step is to be seen in its folder, whoever waits or not."""
    start("mq", "--root", temp_root, "--port", free_port, "--strict", "--visibility", 1)
    until(lambda: is_open(free_port))
    serves = next(line for line in capfd.readouterr().err.splitlines() if " is serving " in line)
    assert "amqp" not in serves

    assert ask(free_port, "PUT", "/queue001", b"of no account")[0] == 201
    assert ask(free_port, "GET", "/queue001")[0] == 200
    seen = open_seen(temp_root)
    assert ask(free_port, "GET", "/queue001/messages")[0] == 204
    status, _, id = ask(free_port, "POST", "/queue001/messages", b"hello")
    assert (status, str(uuid.UUID(id)), uuid.UUID(id).version) == (201, id, 1)
    delivered = ["+ new/queue001:ID", "+ queues/queue001/ID"]
    leased, removed = ["+ delay/queue001:ID"], ["+ remove/queue001:ID", "- remove/queue001:ID"]

    def are(*steps: list[str]) -> bool:
        return seen.steps(id) == [step.replace("ID", id) for step in chain(*steps)]

    until(lambda: are(delivered))
    assert (temp_root / "queues" / "queue001" / id).read_bytes() == b"hello"
    assert ask(free_port, "GET", "/queue001/messages") == (200, b"hello", id)
    assert are(delivered, leased)
    until(lambda: are(delivered, leased, delivered[1:]))  # its timer has ended
    until(lambda: ask(free_port, "GET", "/queue001/messages") == (200, b"hello", id))
    assert ask(free_port, "DELETE", f"/queue001/messages/{id}")[0] == 202
    until(lambda: are(delivered, leased, delivered[1:], leased, removed))
    assert ask(free_port, "GET", "/queue001/messages")[0] == 204

    _, _, unread = ask(free_port, "POST", "/queue001/messages", b"nobody has read this")
    assert ask(free_port, "DELETE", f"/queue001/messages/{unread}")[0] == 202
    until(lambda: seen.steps(unread)[-2:] == [step.replace("ID", unread) for step in removed])
    assert ask(free_port, "DELETE", "/queue001")[0] == 200
    assert ask(free_port, "GET", "/queue001")[0] == 404
    for path in ("/-/live", "/-/queues", "/queue001/purge"):
        assert ask(free_port, "GET", path)[0] == 404
    assert ask(free_port, "HEAD", "/queue001")[0] == 405
    assert [path for path in temp_root.glob("[!s]*/**/*") if path.is_file()] == []


def test_the_seeds_session_of_three_programs_to_the_letter(start: Start, temp_root: Path, free_port: int) -> None:
    """Each folder holds a message for as long as the program that empties it does not run."""
    start("mq", "--root", temp_root, "--port", free_port, "--strict", "--no-mover", "--no-reaper", "--visibility", 1)
    until(lambda: is_open(free_port))
    assert ask(free_port, "PUT", "/queue001")[0] == 201
    _, _, id = ask(free_port, "POST", "/queue001/messages", b"hello")

    def at() -> list[str]:
        found = (path for path in temp_root.glob("[!s]*/**/*") if path.is_file())
        return [str(path.relative_to(temp_root)).partition(",")[0] for path in found]

    assert at() == [f"new/queue001:{id}"]
    start("mq-mover", "--source", temp_root / "new", "--destination", temp_root / "queues")
    until(lambda: at() == [f"queues/queue001/{id}"])
    until(lambda: ask(free_port, "GET", "/queue001/messages") == (200, b"hello", id))
    assert at() == [f"delay/queue001:{id}"]
    start("mq-mover", "--source", temp_root / "delay", "--destination", temp_root / "queues", "--delay", 1)
    until(lambda: at() == [f"queues/queue001/{id}"])
    assert ask(free_port, "DELETE", f"/queue001/messages/{id}")[0] == 202
    assert at() == [f"remove/queue001:{id}"]
    start("mq-reaper", "--source", temp_root / "remove")
    until(lambda: at() == [])


def test_three_daemons_over_one_root(start: Start, temp_root: Path, free_port: int) -> None:
    start(
        "mq", "--root", temp_root, "--port", free_port, "--amqp-port", 0, "--no-mover", "--no-reaper", "--visibility", 1
    )
    until(lambda: answers(free_port))

    assert ask(free_port, "PUT", "/queue001")[0] == 201  # mq alone takes messages: nobody waits for the others
    status, _, id = ask(free_port, "POST", "/queue001/messages", b"hello")
    assert status == 201
    assert [path.name for path in (temp_root / "new").iterdir()] == [f"queue001:{id}"]
    assert ask(free_port, "GET", "/queue001/messages")[0] == 204

    start("mq-mover", "--source", temp_root / "new", "--destination", temp_root / "queues")
    start("mq-mover", "--source", temp_root / "delay", "--destination", temp_root / "queues", "--delay", 1)
    reaper = start("mq-reaper", "--source", temp_root / "remove")
    for _ in range(2):  # the second time it comes back from its lease
        fetched: list[tuple[int, bytes, str]] = []
        until(lambda into=fetched: into.append(ask(free_port, "GET", "/queue001/messages")) or into[-1][0] == 200)
        assert fetched[-1] == (200, b"hello", id)

    assert ask(free_port, "DELETE", f"/queue001/messages/{id}")[0] == 202
    until(lambda: not any((temp_root / "remove").iterdir()))
    assert reaper.poll() is None


@pytest.mark.skipif(bool(UNPRIVILEGED) and shutil.which("setpriv") is None, reason="as root it needs setpriv")
@pytest.mark.parametrize(
    ("folder", "mode", "command"),
    [
        ("", 0o500, "mq --port 0 --root {root}"),
        ("new", 0o000, "mq-mover --source {root}/new --destination {root}/queues"),
        ("queues", 0o500, "mq-mover --source {root}/new --destination {root}/queues"),
        ("remove", 0o500, "mq-reaper --source {root}/remove"),
    ],
)
def test_a_folder_it_may_not_use_is_told_in_one_line(temp_root: Path, folder: str, mode: int, command: str) -> None:
    lay(temp_root) if folder else temp_root.mkdir()
    (temp_root / folder).chmod(mode)
    program, *arguments = command.format(root=temp_root).split()
    refused = subprocess.run(
        [*UNPRIVILEGED, Path(sys.executable).with_name(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    (temp_root / folder).chmod(0o700)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith(f"{program}: cannot ")
    assert str(temp_root / folder) in refused.stderr


def test_the_body_of_a_put_is_discarded(start: Start, free_port: int) -> None:
    start("mq", "--storage", "memory:", "--port", free_port, "--amqp-port", 0)
    until(lambda: answers(free_port))
    assert ask(free_port, "PUT", "/queue001", b"of no importance")[0] == 201
    assert ask(free_port, "GET", "/queue001/messages")[0] == 204
