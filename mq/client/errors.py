"""What can go wrong between a client and a daemon, by whose fault, and whether anything was changed.

* :class:`Refused`: the daemon said no. Its subclasses say why; the text is the daemon's own line.
* :class:`Unreachable`: nobody took the request, so nothing was changed.
* :class:`Interrupted`: the request went out and no whole answer came back: whether it was served is not known.
* :class:`NotUnderstood`: an answer came that no mq gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mq.errors import MQError


class ClientError(MQError):
    """The root of every error that a client raises on purpose."""


class Unreachable(ClientError):
    """There was no connection, after all tries. The request was not made."""


class Interrupted(ClientError):
    """The connection broke, or no answer came in time. The request may have been served, or may not."""


class NotUnderstood(ClientError):
    """The answer is not one that mq gives: something else listens there, or stands in between."""


class Refused(ClientError):
    """The daemon refused, and changed nothing (but see :class:`Unavailable`).

    Attributes:
        status: the HTTP status; over AMQP the reply code.
        detail: the daemon's line: what is wrong and what to do.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


class BadRequest(Refused):
    """400: a name, a number or a setting that makes no sense."""


class NotAllowed(Refused):
    """401, 403: without credentials, with wrong ones, or without the right."""


class NotFound(Refused):
    """404: no such queue, or no such message in it."""


class Conflict(Refused):
    """409: right in itself, but not here; a key where the daemon has peers, for one."""


class LeaseLost(Refused):
    """412: the lease ran out, and the message is, or was, somebody else's."""


class TooLarge(Refused):
    """413: the body is too long for this daemon."""


class QueueFull(Refused):
    """429, after all tries: the queue is full by its own settings."""


class Unavailable(Refused):
    """503, after all tries: the store cannot promise to keep anything just now. Where it has failed, what it was asked
    for may turn out to be done when it is opened anew."""


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


def refusal(status: int, detail: str) -> Refused:
    """The error for a status of 400 or more."""
    return _BY_STATUS.get(status, Refused)(status, detail)
