"""Daemons over one root, clients around them, and somebody who kills daemons: what the end-to-end tests share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from tests.e2e.clients import QUEUE, Clients
from tests.e2e.daemon import Daemon
from tests.e2e.history import judge

LEASE_SECONDS: Final = 1.0
"""Short, so that what was leased when a daemon died comes back within the test."""
DRAIN_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.005
_FOLDERS: Final = ("new", f"queues/{QUEUE}", "delay", "remove")


class Scene:
    """One root and its daemons.

    Args:
        random: decides whom to kill and when, and all else that is left to chance.
    """

    def __init__(self, root: Path, daemons: list[Daemon], random: Random) -> None:
        self.daemons = daemons
        self.clients = Clients(daemons)
        self.random = random
        self._root = root
        self._tasks: list[Future[None]] = []

    @contextmanager
    def at_work(self, *tasks: Callable[[], None]) -> Iterator[list[Future[None]]]:
        """Run these in threads while the block lasts. An error of theirs is raised where somebody waits, or here."""
        with ThreadPoolExecutor(len(tasks)) as pool:
            self._tasks = [pool.submit(task) for task in tasks]
            try:
                yield self._tasks
            finally:
                self.clients.stop.set()
        for task in self._tasks:
            task.result()

    def consumers(self, number: int) -> list[Callable[[], None]]:
        """Consumers, to be put to work."""
        randoms = [Random(self.random.random()) for _ in range(number)]
        return [lambda n=n, random=random: self.clients.consume(n, random) for n, random in enumerate(randoms)]

    def kill_on_the_way(self, kills: int, steps: int, seconds: float) -> None:
        """So many kills, spread by chance over the next `steps` events that the clients will see."""
        begin = len(self.clients.history)
        for instant in sorted(self.random.randrange(steps) for _ in range(kills)):
            seen = begin + instant
            self.wait_until(lambda seen=seen: len(self.clients.history) >= seen, seconds, f"event {seen}")
            self.kill_one()

    def kill_one(self) -> None:
        """kill -9 for one of the daemons, at any instant, and a new one in its place."""
        time.sleep(self.random.uniform(0, 0.03))
        victim = self.random.choice(self.daemons)
        victim.kill()
        victim.start()

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until something is so. A client's error comes first."""
        deadline = time.monotonic() + seconds
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            assert time.monotonic() < deadline, (
                f"{what}: not within {seconds} s; there are still {self.left()}; so far: {self.faults()}"
            )
            time.sleep(_POLL_SECONDS)

    def drain(self) -> None:
        """Until the consumers have emptied the root."""
        self.wait_until(lambda: not self.left(), DRAIN_SECONDS, "an empty root")

    def backlog(self) -> int:
        """About how many messages wait in the queue's folder."""
        return len(os.listdir(self._root / _FOLDERS[1]))

    def left(self) -> list[str]:
        """The names of some of the messages in the root."""
        return [f"{folder}/{path.name}" for folder in _FOLDERS for path in (self._root / folder).iterdir()][:5]

    def check(self) -> str:
        """No promise was broken, and nothing comes back after another kill. What was not wrong, in a line."""
        for daemon in self.daemons:
            daemon.kill()
        for daemon in self.daemons:
            daemon.start()
        for turn in range(len(self.daemons)):
            with self.clients.caller(turn) as caller:
                answer = caller.call("GET", f"/{QUEUE}/messages")
                assert answer.status == 204, f"message {answer.id} came back after its removal"
        faults = self.faults()
        assert not faults, "\n".join(faults)
        for daemon in self.daemons:
            assert "Traceback" not in daemon.log.read_text(errors="replace"), daemon.last_words(60)
        return judge(self.clients.history, LEASE_SECONDS).summary()

    def faults(self) -> list[str]:
        """The promises that were broken so far, if this were the end."""
        return judge(list(self.clients.history), LEASE_SECONDS).faults(peers=len(self.daemons) - 1)


@contextmanager
def scene(root: Path, seed: int, daemons: int = 1) -> Iterator[Scene]:
    """So many daemons over `root`, with an empty queue, for the length of the block. In the end they are stopped."""
    peers = ("--peers", str(daemons - 1)) if daemons > 1 else ()
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                Daemon(root, root.parent / f"daemon{number}.log", "--visibility", str(LEASE_SECONDS), *peers)
            )
            for number in range(daemons)
        ]
        made = Scene(root, running, Random(seed))
        made.clients.create_queue()
        yield made
        for daemon in running:
            daemon.stop()


def is_done(tasks: Iterable[Future[None]]) -> bool:
    return all(task.done() for task in tasks)
