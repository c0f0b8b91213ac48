"""The real daemon as a process of its own: started, killed, started again, stopped.

Every wait has an end. The process is only ever ended by its own id.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.e2e.prepared import TREE, Popen

__all__ = ["START_SECONDS", "TREE", "Daemon", "DaemonFailed"]

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.02
_LISTENS: Final = re.compile(r"(?:is serving .* on|is on standby at) http://127\.0\.0\.1:(\d+)")


class DaemonFailed(Exception):
    """The daemon did not start, did not stop, or ended by itself. The text has the end of its log."""


class Daemon:
    """One ``mq`` on a free port of 127.0.0.1, which changes with each start.

    Args:
        log: where all that it says is kept, over all its lives.
        arguments: more for its command line; ``MQ_NAME=VALUE`` goes to its environment.
    """

    def __init__(self, root: Path, log: Path, *arguments: str) -> None:
        self.root = root
        self.log = log
        self.address = "127.0.0.1"
        self.port = 0
        self.starts = 0
        self._arguments = [each for each in arguments if not each.startswith("MQ_")]
        self._variables = dict(each.split("=", 1) for each in arguments if each.startswith("MQ_"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Daemon:
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self.kill(by_us=False)

    @property
    def pid(self) -> int:
        """The process that runs now."""
        assert self._process is not None, "it does not run"
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            DaemonFailed: it is not, in time.
        """
        assert self._process is None, "it runs already"
        command = [*self._program(), "--root", str(self.root), "--port", "0", "--amqp-port", "0", *self._arguments]
        with self.log.open("ab") as log:
            begin = log.tell()
            self._process = Popen(
                command, cwd=TREE, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.starts += 1
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(begin):
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                self.kill(by_us=False)
                raise DaemonFailed(f"not ready, exit status {status}:\n{self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def kill(self, *, by_us: bool = True) -> None:
        """kill -9. With `by_us` it has to be alive until then.

        Raises:
            DaemonFailed: it ended by itself.
        """
        process = self._let_go()
        ended = process.poll()
        process.send_signal(signal.SIGKILL)
        process.wait(STOP_SECONDS)
        if by_us and ended is not None:
            raise DaemonFailed(f"it ended by itself, exit status {ended}:\n{self.last_words()}")

    def stop(self) -> None:
        """Ask it to end, as an operator does.

        Raises:
            DaemonFailed: it does not in time, or says that something went wrong.
        """
        process = self._let_go()
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_SECONDS)
            raise DaemonFailed(f"it did not stop in {STOP_SECONDS} seconds:\n{self.last_words()}") from None
        if status != 0:
            raise DaemonFailed(f"it stopped with status {status}:\n{self.last_words()}")

    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def last_words(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _program(self) -> list[str]:
        """The command, up to its arguments."""
        return [sys.executable, "-m", "mq"]

    def _environment(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("MQ_")} | self._variables

    def _let_go(self) -> subprocess.Popen[bytes]:
        process, self._process, self.port = self._process, None, 0
        assert process is not None, "it does not run"
        return process

    def _is_ready(self, begin: int) -> bool:
        """Whether it has said where it listens, and answers there that it takes messages."""
        with self.log.open("rb") as log:
            log.seek(begin)
            said = _LISTENS.search(log.read().decode(errors="replace"))
        if said is None:
            return False
        connection = http.client.HTTPConnection("127.0.0.1", int(said[1]), timeout=5)
        try:
            connection.request("GET", "/-/ready")
            ready = connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if ready:
            self.port = int(said[1])
        return ready
