"""How many messages a queue of the cluster has, as its master said last; and where dead letters of the cluster go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from mq.broker.api import NODE
from mq.cluster.declarations import ClusterDeclarations


async def test_of_two_who_ask_at_a_time_neither_is_told_that_a_queue_is_empty() -> None:
    queues: dict[str, Any] = {"q": None, "other": None}
    names = Mock(queues=queues)

    async def ready(queue: str) -> int:
        return 5

    local = Mock(declarations=Mock(knows=lambda queue: False))
    remote = SimpleNamespace(ready=ready)
    joint = ClusterDeclarations("a", cast(Any, local), cast(Any, remote), cast(Any, names), Mock(), Mock(), NODE)
    await joint.look("q")
    await joint.look("q")
    assert [joint.ready("q"), joint.ready("q")] == [5, 5]  # delete with if-empty must not go by the second being 0
    del queues["q"]
    await joint.look("other")
    assert joint._ready == {"other": 5}


async def test_a_term_that_began_before_the_door_has_its_sink_too() -> None:
    """Else what dies in that term is removed, though its exchange is there."""
    told: list[tuple[str, object]] = []
    local, first, second = (
        Mock(set_sink=lambda sink, name=name: told.append((name, sink))) for name in ("own", "1", "2")
    )
    joint = ClusterDeclarations("a", Mock(declarations=local), *(Mock() for _ in range(4)), NODE)
    joint.begin_term(cast(Any, first))
    joint.set_sink(cast(Any, "sink"))
    assert told == [("own", "sink"), ("1", "sink")]
    joint.begin_term(cast(Any, second))
    assert told[2:] == [("2", "sink")]
