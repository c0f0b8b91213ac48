"""``kill -9`` under load: what was acknowledged is neither lost nor does it come back, with one daemon and with two.

Small messages, as fast as they go. ``--kills=N`` makes it long; after every 50 kills the queue is drained and judged.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.scene import Scene, is_done, scene

PRODUCERS: Final = 3
CONSUMERS: Final = 4
KILLS_A_ROUND: Final = 50
EVENTS_A_KILL: Final = 150
LONGEST_BACKLOG: Final = 500
_ROUND_SECONDS: Final = 120.0


class Producers:
    """Publish until they are told that it is enough, no faster than the consumers follow. No body is like another."""

    def __init__(self, stage: Scene) -> None:
        self.enough = threading.Event()
        self._stage = stage

    def tasks(self) -> list[Callable[[], None]]:
        return [partial(self._produce, number) for number in range(PRODUCERS)]

    def _produce(self, number: int) -> None:
        clients = self._stage.clients
        with clients.caller(number) as caller:
            for message in itertools.count():
                while self._stage.backlog() > LONGEST_BACKLOG and not self.enough.wait(0.01):
                    pass
                if self.enough.is_set() or clients.stop.is_set():
                    return
                clients.publish(caller, f"message {message} of producer {number}".encode())


def kill_and_judge(root: Path, seed: int, daemons: int, kills: int) -> str:
    """One round: kills under load, then an empty queue and a verdict."""
    with scene(root, seed, daemons) as stage:
        producers = Producers(stage)
        with stage.at_work(*producers.tasks(), *stage.consumers(CONSUMERS)) as tasks:
            stage.kill_on_the_way(kills, kills * EVENTS_A_KILL, _ROUND_SECONDS)
            producers.enough.set()
            stage.wait_until(lambda: is_done(tasks[:PRODUCERS]), _ROUND_SECONDS, "producers")
            stage.drain()
        return stage.check()


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty folder on a disk, or on a file system in memory, where moves are renames whatever the disk has."""
    memory = Path("/dev/shm")
    if request.param == "memory" and not memory.is_dir():
        pytest.skip(f"no {memory} on this machine")
    with tempfile.TemporaryDirectory(prefix="mq-", dir=memory if request.param == "memory" else None) as folder:
        yield Path(folder)


def kill_often(place: Path, seed: int, daemons: int, kills: int) -> None:
    for begin in range(0, kills, KILLS_A_ROUND):
        number = min(KILLS_A_ROUND, kills - begin)
        summary = kill_and_judge(place / f"root{begin}", seed + begin, daemons, number)
        sys.stdout.write(f"{begin + number} kills, {daemons} daemon{'s' * (daemons > 1)}: {summary}\n")


@pytest.mark.slow
def test_one_daemon_loses_nothing_acknowledged(place: Path, kills: int, seed: int) -> None:
    kill_often(place, seed, 1, kills)


@pytest.mark.slow
def test_two_daemons_on_one_root_lose_nothing_acknowledged(place: Path, kills: int, seed: int) -> None:
    kill_often(place, seed, 2, kills)
