"""What goes in and out as JSON, in JSON Schema. Ranges come from the broker's tables."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from mq.broker.api import Membership
from mq.broker.batch_consumers import ClaimedBatch, ConsumerPosition
from mq.broker.settings import DELAY, PRIORITY, QUEUE, SWITCH, TTL, VISIBILITY, QueueSettings
from mq.broker.write_jobs import WriteJobStatus
from mq.doors.exchanges import Declared
from mq.doors.open_connections import ConnectionStatus, ConsumerStatus
from mq.lifecycle import Kind
from mq.observers.rates import MINUTES, SHOWN, SLOTS
from mq.web.batches import JSON_LINES, MULTIPART
from mq.web.operations import Contents, Schema
from mq.web.parameters import AMOUNT, GROUP, ID, KEY, LEVEL, REASON, STATE, TIME

COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXT: Final[Schema] = {"type": "string"}
_SECONDS: Final[Schema] = {"type": "number", "minimum": 0}
_PLAIN: Final[dict[Any, Schema]] = {int: COUNT, str: TEXT, float: _SECONDS, bool: SWITCH.schema}
"""The schema of a field by its type: no number of what is shown is negative."""
BYTES: Final[Contents] = {"*/*": {}}
"""A message's body: any bytes."""


def record(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object with these members and no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    }


def or_null(schema: Schema) -> Schema:
    """That, or null."""
    named = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
    return {**schema, "type": [schema["type"], "null"], **named}


def fields_of(shown: type[Any], **refined: Schema) -> dict[str, Schema]:
    """The members of an answer that shows a named tuple as it is, by the types of its fields.

    Args:
        refined: what is known of a field beyond its type.
    """
    return {name: refined.get(name) or _schema_of(type) for name, type in get_type_hints(shown).items()}


def _schema_of(type: Any) -> Schema:
    if type in _PLAIN:
        return _PLAIN[type]
    inner = [each for each in get_args(type) if each is not NoneType and each is not Ellipsis]
    if isinstance(type, UnionType):
        [only] = inner
        return or_null(_schema_of(only))
    if inner:
        return (
            list_of(_schema_of(inner[0])) if issubclass(get_origin(type), Sequence) else _by_name(_schema_of(inner[1]))
        )
    return record(fields_of(type))


def reference(name: str) -> Schema:
    """One of :data:`SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def as_json(schema: Schema) -> Contents:
    """A body of JSON."""
    return {"application/json": schema}


def array_of(schema: Schema) -> Contents:
    """A body that is a JSON array of at least one of these."""
    return as_json({"type": "array", "items": schema, "minItems": 1})


def list_of(items: Schema) -> Schema:
    """An array of any number of these."""
    return {"type": "array", "items": items}


def _by_name(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def lines_of(schema: Schema) -> Contents:
    """A body of JSON Lines. OpenAPI 3.1 cannot describe a line of a text, so the schema of a line stands beside it."""
    return {
        JSON_LINES[0]: {
            "type": "string",
            "pattern": "\\S",
            "description": ("One JSON object per line."),
            "x-line": schema,
        }
    }


_MULTIPART: Final[Contents] = {
    MULTIPART: {"type": "string", "description": "One part for each message, with its headers and body."}
}

_KINDS: Final = {name: kind.schema for name, kind in QueueSettings.kinds().items()}
_DEFAULTS: Final = QueueSettings().values()
_IN_QUEUE: Final = {
    "ready": COUNT,
    "leased": COUNT,
    "delayed": COUNT,
    "oldest_seconds": or_null(_SECONDS),
}
_STORE: Final[Schema] = {"type": "string", "enum": ["disk", "memory", "node", "cluster"]}
_QUEUE: Final = (
    {"name": QUEUE.schema, "store": _STORE}
    | {name: or_null(schema) if _DEFAULTS[name] is None else schema for name, schema in _KINDS.items()}
    | _IN_QUEUE
    | {"consumers": COUNT}
)
_BODY: Final = {"body": TEXT, "base64": {"type": "string", "contentEncoding": "base64"}}
_ONE_BODY: Final = {"oneOf": [{"required": ["body"]}, {"required": ["base64"]}]}
_TEXTS: Final = _by_name(TEXT)
_COUNTS: Final = record({kind.value: COUNT for kind in Kind})
_RATES: Final = _by_name(_SECONDS)

_POSITION: Final = fields_of(ConsumerPosition, consumer=QUEUE.schema)

_VISIBILITY: Final = record({"visibility": {"anyOf": [{"const": 0}, VISIBILITY.schema]}})
_PROTOCOL: Final[Schema] = {"type": "string", "enum": ["http", "amqp"]}

_FLOW_NAMES: Final = [flow.name.lower() for flow in SHOWN]
_PER_SECOND: Final = record(
    {
        name: {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 3, "maxItems": 3}
        for name in _FLOW_NAMES
    }
)
_BY_MINUTE: Final[Schema] = {"type": "array", "items": COUNT, "minItems": MINUTES, "maxItems": MINUTES}
_BY_SLOT: Final[Schema] = {"type": "array", "items": COUNT, "minItems": SLOTS, "maxItems": SLOTS}
_RATES_OF_QUEUES: Final = record(
    {
        "queues": list_of(
            record(
                {
                    "name": QUEUE.schema,
                    **_IN_QUEUE,
                    "store": _STORE,
                    "paused": SWITCH.schema,
                    "publish_paused": SWITCH.schema,
                    "dead_letter_queue": or_null(QUEUE.schema),
                    "is_dead_letter_queue": SWITCH.schema,
                    "consumers": COUNT,
                    "per_second": _PER_SECOND,
                },
                {"messages": _BY_MINUTE},
            )
        ),
        "total": COUNT,
        "matching": COUNT,
        "ready": COUNT,
        "leased": COUNT,
        "delayed": COUNT,
        "per_second": _PER_SECOND,
        "uptime_seconds": _SECONDS,
    }
)

_UNSURE: Final[Schema] = {
    "const": "unknown",
    "description": ("the operation may have been carried out; absent if it was not"),
}

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": record(
        {"type": TEXT, "title": TEXT, "status": {"type": "integer", "minimum": 400, "maximum": 599}, "detail": TEXT},
        {"outcome": _UNSURE},
    ),
    "Settings": {
        "type": "object",
        "properties": {name: {**or_null(schema), "default": _DEFAULTS[name]} for name, schema in _KINDS.items()},
        "additionalProperties": False,
    },
    "Queue": record(_QUEUE),
    "Logging": record({"level": LEVEL.schema, "requests": SWITCH.schema}),
    "LoggingChange": record({}, {"level": or_null(LEVEL.schema), "requests": or_null(SWITCH.schema)}),
    "Clock": record(
        {
            "wall_time": TIME.schema,
            "message_time": TIME.schema,
            "steady_seconds_ahead": {"type": "number"},
            "synchronised": SWITCH.schema,
            "problem": or_null(TEXT),
        }
    ),
    "ClockChange": record({}, {"trusted": or_null(SWITCH.schema)}),
    "Rates": _RATES_OF_QUEUES,
    "QueueRates": record(
        _QUEUE
        | {
            "per_second": _PER_SECOND,
            "slots": record({"seconds": COUNT} | dict.fromkeys(_FLOW_NAMES, _BY_SLOT)),
            "minutes": record({"seconds": COUNT, "messages": _BY_MINUTE} | dict.fromkeys(_FLOW_NAMES, _BY_MINUTE)),
            "uptime_seconds": _SECONDS,
        }
    ),
    "Lease": {
        "anyOf": [
            _VISIBILITY,
            record({"delay": or_null(DELAY.schema)}, {"reason": REASON.schema}),
            record({"at": TIME.schema}),
        ]
    },
    "Leased": {
        "anyOf": [
            record({"id": ID.schema, "visibility": {"type": "number"}}),
            record({"id": ID.schema, "delay": or_null(DELAY.schema)}),
            record({"id": ID.schema, "at": TIME.schema}),
        ]
    },
    "Redrive": {
        "type": "object",
        "properties": {
            "to": or_null(QUEUE.schema),
            "max": AMOUNT.schema,
            "ids": or_null(list_of(ID.schema)),
        },
        "additionalProperties": False,
    },
    "Draft": record(
        {},
        _BODY
        | {
            "content_type": or_null(TEXT),
            "content_encoding": or_null(TEXT),
            "delay": or_null(DELAY.schema),
            "at": or_null(TIME.schema),
            "ttl": or_null(TTL.schema),
            "priority": or_null(PRIORITY.schema),
            "group": or_null(GROUP.schema),
            "key": or_null(KEY.schema),
            "attributes": or_null(_TEXTS),
        },
    )
    | _ONE_BODY,
    "Message": record(
        {"id": ID.schema, "receives": COUNT, "content_type": TEXT},
        _BODY
        | {
            "content_encoding": TEXT,
            "receipt": TEXT,
            "lease": VISIBILITY.schema,
            "group": GROUP.schema,
            "attributes": _TEXTS,
            "dead_letter_history": list_of(reference("DeadLetterEvent")),
            "state": STATE.schema,
            "at": TIME.schema,
            "sequence": COUNT,
        },
    )
    | _ONE_BODY,
    "DeadLetterEvent": record(
        {"queue": QUEUE.schema, "reason": TEXT, "receives": COUNT, "time": {"type": "number"}}, {"error": TEXT}
    ),
    "Removal": record({"id": TEXT}, {"receipt": or_null(TEXT)}),
    "Outcome": record(
        {"status": {"type": "integer"}},
        {"id": ID.schema, "detail": TEXT, "outcome": _UNSURE, "routed": SWITCH.schema},
    ),
    "Connection": record({"id": TEXT, **fields_of(ConnectionStatus, protocol=_PROTOCOL)}),
    "Consumer": record(_POSITION),
    "ConsumerInQueue": record({"queue": QUEUE.schema, **_IN_QUEUE, **_POSITION}),
    "WriteJob": record(
        fields_of(
            WriteJobStatus,
            job=QUEUE.schema,
            state={"type": "string", "enum": ["open", "committed", "done", "aborted"]},
            queues=list_of(QUEUE.schema),
        )
    ),
    "ActiveConsumer": record(
        {"connection": TEXT, "protocol": _PROTOCOL, "user": or_null(TEXT), "address": TEXT}
        | fields_of(ConsumerStatus, queue=QUEUE.schema)
    ),
    "Claim": record({name: schema for name, schema in fields_of(ClaimedBatch).items() if name != "is_new"}),
    "Cluster": record(fields_of(Membership, role={"type": "string", "enum": ["master", "mirror", "alone"]})),
    "UserTable": {
        "type": "object",
        "properties": {
            "password": TEXT,
            "tokens": list_of(TEXT),
            "certificate": TEXT,
            **{right: list_of(TEXT) for right in ("publish", "consume", "configure", "pause", "monitor", "administer")},
            "max_connections": COUNT,
            "max_queues": COUNT,
            "max_publish_rate": {"type": "number", "exclusiveMinimum": 0},
        },
        "additionalProperties": False,
    },
    "NodeMove": record({"node": TEXT, "address": TEXT}),
    "Declared": record({"total": record(dict.fromkeys(Declared._fields, COUNT)), **fields_of(Declared)}),
    "Schedule": record(
        {
            "name": QUEUE.schema,
            "queue": QUEUE.schema,
            "cron": or_null(TEXT),
            "zone": or_null(TEXT),
            "every": or_null({"type": "number", "minimum": 1}),
            "unless_waiting": SWITCH.schema,
            "next": or_null(TIME.schema),
            "last": or_null(TIME.schema),
            "error": or_null(TEXT),
        },
        {"message": reference("Draft")},
    ),
    "Session": record(
        {
            "user": or_null(TEXT),
            "rights": {"type": "object", "additionalProperties": list_of(TEXT)},
            "csrf": or_null(TEXT),
        }
    ),
    "Preview": record(
        {
            "id": ID.schema,
            "queue": QUEUE.schema,
            "state": STATE.schema,
            "receives": COUNT,
            "published_ms": COUNT,
            "size": COUNT,
            "content_type": TEXT,
            "attributes": _TEXTS,
            "dead_letter_history": list_of(reference("DeadLetterEvent")),
        },
        {
            "text": TEXT,
            "base64": TEXT,
            "damage": TEXT,
            "group": GROUP.schema,
            "at_ms": COUNT,
            "leased_by": {"type": "string", "enum": ["connection", "consumer"]},
            "content_encoding": TEXT,
        },
    ),
    "Stats": record(
        {
            "uptime_seconds": _SECONDS,
            "counts": _COUNTS,
            "per_second": _RATES,
            "queues": {
                "type": "object",
                "additionalProperties": record(
                    {"counts": _COUNTS, "per_second": _RATES, "published_bytes": COUNT} | _IN_QUEUE
                ),
            },
        }
    ),
}
"""By the name that others refer to."""

MESSAGES: Final[Contents] = {**lines_of(reference("Message")), **_MULTIPART}
"""A batch of messages that goes out."""
DRAFTS: Final[Contents] = {**lines_of(reference("Draft")), **array_of(reference("Draft")), **_MULTIPART}
"""A batch of messages that comes in."""
OUTCOMES: Final[Contents] = lines_of(reference("Outcome"))
"""What became of each entry of a batch."""
