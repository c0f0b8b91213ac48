"""How long honest clients wait during each attack, and how much memory the daemon takes: a table of the hostile suite.

    python -m tests.hostile [--only TEXT] [--connections 50] [--seconds 5] [--quiet 10]

Each row is one of :mod:`tests.hostile.floods`, the cheapest frames sent as fast as possible over that many connections,
or one of :mod:`tests.hostile.hoarders`, which make the daemon keep what they can, in a process of its own. Meanwhile
three honest clients take turns with it: ``GET /-/live`` on a new connection each time, a publish over HTTP and a
confirmed publish over AMQP. A time of the table is the round trip's 99th percentile in milliseconds: by the clock, and
behind it by the processor time of the daemon's event loop meanwhile, which other programs of a busy machine do not
lengthen. Behind them are the processor time of the daemon, in cores, and its resident memory: before the attack, the
most during it, and ``--quiet`` seconds after it, when the queues that it made are deleted.
"""

from __future__ import annotations

import argparse
import http.client
import os
import select
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from pamqp import commands

from mq.access.users_editor import UsersFile
from mq.testing.ports import HeldPort
from tests.access.files import TOKEN, write_users
from tests.amqp.talking import content, words
from tests.e2e.daemon import TREE, Daemon
from tests.hostile.floods import FLOODS, MANY_QUEUES, QUEUE, Flood, amqp_session
from tests.hostile.hoarders import HOARDERS

CONNECTIONS: Final = 50
SECONDS: Final = 5.0
MOST_SECONDS: Final = 0.1
"""The 99th percentile that is promised, on an idle machine (docs/limits.md)."""
_PAUSE_SECONDS: Final = 0.02
_RAMP_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 60.0
_READ_BYTES: Final = 1 << 18
_USERS: Final = '[users.admin]\ntokens = ["TOKEN"]\nadminister = ["*"]\n\n[users.nobody]\ntokens = ["OTHER_TOKEN"]\n'


class Times(NamedTuple):
    """Round trips of one honest client, in seconds, sorted.

    Attributes:
        clock: each of them, by the clock; infinite if it failed.
        loop: processor time of the daemon's event loop meanwhile.
    """

    clock: list[float]
    loop: list[float]


def percentile(times: list[float], share: float = 0.99) -> float:
    """The time that this share of the sorted times does not exceed; infinite without any."""
    return times[min(len(times) - 1, int(share * len(times)))] if times else float("inf")


class Memory(NamedTuple):
    """Resident memory of the daemon, in MiB.

    Attributes:
        after: the attack, some seconds later.
        reserved: bytes that are still reserved then.
    """

    before: float
    most: float
    after: float
    reserved: float = 0.0


class Result(NamedTuple):
    """A row of the table.

    Attributes:
        cores: processor time of the daemon a second.
    """

    times: dict[str, Times]
    cores: float
    memory: Memory


# The flood


class _Senders:
    """The connections of a flood, in one thread."""

    def __init__(self, flood: Flood, port: int) -> None:
        self._flood = flood
        self._port = port
        self._poll = select.epoll()
        self._unit = memoryview(flood.unit)
        self._open: dict[int, tuple[socket.socket, memoryview]] = {}

    def fill(self, connections: int) -> None:
        """Open connections until there are so many."""
        while len(self._open) < connections:
            client = socket.socket()
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.connect(("127.0.0.1", self._port))
            self._open[client.fileno()] = client, memoryview(self._flood.hello) or self._unit
            self._poll.register(client, select.EPOLLIN | select.EPOLLOUT)

    def send(self) -> None:
        """Send and receive what is possible now."""
        for file, events in self._poll.poll(0.05):
            try:
                if not self._send_to(file, events):
                    self._close(file)
            except BlockingIOError:
                pass
            except OSError:
                self._close(file)

    def _send_to(self, file: int, events: int) -> bool:
        """False once the connection is over."""
        client, rest = self._open[file]
        if events & select.EPOLLIN and (not client.recv(_READ_BYTES) or self._flood.is_short):
            return False
        if events & select.EPOLLOUT and rest:
            rest = rest[client.send(rest) :] or self._unit
            self._open[file] = client, rest
            if not rest:
                self._poll.modify(file, select.EPOLLIN)
        return True

    def _close(self, file: int) -> None:
        self._poll.unregister(file)
        self._open.pop(file)[0].close()


def send(flood: Flood, port: int, connections: int, seconds: float) -> None:
    """Send a flood for so long. Prints a line once it has begun."""
    senders, until = _Senders(flood, port), time.monotonic() + seconds
    senders.fill(connections)
    _say("sending")
    while time.monotonic() < until:
        senders.fill(connections)
        senders.send()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


# Daemons


class House(Daemon):
    """A daemon for some of the floods.

    Args:
        needs: as :attr:`tests.hostile.floods.Flood.needs`.

    Attributes:
        context: that of TLS; None if the daemon speaks none.
        token: the administrator's; empty without users.
        key: the id of a user's AWS key; empty without users.
    """

    def __init__(self, folder: Path, needs: str) -> None:
        folder.mkdir()
        self._amqp = HeldPort()
        self.amqp_port = self._amqp.number
        self.context: ssl.SSLContext | None = None
        self.token = ""
        self.key = ""
        self.opened: list[http.client.HTTPConnection | socket.socket] = []
        self._needs = needs
        arguments = ["--amqp-port", str(self.amqp_port)]
        if needs not in ("plain", "many"):
            self.token = TOKEN
            arguments += ["--users", write_users(folder / "users.toml", _USERS)]
            self.key = UsersFile(str(folder / "users.toml")).add_aws_key("nobody").id
        if needs == "tls":
            subprocess.run(
                [sys.executable, "-m", "mq", "certificate", folder], cwd=TREE, check=True, capture_output=True
            )
            arguments += ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem")]
            self.context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
        super().__init__(folder / "root", folder / "log", *arguments)

    def start(self) -> None:
        """Start it, and make its queues."""
        super().start()
        connection = self.connect()
        many = MANY_QUEUES if self._needs.startswith("many") else 0
        for queue in (QUEUE, "honest", *(f"q{number}" for number in range(many))):
            self.ask("PUT", f"/{queue}", b"", connection)
        connection.close()

    def connect(self) -> http.client.HTTPConnection:
        """A new connection to the HTTP server."""
        if self.context is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=_PATIENCE_SECONDS, context=self.context)

    def ask(self, method: str, path: str, body: bytes, connection: http.client.HTTPConnection) -> None:
        """Make a request, as its administrator.

        Raises:
            OSError: it was refused.
        """
        connection.request(method, path, body, {"Authorization": f"Bearer {self.token}"} if self.token else {})
        answer = connection.getresponse()
        answer.read()
        if answer.status != http.client.CREATED:
            raise OSError(f"{method} {path} was answered with {answer.status}")

    def delete(self, queue: str) -> None:
        connection = self.connect()
        connection.request(
            "DELETE", f"/{queue}", headers={"Authorization": f"Bearer {self.token}"} if self.token else {}
        )
        connection.getresponse().read()
        connection.close()

    def reserved_bytes(self) -> float:
        """The memory that clients have reserved."""
        connection = self.connect()
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        connection.request("GET", "/-/metrics", headers=headers)
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        return next(float(line.split()[1]) for line in lines if line.startswith("mq_memory_reserved_bytes "))

    @property
    def processor_seconds(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mebibytes(self, what: str = "VmRSS") -> float:
        """Its memory now, or, as ``VmHWM``, the most since :meth:`forget_peak`."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{what}:"))

    def forget_peak(self) -> None:
        """Begin to look for the most anew (proc(5), clear_refs)."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def loop_seconds(self) -> float:
        """The processor time that its event loop has used."""
        return int(Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text().split()[0]) / 1e9

    def _is_ready(self, begin: int) -> bool:
        _, found, port = self.log.read_text().rpartition(" on https://127.0.0.1:")
        if not found:
            return super()._is_ready(begin)
        self.port = int(port.split()[0])
        return True


@contextmanager
def open_houses(folder: Path) -> Iterator[Callable[[str], House]]:
    """Yield a function from needs to the daemon for them, which starts with the first call. All end with the block."""
    houses: dict[str, House] = {}
    with ExitStack() as running:

        def find(needs: str) -> House:
            if needs not in houses:
                houses[needs] = running.enter_context(House(folder / needs, needs))
            return houses[needs]

        yield find


# Honest clients


class _Honest:
    """Measures one kind of request again and again, in a thread.

    Args:
        loop_seconds: returns the processor time of the daemon's event loop.
    """

    def __init__(self, ask: Callable[[], None], loop_seconds: Callable[[], float]) -> None:
        self._ask = ask
        self._loop_seconds = loop_seconds
        self._times: list[float] = []
        self._used: list[float] = []
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            begin, used = time.monotonic(), self._loop_seconds()
            try:
                self._ask()
                self._times.append(time.monotonic() - begin)
                self._used.append(self._loop_seconds() - used)
            except (OSError, http.client.HTTPException):
                self._times.append(float("inf"))
            time.sleep(_PAUSE_SECONDS)

    def end(self) -> Times:
        """Stop after the present request."""
        self._is_over = True
        self._thread.join(_PATIENCE_SECONDS)
        return Times(sorted(self._times), sorted(self._used))


def _live(house: House) -> Callable[[], None]:
    def ask() -> None:
        connection = house.connect()
        try:
            connection.request("GET", "/-/live")
            connection.getresponse().read()
        finally:
            connection.close()

    return ask


def _publish(house: House) -> Callable[[], None]:
    connection = house.connect()
    house.opened.append(connection)
    return lambda: house.ask("POST", "/honest/messages", b"x", connection)


def _publish_amqp(house: House) -> Callable[[], None]:
    stream: socket.socket = socket.create_connection(("127.0.0.1", house.amqp_port), timeout=_PATIENCE_SECONDS)
    if house.context is not None:
        stream = house.context.wrap_socket(stream, server_hostname="127.0.0.1")
    house.opened.append(stream)
    who = ("admin", house.token) if house.token else ("guest", "guest")
    stream.sendall(amqp_session(*who) + words(commands.Confirm.Select()))
    while b"\x00\x55\x00\x0b" not in stream.recv(_READ_BYTES):  # confirm.select-ok
        pass
    message = words(commands.Basic.Publish(routing_key="honest")) + content(1, b"x")

    def ask() -> None:
        stream.sendall(message)
        if not stream.recv(_READ_BYTES):
            raise OSError("the connection was closed")

    return ask


HONEST: Final[dict[str, Callable[[House], Callable[[], None]]]] = {
    "live": _live,
    "publish over HTTP": _publish,
    "publish over AMQP": _publish_amqp,
}


# The table


def needs_of(name: str) -> str:
    """The daemon that a flood, or a hoarder, is for."""
    return FLOODS[name].needs if name in FLOODS else HOARDERS[name].needs if name else "plain"


def _command(house: House, name: str, connections: int, seconds: float) -> list[str]:
    """The attacking process."""
    if name in HOARDERS:
        ports = ["--port", str(house.port), "--amqp-port", str(house.amqp_port), "--key", house.key]
        return [sys.executable, "-m", "tests.hostile.hoarders", name, *ports]
    asked = FLOODS[name]
    port = house.amqp_port if asked.listener == "amqp" else house.port
    command = [sys.executable, "-m", "tests.hostile.cheap_frames", "--seconds", str(seconds + _PATIENCE_SECONDS)]
    return [*command, "--connections", str(asked.connections or connections), "--attack", name, str(port)]


def measure(house: House, name: str, connections: int, seconds: float, quiet_seconds: float = 0.0) -> Result:
    """Carry out an attack, and measure honest clients and the daemon's memory meanwhile. An empty name measures them
    alone.

    Args:
        quiet_seconds: after which its memory is looked at again, once it has stored what it has received.
    """
    memory = house.resident_mebibytes()
    house.forget_peak()
    attacker = None
    if name:
        attacker = subprocess.Popen(_command(house, name, connections, seconds), cwd=TREE, stdout=subprocess.PIPE)
    try:
        if attacker is not None and attacker.stdout is not None:
            attacker.stdout.readline()  # it sends
        time.sleep(_RAMP_SECONDS)
        before, begin = house.processor_seconds, time.monotonic()
        clients = {who: _Honest(made(house), house.loop_seconds) for who, made in HONEST.items()}
        time.sleep(seconds)
        times = {who: client.end() for who, client in clients.items()}
        while house.opened:
            house.opened.pop().close()
        cores = (house.processor_seconds - before) / (time.monotonic() - begin)
    finally:
        if attacker is not None:
            attacker.kill()
            attacker.communicate()
    most = house.resident_mebibytes("VmHWM")
    if name in HOARDERS:
        for queue in HOARDERS[name].queues:
            house.delete(queue)
    if not quiet_seconds:
        return Result(times, cores, Memory(memory, most, house.resident_mebibytes()))
    until = time.monotonic() + _PATIENCE_SECONDS
    while (reserved := house.reserved_bytes()) and time.monotonic() < until:
        time.sleep(1)
    time.sleep(quiet_seconds)
    return Result(times, cores, Memory(memory, most, house.resident_mebibytes(), reserved))


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Returns 1 if an honest client waited for too long."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--only", default="", help="floods whose names have this text")
    parser.add_argument("--connections", type=int, default=CONNECTIONS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for each flood")
    parser.add_argument("--quiet", type=float, default=0.0, help="seconds from an attack to a look at the memory")
    parser.add_argument("--attack", nargs=2, metavar=("FLOOD", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.attack:
        name, port = options.attack
        send(FLOODS[name], int(port), options.connections, options.seconds)
        return 0
    names = [name for name in (*FLOODS, *HOARDERS) if options.only.lower() in name.lower()]
    slow = 0
    columns = (
        f"{'live':>13} {'publish, HTTP':>13} {'publish, AMQP':>13}  cores  MiB before, most, {options.quiet:g} s after"
    )
    _say(f"{'p99, ms: clock (event loop)':46} {columns}")
    with tempfile.TemporaryDirectory() as folder, open_houses(Path(folder)) as house_for:
        for name in ("", *names):
            result = measure(house_for(needs_of(name)), name, options.connections, options.seconds, options.quiet)
            slow += max(percentile(times.clock) for times in result.times.values()) > MOST_SECONDS
            _say(_row(name or "nothing", result))
    return 1 if slow else 0


def _row(name: str, result: Result) -> str:
    pairs = ((percentile(times.clock) * 1000, percentile(times.loop) * 1000) for times in result.times.values())
    return (
        f"{name:46} "
        + " ".join(f"{clock:6.0f} {f'({loop:.0f})':>6}" for clock, loop in pairs)
        + f" {result.cores:6.2f}  {result.memory.before:6.0f} {result.memory.most:6.0f} {result.memory.after:6.0f}"
    )


if __name__ == "__main__":
    sys.exit(main())
