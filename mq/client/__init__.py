"""Clients of a daemon: one for threads, one for Trio, over one core that does no I/O.

* :mod:`mq.client.values`: what goes in and comes out. :mod:`mq.client.errors`: what can go wrong.
* :mod:`mq.client.calls`: a request, its answer, and when it may be sent again. :mod:`mq.client.requests`: every verb of
  the protocol as one of these. :mod:`mq.client.codec`: headers and lines. :mod:`mq.client.batches`: long lists.
* :mod:`mq.client.retries`: pauses between tries.
* :mod:`mq.client.wire`: what httpx is told. :mod:`mq.client.sync_client`, :mod:`mq.client.trio_client`: the two.
* :mod:`mq.client.amqp`: a third client, over AMQP, which stands by itself.

Nothing here knows of the broker, or serves::

    from mq.client import Client

    with Client("http://127.0.0.1:8080") as client:
        client.publish("letters", "hello, world")
        with client.receive("letters") as message:
            print(message.body)
"""

from mq.client.errors import (
    BadRequest,
    ClientError,
    Conflict,
    Interrupted,
    LeaseLost,
    NotAllowed,
    NotFound,
    NotUnderstood,
    QueueFull,
    Refused,
    TooLarge,
    Unavailable,
    Unreachable,
)
from mq.client.retries import Retry
from mq.client.sync_client import Client, Stream
from mq.client.trio_client import AsyncClient, AsyncStream
from mq.client.values import (
    Death,
    Head,
    Outcome,
    Outgoing,
    Page,
    Published,
    Queue,
    QueueSettings,
    Received,
    Redriven,
)
from mq.client.wire import Access

__all__ = [
    "Access",
    "AsyncClient",
    "AsyncStream",
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "Death",
    "Head",
    "Interrupted",
    "LeaseLost",
    "NotAllowed",
    "NotFound",
    "NotUnderstood",
    "Outcome",
    "Outgoing",
    "Page",
    "Published",
    "Queue",
    "QueueFull",
    "QueueSettings",
    "Received",
    "Redriven",
    "Refused",
    "Retry",
    "Stream",
    "TooLarge",
    "Unavailable",
    "Unreachable",
]
