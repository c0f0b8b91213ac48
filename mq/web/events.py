"""Live views of the page as server-sent events (HTML, section 9.2): first the whole view, then its changes.

An event is made and written once, for all streams that show the same view to users who may see the same queues
(:class:`EventFeed`).

A view is a JSON object. Two members have an entry for each queue, ``rows`` and ``lines``: an event carries only their
new entries. It carries other members where they changed. So a page that watches a quiet queue is sent next to nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Any, Final

import trio

from mq.errors import MQError
from mq.web.exchange import NOT_CACHED, OnHangUp, Reply
from mq.web.http_connection import WaitingRequests

CONTENT_TYPE: Final = "text/event-stream"
EVERY_SECONDS: Final = 1.0
EARLY_SECONDS: Final = 0.1
"""Seconds by which a view expires before its streams look again: a stream always gets a new one."""
REUSE_FACTOR: Final = 20
"""A look that takes long is used for so many times as long, so that the looks of all feeds together take a twentieth of
a core at the most."""
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


class EventFeed:
    """The events of one view, made once for all streams that show it.

    Args:
        feeds: how many feeds there are, for the time that their looks may take together.

    Attributes:
        number: of the present view; it goes up with each change.
        view: the present one; empty before the first look.
    """

    def __init__(self, look: Look, feeds: Callable[[], int], every_seconds: float = EVERY_SECONDS) -> None:
        self.streams = 0
        self.number = 0
        self.view: View = {}
        self.every_seconds = every_seconds
        self._look = look
        self._feeds = feeds
        self._looking = trio.Lock()
        self._good_until = -math.inf
        self._events: dict[int, bytes] = {}  # that lead from a view of that number to the present one

    @property
    def is_fresh(self) -> bool:
        """Whether the present view is good enough."""
        return trio.current_time() < self._good_until

    @property
    def is_used(self) -> bool:
        """Whether streams show it, or a request has asked for it just now."""
        return self.streams > 0 or self.is_fresh or self._looking.locked()

    async def refresh(self) -> None:
        """Look again, unless another stream has done so just now.

        Raises:
            MQError: there is no such view any more.
        """
        async with self._looking:
            if self.is_fresh:
                return
            begun = trio.current_time()
            view = await self._look()
            took = trio.current_time() - begun
            pause = max(self.every_seconds - EARLY_SECONDS, REUSE_FACTOR * took * self._feeds())
            self._good_until = trio.current_time() + pause
            if not self.number or difference(self.view, view):
                self.number += 1
                self._events.clear()
                self.view = view

    def event(self, number: int, shown: View) -> bytes:
        """The event for a client that has been shown the view of that number; empty if nothing is new for it."""
        if number == self.number:
            return b""
        event = self._events.get(number)
        if event is None:
            news = difference(shown, self.view) if number else self.view
            event = self._events[number] = written(news) if news else b""
        return event


class EventFeeds:
    """The feeds that streams show now, or that a request has asked for just now."""

    def __init__(self) -> None:
        self._feeds: dict[Hashable, EventFeed] = {}

    def feed(self, key: Hashable, look: Look, every_seconds: float = EVERY_SECONDS) -> EventFeed:
        """The feed of a view.

        Args:
            look: makes the view, if there is no feed of it.
        """
        unused = [each for each, feed in self._feeds.items() if not feed.is_used]
        for each in unused:
            del self._feeds[each]
        if key not in self._feeds:
            self._feeds[key] = EventFeed(look, self._feeds.__len__, every_seconds)
        return self._feeds[key]


class EventStream:
    """The events of one view, for as long as its client listens. It holds one view, the last that its client has got:
    to a client that reads slowly, changes come together.
    """

    def __init__(self, feed: EventFeed, waits: WaitingRequests, on_hang_up: OnHangUp, seconds: float) -> None:
        self._feed = feed
        self._waits = waits
        self._on_hang_up = on_hang_up
        self._ends = trio.current_time() + seconds
        feed.streams += 1
        self._is_open = True

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Event by event. It ends when the store cannot be read; the client asks again."""
        feed, number, said = self._feed, 0, trio.current_time()
        shown: View = {}
        yield _RETRY
        while True:
            event = feed.event(number, shown)
            number, shown = feed.number, feed.view
            if event:
                yield event
                said = trio.current_time()
            elif trio.current_time() >= said + SILENT_SECONDS:
                yield _COMMENT
                said = trio.current_time()
            if trio.current_time() >= self._ends or not await self._waits.unless_gone(self._on_hang_up, self._pause):
                return
            try:
                await feed.refresh()
            except MQError:
                return

    async def _pause(self) -> bool:
        await trio.sleep(min(self._feed.every_seconds, max(0, self._ends - trio.current_time())))
        return True

    async def aclose(self) -> None:
        """End it."""
        if self._is_open:
            self._is_open = False
            self._feed.streams -= 1


async def events_reply(feed: EventFeed, waits: WaitingRequests, on_hang_up: OnHangUp, seconds: float) -> Reply:
    """The reply that shows a view: once, where `seconds` is 0, or until they are over.

    Raises:
        MQError: there is no such view.
    """
    await feed.refresh()
    if not seconds:
        body = feed.event(0, {})
        return Reply(200, (*_HEADERS, ("content-length", str(len(body)))), body)
    return Reply(200, _HEADERS, EventStream(feed, waits, on_hang_up, seconds))


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
