"""How many messages a queue of the cluster has: what its master said last, for all who ask at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from mq.cluster.declarations import ClusterDeclarations


async def test_of_two_who_ask_at_a_time_neither_is_told_that_a_queue_is_empty() -> None:
    queues: dict[str, Any] = {"q": None, "other": None}
    names = SimpleNamespace(queues=queues)

    async def ready(queue: str) -> int:
        return 5

    local = SimpleNamespace(declarations=SimpleNamespace(knows=lambda queue: False))
    remote = SimpleNamespace(ready=ready)
    joint = ClusterDeclarations(
        "a", cast(Any, local), cast(Any, remote), cast(Any, names), cast(Any, None), cast(Any, None)
    )
    await joint.look("q")
    await joint.look("q")
    assert [joint.ready("q"), joint.ready("q")] == [5, 5]  # delete with if-empty must not go by the second being 0
    del queues["q"]
    await joint.look("other")
    assert joint._ready == {"other": 5}
