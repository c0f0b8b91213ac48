"""Messages through several brokers on one root, by producers and consumers that talk to all of them; and a verdict."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Final

from tests.e2e.clients import Clients, Server
from tests.e2e.daemon import Daemon
from tests.e2e.history import Delivered, Event, Published, Removed, Verdict, judge

CONSUMERS: Final = 8
PRODUCERS: Final = 4
LONGEST_BACKLOG: Final = 50
_PATIENCE_SECONDS: Final = 240.0
_POLL_SECONDS: Final = 0.05

Task = Callable[[], None]


class Through:
    """One queue, and who works at it.

    Args:
        lease_seconds: how long their leases are.
        silence: as a client's.
        entered: makes a task run where the daemons can be reached.
    """

    def __init__(
        self,
        daemons: Sequence[Server],
        lease_seconds: float,
        silence: float | None = None,
        entered: Callable[[Task], Task] = lambda task: task,
    ) -> None:
        self.clients = Clients(daemons, walk_away=0, silence=silence)
        self._lease_seconds = lease_seconds
        self._entered = entered
        self._numbers = itertools.count()
        self._most = 0
        self._tasks: list[Future[None]] = []
        self._counted = 0
        self._counts: Counter[type[Event]] = Counter()
        self._unanswered = 0
        self._counting = threading.Lock()
        entered(self.clients.create_queue)()

    @contextmanager
    def at_work(self, messages: int) -> Iterator[None]:
        """Publish at least so many more, for as long as the block lasts, and consume; in the end all are removed."""
        self.clients.stop = threading.Event()
        self._most = self.count(Published) + messages
        over = threading.Event()
        producers = [partial(self._produce, number, over) for number in range(PRODUCERS)]
        consumers = [partial(self.clients.consume, number, Random(number)) for number in range(CONSUMERS)]
        with ThreadPoolExecutor(PRODUCERS + CONSUMERS) as pool:
            self._tasks = [pool.submit(self._entered(task)) for task in (*producers, *consumers)]
            try:
                yield
                over.set()
                published = self._tasks[:PRODUCERS]
                self.wait_until(lambda: all(task.done() for task in published), "all published", 60 + messages / 4)
                self.wait_until(self._is_empty, "all removed")
            finally:
                self.clients.stop.set()
        for task in self._tasks:
            task.result()

    def go_on(self, messages: int) -> None:
        """Wait until so many more are handed out."""
        seen = self.count(Delivered)
        self.wait_until(lambda: self.count(Delivered) >= seen + messages, f"{messages} more deliveries")

    def count(self, kind: type[Event]) -> int:
        """How many events of a kind there were."""
        with self._counting:
            history = self.clients.history
            while self._counted < len(history):
                event = history[self._counted]
                self._counts[type(event)] += 1
                self._unanswered += isinstance(event, Published) and event.id is None
                self._counted += 1
            return self._counts[kind]

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = _PATIENCE_SECONDS) -> None:
        """Until something is so. A client's error comes first."""
        deadline = time.monotonic() + seconds
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, f"{what}: not within {seconds} s; {self.verdict().summary()}"
            time.sleep(_POLL_SECONDS)

    def verdict(self) -> Verdict:
        """Of all that happened so far."""
        return judge(list(self.clients.history), self._lease_seconds)

    def kill_in_turn(self, daemons: Sequence[Daemon], kills: int) -> str:
        """Kill one daemon after another, so often, and start it again, while clients go on. How long there was no
        delivery then."""
        pauses = []
        with self.at_work(kills):
            for number in range(kills):
                self.go_on(10)
                before = len(self.clients.history)
                daemons[number % len(daemons)].kill()
                self.go_on(20)
                pauses.append(self.longest_pause(before))
                daemons[number % len(daemons)].start()
        return f"without a delivery {sorted(pauses)[kills // 2]:.2f} s, at most {max(pauses):.2f} s"

    def longest_pause(self, since: int) -> float:
        """Seconds without a delivery, after so many events."""
        instants = sorted(event.answered for event in self.clients.history[since:] if isinstance(event, Delivered))
        return max(later - earlier for earlier, later in itertools.pairwise(instants))

    def _produce(self, number: int, over: threading.Event) -> None:
        """No faster than the consumers follow. What was left without an answer may never have been stored."""
        with self.clients.caller(number) as caller:
            while not (over.is_set() and self.count(Published) >= self._most) and not self.clients.stop.is_set():
                if self.count(Published) - self._unanswered - self.count(Delivered) < LONGEST_BACKLOG:
                    self.clients.publish(caller, b"message %d" % next(self._numbers))
                else:
                    self.clients.stop.wait(_POLL_SECONDS)

    def _is_empty(self) -> bool:
        if self.count(Removed) < self.count(Published):
            unanswered = self.verdict().unanswered
            if self.count(Removed) < self.count(Published) - unanswered:
                return False
        verdict = self.verdict()
        return not verdict.missing and not verdict.left
