"""Deliveries settled against the broker: acknowledged, requeued or rejected, part by part."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mq import turns
from mq.amqp.model.arguments import DELIVERY_LIMIT, QUEUE_TYPE, QUORUM, REQUEUE
from mq.amqp.protocol.commands import Settlement, UnsettledDelivery
from mq.amqp.server.state import AmqpState
from mq.broker import UnackedMessage
from mq.errors import MQError, StorageFull
from mq.message import QueueName

_SETTLED_TOGETHER: Final = 512
"""Deliveries of one command that are settled before the next ones are."""


async def settle(
    state: AmqpState, outcome: Settlement, deliveries: Sequence[UnsettledDelivery], *, durable: bool = False
) -> None:
    """Acknowledge, put back or reject deliveries.

    Args:
        durable: whether that must be durable on return; else it is soon, and a dead letter that finds no room comes to
            its queue's consumers again.

    Raises:
        StorageError: the store cannot do that now. What it could not do is as it was.
    """
    await _in_parts(state, deliveries, lambda some: _settle(state, outcome, some, durable=durable))


async def release(state: AmqpState, deliveries: Sequence[UnsettledDelivery]) -> None:
    """Put back deliveries of a channel that has ended, marked as redelivered.

    Raises:
        StorageError: the store cannot do that now. What it could not do is as it was.
    """

    async def put_back(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
        arguments = _arguments(state, queue)  # a quorum queue counts what an end of a channel returns
        most = _most_returns(arguments) if arguments.get(QUEUE_TYPE) == QUORUM else None
        await state.broker.put_back(held, most=most)

    await _in_parts(state, deliveries, lambda some: _for_each_queue(some, put_back))


async def _in_parts(
    state: AmqpState,
    deliveries: Sequence[UnsettledDelivery],
    do: Callable[[Sequence[UnsettledDelivery]], Awaitable[None]],
) -> None:
    """Do something with deliveries, part by part. What fails for one part is tried for the next.

    Raises:
        MQError: the last error.
    """
    failed: MQError | None = None
    for some in turns.parts(deliveries, _SETTLED_TOGETHER):
        try:
            with (
                state.broker.progress.shielded()
            ):  # each part for itself: very many take longer than a store may for one
                await do(some)
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


async def _settle(
    state: AmqpState, outcome: Settlement, deliveries: Sequence[UnsettledDelivery], *, durable: bool
) -> None:
    async def put_back(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
        arguments = _arguments(state, queue)
        to_back, most = arguments.get(REQUEUE) == "back", _most_returns(arguments)
        await state.broker.put_back(held, to_back=to_back, failed=True, most=most)

    async def reject(queue: QueueName, held: Sequence[UnackedMessage]) -> None:
        try:
            await state.broker.reject(held)
        except StorageFull:  # the log says so; to close the channel would stop a consumer that has done nothing wrong
            if durable:
                raise

    if outcome is Settlement.ACKNOWLEDGED:
        await state.broker.acknowledge(_held(deliveries), durable=durable)
    else:
        await _for_each_queue(deliveries, put_back if outcome is Settlement.REQUEUED else reject)


async def _for_each_queue(
    deliveries: Iterable[UnsettledDelivery], do: Callable[[QueueName, Sequence[UnackedMessage]], Awaitable[None]]
) -> None:
    """Do something with the messages of each queue. What fails for one queue is tried for the next.

    Raises:
        MQError: the last error.
    """
    failed: MQError | None = None
    for queue, its in _by_queue(deliveries):
        try:
            await do(queue, _held(its))
        except MQError as error:
            failed = error
    if failed is not None:
        raise failed


def _by_queue(deliveries: Iterable[UnsettledDelivery]) -> Iterable[tuple[QueueName, list[UnsettledDelivery]]]:
    by_queue: dict[QueueName, list[UnsettledDelivery]] = {}
    for delivery in deliveries:
        by_queue.setdefault(delivery.queue, []).append(delivery)
    return by_queue.items()


def _arguments(state: AmqpState, queue: QueueName) -> Mapping[str, Any]:
    declared = state.topology_store.queue_of(queue)
    return {} if declared is None else declared.arguments


def _most_returns(arguments: Mapping[str, Any]) -> int | None:
    """The return with which a message is dead-lettered."""
    limit: int | None = arguments.get(DELIVERY_LIMIT)
    return None if limit is None else limit + 1


def _held(deliveries: Iterable[UnsettledDelivery]) -> list[UnackedMessage]:
    return [delivery.token for delivery in deliveries]
