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

The clients themselves, with what sends for them, are imported when they are asked for: who brings another transport, as
the Spark source does, pays for neither httpx nor Trio.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

if TYPE_CHECKING:
    from mq.client.sync_client import Client, Stream
    from mq.client.trio_client import AsyncClient, AsyncStream
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

_WITH_TRANSPORT: Final = {
    "Access": "mq.client.wire",
    "AsyncClient": "mq.client.trio_client",
    "AsyncStream": "mq.client.trio_client",
    "Client": "mq.client.sync_client",
    "Stream": "mq.client.sync_client",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TRANSPORT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_TRANSPORT[name]), name)
