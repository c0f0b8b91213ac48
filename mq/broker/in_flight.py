"""In-flight requests: the broker has accepted them and not finished them, and ends only after the last."""

from __future__ import annotations

from typing import Final

from trio_util import AsyncBool

from mq.broker.commit import Committer
from mq.errors import BrokerClosed, StorageStopped

CLOSING: Final = "the broker is closing; connect to another one, or try again when it is back"


class InFlight:
    """Counts in-flight requests: each runs in a ``with in_flight:``.

    Args:
        committer: knows whether the medium has failed.

    Attributes:
        is_closed: whether the broker accepts no more requests.

    Raises:
        BrokerClosed: on entering, when the broker accepts no more requests.
        StorageStopped: on entering, when the medium has failed.
    """

    def __init__(self, committer: Committer) -> None:
        self.is_closed = False
        self._committer = committer
        self._running = 0
        self._finished = AsyncBool()

    def check(self) -> None:
        """Check that the broker accepts requests now.

        Raises:
            As entering.
        """
        if self.is_closed:
            raise BrokerClosed(CLOSING)
        if self._committer.failure:
            raise StorageStopped(
                f"the store has failed ({self._committer.failure}); repair the disk, remount it, and start mq again"
            )

    def __enter__(self) -> None:
        self.check()
        self._running += 1

    def __exit__(self, *_: object) -> None:
        self._running -= 1
        if self.is_closed and not self._running:
            self._finished.value = True

    def close(self) -> None:
        """Accept no more requests."""
        self.is_closed = True
        if not self._running:
            self._finished.value = True

    async def finished(self) -> None:
        """Wait until the last request is done; call :meth:`close` before."""
        await self._finished.wait_value(True)
