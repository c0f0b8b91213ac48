"""What README and other pages show is what happens: their blocks are pasted in order, in one shell, on one root."""

from __future__ import annotations

import shutil
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
    "tutorial": (16, ()),
    "backup": (8, ()),
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
def test_the_readme_can_be_pasted(shell: Shell, free_port: int, temp_root: Path, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    # What installing leaves: a folder with programs. That `make setup` makes it is proved by a test of its own.
    (tmp_path / ".venv").mkdir()
    (tmp_path / "programs").rename(tmp_path / ".venv" / "bin")
    (tmp_path / "programs").mkdir()
    write_program(tmp_path / "programs" / "make", f'echo "make $*" >> {asked}')
    install, use, embed = blocks(README, "sh")
    assert fences(README) == ["sh", "sh", "sh"]

    assert shell.paste(install).status == 0
    assert asked.read_text() == "make setup\n"

    serve, send, look, receive = moved(use, free_port, temp_root).splitlines()
    assert shell.paste(serve).status == 0
    sent = shell.paste(send)
    assert sent.status == 0
    assert looked(shell, look, sent.out) == sent.out
    assert shell.paste(receive) == (0, "hello\n")

    (release, program) = moved(embed, free_port, temp_root).split("\n", 1)
    while_it_serves = shell.paste(program)  # in the wrong order: before the daemon lets go
    assert while_it_serves == (1, "")
    told = shell.errors.splitlines()[-1]
    assert told.startswith("letters: root ")
    assert "stop that one" in told
    assert shell.paste(f"{release}\n{program}") == (0, "b'hello again' 1\n")
    assert "Traceback" not in shell.errors


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
def test_the_readmes_first_line_installs(tmp_path: Path) -> None:
    """With what is in git, and the network."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=TREE, capture_output=True, check=True, text=True).stdout
    for name in listed.split("\0")[:-1]:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(TREE / name, target)
    line = blocks(README, "sh")[0] + "mq --version && command -v mq"
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": sys._base_executable}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(tmp_path / ".venv" / "bin" / "mq")


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
