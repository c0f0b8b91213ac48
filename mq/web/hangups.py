"""Who waits for a message and hangs up: one task listens for all of them.

A task for each that waits would cost memory while nothing happens, and time when something does: the moment a message
comes, that task would have to be ended first. The kernel tells of a client that has closed its side without a byte
being read, so what such a client says of its next requests stays with it meanwhile.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import trio


class HangUps:
    """Sockets of clients that wait."""

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
        """Call it, from now on."""
        if file < 0 or self._listening.closed:
            tell()
            return
        self._tell[file] = tell
        with suppress(FileExistsError):  # it has waited before
            self._listening.register(file, select.EPOLLRDHUP)

    def end(self, file: int, tell: Callable[[], None]) -> None:
        """Do not call it any more. The kernel goes on listening until the socket is closed: to end that now would only
        keep an answer waiting."""
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
