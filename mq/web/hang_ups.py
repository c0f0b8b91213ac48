"""Requests that wait for messages: each ends when its client hangs up, and all of them when mq stops.

One task listens for the hang-ups of all. A task for each waiting request would cost memory while nothing happens, and
time when a message comes: that task would have to be ended first. The kernel reports a closed sending side without a
byte being read, so the client's next requests stay in the socket meanwhile.
"""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

import trio

from mq.errors import MQError
from mq.web.exchange import OnHangUp

_T = TypeVar("_T")


class WaitingRequests:
    """The requests that wait for messages now."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self._are_over = False

    def end(self) -> None:
        """End every wait, now and later: each request gets the reply for no message."""
        self._are_over = True
        for scope in self._scopes:
            scope.cancel()

    async def unless_gone(
        self,
        on_hang_up: OnHangUp,
        work: Callable[[], Awaitable[_T]],
        undo: Callable[[_T], Awaitable[None]] | None = None,
    ) -> _T | None:
        """The result of `work`, or None when the wait ended first. When the client hung up by then, it is undone.

        Args:
            on_hang_up: that of the request.
            work: may wait. It is cancelled when its result would be useless.
            undo: undoes a result.
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


class HangUps:
    """The sockets of clients that wait, in one epoll."""

    def __init__(self) -> None:
        self._listening = select.epoll()
        self._tell: dict[int, Callable[[], None]] = {}

    async def run(self) -> None:
        """Listen, until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._listening.fileno())
                for file, _ in self._listening.poll(0):
                    self._listening.unregister(file)  # once is enough
                    tell = self._tell.pop(file, None)
                    if tell is not None:
                        tell()
        finally:
            self._listening.close()

    def watch(self, socket: trio.socket.SocketType, tell: Callable[[], None]) -> _Watching:
        """In this context, `tell` is called when the other end of the connection, or its sending side, is closed."""
        return _Watching(self, socket.fileno(), tell)

    def begin(self, file: int, tell: Callable[[], None]) -> None:
        """Call `tell` at a hang-up from now on."""
        if file < 0 or self._listening.closed:
            tell()
            return
        self._tell[file] = tell
        with suppress(FileExistsError):  # it has waited before
            self._listening.register(file, select.EPOLLRDHUP)

    def end(self, file: int, tell: Callable[[], None]) -> None:
        """Do not call `tell` any more."""
        # The kernel goes on listening until the socket is closed: to end that now would only delay the answer.
        if self._tell.get(file) is tell:
            del self._tell[file]


class _Watching:
    def __init__(self, hang_ups: HangUps, file: int, tell: Callable[[], None]) -> None:
        self._hang_ups = hang_ups
        self._file = file
        self._tell = tell

    async def __aenter__(self) -> None:
        self._hang_ups.begin(self._file, self._tell)

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._hang_ups.end(self._file, self._tell)
