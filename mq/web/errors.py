"""Which status an error is, at every HTTP door."""

from __future__ import annotations

from typing import Any, Final

from mq.errors import (
    BatchTooLarge,
    BodyIncomplete,
    BodyTooLarge,
    BrokerClosed,
    CallerError,
    Conflict,
    CorruptMessage,
    InvalidId,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    QueueFull,
    QueueHeld,
    ReceiptMismatch,
    StorageError,
)
from mq.web.exchange import BodyTooSlow, Reply, problem

RETRY_AFTER_SECONDS: Final = 10
"""What a client is told to wait when the store cannot take its request. The program of 2013 said the same."""

_STATUS: Final[tuple[tuple[type[MQError], int], ...]] = (
    (Conflict, 409),
    (NoSuchQueue, 404),
    (NoSuchMessage, 404),
    (InvalidId, 404),
    (ReceiptMismatch, 412),
    (BodyTooLarge, 413),
    (BatchTooLarge, 413),
    (BodyTooSlow, 408),
    (QueueHeld, 423),
    (QueueFull, 429),
    (CallerError, 400),
    (StorageError, 503),
    (BrokerClosed, 503),
    (CorruptMessage, 500),
)
"""Error -> status; the first line that fits counts."""

_ENDS_CONNECTION: Final = (BodyIncomplete, BodyTooLarge, BodyTooSlow)
"""After these the rest of the request is not worth waiting for."""


def status_of(error: MQError) -> int:
    """The status that an error is answered with."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def refusal_of(error: MQError) -> Reply:
    """The reply to a request that failed."""
    status = status_of(error)
    headers = (retry_after(),) if status in (423, 429, 503) else ()
    return problem(status, str(error), *headers)._replace(is_last=isinstance(error, _ENDS_CONNECTION))


def problem_of(error: MQError) -> dict[str, Any]:
    """What is said of one entry of a batch."""
    return {"status": status_of(error), "detail": " ".join(str(error).split())}


def retry_after() -> tuple[str, str]:
    """The header that tells when to come again."""
    return ("retry-after", str(RETRY_AFTER_SECONDS))
