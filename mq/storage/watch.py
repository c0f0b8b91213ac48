"""What others do to the four folders, as it happens, by inotify(7).

A file is told when it is complete: when its name has been moved in, or when whoever wrote it has closed it. Where
moves are links (no atomic rename) a new name is complete at once. Queues that come and go, and an overflow of the
kernel's queue, are told as "look again at everything".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import inotify_simple
import trio

from mq.lifecycle import State
from mq.storage import names
from mq.storage.folders import Folders
from mq.storage.interface import Change, Entry

_FLAGS: Final = inotify_simple.flags
_APPEARED: Final = _FLAGS.MOVED_TO | _FLAGS.CLOSE_WRITE
_VANISHED: Final = _FLAGS.MOVED_FROM | _FLAGS.DELETE
_LOOK_AGAIN: Final = Change(None)


@asynccontextmanager
async def watch_folders(folders: Folders, states: frozenset[State]) -> AsyncIterator[AsyncIterator[Change]]:
    """Changes in the folders of these states, while the block lasts."""
    notifier = inotify_simple.INotify(nonblocking=True)
    try:
        yield _Watch(notifier, folders, states).changes()
    finally:
        notifier.close()


class _Watch:
    def __init__(self, notifier: inotify_simple.INotify, folders: Folders, states: frozenset[State]) -> None:
        self._notifier = notifier
        self._folders = folders
        self._places: dict[int, tuple[State, str | None]] = {}
        self._appeared = _APPEARED if folders.mount.atomic_rename else _APPEARED | _FLAGS.CREATE
        for state in states - {State.READY}:
            self._add(folders.layout.folder(state, ""), state, None)
        self._queues_watch: int | None = None
        if State.READY in states:
            self._queues_watch = notifier.add_watch(
                folders.layout.queues, _FLAGS.CREATE | _VANISHED | _FLAGS.MOVED_TO | _FLAGS.ONLYDIR
            )
            self._add_queues()

    async def changes(self) -> AsyncIterator[Change]:
        while True:
            for event in self._notifier.read(timeout=0):
                for change in self._translate(event):
                    yield change
            await trio.lowlevel.wait_readable(self._notifier.fileno())

    def _translate(self, event: inotify_simple.Event) -> Iterator[Change]:
        if event.mask & _FLAGS.Q_OVERFLOW:
            yield _LOOK_AGAIN
        elif event.wd == self._queues_watch:
            self._add_queues()
            yield _LOOK_AGAIN
        elif event.wd in self._places:
            entry = self._entry(event)
            if entry is not None:
                yield Change(entry, bool(event.mask & self._appeared))

    def _entry(self, event: inotify_simple.Event) -> Entry | None:
        state, queue = self._places[event.wd]
        if queue is not None:
            return names.parse_leaf(event.name, queue, state)
        return names.parse_flat(event.name, state)

    def _add_queues(self) -> None:
        known = {queue for _, queue in self._places.values()}
        for queue in self._folders.queues():
            if queue not in known:
                self._add(self._folders.layout.folder(State.READY, queue), State.READY, queue)

    def _add(self, path: str, state: State, queue: str | None) -> None:
        mask = self._appeared | _VANISHED | _FLAGS.ONLYDIR | _FLAGS.DONT_FOLLOW
        self._places[self._notifier.add_watch(path, mask)] = (state, queue)
