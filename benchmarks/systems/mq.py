"""mq itself, as its users start it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.http import HttpBatchCodec, HttpCodec
from benchmarks.systems.system import CannotStart, Server, System, free_port, process, wait_for_port

_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Mq(System):
    """One daemon, over HTTP."""

    name = "mq"
    title = "mq, HTTP"
    durability = "each publish, lease and removal is on the disk, file and name, before its answer"
    codec = HttpCodec
    flags: Sequence[str] = ()

    def absence(self) -> str:
        """As in System."""
        return ""

    def version(self) -> str:
        """As in System."""
        return version("mq")

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System."""
        with self._daemon(folder, "0", *self.flags) as (port, pid):
            yield Server([port], [pid])

    @contextmanager
    def _daemon(self, folder: Path, port: str, *flags: str) -> Iterator[tuple[int, int]]:
        log = folder / f"log-{time.monotonic_ns()}"
        command = [
            sys.executable,
            "-m",
            "mq",
            "--root",
            str(folder / "root"),
            "--port",
            port,
            "--amqp-port",
            "0",
            *flags,
        ]
        with process(command, log) as running:
            yield _port_of(running, log), running.pid


class MqBatches(Mq):
    """One daemon, a hundred messages a request."""

    name = "mq-batches"
    title = "mq, HTTP, batches of 100"
    codec = HttpBatchCodec


class MqPeers(Mq):
    """Two daemons on one root."""

    name = "mq-peers"
    title = "mq, two daemons"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System: on one port where they can share it, else on two."""
        shared = ["--reuse-port"] if knows("--reuse-port") else []
        with ExitStack() as stack:
            port = str(free_port()) if shared else "0"
            both = [stack.enter_context(self._daemon(folder, port, "--peers", "1", *shared)) for _ in range(2)]
            yield Server([port for port, _ in both], [pid for _, pid in both])


class MqAmqp(Mq):
    """One daemon, over AMQP."""

    name = "mq-amqp"
    title = "mq, AMQP"
    durability = "each confirmed publish is on the disk, file and name; acknowledgements are not answered"
    codec = AmqpCodec

    def absence(self) -> str:
        """As in System."""
        return "" if knows("--amqp-port") else "this mq does not speak AMQP yet"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System."""
        port, log = free_port(), folder / "log"
        command = [
            sys.executable,
            "-m",
            "mq",
            "--root",
            str(folder / "root"),
            "--port",
            "0",
            "--amqp-port",
            "0",
            *self.flags,
        ]
        command += ["--amqp-port", str(port)]
        with process(command, log) as running:
            wait_for_port(running, port, log)
            yield Server([port], [running.pid])


@functools.cache
def knows(flag: str) -> bool:
    """Whether this mq has the flag."""
    done = subprocess.run([sys.executable, "-m", "mq", "serve", "--help"], capture_output=True, text=True, timeout=60)
    return flag in done.stdout


def _port_of(running: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        found = _LISTENS.search(log.read_text())
        if found is not None:
            return int(found[1])
        time.sleep(0.02)
    raise CannotStart(log.read_text()[-500:])
