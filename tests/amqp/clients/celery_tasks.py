"""The tasks of a Celery worker. Run as ``celery --app tests.amqp.clients.celery_tasks worker``, told by its environment
which server, which queue, and where to write down what it did."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task
from celery.exceptions import SoftTimeLimitExceeded


def make_app(broker: str, queue: str, folder: Path) -> Celery:
    """The same for the worker and for who asks it: broker, queue and results."""
    app = Celery("tasks", broker=broker, backend=f"db+sqlite:///{folder}/results.sqlite")
    app.conf.update(
        task_default_queue=queue,
        broker_transport_options={"confirm_publish": True},
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        worker_prefetch_multiplier=2,
        result_chord_retry_interval=0.2,
        task_create_missing_queues=True,
    )
    return app


_FOLDER = Path(os.environ.get("TASKS_FOLDER", "/nonexistent"))
app = make_app(os.environ.get("TASKS_BROKER", "memory://"), os.environ.get("TASKS_QUEUE", "tasks"), _FOLDER)


def write_down(name: str, text: str) -> None:
    """One line in one write, so that it is whole whoever dies."""
    with (_FOLDER / name).open("a") as file:
        file.write(f"{text}\n")


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(name="flaky", bind=True, max_retries=3, ignore_result=True)
def flaky(self: Task[Any, Any], name: str, failures: int) -> None:
    """Writes down its tries: Celery's results can mix up those of a try and of the next when a machine is busy."""
    if self.request.retries < failures:
        write_down(name, f"try {self.request.retries}")
        try:
            raise self.retry(countdown=0.1)
        except self.MaxRetriesExceededError:
            write_down(name, "gave up")
            raise
    write_down(name, "done")


@app.task(name="now")
def now() -> float:
    return time.time()


@app.task(name="slow", bind=True)
def slow(self: Task[Any, Any], seconds: float) -> str:
    try:
        time.sleep(seconds)
    except SoftTimeLimitExceeded:
        return "soft"
    return "done"


@app.task(name="work", acks_late=True, reject_on_worker_lost=True)
def work(number: int) -> int:
    write_down("begun", str(number))
    time.sleep(0.1)
    write_down("done", str(number))
    return number
