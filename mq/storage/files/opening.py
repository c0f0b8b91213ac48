"""Opening a root: check it, lock it, make its folders, choose its engine, repair it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from mq.errors import StorageFull, StorageUnusable
from mq.message import MessageIds, shorten
from mq.storage.files.calls import NO_ROOM, Calls, Native, is_transient
from mq.storage.files.engine import LOGGED, Engine, EngineChoice, choose_engine
from mq.storage.files.explain import explain, or_unusable
from mq.storage.files.folders import Folders
from mq.storage.files.format import RootUse, note_use, use_before
from mq.storage.files.inventory import keep_inventory
from mq.storage.files.layout import NO_ATTRIBUTES, Layout, largest_attributes
from mq.storage.files.logged.engine import LoggedEngine
from mq.storage.files.logged.segments import LogDamaged
from mq.storage.files.lost import cure, lost_folders
from mq.storage.files.mount import Mount
from mq.storage.files.movers import lock_moves, nobody_moves
from mq.storage.files.ownership import Guard, RootBusy, open_root_folders
from mq.storage.files.probes import check_calls, has_xattrs, named
from mq.storage.files.records import Records
from mq.storage.files.reserve import Reserve
from mq.storage.files.spare import Spare
from mq.storage.files.start import Start
from mq.storage.files.stepwise.engine import StepwiseEngine, kit_for, stepped_root
from mq.storage.files.stepwise.peers import Heartbeat, PeerLease
from mq.storage.files.stepwise.root import Others
from mq.storage.files.stepwise.watch import OwnChanges
from mq.storage.files.sync import close_all
from mq.storage.files.volume import Volume
from mq.storage.interface import Sharing
from mq.storage.options import StorageOptions

_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class OpenRoot(NamedTuple):
    """A root that is ready to serve.

    Attributes:
        handles: open files to keep for as long as it is served.
        heartbeat: tells the peers that this process lives.
        is_ours: whether no other daemon serves it, nor can begin to.
    """

    folders: Folders
    records: Records
    engine: Engine
    choice: EngineChoice
    handles: tuple[int, ...]
    heartbeat: Heartbeat | None = None
    is_ours: bool = False

    def close(self) -> None:
        """Let go of it."""
        if self.heartbeat is not None:
            self.heartbeat.stop()
        if self.is_ours:
            with contextlib.suppress(OSError):  # then the next start puts it right
                self._put_to_rest()
        close_all(self.folders.calls, self.handles)
        for spare in (self.folders.volume.syncs.spare, self.folders.read_spare):
            if spare is not None:
                spare.close()

    def _put_to_rest(self) -> None:
        """Note that all is in the files, if it is."""
        if self.engine.end():
            keep_inventory(self.records.through(self.folders.calls))  # by calls that sync
            note_use(self.folders.calls, self.folders.layout, RootUse.CLEAN)


def open_root(
    calls: Calls,
    root: str,
    mount: Mount,
    options: StorageOptions,
    *,
    syncfs: bool = False,
    peers: bool = False,
    draw: Callable[[int], bytes] = os.urandom,
    accept_loss: bool = False,
    ids: MessageIds | None = None,
    own: OwnChanges | None = None,
) -> OpenRoot:
    """Make a root ready.

    Args:
        mount: what its file system keeps over a power cut.
        peers: whether processes that share the root tell each other that they live, and threads may be used.
        draw: random bytes, as many as asked for.
        accept_loss: whether a root is opened although files are gone that may have held confirmed messages.
        own: notes this process's changes; None if the kernel does not report those of others.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    choose_engine(mount, options, root, syncfs=syncfs)  # refuses a file system that cannot be served
    opening = _Opening(calls, root, mount, options, syncfs=syncfs, in_thread=peers)
    try:
        return opening.open(draw, ids or MessageIds(), own, accept_loss=accept_loss)
    except StorageUnusable as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in NO_ROOM or not mount.size:
            raise
        with or_unusable(f"cannot serve root {shorten(root)}"):
            Reserve(calls, Layout.under(root), mount.size, shared=True).release()
        opening = _Opening(calls, root, mount, options, syncfs=syncfs, in_thread=peers)
        return opening.open(draw, ids or MessageIds(), own, accept_loss=accept_loss)


class _Opening:
    """One try to open a root.

    Args:
        calls, root, mount, options, syncfs: as :func:`open_root` takes them.
    """

    def __init__(
        self, calls: Calls, root: str, mount: Mount, options: StorageOptions, *, syncfs: bool, in_thread: bool
    ) -> None:
        self._calls = calls
        self._root = root
        self._mount = mount
        self._options = options
        self._syncfs = syncfs
        self._in_thread = in_thread
        self._is_shared = options.sharing is Sharing.PEERS
        self._layout = Layout.under(root)
        self._lease = PeerLease(calls, self._layout, expires=mount.remote)
        self._handles: list[int] = []
        self._unless_opened = contextlib.ExitStack()

    def open(
        self, draw: Callable[[int], bytes], ids: MessageIds, own: OwnChanges | None, *, accept_loss: bool
    ) -> OpenRoot:
        """Open it.

        Raises:
            StorageUnusable: in one line, why not and what to do.
        """
        try:
            return self._open(draw, ids, own, accept_loss=accept_loss)
        except (OSError, StorageFull, StorageUnusable, LogDamaged) as error:
            self._unless_opened.close()
            self._lease.leave()
            close_all(self._calls, self._handles)
            if isinstance(error, StorageUnusable):
                raise
            if isinstance(error, LogDamaged):
                advice = cure(self._root)
                raise StorageUnusable(
                    f"cannot serve root {shorten(self._root, 200)}: its write-ahead log is damaged ({error}), so "
                    f"confirmed messages may be missing. {advice}"
                ) from error
            why = explain(error) if isinstance(error, OSError) else error
            raise StorageUnusable(f"cannot serve root {shorten(self._root)}: {why}") from error

    def _open(
        self, draw: Callable[[int], bytes], ids: MessageIds, own: OwnChanges | None, *, accept_loss: bool
    ) -> OpenRoot:
        calls, layout, root = self._calls, self._layout, self._root
        lost = lost_folders(calls, layout, root, accept_loss=accept_loss)
        opened = open_root_folders(calls, layout, root, Guard(calls, root, self._options, self._mount))
        self._handles += opened.values()
        self._handles.append(lock := calls.open(layout.lock, _LOCK_FILE))
        with named(root, self._mount, "flock"):
            alone = _lock(calls, lock, root, shared=self._is_shared)
        if self._in_thread:
            alone = _meet_peers(self._lease, root, shared=self._is_shared, alone=alone)
        use = use_before(calls, layout, root, lost if accept_loss else None, alone=alone)
        check_calls(calls, layout, root, self._mount)
        xattrs = has_xattrs(calls, lock)
        choice = choose_engine(self._mount, self._options, root, syncfs=self._syncfs, xattrs=xattrs)
        folders = self._folders(choice, opened, xattrs=xattrs)
        for damage in lost:
            folders.note_damage(damage)
        records = Records(calls, layout.records)
        if not self._is_shared:
            records.keep_names()
        stage = self._lease.stage if self._in_thread and self._is_shared else layout.stage
        kit = kit_for(self._mount)
        stepped = stepped_root(kit, folders, stage=stage, shared=self._options.sharing is not Sharing.ALONE)
        engine: Engine = StepwiseEngine(kit, stepped, records, ids, own)
        if alone:
            start = Start(
                choice, use, folders, records, self._options, in_thread=self._in_thread, accept_loss=accept_loss
            )
            with nobody_moves(calls, layout, root):
                logged = start.repair(opened, draw, self._unless_opened)
            if logged is not None:
                engine, records = LoggedEngine(logged, ids), logged.records
        else:
            self._check_joinable(use, stepped.others)
        moves = [lock_moves(calls, layout, root)] if engine.keeps_movers_away else []
        self._handles += moves
        if self._is_shared:
            _lock_shared(calls, lock, root)
        # Before the spare handles are taken: one with a number above a lower limit is of no use when it is freed.
        kept = _let_go(calls, opened, keep=(root, layout.new, layout.delay, layout.remove))
        self._handles = [*moves, lock, *kept]
        _fill_reserve(folders)
        folders.volume.syncs.keep_spare(root)
        folders.read_spare = Spare(calls, root)
        heartbeat = Heartbeat(self._lease) if stage != layout.stage else None
        handles = tuple(self._handles)
        return OpenRoot(folders, records, engine, choice, handles, heartbeat, is_ours=not self._is_shared)

    def _folders(self, choice: EngineChoice, opened: Mapping[str, int], *, xattrs: bool) -> Folders:
        calls, layout = self._calls, self._layout
        is_alone = self._options.sharing is Sharing.ALONE
        volume = Volume(
            calls,
            layout,
            self._mount,
            opened[self._root],
            {folder: opened[folder] for folder in (layout.new, layout.delay, layout.remove)},
            syncfs=self._syncfs,
            shared=not is_alone,
        )
        native: Native | None = None
        if choice.engine == LOGGED and os.fsencode(layout.new) == layout.new.encode(errors="replace"):
            native = calls.native  # it can be told paths in UTF-8 only
        largest = largest_attributes(xattrs=xattrs, journaled=self._mount.atomic_rename)
        has_side_files = not is_alone or largest == NO_ATTRIBUTES
        return Folders(calls, layout, volume, largest_attributes=largest, has_side_files=has_side_files, native=native)

    def _check_joinable(self, use: RootUse | None, others: Others | None) -> None:
        """Check that a root that other daemons serve can be served, too.

        Raises:
            StorageUnusable: it cannot.
        """
        if use is RootUse.LOG:
            raise StorageUnusable(
                f"root {shorten(self._root)} contains the write-ahead log of a daemon that ran without --peers. "
                "Start one daemon without --peers, stop it, then start all daemons with --peers"
            )
        if others is not None and others.alarm is not None and others.alarm.is_set():
            raise StorageUnusable(
                f"cannot serve root {shorten(self._root)}: another daemon that serves this root reported a disk "
                "failure. Stop all daemons, repair and remount the disk, then start them again"
            )


def _let_go(calls: Calls, opened: Mapping[str, int], *, keep: tuple[str, ...]) -> list[int]:
    """Close folders but those to keep: these."""
    close_all(calls, [fd for path, fd in opened.items() if path not in keep])
    return [opened[path] for path in keep]


def _meet_peers(peer_lease: PeerLease, root: str, *, shared: bool, alone: bool) -> bool:
    """Clear what dead peers left, and join the living ones. True when there are none."""
    living = peer_lease.sweep(alone=alone) if shared else peer_lease.outwait(alone=alone)
    if shared:
        peer_lease.announce()
    elif living:
        raise RootBusy(
            f"root {shorten(root)} was served by a daemon with --peers until a few seconds ago, and that "
            "daemon may still be running: stop it, or try again in 15 seconds"
        )
    return alone and not living


def _fill_reserve(folders: Folders) -> None:
    """Fill the reserve. On a full disk that happens later; messages can be fetched and removed meanwhile."""
    try:
        folders.volume.reserve.ensure()
    except OSError as error:
        if not is_transient(error):
            raise


def _lock(calls: Calls, lock: int, root: str, *, shared: bool) -> bool:
    """Take the root's lock. True when no other process serves the root."""
    try:
        calls.lock(lock, exclusive=True)
        return True
    except BlockingIOError as error:
        if not shared:
            raise StorageUnusable(
                f"root {shorten(root)} is already served by another daemon: stop that daemon, or choose "
                "another --root. To run this daemon as a standby, start both daemons with --standby"
            ) from error
    _lock_shared(calls, lock, root)
    return False


def _lock_shared(calls: Calls, lock: int, root: str) -> None:
    """Share the root's lock with other daemons."""
    # for an instant a lock that changes from exclusive to shared is free: another daemon that is starting may get it
    try:
        calls.lock(lock, exclusive=False)
    except BlockingIOError as error:
        raise RootBusy(
            f"root {shorten(root)} is in use by a daemon that does not share it with other processes (--peers=0). "
            "Restart that daemon with --peers=1 or higher"
        ) from error
