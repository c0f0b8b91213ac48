"""One seeded run of the real broker, endpoints and store over a disk that forgets, with everything going wrong.

A seed decides all: the file system, the faults, the power cuts, the clients and when they vanish, the scheduling. The
same seed gives the same run, in any process::

    python -m mq.testing.simulate 4711 --verbose

Trio's deterministic scheduling is a private switch of its own: constraints.txt pins the version, and a test holds the
same seed to the same trace.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from random import Random
from typing import Any, Final, NamedTuple

import trio
from trio.testing import MockClock

from mq.broker import Broker, BrokerConfig, mover, open_broker
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS
from mq.errors import MQError
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.mount import Mount
from mq.storage.options import StorageOptions
from mq.storage.posix import FolderStorage
from mq.testing.claimants import Claimants, Ledger
from mq.testing.clients import Clients
from mq.testing.disk import Disk, Medium
from mq.testing.expected import Expected
from mq.testing.faults import KINDS, Faults, PowerCut
from mq.testing.history import History
from mq.testing.steps import StepByStep
from mq.testing.users import Users

START_NS: Final = 1_700_000_000 * 10**9
STUCK_SECONDS: Final = 7200.0
"""Virtual seconds after which a phase that should have ended is stuck (P9). No fault lasts nearly as long."""

CLAIMING: Final = (1, 2)
"""The last digits of seeds in whose runs batches are claimed, if there is one broker."""

WAITING: Final = (5, 6)
"""The last digits of seeds in whose runs consumers wait for all that others publish, if there is one broker, and hardly
anybody does anything else."""
PAIRS: Final = 3
"""So many of both."""

AT_ONCE: Final = 3
"""Of the seeds whose tens leave this rest when divided by 4: a batch's calls are made as mq-native makes them."""

DISK_BYTES: Final = 1 << 18
"""What a disk is said to hold. It keeps the ballast small."""

MOUNTS: Final = {
    Medium.ORDERED: Mount("ordered", atomic_rename=True, ordered=True, size=DISK_BYTES),
    Medium.UNORDERED: Mount("unordered", atomic_rename=True, size=DISK_BYTES),
    Medium.ADVERSARIAL: Mount("adversarial", size=DISK_BYTES),
}


class Plan(NamedTuple):
    """What a seed has in store.

    Attributes:
        medium: the file system.
        brokers: how many work on the store at the same time.
        syncfs: whether the store may use syncfs(2).
        lives: how often the store is served, and cut off, before the last look.
        lease_seconds: how long a lease lasts.
        slow: the longest that one hop to the disk may take, in seconds.
        faults: the kinds that happen.
        clients: how many work at a time.
        users: how many more do what people expect of a queue.
        longest_round: how many messages the mover moves at a time: with few, a backlog takes several rounds.
        claims: whether batches are claimed, too.
        pairs: how many pairs of users there are of whom one publishes and the other waits for that.
    """

    medium: Medium
    brokers: int
    syncfs: bool
    lives: int
    lease_seconds: float
    slow: float
    faults: tuple[str, ...]
    clients: int
    users: int
    longest_round: int
    claims: bool = False
    pairs: int = 0


class Report(NamedTuple):
    """What came of a run.

    Attributes:
        seed: as given.
        plan: what was planned.
        violations: promises that were broken, in words; empty is well.
        trace: a digest of every call to the disk: the same for the same seed.
        calls: how many there were.
        deliveries: messages handed out.
        faults: faults that happened.
        log: what happened, line by line.
    """

    seed: int
    plan: Plan
    violations: tuple[str, ...]
    trace: str
    calls: int
    deliveries: int
    faults: int
    log: tuple[str, ...]


def run_seed(seed: int) -> Report:
    """Run one seed to its end."""
    return _Run(seed).run()


def make_plan(random: Random) -> Plan:
    """What a seed has in store."""
    syncfs = random.random() < 0.5
    kinds = sorted(KINDS.keys() - (set() if syncfs else {"no handles"}))  # a folder's fsync needs a handle, syncfs none
    medium = random.choice(list(Medium))
    return Plan(
        medium=medium,
        brokers=random.choice((1, 1, 1, 2)),
        syncfs=syncfs,
        lives=random.choice((1, 2, 3)),
        lease_seconds=random.choice((0.5, 5.0, 30.0)),
        slow=random.choice((0.0, 0.01, 0.3, 3.0)),
        faults=tuple(random.sample(kinds, k=random.choice((0, 0, 1, 2)))),
        clients=random.randint(2, 6),
        users=random.choice((0, 2, 4)),
        longest_round=random.choice((2, mover.LARGEST_ROUND)),
    )


class _Run:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        plan = make_plan(self.random)
        if plan.brokers == 1 and seed % 10 in WAITING:
            plan = plan._replace(pairs=PAIRS, clients=1, users=0)
        self.plan = plan._replace(claims=seed % 10 in CLAIMING and plan.brokers == 1)
        self.slow, self.brokers = self.plan.slow, self.plan.brokers
        self.log: list[str] = []
        self.faults = Faults(self.random, self._note)
        self.disk = Disk(self.plan.medium, self.random, self.faults)
        if seed // 10 % 4 == AT_ONCE:
            self.disk.native = StepByStep(self.disk)
        self.set_back_seconds = 0.0
        self.elapsed = 0.0
        self.guesses, self.measured = Random(seed), 0.0
        self.history = History(self._now, self.plan.lease_seconds, ordered=self.plan.brokers == 1)
        scarce = "no handles" in self.plan.faults
        self.expected = Expected(self.history, self._now, self._wall, scarce=scarce)
        self.batches = Ledger(self.history, self._now)

    def run(self) -> Report:
        with _silence(), _rounds(self.plan.longest_round):
            for life in range(self.plan.lives):
                self._note(f"life {life}")
                self._serve(self._live)
                self._crash()
                if self.random.random() < 0.3:
                    self._note("cut again during recovery")
                    self.faults.cut_at = self.faults.calls + self.random.randint(1, 40)
                    self._serve(self._only_open)
                    self._crash()
            self._serve(self._last_look)
        return Report(
            self.seed,
            self.plan,
            tuple(self.history.violations),
            self._trace(),
            self.faults.calls,
            self.history.deliveries,
            sum(self.faults.seen.values()),
            tuple(self.log),
        )

    def _trace(self) -> str:
        """Every call to the disk, and everything that happened."""
        self.disk.trace.update("\n".join(self.log).encode())
        return self.disk.trace.hexdigest()

    # Time

    def _now(self) -> float:
        try:
            return trio.current_time()
        except RuntimeError:
            return self.elapsed

    def _clock_ns(self) -> int:
        return START_NS + round((self._now() - self.set_back_seconds) * 1e9)

    def _wall(self) -> float:
        return self._now() - self.set_back_seconds

    def _stopwatch(self) -> float:
        """What a sync costs is anybody's guess."""
        self.measured += self.guesses.choice((0.001, 0.01, 0.1))
        return self.measured

    def _note(self, text: str) -> None:
        self.log.append(f"{self._now():10.3f} {text}")

    # A life

    def _serve(self, phase: Callable[[], Awaitable[None]]) -> None:
        clock = MockClock(autojump_threshold=0)
        clock.jump(self.elapsed)
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
        trio._core._run._r.seed(self.random.getrandbits(64))
        try:
            trio.run(self._bounded, phase, clock=clock)
        except PowerCut:
            pass
        except BaseExceptionGroup as group:
            rest = group.split(PowerCut)[1]
            if rest is not None:
                raise rest from None
        self.elapsed = clock.current_time()

    async def _bounded(self, phase: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(STUCK_SECONDS * 12) as scope:
            await phase()
        if scope.cancelled_caught:
            self.history.violate("P9: the run is stuck")

    def _crash(self) -> None:
        """The power is gone, or just the process."""
        unsure = self.faults.seen["sync error"] and self.plan.medium is not Medium.ORDERED
        if self.random.random() < 0.8 or unsure:  # without a journal, docs/on-disk.md asks for a remount
            self.disk.crash()
        else:
            self._note("killed: the kernel lives on")
            self.disk.forget_handles()
        self.faults.lift()
        self.history.cut_off()
        self.elapsed += self.random.choice((0.0, 1.0, self.plan.lease_seconds, 100.0))

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            brokers = [await self._open(stack) for _ in range(self.brokers)]
            last = 1500 if self.plan.users or self.plan.pairs else 600
            cut_at = self.faults.calls + self.random.randint(1, last)
            self.faults.cut_at = cut_at if self.random.random() < 0.8 else None
            self.faults.short_writes = self.random.choice((0.0, 0.1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._trouble)
                async with trio.open_nursery() as people:
                    people.start_soon(self._clients(brokers).run, self.plan.clients)
                    users = self._users(brokers)
                    people.start_soon(users.run, self.plan.users, self.plan.pairs)
                    if self.plan.claims:
                        people.start_soon(self._claimants(brokers[0], users).run)
                nursery.cancel_scope.cancel()
            self._check_health(brokers)
            self._note("killed at the end of its life")
            raise PowerCut

    def _clients(self, brokers: list[Broker]) -> Clients:
        return Clients(brokers, self.history, self.random, self._note, self.plan.lease_seconds)

    def _users(self, brokers: list[Broker]) -> Users:
        lease_seconds = self.plan.lease_seconds
        return Users(brokers, self.expected, self.history, self.random, self._note, lease_seconds, self._wall)

    def _claimants(self, broker: Broker, users: Users) -> Claimants:
        return Claimants(broker, self.batches, users.ask, self.random, self.plan.lease_seconds)

    def _check_health(self, brokers: list[Broker]) -> None:
        """P8: what passes leaves no mark; what does not, stops all changes until a restart."""
        if not self.faults.broken and not all(broker.ready for broker in brokers):
            failures = [broker._committer.failure for broker in brokers]
            self.history.violate(f"P8: not ready, though nothing happened that does not pass: {failures}")

    async def _trouble(self) -> None:
        """Faults that come and go, and a clock that is set back."""
        while True:
            await trio.sleep(self.random.uniform(0, 10))
            if self.plan.faults and self.random.random() < 0.7:
                name = self.random.choice(self.plan.faults)
                self.faults.active = {name: KINDS[name]}
                self._note(f"trouble begins: {name}")
                self.history.in_order = False  # what could not be delivered for a while comes late
                await trio.sleep(self.random.uniform(0, 20))
                self.faults.active = {}
                self._note("trouble ends")
            elif self.brokers == 1 and self.random.random() < 0.3:  # peers need clocks that agree: docs/on-disk.md
                self.set_back_seconds += self.random.choice((0.5, 60.0, 86400.0))
                self._note("the clock is set back")

    async def _open(self, stack: AsyncExitStack) -> Broker:
        shared = self.brokers > 1
        storage = FolderStorage(
            "simulated:",
            "/mq",
            self.disk,
            StorageOptions(shared=shared),
            mount=lambda root: MOUNTS[self.plan.medium],
            hop=self._hop,
            syncfs=self.plan.syncfs,
            ids=MessageIds(self._clock_ns, self.random.getrandbits(48)),
            clock=self._stopwatch,
        )
        await storage.open()
        config = BrokerConfig(
            workers=self.random.choice((1, 2, 8)), peers=self.brokers - 1, delay_seconds=self.plan.lease_seconds
        )
        return await stack.enter_async_context(
            open_broker(
                storage, config, observers=[self.history], clock_ns=self._clock_ns, random=Random(self.random.random())
            )
        )

    async def _hop(self, verb: Callable[..., Any], *args: object) -> Any:
        """A call to the disk takes its time; what it does, it does at once, and is not interrupted."""
        with trio.CancelScope(shield=True):
            slow = self.slow if self.random.random() < 0.1 else self.slow / 100
            await trio.sleep(self.random.uniform(0, slow))
            return verb(*args)

    async def _only_open(self) -> None:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            raise PowerCut

    # The last look

    async def _last_look(self) -> None:
        """Nothing goes wrong any more: take out everything there is, and compare."""
        self.slow, self.brokers = 0.0, 1
        async with AsyncExitStack() as stack:
            broker = await self._open(stack)
            clients, users = self._clients([broker]), self._users([broker])
            await clients.check_queues()
            await clients.drain()
            await users.drain()
            claimants = self._claimants(broker, users)
            await claimants.drain()
            await trio.sleep(LONGEST_LEASE_SECONDS + MARGIN_SECONDS + 1)  # a clock set back holds a lease for as long
            await clients.drain()
            await users.drain()
            await claimants.drain()
            self.expected.check_lost()
            self.batches.check_lost()
            for queue, id in self.history.missing():
                self.history.violate(f"P1: {id} of {queue} was acknowledged and is not there")
            await trio.testing.wait_all_tasks_blocked()
            await self._look_over(broker)

    async def _look_over(self, broker: Broker) -> None:
        try:
            await check_whole(broker._storage)
        except (AssertionError, MQError) as error:
            self.history.violate(f"the store is not whole: {error}")


@contextmanager
def _rounds(longest: int) -> Iterator[None]:
    usual = mover.LARGEST_ROUND
    vars(mover)["LARGEST_ROUND"] = longest
    try:
        yield
    finally:
        vars(mover)["LARGEST_ROUND"] = usual


@contextmanager
def _silence() -> Iterator[None]:
    """What mq logs of repairs and failures is not news here."""
    log = logging.getLogger("mq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def digest(reports: list[Report]) -> str:
    """One digest of many runs."""
    together = hashlib.sha256()
    for report in reports:
        together.update(report.trace.encode())
    return together.hexdigest()
