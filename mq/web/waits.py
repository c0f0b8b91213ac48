"""Requests that wait for messages: each ends when its client hangs up, and all of them when mq stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from mq.errors import MQError
from mq.web.exchange import OnHangUp

_T = TypeVar("_T")


class Waits:
    """Those that are under way."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._are_over = False

    def end(self) -> None:
        """Nobody waits any longer: each gets what there is when nothing came."""
        self._are_over = True
        for scope in self._scopes:
            scope.cancel()

    async def unless_gone(
        self,
        on_hang_up: OnHangUp,
        work: Callable[[], Awaitable[_T]],
        undo: Callable[[_T], Awaitable[None]] | None = None,
    ) -> _T | None:
        """What `work` gives, or None when the wait ended first. When the client hung up by then, that is undone.

        Args:
            on_hang_up: that of the request.
            work: may wait. It is cancelled when there is no use in it.
            undo: gives back what it gave.
        """
        done: _T | None = None
        failed: MQError | None = None
        is_gone = False

        def hang_up() -> None:
            nonlocal is_gone
            is_gone = True
            scope.cancel()

        with trio.CancelScope() as scope:
            if self._are_over:
                return None
            self._scopes.add(scope)
            try:
                async with on_hang_up(hang_up):
                    try:
                        done = await work()
                    except MQError as error:
                        failed = error
            finally:
                self._scopes.discard(scope)
        if failed is not None:
            raise failed
        if is_gone and done is not None and undo is not None:
            await undo(done)
            return None
        return done
