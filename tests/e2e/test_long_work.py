"""Work that takes five times its lease is done once, while the daemon is killed and started again on the way.

The clocks are real: two processes have no other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from mq.client import AsyncClient, Client, Retry
from tests.e2e.daemon import TREE, Daemon

pytestmark = pytest.mark.slow

JOBS = 6
MANY = 200
PATIENT = Retry(patience=60, first=0.02, longest=0.2)


@pytest.fixture
def daemon(tmp_path: Path, free_port: int) -> Iterator[Daemon]:
    with Daemon(tmp_path / "root", tmp_path / "log", "--port", str(free_port), "--workers", "1") as daemon:
        yield daemon


@pytest.fixture
def lease(daemon: Daemon) -> float:
    """Of each job: what outlives a start on a machine as busy as this one is now, or busier.

    A command is ended while some of its lease is left, so its extension has less than half of it to succeed in.
    """
    seconds = max(5.0, 6 * started(daemon))
    give_out(daemon, seconds, JOBS)
    return seconds


def started(daemon: Daemon) -> float:
    """How many seconds a start takes here and now."""
    daemon.kill()
    began = time.monotonic()
    daemon.start()
    return time.monotonic() - began


def give_out(daemon: Daemon, lease: float, jobs: int) -> None:
    """Publish so many jobs under that lease."""
    with Client(f"http://127.0.0.1:{daemon.port}") as client:
        client.create_queue("q")
        client.configure("q", visibility=lease)
        for number in range(jobs):
            client.publish("q", str(number))


def die_and_live_again(daemon: Daemon, lease: float, done: threading.Event) -> None:
    """Twice on the way."""
    for _ in range(2):
        if done.wait(1.3 * lease):
            return
        daemon.kill()
        daemon.start()


@pytest.mark.timeout(300)
def test_each_job_is_done_once(daemon: Daemon, lease: float, tmp_path: Path) -> None:
    """Two jobs by threads, two by tasks, two by `mq receive`; and one worker more, who would get what came back."""
    url, done, finished = f"http://127.0.0.1:{daemon.port}", Counter[str](), threading.Event()

    def thread(_: int) -> None:
        with Client(url, retry=PATIENT) as client, client.receive("q", wait=5) as message:
            assert message is not None
            finished.wait(5 * lease)
            done[message.body.decode()] += 1

    def tasks() -> None:
        async def task(client: AsyncClient) -> None:
            async with client.receive("q", wait=5) as message:
                assert message is not None
                await trio.sleep(5 * lease)
                done[message.body.decode()] += 1

        async def main() -> None:
            async with AsyncClient(url, retry=PATIENT) as client, trio.open_nursery() as nursery:
                nursery.start_soon(task, client)
                nursery.start_soon(task, client)

        trio.run(main)

    def program() -> None:
        work = f"cat >> {tmp_path}/done; echo >> {tmp_path}/done; sleep {5 * lease}"
        command = [sys.executable, "-m", "mq", "receive", "q", "--wait", "5", "--patience", "60", "--exec", work]
        subprocess.run(command, env=os.environ | {"MQ_URL": url}, cwd=TREE, check=True, timeout=20 * lease)

    with ThreadPoolExecutor(8) as pool, Client(url, retry=PATIENT) as client:
        working = [pool.submit(thread, 0), pool.submit(thread, 1), pool.submit(tasks)]
        working += [pool.submit(program), pool.submit(program)]
        while client.queue("q").ready and not any(one.done() for one in working):
            finished.wait(0.05)
        dying = pool.submit(die_and_live_again, daemon, lease, finished)
        stolen = []
        while not all(one.done() for one in working):
            stolen.append(client.fetch("q", wait=0.3, visibility=600))
        finished.set()
        for one in [*working, dying]:
            one.result()
        assert client.queue("q").leased == 0
    done.update((tmp_path / "done").read_text().split())
    assert not any(stolen)
    assert done == Counter({str(number): 1 for number in range(JOBS)})


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_each_of_two_hundred_jobs_is_done_once(daemon: Daemon) -> None:
    """All at once, by tasks of one program; what came back would be got by a worker more."""
    lease = max(4.0, 3 * started(daemon))
    give_out(daemon, lease, MANY)
    url, done, finished = f"http://127.0.0.1:{daemon.port}", Counter[str](), threading.Event()
    stolen: list[object] = []

    async def work(client: AsyncClient, taken: trio.Event) -> None:
        async with client.receive("q", wait=20) as message:
            taken.set()
            assert message is not None
            await trio.sleep(5 * lease)
            done[message.body.decode()] += 1

    async def steal(client: AsyncClient) -> None:
        while True:
            if (message := await client.fetch("q", wait=0.3, visibility=600)) is not None:
                stolen.append(message)

    async def main() -> None:
        taken = [trio.Event() for _ in range(MANY)]
        async with AsyncClient(url, retry=PATIENT) as client, trio.open_nursery() as thieves:
            async with trio.open_nursery() as workers:
                for each in taken:
                    workers.start_soon(work, client, each)
                for each in taken:
                    await each.wait()
                thieves.start_soon(steal, client)
                workers.start_soon(trio.to_thread.run_sync, die_and_live_again, daemon, lease, finished)
            thieves.cancel_scope.cancel()

    trio.run(main)
    assert not stolen
    assert done == Counter({str(number): 1 for number in range(MANY)})
    with Client(url) as client:
        assert client.queue("q").leased == 0
