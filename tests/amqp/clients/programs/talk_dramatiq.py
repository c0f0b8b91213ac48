"""What a program does with dramatiq: actors, a delay, retries, dead letters, a worker in this process. Takes a URL and
a queue, prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

url, queue = sys.argv[1:]
broker = RabbitmqBroker(url=url, confirm_delivery=True, max_priority=5)
dramatiq.set_broker(broker)
added: list[int] = []
tries: list[float] = []
delayed: list[float] = []
done, is_late = threading.Event(), threading.Event()


@dramatiq.actor(queue_name=queue)
def add(x: int, y: int) -> None:
    added.append(x + y)


@dramatiq.actor(queue_name=queue, max_retries=3, min_backoff=50, max_backoff=200)
def flaky() -> None:
    tries.append(time.time())
    if len(tries) < 3:
        raise ValueError("not yet")
    done.set()


@dramatiq.actor(queue_name=queue)
def later() -> None:
    delayed.append(time.time())
    is_late.set()


@dramatiq.actor(queue_name=queue, max_retries=0)
def hopeless() -> None:
    raise ValueError("never")


worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
worker.start()
began = time.time()
later.send_with_options(delay=500)
for number in range(50):
    add.send(number, 1)
flaky.send()
hopeless.send()
seen = {"retried": done.wait(20), "delayed": is_late.wait(20)}
broker.join(queue, timeout=20_000)
worker.join()
worker.stop()
counts = broker.get_queue_message_counts(queue)
seen |= {"added": sorted(added) == list(range(1, 51)), "tries": len(tries), "late": delayed[0] - began >= 0.5}
seen |= {"dead": counts[2]}
broker.close()
sys.stdout.write(f"{json.dumps(seen)}\n")
