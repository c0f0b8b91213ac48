"""mq itself, as its users start it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.codec import Codec
from benchmarks.load.http import HttpBatchCodec, HttpCodec
from benchmarks.systems.system import CannotStart, Server, System, process
from mq.testing.ports import HeldPort

_LISTENS: Final = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Mq(System):
    """One daemon, over HTTP."""

    name = "mq"
    title = "mq, HTTP"
    durability = "each publish, lease and removal is on the disk, file and name, before its answer"
    codec: ClassVar[type[Codec]] = HttpCodec
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
        with self._daemon(folder, *self.flags) as (port, pid):
            yield Server([port], [pid])

    @contextmanager
    def _daemon(self, folder: Path, *flags: str, port: int = 0, amqp_port: int = 0) -> Iterator[tuple[int, int]]:
        """Its port for HTTP, and its process."""
        log = folder / f"log-{time.monotonic_ns()}"
        ports = ["--port", str(port), "--amqp-port", str(amqp_port)]
        with process([sys.executable, "-m", "mq", "--root", str(folder / "root"), *ports, *flags], log) as running:
            yield _port_of(running, log), running.pid


class MqWithoutLog(Mq):
    """One daemon that makes changes durable file by file, as where the file system is none for its log."""

    name = "mq-no-log"
    title = "mq, HTTP, without its log"
    durability = "each publish, lease and removal is on the disk before its answer: file by file"
    flags = ("--no-log",)


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
        """As in System: on one port, which they share."""
        held = HeldPort()
        with (
            self._daemon(folder, "--peers", "1", "--reuse-port", port=held.number) as (_, one),
            self._daemon(folder, "--peers", "1", "--reuse-port", port=held.number) as (_, other),
        ):
            yield Server([held.number], [one, other])


class MqTurns(Mq):
    """Two daemons that take turns on one root; the first of the ports is that of the one whose turn it is."""

    name = "mq-turns"
    title = "mq, two daemons that take turns"

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        """As in System: on a port each."""
        with (
            self._daemon(folder, "--take-turns") as (port, serves),
            self._daemon(folder, "--take-turns") as (other, stands_by),
        ):
            yield Server([port, other], [serves, stands_by])


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
        with self._daemon(folder, *self.flags, amqp_port=held.number) as (_, pid):
            yield Server([held.number], [pid])


def _port_of(running: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and running.poll() is None:
        found = _LISTENS.search(log.read_text())
        if found is not None:
            return int(found[1])
        time.sleep(0.02)
    raise CannotStart(log.read_text()[-500:])
