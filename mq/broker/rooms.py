"""Everybody who does a part of a broker's work, and whom they need for it: made, loaded and started here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import trio

from mq.broker import deaths, keys
from mq.broker.browsing import Browsing
from mq.broker.catalog import Catalog
from mq.broker.claimed import Claimed
from mq.broker.claims import Claims
from mq.broker.commit import BATCHES, Committer
from mq.broker.config import BrokerConfig
from mq.broker.consumers import Consumers
from mq.broker.consuming import Consuming
from mq.broker.deaths import Deaths
from mq.broker.declarations import Declarations
from mq.broker.fetches import Fetches
from mq.broker.fetching import FetchWorker
from mq.broker.follow import Follower
from mq.broker.handing_out import HandingOut
from mq.broker.handover import Handover
from mq.broker.heirs import Heirs
from mq.broker.holding import Holding
from mq.broker.holds import Holds
from mq.broker.index import QueueIndex
from mq.broker.jobs import Job, SaveWorker
from mq.broker.keys import Keys
from mq.broker.learning import Learner
from mq.broker.leases import Leases
from mq.broker.ledger import Ledger
from mq.broker.looking import Looking
from mq.broker.mailbox import Mailbox
from mq.broker.offers import Offers
from mq.broker.publishing import Publishing
from mq.broker.queues import Queues
from mq.broker.recent import Recent
from mq.broker.removing import Remover
from mq.broker.upkeep import Upkeep
from mq.errors import StorageFailed, StorageFull, StorageUnusable
from mq.lifecycle import Observer
from mq.message import MessageId, MessageIds
from mq.storage.interface import Storage


class Rooms:
    """The parts of one broker.

    Args:
        storage: the store.
        config: how the broker works.
        observers: told of every transition.
        clock_ns: wall clock, nanoseconds since 1970.
        random: chooses.
    """

    def __init__(
        self,
        storage: Storage,
        config: BrokerConfig,
        observers: Sequence[Observer],
        clock_ns: Callable[[], int],
        random: Random,
    ) -> None:
        self._storage = storage
        self._config = config
        self._random = random
        self._writer = f"{random.getrandbits(48) | 1 << 40:012x}"
        ids = MessageIds(clock_ns, int(self._writer, 16))
        self._jobs: Mailbox[Sequence[Job]] = Mailbox()
        self._leases = Leases(config.delay_seconds, clock_ns, random)
        self.catalog = catalog = Catalog(observers, clock_ns)
        self.committer = committer = Committer(storage)
        self.fetches = fetches = Fetches(config.workers)
        sweep = config.peers > 0 and config.mover
        self.follower = Follower(catalog, storage, ids, clock_ns, fetches.call, fetches.waited_for, sweep=sweep)
        self._keys = None if config.followed else Keys(self._ledger(keys.KIND), catalog, clock_ns)
        heirs = Heirs(storage)
        self._deaths = Deaths(
            self._ledger(deaths.KIND),
            catalog,
            committer,
            ids,
            self._settle,
            heirs,
            self.follower.load_queues,
            clock_ns,
            is_shared=config.peers > 0,
        )
        self._recent = recent = Recent()
        self._offers = offers = Offers(fetches.wanted, recent, is_open=not config.followed)
        self.upkeep = Upkeep(catalog, committer, self._jobs, self._deaths, fetches, offers, config, clock_ns)
        self._handover_out = self._handing_out()
        self._handover = Handover(catalog, fetches, self._leases, self._handover_out, is_open=not config.followed)
        learner = Learner(storage, catalog)
        self.queues = Queues(
            storage,
            catalog,
            committer,
            self.follower,
            self.upkeep,
            self._deaths,
            learner,
            self._settle,
            self._jobs,
            ids,
            config,
        )
        self.declarations = Declarations(storage, catalog, committer, self.queues, heirs)
        self.publishing = Publishing(
            storage, catalog, committer, learner, self._keys, self._jobs, self._handover, offers, ids, config, clock_ns
        )
        self._holds = Holds(
            catalog, storage, fetches, self._deaths, self._leases, self._jobs, recent, config.delay_seconds
        )
        self._remover = Remover(catalog, committer, reaps=config.reaper)
        self.consuming = Consuming(
            storage,
            catalog,
            fetches,
            self._jobs,
            self.upkeep,
            self._deaths,
            self._settle,
            self._leases,
            self._holds,
            self._remover,
            config,
        )
        self.holding = Holding(
            catalog,
            fetches,
            self._holds,
            self.consuming,
            self._deaths,
            self._settle,
            self._remover,
            self._jobs,
            ids,
            config,
        )
        self.looking = Looking(storage, catalog.transit, self._deaths)
        self.browsing = Browsing(self.looking, ids, self.queues.settled)
        claimed = Claimed(storage, catalog, self._jobs, self.upkeep, self._leases, random)
        consumers = Consumers(storage, committer)
        self.claims = Claims(consumers, claimed, self.upkeep, self._settle, ids, random, is_followed=config.followed)

    async def load(self) -> None:
        """Take up what is in the store.

        Raises:
            StorageUnusable: it cannot be read.
        """
        try:
            await self.follower.load()
            await self._deaths.load()
            if self._keys is not None:
                await self._keys.load()
            await self.claims.load(self.catalog.queues)
        except (StorageFull, StorageFailed) as error:
            raise StorageUnusable(f"cannot take up what is in the store: {error}") from error

    async def start(self, nursery: trio.Nursery) -> None:
        """Start every task."""
        for _ in range(BATCHES):
            nursery.start_soon(self.committer.run)
        for calls in self.fetches.mailboxes:
            nursery.start_soon(SaveWorker(self.committer, self._jobs, self._handover).run)
            nursery.start_soon(self._remover.run)
            handing_out = self._handing_out()
            nursery.start_soon(handing_out.run)
            nursery.start_soon(self._fetch_worker(calls, handing_out).run)
        nursery.start_soon(self._handover_out.run)
        self.upkeep.start(nursery)
        if self._config.followed:
            nursery.start_soon(self.follower.run)
        if self._config.peers:
            nursery.start_soon(self.holding.run)
        await self.upkeep.deliver_backlog()

    def _handing_out(self) -> HandingOut:
        return HandingOut(
            self.catalog, self._storage, self.fetches, self._leases, self.upkeep, self._deaths, self._recent
        )

    def _fetch_worker(self, calls: Mailbox[QueueIndex], handing_out: HandingOut) -> FetchWorker:
        return FetchWorker(
            self.catalog,
            self.committer,
            calls,
            self.fetches,
            self._leases,
            self._settle,
            self.upkeep,
            self._holds,
            self._offers,
            self._recent,
            handing_out,
            peers=self._config.peers,
            random=self._random,
            refresh=self.follower.refresh,
        )

    def _ledger(self, kind: str) -> Ledger:
        return Ledger(self._storage, self.committer, kind, self._writer, is_shared=self._config.peers > 0)

    async def _settle(self, ids: Iterable[MessageId]) -> None:
        """Messages are about to leave their queue."""
        if self._keys is not None:
            await self._keys.settle(ids)
