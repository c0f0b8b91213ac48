"""Queues by owner: how many a user has made is known without a look at the others."""

from __future__ import annotations

from collections.abc import ValuesView

import pytest

from mq.broker import Broker
from mq.broker.catalog import Catalog
from mq.broker.clock import Clock
from mq.broker.index import QueueIndex
from mq.broker.settings import DEFAULTS
from mq.errors import OverLimit
from mq.lifecycle import QueueOwner, made_for
from mq.message import QueueName


def index_of(name: str, owner: str | None) -> QueueIndex:
    return QueueIndex(name, 1, DEFAULTS, None, owner=owner)


def test_owned_counts_each_queue_once_until_it_is_dropped() -> None:
    catalog = Catalog([], Clock(elapsed=lambda: 0.0))
    for name, owner in (("a", "shop"), ("b", "shop"), ("b", "shop"), ("c", "ben"), ("d", None)):
        catalog.add_queue(index_of(name, owner))
    assert (catalog.owned("shop"), catalog.owned("ben"), list(catalog.queues)) == (2, 1, ["a", "b", "c", "d"])
    assert catalog.drop_queue("a") is not None
    assert catalog.drop_queue("a") is None
    assert catalog.drop_queue("d") is not None
    assert (catalog.owned("shop"), catalog.owned("ben")) == (1, 1)


async def test_creation_with_a_limit_does_not_look_at_all_queues(broker: Broker) -> None:
    class Unlistable(dict[str, QueueIndex]):
        def values(self) -> ValuesView[QueueIndex]:  # type: ignore[override]
            raise AssertionError("all queues are looked at")

    catalog = broker._queues._catalog
    catalog.queues = Unlistable(catalog.queues)
    with made_for(QueueOwner("shop", 2)):
        for name in ("a", "b"):
            await broker.create_queue(QueueName(name))
        with pytest.raises(OverLimit):
            await broker.create_queue(QueueName("c"))
