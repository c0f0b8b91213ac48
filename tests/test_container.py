"""The container's file and compose's: what they say fits mq, and each step does its work here, without Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml

from mq.settings import LINES
from tests.test_dist import INTERPRETERS

TREE = Path(__file__).resolve().parent.parent
FOLDER = TREE / "deploy" / "docker"
TEXT = (FOLDER / "Dockerfile").read_text().replace("\\\n", "")
BUILD, FINAL = TEXT.split("\n\nFROM ")
PATIENCE_SECONDS = 60
COMPILER = re.compile(r"^RUN apt-get update && apt-get install .* gcc libc6-dev$", re.MULTILINE)
"""The one step that is not made here."""
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
    assert "\nUSER mq\n" in FINAL
    assert "\nVOLUME /var/lib/mq\n" in FINAL
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
    assert {"mq", "pyspark_mq", "pyproject.toml", "README.md", "LICENSE", "tools"} <= let_in


def test_the_compiler_stays_in_its_stage_and_both_are_of_one_system() -> None:
    """What is compiled in one has to fit the Python and the C library of the other."""
    assert COMPILER.search(BUILD)
    assert "apt-get" not in FINAL
    assert [line for line in FINAL.splitlines() if line.startswith("COPY ")] == ["COPY --from=build /opt/mq /opt/mq"]
    first, last = (re.search(r"(python:\S+)", stage) for stage in (BUILD, FINAL))
    assert first is not None
    assert last is not None
    assert first[1] == last[1]


def test_image_has_each_plugin_that_a_cluster_uses() -> None:
    assert {"mq-etcd", "mq-postgres"} <= set(re.findall(r"/src/plugins/([\w-]+)", BUILD))
    assert "-r /src/locked/postgres.txt" in BUILD
    assert "psycopg-binary==" in (TREE / "locked" / "postgres.txt").read_text()


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_its_steps_build_install_and_serve(tmp_path: Path, free_port: int) -> None:
    """All but the user, whom this machine is not given, the compiler, and the address, which is this machine's own."""
    python = the_images_python()
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

    subprocess.run([python, "-m", "venv", tmp_path / "stage"], check=True, timeout=PATIENCE_SECONDS)
    stage = {**os.environ, "PATH": f"{tmp_path}/stage/bin:{os.environ['PATH']}", "MQ_COMPILED_LEVEL": "0"}
    for step in re.findall(r"^RUN (.+)$", COMPILER.sub("", BUILD), re.MULTILINE):
        subprocess.run(["sh", "-ec", moved(step)], env=stage, cwd=tmp_path, check=True, timeout=600)
    assert sum(path.stat().st_size for path in installed.rglob("*") if path.is_file()) < LARGEST_BYTES

    environment = {name: moved(value) for name, value in image_environment().items()} | service()["environment"]
    environment |= {"MQ_PORT": str(free_port), "MQ_AMQP_PORT": "0", "MQ_ADDRESS": "127.0.0.1", "PATH": "/usr/bin:/bin"}
    (entry,) = instructions("ENTRYPOINT")
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (.+)$", TEXT, re.MULTILINE)
    bare = [python, "-S"]
    healthy = [*bare, *json.loads(check.replace("8080", str(free_port)))[1:]]
    assert subprocess.run(healthy, env=environment, capture_output=True).returncode != 0
    log = tmp_path / "log"
    with (
        log.open("w") as said,
        subprocess.Popen([*bare, *json.loads(entry)[1:]], env=environment, cwd=tmp_path, stderr=said) as daemon,
    ):
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS  # real time: another process starts
            while subprocess.run(healthy, env=environment, capture_output=True).returncode and daemon.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert told(free_port, "mq") == 201
            assert told(free_port, "evil.example") == 421
            mapped = Path(f"/proc/{daemon.pid}/maps").read_text()
            assert f"{installed}/mq_native/_calls.abi3.so" in mapped
            assert f"{installed}/mq_broker__mypyc.cpython-" in mapped
        finally:
            daemon.terminate()
    assert daemon.returncode == 0
    assert " (compiled, with mq-native) is serving /" in log.read_text()


def the_images_python() -> str:
    """The interpreter of the image's version, where this machine has it, else the tests' own; one that can compile."""
    (version,) = set(re.findall(r"python:(3\.\d+)", TEXT))
    python = INTERPRETERS.get(version, sys._base_executable)
    asked = "import sysconfig; print(sysconfig.get_path('include'))"
    include = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()
    if shutil.which("gcc") is None or not Path(include, "Python.h").exists():
        pytest.skip("nothing can be compiled here: apt install gcc libc6-dev python3-dev")
    return python


def told(port: int, host: str) -> int:
    """The status of making a queue, asked for by that name."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/q", method="PUT", headers={"Host": f"{host}:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
