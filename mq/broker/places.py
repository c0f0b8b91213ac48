"""Where a queue may live, and, in a cluster, who else is there."""

from __future__ import annotations

from typing import Final, NamedTuple

DISK: Final = "disk"
"""In the store of this daemon: there again after a restart."""
MEMORY: Final = "memory"
"""Gone with this process."""
CLUSTER: Final = "cluster"
"""Highly available: on all nodes of a cluster."""
PLACES: Final = (DISK, MEMORY, CLUSTER)


class Node(NamedTuple):
    """A node of a cluster.

    Attributes:
        name: as its file has it.
        uptime_seconds: for how long it has been a member without interruption.
        is_master: whether it is the oldest.
    """

    name: str
    uptime_seconds: float
    is_master: bool


class Membership(NamedTuple):
    """A cluster, as one of its nodes sees it.

    Attributes:
        node: the name of the one that tells; empty where there is no cluster.
        role: ``master`` or ``mirror``; ``alone`` where it has no part in a cluster just now.
        nodes: those that are members now, the oldest first.
        queues: how many highly available queues there are.
        is_served: whether somebody serves them now, as far as this node knows.
        term: rises with every new master; 0 where none is known.
    """

    node: str
    role: str
    nodes: tuple[Node, ...]
    queues: int
    is_served: bool
    term: int


ALONE: Final = Membership("", "alone", (), 0, False, 0)
"""A daemon that is in no cluster."""
