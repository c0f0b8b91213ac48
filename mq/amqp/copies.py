"""Copies of messages, each on its way into one queue of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import trio

from mq.amqp.arguments import MAX_PRIORITY
from mq.amqp.carrying import Letter, attributes_of
from mq.amqp.declared import Queue
from mq.broker import Broker, Draft, Published
from mq.errors import MQError
from mq.message import QueueName

SHORTEST_SECONDS: Final = 0.001
"""A time to live of none is this one: who consumes just then gets the message."""

L = TypeVar("L", bound=Letter)


class Copy(NamedTuple):
    """A message and one of the queues that it goes to."""

    letter: Letter
    queue: Queue


async def store(broker: Broker, copies: Sequence[Copy]) -> list[tuple[Copy, MQError | None]]:
    """Store these with one barrier, those of each queue in their order; what went wrong with each."""
    by_queue: dict[QueueName, list[Copy]] = {}
    for copy in copies:
        by_queue.setdefault(copy.queue.key, []).append(copy)
    found: list[tuple[Copy, MQError | None]] = []

    async def store_in(queue: QueueName, its: list[Copy]) -> None:
        found.extend(zip(its, await _store_in(broker, queue, its), strict=True))

    if len(by_queue) == 1:
        await store_in(*by_queue.popitem())
        return found
    async with trio.open_nursery() as nursery:
        for queue, its in by_queue.items():
            nursery.start_soon(store_in, queue, its)
    return found


async def _store_in(broker: Broker, queue: QueueName, copies: Sequence[Copy]) -> Sequence[MQError | None]:
    try:
        outcomes = await broker.publish_many(queue, [draft_of(copy) for copy in copies])
    except MQError as error:
        return [error] * len(copies)
    return [None if isinstance(outcome, Published) else outcome for outcome in outcomes]


def draft_of(copy: Copy) -> Draft:
    """What the broker gets. It is in memory alone where the message, or the queue, need not last."""
    letter, queue = copy
    ttl = None if letter.expiration_ms is None else max(letter.expiration_ms / 1000, SHORTEST_SECONDS)
    most = queue.arguments.get(MAX_PRIORITY)
    return Draft(
        letter.body,
        attributes_of(letter),
        ttl=ttl,
        transient=not (letter.properties.is_persistent and queue.is_lasting),
        rank=most - min(letter.properties.priority, most) if most else 0,
    )
