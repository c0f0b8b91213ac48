"""Producers and consumers as Trio tasks, over HTTP.

Start ``mq`` first, then ``python examples/tasks.py [URL]``.
"""

from __future__ import annotations

import sys

import trio

from mq.client import AsyncClient

QUEUE = "example-tasks"
JOBS = 100


async def produce(client: AsyncClient) -> None:
    """Many messages in one request: one barrier on the daemon's disk for all of them."""
    outcomes = await client.publish_many(QUEUE, [f"job {number}" for number in range(JOBS)])
    assert all(outcome.ok for outcome in outcomes)


async def consume(client: AsyncClient, done: list[str], is_done: trio.Event) -> None:
    """Waits for what comes. A task that is cancelled gives its message back at once."""
    async for message in client.consume(QUEUE, wait=20):
        async with client.handling(message):
            done.append(message.body.decode())
        if len(done) == JOBS:
            is_done.set()


async def main(url: str) -> None:
    """Consumers first: they wait, and are served the moment that a message arrives."""
    done: list[str] = []
    is_done = trio.Event()
    async with AsyncClient(url) as client:
        await client.create_queue(QUEUE)
        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(consume, client, done, is_done)
            await produce(client)
            await is_done.wait()
            nursery.cancel_scope.cancel()
        await client.delete_queue(QUEUE)
    print(f"{len(done)} jobs done")


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080")
