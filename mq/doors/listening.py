"""Listening: an address and a port become listeners, or one clear line."""

from __future__ import annotations

import errno

import trio

from mq.errors import MQError
from mq.message import shorten


class CannotListen(MQError):
    """The address cannot be listened on: in use, not this machine's, or not allowed."""


async def listen(address: str, port: int, flag: str = "--port") -> list[trio.SocketListener]:
    """Listen.

    Args:
        address: IP address or host name.
        port: 0 takes a free one.
        flag: what chooses another port, for the text.

    Raises:
        CannotListen: somebody else has the port, or the address is not to be had.
    """
    try:
        return await trio.open_tcp_listeners(port, host=address)
    except OSError as error:
        hint = f". Choose another port with {flag}" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
        raise CannotListen(f"cannot listen on {address} port {port}: {error.strerror}{hint}") from error
    except UnicodeError as error:
        raise CannotListen(f"cannot listen on {shorten(address)}: not an address or a host name") from error


def url(scheme: str, listener: trio.SocketListener) -> str:
    """Where it listens, as a URL."""
    host, port = listener.socket.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
