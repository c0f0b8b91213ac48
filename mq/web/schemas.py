"""What goes in and out as JSON, in JSON Schema. Ranges come from the broker's tables."""

from __future__ import annotations

from typing import Any, Final

from mq.broker.queue_settings import DELAY, QUEUE, TTL, VISIBILITY, QueueSettings
from mq.lifecycle import Kind
from mq.web.batches import JSON_LINES, MULTIPART
from mq.web.operations import Contents, Schema
from mq.web.parameters import ID, KEY, MOST, STATE

COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TEXT: Final[Schema] = {"type": "string"}
BYTES: Final[Contents] = {"*/*": {}}
"""A message's body: whatever was posted."""


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


def reference(name: str) -> Schema:
    """One of :data:`SCHEMAS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def as_json(schema: Schema) -> Contents:
    """A body of JSON."""
    return {"application/json": schema}


def lines_of(schema: Schema) -> Contents:
    """A body of JSON Lines. OpenAPI 3.1 has no word for one line of a text, so the schema of a line stands beside."""
    return {
        JSON_LINES[0]: {"type": "string", "pattern": "\\S", "description": "One JSON object a line.", "x-line": schema}
    }


_PARTS: Final[Contents] = {
    MULTIPART: {"type": "string", "description": "A part for each message: its headers and its bytes."}
}

_KINDS: Final = {name: kind.schema for name, kind in QueueSettings.kinds().items()}
_DEFAULTS: Final = QueueSettings().values()
_IN_QUEUE: Final = {
    "ready": COUNT,
    "leased": COUNT,
    "delayed": COUNT,
    "oldest_seconds": or_null({"type": "number", "minimum": 0}),
}
_BODY: Final = {"body": TEXT, "base64": {"type": "string", "contentEncoding": "base64"}}
_ONE_BODY: Final = {"oneOf": [{"required": ["body"]}, {"required": ["base64"]}]}
_TEXTS: Final[Schema] = {"type": "object", "additionalProperties": TEXT}
_COUNTS: Final = record({kind.value: COUNT for kind in Kind})
_RATES: Final[Schema] = {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}}

_CONSUMER: Final = record(
    {
        "consumer": QUEUE.schema,
        "epoch": COUNT,
        "acknowledged": COUNT,
        "batch": or_null(COUNT),
        "messages": COUNT,
        "high": COUNT,
    }
)

SCHEMAS: Final[dict[str, Schema]] = {
    "Problem": record(
        {"type": TEXT, "title": TEXT, "status": {"type": "integer", "minimum": 400, "maximum": 599}, "detail": TEXT}
    ),
    "Settings": {
        "type": "object",
        "properties": {name: {**or_null(schema), "default": _DEFAULTS[name]} for name, schema in _KINDS.items()},
        "additionalProperties": False,
    },
    "Queue": record(
        {"name": QUEUE.schema}
        | {name: or_null(schema) if _DEFAULTS[name] is None else schema for name, schema in _KINDS.items()}
        | _IN_QUEUE
    ),
    "Visibility": record({"visibility": {"anyOf": [{"const": 0}, VISIBILITY.schema]}}),
    "Redrive": {
        "type": "object",
        "properties": {
            "to": or_null(QUEUE.schema),
            "max": MOST.schema,
            "ids": or_null({"type": "array", "items": ID.schema}),
        },
        "additionalProperties": False,
    },
    "Draft": record(
        {},
        _BODY
        | {
            "content_type": or_null(TEXT),
            "delay": or_null(DELAY.schema),
            "ttl": or_null(TTL.schema),
            "key": or_null(KEY.schema),
            "attributes": or_null(_TEXTS),
        },
    )
    | _ONE_BODY,
    "Message": record(
        {"id": ID.schema, "receives": COUNT, "content_type": TEXT},
        _BODY
        | {
            "receipt": TEXT,
            "attributes": _TEXTS,
            "deaths": {"type": "array", "items": reference("Death")},
            "state": STATE.schema,
            "sequence": COUNT,
        },
    )
    | _ONE_BODY,
    "Death": record({"queue": QUEUE.schema, "reason": TEXT, "receives": COUNT, "time": {"type": "number"}}),
    "Removal": record({"id": TEXT}, {"receipt": or_null(TEXT)}),
    "Outcome": record({"status": {"type": "integer"}}, {"id": ID.schema, "detail": TEXT}),
    "Consumer": _CONSUMER,
    "Claim": record(
        {
            "batch": COUNT,
            "messages": COUNT,
            "lost": COUNT,
            "first": or_null(COUNT),
            "last": or_null(COUNT),
        }
    ),
    "Cluster": record(
        {
            "node": TEXT,
            "role": {"type": "string", "enum": ["master", "mirror", "alone"]},
            "nodes": {
                "type": "array",
                "items": record(
                    {
                        "name": TEXT,
                        "uptime_seconds": {"type": "number", "minimum": 0},
                        "is_master": {"type": "boolean"},
                    }
                ),
            },
            "queues": COUNT,
            "is_served": {"type": "boolean"},
            "term": COUNT,
        }
    ),
    "Stats": record(
        {
            "uptime_seconds": {"type": "number", "minimum": 0},
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

MESSAGES: Final[Contents] = {**lines_of(reference("Message")), **_PARTS}
"""A batch of messages that goes out."""
DRAFTS: Final[Contents] = {**lines_of(reference("Draft")), **_PARTS}
"""A batch of messages that comes in."""
OUTCOMES: Final[Contents] = lines_of(reference("Outcome"))
"""What became of each entry of a batch."""
