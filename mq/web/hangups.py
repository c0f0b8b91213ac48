"""Who waits for a message and hangs up: one task listens for all of them.

A task for each that waits would cost memory while nothing happens, and time when something does: the moment a message
comes, that task would have to be ended first. The kernel tells of a client that has closed its side without a byte
being read, so what such a client says of its next requests stays with it meanwhile.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

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
                    self._tell[file]()
                    self._forget(file)  # once is enough
        finally:
            self._listening.close()

    @asynccontextmanager
    async def watch(self, socket: trio.socket.SocketType, tell: Callable[[], None]) -> AsyncIterator[None]:
        """In here, call `tell` when the other end of the connection, or its sending side, is closed."""
        file = socket.fileno()
        if file < 0 or self._listening.closed:
            tell()
            yield
            return
        self._tell[file] = tell
        self._listening.register(file, select.EPOLLRDHUP)
        try:
            yield
        finally:
            if self._tell.get(file) is tell:
                self._forget(file)

    def _forget(self, file: int) -> None:
        del self._tell[file]
        if not self._listening.closed:
            with suppress(OSError):  # the socket was closed here, and with that forgotten
                self._listening.unregister(file)
