"""Clients of a daemon: one for threads, one for asyncio and Trio, over one core that does no I/O.

* ``values``: what goes in and comes out; ``errors``: what can go wrong.
* ``calls``: a request, its body and its answer, and when it may be sent again; ``requests``: each verb of the protocol
  as such a call, and long lists as batches; ``codec``: headers and lines.
* ``retries``: pauses between tries; ``transport``: what httpx is told.
* ``leases``: when the lease of a message at hand is extended, and the task or the thread that does it.
* ``spans``: what OpenTelemetry hears of it all, where that is installed.
* ``async_client``: the client for asyncio and Trio; ``sync_client``: the one for threads, generated from it.
* ``webhook``: posts messages to another server.
* ``amqp``: a third client, over AMQP, which stands by itself.

Nothing here knows of the broker, or serves::

    from mq.client import Client

    with Client("http://127.0.0.1:8080") as client:
        client.publish("letters", "hello, world")
        with client.receive("letters") as message:
            print(message.body)

The clients themselves are imported at their first use. The Spark source has a transport of its own, and pays for
neither httpx nor anyio.
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
    QueueFull,
    Refused,
    Requeue,
    TooLarge,
    Unavailable,
    UnexpectedResponse,
    Unreachable,
)
from mq.client.retries import Retry
from mq.client.values import (
    DeadLetterEvent,
    Duration,
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
    from mq.client.async_client import AsyncClient, AsyncStream
    from mq.client.leases import AsyncLease, Lease
    from mq.client.sync_client import Client, Stream
    from mq.client.transport import Access

__all__ = [
    "Access",
    "AsyncClient",
    "AsyncLease",
    "AsyncStream",
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "DeadLetterEvent",
    "Duration",
    "Head",
    "Interrupted",
    "Lease",
    "LeaseLost",
    "NotAllowed",
    "NotFound",
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
    "Requeue",
    "Retry",
    "Stream",
    "TooLarge",
    "Unavailable",
    "UnexpectedResponse",
    "Unreachable",
]

_WITH_TRANSPORT: Final = {
    "Access": "mq.client.transport",
    "AsyncClient": "mq.client.async_client",
    "AsyncLease": "mq.client.leases",
    "AsyncStream": "mq.client.async_client",
    "Client": "mq.client.sync_client",
    "Lease": "mq.client.leases",
    "Stream": "mq.client.sync_client",
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TRANSPORT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_TRANSPORT[name]), name)
