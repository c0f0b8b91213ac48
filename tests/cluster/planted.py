"""The program mq with a fault planted in its cluster: ``python -m tests.cluster.planted [mq's arguments]``.

A mirror that loses its link to the master takes that for the master's end, as home-made clusters do, and asks nobody.
"""

from __future__ import annotations

from mq_etcd.membership import EtcdCandidacy, EtcdCoordinator

from mq.cli import main
from mq.cluster.coordinator import Member
from mq.cluster.directory import Directory

_lose, _members, _join = Directory._lose, EtcdCoordinator.members, EtcdCoordinator.join
_has_lost = False
_own = ""


def lose(self: Directory) -> None:
    global _has_lost
    _has_lost = _has_lost or self.place is not None
    _lose(self)


async def join(self: EtcdCoordinator, node: str) -> EtcdCandidacy:
    global _own
    _own = node
    return await _join(self, node)


async def members(self: EtcdCoordinator) -> list[Member]:
    found = await _members(self)
    return [member for member in found if member.node == _own] if _has_lost else found


if __name__ == "__main__":
    Directory._lose = lose  # type: ignore[method-assign]
    EtcdCoordinator.join = join  # type: ignore[method-assign]
    EtcdCoordinator.members = members  # type: ignore[method-assign]
    main(prog_name="mq")
