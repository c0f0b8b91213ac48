"""Listening: an address and a port become listeners, or one clear line."""

from __future__ import annotations

import errno
import socket
from typing import Final

import trio

from mq.errors import MQError
from mq.message import shorten

_BACKLOG: Final = 65_535
"""The kernel lowers it to what it allows, as it does for Trio's."""


class CannotListen(MQError):
    """The address cannot be listened on: in use, not this machine's, or not allowed."""


async def listen(
    address: str, port: int, flag: str = "--port", *, shares_port: bool = False
) -> list[trio.SocketListener]:
    """Listen.

    Args:
        address: IP address or host name.
        port: 0 takes a free one.
        flag: what chooses another port, for the text.
        shares_port: other processes of this user may listen on it too, if they say the same; the kernel gives each
            connection to one of them.

    Raises:
        CannotListen: somebody else has the port, or the address is not to be had.
    """
    try:
        if shares_port:
            return await _open_shared(address, port)
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        hint = f". Choose another port with {flag}" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise CannotListen(f"cannot listen on {address} port {port}: {error.strerror}{hint}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {shorten(address)}: not an address or a host name") from error


async def _open_shared(address: str, port: int) -> list[trio.SocketListener]:
    """As :func:`trio.open_tcp_listeners`, which has no place for the option."""
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
                opened.listen(_BACKLOG)
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
    """Where it listens, as a URL."""
    host, port = listener.socket.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
