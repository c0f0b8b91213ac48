"""What the daemon tells the service manager that has started it, where there is one: sd_notify(3), without a library.

It says that it is ready, that it stops, and, as often as it was asked to, that its event loop still turns: a manager
with a watchdog starts one that hangs anew, and starting is recovery.
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
"""So often within the watchdog's time a sign of life is given: two may be late."""


@asynccontextmanager
async def supervised(environment: Mapping[str, str]) -> AsyncIterator[Callable[[str], None]]:
    """Give signs of life inside the block, until its very end: a store that takes long to open or to close is no hang.

    Args:
        environment: what the manager has set: NOTIFY_SOCKET, WATCHDOG_USEC (microseconds), WATCHDOG_PID.

    Yields:
        What takes a message for the manager, such as :data:`READY`. Without a manager it does nothing.
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
    """Warns where the manager does not listen: clients are served all the same."""
    name = "\0" + address[1:] if address.startswith("@") else address  # an abstract name
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), name)
    except OSError as error:
        logger.warning("the service manager at %s was not told %s: %s", address, message, error.strerror)
