"""Frameworks for Python above the clients: FastStream, dramatiq, nameko, taskiq, unmodified; each in a program of its
own, from a virtual environment that nothing else uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.amqp.clients.servers import Server

pytestmark = [pytest.mark.slow, pytest.mark.proof, pytest.mark.timeout(400)]

PROGRAMS: Final = Path(__file__).parent / "programs"
INSTALL_SECONDS: Final = 300
WAIT_SECONDS: Final = 90
SEEN: Final[dict[str, dict[str, Any]]] = {
    "faststream": {"inOrder": True, "reply": 42, "tries": 2, "topics": ["news.here"]},
    "dramatiq": {"retried": True, "delayed": True, "added": True, "tries": 3, "late": True, "dead": 1},
    "nameko": {
        "doubled": list(range(0, 40, 2)),
        "async": [0, 2, 4, 6, 8],
        "failed": "ValueError as asked",
        "heard": True,
    },
    "taskiq": {"added": True, "late": True},
}
"""What each program says, but for the text of what it logs."""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has them."""
    folder = tmp_path_factory.mktemp("frameworks")
    wanted = str(PROGRAMS / "requirements.txt")
    found = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, env=_environment())
        if done.returncode != 0:
            pytest.skip(f"the frameworks are not to be had here: {done.stderr[-300:]}")
    return found


@pytest.mark.parametrize("name", SEEN)
def test_what_programs_do_with_it(server: Server, python: Path, queue: str, name: str) -> None:
    url = f"amqp://guest:guest@127.0.0.1:{server.port}/"
    command = [str(python), str(PROGRAMS / f"talk_{name}.py"), url, queue]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, env=_environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == SEEN[name]


def _environment() -> dict[str, str]:
    """Without what leads to mq and to its own environment."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
