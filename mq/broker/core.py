"""The core of a broker, which each of its parts gets: the store, the configuration, the catalog and shared services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from random import Random

from mq.broker.catalog import Catalog
from mq.broker.clock import Clock
from mq.broker.commit import Committer, Future, InFlight, Together
from mq.broker.config import BrokerConfig
from mq.broker.index import QueueIndex
from mq.broker.jobs import Job
from mq.message import MessageId, MessageIds
from mq.storage.interface import Storage, places_transient

SecureKeys = Callable[[Iterable[MessageId]], Awaitable[None]]
KeyedPublishes = Callable[[QueueIndex], Sequence[Future[MessageId]]]


async def secure_no_keys(_ids: Iterable[MessageId]) -> None:
    """Do nothing. It stands in where others change the store, for there a broker keeps no idempotency keys."""


def no_keyed_publishes(_index: QueueIndex) -> Sequence[Future[MessageId]]:
    """No publishes with keys: there are none before the publisher is made."""
    return ()


@dataclass
class Core:
    """What every part of a broker has.

    Attributes:
        in_flight: counts the requests that have not ended.
        clock: steady time for deadlines, wall time for instants that users gave, dates.
        writer: 12 hexadecimal digits, unique among the processes that write to the store now.
        secure_keys: called with messages that are about to leave their queue; makes their idempotency keys durable
            first. Set before any part that calls it is made.
        unsecured: messages of whose keys it is not yet sure that they are durable (:mod:`mq.broker.keys`).
        keyed_publishes: returns the outcomes of a queue's publishes with keys that have not ended. Set by the
            publisher.
    """

    storage: Storage
    config: BrokerConfig
    catalog: Catalog
    committer: Committer
    in_flight: InFlight
    jobs: Together[Job]
    ids: MessageIds
    clock: Clock
    random: Random
    writer: str
    secure_keys: SecureKeys = secure_no_keys
    unsecured: Set[MessageId] = frozenset()
    keyed_publishes: KeyedPublishes = no_keyed_publishes

    @property
    def places(self) -> bool:
        """Whether a message is written where it rests, READY or DELAYED, and not to NEW."""
        return self.config.skips_steps and self.storage.description.places

    @property
    def places_transient(self) -> bool:
        """The same for a transient message."""
        return self.config.skips_steps and places_transient(self.storage)
