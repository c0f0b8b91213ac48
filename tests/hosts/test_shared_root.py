"""Several brokers on one root that is a GlusterFS volume with three copies, while copies die and cables are pulled.

Nothing acknowledged is lost, whatever happens. While nothing happens nothing is handed out twice; what is, is counted.
``--shared-messages=5000`` is the long run, ``make shared``.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.e2e.clients import Clients
from tests.e2e.history import Delivered, Event, Published, Verdict, judge
from tests.hosts import gluster
from tests.hosts.brokers import HostDaemon, on
from tests.hosts.gluster import Gluster
from tests.hosts.network import Network, made_network

CONSUMERS: Final = 8
PRODUCERS: Final = 4
LEASE_SECONDS: Final = 20.0
PING_SECONDS: Final = 3
CUT_SECONDS: Final = 8.0
SILENCE_SECONDS: Final = 15.0
LONGEST_BACKLOG: Final = 50
_POLL_SECONDS: Final = 0.05

pytestmark = [pytest.mark.root, pytest.mark.cluster, pytest.mark.slow]


class Volume:
    """A volume, a broker on each of two of its hosts, and a host for their clients."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network = network
        self.client = network["client"]
        self.gluster = Gluster(network, folder, ("n1", "n2", "n3"), ping_seconds=PING_SECONDS)
        self.gluster.start()
        flags = ("--peers", "1", "--delay", str(LEASE_SECONDS))
        self.daemons = [
            HostDaemon(network[name], self.client, self.gluster.root(name) / "q", folder / f"{name}.log", *flags)
            for name in ("n1", "n2")
        ]
        for daemon in self.daemons:
            daemon.start()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    reason = gluster.missing()
    if reason:
        pytest.skip(f"no volume can be made here: {reason}")
    with made_network("n1", "n2", "n3", "client") as network:
        yield Volume(network, tmp_path / "volume")


class Run:
    """Producers and consumers at the brokers of a volume."""

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        self.clients = Clients(volume.daemons, walk_away=0, silence=SILENCE_SECONDS)
        self._published = itertools.count()
        self._most = 0
        self._tasks: list[Future[None]] = []
        with volume.client.inside():
            self.clients.create_queue()

    @contextmanager
    def at_work(self, messages: int) -> Iterator[None]:
        """Publish at least so many more, for as long as the block lasts, and consume; in the end all are removed."""
        self.clients.stop = threading.Event()
        self._most = self.count(Published) + messages
        over = threading.Event()
        producers = [partial(self._produce, number, over) for number in range(PRODUCERS)]
        consumers = [partial(self.clients.consume, number, Random(number)) for number in range(CONSUMERS)]
        tasks = [on(self.volume.client, task) for task in (*producers, *consumers)]
        with ThreadPoolExecutor(len(tasks)) as pool:
            self._tasks = [pool.submit(task) for task in tasks]
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
        return sum(isinstance(event, kind) for event in list(self.clients.history))

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
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
        return judge(list(self.clients.history), LEASE_SECONDS)

    def longest_pause(self, since: int) -> float:
        """Seconds without a delivery, after so many events."""
        instants = sorted(event.answered for event in self.clients.history[since:] if isinstance(event, Delivered))
        return max(later - earlier for earlier, later in itertools.pairwise(instants))

    def _produce(self, number: int, over: threading.Event) -> None:
        """No faster than the consumers follow."""
        with self.clients.caller(number) as caller:
            while not (over.is_set() and self.count(Published) >= self._most) and not self.clients.stop.is_set():
                if self.count(Published) - self.count(Delivered) < LONGEST_BACKLOG:
                    self.clients.publish(caller, b"message %d" % next(self._published))
                else:
                    self.clients.stop.wait(_POLL_SECONDS)

    def _is_empty(self) -> bool:
        return not self.verdict().missing and not self.verdict().left


def test_nothing_is_lost_when_a_copy_dies_and_a_cable_is_pulled(
    volume: Volume, shared_messages: int, report: Callable[[str], None]
) -> None:
    run = Run(volume)
    quiet = shared_messages // 3
    began = time.monotonic()
    with run.at_work(quiet):
        pass
    calm = run.verdict()
    report(f"while nobody fails: {calm.summary()}; {quiet / (time.monotonic() - began):.0f} messages/s through both")
    assert not calm.faults(peers=0)
    assert (calm.again, calm.twice) == (0, 0), "handed out twice, though nobody failed"

    cut_off = volume.daemons[1]
    share = (shared_messages - quiet) // 6
    begin, began = len(run.clients.history), time.monotonic()
    with run.at_work(shared_messages - quiet):
        run.go_on(share)
        volume.gluster.kill_brick("n3")
        run.go_on(share)
        volume.gluster.revive_brick("n3")
        run.wait_until(lambda: volume.gluster.is_healed("n1"), "a healed volume")
        run.go_on(share)
        cut_off.host.cut()
        run.go_on(share)
        time.sleep(CUT_SECONDS)
        cut_off.host.mend()
        run.go_on(share)
        run.wait_until(cut_off.is_ready, "the broker that was cut off")
        run.go_on(share)
    verdict = run.verdict()
    report(
        f"a copy killed, a cable pulled: {verdict.summary()}; "
        f"{time.monotonic() - began:.0f} s, the longest without a delivery {run.longest_pause(begin):.1f} s"
    )
    faults = verdict.faults(peers=1)
    assert not faults, "\n".join(faults)
    for daemon in volume.daemons:
        assert daemon.process.is_running(), daemon.process.last_words()
        assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.process.last_words(60)
