"""Long lists cut into batches that a daemon takes, and the entries of a batch that go again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from mq.client.calls import Call
from mq.client.requests import LONGEST_BATCH, fresh_key, publish_batch
from mq.client.values import Outcome, Outgoing

BATCH_BYTES: Final = 4 << 20
"""Bytes of bodies after which a batch is closed. A daemon takes as many as the longest body may have, 64 MiB where
nothing else is set; and what is sent again is sent whole."""


def cut(
    messages: Iterable[Outgoing], *, longest: int = LONGEST_BATCH, most_bytes: int = BATCH_BYTES
) -> Iterator[list[Outgoing]]:
    """The messages in batches of at most `longest` and, but for a single longer one, at most `most_bytes`."""
    batch: list[Outgoing] = []
    size = 0
    for message in messages:
        length = len(message.body)
        if batch and (len(batch) >= longest or size + length > most_bytes):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch


class Publishing:
    """A batch on its way: which of its entries are still open.

    Args:
        queue: where it goes.
        messages: its entries.
        keys: whether entries without a key get one, so that they can go again.
    """

    def __init__(self, queue: str, messages: Iterable[Outgoing], *, keys: bool) -> None:
        self._queue = queue
        self._messages = [
            replace(message, key=fresh_key()) if keys and message.key is None else message for message in messages
        ]
        self._outcomes: dict[int, Outcome] = {}
        self._open = list(range(len(self._messages)))

    def call(self) -> Call[list[Outcome]]:
        """The request for the open entries."""
        return publish_batch(self._queue, [self._messages[number] for number in self._open])

    def took(self, outcomes: list[Outcome]) -> bool:
        """Note what became of the open entries. True when some were refused for now and may go again."""
        self._outcomes.update(zip(self._open, outcomes, strict=True))
        self._open = [number for number in self._open if self._may_go_again(number)]
        return bool(self._open)

    def outcomes(self) -> list[Outcome]:
        """What became of every entry, in their order."""
        return [self._outcomes[number] for number in range(len(self._messages))]

    def _may_go_again(self, number: int) -> bool:
        status = self._outcomes[number].status
        return status == 429 or (status == 503 and self._messages[number].key is not None)
