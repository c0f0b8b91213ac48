"""A shell command's processes, which are ended together, and orphans, which are reaped.

A command runs in a session of its own. Its processes are those of the session, their descendants, and orphans that have
left the session: this process adopts orphans (PR_SET_CHILD_SUBREAPER), and knows the command's by a variable in their
environment.
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
"""Seconds between two looks at a command that runs."""
_POLL_SECONDS: Final = 0.02
"""Seconds between two looks at a command that is being ended."""
_KILL_SECONDS: Final = 10.0
"""Seconds that a process may take to end after SIGKILL. One that waits for a broken disk does not end."""
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
"""The guard's script. It reads one process group a line, an empty line for none, and ends the last one when its input
ends. Its argument is the time from SIGTERM to SIGKILL, in tenths of a second."""


class StillRuns(Exception):
    """Some processes of a command did not end, so its message must not be given back."""


class Command:
    """A shell command and all processes that it starts.

    Args:
        mark: name of the variable by whose value orphans of this command are known.
        orphans: adopts and reaps the command's orphans.
        guard: ends the command's process group when this process is killed.
    """

    def __init__(
        self, text: str, environment: Mapping[str, str], mark: str, orphans: OrphanReaper, guard: GroupGuard
    ) -> None:
        self._mark = os.fsencode(f"{mark}={environment[mark]}")
        self._orphans = orphans
        self._guard = guard
        self._process = orphans.start(
            lambda: subprocess.Popen(text, shell=True, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        )
        guard.watch(self.pid)

    @property
    def pid(self) -> int:
        """The shell's process id, which is the id of its session and process group, too."""
        return self._process.pid

    def feed(self, chunks: Iterable[bytes], goes_on: Callable[[], bool]) -> bool:
        """Write a body to the command's standard input, as far as the command reads it, and close the input.

        Returns:
            False if `goes_on` returned False first. The input stays open then: its end would tell the command that it
            has the whole body.
        """
        assert self._process.stdin is not None
        pipe = self._process.stdin.fileno()
        os.set_blocking(pipe, False)
        poll = select.poll()
        poll.register(pipe, select.POLLOUT)
        with contextlib.suppress(BrokenPipeError):  # a command need not read the whole body
            for chunk in chunks:
                rest = memoryview(chunk)
                while rest and self._process.poll() is None:
                    if not goes_on():
                        return False
                    if poll.poll(GLANCE_SECONDS * 1000):
                        with contextlib.suppress(BlockingIOError):  # less room than a small chunk needs
                            rest = rest[os.write(pipe, rest) :]
        self._process.stdin.close()
        return True

    def wait(self, goes_on: Callable[[], bool]) -> int | None:
        """Return the shell's exit status, or None if `goes_on` returns False first."""
        while goes_on():
            with contextlib.suppress(subprocess.TimeoutExpired):  # time for another look
                status = self._process.wait(GLANCE_SECONDS)
                self._orphans.reap()
                if status == 0:
                    self._guard.watch(None)  # what it has left in the background goes on
                return status
        return None

    def end(self, seconds: float, hurries: Callable[[], bool]) -> int | None:
        """End all processes of the command with SIGTERM, and with SIGKILL those that do not end by that.

        Args:
            seconds: from SIGTERM to SIGKILL.
            hurries: returns True to send SIGKILL at once.

        Returns:
            The shell's exit status if the shell ignores SIGTERM. None otherwise: many programs exit with 0 after
            SIGTERM, which does not mean that their work is done.

        Raises:
            StillRuns: some process does not end.
        """
        heeds_sigterm = not _ignores(self.pid, signal.SIGTERM)
        self._end_with(signal.SIGTERM)
        begun = time.monotonic()
        killed: float | None = None
        while self._running():
            now = time.monotonic()
            if killed is not None and now - killed > _KILL_SECONDS:
                raise StillRuns(f"the processes {', '.join(map(str, sorted(self._running())))} did not exit")
            if hurries() or now - begun >= seconds:
                killed = killed or now
                self._end_with(signal.SIGKILL)
            time.sleep(_POLL_SECONDS)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._guard.watch(None)
        status = self._process.poll()  # the shell may have ended since the last look
        return None if heeds_sigterm else status

    def send(self, number: int) -> None:
        """Send a signal to all processes of the command."""
        for pid in self._running():
            with contextlib.suppress(ProcessLookupError, PermissionError):  # has ended, or runs as another user
                os.kill(pid, number)

    def _end_with(self, number: int) -> None:
        # All are stopped first: a shell that sees its foreground program end, before it gets the signal itself, goes on
        # with its next program.
        self.send(signal.SIGSTOP)
        self.send(number)
        self.send(signal.SIGCONT)

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
        """Whether more than one signal has come, so that ending must not take time."""
        return self._count > 1

    @contextmanager
    def held(self) -> Iterator[None]:
        """Defer signals: one that comes in the block takes effect at the block's end."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._raise()

    @contextmanager
    def released(self) -> Iterator[None]:
        """Let a signal end this part of a block that defers signals."""
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
    """Ends a command's process group if this process is killed, for the length of a ``with`` block.

    A shell does it, which notices by the end of its input that this process is gone.

    Args:
        seconds: from SIGTERM to SIGKILL.
    """

    def __init__(self, seconds: float, orphans: OrphanReaper) -> None:
        self._seconds = seconds
        self._orphans = orphans
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> GroupGuard:
        command = ["/bin/sh", "-c", _GUARD, "mq-guard", str(round(self._seconds * 10))]
        null = subprocess.DEVNULL  # a reader of this program's output must not wait for it
        self._process = self._orphans.start(
            lambda: subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True, bufsize=0
            )
        )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.communicate()  # the shell exits when its input ends

    def watch(self, group: int | None) -> None:
        """Set the process group to end; None for none."""
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # someone has killed the guard; the command runs without
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

    def start(self, popen: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a process for which the caller waits: :meth:`reap` leaves it alone."""
        self._is_starting = True
        try:
            process = popen()
            self._own = {pid for pid in self._own if _is_child(pid)} | {process.pid}
        finally:
            self._is_starting = False
        return process

    def reap(self) -> None:
        """Reap orphans that have ended. Call it also after waiting for a process of :meth:`start`: it hides others."""
        if not self._is_starting:
            reap(self._own)


def is_init() -> bool:
    """Whether this is the first process of a container, which adopts all orphans there."""
    return os.getpid() == _INIT


def reap(own: Collection[int] = ()) -> None:
    """Take the exit status of children that have ended.

    Args:
        own: children for which a caller waits. While one of those has ended and is not waited for, others may stay.
    """
    with contextlib.suppress(ChildProcessError):  # no children are left
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid in own:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)


class _Process(NamedTuple):
    """A process as the kernel shows it in /proc.

    Attributes:
        runs: False for a process that has ended and was not waited for.
    """

    parent: int
    session: int
    runs: bool


def _processes() -> dict[int, _Process]:
    """All visible processes by their ids."""
    found = {}
    for folder in os.scandir("/proc"):
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # has ended since
                text = Path(folder.path, "stat").read_bytes()
                # The name, in parentheses, may have any characters in it (proc_pid_stat(5)).
                state, parent, _, session = text[text.rindex(b")") + 2 :].split(maxsplit=4)[:4]
                found[int(folder.name)] = _Process(int(parent), int(session), state not in b"ZX")
    return found


def _is_child(pid: int) -> bool:
    """Whether a process is a child of this one that was not waited for."""
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal."""
    with contextlib.suppress(OSError):  # has ended
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigIgn:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _has_mark(pid: int, mark: bytes) -> bool:
    """Whether a process was started with the variable `mark`, given as NAME=VALUE."""
    with contextlib.suppress(OSError):  # has ended, or runs as another user
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _set_subreaper(is_on: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # other systems have no prctl(2): orphans go to init there
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, is_on, 0, 0, 0)


def nothing() -> None:
    """Do nothing."""
