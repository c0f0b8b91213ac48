"""Active and standby daemons: one, the *owner*, serves a root, and the others stand by.

Each listens. A daemon that stands by hands every accepted connection to the owner, as an open file (unix(7),
SCM_RIGHTS): bytes between client and owner do not pass through it. It reaches the owner over the owner's Unix socket.
The socket ends with the owner, and then the next daemon takes its turn; until then connections wait in the kernel.

A connection that could not be handed over stays with the daemon that accepted it: it is handed to the next owner, or
served here, when that is this daemon. Whether a daemon is alive it answers for itself: a supervisor must not end it
because the owner hangs.
"""

from __future__ import annotations

import array
import logging
import os
import socket as sockets
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from mq.doors.connections import peer_of, uid_of
from mq.doors.listeners import CannotListen, PromptListener, stream_over

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.02
"""How often a daemon looks whether it is its turn, while it reaches no owner."""
BEAT_SECONDS: Final = 1.0
"""How often an owner says that it lives."""
SILENT_SECONDS: Final = 5.0
"""An owner that says nothing for so long gets no more connections: it hangs."""
MOST_KEPT: Final = 65_536
"""Connections of a server that wait to be served."""
MOST_ACCEPTED: Final = 1000
"""Connections of a server that a daemon accepts while it can hand over none; others wait in the kernel."""
FIRST_BYTES_SECONDS: Final = 1.0
"""How long a daemon waits for the first bytes of a connection before it hands the connection over all the same."""
_FIRST_BYTES: Final = 256
_WELCOME: Final = b"welcome"
_STRANGE: Final = b"strange"
_BEAT: Final = b"."
_LONGEST_WORD: Final = 128
_LINKS: Final = 64
_MODE: Final = 0o600
_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group (unix(7), SO_PEERCRED)."""
_FILE_SIZE: Final = array.array("i").itemsize


Probe = Callable[[bytes], bytes | None]
"""Given the first bytes of a connection, returns the answer of the daemon that accepted it; None to hand it over."""


class Doorway:
    """Where the connections of one protocol come from: its listeners, and the daemons that stand by.

    Args:
        name: of the protocol. All daemons call it the same.
        listeners: its own; perhaps none.
        probe: answers what a daemon that stands by answers itself; None where it hands over everything.
    """

    def __init__(self, name: str, listeners: Sequence[trio.SocketListener], probe: Probe | None = None) -> None:
        self.name = name
        self.listeners = listeners
        self.probe = probe
        self._put, self._handed = trio.open_memory_channel[trio.SocketStream](MOST_KEPT)

    def keep(self, stream: trio.SocketStream) -> None:
        """Keep a connection until it is served here, or handed over. Once the listener is closed, it is closed, too."""
        try:
            self._put.send_nowait(stream)
        except (trio.BrokenResourceError, trio.WouldBlock):
            stream.socket.close()

    def kept(self) -> list[trio.SocketStream]:
        """The connections that were kept, the oldest first. They are the caller's from now on."""
        return list(iter(self.first_kept, None))

    def first_kept(self) -> trio.SocketStream | None:
        """The oldest kept connection, the caller's from now on; None without one."""
        with suppress(trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
            return self._handed.receive_nowait()
        return None

    async def next_kept(self) -> trio.SocketStream:
        """Wait for a kept connection, the oldest first. It is the caller's from now on."""
        return await self._handed.receive()

    @property
    def is_crowded(self) -> bool:
        """Whether so many connections are kept that no more are to be accepted."""
        return self._put.statistics().current_buffer_used >= MOST_ACCEPTED

    def serving(self) -> list[trio.abc.Listener[trio.SocketStream]]:
        """All ways in, for the server of the protocol. It closes them."""
        return [*map(PromptListener, self.listeners), _Kept(self, self._handed)]

    def close(self) -> None:
        """Close the listeners, and the connections that were kept."""
        for listener in self.listeners:
            listener.socket.close()
        for stream in self.kept():
            stream.socket.close()
        self._handed.close()


class _Kept(trio.abc.Listener[trio.SocketStream]):
    """The connections that are kept, as a listener."""

    def __init__(self, doorway: Doorway, handed: trio.MemoryReceiveChannel[trio.SocketStream]) -> None:
        self._doorway = doorway
        self._handed = handed

    async def accept(self) -> trio.SocketStream:
        return await self._handed.receive()

    async def aclose(self) -> None:
        for stream in self._doorway.kept():
            stream.socket.close()
        await self._handed.aclose()


class _Borrowed(trio.abc.Listener[trio.SocketStream]):
    """A listener of a server, which stays open when its server closes it, and accepts no more than can be kept."""

    def __init__(self, listener: trio.SocketListener, doorway: Doorway) -> None:
        self._listener = PromptListener(listener)
        self._doorway = doorway

    async def accept(self) -> trio.SocketStream:
        while self._doorway.is_crowded:  # noqa: ASYNC110 - handing over makes room without an event
            await trio.sleep(PAUSE_SECONDS)
        return await self._listener.accept()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class StrangeOwner(CannotListen):
    """The owner guards its servers in another way than this daemon would."""


class Standby:
    """Hands connections to the owner.

    Args:
        guards: says how the servers are guarded. The owner has to say the same.
    """

    def __init__(self, path: str, doorways: Sequence[Doorway], guards: bytes) -> None:
        self._path = path
        self._doorways = doorways
        self._guards = guards
        self._warned_of = 0

    async def wait(self, take: Callable[[], bool]) -> None:
        """Hand connections over until `take` says that it is this daemon's turn.

        Raises:
            StrangeOwner: the servers would be guarded in another way than this daemon's settings say.
        """
        async with trio.open_nursery() as nursery:
            for doorway in self._doorways:
                if doorway.listeners:
                    nursery.start_soon(_accept_all, doorway)
            while not take():
                with suppress(OSError), _new_socket() as link:
                    await link.connect(self._path)
                    await self._serve(link)
                await trio.sleep(PAUSE_SECONDS)
            nursery.cancel_scope.cancel()

    async def _serve(self, link: trio.socket.SocketType) -> None:
        """Hand over until the owner ends."""
        if not _is_ours(link):
            return  # a group may write in the root: another of it waits for connections that are not its own
        await link.send(self._guards)
        if await self._hear(link) != _WELCOME:
            return
        async with trio.open_nursery() as nursery:
            for doorway in self._doorways:
                nursery.start_soon(self._hand_all, doorway, link)
            while await self._hear(link):
                pass
            nursery.cancel_scope.cancel()

    async def _hear(self, link: trio.socket.SocketType) -> bytes:
        """The owner's next message; empty when it has ended, or hangs."""
        said = b""
        with trio.move_on_after(SILENT_SECONDS) as patience, suppress(OSError):
            said = await link.recv(_LONGEST_WORD)
        if patience.cancelled_caught:
            self._warn(_pid_of(link))
        if said == _STRANGE:
            raise StrangeOwner(
                "the active daemon of this root was started with a different users file or different TLS files than "
                "this daemon. Start all daemons of a root with the same --users and --tls-* settings"
            )
        return said

    def _warn(self, pid: int) -> None:
        if pid != self._warned_of:
            self._warned_of = pid
            logger.error(
                "the active daemon, process %d, has not responded for %g s but still holds the root's lock. "
                "Kill it (kill -9 %d) so that this standby can take over",
                pid,
                SILENT_SECONDS,
                pid,
            )

    async def _hand_all(self, doorway: Doorway, link: trio.socket.SocketType) -> None:
        """Hand over the connections of one protocol, for ever."""
        while True:
            await self._hand(doorway, link, await doorway.next_kept())

    async def _hand(self, doorway: Doorway, link: trio.socket.SocketType, stream: trio.SocketStream) -> None:
        """Hand one over, or keep it. A link that refused it is over."""
        handle = array.array("i", [stream.socket.fileno()])
        is_handed = False
        try:
            with suppress(OSError):
                await link.sendmsg([doorway.name.encode()], [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, handle)])
                is_handed = True
        finally:
            if not is_handed:
                _keep_copy(doorway, stream)
                with suppress(OSError):
                    link.shutdown(sockets.SHUT_RDWR)
            stream.socket.close()


async def _accept_all(doorway: Doorway) -> None:
    """Accept the connections of one protocol, for ever, and keep what has to be handed over."""

    async def admit(stream: trio.SocketStream) -> None:
        is_answered = False
        try:
            is_answered = doorway.probe is not None and await _answer(doorway.probe, stream)
        finally:
            if not is_answered:
                _keep_copy(doorway, stream)  # the server of these listeners closes the stream itself

    await trio.serve_listeners(admit, [_Borrowed(listener, doorway) for listener in doorway.listeners])


async def _answer(probe: Probe, stream: trio.SocketStream) -> bool:
    """Answer a connection if its first bytes ask for what a daemon that stands by answers; they stay unread if not."""
    first = b""
    with trio.move_on_after(FIRST_BYTES_SECONDS), suppress(OSError):
        first = await stream.socket.recv(_FIRST_BYTES, sockets.MSG_PEEK)
    answer = probe(first)
    if answer is None:
        return False
    with trio.move_on_after(FIRST_BYTES_SECONDS), suppress(trio.BrokenResourceError):
        await stream.receive_some()  # or else closing resets the connection, and takes the answer along
        await stream.send_all(answer)
    return True


def _keep_copy(doorway: Doorway, stream: trio.SocketStream) -> None:
    with suppress(OSError):  # without a handle for it, it is lost
        doorway.keep(stream_over(sockets.socket(fileno=os.dup(stream.socket.fileno()))))


class Owner:
    """Takes the connections that daemons hand over while they stand by.

    Args:
        guards: says how the servers are guarded. A daemon that says something else hands nothing over.
    """

    def __init__(self, path: str, doorways: Sequence[Doorway], guards: bytes) -> None:
        self._path = path
        self._doorways = {doorway.name.encode(): doorway for doorway in doorways}
        self._guards = guards

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take connections, for ever. Started once there is a socket.

        Raises:
            CannotListen: there cannot be one.
        """
        try:
            listening = await self._listen()
        except OSError as error:
            raise CannotListen(f"cannot listen for standby daemons: {error.strerror}") from error
        try:
            async with trio.open_nursery() as nursery:
                task_status.started()
                while True:
                    try:
                        link, _ = await listening.accept()
                    except OSError as error:  # out of handles, mostly
                        logger.warning("cannot accept connections from a standby daemon: %s", error.strerror)
                        await trio.sleep(BEAT_SECONDS)
                    else:
                        nursery.start_soon(self._serve, link)
        finally:
            listening.close()
            with suppress(OSError):
                os.unlink(self._path)

    async def _listen(self) -> trio.socket.SocketType:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise CannotListen(
                    "cannot listen for standby daemons: the file state/turn in the root folder is not a socket. Move "
                    "it elsewhere"
                )
            os.unlink(self._path)  # of an owner that has ended, for this one has the lock
        opened = _new_socket()
        try:
            os.fchmod(opened.fileno(), _MODE)  # the kernel makes the file with it
            await opened.bind(self._path)
            opened.listen(_LINKS)
        except BaseException:
            opened.close()
            raise
        return opened

    async def _serve(self, link: trio.socket.SocketType) -> None:
        """Take what one daemon hands over, until it ends."""
        with link, suppress(OSError):
            if not _is_ours(link):
                return
            guards = b""
            with trio.move_on_after(SILENT_SECONDS):
                guards = await link.recv(_LONGEST_WORD)
            if guards != self._guards:
                await link.send(_STRANGE)
                return
            await link.send(_WELCOME)
            logger.info("process %d is on standby for this daemon", _pid_of(link))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_beat, link)
                await self._take(link)
                nursery.cancel_scope.cancel()

    async def _take(self, link: trio.socket.SocketType) -> None:
        room = sockets.CMSG_SPACE(_FILE_SIZE)
        with suppress(OSError):
            while True:
                name, given, _, _ = await link.recvmsg(_LONGEST_WORD, room, sockets.MSG_CMSG_CLOEXEC)
                if not name:
                    return
                for stream in _streams(given):
                    self._doorways[name].keep(stream) if name in self._doorways else stream.socket.close()


def _streams(given: Sequence[tuple[int, int, bytes]]) -> list[trio.SocketStream]:
    """The connections of a message; none where this process had no handle left for it."""
    found = array.array("i")
    for level, kind, data in given:
        if (level, kind) == (sockets.SOL_SOCKET, sockets.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _FILE_SIZE])
    return [stream_over(sockets.socket(fileno=handle)) for handle in found]


async def _beat(link: trio.socket.SocketType) -> None:
    """Say that this daemon lives, for as long as the other one listens."""
    with suppress(OSError):
        while True:
            await link.send(_BEAT)
            await trio.sleep(BEAT_SECONDS)


def _new_socket() -> trio.socket.SocketType:
    return trio.socket.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)  # which keeps messages apart


def _is_ours(link: trio.socket.SocketType) -> bool:
    """Whether the process at the other end is this user's, or root's."""
    return uid_of(peer_of(link).address) in (0, os.geteuid())


def _pid_of(link: trio.socket.SocketType) -> int:
    """The process that listens at the other end."""
    return int(_CREDENTIALS.unpack(link.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size))[0])
