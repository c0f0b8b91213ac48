"""Long lists cut into batches that a daemon takes, and the entries of a batch that go again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from mq.client.calls import Call
from mq.client.errors import Refused
from mq.client.requests import LONGEST_BATCH, Headers, fresh_key, publish_batch
from mq.client.values import Outcome, Outgoing, Published

BATCH_BYTES: Final = 4 << 20
"""Bytes of bodies after which a batch is closed: what is sent again is sent whole. A daemon takes as many as its
longest body may have; for one that takes fewer the batch is halved."""

_ABOUT_ONE: Final = frozenset({400, 409, 413, 429, 503})


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


def outcome_alone(result: Published | Refused) -> Outcome:
    """What a batch would have said of a message that was published alone.

    Raises:
        Refused: it is not about the message: a batch would have raised it, too.
    """
    if isinstance(result, Published):
        return Outcome(status=201 if result.is_new else 200, id=result.id)
    if result.status not in _ABOUT_ONE:
        raise result
    return Outcome(status=result.status, detail=result.detail, is_unsure=result.is_unsure)


class PublishBatch:
    """A batch on its way: which of its entries are still open.

    Args:
        queue: where it goes.
        messages: its entries.
        keys: whether entries without a key get one, so that they can go again.
        trace: headers that name the trace they belong to.
    """

    def __init__(self, queue: str, messages: Iterable[Outgoing], *, keys: bool, trace: Headers = ()) -> None:
        self.queue = queue
        self.trace = trace
        self._messages = [
            replace(message, key=fresh_key()) if keys and message.key is None else message for message in messages
        ]
        self._outcomes: dict[int, Outcome] = {}
        self._open = list(range(len(self._messages)))

    @property
    def only(self) -> Outgoing | None:
        """The one message of a batch of one: it goes alone, its bytes as they are."""
        return self._messages[0] if len(self._messages) == 1 else None

    def halves(self) -> tuple[PublishBatch, PublishBatch]:
        """Two smaller batches, for a daemon that takes none of this size. The keys stay."""
        middle = len(self._messages) // 2
        left, right = self._messages[:middle], self._messages[middle:]
        make = partial(PublishBatch, self.queue, keys=False, trace=self.trace)
        return make(left), make(right)

    def call(self) -> Call[list[Outcome]]:
        """The request for the open entries."""
        return publish_batch(self.queue, [self._messages[number] for number in self._open], self.trace)

    def took(self, outcomes: list[Outcome]) -> bool:
        """Note the outcomes of the open entries. True when some were refused for now and may be sent again."""
        self._outcomes.update(zip(self._open, outcomes, strict=True))
        self._open = [number for number in self._open if self._may_go_again(number)]
        return bool(self._open)

    def outcomes(self) -> list[Outcome]:
        """The outcomes of all entries, in their order."""
        return [self._outcomes[number] for number in range(len(self._messages))]

    def _may_go_again(self, number: int) -> bool:
        status = self._outcomes[number].status
        return status == 429 or (status == 503 and self._messages[number].key is not None)
