"""Requests of SQS that are half right: every action in both protocols, with members that may be anything."""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from mq.sqs.door import ACTIONS
from mq.sqs.shapes import Blob, ListOf, MapOf, Shape, Struct, Text, Whole
from mq.web.exchange import Request

_URLS: Final = ("http://mq/000000000000/q", "http://mq/000000000000/dead", "http://mq/000000000000/none", "q", "", "/")
_ARN: Final = "arn:aws:sqs:us-east-1:000000000000:"
_TEXTS: Final = (
    *("", " ", "a", "q", "dead", "x" * 300, "\x00", "\ud800", "ö€😀", "a\r\nb", "<&>", "%s{}\\", "..", "a/b", "1e9"),
    *("true", "false", "null", "-1", "0", "1", "10", "99999999999999999999", "1.5", "٣", "All", ".*", "q.fifo"),
    *(f"{_ARN}q", f"{_ARN}dead", f"{_ARN}none", f"{_ARN}q.fifo", "arn:aws:sqs", "String", "Number", "Binary.x"),
    *("/w==", "e30=", "{", "[]", '{"maxReceiveCount": 1}', "[" * 2000),
    json.dumps({"deadLetterTargetArn": f"{_ARN}dead", "maxReceiveCount": 2}),
    json.dumps({"deadLetterTargetArn": f"{_ARN}q", "maxReceiveCount": "2"}),
    json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [f"{_ARN}q", 1]}),
)
_NAMES: Final = (
    *("VisibilityTimeout", "DelaySeconds", "MessageRetentionPeriod", "MaximumMessageSize", "RedrivePolicy", "Policy"),
    *("ReceiveMessageWaitTimeSeconds", "RedriveAllowPolicy", "FifoQueue", "KmsMasterKeyId", "SqsManagedSseEnabled"),
    *("AWSTraceHeader", "QueueArn"),
)
_WHOLES: Final = (-(1 << 70), -1, 0, 1, 2, 10, 11, 20, 30, 900, 1000, 43_200, 43_201, 1 << 31, 1 << 62, 1 << 70)
_ODD: Final = (None, True, 0.5, float("inf"), [], {}, [[]], {"a": {}}, "text", 7, [None], {"": None})


class Odd(NamedTuple):
    """A request that may be odd."""

    request: Request
    body: bytes
    told: str


def odd_request(random: Random, handles: list[str]) -> Odd:
    """A request; most of it is right.

    Args:
        handles: receipt handles that may be used.
    """
    action = random.choice(list(ACTIONS.values()))
    wanted = _struct(action.input, random, handles)
    if random.random() < 0.5:
        name = action.name if random.random() < 0.98 else random.choice(_TEXTS)
        body = _damaged(json.dumps(wanted).encode(), random)
        return _request("/", {"x-amz-target": f"AmazonSQS.{name}"}, body, name)
    fields = [("Action", action.name), ("Version", "2012-11-05"), *_fields(wanted, "", action.input)]
    random.random() < 0.05 and fields.append(random.choice(fields))
    text = urlencode([(name, value.encode("utf-8", "surrogatepass")) for name, value in fields])
    path = random.choice(("/", "/", "/000000000000/q", "/000000000000/none"))
    body = _damaged(text.encode(), random)
    return _request(path, {"content-type": "application/x-www-form-urlencoded"}, body, action.name)


def _request(path: str, headers: dict[str, str], body: bytes, name: str) -> Odd:
    request = Request("POST", path.encode(), b"", {"host": "mq", **headers}, body, len(body))
    return Odd(request, body, f"{path} {headers} {name!a} {body[:2000]!r}")


def _damaged(body: bytes, random: Random) -> bytes:
    if random.random() > 0.03 or not body:
        return body
    place = random.randrange(len(body))
    return random.choice((body[:place], body[:place] + bytes([random.randrange(256)]) + body[place + 1 :], body * 2))


def _struct(shape: Struct, random: Random, handles: list[str]) -> dict[str, Any]:
    return {
        name: _value(member, random, name, handles)
        for name, member in shape.members.items()
        if random.random() < (0.97 if name in _NEEDED else 0.3)
    }


_NEEDED: Final = frozenset(
    {"QueueUrl", "MessageBody", "ReceiptHandle", "Entries", "Id", "VisibilityTimeout", "DataType", "QueueName"}
)


def _value(shape: Shape, random: Random, name: str, handles: list[str]) -> Any:
    if random.random() < 0.02:
        return random.choice(_ODD)
    match shape:
        case Whole():
            return random.choice(_WHOLES)
        case Blob():
            return random.choice(("AA==", "", "/w", "ö"))
        case ListOf():
            return [_value(shape.item, random, "", handles) for _ in range(random.choice((0, 1, 1, 2, 3, 10, 11)))]
        case MapOf():
            names = _NAMES if isinstance(shape.value, Text) else _TEXTS
            return {
                random.choice(names if random.random() < 0.8 else _TEXTS): _value(shape.value, random, "", handles)
                for _ in range(random.choice((0, 1, 1, 2, 3)))
            }
        case Struct():
            return _struct(shape, random, handles)
    return _text(name, random, handles)


def _text(name: str, random: Random, handles: list[str]) -> str:
    if random.random() < 0.9:
        if name == "QueueUrl":
            return random.choice(_URLS[:2])
        if name == "ReceiptHandle" and handles:
            return random.choice(handles)
        if name == "Id":
            return f"e{random.randrange(1000)}"
    return random.choice(_TEXTS + _URLS + _NAMES)


def _fields(value: Any, prefix: str, shape: Shape) -> list[tuple[str, str]]:
    if isinstance(shape, Struct) and isinstance(value, dict):
        found = []
        for name, each in value.items():
            member = shape.members.get(name, Text())
            called = member.name if isinstance(member, ListOf | MapOf) else name
            found += _fields(each, f"{prefix}{called}", member)
        return found
    if isinstance(shape, ListOf) and isinstance(value, list):
        return [
            field
            for place, each in enumerate(value, 1)
            for field in _fields(each, f"{prefix}.{place}" + "." * isinstance(shape.item, Struct), shape.item)
        ]
    if isinstance(shape, MapOf) and isinstance(value, dict):
        found = []
        for place, (key, each) in enumerate(value.items(), 1):
            found.append((f"{prefix}.{place}.{shape.key_name}", str(key)))
            dot = "." * isinstance(shape.value, Struct)
            found += _fields(each, f"{prefix}.{place}.Value{dot}", shape.value)
        return found
    return [(prefix, str(value))]
