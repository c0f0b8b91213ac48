"""Listeners at an address and a port, or one clear line why not; and the handshake of TLS.

A server takes a stream of TLS for any other: its guards and limits are the same.
"""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final
from weakref import WeakKeyDictionary

import trio

from mq.errors import MQError
from mq.message import shorten

logger = logging.getLogger(__name__)

BACKLOG: Final = 65_535
"""The kernel lowers it to what it allows, as it does for Trio's."""


MOST_ACCEPTED: Final = 64
"""Connections that are accepted in one turn of the event loop."""


HANDSHAKE_SECONDS: Final = 10
"""How long a client may take for it, all its pauses together."""

TLSStream = trio.SSLStream[trio.SocketStream]


class CannotListen(MQError):
    """The address cannot be listened on: in use, not this machine's, or not allowed."""


class PortTaken(CannotListen):
    """Another program listens there."""


_PLAIN: Final[WeakKeyDictionary[trio.SocketStream, socket.socket]] = WeakKeyDictionary()


def stream_over(plain: socket.socket) -> trio.SocketStream:
    """A connection as a stream, of which :func:`plain_socket` knows. Closing either closes both."""
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(plain))
    _PLAIN[stream] = plain
    return stream


def plain_socket(stream: trio.SocketStream) -> socket.socket | None:
    """The socket of Python's below a stream, for calls that do not wait: Trio has none. None below a stream that
    :func:`stream_over` did not make."""
    return _PLAIN.get(stream)


class PromptListener(trio.abc.Listener[trio.SocketStream]):
    """Accepts several connections in a turn of the event loop. Trio accepts one a turn, which keeps newcomers waiting
    for seconds where thousands are served.

    Args:
        listener: accepts them.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._accepted = 0

    async def accept(self) -> trio.SocketStream:
        """The next connection. Errors are those of :meth:`trio.SocketListener.accept`."""
        self._accepted += 1
        if self._accepted >= MOST_ACCEPTED:
            self._accepted = 0
            await trio.lowlevel.checkpoint()
        while self._listener.socket.fileno() >= 0:
            try:
                return self._accept_now()
            except BlockingIOError:
                self._accepted = 0
                await trio.lowlevel.wait_readable(self._listener.socket)
            except OSError:
                break
        return await self._listener.accept()  # which meets the error again, and knows which of them pass

    def _accept_now(self) -> trio.SocketStream:
        """One that waits already.

        Raises:
            OSError: none does, or something is wrong with it.
        """
        listening = self._listener.socket
        borrowed = socket.socket(listening.family, listening.type, listening.proto, listening.fileno())
        try:
            accepted, _ = borrowed.accept()
        finally:
            borrowed.detach()
        return stream_over(accepted)

    async def aclose(self) -> None:
        """Close it."""
        await self._listener.aclose()


async def listen(
    address: str, port: int, flag: str = "--port", *, shares_port: bool = False
) -> list[trio.SocketListener]:
    """Listen.

    Args:
        address: IP address or host name.
        port: 0 takes a free one.
        flag: the option that chooses another port, for the text.
        shares_port: other processes of this user may listen on it too, if they say the same; the kernel gives each
            connection to one of them.

    Raises:
        PortTaken: another program listens there.
        CannotListen: the address or the port is not to be had.
    """
    try:
        if shares_port:
            return await _open_shared(address, port)
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        hint = f". Choose another port with {flag}" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        refusal = PortTaken if error.errno == errno.EADDRINUSE else CannotListen
        raise refusal(f"cannot listen on {address} port {port}: {error.strerror}{hint}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {shorten(address)}: not an address or a host name") from error


async def _open_shared(address: str, port: int) -> list[trio.SocketListener]:
    """As :func:`trio.open_tcp_listeners`, which cannot set the option."""
    places = await trio.socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[trio.SocketListener] = []
    try:
        for family, kind, protocol, _, place in places:
            opened = trio.socket.socket(family, kind, protocol)
            try:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                await opened.bind(place)
                opened.listen(BACKLOG)
            except BaseException:
                opened.close()
                raise
            listeners.append(trio.SocketListener(opened))
    except BaseException:
        for listener in listeners:
            listener.socket.close()
        raise
    return listeners


def url(scheme: str, listener: trio.SocketListener) -> str:
    """The URL of a listener."""
    host, port = listener.socket.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def shake_hands(
    stream: trio.SocketStream, context: ssl.SSLContext, stopped: Callable[[], Awaitable[object]]
) -> TLSStream | None:
    """The stream under TLS; None where the handshake failed: then close what was accepted.

    Args:
        stream: just accepted.
        context: the server's.
        stopped: returns when the door stops.
    """
    tls = TLSStream(stream, context, server_side=True)
    is_done = False
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stopped()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        with trio.move_on_after(HANDSHAKE_SECONDS):
            is_done = await _shake(tls)
        nursery.cancel_scope.cancel()
    return tls if is_done else None


async def _shake(tls: TLSStream) -> bool:
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        logger.debug("a client did not get through the TLS handshake: %s", error.__cause__ or "it went away")
        return False
    return True
