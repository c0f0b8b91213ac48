"""Deliveries settled against the broker: acknowledged, requeued or rejected, part by part; and acknowledged messages of
one connection that are being removed while it reads on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from mq import turns
from mq.amqp.model.arguments import DELIVERY_LIMIT, QUEUE_TYPE, QUORUM, REQUEUE
from mq.amqp.protocol.commands import ACKNOWLEDGED, Settlement, UnsettledDelivery
from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.server.refusals import refusal_of
from mq.amqp.server.state import AmqpState
from mq.broker import UnackedMessage
from mq.errors import MQError, StorageFull
from mq.message import QueueName

MOST_ACKNOWLEDGING: Final = 2000
"""Messages of one connection that may be removed while it reads on. All of them come again after kill -9."""
LEAST_ACKNOWLEDGING: Final = 128
"""The same, where the store takes :data:`LONGEST_REMOVAL_SECONDS` for so few."""
LONGEST_REMOVAL_SECONDS: Final = 0.1
"""How long a removal may take until fewer are begun before more is read."""
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

    if outcome is ACKNOWLEDGED:
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


class Removals:
    """Removes acknowledged messages.

    Attributes:
        count: messages that are being removed.
        most: if there are more, the connection waits before it reads on.
        is_awaited: whether the connection waits for them, so that nothing is read from its client.
    """

    def __init__(self, client: ClientConnection) -> None:
        self.count = 0
        self.is_awaited = False
        self._client = client
        self._state = client.state
        self.most = LEAST_ACKNOWLEDGING
        self._fewer = trio.lowlevel.ParkingLot()  # tasks that wait until there are fewer

    def begin(self, held: Sequence[UnackedMessage]) -> None:
        """Begin to remove messages."""
        self.count += len(held)
        removed = partial(self._client.complete, self._removed, len(held), self._client.now())
        try:
            if not self._state.broker.acknowledge_now(held, removed):
                self._client.start(self._remove, held, removed)
        except MQError as error:
            removed(error)

    async def _remove(self, held: Sequence[UnackedMessage], removed: Callable[[Exception | None], None]) -> None:
        error: MQError | None = None
        try:
            with self._state.broker.progress.shielded():
                await self._state.broker.acknowledge(held)
        except MQError as caught:
            error = caught
        finally:
            removed(error)

    def _removed(self, count: int, began: float, error: Exception | None) -> None:
        """Note that messages are removed, or READY again."""
        self.count -= count
        if self.is_awaited:
            self._fewer.unpark_all()
        if isinstance(error, MQError):
            if self._client.connection.is_over:  # the client is told nothing any more
                self._client.log_left(error)
            self._client.fail(refusal_of(error))
        seconds = self._client.now() - began
        if seconds > LONGEST_REMOVAL_SECONDS:
            self.most = max(LEAST_ACKNOWLEDGING, self.most // 2)
        elif seconds < LONGEST_REMOVAL_SECONDS / 2 and self.most < MOST_ACKNOWLEDGING:
            self.most = min(MOST_ACKNOWLEDGING, self.most * 2)

    async def wait(self, *, for_all: bool = True) -> None:
        """Wait until all messages are removed, or few enough to read on, also if the connection is cancelled meanwhile.

        Raises:
            StorageUnsure: the store does not answer.
        """
        if self.count > (0 if for_all else self.most):
            try:
                with self._state.broker.progress.shielded():
                    while self.count > (0 if for_all else self.most):
                        self.is_awaited = True  # again each time, as another task may have waited for less
                        await self._fewer.park()
            finally:
                self.is_awaited = bool(self._fewer)  # other tasks may wait, too
