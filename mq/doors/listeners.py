"""Listeners at an address and a port, or at the path of a Unix socket, or one clear line why not; the handshake of TLS.

A server takes a stream of TLS for any other: its guards and limits are the same.

States of the path of a Unix socket, and what ends them. Its mode says which users may reach it:

* nothing, or the socket of a dead daemon (connecting is refused): it is replaced by ours;
* our socket: it takes connections only once it has its mode, and is taken away when the listener ends, as long as it is
  still ours. A crash leaves it to the next daemon;
* anything else: it stays as it is, and we do not start.

Daemons that look at one path take turns by a lock on its folder, so none takes away what another has just made.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import ssl
import stat
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final
from weakref import WeakKeyDictionary

import trio

from mq.doors.readers import ACCEPTING, CONNECTION, HANDSHAKE, Reader
from mq.errors import MQError
from mq.message import shorten

logger = logging.getLogger(__name__)

BACKLOG: Final = 65_535
"""The kernel lowers it to what it allows, as it does for Trio's."""


ACCEPTED_TOGETHER: Final = 4
"""Connections for which room in a pass of the event loop is waited for at once."""
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
    """Accepts several connections in a pass of the event loop, as far as readers have room in it. Trio accepts one a
    pass, which keeps newcomers waiting for seconds where thousands are served.
    """

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._reader = Reader(ACCEPTING)
        self._allowed = 0

    async def accept(self) -> trio.SocketStream:
        """The next connection. Errors are those of :meth:`trio.SocketListener.accept`."""
        if not self._allowed:  # several at a time: while others wait, each time is a pass of the event loop
            await self._reader.pay(ACCEPTED_TOGETHER * CONNECTION)
            self._allowed = ACCEPTED_TOGETHER
        self._allowed -= 1
        while self._listener.socket.fileno() >= 0:
            try:
                return self._accept_now()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listener.socket)
            except OSError:
                break
        return await self._listener.accept()  # it meets the error again, and knows which errors pass

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
        raise CannotListen(
            f"cannot listen on {shorten(address)}: it is neither a valid IP address nor a known host name"
        ) from error


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
    """The stream under TLS; None where the handshake failed: then close what was accepted."""
    tls = TLSStream(stream, context, server_side=True)
    is_done = False
    async with trio.open_nursery() as nursery:

        async def give_up() -> None:
            await stopped()
            nursery.cancel_scope.cancel()

        nursery.start_soon(give_up)
        with trio.move_on_after(HANDSHAKE_SECONDS):
            await trio.lowlevel.wait_readable(stream.socket)  # what costs is the answer to the client's first words
            await Reader().pay(HANDSHAKE)
            is_done = await _shake(tls)
        nursery.cancel_scope.cancel()
    return tls if is_done else None


async def _shake(tls: TLSStream) -> bool:
    try:
        await tls.do_handshake()
    except trio.BrokenResourceError as error:
        logger.debug("TLS handshake failed: %s", error.__cause__ or "the client disconnected")
        return False
    return True


# At the path of a Unix socket


LONGEST_PATH: Final = 107
"""In bytes: the kernel's limit, less the zero at its end."""
LOCK_SECONDS: Final = 5.0
"""How long other programs may hold the folder: any user that can read it can."""
_PAUSE_SECONDS: Final = 0.02


@asynccontextmanager
async def listen_unix(path: str, mode: int) -> AsyncGenerator[trio.SocketListener]:
    """A listener at that path, for the length of the block. At its end the path is free, unless another program has it.

    Args:
        path: where; the socket of a dead daemon is replaced.
        mode: of the socket's file, such as 0o600: write permission lets a user connect.

    Raises:
        CannotListen: another program serves there, something else is there, or the folder does not let us.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotListen(f"cannot listen on {shorten(path)}: a socket path must not exceed {LONGEST_PATH} bytes")
    try:
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _cannot(path, error) from error
    try:
        listening, held = await _bind_in_turn(folder, path, mode)
        try:
            with listening:
                yield trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        finally:
            _remove(folder, path, held)
            os.close(held)
    finally:
        os.close(folder)


async def _bind_in_turn(folder: int, path: str, mode: int) -> tuple[socket.socket, int]:
    try:
        with trio.move_on_after(LOCK_SECONDS):
            while not _lock(folder):  # noqa: ASYNC110 # another process holds it, and does not tell when it ends
                await trio.sleep(_PAUSE_SECONDS)
            try:
                _make_room(path)
                return _bind(path, mode)
            finally:
                fcntl.flock(folder, fcntl.LOCK_UN)
    except OSError as error:
        raise _cannot(path, error) from error
    raise CannotListen(f"cannot listen on {shorten(path, 200)}: another program has locked the socket's folder")


def _lock(folder: int) -> bool:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_room(path: str) -> None:
    """Take away the socket of a dead daemon, and nothing else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise CannotListen(
            f"cannot listen on {shorten(path, 200)}: the file exists and is not a socket. Remove it, or "
            "choose another path"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        with suppress(BlockingIOError):  # its backlog is full: it is served
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
    raise CannotListen(f"cannot listen on {shorten(path, 200)}: another program is listening there")


def _bind(path: str, mode: int) -> tuple[socket.socket, int]:
    """The listening socket, and a descriptor of its file. The descriptor only serves to recognise the file: while it is
    open, no other file gets its inode's number."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The kernel gives the file the mode of the socket, less the umask. The umask itself is the whole process's:
        # threads of the store, which make folders, would get another one for a moment.
        os.fchmod(listening.fileno(), mode)
        listening.bind(path)
        held = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_IMODE(os.fstat(held).st_mode) != mode:
                os.chmod(f"/proc/self/fd/{held}", mode)  # of the file itself, not of what a link at the path leads to
            listening.listen(BACKLOG)  # none gets in before
        except BaseException:
            os.close(held)
            raise
    except BaseException:
        listening.close()
        raise
    return listening, held


def _remove(folder: int, path: str, held: int) -> None:
    """Remove our socket, unless another daemon holds the lock: that one replaces it."""
    if not _lock(folder):
        return
    with suppress(OSError):  # it is gone, or the folder is no longer ours to write in
        if os.path.samestat(os.lstat(path), os.fstat(held)):
            os.unlink(path)


def _cannot(path: str, error: OSError) -> CannotListen:
    return CannotListen(f"cannot listen on {shorten(path, 200)}: {error.strerror or error}")
