"""Requests that wait for messages: each ends when its client hangs up, and all of them when mq stops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from mq.errors import MQError

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
        gone: Callable[[], Awaitable[object]],
        work: Callable[[], Awaitable[_T]],
        undo: Callable[[_T], Awaitable[None]] | None = None,
    ) -> _T | None:
        """What `work` gives, or None when the wait ended first. When the client hung up by then, that is undone.

        Args:
            gone: returns when the client has hung up.
            work: may wait. It is cancelled when there is no use in it.
            undo: gives back what it gave.
        """
        done: _T | None = None
        failed: MQError | None = None
        is_gone = False

        async def watch() -> None:
            nonlocal is_gone
            await gone()
            is_gone = True
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            if self._are_over:
                return None
            self._scopes.add(nursery.cancel_scope)
            nursery.start_soon(watch)
            try:
                done = await work()
            except MQError as error:
                failed = error
            finally:
                self._scopes.discard(nursery.cancel_scope)
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed
        if is_gone and done is not None and undo is not None:
            await undo(done)
            return None
        return done
