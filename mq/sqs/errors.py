"""SQS's errors: each with its name, its status, and its code in the older query protocol."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from mq.errors import (
    BodyIncomplete,
    BodyTooLarge,
    CallerError,
    CorruptMessage,
    InvalidId,
    InvalidName,
    MQError,
    NoSuchMessage,
    NoSuchQueue,
    OverLimit,
    QueueFull,
    QueueHeld,
    ReceiptMismatch,
)
from mq.web.exchange import BodyTooSlow

_OLD_PREFIX: Final = "AWS.SimpleQueueService."


class ErrorKind(NamedTuple):
    """One kind of error.

    Attributes:
        query_code: what it is called in the query protocol, and in the header ``x-amzn-query-error``.
    """

    query_code: str
    status: int = 400


KINDS: Final[dict[str, ErrorKind]] = {
    "QueueDoesNotExist": ErrorKind(f"{_OLD_PREFIX}NonExistentQueue"),
    "QueueNameExists": ErrorKind("QueueAlreadyExists"),
    "EmptyBatchRequest": ErrorKind(f"{_OLD_PREFIX}EmptyBatchRequest"),
    "TooManyEntriesInBatchRequest": ErrorKind(f"{_OLD_PREFIX}TooManyEntriesInBatchRequest"),
    "BatchEntryIdsNotDistinct": ErrorKind(f"{_OLD_PREFIX}BatchEntryIdsNotDistinct"),
    "BatchRequestTooLong": ErrorKind(f"{_OLD_PREFIX}BatchRequestTooLong"),
    "InvalidBatchEntryId": ErrorKind(f"{_OLD_PREFIX}InvalidBatchEntryId"),
    "MessageNotInflight": ErrorKind(f"{_OLD_PREFIX}MessageNotInflight"),
    "UnsupportedOperation": ErrorKind(f"{_OLD_PREFIX}UnsupportedOperation"),
    "ResourceNotFoundException": ErrorKind("ResourceNotFoundException", 404),
    "RequestThrottled": ErrorKind("RequestThrottled", 403),
    "OverLimit": ErrorKind("OverLimit", 403),
    "AccessDeniedException": ErrorKind("AccessDenied", 403),
    "InvalidClientTokenId": ErrorKind("InvalidClientTokenId", 403),
    "MissingAuthenticationToken": ErrorKind("MissingAuthenticationToken", 403),
    "SignatureDoesNotMatch": ErrorKind("SignatureDoesNotMatch", 403),
    "IncompleteSignature": ErrorKind("IncompleteSignature"),
    "UnknownOperationException": ErrorKind("InvalidAction"),
    "RequestTimeout": ErrorKind("RequestTimeout", 408),
    "InternalFailure": ErrorKind("InternalFailure", 500),
    "ServiceUnavailable": ErrorKind("ServiceUnavailable", 503),
}
"""The errors with another status than 400, or another code than their own name."""


class SqsError(CallerError):
    """A refusal, in the words of SQS."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text)
        self.name = name
        self.text = text

    def __str__(self) -> str:
        return self.text

    @property
    def kind(self) -> ErrorKind:
        """The status of its answer, and its code in the query protocol."""
        return KINDS.get(self.name, ErrorKind(self.name))

    @property
    def is_sender_fault(self) -> bool:
        """Whether the request is at fault, so that it would fail again unchanged."""
        return self.kind.status < 500


_NAMES: Final[tuple[tuple[type[MQError], str], ...]] = (
    (NoSuchQueue, "QueueDoesNotExist"),
    (InvalidName, "QueueDoesNotExist"),  # no queue can be called that, so there is none
    (ReceiptMismatch, "MessageNotInflight"),
    (NoSuchMessage, "MessageNotInflight"),
    (InvalidId, "ReceiptHandleIsInvalid"),
    (BodyTooLarge, "InvalidParameterValue"),
    (QueueFull, "RequestThrottled"),  # the SDKs try that again, slower and slower
    (QueueHeld, "RequestThrottled"),
    (OverLimit, "RequestThrottled"),
    (BodyIncomplete, "MalformedInput"),
    (BodyTooSlow, "RequestTimeout"),
    (CallerError, "InvalidParameterValue"),
    (CorruptMessage, "InternalFailure"),
    (MQError, "ServiceUnavailable"),
)
"""Error of mq -> the name of what SQS would say; the first line that fits counts."""

_DEAF: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def sqs_error(error: MQError) -> SqsError:
    """The SQS error for an error of mq."""
    if isinstance(error, SqsError):
        return error
    name = next(name for kind, name in _NAMES if isinstance(error, kind))
    return SqsError(name, _DEAF.sub("?", " ".join(str(error).split())))
