"""A real daemon on a host of a test's own, and clients on another one."""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from tests.hosts.network import Host, HostsFailed, Process

T = TypeVar("T")

PORT: Final = 8080
_START_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class HostDaemon:
    """One ``mq`` on a host.

    Args:
        client: the host from which it is looked whether it is ready.
        root: where its messages are, as that host sees it.
    """

    def __init__(self, host: Host, client: Host, root: Path, log: Path, *arguments: str) -> None:
        self.host = host
        self.address = host.address
        self.port = PORT
        self.log = log
        self._client = client
        self._command = [sys.executable, "-m", "mq", "--root", str(root), "--address", host.address]
        self._command += ["--port", str(PORT), "--amqp-port", "0", "--insecure", *arguments]
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        assert self._process is not None, "it does not run"
        return self._process

    def start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            HostsFailed: it is not, in time.
        """
        self._process = self.host.start(*self._command, log=self.log)
        deadline = time.monotonic() + _START_SECONDS
        while not self.is_ready():
            if not self.process.is_running() or time.monotonic() > deadline:
                raise HostsFailed(f"the daemon on {self.host.name} is not ready:\n{self.process.last_words()}")
            time.sleep(_POLL_SECONDS)

    def is_ready(self) -> bool:
        """Whether it answers that it takes messages."""
        connection = http.client.HTTPConnection(self.address, self.port, timeout=5)
        try:
            with self._client.inside():
                connection.request("GET", "/-/ready")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def on(host: Host, task: Callable[[], T]) -> Callable[[], T]:
    """The task, with all its connections made from a host."""

    def run() -> T:
        with host.inside():
            return task()

    return run
