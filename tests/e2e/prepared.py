"""Programs of mq that begin as copies of a process which has imported mq already.

To import mq takes 0.8 of the 0.85 seconds of processor time of a start, and the tests start hundreds of daemons. Each
process that runs tests keeps one that has mq imported and forks: ``python -m tests.e2e.prepared``. From then on a copy
does what ``python -m mq`` does, up to the way it ends. Where the start is what is tested, or what Python finds in
its environment, a program starts as anybody else's does: see :func:`is_as_here`.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

TREE: Final = Path(__file__).resolve().parents[2]
_SOCKET: Final = 3
_MOST: Final = 1 << 17
_ANSWER_SECONDS: Final = 120.0
_PREPARED: Final = ("mq.cli.serve", "encodings.idna")

processor_seconds = 0.0
"""What the copies that have been waited for took: to the system they are another process's children."""


_HEEDED_AT_FIRST: Final = re.compile(r"LD_|LC_|LANG|TZ|MALLOC_|GLIBC_|OPENSSL_|SSL_|PYTHON(?!PATH|DONTWRITE|WARNINGS)")
"""Variables that Python, C's library and OpenSSL read as a process begins; mq reads its own when it serves."""


def is_as_here(environment: Mapping[str, str]) -> bool:
    """Whether a copy does in this environment what a new program does."""
    return _heeded(environment) == _heeded(os.environ)


def _heeded(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _HEEDED_AT_FIRST.match(name)}


class Copy:
    """A program that runs; what is used here of :class:`subprocess.Popen`.

    Args:
        arguments: those of ``mq``.
        environment: all its variables.
        output: where standard output and standard error go.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], output: int) -> None:
        self._preparer = _Preparer.here()
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = {"arguments": list(arguments), "environment": dict(environment), "files": files}
        self.pid = int(self._preparer.ask(wanted, output)["pid"])
        self.returncode: int | None = None
        self._handle = os.pidfd_open(self.pid)  # it is nobody else's id before we ask for its status

    def poll(self) -> int | None:
        """Its exit status, or None as long as it runs."""
        return self._status(0)

    def wait(self, timeout: float) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, in time.
        """
        status = self._status(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"mq, process {self.pid}", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Do nothing if it has ended."""
        if self.returncode is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def _status(self, seconds: float) -> int | None:
        global processor_seconds
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if not poll.poll(seconds * 1000):
                return None
            ended = self._preparer.ask({"ended": self.pid})
            processor_seconds += ended["processor_seconds"]
            self.returncode = int(ended["status"])
            os.close(self._handle)
        return self.returncode


class _Preparer:
    """The process that is copied, as this one sees it. It goes when this one goes."""

    _only: _Preparer | None = None
    _lock: Final = threading.Lock()

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(_ANSWER_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.prepared", str(theirs.fileno())],
                cwd=TREE,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    @classmethod
    def here(cls) -> _Preparer:
        """This process's own."""
        with cls._lock:
            if cls._only is None:
                cls._only = cls()
            return cls._only

    def ask(self, what: dict[str, Any], *handles: int) -> dict[str, Any]:
        """Ask it, and take the answer."""
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(what).encode()], handles)
            answer: dict[str, Any] = json.loads(self._socket.recv(_MOST))
        return answer

    def _end(self) -> None:
        self._socket.close()
        self._process.wait(_ANSWER_SECONDS)


# In the process that is copied


def _copied(channel: socket.socket) -> list[str] | None:
    """Answer until there is nobody left to ask: None. In a copy: the arguments that it is to run with."""
    while True:
        text, handles, _, _ = socket.recv_fds(channel, _MOST, 1)
        if not text:
            return None
        asked = json.loads(text)
        if "ended" in asked:
            _, status, usage = os.wait4(asked["ended"], 0)
            told = {
                "status": os.waitstatus_to_exitcode(status),
                "processor_seconds": usage.ru_utime + usage.ru_stime,
            }
        else:
            pid = os.fork()
            if pid == 0:
                channel.close()
                return _become(asked, handles[0])
            os.close(handles[0])
            told = {"pid": pid}
        channel.send(json.dumps(told).encode())


def _become(asked: dict[str, Any], output: int) -> list[str]:
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    resource.setrlimit(resource.RLIMIT_NOFILE, asked["files"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    return list(asked["arguments"])


def _prepare() -> None:
    import importlib

    for name in _PREPARED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    given = _copied(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        from mq.cli import main

        sys.argv = ["mq", *given]
        main(prog_name="mq")
