"""What tests see of a broker and its callers do not: here alone, so that one line follows when it moves."""

from __future__ import annotations

from mq.broker import Broker
from mq.broker.broker import Wiring
from mq.broker.catalog import Catalog


def catalog_of(broker: Broker) -> Catalog:
    return wiring_of(broker).catalog


def wiring_of(broker: Broker) -> Wiring:
    return broker._wiring
