"""Connections of all protocols: the peer at the other end, and the limit for one address and for all of them."""

from __future__ import annotations

import ipaddress
import logging
import re
import resource
import socket as sockets
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, NamedTuple

import trio

from mq.access.guesses import source_of

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 1024
MOST_RESERVED_HANDLES: Final = 128
"""Open files that connections leave to the store; a quarter of them where the process may have few. Without one a
publish is refused, and connections that do nothing keep theirs for as long as they like."""
QUIET_SECONDS: Final = 60.0
"""After a line in the log, until the next."""
MOST_LINES: Final = 60
"""Lines of one kind in :data:`QUIET_SECONDS`."""

_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group (unix(7), SO_PEERCRED), as they were when the client connected."""
_UID: Final = re.compile(r"uid:([0-9]{1,10})")


class Peer(NamedTuple):
    """The other end of a connection.

    Attributes:
        address: without its port; over a Unix socket ``uid:`` and the number of the connected user; empty once the peer
            is gone.
        port: of it; 0 over a Unix socket.
    """

    address: str
    port: int

    def __str__(self) -> str:
        if not self.address:
            return "(gone)"
        return f"{self.address} port {self.port}" if self.port else self.address


NOBODY = Peer("", 0)


def peer_of(socket: trio.socket.SocketType) -> Peer:
    """The other end of a connection."""
    try:
        if socket.family == sockets.AF_UNIX:
            found = socket.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
            return Peer(f"uid:{_CREDENTIALS.unpack(found)[1]}", 0)
        name = socket.getpeername()
    except OSError:
        return NOBODY
    return Peer(name[0], name[1]) if isinstance(name, tuple) else NOBODY


def uid_of(address: str) -> int | None:
    """The number of the user in the address of a Unix socket's peer; None for an address of a network."""
    matched = _UID.fullmatch(address)
    return None if matched is None else int(matched[1])


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach it. Of names only ``localhost`` counts: others may lead anywhere."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def raise_most_handles() -> None:
    """Let this process have as many open files as its hard limit allows: most systems set the soft one to 1,024, for
    programs that call ``select``, which mq does not."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Refusals:
    """Logs refusals at most once a minute: the newest one, and how many there were since the last line.

    Args:
        text: the line of one refusal, with a place for each value.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._number = 0
        self._tell_at = float("-inf")

    def add(self, *values: object) -> None:
        """Count a refusal, and log it unless one was logged within the last minute."""
        self._number += 1
        now = trio.current_time()
        if now >= self._tell_at:
            more = f" ({self._number - 1} more since the last such line)" if self._number > 1 else ""
            logger.warning("%s%s", self._text % values, more)
            self._number = 0
            self._tell_at = now + QUIET_SECONDS


class FewLines:
    """Lines of the log that clients cause as often as they like: so many a minute, then their number. One object is
    for all connections.

    Args:
        text: with a place for each value.
    """

    def __init__(self, logger: logging.Logger, level: int, text: str) -> None:
        self._logger = logger
        self._level = level
        self._text = text
        # Of one event loop, for clocks differ: lines since the minute began, and when it ends.
        self._minute: trio.lowlevel.RunVar[tuple[int, float]] = trio.lowlevel.RunVar("minute", (0, float("-inf")))

    def write(self, *values: object) -> None:
        """Write a line, or count it."""
        now = trio.current_time()
        count, end = self._minute.get()
        if now >= end:
            if count > MOST_LINES:
                self._logger.log(
                    self._level, "suppressed %d more log messages of this kind: %s", count - MOST_LINES, self._text
                )
            count, end = 0, now + QUIET_SECONDS
        if count < MOST_LINES:
            self._logger.log(self._level, self._text, *values)
        self._minute.set((count + 1, end))


class Crowd:
    """Counts the connections of each address, but for those from this machine, and keeps open files for the store.

    Args:
        most: of one address, of IPv6 of one network of 64 bits; 0 for as many as come.
        is_proxy: whether an address is that of a proxy, which has the connections of many clients.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, *, is_proxy: Callable[[str], bool] = lambda _: False) -> None:
        self._most = most
        self._is_proxy = is_proxy
        self._counts: Counter[str] = Counter()
        self._too_many = Refusals(
            "refused a connection from %s, which already has the maximum number of connections: %d "
            "(--connections-per-address)"
        )
        self._no_handles = Refusals(
            "refused a connection from %s: mq can open at most %d files (LimitNOFILE in systemd, "
            "ulimit -n), and %d of them are reserved for the store"
        )

    @contextmanager
    def room(self, address: str, handle: int) -> Iterator[bool]:
        """Whether there is room for one more connection. If so, it counts for as long as the block runs; if not,
        close it.

        Args:
            handle: its file descriptor. The kernel gives the lowest number that is free, so it tells how many are not.
        """
        most_handles, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        reserved = min(MOST_RESERVED_HANDLES, most_handles // 4)
        if most_handles != resource.RLIM_INFINITY and handle >= most_handles - reserved:
            self._no_handles.add(address, most_handles, reserved)
            yield False
            return
        if self._is_proxy(address):
            yield True
            return
        with self._counted(address) as has_room:
            yield has_room

    def request(self, address: str) -> AbstractContextManager[bool]:
        """Whether there is room for a request that came by a proxy. It counts as a connection of its client's for as
        long as the block runs.
        """
        return self._counted(address)

    @contextmanager
    def _counted(self, address: str) -> Iterator[bool]:
        source = source_of(address)
        if not self._most or not address or is_loopback(source):
            yield True
            return
        if self._counts[source] >= self._most:
            self._too_many.add(source, self._most)
            yield False
            return
        self._counts[source] += 1
        try:
            yield True
        finally:
            self._counts[source] -= 1
            if not self._counts[source]:
                del self._counts[source]
