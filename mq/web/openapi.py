"""The HTTP server described for programs: OpenAPI 3.1, made from the lines that the router goes by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from mq.broker.settings import QUEUE
from mq.web.operations import NO_RIGHT, Contents, Operation, Parameter, Success
from mq.web.parameters import ATTRIBUTE, ID, LARGEST_ATTRIBUTES_BYTES, MOST_ATTRIBUTES
from mq.web.refusals import RETRY_AFTER_SECONDS
from mq.web.schemas import SCHEMAS, reference

VERSION: Final = "1.0"
"""Of the protocol. An addition raises it by a tenth, a change that breaks clients by one."""
REFUSALS: Final[Mapping[int, str]] = {
    400: "the request is invalid: a malformed name, a number out of range, an unknown parameter or setting",
    401: "the request needs credentials, or they are wrong",
    403: "the user lacks the right, or a web page of another site sent the request",
    404: "the queue or the message does not exist",
    405: "the path does not support this method; `Allow` lists those that it does",
    408: "the request body arrived too slowly",
    409: "the request conflicts with the current state or configuration",
    412: "the receipt or lease is no longer valid: the message was released or delivered again",
    413: "the body is too large, or the batch has too many entries",
    421: "the Host header is not a known name of this daemon: use its address, or add the name to the setting `hosts`",
    423: "an AMQP consumer has exclusive access to the queue",
    429: "the queue is full, publishing is paused, or the user publishes too fast",
    500: "the message is damaged, or mq has an internal error",
    503: "the store is unavailable; retry later",
}
"""Status -> its meaning, for every refusal."""

_ALWAYS: Final = (400, 403, 421)
_OF_USERS: Final = (401, 503)
_LATER: Final = (423, 429, 503)
_PATH: Final = {
    "QUEUE": {"name": "queue", "in": "path", "required": True, "schema": QUEUE.schema},
    "CONSUMER": {"name": "consumer", "in": "path", "required": True, "schema": QUEUE.schema},
    "JOB": {"name": "job", "in": "path", "required": True, "schema": QUEUE.schema},
    "CONNECTION": {"name": "connection", "in": "path", "required": True, "schema": {"type": "string"}},
    "EXCHANGE": {"name": "exchange", "in": "path", "required": True, "schema": {"type": "string"}},
    "ACCOUNT": {"name": "account", "in": "path", "required": True, "schema": {"type": "string"}},
    "SCHEDULE": {"name": "schedule", "in": "path", "required": True, "schema": QUEUE.schema},
    "ID": {"name": "id", "in": "path", "required": True, "schema": ID.schema},
    "VERSION": {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}},
    "FILE": {"name": "file", "in": "path", "required": True, "schema": {"type": "string"}},
}
_TEXT: Final = (
    f"Headers `{ATTRIBUTE}NAME` of a publish are stored with the message and returned by each fetch: at most "
    f"{MOST_ATTRIBUTES} of them, {LARGEST_ATTRIBUTES_BYTES} bytes in total. HEAD is allowed wherever GET leases "
    "nothing. Unknown parameters are refused. A duration is a number of seconds or text with a unit: `1.5h`, `10m`. A "
    "size is a number of bytes or text with a unit: `64KiB`, `10MB`. If the daemon has users, a request needs the "
    "right in `x-right`."
)


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of these operations."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(path_of(operation.path), {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mq", "version": VERSION, "description": _TEXT},
        "paths": paths,
        "components": {
            "schemas": dict(SCHEMAS),
            "responses": {str(status): _refusal(status) for status in REFUSALS},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
    }


def path_of(path: str) -> str:
    """An operation's path as OpenAPI writes it: ``/{queue}/messages/{id}``."""
    return "/".join(f"{{{segment.lower()}}}" if segment in _PATH else segment for segment in path.split("/"))


def refusals_of(operation: Operation) -> list[int]:
    """Every status that an operation can be refused with."""
    access = () if operation.right == NO_RIGHT else _OF_USERS
    return sorted({*_ALWAYS, *operation.refusals, *access})


def _operation(operation: Operation) -> dict[str, Any]:
    responses = {str(status): _answer(answer) for status, answer in operation.answers.items()}
    for status in refusals_of(operation):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.text,
        "parameters": [
            *(_PATH[segment] for segment in operation.path.split("/") if segment in _PATH),
            *(_parameter(parameter, "query") for parameter in operation.query),
            *(_parameter(parameter, "header") for parameter in operation.headers),
        ],
        "responses": responses,
        "security": [] if operation.right == NO_RIGHT else [{}, {"token": []}, {"password": []}],
        "x-right": str(operation.right),
    }
    if operation.body:
        described["requestBody"] = {"required": operation.needs_body, "content": _contents(operation.body)}
    return described


def _parameter(parameter: Parameter, where: str) -> dict[str, Any]:
    default = {} if parameter.default is None else {"default": parameter.default}
    described = {
        "name": parameter.name,
        "in": where,
        "description": parameter.text,
        "schema": {**parameter.kind.schema, **default},
    }
    return {**described, "required": True} if parameter.is_needed else described


def _answer(answer: Success) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.text}
    if answer.contents:
        described["content"] = _contents(answer.contents)
    if answer.headers:
        described["headers"] = {
            name: {"description": text, "schema": schema} for name, (text, schema) in answer.headers.items()
        }
    if answer.links:
        described["links"] = {
            name: {"operationId": name, "parameters": dict(parameters)} for name, parameters in answer.links.items()
        }
    return described


def _refusal(status: int) -> dict[str, Any]:
    described: dict[str, Any] = {
        "description": f"{HTTPStatus(status).phrase}: {REFUSALS[status]}",
        "content": {"application/problem+json": {"schema": reference("Problem")}},
    }
    if status in _LATER:
        text = f"seconds to wait before a retry; {RETRY_AFTER_SECONDS} if the store is unavailable"
        described["headers"] = {
            "Retry-After": {"description": text, "required": True, "schema": {"type": "integer", "minimum": 1}}
        }
    return described


def _contents(contents: Contents) -> dict[str, Any]:
    return {type: {"schema": dict(schema)} for type, schema in contents.items()}
