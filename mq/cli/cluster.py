"""The verb ``cluster``: the nodes of a cluster, whether one of them can be stopped now, and how one is replaced.

It shows the answer of ``GET /-/cluster`` (docs/cluster.md).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from mq.cli.commands import Commands, Duration
from mq.cli.remote import Remote, all_pages, fail, json_option, remote
from mq.cli.terminal import say, say_json, say_table
from mq.client import Client

SIZE: Final = 3
"""Nodes of a cluster."""
ONE_MACHINE: Final = (
    "etcd has a single member: if its disk fails, all queues of the cluster are lost. Run three members on "
    "three machines"
)
ONE_NODE: Final = (
    "only one node is connected: if this node fails, no node will serve the queues. Start the other two nodes"
)
LOOK_SECONDS: Final = 0.25
LINK_REPLIES: Final = "mq.cluster.replies."
"""What a link of a neighbour consumes from (:data:`mq.cluster.link_sessions.REPLIES`)."""
_HEADER: Final = ("NODE", "ROLE", "MEMBER FOR", "LINK TO IT", "ITS LINK", "ANSWERS AFTER")


@click.group("cluster", cls=Commands)
def cluster_command() -> None:
    """Show a cluster's state and manage its nodes."""


@cluster_command.command("status")
@json_option
@remote
def status_command(remote: Remote, as_json: bool) -> None:
    """Show a cluster's nodes, its master and the connections between its nodes, as seen by the node at --url."""
    with remote.client() as client:
        seen = client.cluster()
    if not seen["node"]:
        fail("this daemon is not part of a cluster")
    if as_json:
        say_json(seen)
        return
    say_table(_HEADER, _rows(seen))
    left, served = seen["lease_remaining_seconds"], "served" if seen["is_available"] else "not served"
    lease = "not a member at the moment" if left is None else f"lease: {left:.1f} of {seen['lease_seconds']:g} s left"
    say(
        f"node {seen['node']}: {seen['role']}, {lease}; queues: {seen['queues']}, {served}; term: "
        f"{seen['term']}; failovers since start: {seen['failovers']}"
    )
    _warn([seen])


@cluster_command.command("check")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@remote
def check_command(remote: Remote, urls: Sequence[str]) -> None:
    """Check whether the nodes can be stopped one at a time, for example for an upgrade.

    Specify the URLs of all three nodes, because each node knows only about its own connections. If the queues remain
    available while one node is stopped, the command prints the order in which to stop the nodes and exits with status
    0. Otherwise, it prints the reasons and exits with status 1.
    """
    seen = []
    for url in urls or (remote.access.url,):
        with remote._replace(access=dataclasses.replace(remote.access, url=url)).client() as client:
            seen.append(client.cluster())
    _warn(seen)
    reasons = list(dangers(seen))
    for reason in reasons:
        say(reason)
    if reasons:
        fail("it is not safe to stop a node now. Solve these problems first")
    nodes = seen[0]["nodes"]
    mirrors, master = ", ".join(node["name"] for node in nodes if not node["is_master"]), nodes[0]["name"]
    say(
        f"it is safe to stop the nodes one at a time, in this order: {mirrors}, then the master {master}. Run this "
        "check again before you stop each node"
    )


@cluster_command.command("drain")
@click.option(
    "--wait",
    type=Duration(),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the node to be drained.",
)
@click.option(
    "--close-after",
    type=Duration(),
    default="10s",
    show_default=True,
    metavar="DURATION",
    help=(
        "Time after which the remaining AMQP connections are closed, so that their clients reconnect to another node."
    ),
)
@click.option("--resume", is_flag=True, help="End the drain and accept clients again.")
@remote
def drain_command(remote: Remote, wait: float, close_after: float, resume: bool) -> None:
    """Drain the node at --url so that it can be stopped.

    If the node is the master, it first hands that role over to another node. The drained node refuses new clients, and
    its remaining connections are closed so that the clients reconnect to other nodes. The command exits with status 0
    once another node serves the queues and no AMQP clients are connected to the drained node. If the time given with
    --wait passes first, the command exits with status 1.
    """
    with remote.client() as client:
        if resume:
            seen = client.drain_node(resume=True)
            say(f"node {seen['node']} is accepting clients again")
            return
        node = client.drain_node()["node"]
        began = time.monotonic()
        while reasons := list(_left(client)):
            passed = time.monotonic() - began
            if passed >= wait:
                for reason in reasons:
                    say(reason)
                fail(
                    f"node {node} was not drained within {wait:g} s. If you stop it now, open connections will be lost"
                )
            if passed >= close_after:
                for id in _clients(client):
                    client.close_connection(id)
            time.sleep(LOOK_SECONDS)
        own = client.cluster()["own_queues"]
        say(f"node {node} is drained and can be stopped")
        if own:
            say(f"queues stored only on this node (unavailable while the node is stopped): {own}")


@cluster_command.command("replace")
@click.argument("node")
@click.argument("address", metavar="HOST:PORT")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@remote
def replace_command(remote: Remote, node: str, address: str, urls: Sequence[str]) -> None:
    """Replace a lost node with a new machine.

    NODE is the name of the lost node; the new machine takes over this name. HOST:PORT is the AMQP address of the new
    machine. Specify the URLs of the other two nodes, so that both nodes connect to the new address. The command prints
    the cluster file for the new machine.
    """
    clients = urls or (remote.access.url,)
    places: dict[str, str] = {}
    names = set()
    for url in clients:
        with remote._replace(access=dataclasses.replace(remote.access, url=url)).client() as client:
            seen = client.replace_node(node, address)
        names.add(seen["node"])
        places |= {link["node"]: link["address"] for link in seen["links"] if link["node"]}
    others = sorted(name for name in places if name != node)
    if len(names) < SIZE - 1 or len(others) < SIZE - 1:
        fail(
            f"only node {' and '.join(sorted(names))} knows the new machine's address. Specify the URLs of the "
            "two nodes that stay in the cluster"
        )
    say(f"# Nodes {' and '.join(sorted(names))} now connect to {node} at {address}.")
    say("# Cluster file for the new machine; copy coordinator, password_file and the other settings from another node.")
    say(f'name = "{node}"')
    for number, other in enumerate(others, 1):
        say(f'neighbor_{number} = "{places[other]}"')


def _left(client: Client) -> Iterator[str]:
    """What a node that is drained still has, a line each; none where it can be stopped."""
    seen = client.cluster()
    if seen["role"] == "master":
        yield f"node {seen['node']} is still serving the queues"
    elif not seen["is_available"]:
        yield "no node is serving the queues yet"
    elif seen["role"] == "alone":
        yield f"node {seen['node']} is not a member at the moment"
    if count := len(_clients(client)):
        yield f"clients still connected over AMQP: {count}"


def _clients(client: Client) -> list[str]:
    """The connections over AMQP but for the links of the cluster's nodes."""
    links = {
        each["connection"]
        for each in all_pages(client.consumers, "consumers")
        if each["queue"].startswith(LINK_REPLIES)
    }
    found = (each for each in all_pages(client.connections, "connections") if each["protocol"] == "amqp")
    return [each["id"] for each in found if each["id"] not in links and each["state"] == "open"]


def _warn(seen: Sequence[Mapping[str, Any]]) -> None:
    """Say what no stopping of a node changes: that one machine has all of it."""
    if any(each["voters"] == 1 for each in seen):
        say(f"WARNING: {ONE_MACHINE}", err=True)
    if any(len(each["nodes"]) == 1 for each in seen):
        say(f"WARNING: {ONE_NODE}", err=True)


def dangers(seen: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The reasons against stopping a node, a line each; none where its queues would go on."""
    asked = {each["node"] for each in seen}
    for each in seen:
        yield from _dangers_at(each)
    if asked != {""} and len(asked) < SIZE:
        yield (
            f"only {len(asked)} of {SIZE} nodes were checked ({', '.join(sorted(asked))}). Specify the URLs "
            "of all nodes"
        )
    if len({each["term"] for each in seen}) > 1:
        yield "the nodes are not in the same term: a new master is being elected"


def _dangers_at(each: Mapping[str, Any]) -> Iterator[str]:
    node, left, whole = each["node"], each["lease_remaining_seconds"], each["lease_seconds"]
    if not node:
        yield "one of these daemons is not part of a cluster"
        return
    members = [member["name"] for member in each["nodes"]]
    if len(members) < SIZE:
        yield f"node {node} sees {len(members)} of {SIZE} nodes: {', '.join(members) or 'none'}"
    if not each["is_available"]:
        yield f"node {node} does not see a node that is serving the queues"
    if left is None or left < whole / 2:
        yield f"the lease of node {node} ends in {left or 0:.1f} of {whole:g} s: etcd is slow"
    for link in each["links"]:
        neighbor = f"{link['node'] or 'its neighbor'} at {link['address']}"
        if not link["is_up"]:
            yield f"node {node} cannot reach {neighbor}"
        elif link["latency_seconds"] > whole:
            yield f"node {node} has to wait {link['latency_seconds']:.1f} s for a response from {neighbor}"
        if not link["is_inbound_up"]:
            yield f"{neighbor} cannot reach node {node}"


def _rows(seen: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    members = {member["name"]: member for member in seen["nodes"]}
    links = {link["node"] or link["address"]: link for link in seen["links"]}
    for name in [*members, *(name for name in links if name not in members)]:
        member, link = members.get(name), links.get(name)
        role = "not a member" if member is None else _role(member)
        since = "-" if member is None else f"{member['uptime_seconds']:.0f}s"
        yield (name, role, since, *_shown(link))


def _role(member: Mapping[str, Any]) -> str:
    role = "master" if member["is_master"] else "mirror"
    return f"{role}, drained" if member["is_draining"] else role


def _shown(link: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if link is None:
        return "-", "-", "-"
    lag = link["latency_seconds"]
    up, heard = ("up" if link[key] else "down" for key in ("is_up", "is_inbound_up"))
    return up, heard, "-" if lag is None else f"{lag * 1000:.0f}ms"
