"""A message between AMQP and the broker: what is kept of it beside its body, and how it comes out again.

What was published over AMQP keeps its properties byte for byte. What was published over HTTP gets properties: its
content type, its attributes as headers, its id.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from pamqp import commands as methods

from mq.amqp.commands import Arrival, Message
from mq.amqp.properties import PERSISTENT

_OURS: Final = "amqp"


def attributes_of(message: Message) -> dict[str, Any]:
    """What the broker keeps with a message, as JSON values. Over HTTP its content type is seen."""
    raw = base64.b64encode(message.properties.raw).decode()
    kept = {"properties": raw, "exchange": message.exchange, "routing_key": message.routing_key}
    content_type = message.properties.text("content_type")
    return ({"content_type": content_type} if content_type else {}) | {_OURS: kept}


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
    raw = base64.b64decode(ours["properties"], validate=True)
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
