"""What bytes from the server mean."""

from __future__ import annotations

from typing import NamedTuple

from pamqp import base


class Opened(NamedTuple):
    """The connection is tuned and open: work can begin."""


class Answered(NamedTuple):
    """The answer to a method that has one."""

    channel: int
    method: base.Frame


class Arrived(NamedTuple):
    """A whole message came.

    Attributes:
        channel: where.
        number: what it is called there.
        is_redelivered: whether somebody may have had it before.
        is_answer: whether it was asked for by basic.get.
        properties: as they came.
        body: all of it.
    """

    channel: int
    number: int
    is_redelivered: bool
    is_answer: bool
    properties: bytes
    body: bytes


class Returned(NamedTuple):
    """A message came back, with its properties, and why."""

    channel: int
    text: str
    properties: bytes


class Confirmed(NamedTuple):
    """The server has kept a message, or did not: that one, or with `multiple` all up to it."""

    channel: int
    sequence: int
    multiple: bool
    is_kept: bool


class ConsumerEnded(NamedTuple):
    """The server ended the consumer of a channel."""

    channel: int


class ChannelRefused(NamedTuple):
    """The server closed a channel, and why."""

    channel: int
    code: int
    text: str


class Changed(NamedTuple):
    """Publishing may be blocked now, or no longer."""


class Closed(NamedTuple):
    """The connection is at its end.

    Attributes:
        code: the server's reply code; 0 where it was we who closed.
        text: why.
    """

    code: int
    text: str


Event = Opened | Answered | Arrived | Returned | Confirmed | ConsumerEnded | ChannelRefused | Changed | Closed
