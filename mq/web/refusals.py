"""Refusals: the status and the reply of each error, and of HTTP/1.1 requests that no endpoint ever sees."""

from __future__ import annotations

import math
import re
from typing import Any, Final

import h11

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
    NotYours,
    OverBudget,
    OverLimit,
    QueueFull,
    QueueHeld,
    ReceiptMismatch,
    StorageError,
)
from mq.web.exchange import UNSURE, BodyTooSlow, Reply, problem

RETRY_AFTER_SECONDS: Final = 10
"""What a client is told to wait when the store cannot take its request. The program of 2013 said the same."""

_STATUS: Final[tuple[tuple[type[MQError], int], ...]] = (
    (Conflict, 409),
    (NotYours, 403),
    (NoSuchQueue, 404),
    (NoSuchMessage, 404),
    (InvalidId, 404),
    (ReceiptMismatch, 412),
    (BodyTooLarge, 413),
    (BatchTooLarge, 413),
    (BodyTooSlow, 408),
    (QueueHeld, 423),
    (QueueFull, 429),
    (OverLimit, 429),
    (CallerError, 400),
    (StorageError, 503),
    (BrokerClosed, 503),
    (OverBudget, 503),
    (CorruptMessage, 500),
)
"""Error -> status; the first line that fits counts."""

_ENDS_CONNECTION: Final = (BodyIncomplete, BodyTooLarge, BodyTooSlow)
"""After these errors the rest of the request is not waited for."""


def status_of(error: MQError) -> int:
    """The status that an error is answered with."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def refusal_of(error: MQError) -> Reply:
    """The reply to a request that failed."""
    status = status_of(error)
    headers = (_retry_after_of(error),) if status in (423, 429, 503) or isinstance(error, BodyTooSlow) else ()
    return problem(status, str(error), *headers, is_unsure=error.is_unsure)._replace(
        is_last=isinstance(error, _ENDS_CONNECTION)
    )


def problem_of(error: MQError) -> dict[str, Any]:
    """The outcome line of one entry of a batch that failed."""
    said = {"status": status_of(error), "detail": " ".join(str(error).split())}
    return said | UNSURE if error.is_unsure else said


def _retry_after_of(error: MQError) -> tuple[str, str]:
    if isinstance(error, OverLimit):
        return ("retry-after", str(max(1, math.ceil(error.seconds))))
    return retry_after()


def retry_after() -> tuple[str, str]:
    """The header that tells when to come again."""
    return ("retry-after", str(RETRY_AFTER_SECONDS))


AMBIGUOUS_LINE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
MOST_EMPTY_LINES: Final = 16
"""Empty lines before a request's first line that are ignored (RFC 9112, section 2.2). Some clients send one after a
body."""
EMPTY_LINES: Final = re.compile(rb"(?:\r\n)*")
MOST_LINES: Final = 256
"""Lines of a request's head. Each costs as much as dozens of bytes."""

_HEAD_DETAILS: Final = {
    400: "this is not a well-formed HTTP/1.1 request",
    408: "timed out while waiting for the request line and the headers",
    431: f"the request line and the headers are too long, or have more than {MOST_LINES} lines",
    501: "the only supported transfer coding is chunked",
}


def check_head(received: bytes) -> None:
    """Refuse a request's head that has too many lines, or that a proxy could read differently (RFC 9112, sections 2.2
    and 5.2).

    h11 takes a bare LF for the end of a line, and a line that begins with a space for more of the line before. A proxy
    that does not would see other requests. `received` may be a part of a head, or go beyond it.

    Raises:
        h11.RemoteProtocolError: a line of it ends in a bare LF, or begins with a space; or there are too many.
    """
    end = received.find(b"\r\n\r\n")
    if received.count(b"\n", 0, len(received) if end < 0 else end) > MOST_LINES:
        raise h11.RemoteProtocolError(f"more than {MOST_LINES} lines", error_status_hint=431)
    if AMBIGUOUS_LINE.search(received, 0, len(received) if end < 0 else end):
        raise h11.RemoteProtocolError("a header line ends with a bare LF or begins with a space", error_status_hint=400)


BODY_ENDED: Final = (
    "the request body is incomplete: the connection was closed before its end. Nothing was changed. "
    "Send the request again"
)


def refusal_of_head(status: int) -> Reply:
    """The reply that ends the connection."""
    return problem(status, _HEAD_DETAILS.get(status, "the request is invalid"), ("connection", "close"))


def refusal_of_amqp() -> Reply:
    """The reply to a client of AMQP, which ends the connection."""
    return problem(400, "this is an HTTP port. AMQP uses another port, usually 5672", ("connection", "close"))


def refusal_of_body() -> Reply:
    """The reply to a request whose client closed its side in the middle of the body. It ends the connection."""
    return problem(400, BODY_ENDED, ("connection", "close"))
