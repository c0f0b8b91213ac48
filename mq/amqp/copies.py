"""Copies of messages, each on its way into one queue of the broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from mq.amqp.arguments import MAX_PRIORITY, MESSAGE_TTL
from mq.amqp.carrying import Letter, attributes_of
from mq.amqp.consumers import Consumers
from mq.amqp.declared import Queue
from mq.broker import Draft, Published
from mq.broker.api import BrokerAPI
from mq.errors import MQError
from mq.message import QueueName

SHORTEST_SECONDS: Final = 0.001
AT_ONCE_SECONDS: Final = 1.0
"""A message without any time to live has this one where somebody consumes: so long its delivery may take."""


class Copy(NamedTuple):
    """A message and one of the queues that it goes to."""

    letter: Letter
    queue: Queue


class Copies:
    """Brings copies into their queues.

    Args:
        broker: has the queues.
        consumers: of them.
    """

    def __init__(self, broker: BrokerAPI, consumers: Consumers) -> None:
        self._broker = broker
        self._consumers = consumers

    async def store(self, copies: Sequence[Copy]) -> list[tuple[Copy, MQError | None]]:
        """Store these with one barrier, those of each queue in their order; what went wrong with each."""
        by_queue: dict[QueueName, list[Copy]] = {}
        for copy in copies:
            by_queue.setdefault(copy.queue.key, []).append(copy)
        found: list[tuple[Copy, MQError | None]] = []

        async def store_in(queue: QueueName, its: list[Copy]) -> None:
            found.extend(zip(its, await self._store_in(queue, its), strict=True))

        if len(by_queue) == 1:
            await store_in(*by_queue.popitem())
            return found
        async with trio.open_nursery() as nursery:
            for queue, its in by_queue.items():
                nursery.start_soon(store_in, queue, its)
        return found

    async def _store_in(self, queue: QueueName, copies: Sequence[Copy]) -> Sequence[MQError | None]:
        is_consumed = self._consumers.count(queue) > 0
        try:
            drafts = [_draft_of(copy, is_consumed=is_consumed) for copy in copies]
            outcomes = await self._broker.publish_many(queue, drafts)
        except MQError as error:
            return [error] * len(copies)
        return [None if isinstance(outcome, Published) else outcome for outcome in outcomes]


def _draft_of(copy: Copy, *, is_consumed: bool) -> Draft:
    """What the broker gets. It is in memory alone where the message, or the queue, need not last."""
    letter, queue = copy
    most = queue.arguments.get(MAX_PRIORITY)
    return Draft(
        letter.body,
        attributes_of(letter),
        ttl=_seconds(letter.expiration_ms, queue.arguments.get(MESSAGE_TTL), is_consumed=is_consumed),
        transient=not (letter.properties.is_persistent and queue.is_lasting),
        rank=most - min(letter.properties.priority, most) if most else 0,
    )


def _seconds(own_ms: int | None, queue_ms: int | None, *, is_consumed: bool) -> float | None:
    """The time to live of a message. None at all leaves it for those who consume already."""
    if own_ms == 0 or queue_ms == 0:
        return AT_ONCE_SECONDS if is_consumed else SHORTEST_SECONDS
    return None if own_ms is None else own_ms / 1000
