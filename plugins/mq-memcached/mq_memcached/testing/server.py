"""A memcached of one's own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from typing import Final
from urllib.parse import unquote

from mq.testing.ports import HeldPort

PROGRAM: Final = shutil.which("memcached")
"""Where the program is; None where it is not installed."""
PATIENCE_SECONDS: Final = 20


class Server:
    """One memcached on a free port of 127.0.0.1.

    Args:
        flags: of its command line; -M, as it should be, where there are none.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags or ("-M",)
        self._held = HeldPort()
        self.port = self._held.number
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Again, on the same port; what was in it is lost."""
        assert PROGRAM is not None
        user = ["-u", "nobody"] if os.getuid() == 0 else []
        arguments = [PROGRAM, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", *user, *self._flags]
        self._process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + PATIENCE_SECONDS
        while not self.answers():
            assert self._process.poll() is None, f"memcached ended with {self._process.returncode}"
            assert time.monotonic() < ends, "memcached does not answer"
            time.sleep(0.01)

    def answers(self) -> bool:
        """Whether it takes connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        """At once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def fill_with(self, key_length: int, value_length: int) -> None:
        """Store items of that size until there is no room for another."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection, connection.makefile("rwb") as file:
            reply, number = b"STORED", 0
            while reply.startswith(b"STORED"):
                file.write(b"add %0*d 0 0 %d\r\n%*s\r\n" % (key_length, number, value_length, value_length, b""))
                file.flush()
                reply, number = file.readline(), number + 1

    def listed(self) -> set[str]:
        """All keys that stay."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection, connection.makefile("rwb") as file:
            file.write(b"lru_crawler metadump all\r\n")
            file.flush()
            found = set()
            while not (line := file.readline()).startswith(b"END"):
                key, expires, *_ = line.decode().split()
                if expires == "exp=-1":
                    found.add(unquote(key.removeprefix("key=")))
            return found
