"""Hosts of a test's own: namespaces of the kernel, with addresses of their own, on a switch whose cables can be pulled.

    @pytest.fixture
    def network() -> Iterator[Network]:
        with made_network("n1", "n2", "n3") as network:  # skips the test where none can be made
            yield network

    n1, n2 = network["n1"], network["n2"]
    server = n1.start("etcd", "--listen-client-urls", f"http://{n1.address}:2379", log=tmp_path / "etcd.log")
    n2.run("ping", "-c1", n1.address)        # to its end; its output is returned
    with n2.inside(): ...                    # sockets that this thread makes here are n2's
    server.kill(); server.pause(); server.resume(); server.stop()
    n1.cut(); n1.mend()                      # the cable: packets vanish, nobody is told
    n1.cut(n2); n1.mend(n2)                  # the two do not hear each other; a third hears both

A host has its own network, mounts, processes and name; files are the machine's. What runs in it ends with it, whatever
it is and however it was started. It ends with the test, with the process of the tests (also by kill -9), and at the
latest after `LIFE_SECONDS`. Nothing of it is seen outside, so many tests may have the same addresses at once.

Make it in the thread that outlives it: the kernel ends a host with the thread that made it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final

import pytest

LIFE_SECONDS: Final = 4 * 3600
SERVER_SECONDS: Final = 90.0
"""How long servers on hosts may take until they do what they are asked for."""
_ASK_SECONDS: Final = 0.2
_TOOLS: Final = ("ip", "unshare", "nsenter", "setpriv")
_FIRST_PROCESS: Final = """
import signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
socket.sethostname(sys.argv[1])
print("ready", flush=True)
time.sleep(float(sys.argv[2]))
"""
"""The first process of a host. Those whose parents have died are its children, and it forgets them as they end."""
_LET_GO: Final = f"""
awk '$5 ~ "^({tempfile.gettempdir()}|/dev/shm)/" {{print $5}}' /proc/self/mountinfo | tac | xargs -r -n1 umount --lazy
exec "$@"
"""
"""First of all lets go of the disks of other tests. A host has a copy of every mount, and a disk that is mounted
anywhere stays as it is: a test that unmounts it, changes it and mounts it again would find what was there before."""
_KINDS: Final = ("--net", "--mount", "--pid", "--uts", "--ipc")
"""The namespaces that a host does not share with the machine."""
_BORN_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.005
_NOWHERE: Final = "02:00:00:00:00:00"
"""No host has this hardware address, so what is sent there vanishes."""
_CLONE_NEWNET: Final = 0x40000000


class HostsFailed(Exception):
    """A network could not be made, or a program in it did not do what it should. The text has what it said."""


@contextlib.contextmanager
def made_network(*names: str) -> Iterator[Network]:
    """Hosts with these names on one switch, or a skipped test that says what is missing here."""
    reason = missing()
    if reason:
        pytest.skip(f"no hosts can be made here: {reason}")
    with Network(*names) as network:
        yield network


@cache
def missing() -> str:
    """Why no network can be made here; empty when it can."""
    if os.geteuid() != 0:
        return "needs root"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    try:
        with Network("probe"):
            return ""
    except HostsFailed as error:
        return str(error)


def until_done(does: Callable[[], object]) -> None:
    """Do it again and again, until it does not raise HostsFailed.

    Raises:
        HostsFailed: it still does after `SERVER_SECONDS`.
    """
    deadline = time.monotonic() + SERVER_SECONDS
    while True:
        try:
            does()
            return
        except HostsFailed:
            if time.monotonic() > deadline:
                raise
        time.sleep(_ASK_SECONDS)


class Network:
    """Hosts on one switch, in the order of their names: 10.9.0.1, 10.9.0.2, and so on.

    Raises:
        HostsFailed: the kernel, or a tool, said no.
    """

    def __init__(self, *names: str) -> None:
        self._switch = _Space("switch")
        self._hosts = {name: Host(name, number, self._switch) for number, name in enumerate(names, 1)}

    def __enter__(self) -> Network:
        try:
            self._switch.make()
            self._switch.ip("link", "add", "br0", "type", "bridge")
            self._switch.ip("link", "set", "br0", "up")
            for host in self._hosts.values():
                host.make()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts.values())

    def _end(self) -> None:
        for host in self:
            host.end()
        self._switch.end()


class Process:
    """A program that runs in a host."""

    def __init__(self, entering: subprocess.Popen[bytes], log: Path) -> None:
        self._entering = entering  # enters the host, starts the program there, ends as it ends
        self.log = log
        self.pid = _only_child(entering)
        """Its process, as it is known outside its host."""

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._entering.poll() is None

    def kill(self) -> None:
        """kill -9, and wait until it is gone. What it has started lives on until its host ends."""
        self._signal(signal.SIGKILL)
        self._signal(signal.SIGCONT)
        self.wait(_BORN_SECONDS)

    def stop(self, seconds: float = 30.0) -> int:
        """Ask it to end, as an operator does; its exit status.

        Raises:
            HostsFailed: it does not in time.
        """
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        return self.wait(seconds)

    def pause(self) -> None:
        """SIGSTOP: it is there, and does nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: it goes on, and does not know that it was away."""
        self._signal(signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """Wait until it ends; its exit status, negative for a signal.

        Raises:
            HostsFailed: it does not in time.
        """
        deadline = time.monotonic() + seconds
        while (status := self._entering.poll()) is None:
            if time.monotonic() > deadline:
                raise HostsFailed(f"process {self.pid} did not end in {seconds} seconds:\n{self.last_words()}")
            time.sleep(_POLL_SECONDS)
        return status

    def last_words(self, lines: int = 30) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        """To the program; and to who waits for it, who stops with it and is not woken with it."""
        for pid in (self.pid, self._entering.pid) if number is signal.SIGCONT else (self.pid,):
            if self._entering.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


class _Space:
    """A set of namespaces, held by a process that does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._holder: subprocess.Popen[bytes] | None = None
        self.pid = 0

    def make(self) -> None:
        bounded = ("setpriv", "--pdeathsig=KILL", "unshare", "--fork", "--kill-child", "--mount-proc", *_KINDS)
        self._holder = subprocess.Popen(
            [*bounded, "sh", "-c", _LET_GO, "sh", sys.executable, "-c", _FIRST_PROCESS, self.name, str(LIFE_SECONDS)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        if said != b"ready\n":
            raise HostsFailed(f"no namespaces: {said.decode(errors='replace').strip()}")
        self.pid = _only_child(self._holder)
        self.ip("link", "set", "lo", "up")

    def end(self) -> None:
        """End it, and with it whatever runs there."""
        if self._holder is not None:
            if self._holder.poll() is None:
                os.kill(self.pid or self._holder.pid, signal.SIGKILL)  # its first process is gone after all others
            self._holder.communicate()
            self._holder = None

    def entered(self, *command: str) -> list[str]:
        """The command line of something that runs there."""
        return ["nsenter", "--target", str(self.pid), *_KINDS, "--wd=.", "--", *command]

    def ip(self, *arguments: str) -> None:
        """Change its network."""
        _run(["nsenter", "--target", str(self.pid), "--net", "ip", *arguments], 30)


class Host(_Space):
    """One host.

    Attributes:
        address: of its only network card, an IPv4 address.
    """

    def __init__(self, name: str, number: int, switch: _Space) -> None:
        super().__init__(name)
        self.address = f"10.9.0.{number}"
        self._port = f"port{number}"
        self._switch = switch
        self._started: list[subprocess.Popen[bytes]] = []

    def make(self) -> None:
        """Begin, plugged in."""
        super().make()
        card = ("type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        self._switch.ip("link", "add", self._port, *card)
        self._switch.ip("link", "set", self._port, "master", "br0", "up")
        self.ip("addr", "add", f"{self.address}/24", "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def end(self) -> None:
        """End it, and with it whatever runs here."""
        super().end()
        for entering in self._started:
            entering.kill()
            entering.wait()

    def start(self, *command: str, log: Path, environment: Mapping[str, str] | None = None) -> Process:
        """Start a program here and leave it running.

        Args:
            command: it and its arguments; the working directory is that of the tests.
            log: what it says is added there.
            environment: all of its environment; where not given, that of the tests.
        """
        with log.open("ab") as said:
            entering = subprocess.Popen(
                self.entered(*command), env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )
        self._started.append(entering)
        return Process(entering, log)

    def run(self, *command: str, seconds: float = 60.0) -> str:
        """Run a program here to its end; what it said.

        Raises:
            HostsFailed: it failed, or takes longer.
        """
        return _run(self.entered(*command), seconds)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes meanwhile are this host's, for as long as they live."""
        with open("/proc/thread-self/ns/net", "rb") as before, open(f"/proc/{self.pid}/ns/net", "rb") as here:
            _enter(here.fileno())
            try:
                yield
            finally:
                _enter(before.fileno())

    def cut(self, other: Host | None = None) -> None:
        """Pull the cable; with `other`, only what the two of them send each other vanishes."""
        if other is None:
            self._switch.ip("link", "set", self._port, "nomaster")
            return
        for here, there in ((self, other), (other, self)):
            here.ip("neigh", "replace", there.address, "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")

    def mend(self, other: Host | None = None) -> None:
        """Undo a cut."""
        if other is None:
            self._switch.ip("link", "set", self._port, "master", "br0")
            return
        for here, there in ((self, other), (other, self)):
            here.ip("neigh", "del", there.address, "dev", "eth0")

    def block(self, port: int) -> None:
        """Let what this host sends others from and to a TCP port vanish; what it sends itself does not."""
        for end in ("dport", "sport"):
            self.ip("rule", "add", "priority", "1", "ipproto", "tcp", end, str(port), "blackhole")

    def unblock(self, port: int) -> None:
        """Undo that."""
        for end in ("dport", "sport"):
            self.ip("rule", "del", "priority", "1", "ipproto", "tcp", end, str(port), "blackhole")


def _only_child(parent: subprocess.Popen[bytes]) -> int:
    """The process that another one has started; that one itself where both have ended."""
    deadline = time.monotonic() + _BORN_SECONDS
    while parent.poll() is None:
        if time.monotonic() > deadline:
            raise HostsFailed(f"process {parent.pid} started none in {_BORN_SECONDS} seconds")
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
            if children:
                return int(children[0])
        time.sleep(_POLL_SECONDS)
    return parent.pid


def _run(command: list[str], seconds: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds
        )
    except subprocess.TimeoutExpired as error:
        raise HostsFailed(f"{' '.join(command)} takes longer than {seconds} seconds: {error.stdout!r}") from error
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise HostsFailed(f"{' '.join(command)}: exit status {done.returncode}: {said.strip()}")
    return said


def _enter(namespace: int) -> None:
    """This thread's network from now on; ``os.setns`` is there only since Python 3.12."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise HostsFailed(f"cannot enter a network: {os.strerror(number)}")
