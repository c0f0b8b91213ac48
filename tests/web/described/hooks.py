"""How schemathesis talks to mq: what OpenAPI has no words for."""

from __future__ import annotations

import json
from typing import Any

import schemathesis

JSON_LINES = "application/x-ndjson"
QUEUES = ("q0", "q1", "q2")
LONGEST_WAIT_SECONDS = 0.01


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Let it make lines, and check lines: an array of the objects that a line has to be."""
    for path in raw_schema["paths"].values():
        for operation in path.values():
            taken = operation.get("requestBody", {}).get("content", {})
            taken.pop("multipart/mixed", None)  # made by hand in other tests: it would be sent as a form
            _as_array(taken, 1)
            for answer in operation["responses"].values():
                _as_array(answer.get("content", {}), 0)


def _as_array(contents: dict[str, Any], least: int) -> None:
    if JSON_LINES in contents:
        line = contents[JSON_LINES]["schema"]["x-line"]
        contents[JSON_LINES]["schema"] = {"type": "array", "items": line, "minItems": least}


@schemathesis.serializer(JSON_LINES)
def serialize_lines(context: Any, value: Any) -> bytes:
    lines = value if isinstance(value, list) else [value]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


@schemathesis.deserializer(JSON_LINES)
def deserialize_lines(context: Any, response: Any) -> list[Any]:
    return [json.loads(line) for line in response.content.splitlines()]


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Few queues, so that most of them are there; and nobody waits for long."""
    parameters = case.path_parameters or {}
    queue = parameters.get("queue")
    if isinstance(queue, str) and queue.isascii() and queue.isalnum() and queue not in QUEUES:
        parameters["queue"] = QUEUES[len(queue) % len(QUEUES)]
    query = case.query or {}
    for name, longest in (("wait", 3600), ("seconds", 60)):
        try:
            is_long = LONGEST_WAIT_SECONDS < float(query.get(name, 0)) <= longest
        except (TypeError, ValueError):
            is_long = False  # not a number: mq has to say so
        if is_long:
            query[name] = LONGEST_WAIT_SECONDS
