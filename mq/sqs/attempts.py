"""Receives of FIFO queues that may be asked for again: what each attempt got, by the id that its client gave it.

A client whose answer was lost asks again with the same id, and gets the same messages: nobody else gets others of their
groups meanwhile, so it would wait for the end of its own leases. Kept in memory, for as long as SQS does.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import trio

from mq.sqs.attributes import DEDUPLICATION_SECONDS
from mq.sqs.messages import ReceiptHandle

MOST: Final = 10_000
"""Attempts that are kept; the oldest go first."""


class Attempts:
    """The receipt handles that the latest attempts got."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], tuple[float, Sequence[ReceiptHandle]]] = OrderedDict()

    def note(self, queue: str, id: str, handles: Sequence[ReceiptHandle]) -> None:
        """Keep the handles that an attempt got."""
        self._kept.pop((queue, id), None)
        self._kept[queue, id] = (trio.current_time() + DEDUPLICATION_SECONDS, handles)
        while len(self._kept) > MOST or next(iter(self._kept.values()))[0] <= trio.current_time():
            self._kept.popitem(last=False)

    def find(self, queue: str, id: str) -> Sequence[ReceiptHandle]:
        """The handles that an attempt of that id got; none where there was no such attempt in the last five minutes."""
        until, handles = self._kept.get((queue, id), (0.0, ()))
        return handles if until > trio.current_time() else ()
