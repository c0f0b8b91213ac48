"""Neighbours that serve elsewhere than the cluster's file says, since they were replaced. Kept in this node's root."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from mq.broker.queues import Declarations
from mq.cluster.config import Neighbor

MOVED: Final = "cluster-moved"
"""The kind of the records; their keys are the addresses of the file."""


class MovedNeighbors:
    """The new places of neighbours.

    Args:
        local: has this node's root.
    """

    def __init__(self, local: Declarations) -> None:
        self._local = local

    async def load(self, filed: Collection[Neighbor]) -> Mapping[Neighbor, Neighbor]:
        """New places by those of the file. What was said of places that the file has no more is forgotten.

        Args:
            filed: the places in the file.

        Raises:
            StorageError: the root cannot be read.
        """
        places = {str(neighbor): neighbor for neighbor in filed}
        found = {}
        for key, value in (await self._local.records(MOVED)).items():
            if key in places:
                found[places[key]] = Neighbor(value["host"], value["port"])
            else:
                await self._local.drop(MOVED, key)
        return found

    async def put(self, filed: Neighbor, now: Neighbor) -> None:
        """Keep a new place.

        Raises:
            StorageError: not now.
        """
        if filed == now:
            await self._local.drop(MOVED, str(filed))
        else:
            await self._local.put(MOVED, str(filed), now._asdict())
