"""A producer and a consumer in threads, over HTTP.

Start ``mq`` first, then ``python examples/threads.py [URL]``.
"""

from __future__ import annotations

import sys
import threading

from mq.client import Client, Received, Retry

QUEUE = "example-threads"
JOBS = 20
PATIENT = Retry(patience=300)
"""Goes on by itself when the daemon is started anew meanwhile."""


def produce(url: str) -> None:
    """When publish returns, the message is on the daemon's disk. Sent again, it is not stored again."""
    with Client(url, retry=PATIENT) as client:
        for number in range(JOBS):
            client.publish(QUEUE, f"job {number}", attributes={"size": "small"})


def consume(url: str) -> list[str]:
    """A message is removed when its work is done, and given back when that raises: then another worker may try."""
    done: list[str] = []
    with Client(url, retry=PATIENT) as client:
        while len(done) < JOBS - 1:
            try:
                with client.receive(QUEUE, wait=1) as message:
                    if message is not None:
                        done.append(work(message))
            except Hopeless as error:
                print(f"given back: {error}")
    return done


class Hopeless(Exception):
    """This job cannot be done."""


def work(message: Received) -> str:
    """No worker can do job 7: after three times the daemon puts it aside."""
    job = message.body.decode()
    if job == "job 7":
        raise Hopeless(f"{job}, try {message.receives}")
    return job


def main(url: str) -> None:
    """One of each."""
    with Client(url, retry=PATIENT) as client:
        client.create_queue(f"{QUEUE}.dead")
        client.create_queue(QUEUE)
        client.configure(QUEUE, max_receives=3, dead_letter_queue=f"{QUEUE}.dead", visibility=30)
        producer = threading.Thread(target=produce, args=(url,))
        producer.start()
        done = consume(url)
        producer.join()
        for dead in client.browse(f"{QUEUE}.dead"):
            print(f"put aside: {dead.body.decode()}, {dead.dead_letter_history[0].reason}")
        client.delete_queue(QUEUE)
        client.delete_queue(f"{QUEUE}.dead")
    print(f"{len(done)} jobs done")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
