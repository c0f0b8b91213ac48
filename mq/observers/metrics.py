"""Counts and rates of what happens to messages, by queue."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from mq.lifecycle import Kind, Transition

WINDOW_SECONDS: Final = 60
"""Rates are averages over the last minute."""


class Metrics:
    """Counts transitions.

    Args:
        clock: seconds that only go on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._counts: Counter[tuple[str, Kind]] = Counter()
        self._gone: Counter[Kind] = Counter()
        self._bytes: Counter[str] = Counter()
        self._recent: deque[tuple[int, Counter[tuple[str, Kind]]]] = deque()

    def saw(self, transitions: Sequence[Transition]) -> None:
        """Count these."""
        second = int(self._clock())
        if not self._recent or self._recent[-1][0] != second:
            self._recent.append((second, Counter()))
            self._drop_old(second)
        for transition in transitions:
            event = (transition.queue, transition.kind)
            self._counts[event] += 1
            self._recent[-1][1][event] += 1
            if transition.size is not None:
                self._bytes[transition.queue] += transition.size

    def report(self, queues: Collection[str]) -> dict[str, Any]:
        """Since the start: counts by kind, and rates per second over the last minute, in all and by queue.

        Args:
            queues: those there are. What others had is counted in the sum only.
        """
        self._drop_old(int(self._clock()))
        self._forget_all_but(queues)
        recent: Counter[tuple[str, Kind]] = Counter()
        for _, counts in self._recent:
            recent.update(counts)
        seconds = min(max(self._clock() - self._started, 1.0), WINDOW_SECONDS)
        return {
            "uptime_seconds": round(self._clock() - self._started, 3),
            "counts": _by_kind(self._counts, self._gone),
            "per_second": _rates(_by_kind(recent, Counter()), seconds),
            "queues": {
                queue: {
                    "counts": _by_kind(self._counts, Counter(), queue),
                    "per_second": _rates(_by_kind(recent, Counter(), queue), seconds),
                    "published_bytes": self._bytes[queue],
                }
                for queue in sorted(queues)
            },
        }

    def _forget_all_but(self, queues: Collection[str]) -> None:
        for queue, kind in [event for event in self._counts if event[0] not in queues]:
            self._gone[kind] += self._counts.pop((queue, kind))
            self._bytes.pop(queue, None)

    def _drop_old(self, second: int) -> None:
        while self._recent and self._recent[0][0] <= second - WINDOW_SECONDS:
            self._recent.popleft()


def _by_kind(counts: Mapping[tuple[str, Kind], int], more: Counter[Kind], queue: str | None = None) -> dict[str, int]:
    found = {kind.value: more[kind] for kind in Kind}
    for (name, kind), number in counts.items():
        if queue in (None, name):
            found[kind.value] += number
    return found


def _rates(counts: Mapping[str, int], seconds: float) -> dict[str, float]:
    return {kind: round(number / seconds, 3) for kind, number in counts.items() if number}
