"""A lease that is extended by a thread for as long as a block runs, for the client for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from mq.client.errors import ClientError, LeaseLost
from mq.client.renewal import Renewal
from mq.client.values import Head


class Lease:
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
        self._error: LeaseLost | None = None
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

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Nothing: the block looks at `lost` by itself."""
        yield

    def check(self) -> None:
        """Raise LeaseLost if the lease is lost."""
        if self._error is not None:
            raise self._error

    def _keep(self) -> None:
        while not self._ended.wait(min(max(0.0, self._renewal.next - time.monotonic()), threading.TIMEOUT_MAX)):
            error = self._renewal.overrun(time.monotonic()) or self._extend()
            if error is not None:
                self._error = error
                self.lost.set()
                return

    def _extend(self) -> LeaseLost | None:
        sent = time.monotonic()
        try:
            self._renew(self._message, self._renewal.seconds, self._renewal.limit(sent))
        except ClientError as error:
            return self._renewal.failed(error, time.monotonic())
        self._renewal.extended(sent)
        return None
