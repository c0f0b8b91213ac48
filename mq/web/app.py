"""The ASGI app: from Hypercorn's events to a request, and from a reply to its events.

It decides nothing: there are no redirects, no merged slashes and no automatic OPTIONS. A body is read as it is used.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from typing import Final

import h11
import trio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGISendCallable,
    HTTPResponseBodyEvent,
    HTTPResponseStartEvent,
    HTTPScope,
    Scope,
    WebsocketResponseBodyEvent,
    WebsocketResponseStartEvent,
)

from mq.errors import CorruptMessage, StorageError
from mq.web.columns import cut
from mq.web.endpoints import NO_WEBSOCKET
from mq.web.exchange import BUG, DISCARD_SECONDS, Handler, Reply, Request
from mq.web.fast_http1 import Heads
from mq.web.http_connection import REQUEST_MEMORY
from mq.web.proxies import NO_BASE_PATH, BasePath
from mq.web.request_body import ArrivingBody

logger = logging.getLogger(__name__)

PIECE_BYTES: Final = 16 * 1024
"""Bytes of an answer over HTTP/2 that are handed to Hypercorn at once: it copies them, and keeps them until the client
has opened its window."""


class WebApp:
    """Serves `handler`: the endpoints, or a guard before them.

    Attributes:
        heads: says who answers plain requests.
        needs_login: whether most requests need one. Before it, a connection gets little.
        is_stopping: each answer from now on is the last one of its connection, and says so.
    """

    def __init__(self, handler: Handler, base_path: BasePath = NO_BASE_PATH, *, needs_login: bool = False) -> None:
        self.handler = handler
        self.base_path = base_path
        self.heads = Heads(handler, base_path)
        self.needs_login = needs_login
        self.is_stopping = False

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable, handler: Handler | None = None
    ) -> None:
        """Answer one request; by `handler`, where one is given. A client that ends its side of the connection after a
        whole request still gets its answer: the request is carried out anyway, and a lease without an answer would hold
        up a message."""
        if scope["type"] != "http":
            await _refuse_websocket(send)
            return
        arriving = ArrivingBody(receive)
        try:
            reply = await (handler or self.handler).handle(self._request(scope, arriving))
        except Exception as error:
            logger.error("internal error", exc_info=error)
            reply = BUG
        try:
            await self._respond(scope, reply, arriving, send)
        except* (h11.ProtocolError, trio.BusyResourceError):
            # what came after the request was malformed, and Hypercorn has ended the connection by itself
            logger.debug("the connection was closed before the response was complete")

    def _request(self, scope: HTTPScope, arriving: ArrivingBody) -> Request:
        headers: dict[str, str] = {}
        for raw_name, raw_value in scope["headers"]:
            name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value  # RFC 9110, section 5.3
        length = headers.get("content-length")  # Hypercorn has refused all but one number
        return Request(
            method=scope["method"],
            path=self.base_path.strip(scope["method"], scope["raw_path"]),
            query=scope["query_string"],
            headers=headers,
            body=arriving,
            content_length=int(length) if length is not None else None,
            on_hang_up=arriving.on_hang_up,
            address=scope["client"][0] if scope["client"] else "",
            scheme=scope["scheme"],
            memory=REQUEST_MEMORY.get(),
        )

    async def _respond(self, scope: HTTPScope, reply: Reply, arriving: ArrivingBody, send: ASGISendCallable) -> None:
        is_http2 = scope["http_version"] == "2"
        headers = _raw(reply.headers)
        if (reply.is_last or self.is_stopping) and not is_http2:
            headers.append((b"connection", b"close"))
        start = HTTPResponseStartEvent(type="http.response.start", status=reply.status, headers=headers)
        if isinstance(reply.body, bytes) and len(reply.body) <= PIECE_BYTES and arriving.is_complete:
            await send(start)
            await send(_piece(reply.body, is_last=True))
            return
        async with trio.open_nursery() as nursery:
            body_has_ended = trio.Event()  # Hypercorn's queue is kept empty meanwhile: it would wait for room in it
            nursery.start_soon(arriving.discard, body_has_ended)
            if await _send_body(start, reply, send, is_http2=is_http2):
                with trio.move_on_after(DISCARD_SECONDS):
                    await body_has_ended.wait()
                await send(_piece(b"", is_last=True))
            nursery.cancel_scope.cancel()


async def _send_body(start: HTTPResponseStartEvent, reply: Reply, send: ASGISendCallable, *, is_http2: bool) -> bool:
    """Send a reply up to its end, and close its body. False when it must not be ended as if it were whole."""
    if isinstance(reply.body, bytes):
        await send(start)
        for piece in cut(reply.body, PIECE_BYTES) if is_http2 else (reply.body,):
            await send(_piece(piece))
        return True
    chunks = aiter(reply.body)
    try:
        await send(start)
        async for chunk in chunks:
            for piece in cut(chunk, PIECE_BYTES) if is_http2 else (chunk,):
                await send(_piece(piece))
    except (CorruptMessage, StorageError) as error:
        logger.error("aborted an HTTP response: %s", error)
        # In HTTP/1.1 the connection breaks. A stream cannot be reset from here, so it ends short of its
        # content-length, which every client must notice (RFC 9113, section 8.1.1).
        return is_http2
    finally:
        with trio.CancelScope(shield=True):
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
            await reply.body.aclose()
    return True


async def _refuse_websocket(send: ASGISendCallable) -> None:
    """Refuse a WebSocket handshake. Hypercorn does not offer it as the plain GET that it also is."""
    status, headers, body, _ = NO_WEBSOCKET
    assert isinstance(body, bytes)
    await send(WebsocketResponseStartEvent(type="websocket.http.response.start", status=status, headers=_raw(headers)))
    await send(WebsocketResponseBodyEvent(type="websocket.http.response.body", body=body, more_body=False))


def _piece(data: bytes, *, is_last: bool = False) -> HTTPResponseBodyEvent:
    return HTTPResponseBodyEvent(type="http.response.body", body=data, more_body=not is_last)


def _raw(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
