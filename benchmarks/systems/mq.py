"""mq itself, as its users start it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.codec import Codec
from benchmarks.load.http import HttpCodec
from benchmarks.systems.system import CannotStart, Server, System, process
from mq.testing.ports import HeldPort

_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Mq(System):
    """One daemon, over HTTP."""

    name = "mq"
    title = "mq, HTTP"
    durability = "each publish, lease and removal is on the disk, file and name, before its answer"
    codec: ClassVar[type[Codec]] = HttpCodec

    def absence(self) -> str:
        """As in System."""
        return ""

    def version(self) -> str:
        """As in System."""
        return version("mq")

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System."""
        with self._daemon(folder) as (port, pid):
            yield Server([port], [pid])

    @contextmanager
    def _daemon(self, folder: Path, amqp_port: int = 0) -> Iterator[tuple[int, int]]:
        """Its port for HTTP, and its process."""
        log = folder / f"log-{time.monotonic_ns()}"
        words = ["--root", str(folder / "root"), "--port", "0", "--amqp-port", str(amqp_port)]
        with process([sys.executable, "-m", "mq", *words], log) as running:
            yield _port_of(running, log), running.pid


class MqAmqp(Mq):
    """One daemon, over AMQP."""

    name = "mq-amqp"
    title = "mq, AMQP"
    durability = "each confirmed publish is on the disk, file and name; acknowledgements are not answered"
    codec = AmqpCodec

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System."""
        held = HeldPort()
        with self._daemon(folder, held.number) as (_, pid):
            yield Server([held.number], [pid])


def _port_of(running: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        found = _LISTENS.search(log.read_text())
        if found is not None:
            return int(found[1])
        time.sleep(0.02)
    raise CannotStart(log.read_text()[-500:])
