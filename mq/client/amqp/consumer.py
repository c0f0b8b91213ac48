"""The messages of a queue, one after the other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import trio

from mq.client.amqp.consuming import Consuming
from mq.client.amqp.link import CLOSE_SECONDS
from mq.client.amqp.values import Delivery
from mq.client.errors import ClientError


class Consumer:
    """Made by :meth:`mq.client.amqp.AmqpClient.consume`. It begins with its context, or with the first message that is
    asked for. Tasks may share it.

    Raises, where it begins and while it is iterated over:
        NotFound: no such queue.
        NotAllowed: somebody else consumes it; with `exclusive`, at all, else exclusively.
        ConsumeEnded: the server ended it, because the queue was deleted or fails over.
    """

    def __init__(self, begin: Callable[[], Awaitable[Consuming]], stop: Callable[[Consuming], Awaitable[None]]) -> None:
        self._begin = begin
        self._stop = stop
        self._channel: Consuming | None = None
        self._lock = trio.Lock()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        await self._begun()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        try:
            channel = await self._begun()
            return channel.hand_out(await channel.next())
        except ClientError:
            if self._is_closed:
                raise StopAsyncIteration from None
            raise

    async def aclose(self) -> None:
        """End it. What was sent ahead goes back; what was handed out can still be acknowledged."""
        self._is_closed = True
        with trio.move_on_after(CLOSE_SECONDS, shield=True):
            async with self._lock:
                channel, self._channel = self._channel, None
                if channel is not None:
                    await self._stop(channel)

    async def _begun(self) -> Consuming:
        async with self._lock:
            if self._is_closed:
                raise StopAsyncIteration
            if self._channel is None:
                self._channel = await self._begin()
            return self._channel
