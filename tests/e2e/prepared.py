"""Programs that begin as copies of a process which has imported mq already.

To import mq takes 0.8 of the 0.85 seconds of processor time of a daemon's start, and 0.25 of a command's; the tests
start hundreds of each. Each process that runs tests keeps one that has mq imported and forks. From then on a copy does
what ``python -m mq`` does, up to the way it ends. Where the start is what is tested, use :mod:`subprocess`.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import re
import resource
import runpy
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

TREE: Final = Path(__file__).resolve().parents[2]

_MOST: Final = 1 << 17
_ANSWER_SECONDS: Final = 120.0
_PREPARED: Final = (
    "mq.cli.serve",
    *(
        f"mq.cli.{verbs}"
        for verbs in ("archive", "doctor", "messages", "mover", "queues", "reaper", "receive", "schedules", "top")
    ),
    *("mq.client.sync_client", "certifi", "encodings.idna"),
)
_PROGRAMS: Final = [Path(sys.executable).with_name(name) for name in ("mq", "mq-mover", "mq-reaper")]
_HEEDED_AT_FIRST: Final = re.compile(r"LD_|LC_|LANG|TZ|MALLOC_|GLIBC_|OPENSSL_|SSL_|PYTHON(?!PATH|DONTWRITE|WARNINGS)")
"""Variables that Python, C's library and OpenSSL read as a process begins; mq reads its own when it runs."""

_AS_WE_ARE: Final = (None, None, None, -1, False, -1)
"""Group, groups, user, umask, session and process group, as :class:`subprocess.Popen` has them by default."""

processor_seconds = 0.0
"""What the copies that have been waited for took: to the system they are another process's children."""


class Popen(subprocess.Popen[Any]):
    """As :class:`subprocess.Popen`; ``[sys.executable, "-m", module, ...]`` begins as a copy, and so does a program of
    mq's that is installed beside ``sys.executable``, by its path."""

    _handle: int | None = None

    def _execute_child(self, args: Any, *rest: Any) -> None:
        executable, preexec, _, pass_fds, cwd, env, *_, shell = rest[:9]
        environment = os.environ if env is None else env
        pipes = rest[9:15]  # of standard input, output and error the end of the child and ours
        is_plain = not (executable or preexec or pass_fds or shell) and rest[16:] == _AS_WE_ARE
        if not is_plain or not _can_be_copied(args, environment):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        wanted = {
            "command": [os.fspath(each) for each in (args[2:] if args[0] == sys.executable else args)],
            "environment": dict(environment),
            "folder": os.fspath(cwd or os.getcwd()),
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        theirs = [own if own != -1 else number for number, own in enumerate((pipes[0], pipes[3], pipes[5]))]
        self._preparer = _Preparer.here()
        self.pid = int(self._preparer.ask(wanted, *theirs)["pid"])
        self._handle = os.pidfd_open(self.pid)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._handle is not None and self.returncode is None:
            self._look(0)
        if self._handle is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc,no-any-return]
        return self.returncode

    def _wait(self, timeout: float | None) -> int | None:
        if self._handle is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        if self.returncode is None and not self._look(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode

    def _look(self, seconds: float | None) -> bool:
        """Whether it has ended by then. It is nobody else's id before we ask for its status."""
        global processor_seconds
        poll = select.poll()
        poll.register(self._handle or 0, select.POLLIN)
        if not poll.poll(None if seconds is None else seconds * 1000):
            return False
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                ended = self._preparer.ask({"ended": self.pid})
                processor_seconds += ended["processor_seconds"]
                self.returncode = int(ended["status"])
                os.close(self._handle or 0)
        return True


def run(
    command: Sequence[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """As :func:`subprocess.run`, by a copy where that can be."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options["stdout"] = options["stderr"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            output, error = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, error)
    if check:
        done.check_returncode()
    return done


def _can_be_copied(command: Any, environment: Mapping[str, str]) -> bool:
    """Whether a copy does what a new program does."""
    is_module = list(command[:2]) == [sys.executable, "-m"]
    return (is_module or command[0] in _PROGRAMS) and _heeded(environment) == _heeded(os.environ)


def _heeded(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _HEEDED_AT_FIRST.match(name)}


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
    """Answer until there is nobody left to ask: None. In a copy: the module that it is to run, and its arguments."""
    while True:
        text, handles, _, _ = socket.recv_fds(channel, _MOST, 3)
        if not text:
            return None
        asked = json.loads(text)
        if "ended" in asked:
            _, status, usage = os.wait4(asked["ended"], 0)
            told = {"status": os.waitstatus_to_exitcode(status), "processor_seconds": usage.ru_utime + usage.ru_stime}
        else:
            pid = os.fork()
            if pid == 0:
                channel.close()
                return _become(asked, handles)
            for handle in handles:
                os.close(handle)
            told = {"pid": pid}
        channel.send(json.dumps(told).encode())


def _become(asked: dict[str, Any], handles: Sequence[int]) -> list[str]:
    for number, handle in enumerate(handles):
        os.dup2(handle, number)
        os.close(handle)
    sys.stdin, sys.stdout, sys.stderr = _opened(sys.stdin, "r"), _opened(sys.stdout, "w"), _opened(sys.stderr, "w")
    resource.setrlimit(resource.RLIMIT_NOFILE, asked["files"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    return list(asked["command"])


def _opened(stream: Any, mode: str) -> TextIO:
    """As Python opens it when it begins: by whether it is a terminal."""
    number = stream.fileno()
    made = open(number, mode, encoding=stream.encoding, errors=stream.errors, closefd=False)  # noqa: SIM115 - it stays
    if mode == "w":
        made.reconfigure(line_buffering=made.isatty() or number == 2, write_through=stream.write_through)
    return made


if __name__ == "__main__":
    for each in _PREPARED:
        importlib.import_module(each)
    gc.collect()
    gc.freeze()
    command = _copied(socket.socket(fileno=int(sys.argv[1])))
    if command is not None:
        sys.argv[:] = command
        if os.path.isabs(command[0]):
            runpy.run_path(command[0], run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
