"""beanstalkd, Redis and NATS: one program each."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from benchmarks.load.beanstalk import BeanstalkCodec
from benchmarks.load.nats import NatsCodec
from benchmarks.load.redis import RedisCodec
from benchmarks.systems.system import Program


class Beanstalkd(Program):
    """beanstalkd with its binlog."""

    name = "beanstalkd"
    title = "beanstalkd -f0"
    package = "beanstalkd"
    command = ("beanstalkd", "-v")
    durability = "fsync of the binlog after each write to it; a reservation is not written"
    codec = BeanstalkCodec

    def _words(self, folder: Path, port: int) -> list[str]:
        data = folder / "data"
        data.mkdir()
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(data), "-f0", "-z", str(1 << 20)]


class Redis(Program):
    """Redis streams with an append-only file."""

    name = "redis"
    title = "Redis streams"
    package = "redis-server"
    command = ("redis-server", "--version")
    durability = "appendfsync always: the file is synced before the answers of a turn of its event loop; leases, too"
    codec = RedisCodec

    def _words(self, folder: Path, port: int) -> list[str]:
        settings = {"port": str(port), "bind": "127.0.0.1", "dir": str(folder), "save": "", "daemonize": "no"}
        settings |= {"appendonly": "yes", "appendfsync": "always"}
        return ["redis-server", *(word for name, value in settings.items() for word in (f"--{name}", value))]


class Nats(Program):
    """NATS JetStream, a work queue on one node."""

    name = "nats"
    title = "NATS JetStream"
    package = "nats-server"
    command = ("nats-server", "--version")
    codec = NatsCodec

    @property
    def durable(self) -> bool:  # type: ignore[override]
        return self._knows_sync_always()

    @property
    def durability(self) -> str:  # type: ignore[override]
        if self._knows_sync_always():
            return "sync_interval always: each write is synced"
        return "**none**: this version knows no `sync_interval: always` and syncs every two minutes"

    def _words(self, folder: Path, port: int) -> list[str]:
        settings = folder / "nats.conf"
        settings.write_text(self._settings(folder / "data", port, always=self._knows_sync_always()))
        return ["nats-server", "-c", str(settings)]

    def _knows_sync_always(self) -> bool:
        with tempfile.NamedTemporaryFile("w", suffix=".conf") as settings:
            settings.write(self._settings(Path("/nowhere"), 4222, always=True))
            settings.flush()
            return subprocess.run(["nats-server", "-t", "-c", settings.name], capture_output=True).returncode == 0

    def _settings(self, data: Path, port: int, *, always: bool) -> str:
        sync = "sync_interval: always" if always else ""
        return f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}"\n{sync} }}\n'
