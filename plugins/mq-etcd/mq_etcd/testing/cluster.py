"""An etcd of one's own: one member or several, on free ports of 127.0.0.1, in a folder that goes with them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mq.testing.ports import HeldPort

PROGRAM: Final = shutil.which("etcd")
"""Where the program is; None where it is not installed."""
MEMORY: Final = "/dev/shm"
PATIENCE_SECONDS: Final = 30
LIFE_SECONDS: Final = 900
"""A member ends after this, also when the process that started it was killed."""


class Member:
    """One process of etcd.

    Args:
        tls: for its clients, where its flags say that it speaks TLS to them.
    """

    def __init__(self, name: str, folder: Path, tls: ssl.SSLContext | None) -> None:
        self._tls = tls
        self.name = name
        self._ports = HeldPort(), HeldPort()
        self.port, self.peer_port = (held.number for held in self._ports)
        self._folder = folder / name
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        """For clients."""
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def peer(self) -> str:
        """For other members."""
        return f"http://127.0.0.1:{self.peer_port}"

    def start(self, cluster: str, flags: tuple[str, ...]) -> None:
        """Start it, or start it again with what it kept."""
        assert PROGRAM is not None
        listening = [
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
        ]
        log = self._folder.with_suffix(".log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    *("timeout", "--foreground", "--signal=KILL", str(LIFE_SECONDS), PROGRAM),
                    *("--name", self.name, "--data-dir", str(self._folder), "--initial-cluster", cluster),
                    *("--logger", "zap", "--log-level", "warn", *listening, *flags),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def says_healthy(self) -> bool:
        """Whether it has a leader and answers."""
        try:
            with urllib.request.urlopen(f"{self.endpoint}/health", timeout=1, context=self._tls) as reply:
                return str(json.load(reply).get("health")) == "true"
        except (OSError, ValueError):
            return False

    def log(self) -> str:
        """What it had to say."""
        return self._folder.with_suffix(".log").read_text(errors="replace")

    def processor_seconds(self) -> float:
        """What its processes have taken so far."""
        assert self._process is not None
        ticks = 0
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split() if name.isdigit() else []
                if fields and int(fields[2]) == self._process.pid:  # its process group
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def signal(self, number: signal.Signals) -> None:
        """Send its processes a signal."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def pause(self) -> None:
        """It does not answer any more, and its ports stay open."""
        assert self._process is not None
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until then it may still answer

    def resume(self) -> None:
        """It answers again."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """At once; what it kept stays."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Cluster:
    """Members that make one etcd.

    Args:
        tls: for their clients, where the flags say that they speak TLS to them.
    """

    def __init__(self, folder: Path, size: int, flags: tuple[str, ...], tls: ssl.SSLContext | None) -> None:
        self.members = [Member(f"n{number}", folder, tls) for number in range(1, size + 1)]
        self._initial = ",".join(f"{member.name}={member.peer}" for member in self.members)
        self._flags = flags

    @property
    def endpoints(self) -> list[str]:
        """For clients."""
        return [member.endpoint for member in self.members]

    def start(self) -> None:
        """Start all of them, and wait until they answer."""
        for member in self.members:
            member.start(self._initial, self._flags)
        self.wait_for(*self.members)

    def restart(self, member: Member) -> None:
        """Start one again, and wait until it answers."""
        member.start(self._initial, self._flags)
        self.wait_for(member)

    def wait_for(self, *members: Member) -> None:
        """Wait until they answer."""
        ends = time.monotonic() + PATIENCE_SECONDS
        for member in members:
            while not member.says_healthy():
                assert time.monotonic() < ends, f"etcd does not answer: {member.log()[-2000:]}"
                time.sleep(0.02)

    def stop(self) -> None:
        """At once."""
        for member in self.members:
            member.kill()


@contextmanager
def running(
    size: int = 1, *flags: str, folder: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[Cluster]:
    """An etcd for the length of the block, ready when it begins.

    Args:
        folder: for what they keep; where it is None, in memory if that can be: killing members cuts no power.
        tls: for clients, where the flags say that members speak TLS to them.
    """
    if folder is None and os.path.isdir(MEMORY):
        folder = Path(MEMORY)
    with tempfile.TemporaryDirectory(prefix="mq-etcd-", dir=folder) as place:
        cluster = Cluster(Path(place), size, flags, tls)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
