"""What docs/vsqs.md and the example show is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents import blocks, commands

TREE = Path(__file__).resolve().parents[2]
PAGE = TREE / "docs" / "vsqs.md"

pytestmark = pytest.mark.slow


def masked(text: str) -> str:
    return re.sub(r"\b\d{13}\b", "TIME", text).rstrip("\n")


def run(command: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env={**os.environ, "PATH": path})
    return done.stdout


def test_the_session_shows_what_happens(tmp_path: Path) -> None:
    (session,) = blocks(PAGE, "console")
    published = ""
    for shown, printed in commands(session):
        command = shown.replace("1415776871123", published).replace("/tmp/letters", f"{tmp_path}/letters")
        output = run(command)
        assert masked(output) == masked(printed), shown
        published = output.strip() if "send" in shown else published


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = blocks(PAGE, "python")
    source = program.replace("/tmp/letters", f"{tmp_path}/letters")
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "b'hello'\n"), done.stderr


def test_the_example_reads_what_the_dead_had_received(tmp_path: Path) -> None:
    command = [sys.executable, TREE / "examples" / "letters.py", tmp_path / "letters"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["letter 0 is lost?", "letter 1", "letter 2", "letter 0"]
    assert not list((tmp_path / "letters").iterdir())
