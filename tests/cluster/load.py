"""Clients of one node, on the node's own host: two that publish and two that consume, over HTTP and over AMQP.

A program: ``python -m tests.cluster.load NAME HTTP_URL AMQP_URL QUEUE LOG``. What it asked for and what it was told
goes to the log, line by line, with the time on the kernel's clock that nobody sets, the same on all hosts.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import httpx
import trio

from mq.client.amqp import AmqpClient, connect
from mq.client.amqp.errors import ConsumerCancelled
from mq.client.errors import ClientError

PAUSE_SECONDS = 0.05
AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 20.0
QUORUM = {"x-queue-type": "quorum", "x-requeue": None}


class Clients:
    def __init__(self, name: str, http: str, amqp: str, queue: str, log: TextIO) -> None:
        self._name = name
        self._http = http
        self._amqp = amqp
        self._queue = queue
        self._log = log
        self._numbers = itertools.count()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.publish_http)
            nursery.start_soon(self.consume_http)
            nursery.start_soon(self._for_ever, self.publish_amqp)
            nursery.start_soon(self._for_ever, self.consume_amqp)

    async def publish_http(self) -> None:
        async with httpx.AsyncClient(base_url=self._http, timeout=PATIENCE_SECONDS) as client:
            while True:
                body = self._body("h")
                try:
                    reply = await client.post(f"/{self._queue}/messages", content=body)
                except httpx.HTTPError as error:
                    self._note("unsure", body, why=repr(error))
                    await trio.sleep(AGAIN_SECONDS)
                else:
                    self._note("stored" if reply.status_code == 201 else "refused", body, status=reply.status_code)
                await trio.sleep(PAUSE_SECONDS)

    async def publish_amqp(self, client: AmqpClient) -> None:
        await client.declare_queue(self._queue, arguments=QUORUM)
        while True:
            body = self._body("a")
            try:
                await client.publish(self._queue, body)
            except ClientError as error:
                self._note("unsure", body, why=repr(error))
                raise
            self._note("stored", body)
            await trio.sleep(PAUSE_SECONDS)

    async def consume_http(self) -> None:
        async with httpx.AsyncClient(base_url=self._http, timeout=PATIENCE_SECONDS) as client:
            while True:
                asked = time.monotonic_ns()
                try:
                    reply = await client.get(f"/{self._queue}/messages", params={"wait": "1", "visibility": "30"})
                    if reply.status_code == 503:
                        self._note("told", "", over="http")
                    if reply.status_code != 200:
                        await trio.sleep(AGAIN_SECONDS)
                        continue
                    id, body = reply.headers["x-message-id"], reply.text
                    self._note("got", body, asked=asked, id=id)
                    done = await client.delete(
                        f"/{self._queue}/messages/{id}", headers={"if-match": reply.headers["etag"]}
                    )
                    if done.status_code == 202:
                        self._note("removed", body, id=id)
                except httpx.HTTPError:
                    await trio.sleep(AGAIN_SECONDS)

    async def consume_amqp(self, client: AmqpClient) -> None:
        while True:
            try:
                async with client.consume(self._queue, prefetch=4) as deliveries:
                    async for delivery in deliveries:
                        self._note("got", delivery.body.decode())
                        await client.ack(delivery.tag)
            except ConsumerCancelled:
                self._note("told", "", over="amqp")

    async def _for_ever(self, serve: Callable[[AmqpClient], Awaitable[None]]) -> None:
        """One connection after the other."""
        while True:
            try:
                async with connect(self._amqp, timeout=PATIENCE_SECONDS, heartbeat=2) as client:
                    await serve(client)
            except (ClientError, ExceptionGroup):
                await trio.sleep(AGAIN_SECONDS)

    def _body(self, kind: str) -> str:
        body = f"{self._name}-{kind}-{next(self._numbers)}"
        self._note("try", body)
        return body

    def _note(self, event: str, body: str, **more: Any) -> None:
        line = {"at": time.monotonic_ns(), "event": event, "body": body, "node": self._name, **more}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


def main() -> None:
    name, http, amqp, queue, path = sys.argv[1:]
    with open(path, "a") as log:
        trio.run(Clients(name, http, amqp, queue, log).run)


if __name__ == "__main__":
    main()
