"""The manifests for Kubernetes: what they say is in its schemas, holds together, and fits mq."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from mq.cli.node import cluster_of
from mq.settings import LINES, Settings
from mq.testing.ports import HeldPort

TREE: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = TREE / "deploy" / "kubernetes"
MANIFESTS: Final[dict[str, list[dict[str, Any]]]] = {
    file.name: list(yaml.safe_load_all(file.read_text())) for file in FOLDER.glob("*.yaml")
}
PARTS: Final = MANIFESTS["mq.yaml"]
SERVICES: Final = {part["metadata"]["name"]: part["spec"] for part in PARTS if part["kind"] == "Service"}
STATEFUL: Final[dict[str, Any]] = next(part["spec"] for part in PARTS if part["kind"] == "StatefulSet")
POD: Final[dict[str, Any]] = STATEFUL["template"]["spec"]
CONTAINER: Final[dict[str, Any]] = POD["containers"][0]
ENVIRONMENT: Final = {each["name"]: each["value"] for each in CONTAINER["env"] if "value" in each}
VERSIONS: Final = ("1.29", "1.33", "1.37")
PATIENCE_SECONDS: Final = 60


@pytest.mark.proof
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_kubernetes_knows_every_field(name: str, version: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for part in MANIFESTS[name]:
        kubernetes_validate.validate(part, version, strict=True)


def test_services_lead_to_the_pods() -> None:
    labels = STATEFUL["template"]["metadata"]["labels"]
    assert STATEFUL["selector"]["matchLabels"] == labels
    ports = {each["name"] for each in CONTAINER["ports"]}
    for service in SERVICES.values():
        assert service["selector"].items() <= labels.items()
        assert {each["targetPort"] for each in service["ports"]} <= ports
    assert SERVICES[STATEFUL["serviceName"]]["clusterIP"] == "None"


def test_what_is_mounted_is_there() -> None:
    volumes = {each["name"] for each in POD["volumes"]} | {
        each["metadata"]["name"] for each in STATEFUL["volumeClaimTemplates"]
    }
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert set(mounts) == volumes
    for name in ("MQ_ROOT", "MQ_USERS", "MQ_TLS_CERT", "MQ_TLS_KEY"):
        assert any(ENVIRONMENT[name].startswith(f"{path}/") for path in mounts.values())


def test_each_variable_is_a_setting_and_no_service_becomes_one() -> None:
    assert {name for name in ENVIRONMENT if name.startswith("MQ_")} <= {line.variable for line in LINES}
    assert "MQ_PORT" in {line.variable for line in LINES}  # which a Service of that name would set
    assert POD["enableServiceLinks"] is False


def test_a_pod_is_the_images_user_and_may_do_nothing_else() -> None:
    (user,) = re.findall(r"useradd .*--uid (\d+)", (TREE / "deploy/docker/Dockerfile").read_text())
    context = POD["securityContext"]
    assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {int(user)}
    assert context["runAsNonRoot"] is True
    own = CONTAINER["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert STATEFUL["replicas"] == 1  # a root has one owner


def test_three_pods_are_a_cluster_whose_nodes_find_each_other() -> None:
    """The manifest of a cluster: each pod is a node, and its settings name the two others."""
    parts = {(part["kind"], part["metadata"]["name"]): part for part in MANIFESTS["cluster.yaml"]}
    stateful = parts["StatefulSet", "mq"]["spec"]
    pod = stateful["template"]["spec"]
    [container] = pod["containers"]
    own = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert own.keys() - {"MQ_NODE"} <= {line.variable for line in LINES}
    pods = [f"mq-{number}" for number in range(stateful["replicas"])]
    assert len(pods) == 3
    with_namespace = own["MQ_NEIGHBORS"].replace("$(NAMESPACE)", "shop")
    for name in pods:
        config = cluster_of(
            Settings(node=name, neighbors=tuple(with_namespace.split(",")), amqp_port=5672, insecure=True)
        )
        assert config is not None
        hosts = {neighbor.host for neighbor in config.neighbors}
        assert hosts == {f"{other}.{stateful['serviceName']}.shop.svc" for other in pods if other != name}
    assert parts["Service", stateful["serviceName"]]["spec"]["publishNotReadyAddresses"] is True
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert set(mounts) == {
        each["name"] for each in (*pod["volumes"], *(c["metadata"] for c in stateful["volumeClaimTemplates"]))
    }
    for name in ("MQ_ROOT", "MQ_USERS", "MQ_TLS_CERT", "MQ_TLS_KEY", "MQ_CLUSTER", "MQ_CLUSTER_PASSWORD_FILE"):
        assert any(own[name].startswith(f"{path}/") for path in mounts.values())


def test_a_node_of_a_cluster_is_the_same_pod_as_a_daemon_alone() -> None:
    """Probes, rights and limits; only what a cluster adds differs."""
    [stateful] = [part["spec"] for part in MANIFESTS["cluster.yaml"] if part["kind"] == "StatefulSet"]
    pod = stateful["template"]["spec"]
    [container] = pod["containers"]
    for name in ("securityContext", "enableServiceLinks", "terminationGracePeriodSeconds"):
        assert pod[name] == POD[name]
    for name in CONTAINER.keys() - {"env", "volumeMounts"}:
        assert container[name] == CONTAINER[name]
    assert all(each in container["env"] for each in CONTAINER["env"])


@pytest.mark.proof
@pytest.mark.timeout(120)
def test_its_probes_are_answered(tmp_path: Path) -> None:
    """A daemon with the manifest's settings answers them, asked by its address, and nobody else without a name."""
    mq = (sys.executable, "-m", "mq")
    users, certificate, key = (tmp_path / name for name in ("users.toml", "tls/cert.pem", "tls/key.pem"))
    run = {"cwd": TREE, "check": True, "capture_output": True}
    subprocess.run([*mq, "certificate", certificate.parent], **run)
    subprocess.run([*mq, "user", "add", "shop", "--users", users, "--right", "publish=orders"], **run)
    places = {"/etc/mq/users/users.toml": users, "/etc/mq/tls/tls.crt": certificate, "/etc/mq/tls/tls.key": key}
    places["/var/lib/mq/root"] = tmp_path / "root"
    environment = {name: str(places.get(value, value)) for name, value in ENVIRONMENT.items()}
    environment["MQ_HOSTS"] = environment["MQ_HOSTS"].replace("$(NAMESPACE)", "default")
    port = HeldPort("0.0.0.0")
    environment |= {"MQ_ADDRESS": "0.0.0.0", "MQ_PORT": str(port), "MQ_AMQP_PORT": "0"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MQ_")}
    with subprocess.Popen(mq, env={**kept, **environment}, cwd=TREE) as daemon:
        try:
            for name in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = CONTAINER[name]["httpGet"]
                deadline = time.monotonic() + PATIENCE_SECONDS  # real time: another process starts
                while asked(probe["scheme"], port.number, probe["path"]) != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            assert asked("HTTPS", port.number, "/-/queues") == 401
            assert asked("HTTPS", port.number, "/-/live", "mq.default.svc") == 200
            assert asked("HTTPS", port.number, "/-/live", "evil.example") == 421
        finally:
            daemon.kill()


def asked(scheme: str, port: int, path: str, host: str = "127.0.0.1") -> int:
    """The status of a request as a kubelet makes it: no certificate is looked at; 0 where nobody answers."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"{scheme.lower()}://127.0.0.1:{port}{path}", headers={"Host": f"{host}:{port}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS, context=anyone) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except urllib.error.URLError:
        return 0
