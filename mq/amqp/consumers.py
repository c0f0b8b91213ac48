"""Who consumes from which queue: counted, told apart, and one alone where that was asked for."""

from __future__ import annotations

from collections.abc import Hashable

from mq.amqp.declared import Queue
from mq.amqp.errors import Code, Refused
from mq.message import QueueName


class Consumers:
    """The consumers of all queues."""

    def __init__(self) -> None:
        self._by_queue: dict[QueueName, dict[Hashable, bool]] = {}

    def add(self, queue: Queue, consumer: Hashable, *, exclusive: bool = False) -> None:
        """One more consumer of a queue.

        Args:
            queue: which.
            consumer: told apart from every other one by this.
            exclusive: whether nobody else may consume while it does.

        Raises:
            Refused: 403, somebody has the queue to themselves, or the queue has consumers and this one wants that.
        """
        there = self._by_queue.get(queue.key, {})
        if any(there.values()) or (exclusive and there):
            raise Refused(Code.ACCESS_REFUSED, f"queue '{queue.name}' in vhost '{queue.vhost}' in exclusive use")
        self._by_queue.setdefault(queue.key, {})[consumer] = exclusive

    def remove(self, queue: QueueName, consumer: Hashable) -> None:
        """One less; nothing happens when it is not there."""
        there = self._by_queue.get(queue, {})
        there.pop(consumer, None)
        if not there:
            self._by_queue.pop(queue, None)

    def of(self, queue: QueueName) -> list[Hashable]:
        """All consumers of a queue, those first that came first."""
        return list(self._by_queue.get(queue, ()))

    def count(self, queue: QueueName) -> int:
        """How many there are."""
        return len(self._by_queue.get(queue, ()))

    def is_exclusive(self, queue: QueueName) -> bool:
        """Whether somebody has the queue to themselves: nobody else may take messages from it, over no door."""
        return any(self._by_queue.get(queue, {}).values())
