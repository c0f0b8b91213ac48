"""A thread that goes on only while the event loop waits for it, so that a run of both is the same each time."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import trio

from mq.storage.files.calls import Native, Step
from mq.storage.files.hop import EarlyResults, HearResults


class SteppedThreads:
    """Makes calls that tell of their first results before they end (:data:`mq.storage.files.hop.HopInParts`), each in a
    thread. Wherever one tells something the event loop goes on, and the call only afterwards.
    """

    def __init__(self, every: int, pause: Callable[[], Awaitable[None]]) -> None:
        self._every = every
        self._pause = pause

    async def hop_in_parts(self, verb: Callable[..., Any], *args: object, hear: HearResults) -> Any:
        """Make a call to its end. What it raises is raised here."""
        call = _Call(self._every, verb, args)
        heard = 0
        with trio.CancelScope(shield=True):
            await self._pause()
            while not call.goes_on():
                hear(call.expected[heard : call.told], 0.0)
                heard = call.told
                await self._pause()
        if call.error is not None:
            raise call.error
        return call.result


class _Call(EarlyResults):
    """A call, in its thread."""

    def __init__(self, every: int, verb: Callable[..., Any], args: tuple[object, ...]) -> None:
        super().__init__(every=every)
        self.told = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self._has_ended = False
        self._turn_of_thread = threading.Semaphore(0)
        self._turn_of_loop = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(verb, args), daemon=True)
        self._thread.start()

    def goes_on(self) -> bool:
        """Let it work until it tells something, or ends. Whether it has ended."""
        self._turn_of_thread.release()
        self._turn_of_loop.acquire()
        if self._has_ended:
            self._thread.join()
        return self._has_ended

    def _do_telling(self, native: Native, steps: list[Step], expected: Sequence[Any]) -> list[int]:
        """Do the steps a few at a time."""
        results: list[int] = []
        for begin in range(0, len(steps), self.every):
            end = begin + self.every
            results += native.do_steps(steps[begin:end], False)
            self.expected += expected[begin:end]
            if min(results) >= 0 and end < len(steps):
                self.tell(len(self.expected))
        return results

    def tell(self, count: int) -> None:
        """Tell of results, and wait until they are heard."""
        self.told = count
        self._turn_of_loop.release()
        self._turn_of_thread.acquire()

    def _run(self, verb: Callable[..., Any], args: tuple[object, ...]) -> None:
        self._turn_of_thread.acquire()
        try:
            self.result = verb(self, *args)
        except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
            self.error = error
        self._has_ended = True
        self._turn_of_loop.release()
