"""Tasks of dramatiq over SQS: ``python dramatiq_tasks.py URL``. Asks for a kill on the way, as talk.py does."""

from __future__ import annotations

import json
import sys
import threading
from base64 import b64decode

import dramatiq
from dramatiq_sqs import SQSBroker

TASKS = 200
ACCESS = {"aws_access_key_id": "any", "aws_secret_access_key": "any", "region_name": "us-east-1"}

# What the daemon had handed out when it was killed comes again after the visibility timeout.
broker = SQSBroker(endpoint_url=sys.argv[1], dead_letter=True, visibility_timeout=10, **ACCESS)
dramatiq.set_broker(broker)
some, done, seen = threading.Event(), threading.Event(), set()
go_on = threading.Event()


@dramatiq.actor(max_retries=0)
def note(number: int) -> None:
    if number < 0:
        raise ValueError("this one fails")
    if len(seen) > TASKS // 4:
        some.set()
        go_on.wait()  # so that tasks are under way, and others are left, when the daemon is killed
    seen.add(number)
    if len(seen) == TASKS:
        done.set()


def read_dead() -> list[int]:
    queue = broker.dead_letter_queues["default"]
    found = queue.receive_messages(MaxNumberOfMessages=10, WaitTimeSeconds=20)
    return [json.loads(b64decode(message.body))["args"][0] for message in found]


note.send(-1)
for number in range(TASKS):
    note.send(number)
worker = dramatiq.Worker(broker, worker_threads=2)
worker.start()
some.wait()
sys.stdout.write("kill\n")
sys.stdout.flush()
sys.stdin.readline()
go_on.set()
done.wait()
sys.stdout.write(json.dumps({"done": sorted(seen), "dead": read_dead()}))
sys.stdout.flush()
worker.stop()
