"""The servers that clients are tried on: mq, and RabbitMQ, which says whether a test is right."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mq.testing.ports import HeldPort
from tests.amqp.rabbit import Rabbit
from tests.e2e.daemon import Daemon


class Server(Protocol):
    """What tests ask of both. It keeps its port and its data over its lives."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...

    @property
    def url(self) -> str: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def stop(self) -> None: ...

    def is_running(self) -> bool: ...


class RabbitServer(Rabbit):
    """RabbitMQ."""

    name = "rabbitmq"

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"


class MqServer:
    """The real daemon.

    Args:
        folder: for its root and its log.
        arguments: more for its command line.
        daemon: a kind of daemon that knows when it is ready.
    """

    name = "mq"

    def __init__(self, folder: Path, *arguments: str, daemon: type[Daemon] = Daemon) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        self.daemon = daemon(folder / "root", folder / "log", "--amqp-port", str(self.port), *arguments)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.daemon.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.daemon.start()

    def kill(self) -> None:
        self.daemon.kill()

    def stop(self) -> None:
        self.daemon.stop()

    def is_running(self) -> bool:
        return self.daemon.is_running()
