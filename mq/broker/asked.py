"""What a broker is asked for and has not done yet: while there is any, it does not end."""

from __future__ import annotations

from typing import Final

from trio_util import AsyncBool

from mq.broker.commit import Committer
from mq.errors import BrokerClosed, StorageFailed

CLOSING: Final = "the broker is closing; connect to another one, or try again when it is back"


class Asked:
    """``with asked:`` around whatever somebody asked for.

    Args:
        committer: knows whether the medium has failed.

    Attributes:
        is_closed: whether nothing more is accepted.

    Raises:
        BrokerClosed: on entering, when nothing more is accepted.
        StorageFailed: on entering, when the medium has failed.
    """

    def __init__(self, committer: Committer) -> None:
        self.is_closed = False
        self._committer = committer
        self._running = 0
        self._finished = AsyncBool()

    def check(self) -> None:
        """Whether anything may be asked for now.

        Raises:
            As entering.
        """
        if self.is_closed:
            raise BrokerClosed(CLOSING)
        if self._committer.failure:
            raise StorageFailed(
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
        """Accept nothing more."""
        self.is_closed = True
        if not self._running:
            self._finished.value = True

    async def finished(self) -> None:
        """Until all that was asked for is done."""
        await self._finished.wait_value(True)
