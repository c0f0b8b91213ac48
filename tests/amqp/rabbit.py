"""A RabbitMQ of the tests' own, as reference: on free ports of 127.0.0.1, its data in a folder, an epmd of its own.

It is started by the package's own script and not by the wrapper, which changes the user and writes below /var.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Final

from mq.testing.ports import HeldPort

PROGRAM: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.1


def is_installed() -> bool:
    """Whether there is a RabbitMQ to start."""
    return PROGRAM.exists() and shutil.which("epmd") is not None


def version() -> str:
    """Which one is installed, by the folder it is in: to ask the program is to start a node."""
    (folder,) = PROGRAM.parent.parent.glob("lib/rabbitmq_server-*")
    return folder.name.partition("-")[2]


class RabbitFailed(Exception):
    """It did not start or did not stop. The text has the end of its log."""


class Rabbit:
    """One RabbitMQ, which keeps its ports over its lives.

    Args:
        folder: for its data and its logs; made when missing.
        tls: PEM files (authorities, certificate, key) for a second port that speaks TLS.
    """

    def __init__(self, folder: Path, tls: tuple[Path, Path, Path] | None = None) -> None:
        self.folder = folder
        self._ports = [HeldPort() for _ in range(4)]
        self.port, self.tls_port, self._distribution_port, self._epmd_port = (held.number for held in self._ports)
        self.log = folder / "said"
        self._tls = tls
        self._node = f"mq-{secrets.token_hex(6)}@localhost"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Rabbit:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._configure()
        self._epmd = self._run("epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1")
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(STOP_SECONDS)

    def start(self) -> None:
        """Start it, and wait until it takes connections.

        Raises:
            RabbitFailed: it does not, in time.
        """
        assert self._process is None, "it runs already"
        self._process = self._run(str(PROGRAM))
        deadline = time.monotonic() + START_SECONDS
        while not self._is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RabbitFailed(f"RabbitMQ is not up:\n{self.last_words()}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """kill -9, the whole group: the script that we started, and the machine that it did."""
        process, self._process = self._process, None
        assert process is not None, "it does not run"
        with contextlib.suppress(ProcessLookupError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

    def stop(self) -> None:
        """Ask it to end.

        Raises:
            RabbitFailed: it does not, in time.
        """
        assert self._process is not None, "it does not run"
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise RabbitFailed(f"RabbitMQ does not stop:\n{self.last_words()}") from None
        finally:
            self.kill()

    def is_running(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None and self._process.poll() is None

    def control(self, *arguments: str) -> None:
        command = [str(PROGRAM.with_name("rabbitmqctl")), "--node", self._node, "--quiet", *arguments]
        subprocess.run(command, env=self._environment(), check=True, timeout=STOP_SECONDS, capture_output=True)

    def last_words(self, lines: int = 30) -> str:
        """The end of what it said."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _run(self, *command: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _configure(self) -> None:
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "log.console = true",
            "log.file = false",
            "vm_memory_high_watermark.absolute = 1GB",
            "disk_free_limit.absolute = 1MB",
        ]
        if self._tls is not None:
            names = ("cacertfile", "certfile", "keyfile")
            lines += [f"ssl_options.{name} = {path}" for name, path in zip(names, self._tls, strict=True)]
            lines.append(f"listeners.ssl.1 = 127.0.0.1:{self.tls_port}")
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "none.conf").touch()

    def _environment(self) -> dict[str, str]:
        """What it is told. Nothing of it comes from /etc/rabbitmq."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        return kept | {
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
        }

    def _is_up(self) -> bool:
        """Whether it greets: it listens before it is ready, and hangs up then."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"AMQP\0\0\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False
