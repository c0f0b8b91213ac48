"""TLS, before anything else is said. Whoever does not get through it costs a few seconds and one socket.

What serves behind it takes the stream for any other: its guards and limits are the same.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import trio

logger = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 10
"""How long a client may take for it, all its pauses together."""

TLSStream = trio.SSLStream[trio.SocketStream]


async def shake_hands(
    stream: trio.SocketStream, context: ssl.SSLContext, stopped: Callable[[], Awaitable[object]]
) -> TLSStream | None:
    """The stream under TLS, or None where there is none to be had: then close what was accepted.

    Args:
        stream: just accepted.
        context: the server's.
        stopped: returns when nobody is to be served any more.
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
