"""What a system is: a server that can be started, the protocol it speaks, and what it promises."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load.codec import Codec
from mq.testing.ports import HeldPort

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05


class CannotStart(Exception):
    """A server does not listen; says where its log is."""


class Server:
    """One that runs.

    Attributes:
        ports: where it listens on 127.0.0.1.
        pids: its processes; those below them belong to it, too.
    """

    def __init__(self, ports: Sequence[int], pids: Sequence[int]) -> None:
        self.ports = tuple(ports)
        self.pids = tuple(pids)


class System(ABC):
    """A kind of server.

    Attributes:
        package: the Debian package that has it; empty for mq.
        durable: whether that holds without power for each confirmed publish.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    package: ClassVar[str] = ""
    command: ClassVar[tuple[str, ...]] = ()
    durability: ClassVar[str]
    durable: ClassVar[bool] = True
    codec: ClassVar[type[Codec]]

    def absence(self) -> str:
        """Return why it cannot be measured here; empty when it can."""
        return "" if shutil.which(self.command[0]) else f"no {self.command[0]} here (apt install {self.package})"

    def version(self) -> str:
        """Return its version, as its users know it: the first number with dots that its program prints."""
        done = subprocess.run(self.command, capture_output=True, text=True, timeout=START_SECONDS)
        found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
        return found[0] if found else "unknown"

    @abstractmethod
    def start(self, folder: Path) -> AbstractContextManager[Server]:
        """Run it for the length of a block, with all its data below `folder`, which is there and empty."""


class Program(System):
    """A system of one process."""

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        held = HeldPort()
        with listening(self._words(folder, held.number), held.number, folder) as server:
            yield server

    @abstractmethod
    def _words(self, folder: Path, port: int) -> list[str]:
        """Prepare the folder; return the command that serves it at the port."""


@contextmanager
def process(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process for the length of the block, in a session of its own; it is asked to stop, and then made to."""
    with log.open("ab") as output:
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield running
    finally:
        running.terminate()
        with suppress(subprocess.TimeoutExpired):
            running.wait(STOP_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)  # what it has started and left, too
        running.wait()


@contextmanager
def listening(command: Sequence[str], port: int, folder: Path) -> Iterator[Server]:
    """A server of one process for the length of the block, from when it listens. Its log is in `folder`."""
    log = folder / f"log-{port}"
    with process(command, log) as running:
        wait_for_port(running, port, log)
        yield Server([port], [running.pid])


def wait_for_port(running: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Until it listens.

    Raises:
        CannotStart: it has ended, or takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_SECONDS)
        else:
            return
    raise CannotStart(f"nobody listens on port {port}: {log.read_text(errors='replace')[-500:]}")
