"""Many messages in one request or one reply, as JSON Lines or multipart/mixed.

Requests are parsed entry by entry as their bytes come, and only the entries are kept. :mod:`mq.web.replies` writes
replies.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping, Sequence
from email.message import Message as Headers
from functools import partial
from json.encoder import encode_basestring_ascii
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from mq import turns
from mq.broker import Draft, Removal
from mq.broker.api import BrokerAPI
from mq.broker.settings import DELAY, PRIORITY, TTL, SettingKind, check_value
from mq.doors.budget import Room
from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.message import Message, MessageId
from mq.schedules.scheduler import shown_instant
from mq.web.exchange import Request
from mq.web.json_lines import Array, Lines
from mq.web.multipart import Part, Parts
from mq.web.parameters import (
    DEFAULT_CONTENT_TYPE,
    GROUP,
    IDEMPOTENCY_KEY,
    KEY,
    LARGEST_BATCH,
    MESSAGE_AT,
    MESSAGE_DELAY,
    MESSAGE_GROUP,
    MESSAGE_PRIORITY,
    MESSAGE_TTL,
    OF_ANSWERS,
    TIME,
    attributes_of,
    codings_of,
    content_type_of,
    group_of,
    headers_of,
    make_attributes,
    read_header,
    state_headers,
    texts_of,
    trace_of,
    with_group,
    with_trace,
)
from mq.web.refusals import problem_of
from mq.web.request_body import Limit, LimitedBody, making_room

JSON_LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
JSON: Final = "application/json"
"""One array; a batch is accepted in this format, and never sent in it."""
MULTIPART: Final = "multipart/mixed"
FORMATS: Final = (JSON_LINES[0], MULTIPART)
"""Content types of a batch."""

_WEIGHT: Final = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?", re.ASCII)
_DRAFT_KEYS: Final = (
    "body",
    "base64",
    "content_type",
    "content_encoding",
    "delay",
    "at",
    "ttl",
    "priority",
    "group",
    "key",
    "attributes",
)
_KNOWN: Final = frozenset(_DRAFT_KEYS)
_REMOVAL_KEYS: Final = frozenset({"id", "receipt"})

MOST_BESIDE: Final = 8 << 20
"""Bytes of a batch beside bodies: attributes, content types, keys."""
MOST_A_BYTE: Final = 6
"""Characters of JSON that a byte of a body may take."""
PIECE_BYTES: Final = 1024
"""Bytes of a batch that are parsed before its entries are counted; of the worst batches that takes 3 ms."""
LARGEST_PIECE: Final = 16 * 1024
"""The same, where the entries are long."""
_MANY: Final = 8
"""Entries of a piece that are not long."""
_ENTRY_BYTES: Final = 1024
"""What an entry takes in memory besides its body and its texts."""
_TEXT_BYTES: Final = 256
"""What a text takes in memory besides its characters, and with them, at the most, for each."""
_CHARACTER_BYTES: Final = 4


T = TypeVar("T")


class EntryParser(Protocol):
    """Cuts bytes into entries."""

    def feed(self, data: bytes) -> None:
        """The next bytes."""

    def end(self) -> None:
        """No more will come."""


class BatchParser(Generic[T]):
    """The entries of one batch.

    Args:
        source: returns a parser of bytes, given the function that takes what it finds.

    Attributes:
        held: bytes of memory that the entries take besides their bodies.
    """

    def __init__(self, make: Callable[[Any], T], source: Callable[[Callable[[Any], None]], EntryParser]) -> None:
        self.held = 0
        self._make = make
        self._source = source(self._take)
        self._found: list[T | MQError] = []
        self._beside = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the batch.

        Raises:
            InvalidRequest: the batch as a whole cannot be read.
            BatchTooLarge: it has too many entries, or too much beside their bodies.
        """
        self._source.feed(data)

    @property
    def count(self) -> int:
        """Entries so far."""
        return len(self._found)

    def end(self) -> list[T | MQError]:
        """The entries, in their order; the error in place of one that is wrong.

        Raises:
            InvalidRequest: the batch as a whole cannot be read, or there is nothing in it.
            BatchTooLarge: as :meth:`feed`.
        """
        self._source.end()
        if not self._found:
            raise InvalidRequest("the batch is empty")
        return self._found

    def _take(self, given: Any) -> None:
        if len(self._found) == LARGEST_BATCH:
            raise BatchTooLarge(f"the batch has more than {LARGEST_BATCH} entries. Send several smaller batches")
        entry = given if isinstance(given, MQError) else self._made(given)
        self.held += _ENTRY_BYTES
        if isinstance(entry, MQError):
            entry.__traceback__ = entry.__context__ = entry.__cause__ = None  # they hold all that it was read from
        elif isinstance(entry, Draft) and (entry.attributes or entry.key):
            self._count(entry)
        self._found.append(entry)

    def _made(self, given: Any) -> T | MQError:
        try:
            return self._make(given)
        except MQError as error:
            return error

    def _count(self, draft: Draft) -> None:
        texts = draft.attributes.get("attributes", {})
        characters = sum(map(len, texts)) + sum(map(len, texts.values()))
        characters += len(draft.attributes.get("content_type", "")) + len(draft.key or draft.group or "")
        self._beside += characters
        if self._beside > MOST_BESIDE:
            raise BatchTooLarge(
                f"the batch has more than {MOST_BESIDE} bytes of data other than message bodies. Send several smaller "
                "batches"
            )
        self.held += _TEXT_BYTES * (len(texts) + 1) + _CHARACTER_BYTES * characters


def longest_batch(broker: BrokerAPI, queue: str, max_body: int) -> Limit:
    """The longest batch that a request may publish to a queue: of a longer one not all can fit."""
    longest = MOST_A_BYTE * broker.longest_body(queue) + MOST_BESIDE
    if longest >= max_body:
        return Limit(max_body)
    return Limit(longest, f"queue {queue} has max_bytes, so a batch that does not fit completely is refused")


async def read_entries(
    request: Request, entries: BatchParser[T], longest: Limit | int, room: Room
) -> list[T | MQError]:
    """All entries of a request's body.

    Args:
        longest: bytes that the body may have.
        room: made as large as the entries are. For a body of announced length it is reserved before the first read.

    Raises:
        BodyTooLarge: it is too long, or longer than all the memory that requests have.
        NoMemory: there is not as much just now.
        BodyTooSlow: others want the memory, and it comes slowly.
        MQError: as :meth:`BatchParser.feed`, or the body does not come to its end.
    """
    body = LimitedBody(request, longest)
    announced, size, most = request.content_length or 0, 0, PIECE_BYTES
    room.cover(announced)
    with making_room(body, room) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            room.cover(max(announced, size) + entries.held)
            at = 0
            while at < len(chunk):
                before, piece = entries.count, chunk[at : at + most]
                entries.feed(piece)
                at += most
                found = entries.count - before
                most = PIECE_BYTES if found >= _MANY else min(2 * most, LARGEST_PIECE)
                await turns.spend(frames=found, size=len(piece))
    all_entries = entries.end()
    room.cover(size + entries.held)
    return all_entries


class BatchEntry(NamedTuple):
    """A message of a batch that goes out.

    Attributes:
        state: where it is, when it is only looked at.
        sequence: its place in its queue, where that matters.
        at_ms: when it can be fetched again, in milliseconds since 1970; None where it can be, or nothing says when.
    """

    message: Message
    body: bytes
    state: str = ""
    sequence: int | None = None
    at_ms: int | None = None


def draft_entries(content_type: str) -> BatchParser[Draft]:
    """Reads the messages of a batch. JSON Lines unless the content type says otherwise.

    Raises:
        InvalidRequest: it says something that is no batch.
    """
    type, boundary = parse_type(content_type)
    if type == MULTIPART:
        return BatchParser(_draft_of_part, partial(Parts, boundary))
    if type in JSON_LINES:
        return BatchParser(draft_of_line, Lines)
    if type == JSON:
        return BatchParser(draft_of_line, Array)
    raise InvalidRequest(f"the Content-Type of a batch must be {JSON_LINES[0]}, {JSON} or {MULTIPART}")


def removal_entries(content_type: str) -> BatchParser[Removal]:
    """Reads the removals of a batch of JSON Lines.

    Raises:
        InvalidRequest: the content type says that it is something else.
    """
    type = parse_type(content_type)[0]
    if type not in (*JSON_LINES, JSON):
        raise InvalidRequest(
            f"the Content-Type of a batch of removals must be {JSON_LINES[0]} (one JSON object per line) "
            f"or {JSON} (an array of objects)"
        )
    return BatchParser(_removal_of_line, Array if type == JSON else Lines)


def published_line(id: MessageId, *, is_new: bool) -> str:
    """The outcome line of an entry that was published."""
    return f'{{"status": {201 if is_new else 200}, "id": "{id}"}}\n'


REMOVED_LINE: Final = '{"status": 202}\n'
"""The outcome line of an entry that was removed."""


def refused_line(error: MQError) -> str:
    """The outcome line of an entry that was refused."""
    return f"{json.dumps(problem_of(error))}\n"


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The offered content type that the client prefers (RFC 9110, section 12.5.1).

    Among equals it is the first that the client names, else the first offered; the first offered also where none fits.
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


def draft_of_line(value: Mapping[str, Any]) -> Draft:
    """The message that a line describes.

    Raises:
        InvalidRequest, InvalidSetting: it describes none.
    """
    if not _KNOWN.issuperset(value):
        unknown = min(value.keys() - _KNOWN)
        raise InvalidRequest(f"unknown key {unknown!a:.60}. Valid keys: {', '.join(_DRAFT_KEYS)}")
    body = _body_of(value)
    if len(value) == 1:
        return Draft(body)
    texts = value.get("attributes")
    group = _checked_value(value, "group", GROUP)
    return Draft(
        body,
        with_group(
            make_attributes(value.get("content_type"), {} if texts is None else texts, value.get("content_encoding")),
            group,
        ),
        _checked_value(value, "delay", DELAY),
        _checked_value(value, "ttl", TTL),
        _checked_value(value, "key", KEY),
        priority=_checked_value(value, "priority", PRIORITY) or 0,
        at_ms=_checked_value(value, "at", TIME),
        group=group,
    )


def _checked_value(value: Mapping[str, Any], name: str, kind: SettingKind) -> Any:
    return None if value.get(name) is None else check_value(name, value[name], kind)


def _body_of(value: Mapping[str, Any]) -> bytes:
    text, encoded = value.get("body"), value.get("base64")
    if (text is None) == (encoded is None):
        raise InvalidRequest('a message must have either a "body" (text) or a "base64" key')
    if isinstance(given := encoded if text is None else text, bytes):  # of a long line
        return given
    try:
        if encoded is not None:
            return base64.b64decode(encoded, validate=True)
        return str.encode(text or "", "utf-8", "surrogatepass")
    except (binascii.Error, ValueError, TypeError):
        raise InvalidRequest(_NO_TEXT if encoded is None else '"base64" must be valid base64') from None


_NO_TEXT: Final = '"body" must be text. Send an object or another value as JSON text, such as {"body": "[1, 2]"}'


def _removal_of_line(value: Mapping[str, Any]) -> Removal:
    id, receipt = value.get("id"), value.get("receipt")
    if not isinstance(id, str) or not isinstance(receipt, str | None) or not _REMOVAL_KEYS.issuperset(value):
        raise InvalidRequest('each line must be {"id": ID} or {"id": ID, "receipt": RECEIPT}')
    return Removal(id, receipt)


def written_line(entry: BatchEntry) -> str:
    """An entry as a line of JSON."""
    # Most entries have few members: formatting those by hand gives the same JSON faster.
    message = entry.message
    if message.properties.attributes or message.dead_letter_history or entry.state or entry.sequence is not None:
        return f"{json.dumps(_line(entry))}\n"
    try:
        body = f'"body": {encode_basestring_ascii(entry.body.decode())}'
    except UnicodeDecodeError:
        body = f'"base64": "{base64.b64encode(entry.body).decode()}"'
    receipt = f'"receipt": {encode_basestring_ascii(message.receipt)}, ' if message.receipt else ""
    lease = f'"lease": {message.lease}, ' if message.lease else ""
    said = f'"receives": {message.receives}, {lease}"content_type": "{DEFAULT_CONTENT_TYPE}"'
    return f'{{"id": "{message.id}", {receipt}{said}, {body}}}\n'


def said_of(entry: BatchEntry) -> dict[str, Any]:
    """What a line says of a message before its body."""
    message = entry.message
    line: dict[str, Any] = {"id": message.id}
    if message.receipt:
        line["receipt"] = message.receipt
    line["receives"] = message.receives
    if message.lease:
        line["lease"] = message.lease
    line["content_type"] = content_type_of(message.properties.attributes)
    if (codings := codings_of(message.properties.attributes)) is not None:
        line["content_encoding"] = codings
    if (group := group_of(message.properties.attributes)) is not None:
        line["group"] = group
    if texts_of(message.properties.attributes):
        line["attributes"] = texts_of(message.properties.attributes)
    if message.dead_letter_history:
        line["dead_letter_history"] = list(message.dead_letter_history)
    if entry.state:
        line["state"] = entry.state
    if entry.at_ms is not None:
        line["at"] = shown_instant(entry.at_ms)
    if entry.sequence is not None:
        line["sequence"] = entry.sequence
    return line


def _line(entry: BatchEntry) -> dict[str, Any]:
    line = said_of(entry)
    try:
        line["body"] = entry.body.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(entry.body).decode()
    return line


# multipart/mixed


def _draft_of_part(part: Part) -> Draft:
    headers = part.headers
    group = read_header(headers, MESSAGE_GROUP)
    return Draft(
        part.body,
        with_trace(with_group(attributes_of(headers, passed_over=OF_ANSWERS), group), trace_of(headers)),
        read_header(headers, MESSAGE_DELAY),
        read_header(headers, MESSAGE_TTL),
        read_header(headers, IDEMPOTENCY_KEY),
        priority=read_header(headers, MESSAGE_PRIORITY) or 0,
        at_ms=read_header(headers, MESSAGE_AT),
        group=group,
    )


def part_headers(entry: BatchEntry) -> list[tuple[str, str]]:
    """The headers of a message's part."""
    headers = headers_of(entry.message)
    if entry.state:
        headers += state_headers(entry.state, entry.at_ms)
    if entry.sequence is not None:
        headers.append(("x-message-sequence", str(entry.sequence)))
    return headers


# Both


def parse_type(content_type: str) -> tuple[str, str]:
    """The media type in small letters, and the boundary if there is one. None at all is JSON Lines."""
    if not content_type.strip():
        return JSON_LINES[0], ""
    headers = Headers()
    headers["content-type"] = content_type.replace("\r", " ").replace("\n", " ")
    parameters: Any = headers.get_params([])  # values are texts, or three of them where one is encoded
    return headers.get_content_type(), str(dict(parameters).get("boundary", ""))
