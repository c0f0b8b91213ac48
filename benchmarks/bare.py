"""The bare loop: what mq does to its files, and nothing else. No ids, no tasks, no threads, no answers.

It is given the groups that mq made, and does as many creations, moves and syncs in each, by the protocol that mq
uses on this root. With a log that is one record in a file full of zeros and one ``fdatasync``, and then the file calls;
the file is long enough, so it pays for no checkpoint. Without, it is one ``syncfs`` where files were written, else one
``fsync`` of each folder.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
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

_libc = ctypes.CDLL(None, use_errno=True)


class BareLoop:
    """The four folders of one queue.

    Args:
        root: a folder that does not exist yet.
        body: what is written as each message.
        renames: move by a rename; else by a link, a sync and an unlink, and write under another name first.
        logs: make each group durable by a record of a log.
    """

    def __init__(self, root: str, body: bytes, *, renames: bool, logs: bool = False) -> None:
        self._body = body
        self._renames = renames
        self._log: int | None = None
        self._end = 0
        self._checksum = f"{len(body)}:01234567".encode()
        self._paths = {state: f"{root}/{folder}" for state, folder in _FOLDERS.items()}
        self._stage = f"{root}/state/stage"
        for path in (*self._paths.values(), self._stage):
            os.makedirs(path)
        self._handles = {state: os.open(path, os.O_RDONLY) for state, path in self._paths.items()}
        if logs:
            self._log = os.open(f"{root}/state/log", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            os.pwrite(self._log, bytes(_LOG_BYTES), 0)
            os.fsync(self._log)
        self._ids = (f"00000000-0000-1000-8000-{number:012x}" for number in itertools.count())
        self._messages: dict[State, deque[str]] = {state: deque() for state in State}
        self._leased: deque[str] = deque()

    def close(self) -> None:
        """Close its handles."""
        for handle in (*self._handles.values(), *([] if self._log is None else [self._log])):
            os.close(handle)

    def run(self, groups: Sequence[Group]) -> float:
        """Do the groups one after another. How long it took, in seconds."""
        started = time.perf_counter()
        for group in groups:
            self._do(group)
        return time.perf_counter() - started

    def _do(self, group: Group) -> None:
        steps = [(State(source), State(target), number) for (source, target), number in group.moves]
        if self._log is not None:
            self._say(self._log, group)
        hidden = [self._write(State.NEW) for _ in range(group.writes)]
        for state, number in group.placed:
            for _ in range(number):
                self._write(State(state))
        old = [path for step in steps for path in self._move(*step)]
        if not self._renames:
            self._reveal(hidden)
        for state, number in group.removals:
            self._remove(State(state), number)
        if self._log is None and (group.durable or old):
            self._sync(group, steps)
        for path in old:
            os.unlink(path)
        if group.durable and old:
            self._sync_folders(source for source, target, _ in steps if target is not State.READY)
        for _ in range(group.unlinks):
            os.unlink(self._path(State.REMOVED, self._messages[State.REMOVED].popleft()))
        for _ in range(group.reads):
            self._read(self._leased.popleft())

    def _say(self, log: int, group: Group) -> None:
        """One record of all that the group is about to do, on the medium where the group is durable."""
        changes = group.written + sum(number for _, number in (*group.moves, *group.removals))
        if not changes:
            return
        record = b"".join([self._body] * group.written) + bytes(_SAID * changes)
        size = -(-len(record) // _PAGE) * _PAGE
        if self._end + size > _LOG_BYTES:
            self._end = 0
        os.pwrite(log, record.ljust(size, b"\0"), self._end)
        self._end += size
        if group.durable:
            os.fdatasync(log)

    def _write(self, state: State) -> str:
        id = next(self._ids)
        path = self._path(state, id) if self._renames else f"{self._stage}/{id}"
        handle = os.open(path, _CREATE, 0o600)
        os.setxattr(handle, "user.mq.sum", self._checksum)
        os.write(handle, self._body)
        os.close(handle)
        self._messages[state].append(id)
        if state is State.DELAYED:
            self._leased.append(id)
        return id

    def _reveal(self, ids: list[str]) -> None:
        """Where moves are links, a file is durable before its name appears."""
        if ids:
            self._sync_all()
        for id in ids:
            os.link(f"{self._stage}/{id}", self._path(State.NEW, id))
            os.unlink(f"{self._stage}/{id}")

    def _move(self, source: State, target: State, number: int) -> list[str]:
        """Move the oldest messages. The old names, where they are still to be taken away."""
        old = []
        for _ in range(number):
            id = self._messages[source].popleft()
            before, after = self._path(source, id), self._path(target, id)
            if self._renames:
                os.rename(before, after)
            else:
                os.link(before, after)
                old.append(before)
            self._messages[target].append(id)
            if target is State.DELAYED:
                self._leased.append(id)
        return old

    def _remove(self, state: State, number: int) -> None:
        """Unlink the oldest messages where they are."""
        for _ in range(number):
            os.unlink(self._path(state, self._messages[state].popleft()))

    def _sync(self, group: Group, steps: list[tuple[State, State, int]]) -> None:
        if group.written and self._renames:
            self._sync_all()
            return
        folders = {target for _, target, _ in steps} | {State(state) for state, _ in group.removals}
        if group.writes:
            folders.add(State.NEW)
        if self._renames:
            folders.update(source for source, target, _ in steps if target is not State.READY)
        self._sync_folders(folders)

    def _sync_all(self) -> None:
        if _libc.syncfs(self._handles[State.NEW]) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")

    def _sync_folders(self, states: Iterable[State]) -> None:
        for state in set(states):
            os.fsync(self._handles[state])

    def _read(self, id: str) -> None:
        handle = os.open(self._path(State.DELAYED, id), os.O_RDONLY | os.O_CLOEXEC)
        os.getxattr(handle, "user.mq.sum")
        assert os.read(handle, len(self._body) + 1) == self._body
        os.close(handle)

    def _path(self, state: State, id: str) -> str:
        return f"{self._paths[state]}/{_PREFIXES[state]}{id}{_LEASED if state is State.DELAYED else ''}"
