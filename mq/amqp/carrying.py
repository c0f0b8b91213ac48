"""A message between AMQP and the broker: what is kept of it beside its body, and how it comes out again.

What was published over AMQP keeps its properties byte for byte. What was published over HTTP gets properties: its
content type, its attributes as headers, its id.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, Protocol

from pamqp import commands as methods

from mq.amqp.commands import Arrival
from mq.amqp.errors import Refused
from mq.amqp.properties import PERSISTENT, Properties
from mq.message import SharedAttributes

_OURS: Final = "amqp"
_MOST_TEXTS: Final = 64
_MOST_BYTES: Final = 8192


class Letter(Protocol):
    """A message before it is in a queue: what of it is kept."""

    @property
    def exchange(self) -> str:
        """Where it was published."""

    @property
    def routing_key(self) -> str:
        """With which key."""

    @property
    def properties(self) -> Properties:
        """As they came."""

    @property
    def body(self) -> bytes:
        """All of it."""

    @property
    def expiration_ms(self) -> int | None:
        """After so many milliseconds it expires; None for what the queue says."""


def attributes_of(letter: Letter) -> Mapping[str, Any]:
    """What the broker keeps with a message, as JSON values. Over HTTP its content type is seen, and headers that are
    texts, as far as headers of HTTP can carry them."""
    return _attributes(letter.properties, letter.exchange, letter.routing_key)


@lru_cache(maxsize=64)
def _attributes(properties: Properties, exchange: str, routing_key: str) -> Mapping[str, Any]:
    """A publisher's next message mostly has the very same properties."""
    raw = base64.b64encode(properties.raw).decode()
    kept = {"properties": raw, "exchange": exchange, "routing_key": routing_key}
    content_type = properties.text("content_type")
    attributes: dict[str, Any] = {"content_type": content_type} if content_type else {}
    if properties.has_headers and (texts := _texts(properties)):
        attributes["attributes"] = texts
    return SharedAttributes(attributes | {_OURS: kept})


@lru_cache(maxsize=64)
def _raw(kept: str) -> bytes:
    return base64.b64decode(kept, validate=True)


def _texts(properties: Properties) -> dict[str, str]:
    """Headers as HTTP's attributes: the first ones, as a hostile client may send as many as it likes."""
    try:
        headers = properties.headers()
    except Refused:
        return {}  # malformed, and nobody had to look into them before
    texts: dict[str, str] = {}
    left = _MOST_BYTES
    for name, text in headers.items():
        if isinstance(text, str):
            left -= len(name) + len(text.encode("utf-8", "replace"))
            if left < 0 or len(texts) == _MOST_TEXTS:
                break
            texts[name.lower()] = text
    return texts


def arrival_of(
    token: Any, id: str, queue: str, attributes: Mapping[str, Any], body: bytes, *, redelivered: bool
) -> Arrival:
    """A message as it is delivered.

    Args:
        token: names it to whoever gave it.
        id: the message's.
        queue: the name in AMQP of where it is.
        attributes: what was kept with it, over whichever protocol it came.
        body: all of it.
        redelivered: whether it has been delivered before.

    Raises:
        ValueError, KeyError, TypeError: what was kept is nothing that :func:`attributes_of` made.
    """
    ours = attributes.get(_OURS)
    if ours is None:
        return Arrival(token, "", queue, _from_http(id, attributes), body, redelivered)
    raw = _raw(ours["properties"])
    return Arrival(token, str(ours["exchange"]), str(ours["routing_key"]), raw, body, redelivered)


def _from_http(id: str, attributes: Mapping[str, Any]) -> bytes:
    texts = attributes.get("attributes")
    headers = {_text(name): _text(text) for name, text in texts.items()} if isinstance(texts, dict) else {}
    content_type = _text(attributes.get("content_type") or "").encode()[:255].decode("utf-8", "ignore")
    properties = methods.Basic.Properties(
        content_type=content_type or None,
        headers=dict(headers) or None,
        delivery_mode=PERSISTENT,
        message_id=id,
    )
    return properties.marshal()


def _text(value: Any) -> str:
    """Text that can be sent: half a character, which JSON can hold, is replaced."""
    return str(value).encode("utf-8", "replace").decode()
