"""A lease that is extended by a task for as long as a block runs, for the client for asyncio and Trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import anyio

from mq.client.errors import ClientError, Interrupted, LeaseLost
from mq.client.renewal import Renewal
from mq.client.values import Head


class AsyncLease:
    """Extends a message's lease for the length of an ``async with`` block. Cancels :meth:`guard` when it is lost.

    Args:
        message: as it was fetched.
        renew: takes the message, the seconds by which to extend its lease, and the seconds that this may take.
        max_handling: seconds after which the lease is renewed no more.

    Attributes:
        lost: set when the lease is lost, or `max_handling` is over.
    """

    def __init__(
        self, message: Head, renew: Callable[[Head, float, float], Awaitable[None]], max_handling: float
    ) -> None:
        self.lost = anyio.Event()
        self._message = message
        self._renew = renew
        self._renewal = Renewal(message, anyio.current_time(), max_handling)
        self._scope = anyio.CancelScope()
        self._error: LeaseLost | None = None
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # the block's error leaves as it came, not wrapped in a group

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Cancel the block when the lease is lost.

        Raises:
            LeaseLost: that was so.
        """
        with self._scope:
            yield
        if self._scope.cancelled_caught:
            self.check()

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost."""
        if self._error is not None:
            raise self._error

    async def _keep(self) -> None:
        while True:
            await anyio.sleep_until(self._renewal.next)
            error = self._renewal.overrun(anyio.current_time()) or await self._extend()
            if error is not None:
                self._error = error
                self.lost.set()
                self._scope.cancel()
                return

    async def _extend(self) -> LeaseLost | None:
        sent = anyio.current_time()
        limit = self._renewal.limit(sent)
        try:
            with anyio.move_on_after(limit):
                await self._renew(self._message, self._renewal.seconds, limit)
                self._renewal.extended(sent)
                return None
            raise Interrupted(f"no answer came in {limit:g} seconds")
        except ClientError as error:
            return self._renewal.failed(error, anyio.current_time())
