"""Compose's file for three nodes: what it says fits mq and etcd, and its services find each other, without Docker."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml

from mq.client import Client, ClientError
from mq.settings import LINES
from mq.testing.ports import HeldPort
from tests.test_container import image_environment

FOLDER: Final = Path(__file__).resolve().parent.parent / "deploy" / "docker"
FILE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "cluster.yaml").read_text())
SERVICES: Final[dict[str, dict[str, Any]]] = FILE["services"]
NODES: Final = [name for name in SERVICES if name.startswith("mq-")]
MEMBERS: Final = [name for name in SERVICES if name.startswith("etcd-")]
PATIENCE_SECONDS: Final = 90


def test_there_are_three_of_each_and_each_has_a_disk_of_its_own() -> None:
    assert (len(NODES), len(MEMBERS)) == (3, 3)
    places = [volume.split(":") for name in SERVICES for volume in SERVICES[name]["volumes"]]
    assert sorted(name for name, _ in places) == sorted(FILE["volumes"])
    assert {place for _, place in places} == {"/var/lib/mq", "/var/lib/etcd"}


def test_each_variable_is_a_setting() -> None:
    for name in NODES:
        assert set(SERVICES[name]["environment"]) <= {line.variable for line in LINES}


def test_each_node_names_itself_and_the_two_others() -> None:
    for name in NODES:
        environment = SERVICES[name]["environment"]
        assert f"mq-{environment['MQ_NODE']}" == environment["MQ_HOSTS"] == name
        assert environment["MQ_NEIGHBORS"].split(",") == [f"{other}:5672" for other in NODES if other != name]


def test_each_member_names_itself_and_all() -> None:
    for name in MEMBERS:
        environment, letter = SERVICES[name]["environment"], name[-1]
        assert SERVICES[name]["command"] == ["etcd", f"--name={letter}"]
        assert f"{letter}={environment['ETCD_INITIAL_ADVERTISE_PEER_URLS']}" in environment["ETCD_INITIAL_CLUSTER"]
        assert environment["ETCD_ADVERTISE_CLIENT_URLS"] in SERVICES[NODES[0]]["environment"]["MQ_COORDINATOR"]


def test_only_this_machine_gets_in_and_nobody_is_root() -> None:
    ports = [port for name in SERVICES for port in SERVICES[name].get("ports", [])]
    assert len({port.rpartition(":")[0] for port in ports}) == 6
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert all(service["cap_drop"] == ["ALL"] for service in SERVICES.values())
    assert "\nUSER etcd\n" in SERVICES["etcd-a"]["build"]["dockerfile_inline"]
    (secret,) = SERVICES["mq-a"]["secrets"]
    assert f"--uid {secret['uid']} " in (FOLDER / "Dockerfile").read_text()
    assert secret["mode"] == 0o400


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd")
def test_its_services_are_a_cluster(tmp_path: Path) -> None:
    """All but the users and the images. A service's name and port are a port of this machine's here."""
    wanted = [(name, port) for name in SERVICES for port in ((2379, 2380) if name in MEMBERS else (8080, 5672))]
    ports = {each: HeldPort() for each in wanted}
    (tmp_path / "password").write_text("a secret\n")

    def here(name: str, text: str) -> str:
        text = re.sub(r"([\w.-]+):(\d{4})\b", lambda found: place(name, found[1], int(found[2])), text)
        return text.replace("/run/secrets/cluster", str(tmp_path / "password"))

    def place(name: str, host: str, port: int) -> str:
        return f"127.0.0.1:{ports[host if host in SERVICES else name, port]}"

    with contextlib.ExitStack() as stack:
        for name in SERVICES:
            environment = {key: here(name, str(value)) for key, value in SERVICES[name]["environment"].items()}
            stack.enter_context(served(name, environment, ports, tmp_path))
        urls = [f"http://127.0.0.1:{ports[name, 8080]}" for name in NODES]
        with Client(urls[0]) as first, Client(urls[2]) as last:
            patiently(lambda: first.create_queue("orders", store="cluster"))
            id = patiently(lambda: last.publish("orders", b"hello").id)
            message = patiently(lambda: first.fetch("orders", wait=5))
            assert message is not None
            assert (message.id, message.body) == (id, b"hello")
        shown = httpx.get(f"{urls[1]}/-/cluster").json()
        assert {node["name"] for node in shown["nodes"]} == {"a", "b", "c"}


@contextlib.contextmanager
def served(
    name: str, environment: dict[str, str], ports: dict[tuple[str, int], HeldPort], folder: Path
) -> Iterator[None]:
    """A service's process, until the block ends."""
    command: list[str] = SERVICES[name].get("command", [sys.executable, "-m", "mq"])
    own = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    if name in NODES:
        own |= image_environment() | {"MQ_ROOT": str(folder / name), "MQ_ADDRESS": "127.0.0.1"}
        own |= {"MQ_PORT": str(ports[name, 8080]), "MQ_AMQP_PORT": str(ports[name, 5672])}
        own["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    else:
        environment["ETCD_DATA_DIR"] = str(folder / name)
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, env={**own, **environment}, cwd=FOLDER, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def patiently(ask: Any) -> Any:
    """The answer, once there is one: other processes start."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except ClientError:
            assert time.monotonic() < deadline, "no cluster"
            time.sleep(0.1)  # real time, as above
