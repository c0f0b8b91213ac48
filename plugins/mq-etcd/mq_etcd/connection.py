"""One connection to one member: a request, then its reply, then the next request. Keep-alive, with TLS or without."""

from __future__ import annotations

import select
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import trio

from mq_etcd.http import Head, Malformed, ReplyParser

LARGEST_REPLY: Final = 256 * 1024 * 1024
"""Bytes. Pages of keys are much shorter; a reply that is longer is none."""
BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, Malformed)
"""What a connection to a member that is away, ending or no etcd raises."""
_AT_ONCE: Final = 65_536


class Endpoint(NamedTuple):
    """Where a member listens for clients."""

    host: str
    port: int
    secure: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """``http://HOST:PORT`` or ``https://HOST:PORT`` as an endpoint; the port is 2379 where it is missing.

    Raises:
        ValueError: it is anything else; the text says what to write.
    """
    advice = f"invalid etcd member address: {text!r}. Use an address such as http://127.0.0.1:2379"
    parts = urlsplit(text)
    try:
        port = parts.port or 2379
    except ValueError as error:
        raise ValueError(advice) from error
    has_more = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("http", "https") or not parts.hostname or has_more:
        raise ValueError(advice)
    return Endpoint(parts.hostname, port, parts.scheme == "https")


class Connection:
    """An open connection. A caller that is cancelled, or gets an error, closes it: it is of no more use then.

    Args:
        number: the socket's file descriptor.
    """

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream], number: int, host: str) -> None:
        self._stream = stream
        self._number = number
        self._host = host.encode("ascii")
        self._parser = ReplyParser()
        self._keeps_alive = True

    @property
    def is_fit(self) -> bool:
        """Whether another request may be sent: the member has not hung up, nor said anything unasked."""
        if not self._keeps_alive or not self._parser.is_idle:
            return False
        poll = select.poll()
        poll.register(self._number, select.POLLIN)
        return not poll.poll(0)

    async def send(self, path: str, body: bytes, fields: bytes) -> None:
        """Send a request.

        Args:
            body: JSON.

        Raises:
            trio.BrokenResourceError: the connection broke.
        """
        head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n"
        await self._stream.send_all(head % (path.encode("ascii"), self._host, len(body), fields) + body)

    async def head(self) -> Head:
        """The head of the reply.

        Raises:
            trio.BrokenResourceError: the connection broke.
            Malformed: that is no reply.
        """
        while (head := self._parser.head()) is None:
            self._parser.feed(await self._stream.receive_some(_AT_ONCE))
        self._keeps_alive = head.keeps_alive
        return head

    async def part(self) -> bytes:
        """More of the reply's body, as it comes; empty at its end. Raises as :meth:`head` does."""
        while (part := self._parser.part()) is None:
            self._parser.feed(await self._stream.receive_some(_AT_ONCE))
        return part

    async def body(self) -> bytes:
        """All of the reply's body. Raises as :meth:`head` does."""
        parts = []
        size = 0
        while part := await self.part():
            parts.append(part)
            size += len(part)
            if size > LARGEST_REPLY:
                raise Malformed(f"the response exceeds {LARGEST_REPLY} bytes")
        return b"".join(parts)

    async def aclose(self) -> None:
        """Let go of it, at once, also while being cancelled."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)


async def connect(endpoint: Endpoint, tls: ssl.SSLContext | None) -> Connection:
    """Open a connection.

    Raises:
        OSError: no member listens there, or it cannot be reached.
        trio.BrokenResourceError: the handshake of TLS failed.
    """
    stream = await trio.open_tcp_stream(endpoint.host, endpoint.port)
    number = stream.socket.fileno()
    if not endpoint.secure:
        return Connection(stream, number, f"{endpoint.host}:{endpoint.port}")
    context = tls or ssl.create_default_context()
    secured = trio.SSLStream(stream, context, server_hostname=endpoint.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return Connection(secured, number, f"{endpoint.host}:{endpoint.port}")
