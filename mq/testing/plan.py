"""The plan of a seed: the numbers of brokers, clients and lives, the file system, the faults, and the work of each
client.

All of it is drawn here; the last digits of a seed decide what it looks for. :mod:`mq.testing.simulation` runs the plan.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

from mq.broker import ledger, mover
from mq.testing.disk import Medium
from mq.testing.faults import KINDS, REFUSALS

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

RESCHEDULING: Final = (4, 8)
"""Seeds with tens that leave these rests when divided by 16: users delay messages, some for days, and change when they
come, or cancel them."""

AT_ONCE: Final = 3
"""Seeds with tens that leave this rest when divided by 4: a batch's calls are made as mq-native makes them."""


class Plan(NamedTuple):
    """The plan of a seed.

    Attributes:
        medium: the file system.
        brokers: how many work on the store at the same time.
        syncfs: whether the store may use syncfs(2).
        lives: how often the store is served, and cut off, before the last look.
        lease_seconds: how long a lease lasts.
        slow: the longest that one hop to the disk may take, in seconds.
        faults: the kinds that happen.
        clients: how many work at a time.
        users: how many more use the broker as programs that embed it.
        longest_round: how many messages the mover moves at a time: with few, a backlog takes several rounds.
        claims: whether batches are claimed, too.
        groups: whether messages have groups, too.
        pairs: how many pairs of users, one of which publishes while the other waits for that.
        refuses: whether there is trouble most of the time, with a check of every message once it is over.
        purges: whether users purge queues, and extend most of their leases.
        reschedules: whether users change when delayed messages come.
        largest_segment: how many keys or histories share a record.
        steps: whether the clock is set before every start.
        at_once: whether a batch's calls are made as mq-native makes them.
        strict_seeds: whether the brokers keep to the letter of the seed; never drawn.
        has_log: whether the store makes batches durable by its log; never drawn.
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
    pairs: int = 0
    refuses: bool = False
    purges: bool = False
    reschedules: bool = False
    largest_segment: int = ledger.LARGEST_SEGMENT
    steps: bool = False
    at_once: bool = False
    strict_seeds: bool = False
    has_log: bool = False

    def with_log(self) -> Plan:
        """The same with a log: by one broker, on a disk on which there can be one."""
        medium = Medium.ORDERED if self.medium is Medium.ADVERSARIAL else self.medium
        return self._replace(has_log=True, brokers=1, syncfs=True, medium=medium)


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
    is_alone = plan.brokers == 1
    return plan._replace(claims=seed % 10 in CLAIMING and is_alone, groups=seed % 50 in GROUPING and is_alone)


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
