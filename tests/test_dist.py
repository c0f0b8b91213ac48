"""The one file: built here, run by interpreters that have nothing but Python's standard library."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mq
from mq.storage.files.posix import load_native
from tests.cases import proof

TREE = Path(__file__).resolve().parent.parent
MINORS = range(11, 20)
PATIENCE_SECONDS = 60

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def interpreters() -> dict[str, str]:
    """Version -> path, for the Python below this venv and for others that are installed.

    Their names say the version: every process that collects tests would run them all to ask. The scripts that pyenv
    puts into PATH are left out, for they may stand for no Python.
    """
    found = {f"3.{sys.version_info[1]}": sys._base_executable}
    for minor in MINORS:
        path = shutil.which(f"python3.{minor}")
        if path is not None and "shims" not in Path(path).parts:
            found.setdefault(f"3.{minor}", path)
    for path in sorted(map(str, Path.home().glob(".pyenv/versions/3.*/bin/python3"))):
        minor = int(Path(path).parts[-3].split(".")[1])
        if minor in MINORS:
            found.setdefault(f"3.{minor}", path)
    return found


INTERPRETERS = interpreters()
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"
VERSIONS = [version if version == OWN else proof(version) for version in sorted(INTERPRETERS)]


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder / "mq.pyz"


def build(folder: Path) -> None:
    built = subprocess.run(
        [sys.executable, TREE / "tools" / "dist.py", folder], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.fixture
def bare(one_file: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the one file with an empty environment, without site-packages, with a HOME of its own."""
    running: list[subprocess.Popen[str]] = []

    def start(interpreter: str, *arguments: str) -> subprocess.Popen[str]:
        command = [interpreter, "-I", "-S", str(one_file), *arguments]
        environment = {"HOME": str(tmp_path / "home"), "SHIV_ROOT": str(tmp_path / "unpacked")}
        process = subprocess.Popen(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


def request(url: str, method: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method=method), timeout=10) as reply:
        return reply.status, reply.read(), reply.headers["X-Message-Id"]


def wait_until_served(url: str, process: subprocess.Popen[str]) -> None:
    """Real time: another process unpacks itself and starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"ended with {process.returncode}: {process.communicate()[0]}")
        try:
            request(f"{url}/unknown", "GET")
        except urllib.error.HTTPError:
            return
        except urllib.error.URLError:
            time.sleep(0.05)
    pytest.fail("did not serve in time")


@pytest.mark.parametrize("version", VERSIONS)
def test_one_file_serves_with_nothing_but_python(
    bare: Callable[..., subprocess.Popen[str]], free_port: int, temp_root: Path, version: str
) -> None:
    process = bare(INTERPRETERS[version], "--port", str(free_port), "--amqp-port=0", "--root", str(temp_root))
    url = f"http://127.0.0.1:{free_port}"
    wait_until_served(url, process)

    assert request(f"{url}/queue001", "PUT")[0] == 201
    status, _, posted = request(f"{url}/queue001/messages", "POST", b"hello\n")
    assert status == 201
    assert request(f"{url}/queue001/messages", "GET") == (200, b"hello\n", posted)
    assert request(f"{url}/queue001/messages/{posted}", "DELETE")[0] == 202
    assert request(f"{url}/queue001/messages", "GET")[0] == 204

    page = request(f"{url}/", "GET")[1].decode()
    for file in re.findall(r'"(/-/page/[^"]+)"', page):
        assert request(url + file, "GET")[0] == 200
    assert "/page.js" in page

    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 0, output
    assert "Traceback" not in output


def test_one_file_tells_its_version(bare: Callable[..., subprocess.Popen[str]]) -> None:
    process = bare(sys._base_executable, "--version")
    assert process.communicate(timeout=PATIENCE_SECONDS)[0].strip().endswith("0.1.0")


@pytest.mark.skipif(load_native() is None, reason="mq-native is not compiled here: apt install gcc libc6-dev")
@pytest.mark.parametrize("version", VERSIONS)
def test_one_file_takes_mq_native_from_its_python(one_file: Path, tmp_path: Path, version: str) -> None:
    """It brings none: it is for every machine."""
    shutil.copytree(Path(str(importlib.import_module("mq_native").__file__)).parent, tmp_path / "site" / "mq_native")
    environment = {"HOME": str(tmp_path), "SHIV_ROOT": str(tmp_path / "unpacked"), "PYTHONPATH": str(tmp_path / "site")}
    command = [INTERPRETERS[version], "-S", str(one_file), "--version"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == f"mq, version {mq.__version__} (with mq-native)\n", done.stderr


def test_one_file_has_the_plugin_for_etcd(bare: Callable[..., subprocess.Popen[str]]) -> None:
    """The plugin itself refuses an address that makes no sense."""
    process = bare(sys._base_executable, "--port=0", "--amqp-port=0", "--storage", "etcd:ftp://x")
    said = process.communicate(timeout=PATIENCE_SECONDS)[0]
    assert process.returncode == 2, said
    assert "ftp://x" in said.splitlines()[-1]
    assert "unknown storage backend" not in said


def test_one_file_has_the_verbs(bare: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = bare(sys._base_executable, "vsqs", "size", str(tmp_path))
    assert process.communicate(timeout=PATIENCE_SECONDS)[0].splitlines()[-1] == "0"


@pytest.mark.in_turn(3)
def test_one_file_is_reproducible(one_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mask = os.umask(0o027)
    try:
        build(tmp_path / "again")
    finally:
        os.umask(mask)
    assert (tmp_path / "again" / "mq.pyz").read_bytes() == one_file.read_bytes()
