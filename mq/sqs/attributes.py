"""The attributes of a queue: settings of mq, attributes that this protocol keeps, and attributes that are only shown.
Pure.

A table has the values that each may take. An attribute with a meaning for every protocol is a setting of the queue; the
others are kept in the API's notes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from mq.broker.queues import QueueStatus
from mq.broker.settings import SHORTEST_SECONDS, QueueSettings
from mq.message import shorten
from mq.sqs.errors import SqsError
from mq.sqs.names import QueueNames, is_fifo, queue_of_arn
from mq.sqs.notes import Notes

LARGEST_MESSAGE: Final = 1 << 20
"""Bytes of a message, and of all messages of a batch."""
LONGEST_LEASE: Final = 43_200
LONGEST_WAIT: Final = 20
LONGEST_DELAY: Final = 900
_SHORTEST_RETENTION: Final = 60
_LONGEST_RETENTION: Final = 1_209_600
_DEFAULT_RETENTION: Final = 345_600
_SMALLEST_MESSAGE: Final = 1024
_MOST_RECEIVES: Final = 1000
_MOST_SOURCES: Final = 10
_DIGITS: Final = re.compile(r"[0-9]{1,9}", re.ASCII)

VISIBILITY: Final = "VisibilityTimeout"
WAIT: Final = "ReceiveMessageWaitTimeSeconds"
LONGEST: Final = "MaximumMessageSize"
REDRIVE: Final = "RedrivePolicy"
REDRIVE_ALLOW: Final = "RedriveAllowPolicy"
_RETENTION: Final = "MessageRetentionPeriod"
_ENCRYPTION: Final = "SqsManagedSseEnabled"

_WITHOUT_EFFECT: Final = ("Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds")
"""Refused, but for an empty text: a program that sets them relies on their effect."""
FIFO: Final = "FifoQueue"
BY_CONTENT: Final = "ContentBasedDeduplication"
SCOPE: Final = "DeduplicationScope"
PER_GROUP: Final = "messageGroup"
_THROUGHPUT: Final = "FifoThroughputLimit"
_PER_GROUP_ID: Final = "perMessageGroupId"
_OF_FIFO: Final = (BY_CONTENT, SCOPE, _THROUGHPUT)
DEDUPLICATION_SECONDS: Final = 300.0
"""For so long a FIFO queue knows what it has taken."""


class AttributeChange(NamedTuple):
    """What attributes ask for.

    Attributes:
        notes: of the protocol, as text by their names in SQS; an empty one takes it away.
    """

    settings: Mapping[str, Any]
    notes: Mapping[str, str]


def read_change(given: Mapping[str, str], *, is_fifo: bool) -> AttributeChange:
    """The change that attributes ask for.

    Args:
        is_fifo: whether the queue's name is that of a FIFO queue.

    Raises:
        SqsError: one is unknown, out of its range, or not to be had here.
    """
    settings: dict[str, Any] = {}
    notes: dict[str, str] = {}
    for name, text in given.items():
        if name in _SETTINGS:
            settings |= _SETTINGS[name](name, text)
        elif name == FIFO and is_fifo:
            if _noted_switch(name, text) != "true":
                raise _wrong(name, "FifoQueue must be true for a queue whose name ends in .fifo.")
        elif name in _NOTED and (is_fifo or name not in _OF_FIFO):
            notes[name] = _NOTED[name](name, text)
        else:
            _refuse(name, text)
    return AttributeChange(settings, notes)


def check_new(name: str, given: Mapping[str, str], *, is_fifo: bool) -> None:
    """Check that a new queue is a FIFO queue by its name and by its attributes, or by neither.

    Raises:
        SqsError: it is one by one of them alone.
    """
    if is_fifo and given.get(FIFO, "").lower() != "true":
        raise SqsError(
            "InvalidParameterValue",
            f"The queue name {shorten(name)} ends in .fifo. Create the queue with FifoQueue=true, or "
            "choose another name",
        )


def with_defaults(change: AttributeChange, *, is_fifo: bool) -> AttributeChange:
    """The change that makes a new queue, with AWS's defaults where an attribute is left out."""
    fifo = {"groups": True, "key_window": DEDUPLICATION_SECONDS} if is_fifo else {}
    return change._replace(settings={"ttl": float(_DEFAULT_RETENTION), **fifo, **change.settings})


def check_throughput(attributes: Mapping[str, str]) -> None:
    """Check that attributes of a FIFO queue go together.

    Raises:
        SqsError: a limit for each group goes with deduplication within each group alone.
    """
    if attributes.get(_THROUGHPUT) == _PER_GROUP_ID and attributes.get(SCOPE) != PER_GROUP:
        raise SqsError(
            "InvalidAttributeValue",
            "FifoThroughputLimit can be perMessageGroupId only if DeduplicationScope is messageGroup",
        )


def _refuse(name: str, text: str) -> None:
    """Refuse an attribute that cannot be set."""
    if name == FIFO and text.lower() == "true":
        raise SqsError("InvalidParameterValue", "The name of a FIFO queue must end in .fifo.")
    if name == FIFO or name in _OF_FIFO:
        raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")  # as AWS says of a standard queue
    if name in _WITHOUT_EFFECT:
        if text:
            raise SqsError(
                "UnsupportedOperation",
                f"{name} is not supported. Set user rights in mq's users file (see docs/access.md)"
                if name == "Policy"
                else f"{name} is not supported. Encrypt the disk that holds mq's root folder instead",
            )
        return
    raise SqsError("InvalidAttributeName", f"Unknown Attribute {shorten(name)}.")


def _wrong(name: str, reason: str = "") -> SqsError:
    text = f"Invalid value for the parameter {name}."
    return SqsError("InvalidAttributeValue", f"{text} Reason: {reason}" if reason else text)


def _number(low: int, high: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        if _DIGITS.fullmatch(text) is None or not low <= int(text) <= high:
            raise _wrong(name, f"The value must be a whole number between {low} and {high}.")
        return int(text)

    return read


def _seconds(setting: str, low: int, high: int) -> Callable[[str, str], dict[str, Any]]:
    number = _number(low, high)

    def read(name: str, text: str) -> dict[str, Any]:
        return {setting: float(number(name, text))}

    return read


def lease_seconds(seconds: int) -> float:
    """The length of a lease in mq: SQS's leases of 0 seconds, which are over at once, take a millisecond here."""
    return float(seconds) if seconds else SHORTEST_SECONDS


def _visibility(name: str, text: str) -> dict[str, Any]:
    return {"visibility": lease_seconds(_number(0, LONGEST_LEASE)(name, text))}


def _object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(name, "The value must be a JSON object.") from None
    if not isinstance(found, dict):
        raise _wrong(name, "The value must be a JSON object.")
    return found


def _redrive(name: str, text: str) -> dict[str, Any]:
    if not text:
        return {"max_receives": None, "dead_letter_queue": None}
    policy = _object(name, text)
    arn, most = policy.pop("deadLetterTargetArn", None), policy.pop("maxReceiveCount", None)
    if policy:
        raise _wrong(name, f"Unknown key {shorten(next(iter(policy)))} in the policy.")
    if not isinstance(arn, str):
        raise _wrong(name, "The redrive policy does not contain the mandatory attribute deadLetterTargetArn.")
    if isinstance(most, bool) or not isinstance(most, int | str):
        raise _wrong(name, "The redrive policy does not contain the mandatory attribute maxReceiveCount.")
    receives = _number(1, _MOST_RECEIVES)(f"{name}.maxReceiveCount", str(most))
    return {"max_receives": receives, "dead_letter_queue": str(queue_of_arn(arn, "deadLetterTargetArn"))}


def _noted_number(low: int, high: int) -> Callable[[str, str], str]:
    number = _number(low, high)
    return lambda name, text: str(number(name, text))


def _noted_switch(name: str, text: str) -> str:
    lower = text.lower()  # "True" is what Python, the AWS CDK and CloudFormation send; AWS takes it
    if lower not in ("true", "false"):
        raise _wrong(name, "The value must be true or false.")
    return lower


def _noted_word(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in words:
            raise _wrong(name, f"The value must be {' or '.join(words)}.")
        return text

    return read


def _noted_allowance(name: str, text: str) -> str:
    if not text:
        return ""
    policy = _object(name, text)
    permission, sources = policy.pop("redrivePermission", None), policy.pop("sourceQueueArns", None)
    if policy or permission not in ("allowAll", "denyAll", "byQueue"):
        raise _wrong(name, "redrivePermission must be allowAll, denyAll or byQueue.")
    if permission != "byQueue":
        if sources is not None:
            raise _wrong(name, "sourceQueueArns is only allowed with byQueue.")
        return json.dumps({"redrivePermission": permission})
    if not isinstance(sources, list) or not 1 <= len(sources) <= _MOST_SOURCES:
        raise _wrong(name, f"byQueue requires 1 to {_MOST_SOURCES} sourceQueueArns.")
    for source in sources:
        if not isinstance(source, str):
            raise _wrong(name, "sourceQueueArns must be a list of queue ARNs.")
        queue_of_arn(source, "sourceQueueArns")
    return json.dumps({"redrivePermission": permission, "sourceQueueArns": sources})


_SETTINGS: Final[Mapping[str, Callable[[str, str], dict[str, Any]]]] = {
    VISIBILITY: _visibility,
    "DelaySeconds": _seconds("delay", 0, LONGEST_DELAY),
    _RETENTION: _seconds("ttl", _SHORTEST_RETENTION, _LONGEST_RETENTION),
    REDRIVE: _redrive,
}
"""Attributes that are settings of mq."""
_NOTED: Final[Mapping[str, Callable[[str, str], str]]] = {
    LONGEST: _noted_number(_SMALLEST_MESSAGE, LARGEST_MESSAGE),
    WAIT: _noted_number(0, LONGEST_WAIT),
    REDRIVE_ALLOW: _noted_allowance,
    _ENCRYPTION: _noted_switch,
    BY_CONTENT: _noted_switch,
    SCOPE: _noted_word("queue", PER_GROUP),
    _THROUGHPUT: _noted_word("perQueue", _PER_GROUP_ID),
}
"""Attributes that stand in the protocol's notes."""
_DEFAULTS: Final[Mapping[str, str]] = {
    LONGEST: str(LARGEST_MESSAGE),
    WAIT: "0",
    _ENCRYPTION: "false",
    BY_CONTENT: "false",
    SCOPE: "queue",
    _THROUGHPUT: "perQueue",
}


def noted(notes: Notes, name: str) -> str:
    """The value of an attribute of the protocol's own."""
    return notes.attributes.get(name) or _DEFAULTS.get(name, "")


def allows_source(notes: Notes, queue: str) -> bool:
    """Whether a dead-letter queue accepts the dead letters of a queue."""
    text = noted(notes, REDRIVE_ALLOW)
    if not text:
        return True
    policy = json.loads(text)
    if policy["redrivePermission"] != "byQueue":
        return bool(policy["redrivePermission"] == "allowAll")
    return any(queue_of_arn(arn, REDRIVE_ALLOW) == queue for arn in policy["sourceQueueArns"])


def shown_attributes(status: QueueStatus, notes: Notes, names: QueueNames, lease_seconds: float) -> dict[str, str]:
    """All attributes of a queue, as GetQueueAttributes answers them; those that it does not have are left out.

    Args:
        lease_seconds: length of a lease where the queue says none.
    """
    settings = status.settings
    has_groups = settings.groups and is_fifo(status.name)
    created = status.created_ns // 1_000_000_000
    found: dict[str, str | None] = {
        "QueueArn": names.arn(status.name),
        "ApproximateNumberOfMessages": str(status.ready),
        "ApproximateNumberOfMessagesNotVisible": str(status.leased),
        "ApproximateNumberOfMessagesDelayed": str(status.delayed),
        "CreatedTimestamp": str(created),
        "LastModifiedTimestamp": str(max(notes.modified or 0, created)),
        VISIBILITY: _whole(lease_seconds if settings.visibility is None else settings.visibility),
        "DelaySeconds": _whole(settings.delay),
        _RETENTION: None if settings.ttl is None else _whole(settings.ttl),
        REDRIVE: _shown_redrive(settings, names),
        **{name: noted(notes, name) or None for name in _NOTED if has_groups or name not in _OF_FIFO},
        FIFO: "true" if has_groups else None,
    }
    return {name: text for name, text in found.items() if text is not None}


ATTRIBUTES: Final = (
    *_SETTINGS,
    *_NOTED,
    *("QueueArn", "CreatedTimestamp", "LastModifiedTimestamp", *_WITHOUT_EFFECT, FIFO),
    *(f"ApproximateNumberOfMessages{which}" for which in ("", "NotVisible", "Delayed")),
    "All",
)
"""What may be asked for."""


def wanted_attributes(names: Collection[str]) -> Callable[[str], bool]:
    """Whether each attribute was asked for.

    Raises:
        SqsError: an attribute was asked for that there is not.
    """
    for name in names:
        if name not in ATTRIBUTES:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {shorten(name)}.")
    return lambda name: "All" in names or name in names


def _whole(seconds: float) -> str:
    return str(int(seconds))


def _shown_redrive(settings: QueueSettings, names: QueueNames) -> str | None:
    target, most = settings.dead_letter_queue, settings.max_receives
    if target is None or most is None:
        return None
    return json.dumps({"deadLetterTargetArn": names.arn(target), "maxReceiveCount": most})
