"""A message between AMQP and the broker: the attributes that are stored with its body, and the way back.

A message that was published over AMQP keeps its properties byte for byte. One that was published over HTTP gets
properties: its content type, its attributes as headers, its id.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from pamqp import commands as methods

from mq.amqp.model.arguments import MESSAGE_TTL
from mq.amqp.model.declared import Queue
from mq.amqp.protocol.commands import Arrival, PublishedMessage
from mq.amqp.wire.errors import Refusal
from mq.amqp.wire.properties import LONGEST_REMEMBERED, PERSISTENT, BasicProperties
from mq.broker import Draft
from mq.errors import CorruptMessage
from mq.message import QueueName, SharedAttributes, content_codings

GROUP: Final = "x-message-group"
"""The header that names a message's group."""
SHORTEST_SECONDS: Final = 0.001
AT_ONCE_SECONDS: Final = 1.0
"""How long the delivery of a message with a time to live of 0 may take, where its queue has a consumer."""
DELIVERY_COUNT: Final = "x-delivery-count"
_OWN_KEY: Final = "amqp"
_MOST_TEXTS: Final = 64
_MOST_BYTES: Final = 8192


class Publication(NamedTuple):
    """A message that goes into queues, other than one that a client of AMQP has just published: a dead letter, or a
    message of another protocol. Its attributes are those of :class:`PublishedMessage`."""

    exchange: str
    routing_key: str
    properties: BasicProperties
    body: bytes
    expiration_ms: int | None = None
    hidden_keys: tuple[str, ...] = ()


Publishable = PublishedMessage | Publication


def attributes_of(
    properties: BasicProperties, exchange: str, routing_key: str, hidden_keys: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    """The attributes that the broker stores with a message, as JSON values. HTTP shows its content type and those
    headers that are texts, as far as headers of HTTP can carry them. The arguments are as :class:`Publication` has
    them."""
    if len(properties.raw) > LONGEST_REMEMBERED:
        return _attributes_of.__wrapped__(properties, exchange, routing_key, hidden_keys)
    return _attributes_of(properties, exchange, routing_key, hidden_keys)


@lru_cache(maxsize=64)  # a publisher's next message mostly has the same properties
def _attributes_of(
    properties: BasicProperties, exchange: str, routing_key: str, hidden_keys: tuple[str, ...]
) -> Mapping[str, Any]:
    raw = base64.b64encode(properties.raw).decode()
    kept: dict[str, Any] = {"properties": raw, "exchange": exchange, "routing_key": routing_key}
    if hidden_keys:
        kept["hidden_keys"] = hidden_keys
    content_type = properties.text("content_type")
    attributes: dict[str, Any] = {"content_type": content_type} if content_type else {}
    if codings := content_codings(properties.text("content_encoding")):
        attributes["content_encoding"] = codings
    if properties.has_headers and (texts := _texts(properties)):
        if group := texts.pop(GROUP, ""):
            attributes["group"] = group
        if texts:
            attributes["attributes"] = texts
    return SharedAttributes(attributes | {_OWN_KEY: kept})


def draft_of(
    publication: Publishable,
    queue: Queue,
    count_consumers: Callable[[QueueName], int],
    *,
    asked: Draft | None = None,
    is_dead_letter: bool = False,
    replaces: bool = False,
) -> Draft:
    """What the broker stores of a message in one of its queues: in memory alone where either is not durable.

    Args:
        publication: the message.
        queue: where it goes.
        count_consumers: of a queue. A time to live of 0 leaves just enough for a waiting consumer.
        asked: the draft of its publisher over another protocol, with a delay, for example; None for a message of AMQP.
        is_dead_letter: whether it died in another queue.
        replaces: as in :class:`~mq.broker.Draft`.
    """
    properties, own_ms = publication.properties, publication.expiration_ms
    attributes = attributes_of(properties, publication.exchange, publication.routing_key, publication.hidden_keys)
    ttl = None if own_ms is None else own_ms / 1000
    if own_ms == 0 or (queue.arguments and queue.arguments.get(MESSAGE_TTL) == 0):
        ttl = AT_ONCE_SECONDS if count_consumers(queue.key) else SHORTEST_SECONDS
    draft = Draft(
        publication.body,
        attributes,
        ttl=ttl,
        transient=not (properties.is_persistent and queue.is_lasting),
        priority=properties.priority,
        is_dead_letter=is_dead_letter,
        replaces=replaces,
        group=attributes.get("group"),
        is_group_hint=True,
    )
    if asked is None:
        return draft
    attributes = {**attributes, **asked.attributes}  # of texts another protocol takes more
    return draft._replace(attributes=attributes, delay=asked.delay, key=asked.key, at_ms=asked.at_ms)


@lru_cache(maxsize=64)
def _raw(kept: str) -> bytes:
    return base64.b64decode(kept, validate=True)


def _texts(properties: BasicProperties) -> dict[str, str]:
    """Headers as HTTP's attributes. Only the first ones: a hostile client may send any number of them."""
    try:
        headers = properties.headers()
    except Refusal:
        return {}  # malformed: no exchange on the way had to decode them
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
        token: what the caller will know it by when it is settled.
        attributes: what was kept with it, over whichever protocol it came.
        redelivered: whether it has been delivered before.

    Raises:
        CorruptMessage: the attributes are none that :func:`attributes_of` returns.
    """
    ours = attributes.get(_OWN_KEY)
    if ours is None:
        return Arrival(token, "", queue, _written(attributes, message_id=id), body, redelivered)
    try:
        written = ours["properties"]
        raw = _raw(written) if len(written) <= LONGEST_REMEMBERED else _raw.__wrapped__(written)
        exchange, routing_key = str(ours["exchange"]), str(ours["routing_key"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptMessage("the message's stored properties are damaged") from error
    return Arrival(token, exchange, routing_key, raw, body, redelivered)


def with_delivery_count(raw: bytes, returns: int) -> bytes:
    """Properties with the header that tells how often a message has come back to its quorum queue; as they are where
    their headers are malformed."""
    try:
        return BasicProperties(raw).changed({DELIVERY_COUNT: returns}).raw
    except Refusal:
        return raw


def hidden_keys_of(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys of a message's ``BCC``, by which it goes on when it dies."""
    ours = attributes.get(_OWN_KEY)
    kept = ours.get("hidden_keys") if isinstance(ours, dict) else None
    return tuple(key for key in kept if isinstance(key, str)) if isinstance(kept, list | tuple) else ()


def properties_of(draft: Draft) -> BasicProperties:
    """The properties of a message that another protocol publishes to an exchange."""
    expiration = None if draft.ttl is None else str(max(1, round(draft.ttl * 1000)))
    return BasicProperties(_written(draft.attributes, priority=draft.priority or None, expiration=expiration))


def _written(attributes: Mapping[str, Any], **more: Any) -> bytes:
    texts = attributes.get("attributes")
    headers = {_text(name): _text(text) for name, text in texts.items()} if isinstance(texts, dict) else {}
    if isinstance(attributes.get("group"), str):
        headers[GROUP] = _text(attributes["group"])
    content_type = _text(attributes.get("content_type") or "").encode()[:255].decode("utf-8", "ignore")
    properties = methods.Basic.Properties(
        content_type=content_type or None,
        content_encoding=content_codings(_text(attributes.get("content_encoding") or "")),
        headers=dict(headers) or None,
        delivery_mode=PERSISTENT,
        **more,
    )
    return properties.marshal()


def _text(value: Any) -> str:
    """Text that can be encoded: lone surrogates, which JSON can hold, are replaced."""
    return str(value).encode("utf-8", "replace").decode()
