"""Refusals of AMQP: a reply code, and from it whether the channel or the whole connection is closed."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from mq.errors import CallerError

LONGEST_TEXT: Final = 255
"""Bytes of the longest reply text: it is a short string."""


class Code(IntEnum):
    """The reply codes of AMQP 0-9-1, section 1.2; the names are those that RabbitMQ puts before the text."""

    CONTENT_TOO_LARGE = 311
    NO_ROUTE = 312
    CONNECTION_FORCED = 320
    INVALID_PATH = 402
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    SYNTAX_ERROR = 502
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


CLOSES_CHANNEL: Final = frozenset(
    {
        Code.CONTENT_TOO_LARGE,
        Code.NO_ROUTE,
        Code.ACCESS_REFUSED,
        Code.NOT_FOUND,
        Code.RESOURCE_LOCKED,
        Code.PRECONDITION_FAILED,
    }
)
"""Every other code closes the connection."""


class Refusal(CallerError):
    """The client did, or asked for, what is not allowed or not possible.

    Args:
        code: the reply code. It decides whether the channel or the connection is closed.
    """

    def __init__(self, code: Code, why: str) -> None:
        super().__init__(why)
        self.code = code

    @property
    def closes_connection(self) -> bool:
        """Whether the whole connection ends, and not only the channel."""
        return self.code not in CLOSES_CHANNEL

    @property
    def text(self) -> str:
        """The reply text, at most 255 bytes: ``NOT_FOUND - no queue 'q' in vhost '/'``."""
        return clip(f"{self.code.name} - {self}")


class WrongProtocol(CallerError):
    """The connection did not begin with the header of AMQP 0-9-1."""

    def __init__(self, text: str, answer: bytes) -> None:
        super().__init__(text)
        self.answer = answer


def clip(text: str) -> str:
    """`text`, cut at what a short string holds."""
    return text.encode("utf-8", "replace")[:LONGEST_TEXT].decode("utf-8", "ignore")
