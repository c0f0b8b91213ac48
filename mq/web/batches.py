"""Many messages in one request or one reply: JSON Lines, or multipart/mixed for bytes as they are."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.message import Message as Headers
from typing import Any, Final, NamedTuple

from python_multipart.exceptions import ParseError
from python_multipart.multipart import MultipartParser

from mq.broker import Draft, Removal
from mq.errors import BatchTooLarge, InvalidRequest, MQError
from mq.message import Message
from mq.web.incoming import parse_object
from mq.web.parameters import (
    LARGEST_BATCH,
    attributes_of,
    check_key,
    content_type_of,
    delay_of,
    headers_of,
    key_of,
    make_attributes,
    texts_of,
    ttl_of,
)

JSON_LINES: Final = ("application/x-ndjson", "application/jsonl", "application/json-lines")
MULTIPART: Final = "multipart/mixed"

_DRAFT_KEYS: Final = ("body", "base64", "content_type", "delay", "ttl", "key", "attributes")


class Entry(NamedTuple):
    """A message of a batch that goes out.

    Attributes:
        message: what is said of it.
        body: its bytes.
        state: where it is, when it is only looked at.
    """

    message: Message
    body: bytes
    state: str = ""


def decode_drafts(content_type: str, body: bytes) -> list[Draft | MQError]:
    """The messages of a batch, in their order; what is wrong with those that are none.

    Raises:
        InvalidRequest: the batch as a whole cannot be read.
        BatchTooLarge: it has too many entries.
    """
    type, parameters = _parse_type(content_type)
    if type == MULTIPART:
        return _limited([_tried(_draft_of_part, part) for part in _parts(parameters.get("boundary", ""), body)])
    if type in JSON_LINES:
        return _limited([_tried(_draft_of_line, line) for line in _lines(body)])
    raise InvalidRequest(f"a batch is {JSON_LINES[0]} or {MULTIPART}: say which in Content-Type")


def decode_removals(body: bytes) -> list[Removal | MQError]:
    """What a batch of JSON Lines wants removed.

    Raises:
        BatchTooLarge: it has too many entries.
    """
    return _limited([_tried(_removal_of_line, line) for line in _lines(body)])


def encode_outcomes(outcomes: Sequence[Mapping[str, Any]]) -> bytes:
    """One line for each entry."""
    return b"".join(json.dumps(outcome).encode() + b"\n" for outcome in outcomes)


def encode_entries(accept: str, entries: Sequence[Entry]) -> tuple[str, bytes]:
    """Messages in the format that a client would rather have: the content type and the body."""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    if MULTIPART in wanted and not set(wanted[: wanted.index(MULTIPART)]) & set(JSON_LINES):
        boundary = secrets.token_hex(16)
        return f'{MULTIPART}; boundary="{boundary}"', _multipart(boundary, entries)
    return JSON_LINES[0], b"".join(json.dumps(_line(entry)).encode() + b"\n" for entry in entries)


# JSON Lines


def _lines(body: bytes) -> Iterator[bytes]:
    return (line for line in body.split(b"\n") if line.strip())


def _draft_of_line(line: bytes) -> Draft:
    value = parse_object(line)
    unknown = value.keys() - set(_DRAFT_KEYS)
    if unknown:
        raise InvalidRequest(f"unknown key {min(unknown)!a:.60}; known: {', '.join(_DRAFT_KEYS)}")
    key = value.get("key")
    return Draft(
        _body_of(value),
        make_attributes(value.get("content_type"), value.get("attributes") or {}),
        value.get("delay"),
        value.get("ttl"),
        None if key is None else check_key(key),
    )


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
    if not isinstance(id, str) or not isinstance(receipt, str | None) or value.keys() - {"id", "receipt"}:
        raise InvalidRequest('a line is {"id": ID} or {"id": ID, "receipt": RECEIPT}')
    return Removal(id, receipt)


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
    try:
        line["body"] = entry.body.decode()
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(entry.body).decode()
    return line


# multipart/mixed


class _Part:
    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.name = bytearray()
        self.value = bytearray()

    def end_header(self) -> None:
        self.headers[self.name.decode("latin-1").lower()] = self.value.decode("latin-1")
        self.name.clear()
        self.value.clear()


def _parts(boundary: str, body: bytes) -> list[_Part]:
    """The parts of a multipart body.

    Raises:
        InvalidRequest: it is not one, or not whole.
    """
    if not boundary or len(boundary) > 70:  # RFC 2046, section 5.1.1
        raise InvalidRequest("multipart/mixed needs a boundary of 1 to 70 characters in Content-Type")
    parts: list[_Part] = []
    is_whole = False

    def end() -> None:
        nonlocal is_whole
        is_whole = True

    def adds(place: str) -> Callable[[bytes, int, int], None]:
        return lambda data, start, stop: getattr(parts[-1], place).extend(data[start:stop])

    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": lambda: parts.append(_Part()),
            "on_header_field": adds("name"),
            "on_header_value": adds("value"),
            "on_header_end": lambda: parts[-1].end_header(),
            "on_part_data": adds("body"),
            "on_end": end,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except ParseError as error:
        raise InvalidRequest(f"this is not well-formed multipart: {error}") from None
    if not is_whole:
        raise InvalidRequest("the multipart body has no end: its last boundary is missing")
    return parts


def _draft_of_part(part: _Part) -> Draft:
    headers = part.headers
    return Draft(bytes(part.body), attributes_of(headers), delay_of(headers), ttl_of(headers), key_of(headers))


def _multipart(boundary: str, entries: Sequence[Entry]) -> bytes:
    out = bytearray()
    for entry in entries:
        headers = headers_of(entry.message)
        if entry.state:
            headers.append(("x-message-state", entry.state))
        out += f"--{boundary}\r\n".encode()
        out += b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers)
        out += b"\r\n" + entry.body + b"\r\n"
    return bytes(out + f"--{boundary}--\r\n".encode())


# Both


def _parse_type(content_type: str) -> tuple[str, dict[str, str]]:
    headers = Headers()
    headers["content-type"] = content_type.replace("\r", " ").replace("\n", " ")
    return headers.get_content_type(), {name: str(value) for name, value in headers.get_params([])[1:]}


def _tried(read: Callable[[Any], Any], entry: Any) -> Any:
    try:
        return read(entry)
    except MQError as error:
        return error


def _limited(entries: list[Any]) -> list[Any]:
    if not entries:
        raise InvalidRequest("the batch is empty")
    if len(entries) > LARGEST_BATCH:
        raise BatchTooLarge(f"the batch has {len(entries)} entries, the limit is {LARGEST_BATCH}")
    return entries
