"""What README and other pages show is what happens: their blocks are pasted in order, in one shell, on one root."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documents import blocks, commands, fences, mask
from tests.shell import Shell, write_program

TREE = Path(__file__).resolve().parent.parent
README, CELERY = TREE / "README.md", TREE / "docs" / "celery.md"
SESSIONS = {
    "tutorial": (16, pytest.mark.in_turn(2)),
    "backup": (8, pytest.mark.in_turn(2)),
    "web-frameworks": (2, pytest.mark.proof),
    "embedding": (2, pytest.mark.proof),
    "javascript": (1, (pytest.mark.proof, pytest.mark.skipif(shutil.which("node") is None, reason="needs node"))),
    "go": (1, (pytest.mark.proof, pytest.mark.skipif(shutil.which("go") is None, reason="needs go"))),
}
"""Pages that are one session; how many of their commands show what they print, at the least; how they are run."""
SHOWN_ADDRESS, SHOWN_ROOT = "127.0.0.1:8080", "/tmp/mq"
PATIENCE_SECONDS = 60
LOOKS = ("ls", "cat")
"""Commands that only look: what they show may come a moment after the answer (delivery)."""

slow = pytest.mark.slow


@pytest.fixture
def shell(free_port: int, temp_root: Path, tmp_path: Path) -> Iterator[Shell]:
    """Only the port and the root are others than the pages say; those of AMQP's port would meet other tests."""
    here = {"MQ_PORT": str(free_port), "MQ_AMQP_PORT": "0", "MQ_ROOT": str(temp_root)}
    here |= {"MQ_URL": f"http://127.0.0.1:{free_port}", "MQ_PATIENCE": str(PATIENCE_SECONDS)}
    with Shell(tmp_path, here) as shell:
        yield shell


def moved(text: str, port: int, root: Path) -> str:
    return text.replace(SHOWN_ADDRESS, f"127.0.0.1:{port}").replace(SHOWN_ROOT, str(root))


def looked(shell: Shell, command: str, printed: str) -> str:
    """What a command prints; one that only looks is asked again until it sees what it should, or for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        out = shell.paste(command).out
        if not command.startswith(LOOKS) or mask(out) == mask(printed) or time.monotonic() > deadline:
            return out
        time.sleep(0.05)  # real time: another process delivers


@slow
def test_readme_can_be_pasted(shell: Shell, free_port: int, temp_root: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    # What `make run` leaves, apart from its daemon: a folder with programs. A test of its own runs it.
    (tmp_path / ".venv").mkdir()
    (tmp_path / "programs").rename(tmp_path / ".venv" / "bin")
    (tmp_path / "programs").mkdir()
    write_program(tmp_path / "programs" / "make", f'echo "make $*" >> {asked}')
    make, use = blocks(README, "sh")
    assert fences(README) == ["sh", "sh"]

    assert shell.paste(make).status == 0
    assert asked.read_text() == "make run\nmake test\n"

    path, send, look, receive = moved(use, free_port, temp_root).splitlines()
    assert shell.paste(f"{path}\nmq &").status == 0
    sent = shell.paste(send)
    assert sent.status == 0
    assert looked(shell, look, sent.out) == sent.out
    assert shell.paste(receive) == (0, "hello\n")


def test_readme_shows_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join(README.read_text().splitlines()[:25])
    assert "make run " in first_screen
    assert "make test " in first_screen
    assert "git make python3-venv" in first_screen


def test_readme_has_a_table_of_six_links() -> None:
    table = README.read_text().partition("| I want to |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) == 6
    assert all("](" in row for row in rows)


def test_the_readme_fits_a_screen() -> None:
    assert len(README.read_text().splitlines()) <= 80


@slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("page", [pytest.param(page, marks=marks) for page, (_, marks) in SESSIONS.items()])
def test_a_page_that_is_a_session_happens(page: str, shell: Shell, free_port: int, temp_root: Path) -> None:
    path, seen = TREE / "docs" / f"{page}.md", 0
    for language, block in zip(fences(path), blocks(path), strict=True):
        text = moved(block, free_port, temp_root)
        if language == "sh":
            assert shell.paste(text).status == 0, shell.errors
        elif language == "console":
            for command, printed in commands(text):
                assert mask(looked(shell, command, printed)) == mask(printed), f"{command}\n{shell.errors}"
                seen += 1
    assert seen >= SESSIONS[page][0]
    assert "Traceback" not in shell.errors


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_make_run_sets_everything_up_and_serves(tmp_path: Path, free_port: int, temp_root: Path) -> None:
    """With what is in git, and the network."""
    tree = tmp_path / "clone"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, capture_output=True, check=True, text=True).stdout
    for name in listed.split("\0")[:-1]:
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(TREE / name, target)
    here = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys._base_executable}
    here |= {"MQ_PORT": str(free_port), "MQ_AMQP_PORT": "0", "MQ_ROOT": str(temp_root)}
    log = tmp_path / "log"
    with log.open("wb") as output:
        made = subprocess.Popen(
            ["make", "run"], cwd=tree, env=here, stdout=output, stderr=output, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 500
        while subprocess.run(["curl", "-sf", f"http://127.0.0.1:{free_port}/-/ready"], capture_output=True).returncode:
            assert made.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)  # real time: another program installs
    finally:
        os.killpg(made.pid, signal.SIGTERM)
        made.wait(timeout=60)
    assert (tree / ".venv" / "bin" / "mq").exists()


@slow
def test_celery_and_pika_work_as_their_page_says(free_port: int, temp_root: Path, tmp_path: Path) -> None:
    here = {"MQ_PORT": "0", "MQ_AMQP_PORT": str(free_port), "MQ_ROOT": str(temp_root)}
    printed = []
    with Shell(tmp_path, here) as shell:
        write_program(tmp_path / "programs" / "celery", f'exec {sys.executable} -m celery "$@"')
        for block in blocks(CELERY, "sh"):
            answer = shell.paste(block.replace("127.0.0.1:5672", f"127.0.0.1:{free_port}"))
            assert answer.status == 0, shell.errors
            printed.append(answer.out)
    assert "42" in printed[-2].splitlines()  # beside what the worker says
    assert "b'hello'" in printed[-1].splitlines()
