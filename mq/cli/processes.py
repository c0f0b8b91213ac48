"""The processes of a command, which end together, and orphans, which are reaped.

A command gets a session of its own. Its processes are those of the session, their descendants, and orphans among these
that have left it: this process adopts them (PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

GLANCE_SECONDS: Final = 0.25
"""How often a command that runs is looked at."""
_POLL_SECONDS: Final = 0.02
"""How often one that is being ended is."""
_KILL_SECONDS: Final = 10.0
"""How long a process may take to go after SIGKILL. One that waits for a broken disk does not go."""
_PR_SET_CHILD_SUBREAPER: Final = 36
_INIT: Final = 1
_STOPS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


_GUARD: Final = """
trap '' HUP INT TERM
while read -r group; do last=$group; done
[ "$last" ] || exit 0
kill -TERM "-$last"
while [ "$1" -gt 0 ] && kill -0 "-$last" 2>/dev/null; do
  sleep 0.1
  set -- $(($1 - 1))
done
kill -KILL "-$last" 2>/dev/null
"""
"""A shell that reads which process group is at work, and ends the last one when this process is gone."""


class StillRuns(Exception):
    """Processes of a command did not end: its message must not be given back."""


class Command:
    """A shell command and all that it starts.

    Args:
        text: for the shell.
        environment: its variables.
        mark: the name of one of them, by whose value its orphans are known.
        orphans: reaps what the command leaves behind.
        guard: ends it when this process is killed.
    """

    def __init__(
        self, text: str, environment: Mapping[str, str], mark: str, orphans: OrphanReaper, guard: GroupGuard
    ) -> None:
        self._mark = os.fsencode(f"{mark}={environment[mark]}")
        self._orphans = orphans
        self._guard = guard
        self._process = orphans.beside(
            lambda: subprocess.Popen(text, shell=True, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        )
        guard.watch(self.pid)

    @property
    def pid(self) -> int:
        """The shell's process, and its session."""
        return self._process.pid

    def feed(self, chunks: Iterable[bytes], goes_on: Callable[[], bool]) -> bool:
        """Write to its standard input, as far as it reads that, and close it. False if `goes_on` returns False first:
        the input stays open then, for its end would tell the command that it has all of the body.

        Args:
            chunks: what to write.
            goes_on: returns False to stop.
        """
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        with contextlib.suppress(BrokenPipeError):  # it need not read all, or anything
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest and self._process.poll() is None:
                    if not goes_on():
                        return False
                    if poll.poll(GLANCE_SECONDS * 1000):
                        with contextlib.suppress(BlockingIOError):
                            rest = rest[os.write(pipe, rest) :]
        self._process.stdin.close()
        return True

    def wait(self, goes_on: Callable[[], bool]) -> int | None:
        """Its exit status; None if `goes_on` returns False first."""
        while goes_on():
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(GLANCE_SECONDS)
                self._orphans.reap()
                if status == 0:
                    self._guard.watch(None)  # what it has left in the background goes on
                return status
        return None

    def end(self, seconds: float, hurries: Callable[[], bool]) -> int | None:
        """End all of its processes: SIGTERM, then SIGKILL. Returns the exit status if that says how the work went: None
        after SIGTERM, which many programs answer with 0, unless the shell ignores it.

        Args:
            seconds: between the two, if they take so long.
            hurries: returns whether to send SIGKILL at once.

        Raises:
            StillRuns: some process does not end.
        """
        is_told = not _ignores(self.pid, signal.SIGTERM)
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)  # a process that is stopped handles no signal
        begun = time.monotonic()
        killed: float | None = None
        while self._running():
            now = time.monotonic()
            if killed is not None and now - killed > _KILL_SECONDS:
                raise StillRuns(f"processes {', '.join(map(str, sorted(self._running())))} do not end")
            if hurries() or now - begun >= seconds:
                killed = killed or now
                self.send(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._guard.watch(None)
        status = self._process.poll()  # it may have ended since it was asked last
        return None if is_told else status

    def send(self, number: int) -> None:
        """Send a signal to all of its processes."""
        for pid in self._running():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or changed its user
                os.kill(pid, number)

    def _running(self) -> set[int]:
        self._process.poll()
        self._orphans.reap()
        there = _processes()
        found = {pid for pid, process in there.items() if self._is_own(pid, process)}
        size = -1
        while size != len(found):
            size = len(found)
            found |= {pid for pid, process in there.items() if process.parent in found}
        return {pid for pid in found if there[pid].runs}

    def _is_own(self, pid: int, process: _Process) -> bool:
        return process.session == self.pid or (process.parent == os.getpid() and _has_mark(pid, self._mark))


class Stops:
    """Ends a ``with`` block by SIGTERM, SIGHUP or SIGINT, and suspends a command together with this process.

    A signal that was ignored stays so, as after nohup(1).

    Attributes:
        suspend: called when this process is about to be stopped from its terminal.
        resume: called when it goes on.
    """

    def __init__(self) -> None:
        self.suspend: Callable[[], None] = nothing
        self.resume: Callable[[], None] = nothing
        self._is_held = False
        self._count = 0
        self._pending: int | None = None
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> Stops:
        handlers = dict.fromkeys(_STOPS, self._stop) | {signal.SIGTSTP: self._stop_for_now}
        for number, handler in handlers.items():
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def hurries(self) -> bool:
        """Whether more than one signal has come."""
        return self._count > 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal that comes in the block take effect at its end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._raise()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let a signal end this part of a block that holds them."""
        try:
            self._is_held = False
            self._raise()
            yield
        finally:
            self._is_held = True

    def _stop(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        self._pending = number
        if not self._is_held:
            self._raise()

    def _raise(self) -> None:
        number, self._pending = self._pending, None
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            raise SystemExit(128 + number)

    def _stop_for_now(self, _: int, __: FrameType | None) -> None:
        self.suspend()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.resume()


class GroupGuard:
    """Ends the process group of a command when this process is killed, and so cannot do it, for the length of a
    ``with`` block.

    Args:
        seconds: between SIGTERM and SIGKILL.
        orphans: must not reap it.
    """

    def __init__(self, seconds: float, orphans: OrphanReaper) -> None:
        self._seconds = seconds
        self._orphans = orphans
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GroupGuard:
        command = ["/bin/sh", "-c", _GUARD, "mq-guard", str(round(self._seconds * 10))]
        null = subprocess.DEVNULL  # a reader of this program's output must not wait for it
        self._process = self._orphans.beside(
            lambda: subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True, bufsize=0
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate()  # it ends with its input

    def watch(self, group: int | None) -> None:
        """Have a process group ended; None for none."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was ended
            self._process.stdin.write(b"%s\n" % (b"" if group is None else b"%d" % group))


class OrphanReaper:
    """Adopts the orphans of this process's descendants for the length of a ``with`` block, and reaps all that end."""

    def __init__(self) -> None:
        self._own: set[int] = set()
        self._is_starting = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> OrphanReaper:
        self._before = signal.signal(signal.SIGCHLD, lambda *_: self.reap())
        _set_subreaper(1)
        return self

    def __exit__(self, *_: object) -> None:
        _set_subreaper(0)
        signal.signal(signal.SIGCHLD, self._before)

    def beside(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a process for which the caller waits: it is not reaped here."""
        self._is_starting = True
        try:
            process = start()
            self._own = {pid for pid in self._own if _is_child(pid)} | {process.pid}
        finally:
            self._is_starting = False
        return process

    def reap(self) -> None:
        """Reap orphans that have ended. Call it, too, once an own process has ended."""
        if not self._is_starting:
            reap(self._own)


def is_init() -> bool:
    """Whether this is the first process of a container, which gets all orphans there."""
    return os.getpid() == _INIT


def reap(own: Collection[int] = ()) -> None:
    """Take the exit status of children that have ended.

    Args:
        own: children for which a caller waits. While one of those has ended and is not waited for, others may stay.
    """
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


class _Process(NamedTuple):
    """A line of the kernel's table of processes.

    Attributes:
        parent: its process id.
        session: its id.
        runs: whether it has not ended.
    """

    parent: int
    session: int
    runs: bool


def _processes() -> dict[int, _Process]:
    """All processes that can be seen, by their ids."""
    found = {}
    for folder in os.scandir("/proc"):
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                text = Path(folder.path, "stat").read_bytes()
                # The name, in parentheses, may have any characters in it (proc_pid_stat(5)).
                state, parent, _, session = text[text.rindex(b")") + 2 :].split(maxsplit=4)[:4]
                found[int(folder.name)] = _Process(int(parent), int(session), state not in b"ZX")
    return found


def _is_child(pid: int) -> bool:
    """Whether a process is a child that was not waited for."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    with contextlib.suppress(OSError):  # it has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _has_mark(pid: int, mark: bytes) -> bool:
    """Whether a process was started with a variable."""
    with contextlib.suppress(OSError):  # it has ended, or changed its user
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _set_subreaper(is_on: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # it is a Linux call
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, is_on, 0, 0, 0)


def nothing() -> None:
    """Do nothing."""
