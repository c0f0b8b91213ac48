"""Live views of the page as server-sent events (HTML, section 9.2): first the whole view, then its changes.

A view is a JSON object. Two members have an entry for each queue, ``rows`` and ``lines``: an event carries only their
new entries. It carries other members where they changed. So a page that watches a quiet queue is sent next to nothing.
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
"""How long a stream lasts; then the browser asks for the next one. So a right that was withdrawn ends within this
time."""
SILENT_SECONDS: Final = 15.0
"""Pause after which an empty comment is sent: sending to a client that is gone fails."""

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
        """Event by event. It ends when the store cannot be read; the client asks again."""
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
    """The members that a client with `before` has to be sent."""
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
