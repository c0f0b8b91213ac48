"""A PostgreSQL of one's own, on a free port of 127.0.0.1, in a folder that goes with it. It never runs as root."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from mq.testing.ports import HeldPort

MEMORY: Final = "/dev/shm"
PATIENCE_SECONDS: Final = 60
ADMIN: Final = "admin"
"""The user who may do anything, over the socket in the server's folder alone."""
ROLE: Final = "mq"
"""The user who may make schemas in the database of that name and has no other right."""


def _programs() -> Path | None:
    """The newest installed. Debian keeps them out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    in_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(in_path).resolve().parent if in_path else None


PROGRAMS: Final = _programs()
"""The folder of the server's programs; None where it is not installed."""


class Server:
    """One server.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Make what it keeps."""
        self._own()
        self._run(
            "initdb", "--pgdata", str(self._data), "--username", ADMIN, "--auth", "trust", "--no-sync", "-E", "UTF8"
        )
        rules = (
            f"local all {ADMIN} trust",
            f"local replication {ADMIN} trust",
            f"host {ROLE} guarded 127.0.0.1/32 scram-sha-256",
            f"host {ROLE} all 127.0.0.1/32 trust",
        )
        (self._data / "pg_hba.conf").write_text("\n".join(rules) + "\n")

    def follow(self, primary: Server, name: str) -> None:
        """Become a standby of a server that runs: a copy of it, which goes on as `name` once it is started."""
        self._own()
        source = f"host={primary.folder} port={primary.port} user={ADMIN} application_name={name}"
        self._run("pg_basebackup", "-D", str(self._data), "-d", source, "-R", "-X", "stream", "--checkpoint=fast")

    def promote(self) -> None:
        """Let a standby take changes."""
        with self.admin() as admin:
            assert admin.execute("SELECT pg_promote()").fetchone() == (True,)

    def received(self) -> int:
        """How far a standby is, in bytes of its primary's log that it has on its disk."""
        with self.admin() as admin:
            row = admin.execute("SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None, "a SELECT without a row"
        return int(row[0])

    def written(self) -> int:
        """How far a primary is, in bytes of its log."""
        with self.admin() as admin:
            row = admin.execute("SELECT pg_current_wal_flush_lsn() - '0/0'::pg_lsn").fetchone()
        assert row is not None, "a SELECT without a row"
        return int(row[0])

    def start(self, *flags: str) -> None:
        """Start it, or start it again with what it kept, and wait until it answers."""
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.folder,
            "shared_buffers": "32MB",
            "max_connections": 40,
            "autovacuum": "off",
            "dynamic_shared_memory_type": "mmap",  # in its folder: nothing else is left of one that was killed
            "max_wal_size": "256MB",
        }
        given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._as_nobody("KILL"), str(self._program("postgres")), "-D", str(self._data), *given, *flags],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                with self.admin("postgres"):
                    return
            except psycopg.OperationalError:
                assert time.monotonic() < ends, f"PostgreSQL does not answer: {self.log()[-2000:]}"
                assert self._process.poll() is None, f"PostgreSQL ended: {self.log()[-2000:]}"
                time.sleep(0.02)

    @contextmanager
    def admin(self, database: str = ROLE) -> Iterator[psycopg.Connection[Any]]:
        """A session that may do anything."""
        with psycopg.connect(
            host=str(self.folder), port=self.port, user=ADMIN, dbname=database, autocommit=True
        ) as connection:
            yield connection

    def set(self, **settings: str) -> None:
        """Change settings of the running server; an empty one is back at what it was."""
        with self.admin() as connection:
            for name, value in settings.items():
                change = f"SET {name} = '{value}'" if value else f"RESET {name}"
                connection.execute(f"ALTER SYSTEM {change}".encode())
            connection.execute("SELECT pg_reload_conf()")
            for name, value in settings.items():
                ends = time.monotonic() + PATIENCE_SECONDS
                while value and connection.execute("SELECT current_setting(%s)", (name,)).fetchone() != (value,):
                    assert time.monotonic() < ends, f"{name} does not become {value}"
                    time.sleep(0.01)

    def log(self) -> str:
        """What it had to say."""
        return (self.folder / "log").read_text(errors="replace")

    def processor_seconds(self) -> float:
        """What its processes have taken so far, those that have ended, too."""
        assert self._process is not None
        postmaster, ticks = self._process.pid, 0
        for process in [postmaster, *_children(postmaster)]:
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in fields[11 : 15 if process == postmaster else 13])
        return ticks / os.sysconf("SC_CLK_TCK")

    def pause(self) -> None:
        """None of its processes does anything any more, and its port stays open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """They go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """All of its processes, at once; what it kept stays, and can be started again on return."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # it starts no process that is not known here
            processes = _children(self._process.pid)
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None
            _wait_for_the_end(processes)  # until then they have its shared memory, and it refuses to start

    def stop(self) -> None:
        """At once, but so that no shared memory is left on the machine."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None

    def _own(self) -> None:
        """Let the user have the folder as whom the server runs."""
        with contextlib.suppress(KeyError):
            if os.geteuid() == 0:
                user = pwd.getpwnam("nobody")
                os.chown(self.folder, user.pw_uid, user.pw_gid)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        postmaster = self._process.pid
        for process in [postmaster, *_children(postmaster)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _program(self, name: str) -> Path:
        assert PROGRAMS is not None
        return PROGRAMS / name

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._as_nobody("TERM"), str(self._program(name)), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert ended.returncode == 0, ended.stderr

    def _as_nobody(self, when_parent_dies: str) -> list[str]:
        """PostgreSQL refuses root; and it ends with its parent, also when that is killed."""
        user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        return ["setpriv", *user, "--pdeathsig", when_parent_dies]


def _children(process: int) -> list[int]:
    # a backend makes itself leader of a session of its own, so there is no group to kill
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split() if name.isdigit() else []
            if fields and int(fields[1]) == process:
                found.append(int(name))
    return found


def processes_below(process: int) -> list[int]:
    """Processes that descend from one, those that go first before those that would miss them."""
    found = []
    for child in _children(process):
        found += [*processes_below(child), child]
    return found


def _wait_for_the_end(processes: Iterable[int]) -> None:
    """Of processes that were killed; they are not children of this one."""
    ends = time.monotonic() + PATIENCE_SECONDS
    for process in processes:
        while _is_alive(process):
            assert time.monotonic() < ends, f"process {process} does not end"
            time.sleep(0.002)


def _is_alive(process: int) -> bool:
    """Whether it is there, and no zombie, which has nothing but its number."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def running(*flags: str, folder: Path | None = None) -> Iterator[Server]:
    """A PostgreSQL for the length of the block, ready when it begins, with the database and the role `mq`.

    Args:
        folder: for what it keeps; where it is None, in memory if that can be: killing servers cuts no power.
    """
    if folder is None and os.path.isdir(MEMORY):
        folder = Path(MEMORY)
    with tempfile.TemporaryDirectory(prefix="mq-postgres-", dir=folder) as place:
        server = Server(Path(place))
        try:
            server.make()
            server.start(*flags)
            with server.admin("postgres") as connection:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN".encode())
                connection.execute(f"CREATE DATABASE {ROLE}".encode())
                connection.execute(f"GRANT CREATE ON DATABASE {ROLE} TO {ROLE}".encode())
            yield server
        finally:
            server.stop()


@contextmanager
def standbys_of(primary: Server, *names: str) -> Iterator[list[Server]]:
    """Standbys of a server for the length of the block, of which each commit waits for one."""
    with contextlib.ExitStack() as stack:
        found = []
        for name in names:
            parent = MEMORY if os.path.isdir(MEMORY) else None
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="mq-postgres-", dir=parent))
            standby = Server(Path(place))
            standby.follow(primary, name)
            stack.callback(standby.stop)
            standby.start()
            found.append(standby)
        primary.set(synchronous_standby_names=f"ANY 1 ({', '.join(names)})")
        _wait_for_sync(primary, len(names))
        yield found


def _wait_for_sync(primary: Server, count: int) -> None:
    """Until that many standbys are ones that a commit waits for."""
    ends = time.monotonic() + PATIENCE_SECONDS
    with primary.admin() as admin:
        while admin.execute("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'").fetchone() != (
            count,
        ):
            assert time.monotonic() < ends, "the standbys do not follow"
            time.sleep(0.01)
