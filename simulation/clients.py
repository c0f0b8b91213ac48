"""Clients of a simulated run. They speak to the endpoints, as over HTTP, and vanish when they like."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random
from typing import Final, NamedTuple

import trio

from mq.broker import Broker
from mq.errors import CorruptMessage, MQError
from mq.message import MessageId
from mq.web.endpoints import Endpoints
from mq.web.exchange import Reply, Request
from simulation.history import History

LIMIT: Final = 200_000
SIZES: Final = (1, 1, 1, 100, 3000, 70_000)
PATIENCE_SECONDS: Final = 600.0
"""Virtual seconds within which every request is answered (P9)."""

STEADY: Final = "q"
"""A queue that is never deleted."""
CHANGING: Final = "d"
"""A queue that one client makes and deletes over and over."""

WRONG: Final = (
    ("PUT", b"/%2e%2e", 400),
    ("PUT", b"/a:b", 400),
    ("PUT", b"/.hidden", 400),
    ("GET", b"/nowhere", 404),
    ("POST", b"/nowhere/messages", 404),
    ("DELETE", b"/q/messages/not-an-id", 404),
    ("DELETE", b"/q/messages/00000000-0000-1000-8000-000000000000", 404),
    ("PATCH", b"/q/messages", 405),
    ("GET", b"/q/a/b/c/d", 404),
)


class _HeldByClient(NamedTuple):
    queue: str
    id: MessageId


class Clients:
    """Several clients at work on one or more brokers."""

    def __init__(
        self,
        brokers: list[Broker],
        history: History,
        random: Random,
        note: Callable[[str], None],
        lease_seconds: float,
    ) -> None:
        self._brokers = brokers
        self._doors = [Endpoints(broker, LIMIT) for broker in brokers]
        self._history = history
        self._random = random
        self._note = note
        self._lease_seconds = lease_seconds
        self._held: list[_HeldByClient] = []

    async def run(self, count: int) -> None:
        """Let so many clients work until each has done what it wanted."""
        await self._make(STEADY)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_and_delete)
            for _ in range(count):
                nursery.start_soon(self._work, self._random.randint(5, 30))

    async def drain(self) -> None:
        """Take out and remove every message, until none comes any more."""
        for queue in (STEADY, CHANGING):
            while await self._fetch(queue, patient=True):
                held = self._held.pop()
                await self._remove(held, patient=True)

    async def check_queues(self) -> None:
        """Compare which queues there are."""
        for queue in (STEADY, CHANGING):
            reply = await self._ask("GET", f"/{queue}", patient=True)
            if reply is not None:
                self._history.queue_is(queue, reply.status == 200)

    async def _work(self, steps: int) -> None:
        for _ in range(steps):
            queue = STEADY if self._random.random() < 0.8 else CHANGING
            action = self._random.choices(
                (self._publish, self._fetch, self._remove_one, self._requeue_one, self._ask_wrongly), (5, 5, 4, 1, 1)
            )[0]
            await action(queue)
            await trio.sleep(self._random.choice((0.0, 0.0, 0.1, self._lease_seconds / 3)))

    async def _make_and_delete(self) -> None:
        for _ in range(self._random.randint(1, 6)):
            if self._random.random() < 0.6:
                await self._make(CHANGING)
            else:
                await self._delete(CHANGING)
            await trio.sleep(self._random.uniform(0, 20))

    async def _make(self, queue: str) -> None:
        self._history.queue_making(queue)
        reply = await self._ask("PUT", f"/{queue}")
        if reply is not None and reply.status in (200, 201):
            self._history.queue_made(queue)

    async def _delete(self, queue: str) -> None:
        number = self._history.queue_deleting(queue)
        reply = await self._ask("DELETE", f"/{queue}")
        if reply is not None and reply.status in (200, 404):
            self._history.queue_deleted(queue, number)

    async def _publish(self, queue: str) -> None:
        body = f"{self._random.getrandbits(64):016x}".encode() + bytes(self._random.choice(SIZES))
        self._history.sending(queue, body)
        reply = await self._ask("POST", f"/{queue}/messages", body)
        if reply is not None and reply.status == 201:
            self._history.published(body, MessageId(dict(reply.headers)["x-message-id"]))

    async def _fetch(self, queue: str, *, patient: bool = False) -> bool:
        asked = trio.current_time()
        query = b"" if patient else self._random.choice((b"", b"", b"wait=0.5", b"wait=20"))
        reply = await self._ask("GET", f"/{queue}/messages", patient=patient, query=query)
        if reply is None or reply.status != 200:
            return False
        id = MessageId(dict(reply.headers)["x-message-id"])
        try:
            body = reply.body if isinstance(reply.body, bytes) else b"".join([piece async for piece in reply.body])
        except CorruptMessage as error:
            self._history.violate(f"P2: {id} is damaged: {error}")
            return False
        self._history.fetched(queue, id, body, asked)
        self._held.append(_HeldByClient(queue, id))
        return True

    async def _remove_one(self, queue: str) -> None:
        if self._held:
            await self._remove(self._held.pop(self._random.randrange(len(self._held))))

    async def _remove(self, held: _HeldByClient, *, patient: bool = False) -> None:
        self._history.removing(held.id)
        reply = await self._ask("DELETE", f"/{held.queue}/messages/{held.id}", patient=patient)
        if reply is not None and reply.status == 202:
            self._history.removed(held.id)

    async def _requeue_one(self, queue: str) -> None:
        if not self._held:
            return
        held = self._held.pop(self._random.randrange(len(self._held)))
        self._history.requeueing(held.id)
        with trio.move_on_after(self._patience()):
            try:
                await self._random.choice(self._brokers).requeue(held.queue, held.id)
            except MQError as error:
                self._note(f"requeue: {error}")

    async def _ask_wrongly(self, queue: str) -> None:
        method, path, status = self._random.choice(WRONG)
        reply = await self._ask(method, path.decode(), b"x")
        if reply is not None and reply.status not in (status, 503):
            self._history.violate(f"P7: {method} {path!r} was answered {reply.status}, not {status}")

    async def _ask(
        self, method: str, path: str, body: bytes = b"", *, patient: bool = False, query: bytes = b""
    ) -> Reply | None:
        """The reply, or None when this client did not wait for it."""
        chunks = _chunks(body, self._random)
        length = len(body) if self._random.random() < 0.8 else None
        reply: Reply | None = None
        with trio.move_on_after(PATIENCE_SECONDS) as stuck:
            async with aclosing(chunks):
                with trio.move_on_after(math.inf if patient else self._patience()):
                    request = Request(method, path.encode(), query, {}, chunks, length)
                    reply = await self._random.choice(self._doors).handle(request)
        if stuck.cancelled_caught:
            self._history.violate(f"P9: {method} {path} was not answered in {PATIENCE_SECONDS:.0f} s")
        self._check(method, path, reply)
        return reply

    def _check(self, method: str, path: str, reply: Reply | None) -> None:
        self._note(f"{method} {path} -> {'gone' if reply is None else reply.status}")
        if reply is None or reply.status < 400:
            return
        if reply.status == 500 or "content-type" not in dict(reply.headers):
            self._history.violate(f"P7: {method} {path} was answered {reply.status}: {reply.body!r}")
        elif isinstance(reply.body, bytes) and "\n" in json.loads(reply.body)["detail"]:
            self._history.violate(f"P7: {method} {path} was refused in more than one line: {reply.body!r}")

    def _patience(self) -> float:
        """After how long this client vanishes: mostly never."""
        return self._random.choice((0.0, 0.001, 0.1, 1.0)) if self._random.random() < 0.1 else math.inf


async def _chunks(body: bytes, random: Random) -> AsyncGenerator[bytes]:
    """A body as it comes over a network."""
    while body:
        size = random.randint(1, 40_000)
        await trio.sleep(random.choice((0.0, 0.0, 0.05)))
        yield body[:size]
        body = body[size:]
