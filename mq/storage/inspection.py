"""Looks through a root and says what is not as it should be. It changes nothing: recovery does that, and the operator.

While a daemon serves the root things move under the look, and what is half done looks like damage: then look twice, and
believe only what both looks found and is still so (:func:`lasting`).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage import names
from mq.storage.calls import OPEN_READ, FileKind
from mq.storage.folders import Folders
from mq.storage.interface import QUEUE, Entry
from mq.storage.presence import is_peer
from mq.storage.records import Records


class Finding(enum.Enum):
    """What is wrong with a file. The value is its name for programs."""

    TORN = "torn"
    """A message in new/ that is not whole: it was never acknowledged."""
    DAMAGED = "damaged"
    """A message whose bytes are not those that were published. It is not handed out."""
    DOUBLED = "doubled"
    """A name of a message that has another one."""
    ORPHAN = "orphan"
    """A message of a deleted queue."""
    WAITING = "waiting"
    """A message whose queue is not there, though nobody deleted it."""
    SIDE = "side"
    """A side file without a message."""
    STAGED = "staged"
    """A body that never fully arrived."""
    RECORD = "record"
    """A record that cannot be read, or one of a queue that is not there."""
    FOREIGN = "foreign"
    """Something that is not mq's. It is left alone."""


_AT_ONCE: Final = 1 << 20


class Found(NamedTuple):
    """One finding.

    Attributes:
        finding: what it is.
        path: the file.
        detail: more, in words.
        id: the message, or "".
    """

    finding: Finding
    path: str
    detail: str
    id: str = ""


class Seen(NamedTuple):
    """What a look saw.

    Attributes:
        found: what is wrong, in no order.
        messages: how many messages there are, those that wait to be reaped not counted.
        unchecked: how many of them have no checksum to hold them to, or could not be read.
    """

    found: tuple[Found, ...]
    messages: int
    unchecked: int


def inspect(
    folders: Folders, records: Records, *, bodies: bool = True, told: Callable[[], object] = lambda: None
) -> Seen:
    """Look through a root.

    Args:
        folders: its folders.
        records: its records.
        bodies: hold every message to its checksum: all of them are read.
        told: called after each message.

    Raises:
        OSError: a folder cannot be read.
        StorageFull: no file handle is free.
    """
    return _Look(folders, records, bodies, told).run()


def lasting(folders: Folders, first: Iterable[Found], second: Iterable[Found]) -> tuple[Found, ...]:
    """What two looks have in common and is still there. A message that moved between two folders while each of them
    was listed has two names in that look: only when both are there at once are they two."""
    before = {(found.finding, found.path) for found in first}
    kept = [
        found
        for found in second
        if (found.finding, found.path) in before and folders.calls.kind(found.path) is not None
    ]
    names_of: dict[str, int] = {}
    for found in kept:
        if found.finding is Finding.DOUBLED:
            names_of[found.id] = names_of.get(found.id, 0) + 1
    return tuple(found for found in kept if found.finding is not Finding.DOUBLED or names_of[found.id] > 1)


class _Look:
    """One look. Of each message it holds a number in memory, and no more."""

    def __init__(self, folders: Folders, records: Records, bodies: bool, told: Callable[[], object]) -> None:
        self._folders = folders
        self._layout = folders.layout
        self._records = records
        self._bodies = bodies
        self._told = told
        self._found: list[Found] = []
        self._ids: set[int] = set()
        self._doubled: set[int] = set()
        self._deleted: set[str] = set()
        self._queues: set[str] = set()
        self._made: dict[str, int] = {}
        self._messages = 0
        self._unchecked = 0

    def run(self) -> Seen:
        """Everything, side files before the messages that they belong to."""
        sides = self._listed(self._layout.properties)
        self._see_removed()
        self._queues = set(self._see_queues())
        self._made = {name: _made(record) for name, record in self._records.all(QUEUE).items()}
        self._see_flat(State.NEW)
        for queue in sorted(self._queues):
            for name, kind in self._listed(f"{self._layout.queues}/{queue}"):
                self._see(names.parse_leaf(name, queue, State.READY), f"{self._layout.queues}/{queue}/{name}", kind)
        self._see_flat(State.DELAYED)
        if self._doubled:
            self._see_doubled()
        self._see_sides(sides)
        self._see_stage()
        self._see_records()
        return Seen(tuple(self._found), self._messages, self._unchecked)

    def _see_removed(self) -> None:
        for name, kind in self._listed(self._layout.remove):
            entry, path = names.parse_flat(name, State.REMOVED), f"{self._layout.remove}/{name}"
            if entry is not None and kind is FileKind.FOLDER:
                self._deleted.add(entry.queue)
                for inside, kind_inside in self._listed(path):
                    if names.parse_leaf(inside, entry.queue, State.READY) is None or kind_inside is not FileKind.FILE:
                        self._add(Finding.FOREIGN, f"{path}/{inside}", "it keeps a deleted queue from going")
            elif entry is not None and kind is FileKind.FILE:
                self._note(entry)
            else:
                self._add(Finding.FOREIGN, path, _what(kind))

    def _see_queues(self) -> Iterator[str]:
        for name, kind in self._listed(self._layout.queues):
            if kind is FileKind.FOLDER and names.is_queue(name):
                yield name
            else:
                self._add(Finding.FOREIGN, f"{self._layout.queues}/{name}", _what(kind))

    def _see_flat(self, state: State) -> None:
        folder = self._layout.folder(state, "")
        for name, kind in self._listed(folder):
            entry = self._see(names.parse_flat(name, state), f"{folder}/{name}", kind)
            if entry is not None:
                self._see_owner(entry, f"{folder}/{name}")

    def _see_owner(self, entry: Entry, path: str) -> None:
        if entry.joined < self._made.get(entry.queue, 0):
            self._add(Finding.ORPHAN, path, "it is older than its queue: it belongs to a deleted one", entry.id)
        elif entry.queue not in self._queues:
            if entry.queue in self._deleted:
                self._add(Finding.ORPHAN, path, "its queue is deleted", entry.id)
            else:
                self._add(Finding.WAITING, path, f"it waits for the queue {entry.queue}, which is not there", entry.id)

    def _see(self, entry: Entry | None, path: str, kind: FileKind) -> Entry | None:
        """A name in a folder of messages; the entry, where it is one."""
        if entry is None or kind is not FileKind.FILE:
            self._add(Finding.FOREIGN, path, _what(kind))
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
            self._add(Finding.TORN if entry.state is State.NEW else Finding.DAMAGED, path, flaw, entry.id)

    def _note(self, entry: Entry) -> None:
        key = entry.id.key
        if key in self._ids:
            self._doubled.add(key)
        self._ids.add(key)

    def _see_doubled(self) -> None:
        """Look for the names of those that have several."""
        places: dict[MessageId, list[str]] = {}
        for state in (State.NEW, State.DELAYED, State.REMOVED):
            for name, kind in self._listed(self._layout.folder(state, "")):
                self._collect(places, names.parse_flat(name, state), kind)
        for queue in self._queues:
            for name, kind in self._listed(f"{self._layout.queues}/{queue}"):
                self._collect(places, names.parse_leaf(name, queue, State.READY), kind)
        for id, paths in places.items():
            for path in paths if len(paths) > 1 else ():
                others = ", ".join(other for other in paths if other != path)
                self._add(Finding.DOUBLED, path, f"the same message as {others}", id)

    def _collect(self, places: dict[MessageId, list[str]], entry: Entry | None, kind: FileKind) -> None:
        if entry is not None and kind is FileKind.FILE and entry.id.key in self._doubled:
            places.setdefault(entry.id, []).append(self._layout.path(entry))

    def _see_sides(self, listed: list[tuple[str, FileKind]]) -> None:
        for name, kind in listed:
            path = f"{self._layout.properties}/{name}"
            id = _id(name)
            if id is None or kind is not FileKind.FILE:
                self._add(Finding.FOREIGN, path, _what(kind))
            elif id.key not in self._ids:
                self._add(Finding.SIDE, path, "its message is not there", id)

    def _see_stage(self) -> None:
        self._see_bodies(self._layout.stage)
        for name, kind in self._listed(self._layout.stage):
            if kind is FileKind.FOLDER and is_peer(name):
                self._see_bodies(f"{self._layout.stage}/{name}")

    def _see_bodies(self, folder: str) -> None:
        for name, kind in self._listed(folder):
            if kind is FileKind.FILE:
                self._add(Finding.STAGED, f"{folder}/{name}", "a body that never fully arrived")
            elif kind is not FileKind.FOLDER or folder != self._layout.stage or not is_peer(name):
                self._add(Finding.FOREIGN, f"{folder}/{name}", _what(kind))

    def _see_records(self) -> None:
        for kind, _ in self._listed(self._layout.records):
            folder = f"{self._layout.records}/{kind}"
            for name, file in self._listed(folder):
                flaw = self._flaw_of_record(f"{folder}/{name}") if file is FileKind.FILE else _what(file)
                if flaw:
                    self._add(Finding.RECORD, f"{folder}/{name}", flaw)
        for queue in self._made.keys() - self._queues:
            self._add(Finding.RECORD, f"{self._layout.records}/{QUEUE}", f"settings of {queue}, which is not there")

    def _flaw_of_record(self, path: str) -> str:
        calls = self._folders.calls
        try:
            fd = calls.open(path, OPEN_READ)
        except FileNotFoundError:
            return ""  # a newer version has taken its place
        try:
            json.loads(b"".join(iter(lambda: calls.read(fd, _AT_ONCE), b"")))
        except ValueError:
            return "a record that is not whole: the one before it counts"
        finally:
            calls.close(fd)
        return ""

    def _listed(self, folder: str) -> list[tuple[str, FileKind]]:
        try:
            return self._folders.calls.names(folder)
        except (FileNotFoundError, NotADirectoryError):
            return []  # a queue that was deleted meanwhile, or a file where a folder should be

    def _add(self, finding: Finding, path: str, detail: str, id: str = "") -> None:
        self._found.append(Found(finding, path, detail, id))


def _made(record: Mapping[str, Any]) -> int:
    made = record.get("created", 0)
    return made if isinstance(made, int) else 0


def _id(name: str) -> MessageId | None:
    entry = names.parse_leaf(name, "", State.READY)
    return entry.id if entry is not None and name == entry.id else None


def _what(kind: FileKind) -> str:
    return {
        FileKind.FILE: "a file whose name is not one of mq's",
        FileKind.FOLDER: "a folder that is not mq's",
        FileKind.OTHER: "a link, a pipe or a device",
    }[kind]
