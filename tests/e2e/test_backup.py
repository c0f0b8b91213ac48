"""``mq backup`` of a real root under load, and what ``kill -9`` leaves of it and of ``mq restore``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import trio

from mq.broker import open_broker
from mq.broker.publishing import Draft
from mq.client import Client
from mq.storage.files.backup import back_up
from mq.storage.files.restore import restore
from mq.storage.options import StorageOptions
from tests.e2e.daemon import TREE, Daemon

PRODUCERS: Final = 2
CONSUMERS: Final = 3
BACKUPS: Final = 3
QUEUES: Final = 300
"""Besides those that are used: so a listing of all of them takes some time, and messages move meanwhile."""
MANY: Final = 1200
_PATIENCE_SECONDS: Final = 60.0


class Traffic:
    """Producers publish numbers to the queue ``a``; consumers publish each to ``b`` and remove it from ``a`` then, or
    give it back. So at every instant each number that was acknowledged is in a queue."""

    def __init__(self, daemon: Daemon) -> None:
        self.acknowledged: list[int] = []
        self._url = f"http://127.0.0.1:{daemon.port}"
        self._enough = threading.Event()
        self._errors: list[BaseException] = []

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """While the block lasts."""
        with self._client() as client:
            client.create_queue("a")
            client.create_queue("b")
        works = [lambda first=first: self._produce(first) for first in range(PRODUCERS)] + [self._consume] * CONSUMERS
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._enough.set()
            for thread in threads:
                thread.join(_PATIENCE_SECONDS)
        assert not self._errors, self._errors

    def _client(self) -> Client:
        return Client(self._url)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told at the end of the block
            self._errors.append(error)

    def _produce(self, number: int) -> None:
        with self._client() as client:
            while not self._enough.is_set():
                client.publish("a", b"%d" % number)
                self.acknowledged.append(number)
                number += PRODUCERS

    def _consume(self) -> None:
        with self._client() as client:
            turn = 0
            while not self._enough.is_set():
                message = client.fetch("a", wait=0.2)
                turn += 1
                if message is not None and turn % 5 == 0:
                    client.requeue(message)
                elif message is not None:
                    client.publish("b", message.body)
                    client.remove(message)


def numbers_in(root: Path) -> set[int]:
    """What a broker finds in the two queues, each message whole."""

    async def look() -> set[int]:
        async with open_broker(f"posix:{root}") as broker:
            storage, found = broker.storage, set[int]()
            for queue in broker.inventory():
                for stored in await storage.read(list(queue.entries)):
                    assert stored is not None
                    found.add(int(await stored.body.read()))
                    await stored.body.aclose()
            return found

    return trio.run(look)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_backup_under_load_has_all_that_was_acknowledged(tmp_path: Path) -> None:
    root, backups = tmp_path / "root", tmp_path / "backups"
    before: list[int] = []
    for number in range(QUEUES):
        (root / "queues" / f"q{number}").mkdir(mode=0o700, parents=True)
    with Daemon(root, tmp_path / "log") as daemon:
        traffic = Traffic(daemon)
        with traffic.flowing():
            while len(traffic.acknowledged) < 50:
                time.sleep(0.01)  # real time: other processes work
            for _ in range(BACKUPS):
                before.append(len(traffic.acknowledged))
                back_up(str(root), str(backups), keep=BACKUPS)
    assert before[-1] > before[0]
    for number, count in enumerate(before, 1):
        restored = tmp_path / f"restored{number}"
        restore(str(backups), str(restored), StorageOptions(), number=number)
        missing = set(traffic.acknowledged[:count]) - numbers_in(restored)
        assert not missing, f"backup {number} of {BACKUPS}"


async def fill(root: Path) -> None:
    async with open_broker(f"posix:{root}") as broker:
        await broker.create_queue("a")
        for start in range(0, MANY, 400):
            drafts = [Draft(b"%d" % number) for number in range(start, start + 400)]
            await broker.publish_many("a", drafts)


def killed(until: Callable[[], bool], *arguments: str | Path) -> bool:
    """Run the program and kill it when that holds. Whether it did before the program had ended."""
    process = subprocess.Popen([sys.executable, "-m", "mq", *map(str, arguments)], cwd=TREE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not until() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)  # real time: another process works
    os.kill(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.proof  # each commit cuts them at some of their calls, in tests/storage/test_backup.py
@pytest.mark.timeout(300)
def test_backup_and_restore_that_are_killed_are_run_again(tmp_path: Path) -> None:
    root, backups, restored = tmp_path / "root", tmp_path / "backups", tmp_path / "restored"
    trio.run(fill, root)
    assert killed(lambda: (backups / "bodies" / "a0").exists(), "backup", root, backups)
    assert not list((backups / "backups").iterdir())
    assert back_up(str(root), str(backups), keep=1).header.messages == MANY

    queue = restored / "queues" / "a"
    assert killed(lambda: queue.exists() and any(queue.iterdir()), "restore", backups, restored)
    refused = subprocess.run(
        [sys.executable, "-m", "mq", "serve", "--root", str(restored), "--port", "0"],
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    assert refused.returncode == 2
    assert "run mq restore again" in refused.stderr
    restore(str(backups), str(restored), StorageOptions())
    assert numbers_in(restored) == set(range(MANY))
