"""One seeded run of the real broker, endpoints and store over a disk that forgets, with everything going wrong.

A seed decides everything: the file system, the faults, the power cuts, the clients and when they vanish, the
scheduling. Its plan is drawn at once; its last digits decide what it looks for. The same seed gives the same run, in
any process::

    python -m simulation 4711 --verbose

Trio's deterministic scheduling is a private switch of its own: constraints.txt pins the version, and a test holds the
same seed to the same trace.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from random import Random
from typing import Any, Final, NamedTuple

import trio
from trio.testing import MockClock

from mq.broker import Broker, BrokerConfig, commit, ledger, mover, open_broker, write_jobs
from mq.broker.clock import AHEAD_SECONDS, BEHIND_SECONDS, Boot, Clock, Kernel
from mq.broker.config import LONGEST_LEASE_SECONDS, MARGIN_SECONDS, RETRY_SECONDS
from mq.errors import MQError
from mq.lifecycle import State
from mq.message import MessageIds
from mq.storage.conformance import check_whole
from mq.storage.files.mount import Mount
from mq.storage.files.posix import FolderStorage
from mq.storage.interface import Sharing
from mq.storage.options import StorageOptions
from simulation.calls import StepByStep
from simulation.claimants import Claimants, ConsumerLedger
from simulation.clients import Clients
from simulation.clock_ledger import ClockLedger, NotedClock
from simulation.disk import Disk, Medium
from simulation.expected import Expected
from simulation.faults import KINDS, REFUSALS, Faults, PowerCut
from simulation.group_users import GroupLedger, GroupUsers
from simulation.history import History
from simulation.schedule_users import ScheduleLedger, ScheduleUsers
from simulation.stepped import SteppedThreads
from simulation.users import Users
from simulation.write_job_users import WriteJobUsers, WriteLedger

CLAIMING: Final = (1, 2)
"""The last digits of seeds with claims of batches, if there is one broker. Runs of the latter do hardly anything
else."""

STEPPING: Final = (1, 3, 8, 9)
"""The last digits of seeds that set the clock before every start, mostly by years: as on a machine that has none of its
own."""

WAITING: Final = (5, 6)
"""The last digits of seeds with consumers that wait for every publish, if there is one broker. Their runs do hardly
anything else."""
PAIRS: Final = 3
"""So many of both."""

REFUSING: Final = (0,)
"""The last digits of seeds with a disk that refuses one thing after another for now, and never fails."""

PURGING: Final = (7,)
"""The last digits of seeds with users that purge queues, too, and extend most of their leases."""

GROUPING: Final = (24, 34)
"""Seeds with these rests when divided by 50 have messages with groups, if there is one broker."""

SCHEDULING: Final = (4, 33)
"""Seeds with these rests when divided by 50 have schedules, too, if there is one broker."""

WRITING: Final = (14, 44)
"""Seeds with these rests when divided by 50 have write jobs, if there is one broker, and hardly anything else."""

RESCHEDULING: Final = (4, 8)
"""Seeds with tens that leave these rests when divided by 16: users delay messages, some for days, and change when they
come, or cancel them."""

AT_ONCE: Final = 3
"""Seeds with tens that leave this rest when divided by 4: a batch's calls are made as mq-native makes them."""


class Plan(NamedTuple):
    """The plan of a seed.

    Attributes:
        lives: how often the store is served, and cut off, before the last look.
        slow: the longest that one hop to the disk may take, in seconds.
        users: how many more use the broker as programs that embed it.
        longest_round: how many messages the mover moves at a time: with few, a backlog takes several rounds.
        pairs: how many pairs of users: one publishes while the other waits for that.
        refuses: whether there is trouble most of the time, with a check of every message once it is over.
        purges: whether users purge queues, and extend most of their leases.
        reschedules: whether users change when delayed messages come.
        steps: whether the clock is set before every start.
        at_once: whether a batch's calls are made as mq-native makes them.
        strict: whether the brokers keep to the letter of the seed; never drawn.
        has_log: whether the store makes batches durable by its log; never drawn.
        every: with a log, outcomes that the store tells together before a batch ends; 0 where it tells of none.
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
    groups: bool = False
    writes: bool = False
    schedules: bool = False
    pairs: int = 0
    refuses: bool = False
    purges: bool = False
    reschedules: bool = False
    largest_segment: int = ledger.LARGEST_SEGMENT
    steps: bool = False
    at_once: bool = False
    strict: bool = False
    has_log: bool = False
    every: int = 0

    def with_log(self, every: int) -> Plan:
        """The same with a log: by one broker, on a disk on which there can be one."""
        medium = Medium.ORDERED if self.medium is Medium.ADVERSARIAL else self.medium
        return self._replace(has_log=True, brokers=1, syncfs=True, medium=medium, every=every)


def make_plan(seed: int, random: Random) -> Plan:
    """The plan of a seed: by chance, then by its last digits."""
    plan = _by_chance(random)._replace(steps=seed % 10 in STEPPING, at_once=seed // 10 % 4 == AT_ONCE)
    if plan.brokers == 1 and seed % 10 in WAITING:
        plan = plan._replace(pairs=PAIRS, clients=1, users=0)
    if seed % 10 in REFUSING:
        plan = plan._replace(faults=tuple(REFUSALS), users=plan.users or 2, refuses=True, largest_segment=2)
    if seed % 10 in PURGING:
        plan = plan._replace(users=plan.users or 2, purges=True)
    if seed // 10 % 16 in RESCHEDULING:
        plan = plan._replace(users=plan.users or 2, reschedules=True)
    if plan.brokers == 1 and seed % 10 == CLAIMING[1]:
        plan = plan._replace(clients=1, users=0)
    if plan.brokers == 1 and seed % 50 in WRITING:
        plan = plan._replace(clients=1, users=0, writes=True)
    is_alone = plan.brokers == 1
    return plan._replace(
        claims=seed % 10 in CLAIMING and is_alone,
        groups=seed % 50 in GROUPING and is_alone,
        schedules=seed % 50 in SCHEDULING and is_alone,
    )


def _by_chance(random: Random) -> Plan:
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


START_NS: Final = 1_700_000_000 * 10**9
STUCK_SECONDS: Final = 7200.0
"""Virtual seconds after which a phase counts as stuck (P9). No fault lasts nearly as long."""

SHORTEST_STEP: Final = 10.0
LONGEST_STEP: Final = 30 * 365 * 86_400.0
"""Seconds by which a clock is wrong for a while, ahead or behind; drawn logarithmically."""
WRONG_SECONDS: Final = (1.0, 600.0)
"""For so long."""

STEPS_SECONDS: Final = tuple(years * 365 * 86_400.0 for years in (-30, -2, 0, 0, 2, 30))
"""The steps by which such a clock is set, mostly years."""

DAY: Final = 86_400.0

DISK_BYTES: Final = 1 << 18
"""The stated size of the disk, which keeps the reserve small."""

LOG_BYTES: Final = 1 << 16
"""Of a segment: few, so that there are many checkpoints."""

CHUNK_BYTES: Final = 60
"""Of a write job's chunk, so that a request has several."""
ROWS_AT_ONCE: Final = 5
"""Rows of a write job that are published together, so that a commit takes several steps."""
MOUNTS: Final = {
    Medium.ORDERED: Mount("ordered", atomic_rename=True, ordered=True, logged=True, size=DISK_BYTES),
    Medium.UNORDERED: Mount("unordered", atomic_rename=True, logged=True, size=DISK_BYTES),
    Medium.ADVERSARIAL: Mount("adversarial", size=DISK_BYTES),
}


class RunReport(NamedTuple):
    """The outcome of a run.

    Attributes:
        trace: a digest of every call to the disk: the same for the same seed.
    """

    seed: int
    plan: Plan
    violations: tuple[str, ...]
    trace: str
    calls: int
    deliveries: int
    faults: int
    log: tuple[str, ...]


def run_seed(
    seed: int, tell: Callable[[str], None] | None = None, *, strict: bool = False, log: bool = False
) -> RunReport:
    """Run one seed to its end.

    Args:
        strict: whether the brokers keep to the letter of the seed (``--strict``).
        log: whether the store makes batches durable by its log (``--log``).
    """
    return _Run(seed, tell, strict=strict, log=log).run()


class _Run:
    def __init__(self, seed: int, tell: Callable[[str], None] | None, *, strict: bool, log: bool) -> None:
        self.seed = seed
        self.random = Random(seed)
        plan = make_plan(seed, self.random)._replace(strict=strict)
        self.plan = plan.with_log(Random(f"telling of {seed}").choice((0, 1, 2, 3))) if log else plan
        self.slow, self.brokers = self.plan.slow, self.plan.brokers
        self.log: list[str] = []
        self.faults = Faults(self.random, self._note)
        self.disk = Disk(self.plan.medium, self.random, self.faults, tell)
        if self.plan.at_once:
            self.disk.native = StepByStep(self.disk)
        self.ahead_seconds = 0.0
        self.wrong = Random(f"wrong clock of {seed}")
        self.wrong_seconds = 0.0  # by so much the clock is wrong for a while, besides
        self.wrong_until = 0.0
        self.clocks = ClockLedger(self._now, lambda: self.ahead_seconds + self.wrong_seconds, self._end_leases)
        self.boots, self.booted = 0, 0.0
        self.clock: Clock | None = None
        self.steps = Random(f"clock of {seed}") if self.plan.steps else None
        self.elapsed = 0.0
        self.history = History(self._now, self.plan.lease_seconds, ordered=self.plan.brokers == 1)
        scarce = "no handles" in self.plan.faults
        self.expected = Expected(self.history, self._now, self._steady, lambda: self.clocks.believed, scarce=scarce)
        self.batches = ConsumerLedger(self.history, self._now)
        self.groups = GroupLedger(self.history, self._now)
        self.schedules = ScheduleLedger(self.history, self._now)
        self.writes = WriteLedger(self.history)

    def run(self) -> RunReport:
        with _silence(), _small(self.plan):
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
        return RunReport(
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
        return START_NS + round((self._now() + self.ahead_seconds + self.wrong_seconds) * 1e9)

    def _steady(self) -> float | None:
        """The steady time of the first broker, in seconds; None while its clock is in doubt."""
        return None if self.clock is None or self.clock.doubt else self.clock.steady_ns() / 1e9

    def _kernel(self) -> Kernel:
        return Kernel(lambda: Boot(f"boot {self.boots}", self._now() - self.booted))

    def _note(self, text: str) -> None:
        self.log.append(f"{self._now():10.3f} {text}")

    # A life

    def _serve(self, phase: Callable[[], Awaitable[None]]) -> None:
        clock = seeded_clock(self.random.getrandbits(64), self.elapsed)
        run_until_cut(self._bounded, phase, clock=clock)
        self.elapsed = clock.current_time()

    async def _bounded(self, phase: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(STUCK_SECONDS * 12) as scope:
            await phase()
        if scope.cancelled_caught:
            self.history.violate("P9: the run is stuck")

    def _crash(self) -> None:
        """End a life: the power fails, or just the process ends."""
        unsure = self.faults.seen["sync error"] and self.plan.medium is not Medium.ORDERED
        if self.random.random() < 0.8 or unsure:  # without a journal, docs/on-disk.md asks for a remount
            self.disk.crash()
            self.boots, self.booted = self.boots + 1, self.elapsed
        else:
            self._note("killed: the kernel lives on")
            self.disk.forget_handles()
        self.faults.lift()
        self.history.cut_off()
        self.groups.cut_off()
        self.elapsed += self.random.choice((0.0, 1.0, self.plan.lease_seconds, 100.0))
        if self.plan.claims and self.random.random() < 0.3:
            self.elapsed = self.batches.near_an_end(self.elapsed, self.random)
        self._set_clock()

    def _set_clock(self) -> None:
        """Set the clock. Call it while no broker serves the store."""
        # A machine that starts has its clock set, unless that is wrong by days: then it is in doubt.
        if self._now() >= self.wrong_until or -BEHIND_SECONDS <= self.wrong_seconds <= AHEAD_SECONDS + DAY:
            self.wrong_seconds = 0.0
        if self.steps is None:
            return
        before, self.ahead_seconds = self.ahead_seconds, self.steps.choice(STEPS_SECONDS)
        ahead = self.ahead_seconds - before
        self._note(f"the clock is set by {ahead / 86_400:.0f} days")
        if self.plan.brokers > 1 and ahead > 0:  # brokers that share a store know no other clock
            self.clocks.believed += ahead
            self._end_leases()

    def _end_leases(self) -> None:
        """Note that time was counted which has not passed: leases, delays and key windows end by it."""
        self.history.leases_end()
        self.expected.leases_end()
        self.batches.leases_end()
        self.groups.leases_end()

    async def _live(self) -> None:
        async with AsyncExitStack() as stack:
            brokers = [await self._open(stack) for _ in range(self.brokers)]
            last = 1500 if self.plan.users or self.plan.pairs else 600
            cut_at = self.faults.calls + self.random.randint(1, last)
            self.faults.cut_at = cut_at if self.random.random() < 0.8 else None
            self.faults.short_writes = self.random.choice((0.0, 0.1))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._trouble)
                nursery.start_soon(self._be_wrong)
                async with trio.open_nursery() as people:
                    people.start_soon(self._clients(brokers).run, self.plan.clients)
                    users = self._users(brokers)
                    people.start_soon(users.run, self.plan.users, self.plan.pairs)
                    if self.plan.claims:
                        people.start_soon(self._claimants(brokers[0], users).run)
                    if self.plan.schedules:
                        people.start_soon(self._schedule_users(brokers[0], users).run)
                    if self.plan.groups:
                        people.start_soon(self._group_users(brokers[0], users).run)
                    if self.plan.writes:
                        people.start_soon(self._write_job_users(brokers[0], users).run)
                nursery.cancel_scope.cancel()
            self._check_health(brokers)
            if self.plan.refuses and self.plan.brokers == 1:
                await self._look_for_all(brokers[0])
            self._note("killed at the end of its life")
            raise PowerCut

    def _clients(self, brokers: list[Broker]) -> Clients:
        return Clients(brokers, self.history, self.random, self._note, self.plan.lease_seconds)

    def _users(self, brokers: list[Broker]) -> Users:
        lease_seconds = self.plan.lease_seconds
        return Users(
            brokers,
            self.expected,
            self.history,
            self.random,
            self._note,
            lease_seconds,
            purges=self.plan.purges,
            reschedules=self.plan.reschedules,
        )

    def _claimants(self, broker: Broker, users: Users) -> Claimants:
        return Claimants(broker, self.batches, users.ask, self.random, self.plan.lease_seconds)

    def _group_users(self, broker: Broker, users: Users) -> GroupUsers:
        return GroupUsers(broker, self.groups, users.ask, self.random, self.plan.lease_seconds)

    def _schedule_users(self, broker: Broker, users: Users) -> ScheduleUsers:
        return ScheduleUsers(broker, self.schedules, users.ask, slow=self.slow, is_calm=not self.plan.faults)

    def _write_job_users(self, broker: Broker, users: Users) -> WriteJobUsers:
        return WriteJobUsers(broker, self.writes, users.ask, self.random, is_calm=not self.plan.faults)

    def _check_health(self, brokers: list[Broker]) -> None:
        """P8: a fault that passes leaves no mark; any other stops all changes until a restart."""
        if not self.faults.broken and not all(broker.ready for broker in brokers):
            failures = [broker._committer.failure for broker in brokers]
            self.history.violate(f"P8: not ready, though nothing happened that does not pass: {failures}")

    async def _look_for_all(self, broker: Broker) -> None:
        """P9: the broker tries again in this life what was refused for now; it needs no restart."""
        self.faults.active = {}
        await trio.sleep(2 * (RETRY_SECONDS + self.slow))  # a try that has begun may take as long as a slow call
        await trio.testing.wait_all_tasks_blocked()
        known = set[str]()
        for queue in broker.inventory():
            known.update(queue.moving)
            for entry in queue.entries:
                known.add(entry.id)
                if entry.state is State.NEW:
                    self.history.violate(f"P9: {entry.id} of {queue.queue} is not delivered, and nothing is in the way")
        for where, id in [*self.history.missing(), *self.expected.missing(), *self.batches.missing()]:
            if id not in known:
                self.history.violate(f"P9: {id} of {where} is not to be had before a restart")

    async def _trouble(self) -> None:
        """Let faults come and go, and set the clock back."""
        while True:
            await trio.sleep(self.random.uniform(0, 1 if self.plan.refuses else 10))
            if self.plan.faults and self.random.random() < 0.7:
                name = self.random.choice(self.plan.faults)
                self.faults.active = {name: {**KINDS, **REFUSALS}[name]}
                self._note(f"trouble begins: {name}")
                self.history.in_order = False  # what could not be delivered for a while comes late
                await trio.sleep(self.random.uniform(0, 20))
                self.faults.active = {}
                self._note("trouble ends")
            elif self.brokers == 1 and self.random.random() < 0.3:  # peers need clocks that agree
                self.ahead_seconds -= self.random.choice((0.5, 60.0, 86400.0))
                self._note("the clock is set back")

    async def _be_wrong(self) -> None:
        """Let the wall clock be wrong for a while, again and again."""
        while self.brokers == 1:  # peers need clocks that agree
            await trio.sleep(max(0.0, self.wrong_until - self._now()))
            if self.wrong_seconds:
                self.wrong_seconds = 0.0
                self._note("the clock is right again")
            await trio.sleep(self.wrong.uniform(0, 60))
            size = math.exp(self.wrong.uniform(math.log(SHORTEST_STEP), math.log(LONGEST_STEP)))
            self.wrong_seconds = self.wrong.choice((-size, size))
            self.wrong_until = self._now() + self.wrong.uniform(*WRONG_SECONDS)
            self._note(f"the clock is wrong by {self.wrong_seconds:.0f} s for {self.wrong_until - self._now():.0f} s")

    async def _open(self, stack: AsyncExitStack) -> Broker:
        sharing = Sharing.PEERS if self.brokers > 1 else Sharing.ALONE
        storage = FolderStorage(
            "simulated:",
            "/mq",
            self.disk,
            StorageOptions(sharing=sharing, log=self.plan.has_log, log_bytes=LOG_BYTES),
            mount=lambda root: MOUNTS[self.plan.medium],
            hop=self._hop,
            hop_in_parts=SteppedThreads(self.plan.every, self._pause).hop_in_parts if self.plan.every else None,
            syncfs=self.plan.syncfs,
            ids=MessageIds(self._clock_ns, self.random.getrandbits(48)),
            draw=self.random.randbytes,
        )
        await storage.open()
        config = BrokerConfig(
            workers=self.random.choice((1, 2, 8)),
            peers=self.brokers - 1,
            visibility_seconds=self.plan.lease_seconds,
            strict=self.plan.strict,
        )
        random = Random(self.random.random())
        clock = NotedClock(self.clocks, self._clock_ns, trio.current_time, self._kernel())
        broker = await stack.enter_async_context(
            open_broker(storage, config, observers=[self.history], clock=clock, random=random)
        )
        self.clock, self.expected.started_at = clock, trio.current_time()
        return broker

    async def _hop(self, verb: Callable[..., Any], *args: object) -> Any:
        """Make a call to the disk: it takes its time, but acts in one step, and is not interrupted."""
        with trio.CancelScope(shield=True):
            await self._pause()
            return verb(*args)

    async def _pause(self) -> None:
        slow = self.slow if self.random.random() < 0.1 else self.slow / 100
        await trio.sleep(self.random.uniform(0, slow))
        self.elapsed = trio.current_time()  # for a call in another thread, which takes no time

    async def _only_open(self) -> None:
        async with AsyncExitStack() as stack:
            await self._open(stack)
            raise PowerCut

    # The last look

    async def _last_look(self) -> None:
        """Take out every message, with nothing going wrong any more, and compare."""
        self.slow, self.brokers = 0.0, 1
        async with AsyncExitStack() as stack:
            broker = await self._open(stack)
            clients, users = self._clients([broker]), self._users([broker])
            await clients.check_queues()
            await users.publish_all_again()
            await clients.drain()
            await users.drain()
            claimants, group_users = self._claimants(broker, users), self._group_users(broker, users)
            await claimants.drain()
            await group_users.drain()
            await trio.sleep(LONGEST_LEASE_SECONDS + MARGIN_SECONDS + 1)  # a clock set back holds a lease for as long
            await clients.drain()
            await users.drain()
            await claimants.drain()
            await group_users.drain()
            await self._write_job_users(broker, users).drain()
            await self._schedule_users(broker, users).drain()
            self.expected.check_lost()
            self.batches.check_lost()
            self.groups.check_lost()
            self.writes.check_all()
            for queue, id in self.history.missing():
                self.history.violate(f"P1: {id} of {queue} was acknowledged and is not there")
            await trio.testing.wait_all_tasks_blocked()
            await self._look_over(broker)

    async def _look_over(self, broker: Broker) -> None:
        try:
            await check_whole(broker.storage)
        except (AssertionError, MQError) as error:
            self.history.violate(f"the store is not whole: {error}")


def seeded_clock(seed: int, began: float) -> MockClock:
    """A clock for one run of Trio: tasks come in the order that `seed` has, and time begins at `began` seconds."""
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio._core._run._r.seed(seed)
    clock = MockClock(autojump_threshold=0)
    clock.jump(began)
    return clock


def run_until_cut(life: Callable[..., Awaitable[None]], *args: Any, clock: MockClock) -> None:
    """Run a life of a process to its end, or until the power is cut.

    Raises:
        BaseExceptionGroup: what else went wrong in it.
    """
    try:
        trio.run(life, *args, clock=clock)
    except PowerCut:
        pass
    except BaseExceptionGroup as group:
        rest = group.split(PowerCut)[1]
        if rest is not None:
            raise rest from None


@contextmanager
def _small(plan: Plan) -> Iterator[None]:
    """A block in which rounds, segments, chunks and submissions are small, so that few messages fill them."""
    small = (
        (mover, "LARGEST_ROUND", plan.longest_round),
        (ledger, "LARGEST_SEGMENT", plan.largest_segment),
        (commit, "ANSWERED_TOGETHER", plan.every),
        (write_jobs, "LARGEST_CHUNK", CHUNK_BYTES),
        (write_jobs, "ROWS_AT_ONCE", ROWS_AT_ONCE),
    )
    usual = [vars(module)[name] for module, name, _ in small]
    for module, name, value in small:
        vars(module)[name] = value
    try:
        yield
    finally:
        for (module, name, _), value in zip(small, usual, strict=True):
            vars(module)[name] = value


@contextmanager
def _silence() -> Iterator[None]:
    """A block without mq's log of repairs and failures, which are no news here."""
    log = logging.getLogger("mq")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def digest(reports: list[RunReport]) -> str:
    """One digest of many runs."""
    together = hashlib.sha256()
    for report in reports:
        together.update(report.trace.encode())
    return together.hexdigest()
