"""The tasks of a Celery worker over SQS; run as ``celery --app tests.sqs.celery_tasks worker``."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery
from celery.exceptions import Reject


def make_app(port: int) -> Celery:
    """The same for the worker and for who asks it."""
    app = Celery("tasks", broker=f"sqs://any:anything@127.0.0.1:{port}//")
    app.conf.update(
        broker_transport_options={
            "is_secure": False,
            "region": "us-east-1",
            "wait_time_seconds": 2,
            "visibility_timeout": 5,
            "polling_interval": 0.1,
        },
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        task_default_queue="tasks",
    )
    return app


app = make_app(int(os.environ.get("TASKS_PORT", "0")))


@app.task(name="note", ignore_result=True)
def note(number: int) -> None:
    """One line in one write, so that it is whole whoever dies."""
    time.sleep(0.02)
    with Path(os.environ["TASKS_DONE"]).open("a") as file:
        file.write(f"{number}\n")


@app.task(name="refuse", ignore_result=True)
def refuse() -> None:
    """Each time, until its queue's policy makes it a dead letter."""
    raise Reject("no", requeue=False)
