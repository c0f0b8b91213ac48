"""What a data source raises: always with the option or the row that it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mq.client.errors import BadRequest, ClientError, Conflict, NotAllowed, NotFound, Unreachable
from mq.errors import MQError


class SparkSourceError(MQError):
    """Something is wrong with a query over queues; the text says with which of its options or rows."""


class InvalidOption(SparkSourceError):
    """An option is unknown, missing, or not what it may be."""


class InvalidSchema(SparkSourceError):
    """A column is missing, unknown, or of another type."""


class InvalidRow(SparkSourceError):
    """A row cannot be a message."""


class ClaimLost(SparkSourceError):
    """Messages of a batch that Spark has planned are not to be had any more."""


_ABOUT: Final[tuple[tuple[type[ClientError], str], ...]] = (
    (Unreachable, 'option "url"'),
    (NotAllowed, 'options "token", "user" and "password"'),
    (NotFound, 'option "queue"'),
    (BadRequest, "options"),
)


@contextmanager
def naming_options(url: str, queue: str, conflict: str) -> Iterator[None]:
    """Errors of the client, with the option that they are about; `conflict` is that of a conflict."""
    try:
        yield
    except ClientError as error:
        about = f'option "{conflict}"' if isinstance(error, Conflict) else "mq"
        about = next((text for kind, text in _ABOUT if isinstance(error, kind)), about)
        raise SparkSourceError(f"{about}: {error} (queue {queue} at {url})") from error
