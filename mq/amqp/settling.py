"""What becomes of deliveries: acknowledged, put back, or dead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mq.amqp.arguments import REQUEUE
from mq.amqp.commands import Delivery, Outcome
from mq.amqp.door import Door
from mq.broker import Held
from mq.message import QueueName


async def settle(door: Door, outcome: Outcome, deliveries: Sequence[Delivery], *, durable: bool = False) -> None:
    """All of these have come to the same end.

    Args:
        door: knows the queues.
        outcome: which end.
        deliveries: may be of several queues.
        durable: whether that must be durable on return; else it is soon.

    Raises:
        StorageError: the store cannot do that now. What it could not do is as it was.
    """
    if outcome is Outcome.ACKNOWLEDGED:
        await door.broker.acknowledge(_held(deliveries), durable=durable)
        return
    by_queue: dict[QueueName, list[Delivery]] = {}
    for delivery in deliveries:
        by_queue.setdefault(delivery.queue, []).append(delivery)
    for queue, its in by_queue.items():
        if outcome is Outcome.REQUEUED:
            declared = door.declarations.queue_of(queue)
            to_back = declared is not None and declared.arguments.get(REQUEUE) == "back"
            await door.broker.put_back(_held(its), to_back=to_back)
        else:
            await door.broker.reject(_held(its))


def _held(deliveries: Iterable[Delivery]) -> list[Held]:
    return [delivery.token for delivery in deliveries]
