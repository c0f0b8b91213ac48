"""A wire that counts commands: it lets so many of them through to the server, and then strikes their sender."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BLOCKS = (b"set", b"add", b"cas")
"""Commands that are followed by a block of bytes, whose length is their fifth word."""


def length_of_command(data: bytes) -> int | None:
    """How many bytes the first command in `data` has; None when it is not all there."""
    line, end, _ = data.partition(b"\r\n")
    if not end:
        return None
    words = line.split()
    length = len(line) + 2 + (int(words[4]) + 2 if words[0] in BLOCKS else 0)
    return length if len(data) >= length else None


class Wire:
    """Between one client and the server.

    Attributes:
        has_struck: whether it has come to that.

    Args:
        strike: called when one more is sent; nothing more passes, in either direction.
        port: where the client connects; a free one where it is 0.
    """

    def __init__(self, server_port: int, allowed: int, strike: Callable[[], None], port: int = 0) -> None:
        self._server_port = server_port
        self._left = allowed
        self._strike = strike
        self._turn = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self.port: int = self._listener.getsockname()[1]
        self.commands: list[bytes] = []
        self.has_struck = False
        self._is_closing = False
        self._start(self._accept)

    def close(self) -> None:
        """Let go of everything."""
        self._is_closing = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass  # wakes the thread that waits there, where closing does not
        self._threads[0].join(10)
        self._listener.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self._sockets.append(client)
            if self._is_closing:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets.append(server)
            self._start(self._to_server, client, server)
            self._start(self._to_client, server, client)

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        data = b""
        with contextlib.suppress(OSError):
            while more := client.recv(65536):
                data += more
                while (length := length_of_command(data)) is not None:
                    if not self._pass(data[:length], server):
                        client.shutdown(socket.SHUT_RDWR)
                        return
                    data = data[length:]

    def _pass(self, command: bytes, server: socket.socket) -> bool:
        with self._turn:
            if self._left <= 0:
                self._hit()
                return False
            self._left -= 1
            self.commands.append(command.partition(b"\r\n")[0])
            server.sendall(command)
            return True

    def _hit(self) -> None:
        if not self.has_struck:
            self.has_struck = True
            now = list(self._sockets)  # a new connection is not cut
            self._strike()
            for each in now:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)


@contextmanager
def wire_to(server_port: int, allowed: int = 1 << 30, strike: Callable[[], None] = lambda: None) -> Iterator[Wire]:
    """A :class:`Wire` for the length of the block."""
    wire = Wire(server_port, allowed, strike)
    try:
        yield wire
    finally:
        wire.close()
