"""Traces the walk of a message through mq's files, and counts them: how many files a reader opens to follow it.

``python tools/walk.py --root FOLDER`` serves a temporary root in a folder, over HTTP and AMQP, in this process. For
each way of a message it sends one to warm up, and then traces the next few in all threads but its own. It prints the
walk with the fewest steps, since a longer one has met a task in the background::

    A root with a log:

    | way | files | changes of file | of these calls |
    |---|---|---|---|
    | HTTP publish | 32 | 124 | 62 |

Say where: with a log (ext4 with a journal, xfs) and where a message goes through new/ (btrfs) it passes other files.

A *file* is one of the package ``mq`` in which a function ran. A *change of file* is a call from one file into another,
or the return from it. Properties are functions, too. A coroutine that is suspended and resumed changes no file: a
reader follows its ``await`` once. What Trio's event loop calls, its clock and its instruments, counts for no way.
``--files`` prints the files, too, in the order in which they were entered first, and ``--steps`` each change with its
function. The tool asks mq for nothing but its command line, so it also traces an older tree, where the entry points of
that tree are installed: ``PYTHONPATH=/path/to/tree python tools/walk.py``.
"""

from __future__ import annotations

import argparse
import dis
import http.client
import inspect
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import trio
from pamqp import commands, frame, header

import mq
from mq.cli import main as mq_main
from mq.testing.ports import HeldPort

TREE: Final = Path(mq.__file__).resolve().parent.parent
PACKAGE: Final = f"{TREE}/mq/"
TRACED: Final = 7
"""Messages of each way, the warm-up not counted."""
PARKED_SECONDS: Final = 0.2
"""After that a fetch waits."""
SETTLE_SECONDS: Final = 0.05
"""How long tracing goes on after an answer: the daemon may have something left to do for it."""
TIMEOUT_SECONDS: Final = 30.0

_LOOP_ASKS: Final = frozenset(
    name for of in (trio.abc.Clock, trio.abc.Instrument) for name in vars(of) if not name.startswith("_")
)
"""Methods by which Trio's event loop asks mq for the time, or tells it of its steps: they are on no message's way."""
_TRIO: Final = str(Path(trio.__file__).parent)
_RESUME: Final = dis.opmap["RESUME"]
_YIELD: Final = dis.opmap["YIELD_VALUE"]
_SUSPENDS: Final = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Walk(NamedTuple):
    """What was traced of one message.

    Attributes:
        files: the files of mq in the order of their first entry.
        steps: each call and each return that led into another file, as it is printed.
        calls: how many of them were calls.
    """

    files: list[str]
    steps: list[str]
    calls: int


class Tracer:
    """Follows the thread that calls :meth:`install`, and every thread started after that."""

    def __init__(self) -> None:
        self._is_on = False
        self._files: dict[str, None] = {}
        self._steps: list[str] = []
        self._calls = 0
        self._now: dict[int, str] = {}  # by thread
        self._resumed: dict[int, FrameType] = {}  # by thread: the frame that was resumed last

    def install(self) -> None:
        """Trace from now on, while :meth:`recording`."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    @contextmanager
    def recording(self) -> Iterator[list[Walk]]:
        """Record for the length of the block, and a moment more. The list has the walk after the block."""
        found: list[Walk] = []
        self._files, self._steps, self._calls = {}, [], 0
        self._now.clear()
        self._resumed.clear()
        self._is_on = True
        try:
            yield found
            time.sleep(SETTLE_SECONDS)
        finally:
            self._is_on = False
        files = [name.removeprefix(f"{TREE}/") for name in self._files]
        found.append(Walk(files, self._steps, self._calls))

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on:
            return
        thread = threading.get_ident()
        resumed = self._resumed.pop(thread, None)
        if event == "call" and _is_resumed(frame):
            # A chain of coroutines is resumed from the outside in. Only its innermost frame goes on.
            if resumed is not None and resumed is not frame.f_back:
                self._enter(thread, resumed, is_call=True)
            self._resumed[thread] = frame
            return
        if resumed is not None and not (event == "return" and resumed is frame and _is_suspended(frame)):
            self._enter(thread, resumed, is_call=True)
        if event == "call":
            self._enter(thread, frame, is_call=True)
        elif event == "return" and frame.f_back is not None and not _is_suspended(frame):
            self._enter(thread, frame.f_back, is_call=False)

    def _enter(self, thread: int, frame: FrameType, *, is_call: bool) -> None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE) and self._now.get(thread) != name and not _is_of_loop(frame):
            self._now[thread] = name
            self._files.setdefault(name)
            where = f"{name.removeprefix(f'{TREE}/')}:{frame.f_lineno} {frame.f_code.co_qualname}"
            self._steps.append(f"{'->' if is_call else '<-'} {where}")
            self._calls += is_call


def _is_of_loop(frame: FrameType) -> bool:
    """Whether a frame is of the event loop's clock or instruments, or was called by one that is."""
    for _ in range(2):
        caller = frame.f_back
        if caller is None:
            return False
        if frame.f_code.co_name in _LOOP_ASKS and caller.f_code.co_filename.startswith(_TRIO):
            return True
        frame = caller
    return False


def _is_resumed(frame: FrameType) -> bool:
    """Whether a frame that is called goes on after a yield or an await."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return at >= 0 and code[at] == _RESUME and code[at + 1] & 3 > 0


def _is_suspended(frame: FrameType) -> bool:
    """Whether a frame that returns is a coroutine in the middle of an await. A plain generator has returned a value."""
    code = frame.f_code
    return bool(code.co_flags & _SUSPENDS) and frame.f_lasti >= 0 and code.co_code[frame.f_lasti] == _YIELD


# Clients, without any code of mq


class Http:
    """A connection that is kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)

    def ask(self, method: str, path: str, body: bytes | None = None) -> dict[str, str]:
        """The headers of the answer, by their names in small letters."""
        self._connection.request(method, path, body)
        response = self._connection.getresponse()
        response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status}")
        return {name.lower(): value for name, value in response.getheaders()}


class Amqp:
    """A connection with a channel that confirms, and a durable queue."""

    def __init__(self, port: int, queue: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._held = b""
        self._queue = queue
        self._socket.sendall(b"AMQP\0\0\x09\x01")
        self._expect(commands.Connection.Start)
        self._say(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        tune: Any = self._expect(commands.Connection.Tune)
        self._say(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self._call(0, commands.Connection.Open("/"), commands.Connection.OpenOk)
        self._call(1, commands.Channel.Open(), commands.Channel.OpenOk)
        self._call(1, commands.Queue.Declare(queue=queue, durable=True), commands.Queue.DeclareOk)
        self._call(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def publish(self, body: bytes) -> None:
        """Publish a persistent message, and wait for its confirm."""
        method = frame.marshal(commands.Basic.Publish(routing_key=self._queue), 1)
        properties = commands.Basic.Properties(delivery_mode=2)
        content = frame.marshal(header.ContentHeader(body_size=len(body), properties=properties), 1)
        self._socket.sendall(method + content + b"\x03\0\1" + len(body).to_bytes(4, "big") + body + b"\xce")
        self._expect(commands.Basic.Ack)

    def _call(self, channel: int, method: Any, answer: type) -> None:
        self._say(channel, method)
        self._expect(answer)

    def _say(self, channel: int, method: Any) -> None:
        self._socket.sendall(frame.marshal(method, channel))

    def _expect(self, wanted: type) -> Any:
        while len(self._held) < 7 or len(self._held) < 8 + int.from_bytes(self._held[3:7], "big"):
            data = self._socket.recv(65536)
            if not data:
                raise RuntimeError(f"the daemon hung up before {wanted.__name__}")
            self._held += data
        used, _, method = frame.unmarshal(self._held)
        self._held = self._held[used:]
        if not isinstance(method, wanted):
            raise RuntimeError(f"{wanted.__name__} expected, {method} came")
        return method


# The ways


def trace_ways(tracer: Tracer, http_port: int, amqp_port: int) -> dict[str, Walk]:
    """The shortest walk of each way, by its name."""
    consumer, publisher = Http(http_port), Http(http_port)
    for queue in ("published", "waited", "removed"):
        consumer.ask("PUT", f"/{queue}")

    def publish() -> Walk:
        with tracer.recording() as found:
            consumer.ask("POST", "/published/messages", b"hello")
        return found[0]

    def fetch() -> Walk:
        later = threading.Timer(PARKED_SECONDS, publisher.ask, ["POST", "/waited/messages", b"hello"])
        with tracer.recording() as found:
            _start_untraced(later)
            consumer.ask("GET", "/waited/messages?wait=10")
            later.join()
        return found[0]

    def remove() -> Walk:
        consumer.ask("POST", "/removed/messages", b"hello")
        id = consumer.ask("GET", "/removed/messages")["x-message-id"]
        time.sleep(SETTLE_SECONDS)
        with tracer.recording() as found:
            consumer.ask("DELETE", f"/removed/messages/{id}")
        return found[0]

    amqp = Amqp(amqp_port, "published-over-amqp")

    def confirm() -> Walk:
        with tracer.recording() as found:
            amqp.publish(b"hello")
        return found[0]

    ways: dict[str, Callable[[], Walk]] = {
        "HTTP publish": publish,
        "HTTP fetch with wait, and the publish that ends it": fetch,
        "AMQP publish, with its confirm": confirm,
        "HTTP remove": remove,
    }
    walks = {}
    for name, way in ways.items():
        way()
        walks[name] = min((way() for _ in range(TRACED)), key=lambda walk: (len(walk.files), len(walk.steps)))
    return walks


def _start_untraced(thread: threading.Thread) -> None:
    profile = threading.getprofile()
    threading.setprofile(None)  # type: ignore[arg-type] - typeshed knows of no end
    thread.start()
    if profile is not None:
        threading.setprofile(profile)


# The daemon


def trace(folder: str | None = None) -> tuple[dict[str, Walk], bool]:
    """Serve a temporary root in this thread, and trace its ways from another.

    Args:
        folder: where to make the root; None is the system's for temporary files.

    Returns:
        The walks, and whether the root had a log.
    """
    tracer, walks, has_log = Tracer(), dict[str, Walk](), False
    http_port, amqp_port = HeldPort(), HeldPort()

    def be_clients() -> None:
        nonlocal has_log
        try:
            _wait_for(http_port.number)
            _wait_for(amqp_port.number)
            has_log = Path(root, "state", "log").exists()
            walks.update(trace_ways(tracer, http_port.number, amqp_port.number))
        except BaseException:  # noqa: BLE001 - it is shown, and the daemon ends either way
            traceback.print_exc()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    clients = threading.Thread(target=be_clients, daemon=True)
    clients.start()  # before the tracer is there: it is not traced
    with tempfile.TemporaryDirectory(prefix="mq-walk-", dir=folder) as root:
        tracer.install()
        try:
            mq_main(_arguments(root, http_port, amqp_port), standalone_mode=False)
        except SystemExit as error:
            if error.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type] - typeshed knows of no end
    clients.join(TIMEOUT_SECONDS)
    if not walks:
        raise SystemExit("walk: no way was traced, see above")
    return walks, has_log


def _arguments(root: str, http_port: HeldPort, amqp_port: HeldPort) -> list[str]:
    """Without mq-native, so that the figures do not depend on what is installed."""
    flags = {"--root": root, "--port": http_port, "--amqp-port": amqp_port, "--log-level": "warning"}
    os.environ["MQ_NO_NATIVE"] = "1"
    return ["serve", *(f"{flag}={value}" for flag, value in flags.items())]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Counts the files that a message passes, and the changes of file.")
    parser.add_argument("--files", action="store_true", help="list the files, too, in the order of their first entry")
    parser.add_argument("--steps", action="store_true", help="list every change of file, too: -> a call, <- a return")
    parser.add_argument("--root", help="where to make the root: one on ext4 with a journal, or on xfs, has a log")
    options = parser.parse_args()
    walks, has_log = trace(options.root)
    print("A root with a log:\n" if has_log else "A root without a log:\n")
    print("| way | files | changes of file | of these calls |\n|---|---|---|---|")
    for way, walk in walks.items():
        print(f"| {way} | {len(walk.files)} | {len(walk.steps)} | {walk.calls} |")
    for way, walk in walks.items() if options.files else ():
        print(f"\n{way}:", *walk.files, sep="\n  ")
    for way, walk in walks.items() if options.steps else ():
        print(f"\n{way}, step by step:", *walk.steps, sep="\n  ")


if __name__ == "__main__":
    main()
