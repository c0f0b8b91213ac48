"""One folder of a root, for a program that empties it: ``mq-mover`` or ``mq-reaper``.

No records, no recovery: those are the broker's, whether it runs or not. While a broker repairs the root, nothing is
moved.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

import trio

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import shorten
from mq.storage.files.calls import LinuxCalls
from mq.storage.files.explain import or_unusable
from mq.storage.files.folders import Folders
from mq.storage.files.format import is_in_use
from mq.storage.files.layout import Layout
from mq.storage.files.mount import Mount, mount_of
from mq.storage.files.movers import unrepaired
from mq.storage.files.ownership import Guard
from mq.storage.files.stepwise.engine import kit_for, stepped_root
from mq.storage.files.stepwise.watch import watch_folders
from mq.storage.files.volume import Volume
from mq.storage.interface import Change, Entry, MessageOperation, Outcome, Result
from mq.storage.options import StorageOptions

_LOG: Final = (
    "the daemon on this root uses a write-ahead log. Start that daemon with --no-mover or --no-reaper, or stop it"
)
"""A move without a record could be undone by a power cut."""
_SERVED: Final = (
    "a daemon is repairing the root or is the only one that may use it. Start that daemon with --no-mover or "
    "--no-reaper, or stop it"
)


class SourceFolder:
    """A folder of messages in one state.

    Args:
        state: what its messages are in.
        destination: the folder that holds a folder a queue; only for moves.

    Raises:
        StorageUnusable: one of them is no folder, cannot be read or written, or a stranger may write there.
    """

    def __init__(
        self,
        state: State,
        source: str,
        destination: str = "",
        options: StorageOptions = StorageOptions(),  # noqa: B008 - frozen
    ) -> None:
        self.state = state
        self._calls = LinuxCalls()
        for path in filter(None, (source, destination)):
            _check(path)
        source = os.path.abspath(source)
        layout = Layout(source, destination, source, source, os.path.join(os.path.dirname(source), "state"))
        if is_in_use(self._calls, layout):
            raise StorageUnusable(f"cannot use {shorten(source)}: {_LOG}")
        mount = mount_of(source)
        self._root_fd = self._open(source, options, mount)
        if destination:
            destination = os.path.abspath(destination)
            self._calls.close(self._open(destination, options, mount))
        volume = Volume(self._calls, layout, mount, self._root_fd, syncfs=mount.can_syncfs(), shared=True)
        self._folders = Folders(self._calls, layout, volume)
        self._kit = kit_for(mount)
        self._root = stepped_root(self._kit, self._folders, stage=layout.stage, shared=True)

    def _open(self, folder: str, options: StorageOptions, mount: Mount) -> int:
        guard = Guard(self._calls, folder, options, mount, failing="cannot use")
        guard.check_above()
        return guard.open(folder, None, folder)

    def close(self) -> None:
        """Let go of it."""
        self._calls.close(self._root_fd)

    @property
    def failure(self) -> str:
        """Why nothing more can be changed; empty while the medium is well."""
        return self._folders.volume.failure

    async def commit(self, operations: Sequence[MessageOperation]) -> list[Outcome]:
        """As :meth:`mq.storage.interface.Storage.commit`. FULL while a broker repairs the root, or serves it alone."""
        return await trio.to_thread.run_sync(self._commit, operations)

    async def scan(self) -> list[Entry]:
        """All that is in the folder."""
        return await trio.to_thread.run_sync(functools.partial(self._folders.scan, self.state))

    async def flaw(self, entry: Entry) -> str | None:
        """As :meth:`mq.storage.files.folders.Folders.flaw`."""
        return await trio.to_thread.run_sync(self._folders.flaw, entry)

    async def arrived_ns(self, entry: Entry) -> int | None:
        """When the message came into the folder, nanoseconds since 1970; None when it has left."""
        try:
            return await trio.to_thread.run_sync(self._calls.changed_ns, self._folders.layout.path(entry))
        except FileNotFoundError:
            return None

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]]:
        """What arrives and leaves, as it happens."""
        return watch_folders(self._folders, frozenset({self.state}))

    def _commit(self, operations: Sequence[MessageOperation]) -> list[Outcome]:
        if is_in_use(self._calls, self._folders.layout):
            return [Outcome(Result.FULL, reason=_LOG)] * len(operations)
        with unrepaired(self._calls, self._folders.layout) as free:
            if free:
                return self._kit.shared(self._root, operations).run()
        return [Outcome(Result.FULL, reason=_SERVED)] * len(operations)


def _check(path: str) -> None:
    with or_unusable(f"cannot use {shorten(path)}"):
        os.listdir(path)
    if not os.access(path, os.W_OK):
        raise StorageUnusable(f"cannot use {shorten(path)}: the user running mq cannot write to this folder")
