"""Errors of the data source. Each text names the option or the row to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mq.client.errors import BadRequest, ClientError, Conflict, NotAllowed, NotFound, Unreachable
from mq.errors import MQError


class SparkSourceError(MQError):
    """A query over queues cannot go on; the text names the option or the row that is why."""


class InvalidOption(SparkSourceError):
    """An option is unknown, missing, or not what it may be."""


class InvalidSchema(SparkSourceError):
    """A column is missing, unknown, or of another type."""


class InvalidRow(SparkSourceError):
    """A row cannot be a message."""


class ClaimLost(SparkSourceError):
    """Messages of a batch that Spark has planned are gone, or were handed to other consumers."""


class QueueGone(SparkSourceError):
    """A queue was deleted, or deleted and made again, while a query used it."""


_ABOUT: Final[tuple[tuple[type[ClientError], str], ...]] = (
    (Unreachable, 'option "url"'),
    (NotAllowed, 'options "token", "user" and "password"'),
    (NotFound, 'option "queue"'),
    (BadRequest, "options"),
)


@contextmanager
def naming_options(url: str, queue: str, conflict: str) -> Iterator[None]:
    """A context that turns errors of the client into those of the source, with the option that each is about."""
    try:
        yield
    except ClientError as error:
        about = f'option "{conflict}"' if isinstance(error, Conflict) else "mq"
        about = next((text for kind, text in _ABOUT if isinstance(error, kind)), about)
        raise SparkSourceError(f"{about}: {error} (queue {queue} at {url})") from error
