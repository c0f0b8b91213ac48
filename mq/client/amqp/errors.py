"""What can go wrong over AMQP, beside what can with every client (:mod:`mq.client.errors`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.client.errors import BadRequest, ClientError, Conflict, NotAllowed, NotFound, Refused, TooLarge, Unavailable


class WrongRole(ClientError):
    """A producer wanted to consume, or a consumer to publish. Nothing was sent."""


class NotConfirmed(ClientError):
    """The server does not confirm the message. The queue is full, or the store is, and it was not kept; or the node
    that has the queue was lost meanwhile, and it may have been. Publish it again where twice does no harm."""


class ConsumerCancelled(ClientError):
    """The server ended a consumer: its queue was deleted, or fails over to another node. Consume again if you like."""


class NoFreeChannel(ClientError):
    """Every channel of the connection is in use: settle messages, end consumers, or open another connection."""


class UnknownDeliveryTag(Refused):
    """406: no message of this connection has that tag, or it was settled before. The connection was closed."""


class Exclusive(Refused):
    """405: the queue belongs to another connection."""


_BY_CODE: Final[Mapping[int, type[Refused]]] = {
    311: TooLarge,
    312: NotFound,
    320: Unavailable,
    402: NotFound,
    403: NotAllowed,
    404: NotFound,
    405: Exclusive,
    406: Conflict,
    502: BadRequest,
    506: Unavailable,
    530: NotAllowed,
    541: Unavailable,
}


def refusal(code: int, text: str) -> Refused:
    """The error for a reply code of AMQP."""
    return _BY_CODE.get(code, Refused)(code, text)
