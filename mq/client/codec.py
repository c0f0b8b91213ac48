"""How messages are written in headers and in JSON Lines, and read back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from mq.client.calls import Answer
from mq.client.errors import UnexpectedResponse
from mq.client.values import DeadLetterEvent, Duration, Head, Outcome, Outgoing, Page, Queue, Received, duration

H = TypeVar("H", bound=Head)

JSON_LINES: Final = "application/x-ndjson"
ATTRIBUTE: Final = "x-message-attribute-"
TRACE_NAMES: Final = ("traceparent", "tracestate")
"""Attributes with the trace that a message belongs to (W3C Trace Context)."""
_COUNTS: Final = frozenset({"name", "ready", "leased", "delayed", "oldest_seconds", "consumers", "store"})


def seconds(name: str, value: Duration) -> str:
    """Return a duration as the protocol writes it, in seconds; see :func:`duration`."""
    return f"{duration(name, value):.6f}".rstrip("0").rstrip(".")


def time(at: datetime) -> str:
    """A time as the protocol writes it.

    Raises:
        TypeError: it is not a datetime.
        ValueError: it does not say its zone.
    """
    if not isinstance(at, datetime):
        raise TypeError(
            f'the argument "at" must be a datetime with a time zone, not {at!r}. To convert a string, use '
            "datetime.fromisoformat()"
        )
    if at.utcoffset() is None:
        raise ValueError(f"{at!r} has no time zone. Use tzinfo=UTC, or .astimezone() for local time")
    return at.astimezone(UTC).isoformat()


def outgoing_headers(message: Outgoing) -> tuple[tuple[str, str], ...]:
    """The headers of a message that is published alone."""
    headers = [("content-type", message.content_type)] if message.content_type else []
    if message.content_encoding:
        headers.append(("content-encoding", message.content_encoding))
    if message.delay is not None:
        headers.append(("x-message-delay", seconds("delay", message.delay)))
    if message.at is not None:
        headers.append(("x-message-at", time(message.at)))
    if message.ttl is not None:
        headers.append(("x-message-ttl", seconds("ttl", message.ttl)))
    if message.priority is not None:
        headers.append(("x-message-priority", str(message.priority)))
    if message.group is not None:
        headers.append(("x-message-group", message.group))
    if message.key is not None:
        headers.append(("idempotency-key", message.key))
    headers.extend((ATTRIBUTE + name, value) for name, value in _attributes(message).items())
    return tuple(headers)


def _attributes(message: Outgoing) -> dict[str, str]:
    for name, value in message.attributes.items():
        if not isinstance(value, str):
            raise TypeError(f"attribute {name!r} must be text, not {type(value).__name__}. Use str(value)")
    return dict(message.attributes)


def outgoing_line(message: Outgoing) -> bytes:
    """A message as a line of a batch, with its end."""
    return json_line(outgoing_members(message))


def outgoing_members(message: Outgoing) -> dict[str, Any]:
    """A message as members of a JSON object."""
    entry: dict[str, Any] = dict(body_members(message.body))
    for name in ("content_type", "content_encoding", "delay", "ttl", "priority", "group", "key"):
        value = getattr(message, name)
        if value is not None:
            entry[name] = value
    if message.at is not None:
        entry["at"] = time(message.at)
    if message.attributes:
        entry["attributes"] = _attributes(message)
    return entry


def json_line(value: Mapping[str, Any]) -> bytes:
    """An object as one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def message_members(message: Head) -> dict[str, Any]:
    """The members of a message in JSON between its ID and its body."""
    members: dict[str, Any] = {"receives": message.receives, "content_type": message.content_type}
    if message.content_encoding:
        members["content_encoding"] = message.content_encoding
    if message.group is not None:
        members["group"] = message.group
    if message.attributes:
        members["attributes"] = dict(message.attributes)
    return members


def body_members(body: bytes | str) -> Mapping[str, str]:
    """A body as members of a JSON object: as text where it is UTF-8, else in base64."""
    if isinstance(body, str):
        return {"body": body}
    try:
        return {"body": bytes(body).decode()}  # of a bytearray or memoryview, too
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def body_of(line: Mapping[str, Any]) -> bytes:
    """The body that :func:`body_members` wrote.

    Raises:
        ValueError: there is none, or it is neither text nor base64.
    """
    text, encoded = line.get("body"), line.get("base64")
    if isinstance(text, str):
        return text.encode()
    if not isinstance(encoded, str):
        raise ValueError('the message has neither a "body" nor a "base64" key')
    try:
        return base64.b64decode(encoded, validate=True)
    except binascii.Error as error:
        raise ValueError(f'the message has an invalid "base64" value: {error}') from error


def head_of(queue: str, answer: Answer) -> Head:
    """The head of a message, from the headers of an answer.

    Raises:
        UnexpectedResponse: they have no id.
    """
    return _message(Head, queue, _line_of(answer), answer.time)


def received(queue: str, answer: Answer) -> Received:
    """The one message that is the answer's body."""
    return _message(Received, queue, _line_of(answer), answer.time, body=answer.body)


def _line_of(answer: Answer) -> dict[str, Any]:
    """What a line of a batch has of the message that these headers are about, but for its body."""
    headers = answer.headers
    return {
        "id": headers.get("x-message-id"),
        "receipt": headers.get("etag", "").strip('"'),
        "receives": headers.get("x-message-receives", "0"),
        "lease": headers.get("x-message-lease"),
        "content_type": headers.get("content-type"),
        "content_encoding": headers.get("content-encoding"),
        "group": headers.get("x-message-group"),
        "state": headers.get("x-message-state", ""),
        "at": headers.get("x-message-at"),
        "dead_letter_history": _json_list(headers.get("x-message-dead-letter-history", "[]")),
        "attributes": {
            name.removeprefix(ATTRIBUTE): value for name, value in headers.items() if name.startswith(ATTRIBUTE)
        },
    }


def received_lines(queue: str, answer: Answer) -> tuple[Received, ...]:
    """The messages of a batch; none where the answer is empty."""
    return tuple(received_line(queue, line, answer.time) for line in answer.lines())


def received_line(queue: str, line: Mapping[str, Any], time: float = 0.0) -> Received:
    """A message from a line of JSON that came at a `time` of the client's clock.

    Raises:
        UnexpectedResponse: it is none.
    """
    try:
        body = body_of(line)
    except ValueError as error:
        raise UnexpectedResponse(f"cannot read a message: {error}") from error
    return _message(Received, queue, line, time, body=body)


def page(queue: str, answer: Answer) -> Page:
    """A page of messages, and the way to the next one."""
    return Page(messages=received_lines(queue, answer), next=_next_target(answer.headers.get("link", "")))


def outcomes(answer: Answer, count: int) -> list[Outcome]:
    """The outcomes of a batch of `count` entries.

    Raises:
        UnexpectedResponse: there are more or fewer outcomes than entries.
    """
    found = [
        Outcome(
            status=int(line.get("status", 0)),
            id=str(line.get("id", "")),
            detail=str(line.get("detail", "")),
            is_unsure="outcome" in line,
        )
        for line in answer.lines()
    ]
    if len(found) != count or any(not 200 <= outcome.status < 600 for outcome in found):
        raise UnexpectedResponse(f"the daemon returned {len(found)} results for a batch of {count}")
    return found


def queue_of(value: object) -> Queue:
    """A queue from its JSON object.

    Raises:
        UnexpectedResponse: it is none.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise UnexpectedResponse("the daemon returned a queue without a name")
    oldest = value.get("oldest_seconds")
    return Queue(
        name=value["name"],
        ready=int(value.get("ready") or 0),
        leased=int(value.get("leased") or 0),
        delayed=int(value.get("delayed") or 0),
        oldest_seconds=None if oldest is None else float(oldest),
        settings={name: setting for name, setting in value.items() if name not in _COUNTS},
        store=str(value.get("store") or "disk"),
        consumers=int(value.get("consumers") or 0),
    )


def _message(kind: type[H], queue: str, line: Mapping[str, Any], time: float, **body: bytes) -> H:
    id, receives, attributes = line.get("id"), line.get("receives") or 0, line.get("attributes") or {}
    if not isinstance(id, str) or not id:
        raise UnexpectedResponse(
            "the daemon returned a message without an ID. Check that the URL points to an mq daemon"
        )
    return kind(
        queue=queue,
        id=id,
        receipt=str(line.get("receipt") or ""),
        receives=int(receives) if str(receives).isdecimal() else 0,
        lease=float(line.get("lease") or 0),
        fetched=time,
        content_type=str(line.get("content_type") or "application/octet-stream"),
        content_encoding=str(line.get("content_encoding") or ""),
        group=None if line.get("group") is None else str(line["group"]),
        attributes={str(name): str(value) for name, value in attributes.items()},
        dead_letter_history=tuple(_death(death) for death in line.get("dead_letter_history") or ()),
        state=str(line.get("state") or ""),
        at=_instant(line.get("at")),
        **body,
    )


def _instant(text: object) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(str(text))
    except ValueError as error:
        raise UnexpectedResponse(f"cannot read a message: invalid timestamp: {error}") from error


def _death(value: Mapping[str, Any]) -> DeadLetterEvent:
    return DeadLetterEvent(
        queue=str(value.get("queue", "")),
        reason=str(value.get("reason", "")),
        receives=int(value.get("receives") or 0),
        time=float(value.get("time") or 0),
        error=str(value.get("error", "")),
    )


def _json_list(text: str) -> Sequence[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _next_target(link: str) -> str | None:
    """The target of ``<target>; rel="next"`` (RFC 8288)."""
    for part in link.split(","):
        target, _, parameters = part.strip().partition(">")
        if target.startswith("</") and 'rel="next"' in parameters.replace(" ", ""):
            return target[1:]
    return None


def ids_lines(entries: Iterable[str | Head]) -> bytes:
    """Which messages to remove: by id, or by delivery where the entry has a receipt."""
    return b"".join(json_line({"id": entry} if isinstance(entry, str) else _id_and_receipt(entry)) for entry in entries)


def _id_and_receipt(head: Head) -> Mapping[str, str]:
    return {"id": head.id, "receipt": head.receipt} if head.receipt else {"id": head.id}
