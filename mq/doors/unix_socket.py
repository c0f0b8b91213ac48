"""A listener at the path of a Unix socket, which only users that its mode allows may reach; or one clear line why not.

States of the path, and what ends them:

* nothing, or the socket of a dead daemon (connecting is refused): it is replaced by ours;
* our socket: it takes connections only once it has its mode, and is taken away when the listener ends, as long as it is
  still ours. A crash leaves it to the next daemon;
* anything else: it stays as it is, and we do not start.

Daemons that look at one path take turns by a lock on its folder, so none takes away what another has just made.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from mq.doors.listeners import BACKLOG, CannotListen
from mq.message import shorten

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
        raise CannotListen(f"cannot listen on {shorten(path)}: a socket's path has at most {LONGEST_PATH} bytes")
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
    raise CannotListen(f"cannot listen on {shorten(path, 200)}: another program keeps its folder locked")


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
        raise CannotListen(f"cannot listen on {shorten(path, 200)}: something that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        with suppress(BlockingIOError):  # its backlog is full: it is served
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
    raise CannotListen(f"cannot listen on {shorten(path, 200)}: another program serves there")


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
