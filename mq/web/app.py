"""The Quart-Trio app: from Quart's request to ours, and from our reply to Quart's response.

Quart decides nothing. It does no routing, so there are no redirects, no merged slashes and no automatic OPTIONS, and
its error pages are never reached. A body is read as it is used; Quart's own would gather all that arrives.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from types import TracebackType
from typing import Final, cast

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
from quart import Quart, Response
from quart.ctx import RequestContext
from quart.typing import ResponseReturnValue
from quart.wrappers.base import BaseRequestWebsocket
from quart.wrappers.response import DataBody, ResponseBody
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection, TrioASGIWebsocketConnection
from quart_trio.wrappers import TrioRequest, TrioResponse
from werkzeug.datastructures import Headers

from mq.errors import CorruptMessage, StorageError
from mq.web.columns import cut
from mq.web.endpoints import NO_WEBSOCKET
from mq.web.exchange import BUG, DISCARD_SECONDS, Handler, OutgoingBody, Reply, Request
from mq.web.fast_http1 import Heads
from mq.web.http_connection import REQUEST_MEMORY
from mq.web.proxies import NO_BASE_PATH, BasePath
from mq.web.request_body import ArrivingBody

logger = logging.getLogger(__name__)

RawHeaders = list[tuple[bytes, bytes]]

PIECE_BYTES: Final = 16 * 1024
"""Bytes of an answer over HTTP/2 that are handed to Hypercorn at once: it copies them, and keeps them until the client
has opened its window."""
_HANDLER: Final = "mq.handler"
"""The key of a scope with who answers its request, where that is not the app's handler."""
_END: Final = HTTPResponseBodyEvent(type="http.response.body", body=b"", more_body=False)


class _QuartRequest(TrioRequest):
    arriving: ArrivingBody


class _QuartResponse(TrioResponse):
    is_last = False


class _SentBody(ResponseBody):
    """A body that is sent piece by piece, and closed in any case."""

    def __init__(self, body: OutgoingBody) -> None:
        self._body = body
        self._chunks = aiter(body)

    async def __aenter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def __aexit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with trio.CancelScope(shield=True):
            if isinstance(self._chunks, AsyncGenerator):
                await self._chunks.aclose()
            await self._body.aclose()


class _Connection(TrioASGIHTTPConnection):
    """One request and its response, between Hypercorn and Quart.

    A client that ends its side of the connection after a whole request still gets its answer. The request is carried
    out anyway, and a lease without an answer would hold up a message.
    """

    def __init__(self, app: Quart, scope: HTTPScope) -> None:
        super().__init__(app, cast(HTTPScope, {**scope, "path": "/"}))  # raw_path is the one that counts

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        request = cast(_QuartRequest, self._create_request_from_scope(send))
        request.arriving = ArrivingBody(receive)
        response = cast(_QuartResponse, await self.app.handle_request(request))
        try:
            await self._respond(response, request.arriving, send)
        except* (h11.ProtocolError, trio.BusyResourceError):
            # what came after the request was malformed, and Hypercorn has ended the connection by itself
            logger.debug("the connection was closed before the response was complete")

    async def _respond(self, response: _QuartResponse, arriving: ArrivingBody, send: ASGISendCallable) -> None:
        if arriving.is_complete and isinstance(response.response, DataBody):
            data = response.response.data
            if len(data) <= PIECE_BYTES:  # nothing has to be dropped, or cut
                await send(self._start(response))
                await send(HTTPResponseBodyEvent(type="http.response.body", body=data, more_body=False))
                return
        async with response.response as chunks, trio.open_nursery() as nursery:
            body_has_ended = trio.Event()  # Hypercorn's queue is kept empty meanwhile: it would wait for room in it
            nursery.start_soon(arriving.discard, body_has_ended)
            await send(self._start(response))
            if await self._send_chunks(send, chunks):
                with trio.move_on_after(DISCARD_SECONDS):
                    await body_has_ended.wait()
                await send(_END)
            nursery.cancel_scope.cancel()

    def _start(self, response: _QuartResponse) -> HTTPResponseStartEvent:
        headers = _raw(response.headers.items())
        if (response.is_last or cast(WebApp, self.app).is_stopping) and not self._is_http2:
            headers.append((b"connection", b"close"))
        return HTTPResponseStartEvent(type="http.response.start", status=response.status_code, headers=headers)

    async def _send_chunks(self, send: ASGISendCallable, chunks: AsyncIterable[bytes]) -> bool:
        """Send the body. False when the response must not be ended as if it were whole."""
        try:
            async for chunk in chunks:
                for piece in cut(chunk, PIECE_BYTES) if self._is_http2 else (chunk,):
                    await send(HTTPResponseBodyEvent(type="http.response.body", body=piece, more_body=True))
        except (CorruptMessage, StorageError) as error:
            logger.error("aborted an HTTP response: %s", error)
            # In HTTP/1.1 the connection breaks. A stream cannot be reset from here, so it ends short of its
            # content-length, which every client must notice (RFC 9113, section 8.1.1).
            return self._is_http2
        return True

    @property
    def _is_http2(self) -> bool:
        return self.scope["http_version"] == "2"


class _NoWebsocket(TrioASGIWebsocketConnection):
    """Refuses a WebSocket handshake. Hypercorn does not offer it as the plain GET that it also is."""

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        status, headers, body, _ = NO_WEBSOCKET
        assert isinstance(body, bytes)
        await send(
            WebsocketResponseStartEvent(type="websocket.http.response.start", status=status, headers=_raw(headers))
        )
        await send(WebsocketResponseBodyEvent(type="websocket.http.response.body", body=body, more_body=False))


class WebApp(QuartTrio):
    """The app that serves `handler`: the endpoints, or a guard before them.

    Attributes:
        heads: says who answers plain requests.
        needs_login: whether most requests need one. Before it, a connection gets little.
        is_stopping: each answer from now on is the last one of its connection, and says so.
    """

    asgi_http_class = _Connection
    asgi_websocket_class = _NoWebsocket
    request_class = _QuartRequest
    response_class = _QuartResponse

    def __init__(self, handler: Handler, base_path: BasePath = NO_BASE_PATH, *, needs_login: bool = False) -> None:
        super().__init__("mq", static_folder=None, template_folder=None)
        self.handler = handler
        self.base_path = base_path
        self.heads = Heads(handler, base_path)
        self.needs_login = needs_login
        self.is_stopping = False

    async def __call__(
        self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable, handler: Handler | None = None
    ) -> None:
        """Answer one request; by `handler`, where one is given."""
        given = scope if handler is None else cast(Scope, {**scope, _HANDLER: handler})
        await super().__call__(given, receive, send)

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> None:
        """No routing: the endpoints have their own."""

    async def dispatch_request(self, request_context: RequestContext | None = None) -> ResponseReturnValue:
        """Hand any request to the handler."""
        assert request_context is not None
        request = cast(_QuartRequest, request_context.request)
        handler: Handler = request.scope.get(_HANDLER, self.handler)  # type: ignore[assignment] # a key of our own
        return _to_quart(await handler.handle(_from_quart(request, self.base_path)))

    async def handle_exception(self, error: Exception) -> Response:
        """Answer 500 to an error that no endpoint foresaw."""
        logger.error("internal error", exc_info=error)
        return _to_quart(BUG)


def _from_quart(request: _QuartRequest, base_path: BasePath) -> Request:
    scope = cast(HTTPScope, request.scope)
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value  # RFC 9110, section 5.3
    length = headers.get("content-length")  # Hypercorn has refused all but one number
    return Request(
        method=scope["method"],
        path=base_path.strip(scope["method"], scope["raw_path"]),
        query=scope["query_string"],
        headers=headers,
        body=request.arriving,
        content_length=int(length) if length is not None else None,
        on_hang_up=request.arriving.on_hang_up,
        address=scope["client"][0] if scope["client"] else "",
        scheme=scope["scheme"],
        memory=REQUEST_MEMORY.get(),
    )


def _to_quart(reply: Reply) -> _QuartResponse:
    body = DataBody(reply.body) if isinstance(reply.body, bytes) else _SentBody(reply.body)
    response = _QuartResponse(body, reply.status)
    response.headers = Headers(list(reply.headers))  # these and no others, such as a default content-type
    response.is_last = reply.is_last
    return response


def _raw(headers: Iterable[tuple[str, str]]) -> RawHeaders:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
