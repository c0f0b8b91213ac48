"""Members of PostgreSQL that Patroni looks after, on free ports of 127.0.0.1. Each stands for a machine: its processes
have a namespace of their own, so that all of them can be killed at one instant, and none outlives its test. Needs root.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from mq.testing.ports import HeldPort
from mq_postgres.testing.server import MEMORY, PROGRAMS, processes_below

NAMES: Final = ("one", "two", "three")
PATIENCE_SECONDS: Final = 90
_FOLDER: Final = "/tmp/patroni"
"""In the file that the README shows; so are the ports and the place of the programs."""
_PROGRAMS: Final = "/usr/lib/postgresql/15/bin"
_ETCD: Final = "127.0.0.1:2379"


class Member:
    """One PostgreSQL, and the Patroni that runs it.

    Args:
        folder: an empty one.
    """

    def __init__(self, name: str, folder: Path, program: Path) -> None:
        self._ports = HeldPort(), HeldPort()
        self.port, self.api = (held.number for held in self._ports)
        self.name = name
        self.folder = folder
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def file(self) -> Path:
        """Its configuration."""
        return self.folder / f"{self.name}.yml"

    def start(self) -> None:
        """Start it, or start it again with what it kept."""
        # The interpreter may be below /root, where that user may not look.
        reading = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
        user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups", *reading]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                # The namespace goes with its first process, that one with unshare, and that one with this process.
                [
                    *("setpriv", "--pdeathsig", "KILL"),
                    *("unshare", "--pid", "--ipc", "--fork", "--mount-proc", "--kill-child"),
                    *("setpriv", *user, "--pdeathsig", "KILL", str(self._program), str(self.file)),
                ],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self) -> None:
        """All of its processes at one instant, as if the machine lost power; what it kept stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            ends = time.monotonic() + PATIENCE_SECONDS
            while self.is_open:  # the kernel ends the namespace's processes one by one
                assert time.monotonic() < ends, f"{self.name} does not end"
                time.sleep(0.002)

    def pause(self) -> None:
        """None of its processes does anything any more, and its ports stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """They go on."""
        self._signal(signal.SIGCONT)

    def says(self) -> dict[str, Any]:
        """What Patroni says of it; nothing where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/patroni", timeout=2) as reply:
                found: dict[str, Any] = json.load(reply)
        except urllib.error.HTTPError as error:  # 503: it does not run, which is said, too
            found = json.load(error)
        except (OSError, ValueError):
            found = {}
        return found

    @property
    def is_open(self) -> bool:
        """Whether its PostgreSQL listens."""
        try:
            with psycopg.connect(host="127.0.0.1", port=self.port, user="x", dbname="x", connect_timeout=2):
                return True
        except psycopg.OperationalError as error:
            return "refused" not in str(error)

    @contextmanager
    def admin(self, database: str = "postgres") -> Iterator[psycopg.Connection[Any]]:
        """A session that may do anything."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", password="admin", dbname=database, autocommit=True
        ) as connection:
            yield connection

    def log(self) -> str:
        """What Patroni had to say."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        for process in processes_below(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)


class Patroni:
    """A cluster of Patroni.

    Args:
        folder: an empty one, which the user of the servers gets.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self._programs = programs
        self.members = {name: Member(name, folder, programs / "patroni") for name in NAMES}

    def configure(self, text: str, etcd: str) -> None:
        """Write each member's file.

        Args:
            text: the file of member one, as the README shows it.
        """
        assert PROGRAMS is not None
        user = pwd.getpwnam("nobody")
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        for member in self.members.values():
            changed = {
                _FOLDER: str(self.folder),
                _PROGRAMS: str(PROGRAMS),
                _ETCD: etcd,
                "127.0.0.1:8001": f"127.0.0.1:{member.api}",
                "127.0.0.1:5401": f"127.0.0.1:{member.port}",
                "name: one": f"name: {member.name}",
                f"{self.folder}/one": f"{self.folder}/{member.name}",
            }
            own = text
            for before, now in changed.items():
                assert before in own, f"the file of the README says nothing of {before}"
                own = own.replace(before, now)
            member.file.write_text(own)

    def start(self) -> None:
        """Start all of them, and wait until one leads and the others stream from it."""
        for member in self.members.values():
            member.start()
        self.wait_for(len(self.members))

    def leader(self) -> Member | None:
        """Who takes changes, by its own word."""
        for member in self.members.values():
            told = member.says()
            if told.get("role") in ("primary", "master") and told.get("state") == "running":
                return member
        return None

    def leading(self, but: Member | None = None) -> Member:
        """Wait until one leads, another one than `but`."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while (found := self.leader()) is None or found is but:
            assert time.monotonic() < ends, f"no member leads: {self.logs()}"
            time.sleep(0.1)
        return found

    def wait_for(self, count: int) -> Member:
        """Wait until so many members are well, and one of them leads; returns that one."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            told = {name: member.says() for name, member in self.members.items()}
            leader = self.leader()
            standbys = [each for each in told.values() if each.get("replication_state") == "streaming"]
            if leader is not None and len(standbys) + 1 >= count:
                return leader
            assert time.monotonic() < ends, f"Patroni's members are not well: {told}; {self.logs()}"
            time.sleep(0.1)

    def ctl(self, *arguments: str) -> str:
        """What patronictl says."""
        command = [str(self._programs / "patronictl"), "-c", str(self.folder / "one.yml"), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def synchronous(self) -> list[Member]:
        """The standbys that Patroni would promote, by its own word: it has noted that commits wait for them."""
        told = ((member, member.says()) for member in self.members.values())
        return [member for member, each in told if each.get("quorum_standby") or each.get("sync_standby")]

    def setting(self, name: str) -> str:
        """A setting of the primary's."""
        with self.leading().admin() as admin:
            row = admin.execute("SELECT current_setting(%s)", (name,)).fetchone()
        assert row is not None, "a SELECT without a row"
        return str(row[0])

    def logs(self) -> str:
        """The end of what each of them had to say."""
        return "\n".join(member.log()[-1500:] for member in self.members.values())

    def stop(self) -> None:
        """At once."""
        for member in self.members.values():
            member.kill()


@contextmanager
def running(text: str, etcd: str, programs: Path) -> Iterator[Patroni]:
    """A cluster of three for the length of the block, ready when it begins.

    Args:
        text: the file of member one, as the README shows it.
    """
    folder = MEMORY if os.path.isdir(MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="mq-patroni-", dir=folder) as place:
        patroni = Patroni(Path(place), programs)
        patroni.configure(text, etcd)
        try:
            patroni.start()
            yield patroni
        finally:
            patroni.stop()
