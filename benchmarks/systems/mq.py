"""mq itself, as its users start it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load.amqp import AmqpCodec
from benchmarks.load.codec import Codec
from benchmarks.load.http import HttpCodec
from benchmarks.systems.system import Program, Server, listening
from mq.testing.ports import HeldPort

_MQ: Final = (sys.executable, "-m", "mq")


class Mq(Program):
    """One daemon, over HTTP."""

    name = "mq"
    title = "mq, HTTP"
    durability = "each publish, lease and removal is on the disk, file and name, before its answer"
    codec: ClassVar[type[Codec]] = HttpCodec

    def absence(self) -> str:
        return ""

    def version(self) -> str:
        return version("mq")

    def _words(self, folder: Path, port: int) -> list[str]:
        return [*_MQ, "--root", str(folder / "root"), "--port", str(port)]


class MqAmqp(Mq):
    """One daemon, over AMQP."""

    name = "mq-amqp"
    title = "mq, AMQP"
    durability = "each confirmed publish is on the disk, file and name; acknowledgements are not answered"
    codec = AmqpCodec

    def _words(self, folder: Path, port: int) -> list[str]:
        return [*_MQ, "--root", str(folder / "root"), "--port", "0", "--amqp-port", str(port)]


class MqInMemory(MqAmqp):
    """One daemon, over AMQP on its first port and HTTP on its second, with nothing on the disk."""

    @contextmanager
    def start(self, folder: Path) -> Iterator[Server]:
        held, http = HeldPort(), HeldPort()
        command = [*_MQ, "--storage", "memory:", "--port", str(http), "--amqp-port", str(held)]
        with listening(command, held.number, folder) as server:
            yield Server([*server.ports, http.number], server.pids)
