"""Messages of the daemon to the service manager that has started it, if any: sd_notify(3), without a library.

They tell its readiness, its stop and, as often as the manager wants, that its event loop still turns. A manager with a
watchdog starts a daemon that hangs anew, and starting is recovery.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

logger = logging.getLogger(__name__)

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
_PARTS: Final = 3
"""Signs of life in the watchdog's time: two may be late."""


@asynccontextmanager
async def supervised(environment: Mapping[str, str]) -> AsyncIterator[Callable[[str], None]]:
    """Give signs of life until the end of the block, also while a store takes long to open or to close.

    Args:
        environment: what the manager has set: NOTIFY_SOCKET, WATCHDOG_USEC (microseconds), WATCHDOG_PID.

    Yields:
        A function that sends a message, such as :data:`READY`. Without a manager it does nothing.
    """
    address = environment.get("NOTIFY_SOCKET", "")

    def tell(message: str) -> None:
        if address:
            _send(address, message)

    async with trio.open_nursery() as nursery:
        interval = _interval(environment)
        if address and interval:
            nursery.start_soon(_live, tell, interval)
        yield tell
        nursery.cancel_scope.cancel()


def _interval(environment: Mapping[str, str]) -> float:
    """Seconds between two signs of life; 0 where the manager wants none of this process."""
    wanted = environment.get("WATCHDOG_USEC", "")
    if not wanted.isdecimal() or environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    return int(wanted) / 1e6 / _PARTS


async def _live(tell: Callable[[str], None], interval: float) -> None:
    while True:
        tell(ALIVE)
        await trio.sleep(interval)


def _send(address: str, message: str) -> None:
    """Send a message. Only warns where the manager does not listen: clients are served all the same."""
    name = "\0" + address[1:] if address.startswith("@") else address  # an abstract name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), name)
    except OSError as error:
        logger.warning("the service manager at %s was not told %s: %s", address, message, error.strerror)
