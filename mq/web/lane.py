"""The fast lane: plain HTTP/1.1 requests, served straight on the stream.

At the first request that is not plain (:mod:`mq.web.heads`) the connection is handed on, with all that was read of that
request, to the server that knows everything. So there is one answer to odd requests, and this page need not know them.
Both lanes answer alike, byte for byte; tests/web/test_lanes.py holds them to that.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from time import time
from typing import Final

import trio
from hypercorn.typing import ASGIReceiveEvent, HTTPDisconnectEvent, HTTPRequestEvent

from mq.errors import BodyIncomplete, CorruptMessage, StorageError
from mq.message import Body
from mq.web.arriving import Arriving, Whole
from mq.web.exchange import BUG, DISCARD_SECONDS, BodyTooSlow, Handler, Reply, Request
from mq.web.hangups import HangUps
from mq.web.heads import Head, parse_head
from mq.web.refusals import refusal
from mq.web.replies import without_body
from mq.web.watched import WatchedStream

logger = logging.getLogger(__name__)

LARGEST_HEAD: Final = 32 * 1024
LARGEST_READ: Final = 64 * 1024

_ODD_LINE: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")
_END: Final = b"\r\n\r\n"


class Lane:
    """Serves one connection for as long as its requests are plain.

    Args:
        stream: the connection.
        handler: answers.
        hang_ups: tells of clients that hang up while they wait.
    """

    def __init__(self, stream: WatchedStream, handler: Handler, hang_ups: HangUps) -> None:
        self._stream = stream
        self._on_hang_up = partial(hang_ups.watch, stream.socket)
        self._handler = handler
        self._received = bytearray()
        self._has_ended = False
        self._is_stopping = False
        self._idle = trio.CancelScope()

    def stop(self) -> None:
        """Serve no request that has not come yet."""
        self._is_stopping = True
        self._stream.leave_if_idle()

    async def run(self) -> bytes | None:
        """Serve. What is left to be served by somebody else, from the beginning of a request on; None at the end."""
        with self._idle:
            while True:
                size = await self._until_head()
                if size is None:
                    return None
                head = parse_head(bytes(self._received[:size]))
                if head is None:
                    return bytes(self._received)
                del self._received[:size]
                if not await self._serve(head):
                    return None
                if self._received:  # whoever sends requests without end must not keep the others waiting
                    await trio.lowlevel.checkpoint()
        if self._received and not self._is_stopping:  # a head that did not come to its end in time
            await self._refuse(408)
        return None

    async def _until_head(self) -> int | None:
        """The length of the next head, whole or not plain; None when there is none, and no more will come."""
        looked_at = 0
        while (end := self._received.find(_END, max(0, looked_at - 3))) < 0:
            if self._is_stopping or (self._has_ended and not self._received):
                return None
            if self._received and (self._has_ended or self._cannot_be_plain(looked_at)):
                return len(self._received)
            looked_at = len(self._received)
            self._stream.begin_idleness(self._idle)
            await self._read()
            if self._idle.cancel_called:  # in the very moment when something came: it was not begun, nothing is lost
                await trio.lowlevel.checkpoint_if_cancelled()
        self._stream.end_idleness()
        return end + len(_END)

    def _cannot_be_plain(self, looked_at: int) -> bool:
        too_long = len(self._received) > LARGEST_HEAD
        return too_long or _ODD_LINE.search(self._received, max(0, looked_at - 1)) is not None

    async def _read(self) -> None:
        try:
            data = await self._stream.receive(LARGEST_READ)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        self._has_ended = self._has_ended or not data
        self._received += data

    async def _serve(self, head: Head) -> bool:
        """One request and its answer. False when the connection ends with it."""
        length = head.content_length or 0
        if length > len(self._received):
            return await self._serve_arriving(head, length)
        body = Whole(bytes(self._received[:length]))
        del self._received[:length]
        self._stream.at_work += 1
        try:
            reply = await self._ask(head, Request(*head[:4], body, head.content_length, self._on_hang_up))
        finally:
            self._stream.at_work -= 1
        return await self._send(head, reply)

    async def _serve_arriving(self, head: Head, length: int) -> bool:
        """A request of whose body a part is still to come."""
        incoming = _Incoming(self, length)
        arriving = incoming.arriving
        try:
            request = Request(*head[:4], arriving, head.content_length, self._on_hang_up)
            reply = await self._ask(head, request)
        finally:
            incoming.work.end()
        if arriving.is_complete:
            return await self._send(head, reply)
        if arriving.is_gone:
            await without_body(reply)
            return await self._refuse(400)
        async with trio.open_nursery() as nursery:  # a client may listen only when it has said everything
            has_ended = trio.Event()
            nursery.start_soon(incoming.discard, has_ended)
            goes_on = await self._send(head, reply)
            with trio.move_on_after(DISCARD_SECONDS):
                await has_ended.wait()
            nursery.cancel_scope.cancel()
        return goes_on and arriving.is_complete

    async def _ask(self, head: Head, request: Request) -> Reply:
        try:
            return await self._handler.handle(request)
        except Exception as error:
            logger.error("an error in mq itself", exc_info=error)
            return BUG._replace(body=b"") if head.method == "HEAD" else BUG

    async def _send(self, head: Head, reply: Reply) -> bool:
        """Send the answer. False when the connection ends with it."""
        is_our_last = reply.is_last or self._is_stopping
        start = _start(reply, is_our_last=is_our_last, is_their_last=head.is_last)
        try:
            if isinstance(reply.body, bytes):
                await self._stream.send(start + reply.body)
                is_whole = True
            else:
                is_whole = await self._send_stored(start, reply.body)
            return is_whole and not is_our_last and not head.is_last
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False

    async def _send_stored(self, start: bytes, body: Body) -> bool:
        """Send a message's body. False when it was broken off."""
        chunks = aiter(body)
        try:
            await self._stream.send(start)
            async for chunk in chunks:
                await self._stream.send(chunk)
        except (CorruptMessage, StorageError) as error:
            logger.error("a response was broken off: %s", error)
            return False
        finally:
            with trio.CancelScope(shield=True):
                if isinstance(chunks, AsyncGenerator):
                    await chunks.aclose()
                await body.aclose()
        return True

    async def _refuse(self, status: int) -> bool:
        """Say why a request is none; the connection ends with that."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError), trio.move_on_after(DISCARD_SECONDS):
            await self._stream.send(_refusal(status))
        return False


class _Incoming:
    """A body that is still to come, as events of ASGI.

    Attributes:
        arriving: its chunks.
        work: begins with its end.
    """

    def __init__(self, lane: Lane, length: int) -> None:
        self._lane = lane
        self._left = length
        self.arriving = Arriving(self._receive)
        self.work = lane._stream.work()

    async def _receive(self) -> ASGIReceiveEvent:
        """The next piece, or that the client is gone."""
        lane = self._lane
        if not lane._received:
            await lane._read()
        chunk = bytes(lane._received[: self._left])
        if not chunk:
            return HTTPDisconnectEvent(type="http.disconnect")
        del lane._received[: len(chunk)]
        self._left -= len(chunk)
        if not self._left:
            self.work.begin()
        return HTTPRequestEvent(type="http.request", body=chunk, more_body=self._left > 0)

    async def discard(self, has_ended: trio.Event) -> None:
        """Take and drop what is left. Then, or when no more will come, set the event."""
        with suppress(BodyIncomplete, BodyTooSlow):
            async for _ in self.arriving:
                pass
        has_ended.set()


def _start(reply: Reply, *, is_our_last: bool, is_their_last: bool) -> bytes:
    """An answer up to its body, as h11 writes it."""
    lines = [f"HTTP/1.1 {reply.status} ", *[f"{name}: {value}" for name, value in reply.headers]]
    if is_our_last and not is_their_last:
        lines.append("connection: close")
    lines.append(_date(int(time())))
    if is_their_last:
        lines.append("Connection: close")
    return "\r\n".join((*lines, "", "")).encode("latin-1")


@lru_cache(maxsize=1)
def _date(second: int) -> str:
    return f"date: {formatdate(second, usegmt=True)}"


@lru_cache
def _refusal(status: int) -> bytes:
    reply = refusal(status)
    assert isinstance(reply.body, bytes)
    lines = [f"{name}: {value}\r\n" for name, value in reply.headers]
    return f"HTTP/1.1 {status} \r\n{''.join(lines)}\r\n".encode() + reply.body
