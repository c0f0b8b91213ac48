"""What packages bring beside the program: pages and completions of all that there is, and a package that serves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import click
import pytest

import mq
from mq.cli import VERBS, load_verb
from mq.settings import LINES
from mq.storage.files.posix import load_native
from tests.test_dist import INTERPRETERS

TREE = Path(__file__).resolve().parent.parent
PATIENCE_SECONDS = 60

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    subprocess.run([sys.executable, TREE / "tools" / "manual.py", folder], check=True, timeout=PATIENCE_SECONDS)
    return folder


@slow
def test_each_program_and_each_verb_has_its_page(share: Path) -> None:
    wanted = {"mq", "mq-mover", "mq-reaper", *(f"mq-{verb}" for verb in VERBS)}
    for verb in VERBS:
        command = load_verb(verb)
        if isinstance(command, click.Group):
            wanted |= {f"mq-{verb}-{below}" for below in command.commands}
    assert {path.name.removesuffix(".1.gz") for path in (share / "man" / "man1").iterdir()} == wanted


@slow
@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_shows_the_pages_without_a_warning(share: Path) -> None:
    for name in ("mq", "mq-send", "mq-user-add"):
        page = share / "man" / "man1" / f"{name}.1.gz"
        done = subprocess.run(
            ["man", "--warnings=w", "--local-file", page],
            env={"PATH": os.environ["PATH"], "MANWIDTH": "200", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, "")
        if name == "mq":
            assert all(line.flag in done.stdout and line.variable in done.stdout for line in LINES)
            assert "mq-send(1)" in done.stdout


@slow
def test_the_pages_are_the_same_each_time(share: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, TREE / "tools" / "manual.py", tmp_path], check=True, timeout=PATIENCE_SECONDS)
    files = sorted(path.relative_to(share) for path in share.rglob("*") if path.is_file())
    assert len(files) > 30
    assert all((share / name).read_bytes() == (tmp_path / name).read_bytes() for name in files)


@slow
def test_bash_completes_by_the_script(share: Path, tmp_path: Path) -> None:
    program = tmp_path / "mq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m mq "$@"\n')
    program.chmod(0o755)
    script = share / "bash-completion" / "completions" / "mq"
    typed = f'. {script}; COMP_WORDS=(mq que); COMP_CWORD=1; _mq_completion mq; printf "%s\\n" "${{COMPREPLY[@]}}"'
    here = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(TREE)}
    done = subprocess.run(
        ["bash", "-c", typed], env=here, cwd=TREE, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.stdout.split() == ["queues", "queue"]


# It builds a wheel and downloads what mq needs: `tests/test_dist.py` does the same with each commit.


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("debian"))[0]


def packed(folder: Path, **environment: str) -> tuple[Path, str]:
    """The package, and what its tool has said."""
    command = [sys.executable, TREE / "tools" / "debian.py", folder]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True, timeout=300
    )
    (package,) = folder.glob("mq_*.deb")
    return package, done.stdout


def field(package: Path, name: str) -> str:
    """What its control file says of it."""
    done = subprocess.run(["dpkg-deb", "--field", package, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


needs_compiler = pytest.mark.skipif(
    load_native() is None, reason="mq-native is not compiled here: apt install gcc libc6-dev"
)
needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")


@pytest.mark.proof
@needs_dpkg
@pytest.mark.timeout(600)
def test_the_debian_package_serves_with_nothing_but_python(
    package: Path, tmp_path: Path, free_port: int, temp_root: Path
) -> None:
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "MQ_URL": f"http://127.0.0.1:{free_port}"}
    python, program = sys._base_executable, tmp_path / "usr" / "bin" / "mq"
    command = [python, "-I", program]
    arguments = ["--port", str(free_port), "--amqp-port=0", "--root", str(temp_root)]
    log = tmp_path / "log"
    with log.open("w") as said, subprocess.Popen([*command, *arguments], env=environment, stderr=said) as daemon:
        try:
            until_served(free_port, daemon)
            for verb in ("queue create q", "send q --quiet --message hello", "receive q"):
                done = subprocess.run(
                    [*command, *verb.split()], env=environment, capture_output=True, timeout=PATIENCE_SECONDS
                )
                assert done.returncode == 0, done.stderr
            assert done.stdout == b"hello"
            with urllib.request.urlopen(f"http://127.0.0.1:{free_port}/", timeout=10) as page:
                assert b"/page.js" in page.read()
        finally:
            daemon.terminate()
    assert daemon.returncode == 0
    assert (" (with mq-native) is serving " in log.read_text()) is (field(package, "Architecture") != "all")


@pytest.mark.proof
@needs_dpkg
@needs_compiler
@pytest.mark.timeout(600)
def test_the_debian_package_has_mq_native_for_each_python_of_this_architecture(package: Path, tmp_path: Path) -> None:
    here = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    assert field(package, "Architecture") == here
    assert package.name == f"mq_{mq.__version__}_{here}.deb"
    assert re.fullmatch(r"python3 \(>= 3\.11\), libc6 \(>= 2\.\d+\)", field(package, "Depends"))
    subprocess.run(["dpkg-deb", "--extract", package, tmp_path], check=True)
    (module,) = (tmp_path / "usr" / "lib" / "mq").rglob("*.so")
    assert module.name == "_calls.abi3.so"
    assert str(Path.home()).encode() not in module.read_bytes(), "it says where it was made"
    for python in INTERPRETERS.values():
        command = [python, "-I", tmp_path / "usr" / "bin" / "mq", "--version"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.stdout == f"mq, version {mq.__version__} (with mq-native)\n", python


@pytest.mark.proof
@needs_dpkg
@pytest.mark.timeout(600)
def test_without_a_compiler_the_debian_package_is_for_all_machines(tmp_path: Path) -> None:
    package, said = packed(tmp_path, CC="no-such-compiler")
    assert "without mq-native, as nothing can be compiled here: apt install gcc" in said
    assert package.name == f"mq_{mq.__version__}_all.deb"
    assert (field(package, "Architecture"), field(package, "Depends")) == ("all", "python3 (>= 3.11)")
    listed = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    assert "/mq_native/" not in listed
    assert ".so" not in listed


def until_served(port: int, daemon: subprocess.Popen[bytes]) -> None:
    """Real time: another process starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while daemon.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
                return
        except urllib.error.URLError:
            time.sleep(0.05)
    pytest.fail("the daemon does not serve")


@pytest.mark.proof
@needs_dpkg
@pytest.mark.timeout(600)
def test_the_debian_package_is_reproducible_and_its_scripts_are_shell(package: Path, tmp_path: Path) -> None:
    packed(tmp_path)
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()
    subprocess.run(["dpkg-deb", "--control", package, tmp_path / "control"], check=True)
    for name in ("postinst", "prerm", "postrm"):
        subprocess.run(["sh", "-n", tmp_path / "control" / name], check=True)
    assert (tmp_path / "control" / "conffiles").read_text() == "/etc/default/mq\n"


INSTALL = """
set -e
mount -t tmpfs tmpfs {folder} && mkdir {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
mount -t proc proc {folder}/root/proc && mount -t tmpfs tmpfs {folder}/root/run && mount --bind /dev {folder}/root/dev
cp {package} {folder}/root/root/mq.deb
chroot {folder}/root sh -ec '
    cd /
    dpkg -i --force-depends /root/mq.deb >&2
    grep -c "^mq:" /etc/passwd
    env -i PATH=/usr/bin:/bin mq --version
    man -w mq-send
    systemd-analyze verify /usr/lib/systemd/system/mq.service
    dpkg -P mq >&2
    ls -d /usr/lib/mq /etc/default/mq 2>/dev/null | wc -l
'
"""
"""This machine as it is, below a layer that takes what is written and goes with its namespace."""


@pytest.mark.proof
@pytest.mark.root
@needs_dpkg
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to install in an overlay of this machine")
@pytest.mark.timeout(600)
def test_the_debian_package_is_installed_and_purged(package: Path, tmp_path: Path) -> None:
    script = INSTALL.format(folder=tmp_path, package=package)
    done = subprocess.run(["unshare", "--mount", "bash", "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    user, version, page, left = done.stdout.splitlines()
    assert (user, page, left) == ("1", "/usr/share/man/man1/mq-send.1.gz", "0")
    assert version.startswith(f"mq, version {mq.__version__}")
    assert ("with mq-native" in version) is (field(package, "Architecture") != "all")
