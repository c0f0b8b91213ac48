"""Runs a test on each event loop that the clients know. The clock is virtual on both: it jumps to the next timer."""

from __future__ import annotations

import asyncio
import inspect
import selectors
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a time it lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # there is no timer: only a thread can go on
            return super().select(None)
        found = super().select(0)
        if not found:
            self.now += max(timeout, 0.0)
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """asyncio's, with such a clock."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run_on(loop: str, test: Callable[[], Awaitable[Any]]) -> None:
    if loop == "trio":
        trio.run(test, clock=MockClock(autojump_threshold=0))
    else:
        anyio.run(test, backend="asyncio", backend_options={"loop_factory": JumpingLoop, "debug": True})


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test for pytest of an asynchronous function, which then speaks to anyio alone."""

    def run(loop: str, **arguments: Any) -> None:
        run_on(loop, partial(test, **arguments))

    taken = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__dict__.update(test.__dict__)  # what pytest was told of it
    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    run.__signature__ = taken.replace(parameters=[*taken.parameters.values(), loop], return_annotation=None)  # type: ignore[attr-defined]
    return pytest.mark.parametrize("loop", ["asyncio", "trio"])(run)
