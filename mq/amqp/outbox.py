"""Commands on their way out. What can share a barrier is put together: publishes that follow each other, and
acknowledgements that do."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from mq.amqp.commands import Command, Delivery, Message, Outcome, Publish, Settle

MOST_TOGETHER: Final = 1000
"""Messages or deliveries in one command, about."""
MOST_BYTES_TOGETHER: Final = 4 * 1024 * 1024
"""Bytes of bodies in one command, about."""


class Outbox:
    """Takes commands one by one, and gives them back together."""

    def __init__(self) -> None:
        self._closed: deque[Command] = deque()
        self._messages: list[Message] = []
        self._bytes = 0
        self._deliveries: list[Delivery] = []
        self._outcome = Outcome.ACKNOWLEDGED

    def publish(self, message: Message) -> None:
        """One more message to store."""
        if self._deliveries:
            self._close()
        self._messages.append(message)
        self._bytes += len(message.body)
        if self._bytes >= MOST_BYTES_TOGETHER or len(self._messages) >= MOST_TOGETHER:
            self._close()

    def settle(self, outcome: Outcome, deliveries: Iterable[Delivery]) -> None:
        """More deliveries that have come to an end."""
        if self._messages or outcome is not self._outcome:
            self._close()
        self._outcome = outcome
        self._deliveries += deliveries
        if len(self._deliveries) >= MOST_TOGETHER:
            self._close()

    def put(self, command: Command) -> None:
        """Any other command."""
        self._close()
        self._closed.append(command)

    @property
    def has_whole(self) -> bool:
        """Whether something is there that nothing more will be put to."""
        return bool(self._closed)

    def take(self) -> Command | None:
        """The next command."""
        if not self._closed:
            self._close()
        return self._closed.popleft() if self._closed else None

    def _close(self) -> None:
        if self._messages:
            self._closed.append(Publish(tuple(self._messages)))
        elif self._deliveries:
            self._closed.append(Settle(self._outcome, tuple(self._deliveries)))
        self._messages, self._deliveries, self._bytes = [], [], 0
