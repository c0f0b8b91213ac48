"""What a program does with taskiq over aio-pika: tasks, a delay, a receiver in this process. Takes a URL and a queue,
prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from taskiq.receiver import Receiver
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue, QueueType


async def main(url: str, queue: str) -> dict[str, Any]:
    broker = AioPikaBroker(
        url,
        exchange=Exchange(name=f"{queue}-x"),
        task_queues=[Queue(name=queue, type=QueueType.CLASSIC)],
        dead_letter_queue=Queue(name=f"{queue}-dead", type=QueueType.CLASSIC),
        delay_queue=Queue(name=f"{queue}-delay", type=QueueType.CLASSIC),
    )
    added: list[int] = []
    delayed: list[float] = []

    @broker.task(task_name="add")
    async def add(x: int, y: int) -> None:
        added.append(x + y)

    @broker.task(task_name="later")
    async def later() -> None:
        delayed.append(time.time())

    broker.is_worker_process = True
    await broker.startup()
    end = asyncio.Event()
    with ThreadPoolExecutor(1) as threads:
        receiving = asyncio.create_task(Receiver(broker, threads, run_startup=False).listen(end))
        began = time.time()
        await later.kicker().with_labels(delay=0.5).kiq()
        for number in range(50):
            await add.kiq(number, 1)
        async with asyncio.timeout(20):
            while len(added) < 50 or not delayed:
                await asyncio.sleep(0.01)
        end.set()
        await receiving
    await broker.shutdown()
    return {"added": sorted(added) == list(range(1, 51)), "late": delayed[0] - began >= 0.5}


sys.stdout.write(f"{json.dumps(asyncio.run(main(*sys.argv[1:])))}\n")
