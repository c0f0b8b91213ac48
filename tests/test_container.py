"""The container's file and compose's: what they say fits mq, and each step does its work here, without Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from mq.settings import LINES
from tests.shell import write_program

TREE = Path(__file__).resolve().parent.parent
FOLDER = TREE / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text()
PATIENCE_SECONDS = 60
LARGEST_BYTES = 60 << 20
"""What the image may add to its base."""


def instructions(name: str) -> list[str]:
    """What follows that word, line by line."""
    return re.findall(rf"^{name} (.+)$", TEXT, re.MULTILINE)


def service() -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]["mq"]
    return found


def image_environment() -> dict[str, str]:
    (line,) = instructions("ENV")
    return dict(pair.split("=", 1) for pair in shlex.split(line))


def test_it_is_not_root_and_its_root_is_a_volume() -> None:
    last = TEXT.rpartition("\nFROM ")[2]
    assert "\nUSER mq\n" in last
    assert "\nVOLUME /var/lib/mq\n" in last
    assert image_environment()["MQ_ROOT"] == "/var/lib/mq"
    assert "queues:/var/lib/mq" in service()["volumes"]


def test_each_variable_is_a_setting() -> None:
    names = {name for name in {**image_environment(), **service()["environment"]} if name.startswith("MQ_")}
    assert names <= {line.variable for line in LINES}
    assert len(names) == 4


def test_only_this_machine_gets_to_what_asks_nobody_for_a_name() -> None:
    assert service()["environment"]["MQ_INSECURE"] == "true"
    assert all(port.startswith("127.0.0.1:") for port in service()["ports"])


def test_what_the_steps_read_is_let_in() -> None:
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {line[2:] for line in ignored if line.startswith("!/")}
    assert ignored[0] == "*"
    assert all((TREE / path).exists() for path in let_in)
    read = set(re.findall(r"/src/([\w/.-]+)", TEXT))
    assert all(any(path == each or path.startswith(f"{each}/") for each in let_in) for path in read)
    # All that the wheels are built from: the packages, and what pyproject.toml names.
    assert {"mq", "mq-client", "pyspark_mq", "pyproject.toml", "README.md", "LICENSE", "tools"} <= let_in


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_its_steps_build_install_and_serve(tmp_path: Path, free_port: int) -> None:
    """All but the user, whom this machine is not given, and the address, which is this machine's own."""
    installed = tmp_path / "opt"
    source = tmp_path / "src"
    let_in = [line[2:] for line in (FOLDER / "Dockerfile.dockerignore").read_text().splitlines() if line[:2] == "!/"]
    listed = subprocess.run(["git", "ls-files", *let_in], cwd=TREE, capture_output=True, text=True, check=True)
    for name in listed.stdout.splitlines():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((TREE / name).read_bytes())
    here = {"/src": str(source), "/opt/mq": str(installed), "/var/lib/mq": str(tmp_path / "root")}

    def moved(text: str) -> str:
        for path, other in here.items():
            text = text.replace(path, other)
        return text

    steps = instructions("RUN")[:3]
    assert "compileall" in steps[-1]
    programs = tmp_path / "programs"
    programs.mkdir()
    write_program(programs / "pip", f'exec {sys.executable} -m pip "$@"')
    write_program(programs / "python", f'exec {sys.executable} "$@"')
    for step in steps:
        path = f"{programs}:{os.environ['PATH']}"
        subprocess.run(["sh", "-ec", moved(step)], env={**os.environ, "PATH": path}, check=True, timeout=300)
    assert sum(path.stat().st_size for path in installed.rglob("*") if path.is_file()) < LARGEST_BYTES

    environment = {name: moved(value) for name, value in image_environment().items()} | service()["environment"]
    environment |= {"MQ_PORT": str(free_port), "MQ_AMQP_PORT": "0", "MQ_ADDRESS": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    (entry,) = instructions("ENTRYPOINT")
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (.+)$", TEXT, re.MULTILINE)
    bare = [sys._base_executable, "-S"]
    healthy = [*bare, *json.loads(check.replace("8080", str(free_port)))[1:]]
    assert subprocess.run(healthy, env=environment, capture_output=True).returncode != 0
    with subprocess.Popen([*bare, *json.loads(entry)[1:]], env=environment, cwd=tmp_path) as daemon:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS  # real time: another process starts
            while subprocess.run(healthy, env=environment, capture_output=True).returncode and daemon.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert told(free_port, "mq") == 201
            assert told(free_port, "evil.example") == 421
        finally:
            daemon.terminate()
    assert daemon.returncode == 0


def told(port: int, host: str) -> int:
    """The status of making a queue, asked for by that name."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/q", method="PUT", headers={"Host": f"{host}:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
