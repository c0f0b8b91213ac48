"""The parts of one broker: made in the order in which they need each other, loaded, started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import trio

from mq.broker import dead_letters
from mq.broker.batch_consumers import BatchConsumers, ClaimedMessages, ConsumerRecords
from mq.broker.bodies import MOST_BYTES, RecentBodies
from mq.broker.body_loader import BodyLoader
from mq.broker.catalog import Catalog
from mq.broker.commit import BatchChannel, Committer
from mq.broker.config import BrokerConfig
from mq.broker.consuming import Consumption, Remover
from mq.broker.core import Core
from mq.broker.dead_letters import DeadLetters, DeadLetterSinks, HistoryCodec
from mq.broker.dispatch import Deliverer, FetchWorker, Handover, Holds
from mq.broker.jobs import Job
from mq.broker.keys import Keys
from mq.broker.leases import Leases
from mq.broker.ledger import Ledger
from mq.broker.peek import Peek, SequenceBrowser
from mq.broker.publishing import Publisher, SaveWorker
from mq.broker.queues import Declarations, Queues
from mq.broker.shared import StoreWatcher
from mq.broker.unacked import Unacked
from mq.broker.upkeep import Upkeep
from mq.broker.waiters import Waiters
from mq.errors import StorageFailed, StorageFull, StorageUnsure, StorageUnusable
from mq.lifecycle import Observer, Span
from mq.message import MessageIds
from mq.storage.interface import Sharing, Storage


class Wiring:
    """The parts of one broker.

    Args:
        storage: the store.
        config: how the broker works.
        observers: see every transition.
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
        writer = f"{random.getrandbits(48) | 1 << 40:012x}"
        ids = MessageIds(clock_ns, int(writer, 16))
        jobs: BatchChannel[Sequence[Job]] = BatchChannel()
        self._leases = leases = Leases(config.delay_seconds, clock_ns, random)
        self.catalog = Catalog(observers, clock_ns)
        self.committer = Committer(storage, partial(self.catalog.tell_took, Span.BARRIER))
        self._core = core = Core(storage, config, self.catalog, self.committer, jobs, ids, clock_ns, random, writer)
        self.waiters = waiters = Waiters(config.workers)
        self.watcher = watcher = StoreWatcher(core, waiters)
        self._keys = None if config.others_move else Keys(core)
        if self._keys is not None:
            core.settle = self._keys.settle
        sinks = DeadLetterSinks(storage)
        is_shared = config.sharing is Sharing.PEERS
        ledger = Ledger(storage, self.committer, dead_letters.KIND, writer, HistoryCodec(), is_shared=is_shared)
        self._dead_letters = dead = DeadLetters(core, ledger, sinks, watcher.load_queues)
        recent = RecentBodies(MOST_BYTES if config.skips_steps else 0)
        self.upkeep = upkeep = Upkeep(core, dead, waiters)
        self._deliverers = [Deliverer(core, waiters, leases, upkeep, dead, recent) for _ in range(config.workers + 1)]
        self._handover = Handover(core, waiters, leases, self._deliverers[0])
        loader = BodyLoader(core)
        self.queues = Queues(core, watcher, upkeep, dead, loader)
        self.declarations = Declarations(core, self.queues, sinks)
        self.publishing = Publisher(core, loader, self._keys, self._handover, recent)
        self._holds = holds = Holds(core, waiters, dead, leases, recent)
        self._remover = remover = Remover(core)
        self.consuming = Consumption(core, waiters, upkeep, dead, leases, holds, remover)
        self.unacked = Unacked(core, waiters, holds, self.consuming, dead, remover, leases)
        self.peek = Peek(core, dead)
        self.browse = SequenceBrowser(core, self.peek, self.queues.settled)
        claimed = ClaimedMessages(core, upkeep, dead, remover, leases)
        self.claims = BatchConsumers(core, ConsumerRecords(core), claimed, upkeep)

    async def load(self) -> None:
        """Load the queues, messages and records of the store.

        Raises:
            StorageUnusable: it cannot be read.
        """
        try:
            await self.watcher.load()
            self._check_groups()
            await self._dead_letters.load()
            if self._keys is not None:
                await self._keys.load()
            await self.claims.load(self.catalog.queues)
            self.unacked.loaded()
        except (StorageFull, StorageFailed, StorageUnsure) as error:
            raise StorageUnusable(f"cannot take up what is in the store: {error}") from error

    async def start(self, nursery: trio.Nursery) -> None:
        """Start every task."""
        config = self._core.config
        nursery.start_soon(self.committer.run)
        for calls, deliverer in zip(self.waiters.channels, self._deliverers[1:], strict=True):
            nursery.start_soon(SaveWorker(self.committer, self._core.jobs, self._handover).run)
            nursery.start_soon(self._remover.run)
            nursery.start_soon(deliverer.run)
            worker = FetchWorker(self._core, calls, deliverer, self._holds, self.watcher.refresh)
            nursery.start_soon(worker.run)
        nursery.start_soon(self._deliverers[0].run)
        self.upkeep.start(nursery)
        if config.others_move:
            nursery.start_soon(self.watcher.run)
        if config.sharing is Sharing.PEERS:
            nursery.start_soon(self.unacked.run)
        await self.upkeep.deliver_backlog()
        await self.claims.finish(self.catalog.queues)

    def _check_groups(self) -> None:
        grouped = [name for name, index in self.catalog.queues.items() if index.settings.groups]
        if grouped and self._core.config.others_move:
            raise StorageUnusable(
                f"queue {grouped[0]} has message groups, whose order cannot be kept where others hand out messages: "
                "serve the store with --peers=0, or end the groups of its queues first"
            )
