"""A crowd: thousands of clients that publish and fetch as fast as they are answered, from a process of their own.

    python -m tests.hostile.crowd --http 2000 --amqp 500 --seconds 60

starts a daemon on a store in memory, lets the crowd in, and says what became of what it asked for, and how long a fetch
takes when the crowd has gone; its status is 1 where that is too little, or takes too long. Each client publishes a
message, fetches one and removes it, and begins again whatever it was answered: a refusal does not make it wait.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pamqp import commands, frame

from mq.amqp.wire.frames import PROTOCOL_HEADER
from mq.testing.ports import HeldPort
from tests.amqp.talking import publish, words
from tests.e2e.daemon import TREE, Daemon
from tests.web.talking import http1

QUEUE: Final = "crowd"
BODY: Final = bytes(100)
LEAST_FETCHED: Final = 0.8
"""Of what is published."""
MOST_CALM: Final = 10
"""How many times what it took alone a fetch may take then: the machine has other work, too."""
CALM_SECONDS: Final = 10.0
"""How long after the crowd has gone a fetch takes its usual time again."""
CALM_FETCHES: Final = 50
_GRACE_SECONDS: Final = 60.0
"""How long answers are waited for when the crowd asks for nothing more."""

_HEAD: Final = re.compile(rb"HTTP/1\.1 (\d+)[^\r]*\r\n")
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
_ID: Final = re.compile(rb"(?i)\r\nx-message-id: ([0-9a-f-]{36})\r\n")
_PUBLISH: Final = http1("POST", f"/{QUEUE}/messages", BODY)
_FETCH: Final = http1("GET", f"/{QUEUE}/messages")


@dataclass
class Tally:
    """What became of a crowd.

    Attributes:
        published: how many messages the daemon says it has stored.
        refused: requests that were refused for now, by what was asked and the text that says why.
        without_retry_after: how many of those did not say when to come again.
        slowest: seconds that the slowest answer took, by what was asked.
        left: clients that got no answer to their last request.
        is_over: no client begins again.
    """

    published: int = 0
    fetched: int = 0
    removed: int = 0
    empty: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    without_retry_after: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    left: int = 0
    is_over: bool = False


class _Client:
    """One connection, driven by what it hears."""

    def __init__(self, port: int, tally: Tally, number: int) -> None:
        self.socket = socket.socket()
        self.socket.bind((f"127.0.0.{2 + number % 50}", 0))
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.connect_ex(("127.0.0.1", port))
        self.is_open = False
        self.is_asking = False
        self.is_done = False
        self._tally = tally
        self._heard = b""
        self._asked = ""
        self._since = 0.0

    def begin(self) -> None:
        """Its first words."""
        raise NotImplementedError

    def take(self) -> bool:
        """Work on what was heard. False when that is not an answer yet."""
        raise NotImplementedError

    def hear(self) -> None:
        """Something has come."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError as error:
            self.end(type(error).__name__)
            return
        if not data:
            self.end("closed by the daemon")
            return
        self._heard += data
        while not self.is_done and self.take():
            pass

    def ask(self, what: str, data: bytes) -> None:
        """Say something, and note when."""
        if self._tally.is_over and what.startswith("publish"):
            return
        self._asked, self._since, self.is_asking = what, time.monotonic(), True
        try:
            self.socket.sendall(data)  # little, and only when everything before was answered
        except OSError as error:
            self.end(type(error).__name__)

    def answered(self) -> str:
        self.is_asking = False
        slowest = self._tally.slowest
        slowest[self._asked] = max(slowest.get(self._asked, 0.0), time.monotonic() - self._since)
        return self._asked

    def end(self, why: str = "") -> None:
        if why:
            self._tally.failed[why] += 1
        self.is_asking, self.is_done = False, True


class _HttpClient(_Client):
    def begin(self) -> None:
        self.ask("publish", _PUBLISH)

    def take(self) -> bool:
        end = self._heard.find(b"\r\n\r\n") + 4
        if end < 4:
            return False
        head, length = self._heard[:end], _LENGTH.search(self._heard, 0, end)
        size = end + (0 if length is None else int(length[1]))
        if len(self._heard) < size:
            return False
        body, self._heard = self._heard[end:size], self._heard[size:]
        status = _HEAD.match(head)
        assert status is not None, head
        self._answer(int(status[1]), head, body)
        return True

    def _answer(self, status: int, head: bytes, body: bytes) -> None:
        asked = self.answered()
        if status == 503:
            self._tally.refused[f"{asked}: {json.loads(body)['detail']}"] += 1
            self._tally.without_retry_after += b"\r\nretry-after: " not in head.lower()
        elif (asked, status) == ("publish", 201):
            self._tally.published += 1
        elif (asked, status) == ("fetch", 200):
            self._tally.fetched += 1
            id = _ID.search(head)
            assert id is not None, head
            self.ask("remove", http1("DELETE", f"/{QUEUE}/messages/{id[1].decode()}"))
            return
        elif (asked, status) == ("fetch", 204):
            self._tally.empty += 1
        elif (asked, status) == ("remove", 202):
            self._tally.removed += 1
        else:
            self._tally.failed[f"{asked}: {status} {body[:200]!r}"] += 1
        if b"\r\nconnection: close\r\n" in head.lower():
            self.end("closed by the daemon")
        elif asked == "publish":
            self.ask("fetch", _FETCH)
        else:
            self.ask("publish", _PUBLISH)


class _AmqpClient(_Client):
    def begin(self) -> None:
        self.ask("connect", PROTOCOL_HEADER)

    def take(self) -> bool:
        if len(self._heard) < 7 or len(self._heard) < 8 + int.from_bytes(self._heard[3:7], "big"):
            return False
        size, _, found = frame.unmarshal(self._heard)
        self._heard = self._heard[size:]
        match found:
            case commands.Connection.Start():
                self.ask("connect", words(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest"), 0))
            case commands.Connection.Tune():
                tune = words(commands.Connection.TuneOk(1, 131072, 0), 0)
                self.ask("connect", tune + words(commands.Connection.Open("/"), 0))
            case commands.Connection.OpenOk():
                self.ask("connect", words(commands.Channel.Open()) + words(commands.Confirm.Select()))
            case commands.Confirm.SelectOk():
                self._publish()
            case commands.Basic.Ack():
                self.answered()
                self._tally.published += 1
                self.ask("get", words(commands.Basic.Get(queue=QUEUE)))
            case commands.Basic.Nack():
                self.answered()
                self._tally.failed["publish: nacked"] += 1
                self.ask("get", words(commands.Basic.Get(queue=QUEUE)))
            case commands.Basic.GetOk():
                self.answered()
                self._tally.fetched += 1
                self._tally.removed += 1
                self._publish(words(commands.Basic.Ack(found.delivery_tag)))
            case commands.Basic.GetEmpty():
                self.answered()
                self._tally.empty += 1
                self._publish()
            case commands.Connection.Close() | commands.Channel.Close():
                self.end(f"AMQP: {found.reply_code} {found.reply_text}")
            case _:
                pass  # OpenOk of the channel, and a message's header and body
        return True

    def _publish(self, before: bytes = b"") -> None:
        self.ask("publish over AMQP", before + publish(QUEUE, BODY, properties=_PERSISTENT))


_PERSISTENT: Final = commands.Basic.Properties(delivery_mode=2)


def crowd(port: int, amqp_port: int, http: int, amqp: int, seconds: float) -> Tally:
    """Let a crowd in for so long.

    Args:
        port: of HTTP on 127.0.0.1.
    """
    tally = Tally()
    clients: list[_Client] = []
    with selectors.DefaultSelector() as selector:
        kinds = [_HttpClient] * http + [_AmqpClient] * amqp
        for number, kind in enumerate(kinds):
            client = kind(port if kind is _HttpClient else amqp_port, tally, number)
            clients.append(client)
            selector.register(client.socket, selectors.EVENT_WRITE, client)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            _hear(selector, left)
        tally.is_over = True
        end = time.monotonic() + _GRACE_SECONDS
        while any(client.is_asking for client in clients) and time.monotonic() < end:
            _hear(selector, 0.1)
        tally.left = sum(client.is_asking for client in clients)
    for client in clients:
        client.socket.close()
    return tally


def _hear(selector: selectors.BaseSelector, seconds: float) -> None:
    for key, _ in selector.select(seconds):
        client: _Client = key.data
        if client.is_open:
            client.hear()
        else:
            client.is_open = True
            selector.modify(client.socket, selectors.EVENT_READ, client)
            client.begin()
        if client.is_done:
            selector.unregister(client.socket)
            client.socket.close()


def calm(port: int) -> float:
    """Seconds that a fetch takes, while nobody else asks for anything: the median."""
    took = []
    with socket.create_connection(("127.0.0.1", port)) as connection:

        def ask(data: bytes) -> None:
            connection.sendall(data)
            assert connection.recv(1 << 16)

        for _ in range(CALM_FETCHES):
            ask(_PUBLISH)
            since = time.monotonic()
            ask(_FETCH)
            took.append(time.monotonic() - since)
    return statistics.median(took)


def more_files() -> int:
    """As many open files as this process may have; what it starts inherits that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def crowd_elsewhere(port: int, amqp_port: int, http: int, amqp: int, seconds: float) -> Tally:
    """As :func:`crowd`, in a process of its own."""
    numbers = [str(number) for number in (port, amqp_port, http, amqp, seconds)]
    code = "import sys; from tests.hostile.crowd import tell; tell(*map(float, sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *numbers], cwd=TREE, check=True, stdout=subprocess.PIPE)
    told = json.loads(done.stdout)
    return Tally(**{**told, "refused": Counter(told["refused"]), "failed": Counter(told["failed"])})


def tell(port: float, amqp_port: float, http: float, amqp: float, seconds: float) -> None:
    """Be the crowd, and print what became of it."""
    more_files()
    json.dump(vars(crowd(int(port), int(amqp_port), int(http), int(amqp), seconds)), sys.stdout)


def make_queue(port: int, place: str) -> None:
    """The queue that the crowd works on.

    Args:
        place: where it lives; empty for wherever a queue does.
    """
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(http1("PUT", f"/{QUEUE}?store={place}" if place else f"/{QUEUE}"))
        assert b" 201 " in connection.recv(1 << 16)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, default=2000, help="clients over HTTP")
    parser.add_argument("--amqp", type=int, default=500, help="clients over AMQP")
    parser.add_argument("--seconds", type=float, default=60, help="how long they ask")
    parser.add_argument("--storage", default="memory:", help="the daemon's store; empty for a folder")
    parser.add_argument("--place", default="", help="where the queue lives: memory for a transient one")
    given = parser.parse_args(arguments)
    more_files()
    amqp_port = HeldPort()
    options = ["--hosts", "mq", "--amqp-port", str(amqp_port)]
    options += ["--storage", given.storage] if given.storage else []
    with (
        tempfile.TemporaryDirectory(prefix="mq-crowd-") as folder,
        Daemon(Path(folder, "root"), Path(folder, "log"), *options) as daemon,
    ):
        make_queue(daemon.port, given.place)
        usual = calm(daemon.port)
        sys.stdout.write(f"alone, a fetch takes {usual * 1000:.2f} ms\n")
        tally = crowd_elsewhere(daemon.port, amqp_port.number, given.http, given.amqp, given.seconds)
        sys.stdout.write("".join(f"{name}: {value}\n" for name, value in vars(tally).items()))
        fetched = tally.fetched / max(tally.published, 1)
        sys.stdout.write(f"fetched for each published: {fetched:.3f}\n")
        time.sleep(CALM_SECONDS)
        after = calm(daemon.port)
        sys.stdout.write(f"{CALM_SECONDS:.0f} s after they had gone: {after * 1000:.2f} ms\n")
        daemon.stop()
    if fetched < LEAST_FETCHED or tally.without_retry_after or tally.failed or tally.left or after > MOST_CALM * usual:
        sys.exit("that is not how a crowd is to be served")


if __name__ == "__main__":
    main(sys.argv[1:])
