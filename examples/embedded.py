"""A durable work queue inside a Trio program: publish, fetch, remove, and give back what cannot be done yet.

Run it twice, or interrupt it: what was published and not removed is there again::

    python examples/embedded.py /tmp/mq-example
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import trio

from mq.broker import Broker, BrokerConfig, open_broker
from mq.lifecycle import Transition


class Counter:
    """An observer: the broker tells it of every transition of every message."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def saw(self, transitions: Sequence[Transition]) -> None:
        """Count them by kind."""
        for transition in transitions:
            self.counts[transition.kind.value] = self.counts.get(transition.kind.value, 0) + 1


async def produce(broker: Broker, count: int) -> None:
    """When publish returns, the message is on the disk."""
    for number in range(count):
        await broker.publish("work", f"job {number}".encode())


async def consume(broker: Broker, done: list[str]) -> None:
    """A fetched message goes to no other client until its lease ends; remove it when its work is done."""
    while (message := await broker.fetch("work")) is not None:
        job = (await message.body.read()).decode()
        if message.receives == 1 and job.endswith("3"):
            await broker.requeue("work", message.id)  # not now: another worker may try
            continue
        done.append(job)
        await broker.remove("work", message.id)


async def main(root: str) -> None:
    """Two producers, then three consumers."""
    counter, done = Counter(), list[str]()
    async with open_broker(f"posix:{root}", BrokerConfig(visibility_seconds=5), observers=[counter]) as broker:
        await broker.create_queue("work")
        async with trio.open_nursery() as producers:
            for _ in range(2):
                producers.start_soon(produce, broker, 10)
        async with trio.open_nursery() as consumers:
            for _ in range(3):
                consumers.start_soon(consume, broker, done)
    print(f"{len(done)} jobs done; {counter.counts}")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
