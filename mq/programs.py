"""What the programs have in common: how they start, stop and say no."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, NoReturn

import click
import trio

from mq.errors import MQError

logger = logging.getLogger(__name__)

CANNOT_START: Final = 2
"""The exit status when a setting, the store or the port does not let a program start."""
LAST_SECONDS: Final = 30.0
"""How long a program that has stopped serving may take to let go of its store."""
_YOUNG_OBJECTS: Final = 10_000
_YOUNG_ROUNDS: Final = 20


def run_program(name: str, main: Callable[[trio.Event], Awaitable[None]], refusals: tuple[type[MQError], ...]) -> None:
    """Run `main` until it returns; SIGTERM and SIGINT set the event that it gets, a second one ends the process.

    Args:
        name: the program's name, for its one line on stderr.
        main: does the work; returns soon after the event is set.
        refusals: errors that are answered by one line and exit status 2. Any other leaves as it is.
    """
    refusal: BaseException | None = None
    try:
        trio.run(_until_signalled, main)
    except* refusals as group:
        refusal = _first(group)
    except* Exception:
        logger.critical("%s ends on an unexpected error. What it acknowledged is in the store: start it again", name)
        raise
    if refusal is not None:
        click.echo(f"{name}: {refusal}", err=True)
        sys.exit(CANNOT_START)


async def _until_signalled(main: Callable[[trio.Event], Awaitable[None]]) -> None:
    stop = trio.Event()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_heed, signals, stop)
            await main(stop)
            nursery.cancel_scope.cancel()


async def _heed(signals: AsyncIterator[int], stop: trio.Event) -> None:
    async for number in signals:
        if stop.is_set():
            _leave(number)
        logger.info("stopping on %s; once more stops at once", signal.Signals(number).name)
        stop.set()


def _leave(number: int) -> NoReturn:
    os._exit(128 + number)  # nothing is lost: what was acknowledged is durable


def leave_in_time(name: str) -> None:
    """End the process soon, even if its store never answers again. Call this once the program serves no clients.

    What was acknowledged is durable, and what such a store has begun cannot be waited for."""

    def leave() -> None:
        logger.critical("%s has not let go of its store in %g s, and ends without: the disk hangs", name, LAST_SECONDS)
        os._exit(1)

    timer = threading.Timer(LAST_SECONDS, leave)
    timer.daemon = True  # it does not outlive a program that ends by itself
    timer.start()


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def collect_seldom() -> None:
    """Collect garbage in cycles less often, and never among the objects that exist already."""
    # A message is a few objects without cycles. Looking at them finds nothing, and took a fifth of the processor time
    # of browsing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_ROUNDS, _YOUNG_ROUNDS)
