"""Opening a root: check it, lock it, make its folders, learn what its file system can do, repair it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from mq.errors import StorageFull, StorageUnusable
from mq.lifecycle import State
from mq.message import shorten
from mq.storage.files import checkpoint
from mq.storage.files.barrier import Spare, close_all, sync, sync_folder
from mq.storage.files.calls import (
    NO_HANDLES,
    NO_ROOM,
    OPEN_NEW,
    OPEN_READ,
    Calls,
    FileKind,
    LinuxCalls,
    is_transient,
)
from mq.storage.files.folders import Folders
from mq.storage.files.format import FormatDamaged, RootUse, is_in_use, note_use, open_moves_lock, read_use
from mq.storage.files.inventory import INVENTORY, keep_inventory, read_inventory
from mq.storage.files.layout import Layout
from mq.storage.files.log import LARGEST, SMALLEST, Log, LogDamaged, Record, life_of, salvage
from mq.storage.files.logged import mark_whole
from mq.storage.files.mount import Mount, mount_of_root
from mq.storage.files.ownership import Guard, open_folders
from mq.storage.files.peers import Heartbeat, PeerLease
from mq.storage.files.records import Records, file_of, key_of
from mq.storage.files.recovery import recover
from mq.storage.files.redo import forgotten_by, redo
from mq.storage.files.reserve import Reserve
from mq.storage.interface import QUEUE, Damage, Sharing
from mq.storage.options import StorageOptions

logger = logging.getLogger("mq.storage")

_IN_PLACE: Final = frozenset({errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO})
"""Errors where something else is in the place of a file or a folder."""
_PROBE: Final = "user.mq.probe"
_TURN_SOCKET: Final = "turn"
_LOCK_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_WRITABLE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
"""NFS gives an exclusive lock on a file that is open for writing alone (EBADF)."""
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})
_NO_SUCH_CALL: Final = frozenset(
    {errno.ENOSYS, errno.ENOTSUP, errno.EINVAL, errno.EPERM, errno.ENOLCK, errno.EXDEV, errno.EBADF}
)
"""Errors of a file system for a call that it does not have."""


class RootBusy(StorageUnusable):
    """Another daemon has the root to itself: for good, or just while it repairs it."""


class OpenRoot(NamedTuple):
    """A root that is ready to serve.

    Attributes:
        folders: its messages.
        records: its records.
        handles: open files to keep for as long as it is served.
        heartbeat: tells the peers that this process lives.
        is_ours: whether no other daemon serves it, nor can begin to.
    """

    folders: Folders
    records: Records
    handles: tuple[int, ...]
    heartbeat: Heartbeat | None = None
    is_ours: bool = False

    @property
    def synced_records(self) -> Records:
        """The records by calls that sync, also beside a log."""
        return self.records.through(self.folders.calls)

    def close(self) -> None:
        """Let go of it."""
        if self.heartbeat is not None:
            self.heartbeat.stop()
        if self.is_ours:
            with contextlib.suppress(OSError):  # then the next start puts it right
                self._put_to_rest()
        close_all(self.folders.calls, self.handles)
        for spare in (self.folders.syncs.spare, self.folders.read_spare):
            if spare is not None:
                spare.close()

    def _put_to_rest(self) -> None:
        """Note that all is in the files, if it is."""
        log, folders = self.folders.log, self.folders
        if log is not None:
            log.close(failed=bool(folders.failure))
        if folders.failure or folders.is_cut_off or (log is not None and not log.is_empty):
            return
        if log is None and folders.syncs.syncfs:
            folders.syncs.everything()  # elsewhere each file is synced before it has its name
        keep_inventory(self.synced_records)
        note_use(folders.calls, folders.layout, RootUse.CLEAN)


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
) -> OpenRoot:
    """Make a root ready.

    Args:
        calls: the system.
        root: its path.
        mount: what its file system keeps over a power cut.
        options: how it will be used.
        syncfs: whether that call may be used.
        peers: whether processes that share the root tell each other that they live, and threads may be used.
        draw: random bytes, as many as asked for.
        accept_loss: whether a root is opened although files are gone that may have held confirmed messages.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    if mount.flaw:
        raise StorageUnusable(f"root {shorten(root)} {mount.flaw}")
    if mount.assumed and not options.untested:
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}, a file system on which mq has not been tested for "
            "power failures and lost servers. Choose a --root on ext4, xfs or btrfs, or allow this file "
            "system with --untested-fs"
        )
    try:
        return _open(calls, root, mount, options, syncfs=syncfs, peers=peers, draw=draw, accept_loss=accept_loss)
    except StorageUnusable as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in NO_ROOM or not mount.size:
            raise
        try:
            Reserve(calls, Layout.under(root), mount.size, shared=True).release()
        except OSError as failed:
            raise StorageUnusable(f"cannot serve root {shorten(root)}: {explain(failed)}") from failed
        return _open(calls, root, mount, options, syncfs=syncfs, peers=peers, draw=draw, accept_loss=accept_loss)


def _open(
    calls: Calls,
    root: str,
    mount: Mount,
    options: StorageOptions,
    *,
    syncfs: bool,
    peers: bool,
    draw: Callable[[int], bytes],
    accept_loss: bool,
) -> OpenRoot:
    layout = Layout.under(root)
    handles: list[int] = []
    moves: list[int] = []
    peer_lease = PeerLease(calls, layout, expires=mount.remote)
    unless_opened = contextlib.ExitStack()
    try:
        lost = _lost_folders(calls, layout, root, accept_loss=accept_loss)
        opened = _open_checked(calls, layout, root, Guard(calls, root, options, mount))
        handles += opened.values()
        handles.append(lock := calls.open(layout.lock, _LOCK_FILE))
        with _named(root, mount, "flock"):
            alone = _lock(calls, lock, root, shared=options.sharing is Sharing.PEERS)
        if peers:
            alone = _meet_peers(peer_lease, root, options, alone=alone)
        use = _use_before(calls, layout, root, lost if accept_loss else None, alone=alone)
        _check_calls(calls, layout, root, mount)
        folders = Folders(
            calls,
            layout,
            mount,
            opened[root],
            {folder: opened[folder] for folder in (layout.new, layout.delay, layout.remove)},
            syncfs=syncfs,
            xattrs=has_xattrs(calls, lock),
            published_whole=options.sharing is not Sharing.ALONE,
            stage=peer_lease.stage if peers and options.sharing is Sharing.PEERS else "",
        )
        for damage in lost:
            folders.note_damage(damage)
        records = _records(calls, layout, options)
        if alone:
            with _nobody_moves(calls, layout, root):
                start = _Start(use, folders, records, opened, options, in_thread=peers, accept_loss=accept_loss)
                records = start.repair(draw, unless_opened)
            if options.sharing is Sharing.ALONE and folders.log is None:  # beside a log there is its mark
                # A mover would take messages to where this daemon's index does not look again.
                handles += (moves := [_lock_moves(calls, layout, root)])
        elif use is RootUse.LOG:
            raise StorageUnusable(
                f"root {shorten(root)} contains the log of a daemon that ran without --peers. Start one daemon without "
                "--peers, stop it, then start all daemons"
            )
        elif folders.sync_every_move and folders.alarm.is_set():
            raise StorageUnusable(
                f"cannot serve root {shorten(root)}: another daemon on this root found that the disk failed. "
                "Stop all daemons, repair and remount the disk, then start them again"
            )
        if options.sharing is Sharing.PEERS:
            _lock_shared(calls, lock, root)
        # Before the spare handles are taken: one with a number above a lower limit is of no use when it is freed.
        handles = [*moves, lock, *_let_go(calls, opened, keep=(root, layout.new, layout.delay, layout.remove))]
        _fill_reserve(folders)
        if not syncfs:
            folders.syncs.spare = Spare(calls, root)
        folders.read_spare = Spare(calls, root)
        heartbeat = Heartbeat(peer_lease) if folders.stage != layout.stage else None
    except (OSError, StorageFull, StorageUnusable, LogDamaged) as error:
        unless_opened.close()
        peer_lease.leave()
        close_all(calls, handles)
        if isinstance(error, StorageUnusable):
            raise
        if isinstance(error, LogDamaged):
            raise StorageUnusable(
                f"cannot serve root {shorten(root, 200)}: its log is damaged ({error}), so confirmed messages may be "
                f"missing. {_cure(root)}"
            ) from error
        why = explain(error) if isinstance(error, OSError) else error
        raise StorageUnusable(f"cannot serve root {shorten(root)}: {why}") from error
    is_ours = options.sharing is not Sharing.PEERS
    return OpenRoot(folders, records, tuple(handles), heartbeat, is_ours=is_ours)


LOST_STATE: Final = (
    "the folder is new or missing, although the root contains messages. If the folder was deleted, the "
    "following are lost: the settings of all queues, idempotency keys, schedules, exchanges and bindings, "
    "batch consumers, write jobs, and confirmed messages that were only in the log"
)
"""Of the folder state/: what a root has lost with it."""


def _cure(root: str) -> str:
    """What an operator can do about files that are gone."""
    return (
        "Restore the root from a backup (mq restore), or accept the losses and serve the rest: mq doctor "
        f"--accept-loss {shorten(root, 200)}"
    )


def _lost_folders(calls: Calls, layout: Layout, root: str, *, accept_loss: bool) -> list[Damage]:
    """The folders that a root in use has lost, before they are made again.

    Raises:
        StorageUnusable: there are some, and that was not accepted.
    """
    if calls.kind(root) is not FileKind.FOLDER or calls.kind(layout.state) is not FileKind.FOLDER:
        return []
    if calls.kind(layout.format) is None:
        return []  # it is written once all folders are there
    # What was in remove/ or state/stage/ is not a message.
    needed = [path for path in layout.all() if path not in (layout.state, layout.remove, layout.stage)]
    lost = [path for path in needed if calls.kind(path) is None]
    if lost and not accept_loss:
        raise StorageUnusable(
            f"cannot serve root {shorten(root, 200)}: {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} "
            f"missing, including all contents. {_cure(root)}"
        )
    return [Damage("", None, path, "the folder was missing, including all its contents") for path in lost]


def use_of_root(calls: Calls, layout: Layout) -> RootUse | None:
    """How a root was left by its last daemon; None if it is new, or has lost all of state/.

    Raises:
        FormatDamaged: nothing tells, though the root has been in use.
        StorageUnusable: another version of mq wrote it.
    """
    use = read_use(calls, layout)
    if use is None and (calls.kind(layout.log) is not None or _has_records(calls, layout)):
        raise FormatDamaged(f"{layout.format} is missing")
    return use


def _has_records(calls: Calls, layout: Layout) -> bool:
    records = Records(calls, layout.records)
    return calls.kind(layout.records) is not None and any(map(records.files, records.kinds()))


def _use_before(
    calls: Calls, layout: Layout, root: str, accepted: list[Damage] | None, *, alone: bool
) -> RootUse | None:
    """How the root was left by its last daemon; None if it is new, or has lost all of state/.

    Args:
        calls: the system.
        layout: the root's folders.
        root: its path.
        accepted: gets what is lost, where that is accepted; else None.
        alone: whether no other daemon serves the root.

    Raises:
        StorageUnusable: this version cannot serve it, or it is damaged.
    """
    try:
        use = use_of_root(calls, layout)
    except FormatDamaged as error:
        kind = calls.kind(layout.format)
        if accepted is None or kind not in (FileKind.FILE, None):
            raise StorageUnusable(
                f"cannot serve root {shorten(root, 200)}: {error}, so it is unknown whether the log contains messages "
                f"that are missing from the files. {_cure(root)}"
            ) from error
        accepted.append(Damage("", None, layout.format, str(error)))
        if kind is FileKind.FILE:
            calls.unlink(layout.format)
        return RootUse.FILES if calls.kind(layout.log) is None else RootUse.LOG
    if use is RootUse.RESTORING:
        raise StorageUnusable(
            f"root {shorten(root)} is only partially restored: run mq restore again with the same backup and the same "
            "root"
        )
    if use is None and alone:
        note_use(calls, layout, RootUse.FILES)  # before the first record and the log
    return use


def _records(calls: Calls, layout: Layout, options: StorageOptions) -> Records:
    records = Records(calls, layout.records)
    if options.sharing is not Sharing.PEERS:
        records.keep_names()
    return records


class _Start:
    """Restores what a crash has taken, and begins a log where one is wanted.

    Args:
        use: how the root was left; None if it is new.
        folders: of the root.
        records: of the root.
        opened: the folders by their paths, checked and open.
        options: how it will be served.
        in_thread: whether threads may be used.
        accept_loss: whether the root is served although its log is damaged.
    """

    def __init__(
        self,
        use: RootUse | None,
        folders: Folders,
        records: Records,
        opened: Mapping[str, int],
        options: StorageOptions,
        *,
        in_thread: bool,
        accept_loss: bool,
    ) -> None:
        self._use = use
        self._folders = folders
        self._calls = folders.calls
        self._layout = folders.layout
        self._records = records
        self._opened = opened
        self._options = options
        self._in_thread = in_thread
        self._accept_loss = accept_loss
        alone = options.log and options.sharing is Sharing.ALONE
        self._wants_log = alone and folders.mount.logged and folders.syncs.syncfs

    def repair(self, draw: Callable[[int], bytes], unless_opened: contextlib.ExitStack) -> Records:
        """Repair the root. Returns the records, as they are served then."""
        log: Log | None = None
        if self._use is RootUse.LOG and not self._accept_loss:
            log = self._make_log(draw, unless_opened, in_use=True)
            live = log.read()
            redo(self._folders, self._records, live, survived=log.survived)
        elif self._use is RootUse.LOG:
            live = self._salvage()
        else:
            live = []
        is_settled = self._use in (RootUse.LOG, RootUse.CLEAN)
        self._check_records(live, is_settled=is_settled)
        recover(self._folders, self._records, self._opened, is_settled=is_settled)
        if self._use is None:
            self._note_lost_state()
        self._folders.alarm.clear()
        if log is None and self._wants_log:
            log = self._make_log(draw, unless_opened, in_use=False)
        if log is not None:
            self._folders.syncs.everything()
            log.forget()
        if log is None or not self._wants_log:
            self._go_on_without_log(log)
            return self._records
        keep_inventory(self._records)
        note_use(self._calls, self._layout, RootUse.LOG)
        mark_whole(self._folders)
        log.begin()
        self._folders.log = log
        return self._records.unsynced()

    def _make_log(self, draw: Callable[[int], bytes], unless_opened: contextlib.ExitStack, *, in_use: bool) -> Log:
        folders = self._folders
        log = Log(
            self._calls,
            self._layout.log,
            partial(checkpoint.bring, folders, self._records),
            folders.fail,
            folders.removed_queues.forget,
            life=life_of(folders.syncs.root_fd) if self._in_thread else "",
            draw=draw,
            in_use=in_use,
            in_thread=self._in_thread,
            smallest=self._options.log_bytes or SMALLEST,
            largest=self._options.log_bytes or LARGEST,
            spare_room=folders.reserve.held,
        )
        unless_opened.callback(log.close, failed=True)
        return log

    def _salvage(self) -> list[Record]:
        """Do again what can still be read of the log."""
        live, flaws = salvage(self._calls, self._layout.log)
        for flaw in flaws:
            self._folders.note_damage(Damage("", None, self._layout.log, flaw))
        redone = redo(self._folders, self._records, live, survived=False)
        for path in redone.lost:
            self._folders.note_damage(
                Damage("", None, path, "the log contains this message, but the message was not found in any folder")
            )
        return live

    def _go_on_without_log(self, log: Log | None) -> None:
        note_use(self._calls, self._layout, RootUse.FILES)  # first: the segments of a log in use must exist
        if log is not None:
            log.close()
        if self._calls.kind(self._layout.log) is FileKind.FOLDER:
            _remove_log(self._calls, self._layout)

    def _check_records(self, live: Sequence[Record], *, is_settled: bool) -> None:
        """Note records that are damaged or missing."""
        # The record of a queue is durable before the queue's folder is made.
        made = {(QUEUE, file_of(queue)) for queue in self._folders.queues()}
        damaged = self._records.check(is_settled=is_settled, answered=made)
        for damage in damaged.values():
            self._folders.note_damage(damage)
        if not is_settled:
            return
        listed = read_inventory(self._records)
        if listed is None:
            path = f"{self._layout.records}/{INVENTORY}"
            why = "the list of all records cannot be read, so it is unknown whether records are missing"
            self._folders.note_damage(Damage(INVENTORY, None, path, why))
            return
        self._records.names_are_listed(listed, INVENTORY)
        forgotten = forgotten_by(live)
        for kind, files in listed.items():
            there = self._records.files(kind)
            for file in files:
                key = key_of(file)
                if file not in there and (kind, file) not in damaged and (kind, file) not in forgotten:
                    path = f"{self._layout.records}/{kind}/{file}"
                    self._folders.note_damage(Damage(kind, key, path, "the record is missing"))

    def _note_lost_state(self) -> None:
        """Note that a root with messages has lost all of state/."""
        folders = self._folders
        queues = folders.queues()
        has_messages = any(folders.scan(state, limit=1) for state in (State.NEW, State.DELAYED))
        if has_messages or any(folders.scan(State.READY, queue, limit=1) for queue in queues):
            why = f"{LOST_STATE}. Queues without settings: {', '.join(sorted(queues)) or 'none'}"
            folders.note_damage(Damage("", None, self._layout.state, why))
        elif queues:
            named = ", ".join(sorted(queues))
            logger.info("found queue folders without settings; using default settings for: %s", named)


def _remove_log(calls: Calls, layout: Layout) -> None:
    for name, _ in calls.names(layout.log):
        calls.unlink(f"{layout.log}/{name}")
    calls.rmdir(layout.log)


def _meet_peers(peer_lease: PeerLease, root: str, options: StorageOptions, *, alone: bool) -> bool:
    """Clear what dead peers left, and join the living ones. True when there are none."""
    living = peer_lease.sweep(alone=alone) if options.sharing is Sharing.PEERS else peer_lease.outwait(alone=alone)
    if options.sharing is Sharing.PEERS:
        peer_lease.announce()
    elif living:
        raise RootBusy(
            f"root {shorten(root)} was recently served by a daemon with --peers, which may still be running "
            "without a connection: stop that daemon, or try again in 15 seconds"
        )
    return alone and not living


def _fill_reserve(folders: Folders) -> None:
    """Fill the reserve. On a full disk that happens later; messages can be fetched and removed meanwhile."""
    try:
        folders.reserve.ensure()
    except OSError as error:
        if not is_transient(error):
            raise


def explain(error: OSError) -> str:
    """The text of an error from the system, for an operator."""
    advice = {
        errno.EACCES: "; grant this user write permission, or choose another --root",
        errno.EROFS: "; choose a --root on a writable file system",
        errno.ENOTDIR: "; choose a folder as --root",
        errno.ENOSPC: "; free some space first",
    }
    where = f" ({shorten(str(error.filename), 200)}: move it away)" if error.errno in _IN_PLACE else ""
    if error.filename and not where:
        where = f" ({shorten(str(error.filename), 200)})"
    return f"{error.strerror or error}{advice.get(error.errno or 0, '')}{where}"


def _open_checked(calls: Calls, layout: Layout, root: str, guard: Guard) -> dict[str, int]:
    """Make the root and its folders where they are missing, and check them. Open handles by path: the caller closes
    them.

    Raises:
        StorageUnusable: a stranger may write in one of them, or it is none.
        OSError: from the system.
    """
    if (kind := calls.kind(root)) is FileKind.OTHER:
        raise StorageUnusable(
            f"root {shorten(root)} is a link or another kind of file, not a folder: use the folder itself as --root"
        )
    if kind is FileKind.FILE:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), root)
    guard.check_above()
    _make_root(calls, root)
    opened = open_folders(calls, layout, root, guard, make=True)
    try:
        for folder in (root, layout.state):
            sync(calls, opened[folder])
    except OSError:
        close_all(calls, opened.values())
        raise
    return opened


def _let_go(calls: Calls, opened: Mapping[str, int], *, keep: tuple[str, ...]) -> list[int]:
    """Close folders but those to keep: these."""
    close_all(calls, [fd for path, fd in opened.items() if path not in keep])
    return [opened[path] for path in keep]


def _make_root(calls: Calls, root: str) -> None:
    """The root and what is missing above it, each durable in its parent."""
    if calls.kind(root) is None:
        parent = os.path.dirname(root.rstrip("/")) or "."
        _make_root(calls, parent)
        with contextlib.suppress(FileExistsError):
            calls.mkdir(root)
        sync_folder(calls, parent)


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
            f"root {shorten(root)} is served by a daemon with --peers=0: restart that daemon with --peers=1 or more"
        ) from error


@contextlib.contextmanager
def _nobody_moves(calls: Calls, layout: Layout, root: str) -> Iterator[None]:
    """Keep mq-mover and mq-reaper away for the length of the block: they hold no other lock."""
    # Where moves are made by links, one of them would take a repair for a racer that has won the message, and remove
    # the name that was meant to stay.
    fd = _lock_moves(calls, layout, root)
    try:
        yield
    finally:
        calls.close(fd)


def _lock_moves(calls: Calls, layout: Layout, root: str) -> int:
    """Keep mq-mover and mq-reaper away for as long as the handle is open."""
    fd = open_moves_lock(calls, layout, make=True)
    try:
        calls.lock(fd, exclusive=True)
    except OSError as error:
        calls.close(fd)
        if not isinstance(error, BlockingIOError):
            raise
        raise RootBusy(
            f"root {shorten(root)} cannot be repaired while mq-mover or mq-reaper is running: stop these programs first"
        ) from error
    return fd


@contextlib.contextmanager
def unrepaired(calls: Calls, layout: Layout) -> Iterator[bool]:
    """Whether mq-mover or mq-reaper may move messages now, and for the length of the block."""
    try:
        fd = open_moves_lock(calls, layout, make=False)
    except OSError as error:  # no broker's root, or not for this user; or no handle is free just now
        yield error.errno not in NO_HANDLES and not is_in_use(calls, layout)
        return
    try:
        calls.lock(fd, exclusive=False)
        free = not is_in_use(calls, layout)
    except BlockingIOError:
        free = False
    try:
        yield free
    finally:
        calls.close(fd)


def _check_links(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether hard links are possible, where moves are made by links."""
    names = f"{layout.stage}/probe-a", f"{layout.stage}/probe-b"
    calls.close(calls.open(names[0], os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    try:
        calls.link(*names)
    except (FileExistsError, FileNotFoundError):
        return  # another broker tries just now
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}, which may not support hard links and atomic renames. "
            "Choose a --root on a local disk"
        ) from error
    finally:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                calls.unlink(name)


@contextlib.contextmanager
def _named(root: str, mount: Mount, call: str) -> Iterator[None]:
    """Name the call that the file system does not have in the error."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise
        raise StorageUnusable(
            f"root {shorten(root)} is on {mount.kind}, where the call {call} fails ({error.strerror}), but mq "
            "requires it. Choose a --root on a local disk"
        ) from error


def _check_calls(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether an unknown file system has the calls that mq needs."""
    if not mount.atomic_rename:
        _check_links(calls, layout, root, mount)
    if mount.remote:
        _check_moves_and_locks(calls, layout, root, mount)


def _check_moves_and_locks(calls: Calls, layout: Layout, root: str, mount: Mount) -> None:
    """Try whether files can be synced, names moved, and locks relied upon."""
    written, moved = (f"{layout.stage}/probe-{secrets.token_hex(8)}" for _ in range(2))  # peers may try just now
    handles = [calls.open(written, OPEN_NEW)]
    try:
        with _named(root, mount, "fsync"):
            sync(calls, handles[0])
        with _named(root, mount, "rename"):
            calls.rename(written, moved)
        if calls.kind(written) is not None or calls.kind(moved) is not FileKind.FILE:
            raise StorageUnusable(
                f"root {shorten(root)} is on {mount.kind}, where rename does not remove the old name. Choose a "
                "--root on a local disk"
            )
        with _named(root, mount, "flock"):
            calls.lock(handles[0], exclusive=True)
            handles.append(calls.open(moved, _WRITABLE))
            if not _is_locked(calls, handles[1]):
                raise StorageUnusable(
                    f"root {shorten(root)} is on {mount.kind}, which grants the same lock (flock) to two "
                    "processes, so two daemons could serve the root at once. Choose a --root on a local disk"
                )
    finally:
        close_all(calls, handles)
        for name in (written, moved):
            with contextlib.suppress(FileNotFoundError):
                calls.unlink(name)


def _is_locked(calls: Calls, fd: int) -> bool:
    """Whether another open file has the lock of this one. If not, this one has it now."""
    try:
        calls.lock(fd, exclusive=True)
    except BlockingIOError:
        return True
    return False


def has_xattrs(calls: Calls, lock: int) -> bool:
    """Whether files here can have user extended attributes."""
    # tried on a file that is there, for which a full disk has room
    try:
        calls.set_attribute(lock, _PROBE, b"")
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENOSYS):
            raise
        return False
    return True


# Turns: of several daemons one serves a root, as if it were alone, and the next takes it when that one ends. The daemon
# in turn holds a lock of the kernel's, which ends with its process in any case. So it is only for file systems of this
# machine: elsewhere a daemon may lose its lock, and live.


class Turn:
    """This daemon's turn on a root. Made by :func:`open_turn`.

    Args:
        calls: the system.
        layout: the root's folders.
        state: the open folder of what is no message.

    Attributes:
        socket: the path at which the daemon in turn listens, for those that wait. It is short, wherever the
            root is, and only of use in this process.
    """

    def __init__(self, calls: Calls, layout: Layout, state: int) -> None:
        self._calls = calls
        self._layout = layout
        self._state = state
        self._lock = calls.open(layout.turn_lock, _LOCK_FILE)
        self.socket = f"/proc/self/fd/{state}/{_TURN_SOCKET}"  # a Unix socket's path has 107 bytes at the most

    def take(self) -> bool:
        """Whether it is this daemon's turn: from then on, until :meth:`close`. Returns at once.

        Raises:
            StorageUnusable: locks are not kept here.
        """
        try:
            self._calls.lock(self._lock, exclusive=True)
        except BlockingIOError:
            return False
        self._prove()
        return True

    def close(self) -> None:
        """Let the next daemon have its turn."""
        close_all(self._calls, [self._lock, self._state])

    def _prove(self) -> None:
        """See that no other open file gets the lock, too."""
        other = self._calls.open(self._layout.turn_lock, OPEN_READ)
        try:
            if not _is_locked(self._calls, other):
                raise StorageUnusable(
                    f"--standby does not work on {shorten(self._layout.state)}, because its file system "
                    "grants the same lock to two processes. Choose a --root on a local disk"
                )
        finally:
            self._calls.close(other)


def open_turn(root: str, options: StorageOptions, calls: Calls | None = None, mount: Mount | None = None) -> Turn:
    """Wait in line for a root: its folders are made and checked as they are for serving it.

    Args:
        root: its path.
        options: how it will be served.
        calls: the system; where not given, this machine's.
        mount: the traits of its file system; where not given, they are looked up.

    Raises:
        StorageUnusable: in one line, why not and what to do.
    """
    calls = calls or LinuxCalls(None)
    root = os.path.abspath(root)
    layout = Layout.under(root)
    try:
        mount = mount or mount_of_root(root)
        if mount.remote:
            raise StorageUnusable(
                f"--standby does not work on root {shorten(root)}, because the root is on {mount.kind}, a "
                "network file system, where a running daemon can lose its lock. Use --peers instead"
            )
        opened = _open_checked(calls, layout, root, Guard(calls, root, options, mount))
        state = opened.pop(layout.state)
        close_all(calls, opened.values())
        try:
            return Turn(calls, layout, state)
        except OSError:
            close_all(calls, [state])
            raise
    except OSError as error:
        raise StorageUnusable(f"cannot serve root {shorten(root)}: {explain(error)}") from error
