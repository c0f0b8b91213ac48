"""What stands in a request's query and headers, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from mq.broker.queue_settings import DELAY, TTL, Kind, check_value, count, seconds
from mq.errors import InvalidRequest
from mq.message import Message, shorten

LARGEST_BATCH: Final = 1000
LONGEST_WAIT_SECONDS: Final = 3600
MOST_ATTRIBUTES: Final = 64
LARGEST_ATTRIBUTES_BYTES: Final = 16 * 1024
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
ATTRIBUTE: Final = "x-message-attribute-"
"""Before the name of an attribute, in a header."""

WAIT: Final = seconds(0, LONGEST_WAIT_SECONDS)
MOST: Final = count(LARGEST_BATCH)

_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
_ETAG: Final = re.compile(r'(?:W/)?"([\x21\x23-\x7e]{0,255})"')


def read_query(query: bytes, *names: str) -> dict[str, str]:
    """The parameters of a query.

    Raises:
        InvalidRequest: one is unknown, or there twice.
    """
    found: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("utf-8", "replace"), keep_blank_values=True):
        if name not in names:
            known = f"known here: {', '.join(names)}" if names else "there are none here"
            raise InvalidRequest(f"unknown parameter {shorten(name)}; {known}")
        if name in found:
            raise InvalidRequest(f"parameter {name} is there twice")
        found[name] = value
    return found


def number(name: str, text: str, kind: Kind) -> Any:
    """A number of that kind, written in digits.

    Raises:
        InvalidSetting: it is none.
    """
    if _NUMBER.fullmatch(text) is None or len(text) > 30:
        return check_value(name, text, kind)
    return check_value(name, float(text) if "." in text else int(text), kind)


def delay_of(headers: Mapping[str, str]) -> float | None:
    """The delay that a publisher asks for."""
    return _seconds(headers, "x-message-delay", DELAY)


def ttl_of(headers: Mapping[str, str]) -> float | None:
    """The time to live that a publisher asks for."""
    return _seconds(headers, "x-message-ttl", TTL)


def key_of(headers: Mapping[str, str]) -> str | None:
    """The publisher's own key."""
    key = headers.get("idempotency-key")
    return None if key is None else check_key(key)


def check_key(key: Any) -> str:
    """A publisher's own key.

    Raises:
        InvalidRequest: it is not one.
    """
    if not isinstance(key, str) or _KEY.fullmatch(key) is None:
        raise InvalidRequest("an idempotency key has 1 to 255 visible ASCII characters")
    return key


def receipt_of(headers: Mapping[str, str]) -> str | None:
    """The receipt that a request is conditional on; ``*`` is none."""
    value = headers.get("if-match")
    if value is None or value.strip() == "*":
        return None
    matched = _ETAG.fullmatch(value.strip())
    if matched is None:
        raise InvalidRequest('If-Match takes one receipt in quotes, as the ETag of a fetch: If-Match: "RECEIPT"')
    return matched[1]


def attributes_of(headers: Mapping[str, str]) -> dict[str, Any]:
    """What a publisher says of a message, as it is kept."""
    texts = {
        name.removeprefix(ATTRIBUTE): _from_header(value)
        for name, value in headers.items()
        if name.startswith(ATTRIBUTE)
    }
    return make_attributes(headers.get("content-type"), texts)


def make_attributes(content_type: Any, texts: Any) -> dict[str, Any]:
    """A message's attributes, as they are kept.

    Raises:
        InvalidRequest: they are not what they should be.
    """
    if content_type is not None and (not isinstance(content_type, str) or not _HEADER_VALUE.fullmatch(content_type)):
        raise InvalidRequest("content_type must be text that a header can carry")
    if not isinstance(texts, Mapping):
        raise InvalidRequest('attributes must be an object of texts: {"name": "text"}')
    if len(texts) > MOST_ATTRIBUTES:
        raise InvalidRequest(f"a message has at most {MOST_ATTRIBUTES} attributes")
    for name, text in texts.items():
        if _ATTRIBUTE_NAME.fullmatch(name.lower()) is None:
            raise InvalidRequest(f"not the name of an attribute: {shorten(name)}. Use letters, digits, - and _")
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(_to_header(text)):
            raise InvalidRequest(f"attribute {name} must be text on one line")
    attributes: dict[str, Any] = {"content_type": content_type} if content_type else {}
    if texts:
        attributes["attributes"] = {name.lower(): text for name, text in texts.items()}
    if len(json.dumps(attributes)) > LARGEST_ATTRIBUTES_BYTES:
        raise InvalidRequest(f"the attributes of a message have at most {LARGEST_ATTRIBUTES_BYTES} bytes")
    return attributes


def content_type_of(message: Message) -> str:
    """As it was published."""
    value = message.properties.attributes.get("content_type")
    if isinstance(value, str) and value and _HEADER_VALUE.fullmatch(value):
        return value
    return DEFAULT_CONTENT_TYPE  # none was given, or one from another door that no header can carry


def texts_of(message: Message) -> dict[str, str]:
    """The attributes that a publisher chose."""
    texts = message.properties.attributes.get("attributes")
    return texts if isinstance(texts, dict) else {}


def headers_of(message: Message) -> list[tuple[str, str]]:
    """What is said of a message beside its body."""
    headers = [
        ("x-message-id", str(message.id)),
        ("content-type", content_type_of(message)),
        ("content-length", str(message.body.size)),
    ]
    if message.receipt:
        headers.append(("etag", f'"{message.receipt}"'))
    headers.append(("x-message-receives", str(message.receives)))
    if message.deaths:
        headers.append(("x-message-deaths", json.dumps(list(message.deaths))))
    for name, text in texts_of(message).items():
        value = _to_header(text) if isinstance(text, str) else ""
        if _ATTRIBUTE_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value):
            headers.append((ATTRIBUTE + name, value))
    return headers


def _seconds(headers: Mapping[str, str], name: str, kind: Kind) -> float | None:
    value = headers.get(name)
    return None if value is None else number(name, value.strip(), kind)


def _from_header(value: str) -> str:
    """Text from a header's bytes, which are UTF-8 nowadays; whatever they are, they come back."""
    return value.encode("latin-1").decode("utf-8", "surrogateescape")


def _to_header(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")
