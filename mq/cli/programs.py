"""What the programs have in common: how they start, stop and say no, and what they tell a service manager."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NoReturn

import trio

from mq import threads
from mq.broker.kernel_clock import BootClock
from mq.cli.commands import CANNOT_START
from mq.cli.processes import is_init, reap
from mq.cli.terminal import say
from mq.errors import MQError

logger = logging.getLogger(__name__)

LAST_SECONDS: Final = 30.0
"""How long a program that has stopped serving may take to let go of its store."""
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"
_SIGNS: Final = 3
"""Signs of life in the watchdog's time: two may be late."""


def run_program(name: str, main: Callable[[trio.Event], Awaitable[None]], refusals: tuple[type[MQError], ...]) -> None:
    """Run `main` until it returns; SIGTERM and SIGINT set the event that it gets, a second one ends the process.

    Args:
        refusals: errors that are answered by one line and exit status 2. Any other leaves as it is.
    """
    refusal: BaseException | None = None
    try:
        with threads.hooked():
            trio.run(_until_signalled, main, clock=BootClock())  # timers count the sleep of the machine
    except* refusals as group:
        refusal = _first(group)
    except* Exception:
        logger.critical(
            "%s is exiting after an unexpected error. All messages that mq has confirmed are stored. Restart the "
            "program",
            name,
        )
        raise
    if refusal is not None:
        say(f"{name}: {refusal}", err=True)
        sys.exit(CANNOT_START)


async def _until_signalled(main: Callable[[trio.Event], Awaitable[None]]) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_heed, signals, stop)
            nursery.start_soon(threads.watch)
            if is_init():
                nursery.start_soon(_reap_orphans)
            await main(stop)
            nursery.cancel_scope.cancel()


async def _heed(signals: AsyncIterator[int], stop: trio.Event) -> None:
    async for number in signals:
        if stop.is_set():
            _leave(number)
        logger.info(
            "received %s, shutting down; a second signal stops the process immediately", signal.Signals(number).name
        )
        stop.set()


async def _reap_orphans() -> None:
    """Reap what ends in the container of which this is the first process. No program here has children of its own."""
    with trio.open_signal_receiver(signal.SIGCHLD) as signals:
        reap()
        async for _ in signals:
            reap()


def _leave(number: int) -> NoReturn:
    os._exit(128 + number)  # nothing is lost: what was acknowledged is durable


def leave_in_time(name: str) -> None:
    """End the process soon, even if its store never answers again. Call this once the program serves no clients.

    What was acknowledged is durable, and what such a store has begun cannot be waited for."""

    def leave() -> None:
        logger.critical(
            "%s could not close its store within %g s and is exiting: the disk is not responding", name, LAST_SECONDS
        )
        os._exit(1)

    timer = threading.Timer(LAST_SECONDS, leave)
    timer.daemon = True  # it does not outlive a program that ends by itself
    timer.start()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@asynccontextmanager
async def supervised(environment: Mapping[str, str]) -> AsyncIterator[Callable[[str], None]]:
    """Give the service manager signs of life until the end of the block, also while a store is slow to open or close.

    The messages of sd_notify(3), without a library: that the program is ready, that it stops and, as often as the
    manager wants, that its event loop still turns. A manager with a watchdog starts a program that hangs anew, and
    starting is recovery.

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
    return int(wanted) / 1e6 / _SIGNS


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
        logger.warning("cannot notify the service manager at %s (message: %s): %s", address, message, error.strerror)
