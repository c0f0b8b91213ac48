"""amqplib, on Node: another language, another codec."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.amqp.clients.servers import Server
from tests.amqp.clients.test_closing import ready_after_goodbye

pytestmark = pytest.mark.slow

FOLDER: Final = Path(__file__).parent / "node"
WAIT_SECONDS: Final = 110
MESSAGES: Final = 5000
"""Of a kibibyte: more than the kernel takes at once."""


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, and with amqplib as the lock file has it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node is not installed: bash tests/setup-system.sh --yes")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
    command = ["npm", "ci", "--prefer-offline", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WAIT_SECONDS)
    if done.returncode != 0:
        pytest.skip(f"npm has no amqplib, and cannot fetch it: {done.stderr[-300:]}")
    return folder / "talk.mjs"


def test_what_programs_do_with_it(server: Server, program: Path, queue: str) -> None:
    command = ["node", str(program), server.url, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "declared": True,
        "waiting": 200,
        "headers": {"number": 0, "deep": {"list": [1, "x", True]}},
        "persistent": True,
        "inOrder": True,
        "empty": True,
        "big": True,
        "redelivered": [False, True],
        "routed": "here",
        "nothingElse": True,
        "returned": "NO_ROUTE",
        "refused": 404,
    }


@pytest.mark.parametrize("first", ["channel", "connection"])
def test_a_program_that_publishes_and_closes_hears_that_it_is_closed(
    server: Server, program: Path, queue: str, first: str
) -> None:
    """Without closing the channel first, amqplib says goodbye in the midst of what it has been given to send."""
    command = ["node", str(program.parent / "close.mjs"), server.url, queue, str(MESSAGES), first]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"closed": True, "error": None}
    if first == "channel":
        assert ready_after_goodbye(server, queue, MESSAGES) == MESSAGES
