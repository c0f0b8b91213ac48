"""The names of queues in SQS: URLs and ARNs. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from mq.errors import InvalidName
from mq.message import QueueName, shorten
from mq.sqs.errors import SqsError

ACCOUNT: Final = "000000000000"
"""The account that every queue is said to belong to: mq has users, and no accounts."""
REGION: Final = "us-east-1"
"""The region of clients that name none."""

_PATH: Final = re.compile(r"/(?:[0-9]{12}|queue)/([^/?#]+)/?")
_BELOW: Final = re.compile(r"/[^/]+/[^/]+/?$")
_URL: Final = re.compile(r"[a-z]{1,10}://[^/?#]*(/[^?#]*)")
_ARN: Final = re.compile(r"arn:[a-z-]{1,20}:sqs:[a-z0-9-]{0,40}:[0-9]{0,12}:(.+)", re.DOTALL)
_AUTHORITY: Final = re.compile(r"[A-Za-z0-9._~\[\]:-]{1,255}")
_NEW_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?")
_FIFO: Final = ".fifo"
_LONGEST_RECALLED: Final = 256
"""Characters of the longest URL whose queue is remembered."""


class QueueNames:
    """The names of queues as one client sees them.

    Args:
        base: scheme and authority by which it calls the daemon: ``http://127.0.0.1:8080``.
    """

    __slots__ = ("_base", "_region")

    def __init__(self, base: str, region: str = REGION) -> None:
        self._base = base
        self._region = region

    def url(self, queue: str) -> str:
        """The URL of a queue."""
        return f"{self._base}/{ACCOUNT}/{queue}"

    def arn(self, queue: str) -> str:
        """The ARN of a queue."""
        return f"arn:aws:sqs:{self._region}:{ACCOUNT}:{queue}"


@lru_cache(maxsize=64)
def base_of(scheme: str, host: str) -> str:
    """The beginning of a queue's URL, by the scheme and the Host by which a client calls the daemon."""
    return f"{scheme}://{host if _AUTHORITY.fullmatch(host) else 'localhost'}"


def queue_of_url(url: str) -> QueueName:
    """The queue of a URL. Its host, which depends on the way to the daemon, does not count. A plain name is taken, too.

    Raises:
        SqsError: it is not the URL of a queue.
    """
    return _recall(url) if len(url) <= _LONGEST_RECALLED else _queue_of_url(url)


def _queue_of_url(url: str) -> QueueName:
    matched = _URL.fullmatch(url)
    if matched is None:
        return known_name(url)
    path = _BELOW.search(matched[1])  # a proxy may have put the daemon under a path
    queue = None if path is None else queue_of_path(path[0])
    if queue is None:
        raise SqsError("InvalidAddress", f"invalid queue URL: {shorten(url)}. Use the URL returned by GetQueueUrl")
    return known_name(queue)


_recall: Final = lru_cache(maxsize=512)(_queue_of_url)


def queue_of_path(path: str) -> str | None:
    """The queue's name in the path of its URL; None where it is no such path."""
    matched = _PATH.fullmatch(path)
    return None if matched is None else unquote(matched[1])


def queue_of_arn(arn: str, what: str) -> QueueName:
    """The queue of an ARN, of any region and account.

    Raises:
        SqsError: it is not an ARN of SQS.
    """
    matched = _ARN.fullmatch(arn)
    if matched is None:
        raise SqsError(
            "InvalidParameterValue", f"{what} must be a queue's ARN, such as {QueueNames('').arn('my-queue')}"
        )
    return known_name(matched[1])


def known_name(name: str) -> QueueName:
    """A queue name that is well formed.

    Raises:
        SqsError: no queue can have that name.
    """
    try:
        return QueueName(name)
    except InvalidName:
        raise SqsError("QueueDoesNotExist", f"invalid queue name: {shorten(name)}") from None


def new_name(name: str) -> QueueName:
    """A queue name that CreateQueue takes.

    Raises:
        SqsError: AWS or mq takes no such name.
    """
    if _NEW_NAME.fullmatch(name) is None:
        raise SqsError(
            "InvalidParameterValue",
            "A queue name can only include alphanumeric characters, hyphens, or underscores, and must be 1 to 80 "
            "characters long",
        )
    try:
        return QueueName(name)
    except InvalidName as error:  # it begins with a hyphen
        raise SqsError("InvalidParameterValue", str(error)) from None


def is_fifo(name: str) -> bool:
    """Whether that is the name of a FIFO queue."""
    return name.endswith(_FIFO)
