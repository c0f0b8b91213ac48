"""Free ports for servers that need one as an argument."""

from __future__ import annotations

import socket
import weakref


class HeldPort:
    """A TCP port that is ours for as long as this object lives.

    It is bound without listening. A program that asks the kernel for a free port, or connects somewhere, gets another;
    a server that sets ``SO_REUSEADDR``, as servers do, may listen on it, and again after it was killed. A port that is
    looked up, let go and then told to a server can be another program's by then.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        holding = socket.socket()
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind((address, 0))
        self.number: int = holding.getsockname()[1]
        self.close = weakref.finalize(self, holding.close)
        """Let it go sooner."""

    def __str__(self) -> str:
        return str(self.number)
