"""What the README shows is what happens: its session against a daemon, its example program on its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import blocks, commands, mask

README = Path(__file__).resolve().parent.parent / "README.md"
SHOWN_ADDRESS, SHOWN_ROOT = "127.0.0.1:8080", "/tmp/mq"
PATIENCE_SECONDS = 30
LOOKS = ("ls", "cat")
"""Commands that only look: what they show may come a moment after the answer (delivery)."""

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon(free_port: int, temp_root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon as `make run` starts it, on a port and a root of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mq", "--port", str(free_port), "--amqp-port=0", "--root", str(temp_root)]
    )
    try:
        wait_until_listening(free_port, process)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Real time: another process starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("the daemon does not listen")


def run(command: str, folder: Path) -> str:
    return subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.usefixtures("daemon")
def test_session_shows_what_happens(free_port: int, temp_root: Path, tmp_path: Path) -> None:
    (session,) = blocks(README, "console")
    for shown, printed in commands(session):
        command = shown.replace(SHOWN_ADDRESS, f"127.0.0.1:{free_port}").replace(SHOWN_ROOT, str(temp_root))
        output = run(command, tmp_path)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while shown.startswith(LOOKS) and mask(output) != mask(printed) and time.monotonic() < deadline:
            time.sleep(0.05)
            output = run(command, tmp_path)
        assert mask(output) == mask(printed), shown


def test_example_program_runs(temp_root: Path) -> None:
    (program,) = blocks(README, "python")
    source = program.replace(SHOWN_ROOT, str(temp_root))
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    (printed,) = blocks(README, "text")
    assert done.stdout == printed
