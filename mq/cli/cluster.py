"""The verb ``cluster``: the nodes of a cluster, and whether one of them can be stopped now.

It shows the answer of ``GET /-/cluster`` (docs/cluster.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from mq.cli.remote import Remote, fail, json_option, print_json, print_table, remote

SIZE: Final = 3
"""Nodes of a cluster."""
ONE_MACHINE: Final = (
    "etcd has one member: when its disk is lost, so are all queues of the cluster. Run three members, on three machines"
)
ONE_NODE: Final = "one node is a member: when it is lost, nobody serves the queues. Start the two others"
_HEADER: Final = ("NODE", "ROLE", "MEMBER FOR", "LINK TO IT", "ITS LINK", "ANSWERS AFTER")


@click.group("cluster")
def cluster_command() -> None:
    """Show a cluster, or check whether a node can be stopped."""


@cluster_command.command("status")
@json_option
@remote
def status_command(remote: Remote, as_json: bool) -> None:
    """Show the nodes, the master and the links, as one node sees them."""
    with remote.client() as client:
        seen = client.cluster()
    if not seen["node"]:
        fail("this daemon is in no cluster")
    if as_json:
        print_json(seen)
        return
    print_table(_HEADER, _rows(seen))
    left, served = seen["lease_left_seconds"], "served" if seen["is_served"] else "not served now"
    lease = "no member now" if left is None else f"{left:.1f} of {seen['lease_seconds']:g} s of its lease left"
    click.echo(
        f"node {seen['node']}: {seen['role']}, {lease}; queues: {seen['queues']}, {served}; term: {seen['term']}; "
        f"fail-overs since it was started: {seen['failovers']}"
    )
    _warn([seen])


@cluster_command.command("check")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@remote
def check_command(remote: Remote, urls: Sequence[str]) -> None:
    """Check whether a node can be stopped now, as for an upgrade, and the queues go on.

    Asks the nodes at these URLs; give all three, since no node knows of a link between the others. Ends with 0 where
    it is safe, and tells in which order to take the nodes; else with 1 and the reasons.
    """
    seen = []
    for url in urls or (remote.access.url,):
        with remote._replace(access=dataclasses.replace(remote.access, url=url)).client() as client:
            seen.append(client.cluster())
    _warn(seen)
    reasons = list(dangers(seen))
    for reason in reasons:
        click.echo(reason)
    if reasons:
        fail("not now: stop no node until these are gone")
    nodes = seen[0]["nodes"]
    mirrors = ", then ".join(node["name"] for node in nodes if not node["is_master"])
    click.echo(f"safe now, one node at a time: {mirrors}, and the master, {nodes[0]['name']}, last. Check before each")


def _warn(seen: Sequence[Mapping[str, Any]]) -> None:
    """Say what no stopping of a node changes: that one machine has all of it."""
    if any(each["voters"] == 1 for each in seen):
        click.echo(f"WARNING: {ONE_MACHINE}", err=True)
    if any(len(each["nodes"]) == 1 for each in seen):
        click.echo(f"WARNING: {ONE_NODE}", err=True)


def dangers(seen: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The reasons against stopping a node, a line each; none where its queues would go on.

    Args:
        seen: what each node says of the cluster.
    """
    asked = {each["node"] for each in seen}
    for each in seen:
        yield from _dangers_at(each)
    if asked != {""} and len(asked) < SIZE:
        yield f"only {len(asked)} of {SIZE} nodes were asked ({', '.join(sorted(asked))}): give the URLs of all"
    if len({each["term"] for each in seen}) > 1:
        yield "the nodes do not agree on the term: another master is just beginning"


def _dangers_at(each: Mapping[str, Any]) -> Iterator[str]:
    node, left, whole = each["node"], each["lease_left_seconds"], each["lease_seconds"]
    if not node:
        yield "one of these daemons is in no cluster"
        return
    members = [member["name"] for member in each["nodes"]]
    if len(members) < SIZE:
        yield f"node {node} sees {len(members)} of {SIZE} nodes: {', '.join(members) or 'none'}"
    if not each["is_served"]:
        yield f"node {node} knows of no node that serves the queues"
    if left is None or left < whole / 2:
        yield f"node {node} has {left or 0:.1f} of {whole:g} s of its lease left: etcd answers late"
    for link in each["links"]:
        neighbor = f"{link['node'] or 'its neighbor'} at {link['address']}"
        if not link["is_up"]:
            yield f"node {node} does not reach {neighbor}"
        elif link["lag_seconds"] > whole:
            yield f"node {node} waits {link['lag_seconds']:.1f} s for an answer of {neighbor}"
        if not link["is_heard"]:
            yield f"node {node} is not reached by {neighbor}"


def _rows(seen: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    members = {member["name"]: member for member in seen["nodes"]}
    links = {link["node"] or link["address"]: link for link in seen["links"]}
    for name in [*members, *(name for name in links if name not in members)]:
        member, link = members.get(name), links.get(name)
        role = "no member" if member is None else "master" if member["is_master"] else "mirror"
        since = "-" if member is None else f"{member['uptime_seconds']:.0f}s"
        yield (name, role, since, *_shown(link))


def _shown(link: Mapping[str, Any] | None) -> tuple[str, str, str]:
    if link is None:
        return "-", "-", "-"
    lag = link["lag_seconds"]
    up, heard = ("up" if link[key] else "down" for key in ("is_up", "is_heard"))
    return up, heard, "-" if lag is None else f"{lag * 1000:.0f}ms"
