"""The POSIX store: the four folders on a disk, as async verbs. This is where a batch hops to a thread; where no disk is
waited for, only a batch that takes longer than the hop.

Address: ``posix:/var/lib/mq``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, ParamSpec, TypeVar

import trio

from mq.errors import MQError, StorageError, StorageFailed, StorageFull, StorageStopped, StorageUnusable
from mq.lifecycle import State
from mq.message import BytesBody, DamagedBody, MessageId, MessageIds, shorten
from mq.storage.files.calls import Calls, LinuxCalls, Native, RetryingCalls, is_transient
from mq.storage.files.engine import EngineChoice, Traits
from mq.storage.files.explain import or_unusable
from mq.storage.files.folders import Opened
from mq.storage.files.hop import EarlyResults, Hop, HopInParts, OwnThread, inline_hop
from mq.storage.files.mount import Mount, mount_of_root
from mq.storage.files.opening import OpenRoot, open_root
from mq.storage.files.ownership import RootBusy
from mq.storage.files.staging import FileBody, StagedBody, StagedFile
from mq.storage.files.stepwise.watch import KeptLook, NotedCalls, OwnChanges
from mq.storage.interface import (
    QUEUE,
    AnyOperation,
    Change,
    Description,
    Drop,
    Entry,
    Health,
    Hear,
    MessageColumns,
    Outcome,
    Put,
    Sharing,
    Stored,
    Unlink,
    Write,
)
from mq.storage.options import StorageOptions
from mq.storage.outcomes import Outcomes

try:
    import mq_native
except ImportError:
    mq_native = None  # type: ignore[assignment]

logger = logging.getLogger("mq.storage")

_P = ParamSpec("_P")
_T = TypeVar("_T")

_STAGED_CHUNK: Final = 1024 * 1024
_BUSY_TRIES: Final = 50
_BUSY_PAUSE_SECONDS: Final = 0.1
_READERS: Final = 4
_MOST_INLINE: Final = 4
"""Writes, moves or reads that in memory take as long as a hop to a thread and back."""
_MOST_INLINE_BYTES: Final = 1 << 16
_NOT_EARLY: Final = EarlyResults(is_over=True)
"""Told by batches whose outcomes come together."""


def make_posix(rest: str, options: StorageOptions) -> FolderStorage:
    """A store in the folders below the root `rest`."""
    return FolderStorage(f"posix:{rest}", rest, linux_calls(options), options, mount=mount_of_root)


def linux_calls(options: StorageOptions) -> LinuxCalls:
    """Return the system, with mq-native where that is wanted and installed."""
    return LinuxCalls(load_native() if options.native else None)


def load_native() -> Native | None:
    """The package mq-native, where it is installed: a batch's system calls in one go, without Python's lock.

    It is compiled for one machine and need not be there.
    """
    return mq_native


class FolderStorage:
    """The four folders below one root.

    Args:
        root: its folder; made when missing.
        mount: tells the traits of the file system below.
        hop: how a call that may block is made; where not given, in threads.
        hop_in_parts: with `hop`, how a call is made that tells of its first results before it ends; where not given,
            none tells.
        syncfs: whether syncfs(2) may be used; where not given, when the file system and the kernel are fit for it.
        draw: random bytes, as many as asked for.

    Attributes:
        is_native: whether mq-native is installed, and may be used. The engine with a log uses it.
    """

    def __init__(
        self,
        name: str,
        root: str,
        calls: Calls,
        options: StorageOptions,
        *,
        mount: Callable[[str], Mount],
        hop: Hop | None = None,
        hop_in_parts: HopInParts | None = None,
        syncfs: bool | None = None,
        ids: MessageIds | None = None,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if not root:
            raise StorageUnusable(
                f"the storage address {shorten(name)} does not contain the path of a folder. Use NAME:/path/to/folder"
            )
        self._name = name
        self._root = os.path.abspath(root)
        self._calls = calls
        self.is_native = calls.native is not None
        self._own_changes: OwnChanges | None = None
        self._options = options
        self._mount_of = mount
        self._hop = hop or trio.to_thread.run_sync
        self._committing = OwnThread("mq-commit") if hop is None else None
        self._reading = OwnThread("mq-read") if hop is None else None
        self._hop_in_parts = hop_in_parts
        self._syncfs = syncfs
        self._draw = draw
        self._mount = Mount("unknown")
        self._open: OpenRoot | None = None
        self._queues: KeptLook[Mapping[str, Mapping[str, Any]]] | None = None
        self._ids = ids or MessageIds()
        self._gate = trio.Lock()
        # A hop to the own thread is a checkpoint: another one before it would cost each batch a pass of the event loop.
        self._batch_gate = self._gate if hop is not None else _FreeLock(self._gate)
        self._traits = Traits()
        self._described: Description | None = None
        self._readers = trio.CapacityLimiter(_READERS)

    @property
    def description(self) -> Description:
        """What it is. Groups may be larger once a log has grown."""
        traits = Traits() if self._open is None else self._open.engine.traits
        if self._described is None or traits != self._traits:
            self._traits = traits
            self._described = Description(
                name=self._name,
                durable=self._mount.durable,
                shared=self._options.sharing is Sharing.PEERS,
                max_body=None,
                journaled=self._mount.atomic_rename,
                **traits._asdict(),
            )
        return self._described

    @property
    def engine(self) -> EngineChoice | None:
        """The engine that serves the root, and why; None before it is open."""
        return None if self._open is None else self._open.choice

    @property
    def tells(self) -> bool:
        can_hear = self._committing is not None or self._hop_in_parts is not None
        return can_hear and self._open is not None and self._open.engine.tells_early

    @property
    def health(self) -> Health | None:
        return None if self._open is None else self._open.folders.health

    async def open(self) -> None:
        """Check, lock and repair the root.

        Raises:
            StorageUnusable: in one line, why not and what to do.
        """
        with or_unusable(f"cannot serve root {shorten(self._root)}"):
            self._mount = await self._hop(self._mount_of, self._root)
        if not self._mount.flushes and not self._mount.flaw:
            logger.warning(
                "NOT DURABLE: %s is on %s, which is mounted without write barriers, so confirmed messages "
                "can be lost in a power failure. Mount the file system with barriers and restart mq",
                shorten(self._root),
                self._mount.kind,
            )
        if self._options.sharing is Sharing.PEERS and not self._mount.remote:
            logger.info(
                "this daemon runs with --peers although its root is on a local file system. Use --standby instead: it "
                "is faster, and also preserves message order and idempotency keys"
            )
        syncfs = self._mount.can_syncfs() if self._syncfs is None else self._syncfs
        self._own_changes = self._watch_calls()
        opening = functools.partial(
            open_root,
            self._calls,
            self._root,
            self._mount,
            self._options,
            syncfs=syncfs,
            peers=self._committing is not None,
            draw=self._draw,
            ids=self._ids,
            own=self._own_changes,
        )
        for _ in range(_BUSY_TRIES):
            with contextlib.suppress(RootBusy):
                self._opened(await self._hop(opening))
                return
            await trio.sleep(_BUSY_PAUSE_SECONDS)  # another daemon may be repairing the root just now
        self._opened(await self._hop(opening))

    def _watch_calls(self) -> OwnChanges | None:
        """Let the calls repeat what gets no answer, or note their own changes if the kernel reports those of others.
        Returns the notes."""
        if isinstance(self._calls, NotedCalls):  # the store is opened again
            return self._own_changes
        if self._mount.remote:
            self._calls = self._calls if isinstance(self._calls, RetryingCalls) else RetryingCalls(self._calls)
            return None
        if self._options.sharing is Sharing.ALONE or not isinstance(self._calls, LinuxCalls):
            return None
        own = OwnChanges()
        self._calls = NotedCalls(self._calls, own)
        return own

    def _opened(self, opened: OpenRoot) -> None:
        self._open, self._described = opened, None
        for thread in (self._committing, self._reading):
            if thread is not None:
                thread.start()
        if self._own_changes is not None:
            layout = opened.folders.layout
            self._queues = KeptLook(self._calls, [layout.queues, f"{layout.records}/{QUEUE}"])

    async def aclose(self) -> None:
        opened, self._open, self._described = self._open, None, None
        for thread in (self._committing, self._reading):
            if thread is not None:
                thread.end()
        if opened is not None and opened.engine.waits_to_end:
            with trio.CancelScope(shield=True):
                await self._hop(opened.close)
        elif opened is not None:
            opened.close()

    async def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """All records of a kind. A folder in queues/ is a queue, whether it has settings or not."""
        if kind == QUEUE and (kept := self._kept_queues()) is not None:
            await trio.lowlevel.checkpoint()
            return kept
        found: Mapping[str, Mapping[str, Any]] = await self._read_only(self._records, kind)
        return found

    async def stage(self, chunks: AsyncIterable[bytes]) -> StagedBody:
        path = f"{self._root_open.engine.stage}/{self._ids.new()}"
        file = await self._change(StagedFile, self._root_open.folders, path)
        staged = StagedBody(file, self._hop, self._gate)
        try:
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if len(waiting) >= _STAGED_CHUNK:
                    await self._change(staged.file.add, bytes(waiting))
                    waiting.clear()
            await self._change(staged.file.add, bytes(waiting))
        except BaseException:
            with trio.CancelScope(shield=True):
                await staged.discard()
            raise
        return staged

    async def commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        """Do a batch in one hop: on a medium in the thread, in memory perhaps without one."""
        async with self._batch_gate:
            return await self._commit(operations)

    async def commit_in_parts(self, operations: Sequence[AnyOperation], hear: Hear) -> list[Outcome]:
        """As :meth:`commit`; with a log, of the first operations is told before the last file calls are made."""
        heard = 0

        def counting(outcomes: Sequence[Outcome], late_seconds: float) -> None:
            nonlocal heard
            heard += len(outcomes)
            hear(outcomes, late_seconds)

        async with self._batch_gate:
            hop, thread = self._hop_in_parts, self._committing
            if thread is not None and thread.is_free:
                hop = thread.hop_in_parts
            if hop is None or not self._root_open.engine.tells_early:
                return await self._commit(operations)
            commit = functools.partial(hop, hear=counting)
            outcomes = Outcomes(await self._noting_cut(commit, self._root_open.engine.commit, operations))
            if thread is not None:
                outcomes.heard_late = thread.heard_late
        del outcomes[:heard]
        return outcomes

    async def _commit(self, operations: Sequence[AnyOperation]) -> list[Outcome]:
        inline = self._fits_inline(operations)
        hop = inline_hop if inline else self._hop_to(self._committing)
        outcomes = Outcomes(await self._noting_cut(hop, self._root_open.engine.commit, _NOT_EARLY, operations))
        if not inline and self._committing is not None:
            outcomes.heard_late = self._committing.heard_late
        return outcomes

    async def read(self, entries: Sequence[Entry]) -> list[Stored | None]:
        """Open messages in one hop; in none where they were read ahead."""
        ahead = self._root_open.engine.read_ahead(entries)
        if ahead is not None:
            return [Stored(found.properties, BytesBody(found.data)) for found in ahead]
        inline = self._is_inline(len(entries))
        opened: list[Opened | None] = await self._read_only(
            self._root_open.folders.read_many, entries, thread=self._reading, inline=inline
        )
        health = self._root_open.folders.health
        for entry, found in zip(entries, opened, strict=True):
            if found is not None and found.damage:
                self._root_open.folders.note_damaged(entry, found.damage)
            elif found is not None and found.properties.checksum is None:
                health.unchecked += 1
        return [None if found is None else Stored(found.properties, self._body(found)) for found in opened]

    async def verify(self, entries: Sequence[Entry]) -> None:
        """Verify in a thread, one message after the other."""
        folders = self._root_open.folders
        for entry in entries:
            await self._read_only(folders.verify, entry)

    async def read_columns(
        self, queue: str, messages: Sequence[int | Entry], base: int, most_bytes: int
    ) -> MessageColumns | None:
        folders = self._root_open.folders
        found: MessageColumns | None = await self._read_only(
            folders.read_columns, queue, messages, base, most_bytes, thread=self._reading
        )
        return found

    async def find(self, queue: str, id: MessageId) -> Entry | None:
        found: Entry | None = await self._read_only(self._root_open.folders.find, queue, id)
        return found

    async def scan(self, state: State, queue: str | None = None, limit: int | None = None) -> list[Entry]:
        found: list[Entry] = await self._read_only(self._root_open.folders.scan, state, queue, limit)
        return found

    def changes(self) -> AbstractAsyncContextManager[AsyncIterator[Change]] | None:
        return None if self._open is None else self._open.engine.changes()

    @property
    def _root_open(self) -> OpenRoot:
        if self._open is None:
            raise StorageUnusable(f"the store {shorten(self._name)} is not open")
        return self._open

    def _is_inline(self, count: int) -> bool:
        return not self._mount.persistent and count <= _MOST_INLINE

    def _fits_inline(self, operations: Sequence[AnyOperation]) -> bool:
        """Whether a hop would take longer than the batch does."""
        # not with an Unlink: a deleted queue may be long, and a file large; nor with a record, which may be large
        if not self._is_inline(len(operations)):
            return False
        sizes = (len(each.body) for each in operations if isinstance(each, Write) and isinstance(each.body, bytes))
        return sum(sizes) <= _MOST_INLINE_BYTES and not any(
            isinstance(each, Unlink | Put | Drop) for each in operations
        )

    async def _change(self, verb: Callable[..., _T], *args: object) -> _T:
        """A verb that changes the medium, with its errors translated."""
        folders = self._root_open.folders
        if folders.volume.failure:
            raise StorageStopped(
                f"the store has failed ({folders.volume.failure}). Repair and remount the disk, then restart mq"
            )
        try:
            result: _T = await self._noting_cut(self._hop, verb, *args)
            return result
        except OSError as error:
            if is_transient(error):
                raise StorageFull(
                    f"temporarily unable to write to the store: {error.strerror}. Try again later"
                ) from error
            folders.volume.fail(error)
            raise StorageFailed(
                "the store failed during the request, which may or may not have been executed "
                f"({folders.volume.failure}). Repair and remount the disk, then restart mq"
            ) from error

    async def _noting_cut(self, hop: Callable[..., Awaitable[_T]], *args: object) -> _T:
        """Change the medium by a hop, and note if the change is cut off: then the root is not stopped cleanly."""
        try:
            return await hop(*args)
        except (OSError, MQError, trio.Cancelled):  # a hop that has begun is not cancelled
            raise
        except BaseException:
            self._root_open.folders.volume.is_cut_off = True
            raise

    def _hop_to(self, thread: OwnThread | None) -> Hop:
        return thread.hop if thread is not None and thread.is_free else self._hop

    async def _read_only(
        self, verb: Callable[..., _T], *args: object, thread: OwnThread | None = None, inline: bool = False
    ) -> _T:
        try:
            async with self._readers:
                hop = inline_hop if inline else self._hop_to(thread)  # only now: others took the thread meanwhile
                result: _T = await hop(verb, *args)
                return result
        except OSError as error:
            raise _unreadable(error) from error

    def _body(self, opened: Opened) -> BytesBody | DamagedBody | FileBody:
        if opened.damage:
            return DamagedBody(opened.properties.size, opened.damage)
        if opened.fd is None:
            return BytesBody(opened.data)
        return FileBody(self._root_open.folders, opened.fd, opened, self._hop)

    def _records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        if kind != QUEUE:
            return self._root_open.records.all(kind)
        return self._look_at_queues()[0] if self._queues is None else self._queues.look(self._look_at_queues)

    def _kept_queues(self) -> Mapping[str, Mapping[str, Any]] | None:
        """The queues of the last look, where nothing has changed since; None where they have to be read."""
        # Two quick calls on this machine, without a hop: brokers with peers ask for each request.
        if self._queues is None:
            return None
        try:
            return self._queues.get()
        except OSError:
            return None  # then the look tells why

    def _look_at_queues(self) -> tuple[Mapping[str, Mapping[str, Any]], bool]:
        """The queues, and whether another process cannot be writing the record of one just now."""
        opened = self._root_open
        before = opened.records.passed_over
        found = opened.records.all(QUEUE)
        queues = {name: found.get(name, {}) for name in opened.folders.queues()}
        return queues, opened.records.passed_over == before


def _unreadable(error: OSError) -> StorageError:
    if is_transient(error):
        return StorageFull(f"temporarily unable to read from the store: {error.strerror}. Try again later")
    return StorageStopped(f"cannot read from the store: {error.strerror}. Repair and remount the disk, then restart mq")


class _FreeLock:
    """A lock that is entered without a checkpoint while it is free."""

    __slots__ = ("_lock",)

    def __init__(self, lock: trio.Lock) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        if self._lock.locked():
            await self._lock.acquire()
        else:
            self._lock.acquire_nowait()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
