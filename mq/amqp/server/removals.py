"""Acknowledged messages of one connection that are being removed while it reads on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from mq.amqp.server.client_connection import ClientConnection
from mq.amqp.server.refusals import refusal_of
from mq.broker import UnackedMessage
from mq.errors import MQError

logger = logging.getLogger("mq.amqp")

MOST_ACKNOWLEDGING: Final = 2000
"""Messages of one connection that may be removed while it reads on. All of them come again after kill -9."""
LEAST_ACKNOWLEDGING: Final = 128
"""The same, where the store takes :data:`LONGEST_REMOVAL_SECONDS` for so few."""
LONGEST_REMOVAL_SECONDS: Final = 0.1
"""How long a removal may take until fewer are begun before more is read."""


class Removals:
    """Removes acknowledged messages.

    Attributes:
        count: messages that are being removed.
        most: if there are more, the connection waits before it reads on.
        is_awaited: whether the connection waits for them, so that nothing is read from its client.
    """

    def __init__(self, client: ClientConnection) -> None:
        self.count = 0
        self.is_awaited = False
        self._client = client
        self._state = client.state
        self.most = LEAST_ACKNOWLEDGING
        self._fewer = trio.lowlevel.ParkingLot()  # tasks that wait until there are fewer

    def begin(self, held: Sequence[UnackedMessage]) -> None:
        """Begin to remove messages."""
        self.count += len(held)
        removed = partial(self._client.complete, self._removed, len(held), self._client.now())
        try:
            if not self._state.broker.acknowledge_now(held, removed):
                self._client.start(self._remove, held, removed)
        except MQError as error:
            removed(error)

    async def _remove(self, held: Sequence[UnackedMessage], removed: Callable[[Exception | None], None]) -> None:
        error: MQError | None = None
        try:
            with self._state.broker.progress.shielded():
                await self._state.broker.acknowledge(held)
        except MQError as caught:
            error = caught
        finally:
            removed(error)

    def _removed(self, count: int, began: float, error: Exception | None) -> None:
        """Note that messages are removed, or READY again."""
        self.count -= count
        if self.is_awaited:
            self._fewer.unpark_all()
        if isinstance(error, MQError):
            if self._client.connection.is_over:  # the client is told nothing any more
                self._client.log_left(error)
            self._client.fail(refusal_of(error))
        seconds = self._client.now() - began
        if seconds > LONGEST_REMOVAL_SECONDS:
            self.most = max(LEAST_ACKNOWLEDGING, self.most // 2)
        elif seconds < LONGEST_REMOVAL_SECONDS / 2:
            self.most = min(MOST_ACKNOWLEDGING, self.most * 2)

    async def wait(self, *, for_all: bool = True) -> None:
        """Wait until all messages are removed, or few enough to read on, also if the connection is cancelled meanwhile.

        Raises:
            StorageUnsure: the store does not answer.
        """
        if self.count > (0 if for_all else self.most):
            self.is_awaited = True
            try:
                with self._state.broker.progress.shielded():
                    while self.count > (0 if for_all else self.most):
                        await self._fewer.park()
            finally:
                self.is_awaited = bool(self._fewer)  # other tasks may wait, too
