"""What a page shows, and then what changes of it: server-sent events (HTML, section 9.2).

A view is a JSON object. Of the members that have something for each queue, ``rows`` and ``lines``, an event has only
what is new; of the others those that have changed. So a page that watches a quiet queue is sent next to nothing.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import trio

from mq.errors import MQError
from mq.web.exchange import OnHangUp, Reply
from mq.web.http_connection import WaitingRequests
from mq.web.replies import NOT_CACHED

CONTENT_TYPE: Final = "text/event-stream"
EVERY_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 60
"""A stream ends, and the browser asks for the next one: so rights that were taken back count no longer than this."""
SILENT_SECONDS: Final = 15.0
"""After which a line that means nothing is sent: a client that is gone is found out by it."""

BY_QUEUE: Final = ("rows", "lines")
_COMMENT: Final = b":\n\n"
_RETRY: Final = b"retry: 500\n\n"
"""Milliseconds until a browser asks for the next stream, once this one has come to its end."""
_HEADERS: Final = (("content-type", CONTENT_TYPE), NOT_CACHED, ("x-accel-buffering", "no"))

View = dict[str, Any]
Look = Callable[[], Awaitable[View]]


class EventStream:
    """The events of one view, for as long as its client listens.

    Args:
        first: the view as it is now.
        look: how it is later.
        waits: ends the stream when mq stops.
        on_hang_up: that of the request.
        seconds: how long it goes on.
    """

    def __init__(self, first: View, look: Look, waits: WaitingRequests, on_hang_up: OnHangUp, seconds: float) -> None:
        self._first = first
        self._look = look
        self._waits = waits
        self._on_hang_up = on_hang_up
        self._ends = trio.current_time() + seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Event by event. It ends where the store cannot tell: the client asks again."""
        shown: View = {}
        yield _RETRY
        now, said = self._first, trio.current_time()
        while True:
            news = difference(shown, now)
            if news:
                yield written(news)
                said = trio.current_time()
            elif trio.current_time() >= said + SILENT_SECONDS:
                yield _COMMENT
                said = trio.current_time()
            shown = now
            if trio.current_time() >= self._ends or not await self._waits.unless_gone(self._on_hang_up, _a_while):
                return
            try:
                now = await self._look()
            except MQError:
                return

    async def aclose(self) -> None:
        """There is nothing to give back."""


async def _a_while() -> bool:
    await trio.sleep(EVERY_SECONDS)
    return True


async def events_reply(look: Look, waits: WaitingRequests, on_hang_up: OnHangUp, seconds: float) -> Reply:
    """The reply that shows a view: once, where `seconds` is 0, or until they are over.

    Raises:
        MQError: there is no such view.
    """
    first = await look()
    if not seconds:
        body = written(first)
        return Reply(200, (*_HEADERS, ("content-length", str(len(body)))), body)
    return Reply(200, _HEADERS, EventStream(first, look, waits, on_hang_up, seconds))


def written(view: View) -> bytes:
    """An event. JSON has no line ends of its own, so it is one line."""
    return b"data: %b\n\n" % json.dumps(view, separators=(",", ":")).encode()


def difference(before: View, now: View) -> View:
    """What has to be said to a client that knows `before`."""
    news: View = {}
    for name, value in now.items():
        if name in BY_QUEUE:
            known = before.get(name, {})
            new = {queue: its for queue, its in value.items() if known.get(queue) != its}
            if new:
                news[name] = new
        elif before.get(name, _ABSENT) != value:
            news[name] = value
    return news


_ABSENT: Final = object()
