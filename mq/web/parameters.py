"""What stands in a request's query and headers, checked: parameters, the draft of a publish, and its trace."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qsl

from mq.broker import Draft
from mq.broker.api import PLACES
from mq.broker.dead_letters import LONGEST_REASON
from mq.broker.peek import DELAYED, LEASED, READY
from mq.broker.settings import DELAY, PRIORITY, TTL, SettingKind, check_value, count, seconds
from mq.errors import InvalidId, InvalidRequest, MQError
from mq.log_lines import LEVELS
from mq.message import (
    CODINGS,
    LONGEST_GROUP,
    MESSAGE_ID_PATTERN,
    Message,
    MessageId,
    SharedAttributes,
    content_codings,
    shorten,
)
from mq.schedules.scheduler import shown_instant
from mq.web.exchange import SharedHeaders
from mq.web.operations import Parameter

LARGEST_BATCH: Final = 1000
LONGEST_WAIT_SECONDS: Final = 3600
MOST_ATTRIBUTES: Final = 64
LARGEST_ATTRIBUTES_BYTES: Final = 16 * 1024
DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
ATTRIBUTE: Final = "x-message-attribute-"
"""Before the name of an attribute, in a header."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACE_NAMES: Final = (TRACEPARENT, TRACESTATE)
"""Attributes that are headers of their own names, too (W3C Trace Context): libraries for tracing look for those."""

_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?", re.ASCII)  # without an exponent: 1e3 is not a duration
_LONGEST_NUMBER: Final = 30
_LONGEST_FILTER: Final = 100
_HEADER_VALUE: Final = re.compile(r"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
_ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_KEY: Final = re.compile(r"[!-~]{1,255}")
_GROUP: Final = re.compile(rf"[!-~]{{1,{LONGEST_GROUP}}}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ETAG: Final = re.compile(r'(?:W/)?"([!#-~]{0,255})"')


def one_of(*words: str) -> SettingKind:
    """The kind of a word that is one of these."""

    def parse(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    needs = f"{', '.join(words[:-1])} or {words[-1]}"
    return SettingKind(parse, needs, {"type": "string", "enum": list(words)})


def _parse_id(value: Any) -> MessageId:
    try:
        return MessageId(value)
    except InvalidId as error:
        raise ValueError from error


def _parse_key(value: Any) -> str:
    if _KEY.fullmatch(value) is None:
        raise ValueError
    return str(value)


def _parse_switch(value: Any) -> bool:
    if value not in ("true", "false"):
        raise ValueError
    return bool(value == "true")


def _parse_reason(value: Any) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_REASON:
        raise ValueError
    value.encode()  # half a character is none: a ValueError
    return value


def _parse_time(value: Any) -> int:
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise ValueError
    return (datetime.fromisoformat(value.upper()) - _EPOCH) // timedelta(milliseconds=1)


def _parse_any(value: Any) -> str:
    if value != "*":
        raise ValueError
    return "*"


def _parse_receipt(value: Any) -> str | None:
    if value == "*":
        return None
    matched = _ETAG.fullmatch(value)
    if matched is None:
        raise ValueError
    return matched[1]


def _parse_group(value: Any) -> str:
    if _GROUP.fullmatch(value) is None:
        raise ValueError
    return str(value)


def _parse_filter(value: Any) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_FILTER:
        raise ValueError
    return value.lower()


WAIT: Final = seconds(0, LONGEST_WAIT_SECONDS)
AMOUNT: Final = count(LARGEST_BATCH)
REASON: Final = SettingKind(
    _parse_reason,
    f"text of at most {LONGEST_REASON} characters",
    {"type": "string", "maxLength": LONGEST_REASON},
)
TIME: Final = SettingKind(
    _parse_time,
    "a time with its zone (RFC 3339), such as 2030-05-01T09:00:00Z",
    {"type": "string", "format": "date-time"},
)
SKIP: Final = count(10**9, 0)
FILTER: Final = SettingKind(
    _parse_filter, f"at most {_LONGEST_FILTER} characters", {"type": "string", "maxLength": _LONGEST_FILTER}
)
LEVEL: Final = one_of(*LEVELS)
STATE: Final = one_of(READY, LEASED, DELAYED)
STORE: Final = one_of(*PLACES)
ID: Final = SettingKind(_parse_id, "a message's id", {"type": "string", "pattern": f"^{MESSAGE_ID_PATTERN}$"})
KEY: Final = SettingKind(
    _parse_key, "1 to 255 visible ASCII characters", {"type": "string", "pattern": f"^{_KEY.pattern}$"}
)
SWITCH: Final = SettingKind(_parse_switch, "true or false", {"type": "string", "enum": ["true", "false"]})
ANY: Final = SettingKind(_parse_any, "*", {"type": "string", "enum": ["*"]})
GROUP: Final = SettingKind(
    _parse_group, f"1 to {LONGEST_GROUP} visible ASCII characters", {"type": "string", "pattern": f"^{_GROUP.pattern}$"}
)
RECEIPT: Final = SettingKind(
    _parse_receipt,
    'one receipt in quotes, as the ETag of a fetch ("RECEIPT"), or *',
    {"type": "string", "pattern": rf"^(\*|{_ETAG.pattern})$"},
)

MESSAGE_DELAY: Final = Parameter(
    "X-Message-Delay", DELAY, "delay in seconds before the message can be fetched; default: the queue's delay"
)
MESSAGE_AT: Final = Parameter(
    "X-Message-At", TIME, "time from which the message can be fetched, with a zone (RFC 3339); replaces a delay"
)
MESSAGE_TTL: Final = Parameter(
    "X-Message-TTL", TTL, "time to live in seconds; the queue's ttl applies if it is shorter"
)
MESSAGE_PRIORITY: Final = Parameter(
    "X-Message-Priority",
    PRIORITY,
    "priority of the message, in a queue with max_priority; higher ones are delivered first",
)
MESSAGE_GROUP: Final = Parameter(
    "X-Message-Group", GROUP, "message group, in a queue with groups; its messages are delivered one after the other"
)
IDEMPOTENCY_KEY: Final = Parameter(
    "Idempotency-Key", KEY, "idempotency key: a repeated publish with the same key stores the message once"
)
_OF_MESSAGES: Final = "x-message-"
_KNOWN_HEADERS: Final = (
    "Known headers: X-Message-Delay, X-Message-At, X-Message-TTL, X-Message-Priority, "
    "X-Message-Group, X-Message-Attribute-NAME"
)
OF_ANSWERS: Final = frozenset(
    f"x-message-{what}" for what in ("id", "receives", "lease", "dead-letter-history", "state", "sequence")
)
"""What an answer says of a message: its parts may come in again as they are."""
MESSAGE_TIMES: Final = (MESSAGE_DELAY, MESSAGE_AT, MESSAGE_TTL)
_OF_DRAFTS: Final = frozenset(parameter.name.lower() for parameter in (*MESSAGE_TIMES, MESSAGE_PRIORITY, MESSAGE_GROUP))
IF_MATCH: Final = Parameter("If-Match", RECEIPT, "only if this delivery's lease is still valid")
IF_NONE_MATCH: Final = Parameter("If-None-Match", ANY, "`*`: only if the message is not leased")


def read_query(query: bytes, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """The values of a query's parameters, absent ones at their defaults.

    Raises:
        InvalidRequest: one is unknown, there twice, or missing.
        InvalidSetting: one is not what it may be.
    """
    defaults = {parameter.name: parameter.default for parameter in parameters}
    if not query and not any(parameter.is_needed for parameter in parameters):
        return defaults
    known = {parameter.name: parameter for parameter in parameters}
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query.decode("utf-8", "replace"), keep_blank_values=True):
        if name not in known:
            raise InvalidRequest(
                f"unknown parameter {shorten(name)}. Known parameters: {', '.join(known)}"
                if known
                else f"unknown parameter {shorten(name)}: this operation has no parameters"
            )
        if name in found:
            raise InvalidRequest(f"parameter {name} occurs twice")
        found[name] = _read(known[name], text)
    for name, parameter in known.items():
        if parameter.is_needed and name not in found:
            raise InvalidRequest(f"parameter {name} is missing: {parameter.text}")
    return defaults | found


def read_header(headers: Mapping[str, str], parameter: Parameter) -> Any:
    """The value of a header; None where it is not there.

    Raises:
        InvalidSetting: it is not what it may be.
    """
    text = headers.get(parameter.name.lower())
    return None if text is None else _read(parameter, text.strip())


def _read(parameter: Parameter, text: str) -> Any:
    """A value from text."""
    name, kind = parameter.name, parameter.kind
    if kind.schema["type"] == "string" or _NUMBER.fullmatch(text) is None or len(text) > _LONGEST_NUMBER:
        return check_value(name, text, kind)
    return check_value(name, int(text) if text.lstrip("-").isdigit() else float(text), kind)


def attributes_of(headers: Mapping[str, str], passed_over: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The attributes in the headers of a message, as they are kept.

    Raises:
        InvalidRequest: it is not what it should be, or a header X-Message-... is none that mq knows.
    """
    texts = {}
    for name, value in headers.items():
        if name.startswith(_OF_MESSAGES):
            if name.startswith(ATTRIBUTE):
                texts[name.removeprefix(ATTRIBUTE)] = _from_header(value)
            elif name not in _OF_DRAFTS and name not in passed_over:
                raise _unknown_header(name, _KNOWN_HEADERS)
    return make_attributes(headers.get("content-type"), texts, headers.get("content-encoding"))


def refuse_message_headers(headers: Mapping[str, str]) -> None:
    """Refuse headers of a message on a request in which each message has its own.

    Raises:
        InvalidRequest: it has one.
    """
    for name in headers:
        if name.startswith(_OF_MESSAGES):
            raise _unknown_header(name, "In a batch, set the properties of each message in the message's own entry")
    if content_codings(headers.get("content-encoding", "")) is not None:
        raise InvalidRequest(
            "Content-Encoding is not supported for a batch. Send the batch uncompressed, and set "
            "content_encoding on each message that has a compressed body"
        )


def _unknown_header(name: str, known: str) -> InvalidRequest:
    return InvalidRequest(f"unknown header {shorten(name)}. {known}")


def make_attributes(content_type: Any, texts: Any, content_encoding: Any = None) -> dict[str, Any]:
    """A message's attributes, as they are kept.

    Args:
        content_type: what its body is; None for unknown.
        content_encoding: how its body is compressed, such as ``gzip``; None for not. Texts that name no coding, such as
            ``identity`` and charsets, are not kept.

    Raises:
        InvalidRequest: they are not what they should be.
    """
    if content_type is not None and (not isinstance(content_type, str) or not _HEADER_VALUE.fullmatch(content_type)):
        raise InvalidRequest("content_type must be a valid header value without leading or trailing spaces")
    codings = _read_codings(content_encoding)
    if not isinstance(texts, Mapping):
        raise InvalidRequest('attributes must be an object with text values: {"name": "text"}')
    if len(texts) > MOST_ATTRIBUTES:
        raise InvalidRequest(f"a message can have at most {MOST_ATTRIBUTES} attributes")
    kept = {name.lower(): text for name, text in texts.items()}
    size = len(content_type or "")
    for name, text in kept.items():
        if _ATTRIBUTE_NAME.fullmatch(name) is None:
            raise InvalidRequest(f"invalid attribute name: {shorten(name)}. Use letters, digits, - and _")
        value = _to_header(text) if isinstance(text, str) else None
        if value is None or _HEADER_VALUE.fullmatch(value) is None:
            raise InvalidRequest(f"attribute {name} must be one line of text without leading or trailing spaces")
        size += len(name) + len(value)
    if size > LARGEST_ATTRIBUTES_BYTES:
        raise InvalidRequest(f"the attributes of a message must not exceed {LARGEST_ATTRIBUTES_BYTES} bytes in total")
    attributes: dict[str, Any] = {"content_type": content_type} if content_type else {}
    if codings is not None:
        attributes["content_encoding"] = codings
    return attributes | ({"attributes": kept} if kept else {})


def _read_codings(text: Any) -> str | None:
    if text is None or text == "":
        return None
    if not isinstance(text, str) or CODINGS.fullmatch(text.strip()) is None:
        raise InvalidRequest(
            f"content_encoding must consist of content codings, such as gzip or br, not {shorten(str(text))}"
        )
    return content_codings(text)


def with_group(attributes: dict[str, Any], group: str | None) -> dict[str, Any]:
    """Attributes with the message group, as it is kept."""
    return attributes if group is None else attributes | {"group": group}


def group_of(attributes: Mapping[str, Any]) -> str | None:
    """The message group that a message's attributes name, as far as a header can carry it; None without one."""
    group = attributes.get("group")
    return group if isinstance(group, str) and _GROUP.fullmatch(group) else None


def content_type_of(attributes: Mapping[str, Any]) -> str:
    """As it was published."""
    value = attributes.get("content_type")
    if isinstance(value, str) and value and _HEADER_VALUE.fullmatch(value):
        return value
    return DEFAULT_CONTENT_TYPE  # none was given, or one from another protocol that no header can carry


def codings_of(attributes: Mapping[str, Any]) -> str | None:
    """How the body is compressed, as Content-Encoding says it; None where it is not."""
    value = attributes.get("content_encoding")
    return content_codings(value) if isinstance(value, str) else None


def texts_of(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The attributes that a publisher chose."""
    texts = attributes.get("attributes")
    if not isinstance(texts, dict):
        return {}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def headers_of(message: Message) -> list[tuple[str, str]]:
    """What is said of a message beside its body."""
    _, id, body, properties, receives, receipt, deaths, lease = message
    attributes = properties.attributes  # mostly none
    headers = [
        ("x-message-id", id),
        ("content-type", content_type_of(attributes) if attributes else DEFAULT_CONTENT_TYPE),
        ("content-length", str(body.size)),
        ("x-message-receives", str(receives)),
    ]
    if receipt:
        headers.append(("etag", f'"{receipt}"'))
    if lease:
        headers.append(("x-message-lease", f"{lease:.10g}"))
    if deaths:
        headers.append(("x-message-dead-letter-history", json.dumps(list(deaths))))
    if not attributes:
        return headers
    if (codings := codings_of(attributes)) is not None:
        headers.append(("content-encoding", codings))
    if (group := group_of(attributes)) is not None:
        headers.append(("x-message-group", group))
    for name, text in texts_of(attributes).items():
        value = _to_header(text)
        if value is not None and _ATTRIBUTE_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value):
            headers.append((ATTRIBUTE + name, value))
            if name in TRACE_NAMES:
                headers.append((name, value))
    return headers


def state_headers(state: str, at_ms: int | None) -> list[tuple[str, str]]:
    """What is said of a message that is only looked at: its state, and when it can be fetched again."""
    headers = [("x-message-state", state)]
    return headers if at_ms is None else [*headers, ("x-message-at", shown_instant(at_ms))]


def _from_header(value: str) -> str:
    """Text from a header's bytes, which are UTF-8 nowadays; other bytes survive the round trip, too."""
    return value.encode("latin-1").decode("utf-8", "surrogateescape")


def _to_header(text: str) -> str | None:
    """None for what is no text: half a character."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("latin-1")
    except UnicodeEncodeError:
        return None


# The trace of a publish (W3C Trace Context, level 1)
#
# It is two attributes of a message, so every protocol gives them back. Tracing never refuses a publish: what cannot be
# read, or has no room, is left out.

_IDS: Final = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
"""The trace, the parent in it, flags."""
_VALID_PARENT: Final = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[!-~]{{1,200}})?")
"""Versions behind the first may have more at the end (section 3.2.4)."""
_VALID_STATE: Final = re.compile(r"[!-~](?:[\t -~]{0,510}[!-~])?")
"""The length that every program has to carry (section 3.3.1.5). Its members are left to the reader of a trace."""


def _as_it_came(value: Any) -> Any:
    return value


_TEXT: Final = SettingKind(_as_it_came, "text", {"type": "string"})
TRACE_HEADERS: Final = (
    Parameter(TRACEPARENT, _TEXT, "trace context of the message; an invalid one is ignored"),
    Parameter(TRACESTATE, _TEXT, "vendor data of the trace context; ignored without traceparent"),
)
"""What a publish may say of its trace."""


def trace_of(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace of a request, as attributes; empty where it has none that can be read."""
    parent = headers.get(TRACEPARENT, "").strip()
    if _VALID_PARENT.fullmatch(parent) is None:
        return {}
    state = headers.get(TRACESTATE, "").strip()
    return {TRACEPARENT: parent, TRACESTATE: state} if _VALID_STATE.fullmatch(state) else {TRACEPARENT: parent}


def with_trace(attributes: Mapping[str, Any], trace: Mapping[str, str]) -> Mapping[str, Any]:
    """A message's attributes, as they are kept, with a trace; as they are where they name one, or leave no room.

    Args:
        attributes: of the message, checked. They are not checked once more: a batch has up to 64,000 of them.
        trace: what :func:`trace_of` returned.
    """
    texts = attributes.get("attributes", {})
    if not trace or not texts.keys().isdisjoint(TRACE_NAMES) or len(texts) + len(trace) > MOST_ATTRIBUTES:
        return attributes
    size = len(attributes.get("content_type", "")) + _size(texts) + _size(trace)
    return attributes if size > LARGEST_ATTRIBUTES_BYTES else {**attributes, "attributes": {**texts, **trace}}


def _size(texts: Mapping[str, str]) -> int:
    """Bytes, as attributes are counted."""
    return sum(map(len, texts)) + sum(len(text.encode("utf-8", "surrogateescape")) for text in texts.values())


def without_trace(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Headers without those of a trace."""
    return {name: value for name, value in headers.items() if name not in TRACE_NAMES}


def draft_of(headers: Mapping[str, str]) -> Draft:
    """What the headers of a publish say of its message, which has no body yet.

    Raises:
        InvalidRequest: one of them makes no sense.
    """
    if not isinstance(headers, SharedHeaders):
        return _draft_of(headers)
    if headers.read is None:
        headers.read = _draft_of(headers)
    draft: Draft = headers.read
    return draft


def _draft_of(headers: Mapping[str, str]) -> Draft:
    group = read_header(headers, MESSAGE_GROUP)
    return Draft(
        b"",
        SharedAttributes(with_trace(with_group(attributes_of(headers), group), trace_of(headers))),
        read_header(headers, MESSAGE_DELAY),
        read_header(headers, MESSAGE_TTL),
        read_header(headers, IDEMPOTENCY_KEY),
        priority=read_header(headers, MESSAGE_PRIORITY) or 0,
        at_ms=read_header(headers, MESSAGE_AT),
        group=group,
    )


def in_trace(headers: Mapping[str, str], drafts: list[Draft | MQError]) -> list[Draft | MQError]:
    """The entries of a batch, in the trace of their request where they name none themselves."""
    trace = trace_of(headers)
    if not trace:
        return drafts
    return [
        draft._replace(attributes=with_trace(draft.attributes, trace)) if isinstance(draft, Draft) else draft
        for draft in drafts
    ]
