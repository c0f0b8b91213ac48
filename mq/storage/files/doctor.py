"""Finds what is wrong in a root, and repairs it or moves it away when no daemon serves the root.

An inspection changes nothing. While a daemon serves the root, files move, and half-done work looks like damage. Then
the root is inspected twice, and a finding counts only if both inspections have it and it still holds
(:func:`confirmed`).
"""

from __future__ import annotations

import enum
import errno
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from mq.errors import StorageUnusable
from mq.lifecycle import State
from mq.message import MessageId, shorten
from mq.storage.files.calls import OPEN_FOLDER, OPEN_READ, Calls, FileKind, LinuxCalls
from mq.storage.files.engine import EngineChoice, choose_engine
from mq.storage.files.explain import or_unusable
from mq.storage.files.folders import EMPTY, Folders
from mq.storage.files.format import FormatDamaged, RootUse, open_moves_lock, read_use, use_of_root
from mq.storage.files.inventory import read_inventory
from mq.storage.files.layout import Layout, is_queue_name, parse_flat, parse_leaf
from mq.storage.files.logged.segments import LogDamaged, read_log
from mq.storage.files.lost import LOST_STATE
from mq.storage.files.mount import Mount, mount_of
from mq.storage.files.movers import try_lock
from mq.storage.files.opening import open_root
from mq.storage.files.ownership import check_root
from mq.storage.files.records import Records, decode_record, file_of
from mq.storage.files.stepwise.peers import is_peer_name
from mq.storage.files.sync import close_all
from mq.storage.files.volume import Volume
from mq.storage.interface import QUEUE, WRITE_JOBS, Damage, Entry
from mq.storage.options import StorageOptions

_READ_SIZE: Final = 1 << 20
_ACCEPT: Final = "restore a backup, or run mq doctor --accept-loss to list the losses and serve the rest"
_ENOUGH: Final = 2
"""Of the folders new/, queues/ and state/, so many tell a root of mq, which may have lost one."""
_LOCK_FILE: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class FindingKind(enum.Enum):
    """What is wrong with a file. The value is its name for programs."""

    TORN = "torn"
    """A message in new/ that is empty, or not whole after a crash: it was never acknowledged."""
    DAMAGED = "damaged"
    """A message with other bytes than the published ones. It is not handed out."""
    DOUBLED = "doubled"
    """A name of a message that has another one."""
    ORPHAN = "orphan"
    """A message of a deleted queue."""
    WAITING = "waiting"
    """A message whose queue is not there, though it was not deleted."""
    SIDE = "side"
    """A side file without a message."""
    STAGED = "staged"
    """A body that never fully arrived."""
    LOST = "lost"
    """A file or folder that every root in use has, and this one has not."""
    LOG = "log"
    """Changes that only the log has, or a log that cannot be read."""
    RECORD = "record"
    """A record that cannot be read, or makes no sense."""
    MISSING = "missing"
    """A record or a queue's folder that should be there."""
    FOREIGN = "foreign"
    """Something that is not mq's. It is left alone."""


class Finding(NamedTuple):
    """One finding.

    Attributes:
        finding: what it is.
        detail: more, in words.
        id: the message, or "".
    """

    kind: FindingKind
    path: str
    detail: str
    id: str = ""


class Inspection(NamedTuple):
    """What an inspection found.

    Attributes:
        found: what is wrong, in no order.
        messages: how many messages there are, those that wait to be reaped not counted.
        unchecked: how many of them have no checksum to hold them to, or could not be read.
    """

    found: tuple[Finding, ...]
    messages: int
    unchecked: int


QUARANTINED: Final = frozenset({FindingKind.FOREIGN, FindingKind.DAMAGED, FindingKind.RECORD})
"""Findings that a quarantine takes: files that are not handed out or read, and that no repair takes away."""

Schema = Callable[[str, Mapping[str, Any]], str]
"""Returns why the value of a record of a kind makes no sense; empty if it does."""


def no_schema(kind: str, value: Mapping[str, Any]) -> str:
    """Judge no value."""
    return ""


class InspectableRoot(NamedTuple):
    """A root that is open to be inspected.

    Attributes:
        unserved: whether no daemon serves it, nor can begin to while it is open.
    """

    folders: Folders
    records: Records
    unserved: bool

    def inspect(
        self,
        *,
        bodies: bool,
        pause: Callable[[], object],
        told: Callable[[], object] = lambda: None,
        schema: Schema = no_schema,
    ) -> Inspection:
        """Inspect it; while a daemon serves it, twice with a pause between.

        Args:
            bodies: hold every message to its checksum.
            pause: called between the two inspections.
            told: called after each message of the first.
            schema: judges the values of records.
        """
        pending = list(_pending(self.folders)) if self.unserved else []
        if pending:  # what the files lack is not lost, and not to be judged before it is there again
            return Inspection(tuple(pending), 0, 0)
        first = inspect(self.folders, self.records, bodies=bodies, told=told, schema=schema)
        if self.unserved or not first.found:
            return first
        pause()
        second = inspect(self.folders, self.records, bodies=bodies, schema=schema)
        return second._replace(found=confirmed(self.folders, first.found, second.found))


def _pending(folders: Folders) -> Iterator[Finding]:
    """Findings without which the files of a root that no daemon serves cannot be judged."""
    calls, layout = folders.calls, folders.layout
    try:
        use = use_of_root(calls, layout)
    except FormatDamaged as error:
        yield Finding(FindingKind.LOST, layout.format, f"{error}; {_ACCEPT}")
        return
    for path in layout.all() if use is not None else ():
        if calls.kind(path) is None and path not in (layout.remove, layout.stage):
            yield Finding(FindingKind.LOST, path, f"the folder and everything in it are missing; {_ACCEPT}")
    if use is not RootUse.LOG:
        return
    try:
        count = len(read_log(calls, layout.log_folder))
    except LogDamaged as error:
        yield Finding(FindingKind.LOG, layout.log_folder, f"the log is damaged: {error}; {_ACCEPT}")
    else:
        if count:
            text = f"{count} log records will be replayed at the next start; run mq doctor again after that"
            yield Finding(FindingKind.LOG, layout.log_folder, text)


@contextmanager
def open_to_inspect(root: str, calls: Calls | None = None) -> Iterator[InspectableRoot]:
    """Open a root to inspect it. Nothing is made, repaired or moved.

    Raises:
        StorageUnusable: in one line, why not.
    """
    calls = calls or LinuxCalls()
    layout = Layout.under(os.path.abspath(root))
    handles: list[int] = []
    with ExitStack() as stack:
        stack.enter_context(or_unusable(f"cannot read {shorten(root)}"))
        stack.callback(close_all, calls, handles)
        there = sum(calls.kind(folder) is FileKind.FOLDER for folder in (layout.new, layout.queues, layout.state))
        if there < _ENOUGH:
            raise StorageUnusable(
                f"{shorten(root)} is not an mq root, because the folders new/, queues/ and state/ are missing"
            )
        locks = (partial(calls.open, layout.lock, _LOCK_FILE), partial(open_moves_lock, calls, layout, make=False))
        alone = all(try_lock(calls, opens, handles, exclusive=True) for opens in locks)
        handles.append(root_fd := calls.open(os.path.dirname(layout.queues), OPEN_FOLDER))
        folders = Folders(calls, layout, Volume(calls, layout, Mount("unknown"), root_fd))
        yield InspectableRoot(folders, Records(calls, layout.records), alone)


def check_ownership(root: str, options: StorageOptions, calls: Calls | None = None) -> None:
    """Check that only users that `options` trust can change the root.

    Raises:
        StorageUnusable: in one line, which other user can; or the root cannot be looked at.
    """
    # else what is about to be moved or taken away there may be that user's by then
    root = os.path.abspath(root)
    with or_unusable(f"cannot read {shorten(root)}"):
        check_root(calls or LinuxCalls(), root, options, mount_of(root))


def repair(
    root: str,
    options: StorageOptions = StorageOptions(),  # noqa: B008 - frozen
    calls: Calls | None = None,
    *,
    accept_loss: bool = False,
) -> list[Damage]:
    """Do what a daemon does at its start: bring every state that a crash can leave back to one that mq knows.

    Args:
        accept_loss: also repair a root that has lost files which may have held confirmed messages.

    Returns:
        What is lost or damaged.

    Raises:
        StorageUnusable: in one line, why not; a daemon serves the root, for one.
    """
    calls = calls or LinuxCalls()
    root = os.path.abspath(root)
    with or_unusable(f"cannot repair {shorten(root)}"):
        mount = mount_of(root)
    syncfs = mount.can_syncfs()
    # No log of its own: the repairing user may be another one than the daemon's.
    opened = open_root(calls, root, mount, replace(options, log=False), syncfs=syncfs, accept_loss=accept_loss)
    opened.close()
    return opened.folders.health.damages


def engine_of(root: str, mount: Callable[[str], Mount] = mount_of) -> EngineChoice:
    """Return the engine that a daemon without --peers, --no-mover and --no-reaper uses for a root, and why.

    Args:
        mount: reads the traits of its file system.

    Raises:
        StorageUnusable: none can be used; or the root cannot be looked at.
    """
    root = os.path.abspath(root)
    with or_unusable(f"cannot read {shorten(root)}"):
        traits = mount(root)
    return choose_engine(traits, StorageOptions(untested=True), root, syncfs=traits.can_syncfs())


def quarantine(inspectable: InspectableRoot, found: Iterable[Finding], folder: str) -> Iterator[tuple[str, str]]:
    """Move foreign and damaged files out of the root, to the same place below `folder`. Yields each (from, to).

    Raises:
        StorageUnusable: a daemon serves the root, or a file cannot be moved.
    """
    if not inspectable.unserved:
        raise StorageUnusable(
            "the root is in use, so no files were moved to the quarantine folder. Stop the daemon first"
        )
    root = os.path.dirname(inspectable.folders.layout.new)
    if os.path.commonpath([root, os.path.abspath(folder)]) == root:
        raise StorageUnusable(f"the quarantine folder {shorten(folder)} is inside the root: choose another folder")
    for one in found:
        if one.kind in QUARANTINED:
            target = os.path.join(folder, os.path.relpath(one.path, root))
            with or_unusable(f"cannot move {shorten(one.path, 200)}"):
                _make_private(os.path.dirname(os.path.abspath(target)))
                if os.path.lexists(target):
                    raise FileExistsError(errno.EEXIST, "the target already exists", target)
                shutil.move(one.path, target)
            yield one.path, target


def _make_private(folder: str) -> None:
    """Make a folder, and those above it, for their owner alone: messages go there."""
    if not os.path.isdir(folder):
        _make_private(os.path.dirname(folder))
        os.mkdir(folder, 0o700)


# The inspection itself


def inspect(
    folders: Folders,
    records: Records,
    *,
    bodies: bool = True,
    told: Callable[[], object] = lambda: None,
    schema: Schema = no_schema,
) -> Inspection:
    """Inspect a root once.

    Args:
        bodies: hold every message to its checksum: all of them are read.
        schema: judges the values of records.

    Raises:
        StorageFull: no file handle is free.
    """
    return _Inspector(folders, records, bodies, told, schema).run()


def confirmed(folders: Folders, first: Iterable[Finding], second: Iterable[Finding]) -> tuple[Finding, ...]:
    """The common findings of two inspections that still hold."""
    # a message that moved between two folders while each of them was listed has two names in that inspection: they are
    # two only when both are there at once
    before = {(found.kind, found.path) for found in first}
    kept = [
        found for found in second if (found.kind, found.path) in before and folders.calls.kind(found.path) is not None
    ]
    names_of: dict[str, int] = {}
    for found in kept:
        if found.kind is FindingKind.DOUBLED:
            names_of[found.id] = names_of.get(found.id, 0) + 1
    return tuple(found for found in kept if found.kind is not FindingKind.DOUBLED or names_of[found.id] > 1)


class _Inspector:
    """One inspection. It holds a number in memory for each message, and no more."""

    def __init__(
        self, folders: Folders, records: Records, bodies: bool, told: Callable[[], object], schema: Schema
    ) -> None:
        self._schema = schema
        self._is_clean = read_use(folders.calls, folders.layout) is RootUse.CLEAN
        self._folders = folders
        self._layout = folders.layout
        self._records = records
        self._bodies = bodies
        self._told = told
        self._found: list[Finding] = []
        self._ids: set[int] = set()
        self._doubled: set[int] = set()
        self._deleted: set[str] = set()
        self._queues: set[str] = set()
        self._settled: set[str] = set()
        self._messages = 0
        self._unchecked = 0

    def run(self) -> Inspection:
        """Inspect everything, side files before the messages that they belong to."""
        sides = self._listed(self._layout.properties)
        self._see_removed()
        self._queues = set(self._see_queues())
        self._settled = set(self._records.all(QUEUE))
        self._see_flat(State.NEW)
        for queue in sorted(self._queues):
            for name, kind in self._listed(f"{self._layout.queues}/{queue}"):
                self._see(parse_leaf(name, queue, State.READY), f"{self._layout.queues}/{queue}/{name}", kind)
        self._see_flat(State.DELAYED)
        if self._doubled:
            self._see_doubled()
        self._see_sides(sides)
        self._see_stage()
        self._see_records()
        if self._messages and use_of_root(self._folders.calls, self._layout) is None:
            self._add(FindingKind.LOST, self._layout.state, LOST_STATE)
        return Inspection(tuple(self._found), self._messages, self._unchecked)

    def _see_removed(self) -> None:
        for name, kind in self._listed(self._layout.remove):
            entry, path = parse_flat(name, State.REMOVED), f"{self._layout.remove}/{name}"
            if entry is not None and kind is FileKind.FOLDER:
                self._deleted.add(entry.queue)
                for inside, kind_inside in self._listed(path):
                    if parse_leaf(inside, entry.queue, State.READY) is None or kind_inside is not FileKind.FILE:
                        self._add(
                            FindingKind.FOREIGN,
                            f"{path}/{inside}",
                            "this file prevents the folder of a deleted queue from being removed",
                        )
            elif entry is not None and kind is FileKind.FILE:
                self._note(entry)
            else:
                self._add(FindingKind.FOREIGN, path, _what(kind))

    def _see_queues(self) -> Iterator[str]:
        for name, kind in self._listed(self._layout.queues):
            if kind is FileKind.FOLDER and is_queue_name(name):
                yield name
            else:
                self._add(FindingKind.FOREIGN, f"{self._layout.queues}/{name}", _what(kind))

    def _see_flat(self, state: State) -> None:
        folder = self._layout.folder(state, "")
        for name, kind in self._listed(folder):
            entry = self._see(parse_flat(name, state), f"{folder}/{name}", kind)
            if entry is not None:
                self._see_owner(entry, f"{folder}/{name}")

    def _see_owner(self, entry: Entry, path: str) -> None:
        if entry.queue not in self._queues and entry.queue != WRITE_JOBS:
            if entry.queue in self._deleted:
                self._add(FindingKind.ORPHAN, path, "the queue of this message was deleted", entry.id)
            else:
                self._add(
                    FindingKind.WAITING, path, f"the queue {entry.queue} of this message does not exist", entry.id
                )

    def _see(self, entry: Entry | None, path: str, kind: FileKind) -> Entry | None:
        """Inspect a name in a folder of messages. Returns its entry; None for a foreign name."""
        if entry is None or kind is not FileKind.FILE:
            self._add(FindingKind.FOREIGN, path, _what(kind))
            return None
        self._note(entry)
        self._messages += 1
        if self._bodies:
            self._see_body(entry, path)
        self._told()
        return entry

    def _see_body(self, entry: Entry, path: str) -> None:
        flaw = self._folders.flaw(entry)
        if flaw is None:
            self._unchecked += 1
        elif flaw and self._folders.calls.kind(path) is not None:  # else it has moved on meanwhile
            is_torn = entry.state is State.NEW and (flaw == EMPTY or (not self._is_clean and self._folders.tear(entry)))
            self._add(FindingKind.TORN if is_torn else FindingKind.DAMAGED, path, flaw, entry.id)

    def _note(self, entry: Entry) -> None:
        key = entry.id.key
        if key in self._ids:
            self._doubled.add(key)
        self._ids.add(key)

    def _see_doubled(self) -> None:
        """Find the names of messages that have several."""
        places: dict[MessageId, list[str]] = {}
        for state in (State.NEW, State.DELAYED, State.REMOVED):
            for name, kind in self._listed(self._layout.folder(state, "")):
                self._collect(places, parse_flat(name, state), kind)
        for queue in self._queues:
            for name, kind in self._listed(f"{self._layout.queues}/{queue}"):
                self._collect(places, parse_leaf(name, queue, State.READY), kind)
        for id, paths in places.items():
            for path in paths if len(paths) > 1 else ():
                others = ", ".join(other for other in paths if other != path)
                self._add(FindingKind.DOUBLED, path, f"the same message as {others}", id)

    def _collect(self, places: dict[MessageId, list[str]], entry: Entry | None, kind: FileKind) -> None:
        if entry is not None and kind is FileKind.FILE and entry.id.key in self._doubled:
            places.setdefault(entry.id, []).append(self._layout.path(entry))

    def _see_sides(self, listed: list[tuple[str, FileKind]]) -> None:
        for name, kind in listed:
            path = f"{self._layout.properties}/{name}"
            id = _id(name)
            if id is None or kind is not FileKind.FILE:
                self._add(FindingKind.FOREIGN, path, _what(kind))
            elif id.key not in self._ids:
                self._add(FindingKind.SIDE, path, "the message whose attributes this file contains does not exist", id)

    def _see_stage(self) -> None:
        self._see_bodies(self._layout.stage)
        for name, kind in self._listed(self._layout.stage):
            if kind is FileKind.FOLDER and is_peer_name(name):
                self._see_bodies(f"{self._layout.stage}/{name}")

    def _see_bodies(self, folder: str) -> None:
        for name, kind in self._listed(folder):
            if kind is FileKind.FILE:
                self._add(FindingKind.STAGED, f"{folder}/{name}", "a message body that was not completely received")
            elif kind is not FileKind.FOLDER or folder != self._layout.stage or not is_peer_name(name):
                self._add(FindingKind.FOREIGN, f"{folder}/{name}", _what(kind))

    def _see_records(self) -> None:
        for kind, _ in self._listed(self._layout.records):
            folder = f"{self._layout.records}/{kind}"
            for name, file in self._listed(folder):
                flaw = self._flaw_of_record(kind, f"{folder}/{name}") if file is FileKind.FILE else _what(file)
                if flaw:
                    self._add(FindingKind.RECORD, f"{folder}/{name}", flaw)
        for queue in self._settled - self._queues:
            path = f"{self._layout.queues}/{queue}"
            self._add(FindingKind.MISSING, path, f"the folder of queue {queue}, which has settings, is missing")
        if self._is_clean:
            self._see_missing_records()

    def _see_missing_records(self) -> None:
        for kind, files in (read_inventory(self._records) or {}).items():
            there = self._records.files(kind)
            for file in files:
                if file not in there:
                    self._add(FindingKind.MISSING, f"{self._layout.records}/{kind}/{file}", "the record is missing")

    def _flaw_of_record(self, kind: str, path: str) -> str:
        calls = self._folders.calls
        try:
            fd = calls.open(path, OPEN_READ)
        except FileNotFoundError:
            return ""  # a newer version has taken its place
        try:
            record = decode_record(b"".join(iter(lambda: calls.read(fd, _READ_SIZE), b"")))
        except ValueError as error:
            return str(error)
        finally:
            calls.close(fd)
        if file_of(record["key"]) != os.path.basename(path).rpartition(".")[0]:
            return f"the file contains the record of a different key, {record['key']}"
        return self._schema(kind, record["value"])

    def _listed(self, folder: str) -> list[tuple[str, FileKind]]:
        try:
            return self._folders.calls.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []  # a queue that was deleted meanwhile, or a file where a folder should be

    def _add(self, kind: FindingKind, path: str, detail: str, id: str = "") -> None:
        self._found.append(Finding(kind, path, detail, id))


def _id(name: str) -> MessageId | None:
    entry = parse_leaf(name, "", State.READY)
    return entry.id if entry is not None and name == entry.id else None


def _what(kind: FileKind) -> str:
    return {
        FileKind.FILE: "a file whose name mq does not use",
        FileKind.FOLDER: "a folder that does not belong to mq",
        FileKind.OTHER: "a link, a pipe or a device",
    }[kind]
