"""The delivery of a message: what AMQP sends of it, and how much memory that takes."""

from __future__ import annotations

from typing import Any, Final

import trio

from mq.amqp.model.arguments import QUEUE_TYPE, QUORUM
from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import Arrival
from mq.amqp.server.message_codec import arrival_of, with_delivery_count
from mq.broker import UnackedMessage
from mq.doors.budget import Budget
from mq.errors import CorruptMessage
from mq.message import BytesBody, Message, SharedAttributes

DELIVERY_BYTES: Final = 256
"""What a delivery takes in memory besides its message."""
_WRITTEN: Final = 2
"""How much memory a character of the attributes takes, with what it is written in."""


def delivery_bytes(message: Message, budget: Budget) -> int:
    """How much memory the delivery of a message takes: its body is there as it was read, and as it is sent.

    Args:
        budget: has the memory; no more than all of it is asked for.
    """
    size, _, attributes = message.properties
    if isinstance(attributes, SharedAttributes):
        written = len(attributes.json or attributes.encoded())
    else:
        written = 0
        for value in attributes.values():
            written += len(value) if isinstance(value, str) else _size(value)
    return min(2 * size + DELIVERY_BYTES + _WRITTEN * written, budget.most)


def _size(value: Any) -> int:
    """About how long the value of an attribute is, other than a text."""
    if not isinstance(value, dict):
        return 16
    size = 0
    for name, its in value.items():
        size += len(str(name)) + (len(its) if isinstance(its, str) else _size(its))
    return size


async def read(held: UnackedMessage, queue: Queue, *, no_ack: bool, is_asked_for: bool = False) -> Arrival:
    """Read an unacknowledged message as it is delivered, and close its body.

    Args:
        no_ack: whether it is settled as it is sent.
        is_asked_for: whether a client gets it by ``basic.get``, and not as a consumer.

    Raises:
        CorruptMessage: its bytes are not those that were published.
    """
    body = held.message.body
    if isinstance(body, BytesBody):
        data = body.data
    else:
        data = await body.read()
        with trio.CancelScope(shield=True):  # on an earlier error the caller closes it
            await body.aclose()
    return _arrival(held, queue, data, no_ack, is_asked_for)


def arrival(held: UnackedMessage, queue: Queue, *, no_ack: bool, is_asked_for: bool = False) -> Arrival | None:
    """As :func:`read`, of a message whose body is in memory; None if it is not, or the message is damaged."""
    body = held.message.body
    try:
        return _arrival(held, queue, body.data, no_ack, is_asked_for) if isinstance(body, BytesBody) else None
    except CorruptMessage:
        return None


def _arrival(held: UnackedMessage, queue: Queue, body: bytes, no_ack: bool, is_asked_for: bool) -> Arrival:
    message, redelivered, _ = held
    token = None if no_ack else held.to_settle()
    found = arrival_of(token, message.id, queue.name, message.properties.attributes, body, redelivered=redelivered)
    if queue.arguments and queue.arguments.get(QUEUE_TYPE) == QUORUM and (message.receives > 1 or is_asked_for):
        return found._replace(properties=with_delivery_count(found.properties, message.receives - 1))
    return found
