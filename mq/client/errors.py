"""What can go wrong between a client and a daemon, by whose fault, and whether anything was changed.

* :class:`Refused`: the daemon said no. Its subclasses say why; the text is the daemon's own line.
* :class:`Unreachable`: no daemon took the request, so nothing was changed.
* :class:`Interrupted`: the request went out and no whole answer came back: whether it was served is not known.
* :class:`UnexpectedResponse`: an answer came that no mq gives.

Where what was asked for may have been done all the same, :attr:`~mq.errors.MQError.is_unsure` is true, and the text
says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from mq.errors import MQError


class ClientError(MQError):
    """The root of every error that a client raises on purpose."""


class Requeue(Exception):
    """A program raises this in the block that handles a message: the block ends there, without an error, and the
    message goes back.

    Args:
        delay: seconds before it can be fetched again; None for as long as its queue says of failures.
        reason: why; shown with the message among the dead.
    """

    def __init__(self, delay: float | None = 0.0, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason


class Unreachable(ClientError):
    """There was no connection, after all tries. The request was not made."""


class Interrupted(ClientError):
    """The connection broke, or no answer came in time. The request may have been served, or may not."""

    is_unsure = True


class UnexpectedResponse(ClientError):
    """The answer is not one that mq gives: something else listens there, or stands in between."""


class Refused(ClientError):
    """The daemon refused, and changed nothing, unless ``is_unsure``.

    Attributes:
        status: the HTTP status; over AMQP the reply code.
        detail: the daemon's line: what is wrong and what to do.
        is_unsure: whether it may have been done all the same, by this try or one before.
    """

    def __init__(self, status: int, detail: str, *, is_unsure: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.is_unsure = is_unsure


class BadRequest(Refused):
    """400: a name, a number or a setting that makes no sense."""


class NotAllowed(Refused):
    """401, 403: without credentials, with wrong ones, or without the right."""


class NotFound(Refused):
    """404: no such queue, or no such message in it."""


class Conflict(Refused):
    """409: right in itself, but not here; a key where the daemon has peers, for one."""


class LeaseLost(Refused):
    """412: the lease ran out, and another consumer has the message, or had it."""


class TooLarge(Refused):
    """413: the body is too long for this daemon."""


class QueueFull(Refused):
    """429, after all tries: the queue takes nothing now. It is full by its own settings, or publishing is paused."""


class Unavailable(Refused):
    """503, after all tries: the store cannot promise to keep anything just now. Over HTTP ``is_unsure`` says
    whether it may have been done; over AMQP the text does."""


_CREATE: Final = re.compile(r"Create it with PUT /(\S+)")
"""The daemon's advice if a queue does not exist, for users of HTTP."""
_BY_STATUS: Final[Mapping[int, type[Refused]]] = {
    400: BadRequest,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    409: Conflict,
    412: LeaseLost,
    413: TooLarge,
    429: QueueFull,
    503: Unavailable,
}


def refusal(status: int, detail: str, *, is_unsure: bool = False) -> Refused:
    """The error for a status of 400 or more."""
    detail = _CREATE.sub(r'Create it with client.create_queue("\1")', detail)
    return _BY_STATUS.get(status, Refused)(status, detail, is_unsure=is_unsure)


_NOISE: Final = re.compile(r"\[(Errno -?\d+|SSL: \w+)\] | \(_ssl\.c:\d+\)|Error connecting to \(.*?\): ")
_ADVICE: Final = {
    "wrong version number": "the server does not use TLS. Use http:// or amqp:// in the URL",
    "certificate verify failed": "{text}. Specify the CA certificate to trust",
    "connection refused": "{text}. Check that the daemon is running",
}
"""What a reason contains, in small letters, and the text for a user; ``{text}`` is the reason itself."""


def connection_reason(error: BaseException) -> str:
    """Return why a connection failed, in words for a user, and what to do if that is known."""
    text = " ".join(_NOISE.sub("", str(error)).split()) or type(error).__name__
    for reason, advice in _ADVICE.items():
        if reason in text.lower():
            return advice.format(text=text)
    return text
