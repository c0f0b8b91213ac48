"""The bare loop: what mq does to its files, and nothing else. No ids, no tasks, no threads, no answers.

It is given the groups that mq made, and does as many creations, moves and syncs in each, as mq does on a root with a
log: one record in a file full of zeros and one ``fdatasync``, and then the file calls. The file is long enough, so it
pays for no checkpoint.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from benchmarks.recorded import Group
from mq.lifecycle import State

_FOLDERS: Final = {State.NEW: "new", State.READY: "queues/q", State.DELAYED: "delay", State.REMOVED: "remove"}
_PREFIXES: Final = {State.NEW: "q:", State.READY: "", State.DELAYED: "q:", State.REMOVED: "q:"}
_LEASED: Final = ",d1700000000000,r1,c0123456789abcdef"
_PAGE: Final = 4096
_LOG_BYTES: Final = 32 << 20
_SAID: Final = 120
"""Bytes that a record has for each operation, besides bodies."""
_CREATE: Final = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC


class BareLoop:
    """The four folders of one queue.

    Args:
        root: a folder that does not exist yet.
    """

    def __init__(self, root: str, body: bytes) -> None:
        self._body = body
        self._end = 0
        self._checksum = f"{len(body)}:01234567".encode()
        self._paths = {state: f"{root}/{folder}" for state, folder in _FOLDERS.items()}
        for path in self._paths.values():
            os.makedirs(path)
        self._log = os.open(f"{root}/log", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.pwrite(self._log, bytes(_LOG_BYTES), 0)
        os.fsync(self._log)
        self._ids = (f"00000000-0000-1000-8000-{number:012x}" for number in itertools.count())
        self._messages: dict[State, deque[str]] = {state: deque() for state in State}
        self._leased: deque[str] = deque()

    def close(self) -> None:
        """Close its log."""
        os.close(self._log)

    def run(self, groups: Sequence[Group]) -> float:
        """Do the groups one after another. How long it took, in seconds."""
        started = time.perf_counter()
        for group in groups:
            self._do(group)
        return time.perf_counter() - started

    def _do(self, group: Group) -> None:
        self._record(group)
        for state, number in ((State.NEW.value, group.writes), *group.placed):
            for _ in range(number):
                self._write(State(state))
        for (source, target), number in group.moves:
            self._move(State(source), State(target), number)
        for state, number in (*group.removals, (State.REMOVED.value, group.unlinks)):
            for _ in range(number):
                os.unlink(self._path(State(state), self._messages[State(state)].popleft()))
        for _ in range(group.reads):
            self._read(self._leased.popleft())

    def _record(self, group: Group) -> None:
        """Write one record of all that the group is about to do, synced where the group is durable."""
        changes = group.written + sum(number for _, number in (*group.moves, *group.removals))
        if not changes:
            return
        record = b"".join([self._body] * group.written) + bytes(_SAID * changes)
        size = -(-len(record) // _PAGE) * _PAGE
        if self._end + size > _LOG_BYTES:
            self._end = 0
        os.pwrite(self._log, record.ljust(size, b"\0"), self._end)
        self._end += size
        if group.durable:
            os.fdatasync(self._log)

    def _write(self, state: State) -> None:
        id = next(self._ids)
        handle = os.open(self._path(state, id), _CREATE, 0o600)
        os.setxattr(handle, "user.mq.sum", self._checksum)
        os.write(handle, self._body)
        os.close(handle)
        self._rest(state, id)

    def _move(self, source: State, target: State, number: int) -> None:
        """Move the oldest messages."""
        for _ in range(number):
            id = self._messages[source].popleft()
            os.rename(self._path(source, id), self._path(target, id))
            self._rest(target, id)

    def _rest(self, state: State, id: str) -> None:
        self._messages[state].append(id)
        if state is State.DELAYED:
            self._leased.append(id)

    def _read(self, id: str) -> None:
        handle = os.open(self._path(State.DELAYED, id), os.O_RDONLY | os.O_CLOEXEC)
        os.getxattr(handle, "user.mq.sum")
        assert os.read(handle, len(self._body) + 1) == self._body
        os.close(handle)

    def _path(self, state: State, id: str) -> str:
        return f"{self._paths[state]}/{_PREFIXES[state]}{id}{_LEASED if state is State.DELAYED else ''}"
