"""By the verbs that an operator types: a node is drained, stopped and replaced; users are made and removed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from mq.testing.ports import HeldPort
from tests.access.files import PASSWORD, TOKEN, write_users
from tests.cluster.daemons import Nodes, three_daemons
from tests.cluster.test_rolling import Publisher, wait_until_safe
from tests.e2e import prepared
from tests.e2e.daemon import Daemon

pytestmark = [
    pytest.mark.slow,
    pytest.mark.proof,  # five starts of a daemon
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed: bash tests/setup-system.sh --yes"),
]


def cluster(nodes: Nodes, verb: str, *arguments: str, at: str = "") -> subprocess.CompletedProcess[str]:
    """A verb of ``mq cluster``; `at` is the node that it is for."""
    where = ("--url", url(nodes, at)) if at else ()
    command = [sys.executable, "-m", "mq", "cluster", verb, *where, *arguments]
    return prepared.run(command, capture_output=True, text=True, timeout=90)


def url(nodes: Nodes, node: str) -> str:
    return f"http://127.0.0.1:{nodes.daemons[node].port}"


def test_a_master_is_drained_stopped_and_replaced_while_clients_go_on(tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running

    with ExitStack() as stack:
        etcd = stack.enter_context(running())
        nodes = stack.enter_context(three_daemons(etcd.endpoints[0], tmp_path))
        lost = nodes.master()
        others = [name for name in "abc" if name != lost]
        assert nodes.ask("a", "PUT", "/q?store=cluster").status_code == 201
        publisher = stack.enter_context(Publisher(nodes))
        wait_until_safe(nodes)
        publisher.leave(lost)
        drained = cluster(nodes, "drain", at=lost)
        assert (drained.returncode, f"node {lost} is drained and can be stopped" in drained.stdout) == (0, True), (
            drained.stderr
        )
        assert nodes.ask(lost, "GET", "/-/ready").status_code == 503
        assert f"{lost}\tmirror, drained" in cluster(nodes, "status", at=others[0]).stdout
        assert nodes.master() in others
        refused = cluster(nodes, "replace", lost, "127.0.0.1:1", *(url(nodes, other) for other in others))
        assert (refused.returncode, f"node {lost} is a member" in refused.stderr) == (1, True)
        nodes.daemons[lost].stop()
        publisher.wait_for_more()

        nodes.wait(lambda: len(nodes.sees(others[0])["nodes"]) == 2)
        port = HeldPort()
        done = cluster(nodes, "replace", lost, f"127.0.0.1:{port}", *(url(nodes, other) for other in others))
        assert done.returncode == 0, done.stderr
        file = tmp_path / "new.toml"
        file.write_text(f'{done.stdout}coordinator = "etcd:{etcd.endpoints[0]}?prefix=/mq"\nlease_seconds = 2\n')
        flags = ("--cluster", str(file), "--amqp-port", str(port))
        nodes.daemons[lost] = stack.enter_context(Daemon(tmp_path / "new", tmp_path / "new.log", *flags))
        wait_until_safe(nodes)

        publisher.leave(others[0])
        nodes.daemons[others[0]].stop()
        nodes.daemons[others[0]].start()  # its file names the old place still
        wait_until_safe(nodes)
        publisher.wait_for_more()
        publisher.__exit__()
        assert publisher.others == [], "each waited for the next master, and none was refused"
        found = []
        while (reply := nodes.ask(lost, "GET", "/q/messages?visibility=600")).status_code == 200:
            found.append(reply.content)
        assert found == publisher.confirmed


def test_a_user_that_is_removed_at_one_node_is_refused_at_the_others(tmp_path: Path) -> None:
    from mq_etcd.testing.cluster import running

    rights = 'publish = ["mq.cluster.requests"]\nconsume = ["mq.cluster.replies.*"]\n'
    text = f'[users.root]\ntokens = ["TOKEN"]\nadminister = ["*"]\n[users.cluster]\npassword = "PASSWORD"\n{rights}'
    users = write_users(tmp_path / "users.toml", text)
    (tmp_path / "token").write_text(TOKEN)
    credentials = ("--cluster", "--credentials", str(tmp_path / "token"))
    with running() as etcd, three_daemons(etcd.endpoints[0], tmp_path, users=users, password=PASSWORD) as nodes:
        nodes.client.headers["authorization"] = f"Bearer {TOKEN}"
        nodes.master()
        assert nodes.ask("a", "PUT", "/orders.new?store=cluster").status_code == 201

        def statuses(token: str) -> dict[str, int]:
            headers = {"authorization": f"Bearer {token}"}
            where = {name: f"{url(nodes, name)}/orders.new/messages" for name in "abc"}
            return {
                name: nodes.client.post(at, content=b"x", headers=headers).status_code for name, at in where.items()
            }

        rights_flags = ("--right", "publish=orders.*", "--right", "consume=orders.*")
        made = user(nodes, "a", "add", "shop", *rights_flags, *credentials)
        assert made.returncode == 0, made.stderr
        token = made.stdout.strip()
        assert statuses(token) == {"a": 201, "b": 201, "c": 201}, "at once, and without SIGHUP"
        nodes.daemons["c"].stop()
        nodes.daemons["c"].start()
        assert statuses(token)["c"] == 201
        removed = user(nodes, "a", "remove", "shop", *credentials)
        assert removed.returncode == 0, removed.stderr
        assert statuses(token) == {"a": 401, "b": 401, "c": 401}
        assert user(nodes, "b", "list", *credentials).stdout == ""


def user(nodes: Nodes, at: str, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A verb of ``mq user`` for the node `at`."""
    command = [sys.executable, "-m", "mq", "user", verb, *arguments, "--url", url(nodes, at)]
    return prepared.run(command, capture_output=True, text=True, timeout=90)
