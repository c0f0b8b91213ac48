"""What a program does with FastStream: consume, answer, ask. Takes a URL and a queue, prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from faststream import AckPolicy
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitQueue


async def main(url: str, queue: str) -> dict[str, Any]:
    broker = RabbitBroker(url)
    got: list[int] = []
    tries: list[bool] = []
    all_there, routed = asyncio.Event(), asyncio.Event()

    @broker.subscriber(RabbitQueue(queue, durable=True))
    async def take(number: int) -> None:
        got.append(number)
        if len(got) == 50:
            all_there.set()

    @broker.subscriber(f"{queue}-rpc")
    async def double(number: int) -> int:
        return number * 2

    @broker.subscriber(RabbitQueue(f"{queue}-fails", durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def fail_once(number: int) -> None:
        tries.append(True)
        if len(tries) == 1:
            raise ValueError("once")
        routed.set()

    exchange = RabbitExchange(f"{queue}-x", type=ExchangeType.TOPIC, auto_delete=True)
    topics: list[str] = []

    @broker.subscriber(RabbitQueue(f"{queue}-t", auto_delete=True, routing_key="news.*"), exchange)
    async def hear(text: str) -> None:
        topics.append(text)

    async with broker:
        await broker.start()
        for number in range(50):
            await broker.publish(number, queue, persist=True)
        await asyncio.wait_for(all_there.wait(), 20)
        reply = await broker.request(21, f"{queue}-rpc", timeout=10)
        await broker.publish(1, f"{queue}-fails")
        await asyncio.wait_for(routed.wait(), 20)
        for key in ("news.here", "else.where"):
            await broker.publish(key, exchange=exchange, routing_key=key)
        async with asyncio.timeout(20):
            while not topics:
                await asyncio.sleep(0.01)
        return {
            "inOrder": sorted(got) == list(range(50)),
            "reply": await reply.decode(),
            "tries": len(tries),
            "topics": topics,
        }


sys.stdout.write(f"{json.dumps(asyncio.run(main(*sys.argv[1:])))}\n")
