"""The lease of a message at hand, extended for as long as a block handles it.

:class:`Renewal` says when, without I/O. :class:`Lease` does it by a thread, :class:`AsyncLease` by a task.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final, Self

import anyio

from mq.client.errors import ClientError, Interrupted, LeaseLost, Refused
from mq.client.values import Head

MAX_HANDLING_SECONDS: Final = 43_200.0
"""For how long a message is renewed unless the caller says otherwise: as long as the longest lease. A block that hangs
holds its message no longer."""

_PARTS_OF_A_LEASE: Final = 3
"""A lease is extended so often that two tries may fail."""
_SHORTEST_SECONDS: Final = 1.0
"""A shorter lease is extended by this: each extension is a write."""
_UNKNOWN_SECONDS: Final = 30.0
"""Stands in for a lease that the daemon did not tell; such a lease is extended at once."""
_LONGEST_PAUSE_SECONDS: Final = 1.0
_GRACE_SECONDS: Final = 2.0
"""For how long after its lease a message counts as ours while no daemon answers: a daemon that restarts prolongs leases
by as much, and hands out nothing until then."""
_PAUSES: Final = 20
"""How often a daemon that is away is asked within one lease."""
_LOST: Final = frozenset({404, 409, 412})
"""Refusals after which the message is not ours any more."""


class Renewal:
    """The lease of one message, from the instant at which its handling begins. Seconds are those of the client's clock.

    Args:
        message: as it was fetched. One without a receipt has no lease, and is only bounded.
        now: the instant.
        max_handling: seconds after which the lease is renewed no more.

    Attributes:
        seconds: what each extension asks for.
        is_failing: whether the last extension failed.
    """

    def __init__(self, message: Head, now: float, max_handling: float) -> None:
        self.seconds = max(message.lease or _UNKNOWN_SECONDS, _SHORTEST_SECONDS)
        self.is_failing = False
        self._id = message.id
        self._max_handling = max_handling
        self._stops = now + max_handling
        if not message.receipt:
            self._due = self._ends = math.inf
        elif 0 <= now - message.fetched <= message.lease:
            self._due = message.fetched + message.lease / _PARTS_OF_A_LEASE
            self._ends = message.fetched + message.lease + _GRACE_SECONDS
        else:  # it is not known how much of the lease is left; the daemon knows
            self._due, self._ends = now, now + self.seconds + _GRACE_SECONDS

    @property
    def next(self) -> float:
        """The time of the next step: a call of :meth:`overrun`, then an extension."""
        return min(self._due, self._stops)

    def remaining(self, now: float) -> float:
        """For how many seconds no other consumer can have the message, whatever becomes of the daemon."""
        return self._ends - _GRACE_SECONDS - now

    def limit(self, now: float) -> float:
        """How many seconds an extension that is begun now may take: others have to fit into the lease, too."""
        return min(self.seconds / _PARTS_OF_A_LEASE, max(self._ends - now, self.seconds / _PAUSES))

    def overrun(self, now: float) -> LeaseLost | None:
        """The error that ends the renewal; None while the message may be handled."""
        if now < self._stops:
            return None
        return LeaseLost(
            412, f"handling message {self._id} took longer than max_handling={self._max_handling:g} seconds"
        )

    def extended(self, sent: float) -> None:
        """Note that the extension sent at this instant succeeded."""
        self.is_failing = False
        self._due, self._ends = sent + self.seconds / _PARTS_OF_A_LEASE, sent + self.seconds + _GRACE_SECONDS

    def failed(self, error: ClientError, now: float) -> LeaseLost | None:
        """Note that an extension failed. The loss of the lease; None when there is time for another try."""
        self.is_failing = True
        if isinstance(error, LeaseLost):
            return error
        if isinstance(error, Refused) and error.status in _LOST:
            return LeaseLost(error.status, error.detail)
        if now >= self._ends:
            return LeaseLost(412, f"the lease of message {self._id} expired before it could be extended: {error}")
        self._due = now + min(_LONGEST_PAUSE_SECONDS, self.seconds / _PAUSES)
        return None


class _Loss:
    """The end of a message's lease, once it has come."""

    _error: LeaseLost | None = None

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost."""
        if self._error is not None:
            raise self._error


class Lease(_Loss):
    """Extends a message's lease for the length of a ``with`` block. A thread cannot be cancelled: look at `lost`.

    Args:
        message: as it was fetched.
        renew: takes the message, the seconds by which to extend its lease, and the seconds that this may take.
        max_handling: seconds after which the lease is renewed no more.

    Attributes:
        lost: set when the lease is lost, or `max_handling` is over.
    """

    def __init__(self, message: Head, renew: Callable[[Head, float, float], None], max_handling: float) -> None:
        self.lost = threading.Event()
        self._message = message
        self._renew = renew
        self._renewal = Renewal(message, time.monotonic(), max_handling)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease of {message.id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def seconds(self) -> float:
        """The length of the lease after each extension."""
        return self._renewal.seconds

    @property
    def is_failing(self) -> bool:
        """Whether the last try to extend it failed."""
        return self._renewal.is_failing

    def remaining(self) -> float:
        """For how many seconds no other consumer can have the message, unless the lease is taken away."""
        return self._renewal.remaining(time.monotonic())

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Nothing: the block looks at `lost` by itself."""
        yield

    def _keep(self) -> None:
        try:
            while not self._ended.wait(min(max(0.0, self._renewal.next - time.monotonic()), threading.TIMEOUT_MAX)):
                error = self._renewal.overrun(time.monotonic()) or self._extend()
                if error is not None:
                    self._error = error
                    self.lost.set()
                    return
        except BaseException:
            self.lost.set()  # a lease that nothing renews is lost
            raise

    def _extend(self) -> LeaseLost | None:
        sent = time.monotonic()
        try:
            self._renew(self._message, self._renewal.seconds, self._renewal.limit(sent))
        except ClientError as error:
            return self._renewal.failed(error, time.monotonic())
        self._renewal.extended(sent)
        return None


class AsyncLease(_Loss):
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
            LeaseLost: the lease was lost, and the block cancelled.
        """
        with self._scope:
            yield
        if self._scope.cancelled_caught:
            self.check()

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
            raise Interrupted(f"the daemon did not respond within {limit:g} seconds")
        except ClientError as error:
            return self._renewal.failed(error, anyio.current_time())
