"""Many messages in one request or one reply, as JSON Lines or multipart/mixed.

A batch that is too long is refused at its first entry too many: no memory holds all that a large body can be made of.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from email.message import Message as Headers
from json.encoder import encode_basestring_ascii
from typing import Any, Final, NamedTuple

from mq.broker import Draft, Removal
from mq.broker.queue_settings import DELAY, TTL, Kind, check_value
from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.message import Message, MessageId
from mq.web.errors import problem_of
from mq.web.incoming import parse_object
from mq.web.multipart import Part, read_parts, write_parts
from mq.web.parameters import (
    DEFAULT_CONTENT_TYPE,
    IDEMPOTENCY_KEY,
    KEY,
    LARGEST_BATCH,
    MESSAGE_DELAY,
    MESSAGE_TTL,
    attributes_of,
    content_type_of,
    headers_of,
    make_attributes,
    read_header,
    texts_of,
)

JSON_LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
MULTIPART: Final = "multipart/mixed"
FORMATS: Final = (JSON_LINES[0], MULTIPART)
"""Content types of a batch."""

_WEIGHT: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)
_DRAFT_KEYS: Final = ("body", "base64", "content_type", "delay", "ttl", "key", "attributes")
_KNOWN: Final = frozenset(_DRAFT_KEYS)
_REMOVAL_KEYS: Final = frozenset({"id", "receipt"})


class Entry(NamedTuple):
    """A message of a batch that goes out.

    Attributes:
        message: what is said of it.
        body: its bytes.
        state: where it is, when it is only looked at.
        sequence: its place in its queue, where that matters.
    """

    message: Message
    body: bytes
    state: str = ""
    sequence: int | None = None


def decode_drafts(content_type: str, body: bytes) -> list[Draft | MQError]:
    """The messages of a batch, in their order; what is wrong with those that are none. JSON Lines unless the content
    type says otherwise.

    Raises:
        InvalidRequest: the batch as a whole cannot be read.
        BatchTooLarge: it has too many entries.
    """
    type, boundary = parse_type(content_type)
    if type == MULTIPART:
        return _checked([_tried(_draft_of_part, part) for part in read_parts(boundary, body, LARGEST_BATCH)])
    if type in JSON_LINES:
        return _checked([_tried(_draft_of_line, line) for line in _lines(body)])
    raise InvalidRequest(f"a batch is {JSON_LINES[0]} or {MULTIPART}: say which in Content-Type")


def decode_removals(content_type: str, body: bytes) -> list[Removal | MQError]:
    """What a batch of JSON Lines wants removed.

    Raises:
        InvalidRequest: it is something else.
        BatchTooLarge: it has too many entries.
    """
    if parse_type(content_type)[0] not in JSON_LINES:
        raise InvalidRequest(f"removals are {JSON_LINES[0]}: a JSON object a line")
    return _checked([_tried(_removal_of_line, line) for line in _lines(body)])


def published_line(id: MessageId, *, is_new: bool) -> str:
    """What is told of an entry that was published."""
    return f'{{"status": {201 if is_new else 200}, "id": "{id}"}}\n'


REMOVED_LINE: Final = '{"status": 202}\n'
"""What is told of an entry that was removed."""


def refused_line(error: MQError) -> str:
    """What is told of an entry with which something is wrong."""
    return f"{json.dumps(problem_of(error))}\n"


def encode_entries(accept: str, entries: Sequence[Entry]) -> tuple[str, bytes]:
    """Messages in the format that a client would rather have: the content type and the body."""
    if preferred(accept, FORMATS) == MULTIPART:
        boundary = secrets.token_hex(16)
        return f'{MULTIPART}; boundary="{boundary}"', encode_parts(boundary, entries)
    return JSON_LINES[0], "".join(map(_written, entries)).encode("ascii")


def preferred(accept: str, offered: Sequence[str]) -> str:
    """Which of the content types that are offered a client would rather have (RFC 9110, section 12.5.1).

    Whoever wants several alike gets what stands first with them, else what is offered first; so does who wants none.
    """
    weights: dict[str, tuple[float, int]] = {}
    for position, part in enumerate(accept.lower().split(",")):
        type, _, parameters = part.partition(";")
        weights.setdefault(type.strip(), (_weight(parameters), -position))
    anything = weights.get("*/*", (0.0, -len(weights)))

    def weight(type: str) -> tuple[float, int]:
        names = JSON_LINES if type in JSON_LINES else (type,)
        group = weights.get(f"{type.partition('/')[0]}/*", anything)
        return max(weights.get(name, group) for name in names)

    best = max(offered, key=weight)
    return best if weight(best)[0] > 0 else offered[0]


def _weight(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            matched = _WEIGHT.fullmatch(value.strip())
            return float(matched[0]) if matched else 0.0
    return 1.0


# JSON Lines


def _lines(body: bytes) -> list[bytes]:
    """The lines that are not empty.

    Raises:
        BatchTooLarge: there are too many.
    """
    if body.count(b"\n") <= LARGEST_BATCH:
        lines = [line for line in body.split(b"\n") if line and not line.isspace()]
        check_length(lines)
        return lines
    lines = []
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        end = len(body) if end < 0 else end
        if body[start:end].strip():
            lines.append(body[start:end])
            check_length(lines)
        start = end + 1
    return lines


def check_length(entries: Sequence[object]) -> None:
    """Refuse a batch that is too long, as soon as that is known.

    Raises:
        BatchTooLarge: it has too many entries.
    """
    if len(entries) > LARGEST_BATCH:
        raise BatchTooLarge(f"the batch has more than {LARGEST_BATCH} entries: send it in parts")


def _draft_of_line(line: bytes) -> Draft:
    value = parse_object(line)
    if not _KNOWN.issuperset(value):
        unknown = min(value.keys() - _KNOWN)
        raise InvalidRequest(f"unknown key {unknown!a:.60}; known: {', '.join(_DRAFT_KEYS)}")
    body = _body_of(value)
    if len(value) == 1:
        return Draft(body)
    texts = value.get("attributes")
    return Draft(
        body,
        make_attributes(value.get("content_type"), {} if texts is None else texts),
        _checked_value(value, "delay", DELAY),
        _checked_value(value, "ttl", TTL),
        _checked_value(value, "key", KEY),
    )


def _checked_value(value: Mapping[str, Any], name: str, kind: Kind) -> Any:
    return None if value.get(name) is None else check_value(name, value[name], kind)


def _body_of(value: Mapping[str, Any]) -> bytes:
    text, encoded = value.get("body"), value.get("base64")
    if (text is None) == (encoded is None):
        raise InvalidRequest('a message has either "body", a text, or "base64"')
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return str.encode(text or "", "utf-8", "surrogatepass")
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest('"body" must be a text, "base64" must be base64') from None


def _removal_of_line(line: bytes) -> Removal:
    value = parse_object(line)
    id, receipt = value.get("id"), value.get("receipt")
    if not isinstance(id, str) or not isinstance(receipt, str | None) or not _REMOVAL_KEYS.issuperset(value):
        raise InvalidRequest('a line is {"id": ID} or {"id": ID, "receipt": RECEIPT}')
    return Removal(id, receipt)


def _written(entry: Entry) -> str:
    """An entry as a line. Of most there is little to say: that is written by hand, as the same JSON."""
    message = entry.message
    if message.properties.attributes or message.deaths or entry.state or entry.sequence is not None:
        return f"{json.dumps(_line(entry))}\n"
    try:
        body = f'"body": {encode_basestring_ascii(entry.body.decode())}'
    except UnicodeDecodeError:
        body = f'"base64": "{base64.b64encode(entry.body).decode()}"'
    receipt = f'"receipt": {encode_basestring_ascii(message.receipt)}, ' if message.receipt else ""
    said = f'"receives": {message.receives}, "content_type": "{DEFAULT_CONTENT_TYPE}"'
    return f'{{"id": "{message.id}", {receipt}{said}, {body}}}\n'


def _line(entry: Entry) -> dict[str, Any]:
    message = entry.message
    line: dict[str, Any] = {"id": message.id}
    if message.receipt:
        line["receipt"] = message.receipt
    line |= {"receives": message.receives, "content_type": content_type_of(message)}
    if texts_of(message):
        line["attributes"] = texts_of(message)
    if message.deaths:
        line["deaths"] = list(message.deaths)
    if entry.state:
        line["state"] = entry.state
    if entry.sequence is not None:
        line["sequence"] = entry.sequence
    try:
        line["body"] = entry.body.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(entry.body).decode()
    return line


# multipart/mixed


def _draft_of_part(part: Part) -> Draft:
    headers = part.headers
    return Draft(
        bytes(part.body),
        attributes_of(headers),
        read_header(headers, MESSAGE_DELAY),
        read_header(headers, MESSAGE_TTL),
        read_header(headers, IDEMPOTENCY_KEY),
    )


def encode_parts(boundary: str, entries: Sequence[Entry]) -> bytes:
    """Messages as multipart/mixed."""
    parts = []
    for entry in entries:
        headers = headers_of(entry.message)
        if entry.state:
            headers.append(("x-message-state", entry.state))
        if entry.sequence is not None:
            headers.append(("x-message-sequence", str(entry.sequence)))
        parts.append((headers, entry.body))
    return write_parts(boundary, parts)


# Both


def parse_type(content_type: str) -> tuple[str, str]:
    """The media type in small letters, and the boundary if there is one. None at all is JSON Lines."""
    if not content_type.strip():
        return JSON_LINES[0], ""
    headers = Headers()
    headers["content-type"] = content_type.replace("\r", " ").replace("\n", " ")
    parameters: Any = headers.get_params([])  # values are texts, or three of them where one is encoded
    return headers.get_content_type(), str(dict(parameters).get("boundary", ""))


def _tried(read: Callable[[Any], Any], entry: Any) -> Any:
    try:
        return read(entry)
    except MQError as error:
        return error


def _checked(entries: list[Any]) -> list[Any]:
    if not entries:
        raise InvalidRequest("the batch is empty")
    return entries
