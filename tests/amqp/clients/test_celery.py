"""Celery: a worker as a process of its own, which retries, waits, limits, joins, is killed and comes back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import celery
import celery.exceptions
import pytest
from billiard.exceptions import TimeLimitExceeded

from tests.amqp.clients.celery_tasks import make_app
from tests.amqp.clients.servers import Server
from tests.e2e.daemon import TREE

pytestmark = [
    pytest.mark.slow,
    # SQLAlchemy's connections in the result back end are closed by the collector
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

WAIT_SECONDS: Final = 40
TASKS: Final = 40


class Worker:
    """One worker with two processes, in a group of its own."""

    def __init__(self, server: Server, queue: str, folder: Path) -> None:
        self.log = folder / "worker.log"
        self._environment = {
            **os.environ,
            "TASKS_BROKER": f"{server.url}//",
            "TASKS_QUEUE": queue,
            "TASKS_FOLDER": str(folder),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [sys.executable, "-m", "celery", "--app", "tests.amqp.clients.celery_tasks", "worker"]
        command += ["--concurrency", "2", "--loglevel", "info", "--hostname", f"{os.urandom(6).hex()}@localhost"]
        ready = self._times_ready()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=TREE,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(lambda: self._times_ready() > ready, self.last_words)

    def kill(self) -> None:
        """kill -9, with its children."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(WAIT_SECONDS)

    def last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def _times_ready(self) -> int:
        return self.log.read_text(errors="replace").count(" ready.") if self.log.exists() else 0


def wait_until(true: Callable[[], bool], why_not: Callable[[], str]) -> None:
    """Real time: it is another process's doing."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not true():
        assert time.monotonic() < deadline, why_not()
        time.sleep(0.05)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


@contextlib.contextmanager
def working(server: Server, queue: str, folder: Path) -> Iterator[tuple[celery.Celery, Worker]]:
    """An application, and a worker of it that is not started."""
    worker = Worker(server, queue, folder)
    app = make_app(f"{server.url}//", queue, folder)
    try:
        yield app, worker
    finally:
        worker.kill()
        app.close()


def test_what_programs_do_with_it(server: Server, queue: str, tmp_path: Path) -> None:
    with working(server, queue, tmp_path) as (app, worker):
        worker.start()
        eta = datetime.now(UTC) + timedelta(seconds=2)
        later = app.send_task("now", eta=eta)
        never = app.send_task("add", (0, 0), countdown=2, expires=1)
        soft = app.send_task("slow", (30,), soft_time_limit=0.5)
        hard = app.send_task("slow", (30,), time_limit=1)
        assert app.send_task("add", (1, 2)).get(WAIT_SECONDS) == 3
        app.send_task("flaky", ("thrice", 3))
        app.send_task("flaky", ("never", 9))
        sums = [app.signature("add", (number, number)) for number in range(10)]
        assert celery.group(sums, app=app)().get(WAIT_SECONDS) == [2 * number for number in range(10)]
        assert celery.chord(sums, app=app)(app.signature("total")).get(WAIT_SECONDS) == 90
        assert celery.chain(app.signature("add", (1, 1)), app.signature("add", (5,)), app=app)().get(WAIT_SECONDS) == 7
        assert soft.get(WAIT_SECONDS) == "soft"
        with pytest.raises(TimeLimitExceeded):
            hard.get(WAIT_SECONDS)
        assert later.get(WAIT_SECONDS) >= eta.timestamp()
        with pytest.raises(celery.exceptions.TaskRevokedError):
            never.get(WAIT_SECONDS)
        for name, end in (("thrice", ["done"]), ("never", ["try 3", "gave up"])):
            tries = ["try 0", "try 1", "try 2", *end]
            wait_until(lambda tried=tmp_path / name, tries=tries: lines(tried) == tries, worker.last_words)
        (pong,) = app.control.ping(timeout=5, limit=1)
        assert next(iter(pong.values())) == {"ok": "pong"}


def test_tasks_that_wait_hold_up_no_others(server: Server, queue: str, tmp_path: Path) -> None:
    """The worker takes those that wait out of the queue, and raises its prefetch for each."""
    with working(server, queue, tmp_path) as (app, worker):
        worker.start()
        waiting = [app.send_task("add", (number, 1), countdown=15) for number in range(40)]
        begin = time.monotonic()
        assert app.send_task("add", (1, 2)).get(WAIT_SECONDS) == 3
        took = time.monotonic() - begin
        assert not any(each.ready() for each in waiting), f"it took {took:.1f} s, as long as those before it"


# The two that kill run on mq alone: RabbitMQ passes them, and takes most of a minute for it.


@pytest.mark.parametrize("server", ["mq"], indirect=True)
def test_a_killed_worker_loses_nothing(server: Server, queue: str, tmp_path: Path) -> None:
    """acks_late: what it was doing when it died is done again by the next one."""
    done = tmp_path / "done"
    with working(server, queue, tmp_path) as (app, worker):
        worker.start()
        results = [app.send_task("work", (number,)) for number in range(TASKS)]
        wait_until(lambda: done.exists() and len(done.read_text().splitlines()) >= TASKS // 4, worker.last_words)
        worker.kill()
        before = set(map(int, done.read_text().splitlines()))
        assert len(before) < TASKS, "it was too fast to be killed in the middle"
        worker.start()
        assert [result.get(WAIT_SECONDS) for result in results] == list(range(TASKS))
    assert set(map(int, done.read_text().splitlines())) == set(range(TASKS))


@pytest.mark.parametrize("mortal_server", ["mq"], indirect=True)
def test_a_killed_server_loses_nothing(mortal_server: Server, queue: str, tmp_path: Path) -> None:
    """The worker finds its way back by itself; what it could not acknowledge comes again."""
    done = tmp_path / "done"
    with working(mortal_server, queue, tmp_path) as (app, worker):
        worker.start()
        results = [app.send_task("work", (number,)) for number in range(TASKS)]
        wait_until(lambda: done.exists() and len(done.read_text().splitlines()) >= TASKS // 4, worker.last_words)
        mortal_server.kill()
        mortal_server.start()
        assert [result.get(WAIT_SECONDS) for result in results] == list(range(TASKS))
    assert set(map(int, done.read_text().splitlines())) == set(range(TASKS))
