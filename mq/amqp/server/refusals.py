"""AMQP reply codes for errors of mq."""

from __future__ import annotations

from mq.amqp.wire.errors import Code, Refusal
from mq.errors import BrokerClosed, CallerError, MQError, NoMemory, NoSuchQueue, NotServed, QueueHeld, StorageFull


def refusal_of(error: MQError) -> Refusal:
    """Return an error of mq as a reply code of AMQP."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, NoSuchQueue):
        return Refusal(Code.NOT_FOUND, str(error))
    if isinstance(error, QueueHeld):
        return Refusal(Code.ACCESS_REFUSED, str(error))
    if isinstance(error, BrokerClosed):
        return Refusal(Code.CONNECTION_FORCED, str(error))
    if isinstance(error, StorageFull | NoMemory):
        return Refusal(Code.RESOURCE_ERROR, str(error))
    # NotServed closes the channel alone: other queues of the connection are served.
    is_of_channel = isinstance(error, CallerError | NotServed)
    return Refusal(Code.PRECONDITION_FAILED if is_of_channel else Code.INTERNAL_ERROR, str(error))
