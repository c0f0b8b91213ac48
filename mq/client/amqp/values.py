"""What goes into the AMQP client and what comes out of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import BasicProperties
from mq.client.errors import UnexpectedResponse


class Role(enum.StrEnum):
    """What a connection is for."""

    PRODUCER = "producer"
    """It publishes."""
    CONSUMER = "consumer"
    """It gets, consumes, and acknowledges."""
    BOTH = "both"


class Declared(NamedTuple):
    """A queue that is there.

    Attributes:
        name: its name; the server's choice where none was given.
        messages: how many were waiting.
        consumers: how many consumed from it.
    """

    name: str
    messages: int
    consumers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A message that this connection holds until it acknowledges it.

    Attributes:
        tag: what ``ack`` and ``nack`` take; higher than every tag before it on the connection.
        queue: where it came from.
        body: all of it.
        redelivered: whether a consumer may have had it before.
    """

    tag: int
    queue: str
    body: bytes
    redelivered: bool
    _properties: BasicProperties = field(repr=False)

    @property
    def message_id(self) -> str:
        """The publisher's own id of the message; "" for none."""
        return self._properties.text("message_id")

    @property
    def content_type(self) -> str:
        """What the body is; "" where the publisher did not say."""
        return self._properties.text("content_type")

    @property
    def content_encoding(self) -> str:
        """How the body is compressed, as its publisher said: "gzip"; "" where it did not."""
        return self._properties.text("content_encoding")

    @property
    def is_persistent(self) -> bool:
        """Whether it was published as persistent."""
        return self._properties.is_persistent

    @property
    def headers(self) -> Mapping[str, Any]:
        """What the publisher and the server wrote beside the body.

        Raises:
            UnexpectedResponse: it is malformed.
        """
        try:
            return self._properties.headers()
        except Refusal as error:
            raise UnexpectedResponse(f"cannot read the message headers: {error}") from error
