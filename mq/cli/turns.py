"""A daemon that waits for its turn on a root served by another, when its settings say so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from mq.amqp.server.listener import open_doorway
from mq.doors.listeners import listen, url
from mq.doors.standby import Doorway, Owner, Standby
from mq.errors import InvalidSetting
from mq.settings import AMQP_PORT, Settings
from mq.storage.files.turn import open_turn
from mq.storage.options import StorageOptions

_ASKS_LIVE: Final = re.compile(rb"GET (?:/[^ ?]*)?/-/live(?:\?[^ ]*)? HTTP/1\.[01]\r?\n")
_ALIVE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\nCache-Control: no-store\r\n"
    b'Connection: close\r\n\r\n{"live": true}\n'
)


class Doorways(NamedTuple):
    """Where connections come.

    Attributes:
        http: to the HTTP server; None where it listens by itself.
        amqp: to the AMQP server; None where it listens by itself, or is not there.
        owner: takes connections from daemons that stand by; None where none do. Has to run.
    """

    http: Doorway | None = None
    amqp: Doorway | None = None
    owner: Owner | None = None


def check_turns(settings: Settings, *, is_node: bool) -> None:
    """Check that a daemon with these settings can take turns, if it is to.

    Raises:
        InvalidSetting: it cannot.
    """
    if settings.standby and (settings.peers or is_node):
        raise InvalidSetting(
            "--standby cannot be combined with --peers or --cluster, because --standby lets only one daemon at a "
            "time serve the root"
        )
    if settings.standby and not settings.folder:
        raise InvalidSetting(
            "--standby requires a root on this machine (storage posix or tmpfs), because the daemons share a lock in "
            "the root"
        )
    if settings.reuse_port and not settings.peers and not settings.standby:
        raise InvalidSetting(
            "--reuse-port is only useful for several daemons on one root. Add --standby (one daemon serves, "
            "the others wait), or --peers with the number of other daemons"
        )


def answer_of_standby(first: bytes) -> bytes | None:
    """Return the answer to ``GET /-/live``, which is about this daemon and not about the owner; None for all else.

    Args:
        first: the first bytes of a connection to the HTTP API.
    """
    return _ALIVE if _ASKS_LIVE.match(first) else None


@asynccontextmanager
async def in_turn(
    settings: Settings, stop: trio.Event, stands_by: Callable[[list[str]], None]
) -> AsyncIterator[Doorways | None]:
    """In the block it is this daemon's turn to serve its root.

    Yields:
        Where connections come; None when it was told to stop before.

    Raises:
        StorageUnusable: the root cannot be served.
        CannotListen: an address or a port is not to be had.
    """
    if not settings.standby:
        yield Doorways()
        return
    options = StorageOptions(group_writable=settings.group_writable, root_owner=settings.root_owner)
    turn = await trio.to_thread.run_sync(open_turn, settings.folder, options)
    opened: list[Doorway] = []
    try:
        listeners = await listen(settings.address, settings.port, shares_port=settings.reuse_port)
        http = Doorway("http", listeners, None if settings.tls_cert else answer_of_standby)
        opened.append(http)
        amqp = await _amqp_doorway(settings)
        opened += [amqp] if amqp is not None else []
        guards = _guards(settings)
        if not turn.take():
            stands_by([url("https" if settings.tls_cert else "http", each) for each in http.listeners])
            await _wait(Standby(turn.socket, opened, guards), turn.take, stop)
        yield None if stop.is_set() else Doorways(http, amqp, Owner(turn.socket, opened, guards))
    finally:
        for doorway in opened:
            doorway.close()
        turn.close()


async def _wait(standby: Standby, take: Callable[[], bool], stop: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def heed() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(heed)
        await standby.wait(take)
        nursery.cancel_scope.cancel()


async def _amqp_doorway(settings: Settings) -> Doorway | None:
    if not settings.serves_amqp:
        return None
    return await open_doorway(
        settings.address,
        AMQP_PORT if settings.amqp_port is None else settings.amqp_port,
        shares_port=settings.reuse_port,
        needs_port=settings.amqp_port is not None,
    )


def _guards(settings: Settings) -> bytes:
    """Says how the servers are guarded, in a few bytes."""
    files = (settings.users, settings.tls_cert, settings.tls_key, settings.tls_client_ca, settings.tls_crl)
    return hashlib.sha256(repr(files).encode()).hexdigest().encode()
