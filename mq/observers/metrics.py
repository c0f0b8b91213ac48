"""Counts and rates of what happens to messages, by queue."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from mq.lifecycle import Histogram, Kind, Span
from mq.message import MessageId
from mq.observers.rates import FLOW_OF, SLOT_SECONDS, Flow, Ring, places_of

SHORT: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds, for what a disk does."""
LONG: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
"""Seconds, for how long a message waits."""


_REAP: Final = Kind.REAP  # quicker than an attribute of the enumeration
OTHERS: Final = "*"
"""Stands for the queues that are counted together. No queue has that name."""
DELIVERY_AGE: Final = "delivery_age"
MOST_RINGS: Final = 12_000
"""Queues with known rates. Beyond that, queues without an event for a minute make room."""
_SMALLEST_SWEEP: Final = 65_536
"""Counts, each of a queue and a kind, after which counts of deleted queues are dropped."""


class Totals(NamedTuple):
    """Counts since the start.

    Attributes:
        counts: by queue and kind; under :data:`OTHERS` those of all other queues, and of queues that are gone.
        published_bytes: of bodies, by queue, likewise.
    """

    counts: dict[str, Counter[Kind]]
    published_bytes: dict[str, int]


class Durations(NamedTuple):
    """How long something took.

    Attributes:
        buckets: for each bound in seconds, and at last for ``+Inf``: how often it took no longer.
        total: seconds, all together.
    """

    buckets: list[tuple[str, int]]
    total: float


class Metrics:
    """Counts transitions.

    Transitions in a slot of five seconds are counted in a dictionary. The next slot adds it to the counts since the
    start, and to the rings of its queues. So a message costs one count, and an idle daemon does not wake up.

    Args:
        clock: seconds that only go on.
        folder: of the store, on whose file system room can be short; empty for none.

    Attributes:
        knows: whether there is a queue of that name. To be set, or the counts of queues that are gone stay until
            they are read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, folder: str = "", version: str = "") -> None:
        self.folder = folder
        self.version = version
        self.knows: Callable[[str], bool] | None = None
        self._everything = Ring(0)
        self._clock = clock
        self._started = clock()
        self._slot = 0
        self._slot_ends = self._started + SLOT_SECONDS
        self._lately = _counters()
        self._arrived: Counter[str] = Counter()
        self._rings: dict[str, Ring] = {}
        self._full_in = -1
        self._counts = _counters()
        self._sweep_at = _SMALLEST_SWEEP
        self._gone: Counter[Kind] = Counter()
        self._bytes: Counter[str] = Counter()
        self._gone_bytes = 0
        self._shown: set[str] = set()
        self._summed: set[str] = set()
        self._spans = {span: Histogram(SHORT) for span in Span}
        self._ages = Histogram(LONG)

    def counted(
        self,
        kind: Kind,
        queue: str,
        count: int = 1,
        size: int = 0,
        destination: str | None = None,
        *,
        is_reaped: bool = False,
    ) -> None:
        """As :meth:`mq.lifecycle.Meter.counted`."""
        if self._clock() >= self._slot_ends:
            self.catch_up()
        self._lately[kind][queue] += count
        if is_reaped:
            self._lately[_REAP][queue] += count
        if size:
            self._bytes[queue] += size
        if destination is not None:
            self._arrived[destination] += count

    def handed_out(self, times: Sequence[int], now_ns: int) -> None:
        """As :meth:`mq.lifecycle.Meter.handed_out`."""
        for ticks in times:  # a clock may have been set back
            self._ages.observe(max(0.0, (now_ns - MessageId.time_ns(ticks)) / 1e9))

    def histogram(self, span: Span) -> Histogram:
        """Return where the seconds that something takes are counted."""
        return self._spans[span]

    @property
    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started

    def durations(self) -> dict[str, Durations]:
        """How long things took since the start, in seconds: those of :class:`~mq.lifecycle.Span`, and under
        :data:`DELIVERY_AGE` how long ago messages had been published when they were handed out."""
        found = {span.value: histogram for span, histogram in self._spans.items()} | {DELIVERY_AGE: self._ages}
        return {name: Durations(histogram.cumulative(), histogram.total) for name, histogram in found.items()}

    def all(self) -> Ring:
        """The ring of all queues together, deleted ones included. Call :meth:`catch_up` first."""
        return self._everything

    def ring(self, queue: str) -> Ring | None:
        """The ring of a queue; None without recent events. Call :meth:`catch_up` first."""
        ring = self._rings.get(queue)
        if ring is not None:
            ring.advance(self._slot)
        return ring

    def summary(self, queues: Collection[str]) -> dict[str, Any]:
        """Since the start: counts by kind, and rates per second over the last minute, of all queues together.

        Args:
            queues: those there are. What others had is counted in the sum only.
        """
        self.catch_up()
        self._forget_all_but(queues)
        uptime = self.uptime
        return {
            "uptime_seconds": round(uptime, 3),
            "counts": {kind.value: self._gone[kind] + counts.total() for kind, counts in self._counts.items()},
            "per_second": self._per_second(self._everything, uptime),
        }

    def report_of(self, queue: str) -> dict[str, Any]:
        """Since the start: counts by kind, rates per second and bytes of one queue. Call :meth:`summary` first."""
        return {
            "counts": {kind.value: counts[queue] for kind, counts in self._counts.items()},
            "per_second": self._per_second(self.ring(queue), self.uptime),
            "published_bytes": self._bytes[queue],
        }

    def _per_second(self, ring: Ring | None, uptime: float) -> dict[str, float]:
        if ring is None:
            return {}
        rates = {kind.value: ring.rates(flow, uptime).minute for kind, flow in FLOW_OF.items()}
        return {kind: round(rate, 3) for kind, rate in rates.items() if rate}

    def totals(self, queues: Collection[str], most: int) -> Totals:
        """Counts since the start. A queue that is counted with the others stays there, so that no count goes back.

        Args:
            most: how many of them are counted one by one, at the most.
        """
        self.catch_up()
        self._forget_all_but(queues)
        self._shown.intersection_update(queues)
        self._summed.intersection_update(queues)
        for queue in sorted(set(queues) - self._shown - self._summed):
            (self._shown if len(self._shown) < most else self._summed).add(queue)
        counts = {queue: Counter[Kind]() for queue in sorted(self._shown)} | {OTHERS: self._gone.copy()}
        sizes = {queue: self._bytes[queue] for queue in sorted(self._shown)}
        sizes[OTHERS] = self._gone_bytes + sum(self._bytes[queue] for queue in self._summed)
        for kind, numbers in self._counts.items():
            for queue, number in numbers.items():
                counts[queue if queue in self._shown else OTHERS][kind] += number
        return Totals(counts, sizes)

    def catch_up(self) -> None:
        """Add the counts of the last slot to the totals and rings, and begin the current slot."""
        lately, arrived, slot = self._lately, self._arrived, self._slot
        self._slot = int(self.uptime // SLOT_SECONDS)
        self._slot_ends = self._started + (self._slot + 1) * SLOT_SECONDS
        self._lately, self._arrived = _counters(), Counter()
        for kind, numbers in lately.items():
            if numbers:
                self._counts[kind].update(numbers)
                flow = FLOW_OF.get(kind)
                if flow is not None:
                    self._count_all(numbers, slot, flow)
        self._count_all(arrived, slot, Flow.ARRIVE)
        self._everything.advance(self._slot)
        self._sweep()

    def _count_all(self, numbers: Counter[str], slot: int, flow: Flow) -> None:
        self._everything.add(slot, flow, numbers.total())
        rings, (fine, coarse) = self._rings, places_of(slot, flow)
        for queue, number in numbers.items():
            ring = rings.get(queue) or self._new_ring(queue, slot)
            if ring is None:
                continue
            if ring.slot != slot:
                ring.advance(slot)
            counts = ring.counts  # as its own `add` does, which would take twice as long for ten thousand queues
            counts[fine] += number
            counts[coarse] += number

    def _new_ring(self, queue: str, slot: int) -> Ring | None:
        if len(self._rings) >= MOST_RINGS:
            self._make_room(slot)
            if self._full_in == slot:
                return None
        ring = self._rings[queue] = Ring(slot)
        return ring

    def _make_room(self, slot: int) -> None:
        """Drop the rings of queues without an event for a minute. Where that makes no room, the next slot tries
        again."""
        if self._full_in == slot:
            return
        for queue in [queue for queue, ring in self._rings.items() if ring.is_idle(slot)]:
            del self._rings[queue]
        if len(self._rings) >= MOST_RINGS:
            self._full_in = slot

    def _sweep(self) -> None:
        """Forget queues that are gone, before their counts fill the memory."""
        counted = sum(map(len, self._counts.values()))
        if counted > self._sweep_at and self.knows is not None:
            self._forget_all_but({queue for numbers in self._counts.values() for queue in numbers if self.knows(queue)})
            self._sweep_at = max(_SMALLEST_SWEEP, 2 * sum(map(len, self._counts.values())))

    def _forget_all_but(self, queues: Collection[str]) -> None:
        for kind, numbers in self._counts.items():
            for queue in [queue for queue in numbers if queue not in queues]:
                self._gone[kind] += numbers.pop(queue)
                self._gone_bytes += self._bytes.pop(queue, 0)
        for queue in [queue for queue in self._rings if queue not in queues]:
            del self._rings[queue]


def _counters() -> dict[Kind, Counter[str]]:
    """One for each kind, by queue."""
    return {kind: Counter() for kind in Kind}
