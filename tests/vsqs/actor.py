"""A program that publishes to a folder, or consumes from it, until it is killed or told to stop.

``python -m tests.vsqs.actor publish|consume FOLDER NAME VISIBILITY``. It prints a line for everything that it was
answered: ``NAME NUMBER ID BEGIN END`` for what it published, with times that all processes of the machine share, and
``BODY ID`` for what it received, before it deletes that. It stops when its standard input ends.
"""

from __future__ import annotations

import random
import select
import sys
import time

from mq.vsqs import Queue


def publish(queue: Queue, name: str) -> None:
    number = 0
    while not told_to_stop():
        begin = time.monotonic_ns()
        id = queue.publish(f"{name}:{number}".encode())
        say(f"{name}:{number} {id} {begin} {time.monotonic_ns()}")
        number += 1
        time.sleep(random.choice((0, 0, 0.002)))


def consume(queue: Queue, visibility: float) -> None:
    while True:
        message = queue.receive(visibility, timeout=0.1)
        if message is None:
            if told_to_stop():
                return
            continue
        say(f"{message.body.decode()} {message.id}")
        time.sleep(random.choice((0, 0, 0, 0.002)))
        message.delete()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def told_to_stop() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


if __name__ == "__main__":
    role, folder, name, visibility = sys.argv[1:]
    with Queue(folder) as queue:
        if role == "publish":
            publish(queue, name)
        else:
            consume(queue, float(visibility))
