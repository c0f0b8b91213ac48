"""Redoes changes of the log that a power cut has taken from the files. It can be cut off itself, at any call.

Of each message only the last place that the log gives it counts. A move from a place where, by the log, the message was
not, was refused then, and is passed over. Changes by hand are respected: a message under a name unknown to the log
stays where it is, and a missing message stays gone, unless the log has its body.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from mq.lifecycle import State
from mq.message import Properties, checksum, shorten
from mq.storage.files.calls import NO_ROOM, OPEN_NEW, OPEN_READ, OPEN_WRITE, FileKind, opened, write_all, write_all_at
from mq.storage.files.folders import Folders
from mq.storage.files.layout import encode_side, is_queue_name, parse_flat, parse_leaf, parse_path
from mq.storage.files.logged.fates import MessageFate, carried_out, fates_of, id_of, last_records, refused_by
from mq.storage.files.logged.record import Kept, QueueRemoved, Saying, Wrote, decode
from mq.storage.files.logged.segments import LogDamaged, Record
from mq.storage.files.records import Records
from mq.storage.files.sync import close_all
from mq.storage.files.writes import noted_of, set_properties
from mq.storage.interface import QUEUE, Damage

logger = logging.getLogger("mq.storage")

_DAMAGED: Final = "the contents differ from the checksum in the log, so the message is kept but not delivered"


class Redone(NamedTuple):
    """What was done again.

    Attributes:
        written: messages whose files were written from the log.
        moved: messages that were put where they belong.
        removed: names of messages that were taken away.
        missing: messages of the log that are nowhere.
        damaged: messages whose bytes differ from what the log says, and of which it has no others.
        lost: the paths of those that are missing.
    """

    written: int = 0
    moved: int = 0
    removed: int = 0
    missing: int = 0
    damaged: int = 0
    lost: tuple[str, ...] = ()


def redo(folders: Folders, records: Records, live: Sequence[Record], *, survived: bool) -> Redone:
    """Do again what the records of the log say.

    Args:
        folders: of a root that no other process serves.
        survived: whether the kernel has kept all that was done: then only the last record's file calls can be missing.

    Raises:
        LogDamaged: a record makes no sense.
        OSError: the medium failed, or has no room.
    """
    try:
        told = [(record.sequence, decode(record.payload)) for record in live]
    except (ValueError, IndexError) as error:
        raise LogDamaged(f"the write-ahead log contains an invalid record: {error}") from error
    _drop_refused(folders, records, told, refused_by(told))
    done = carried_out(told)
    everything = [saying for sayings in done for saying in sayings]
    sayings = [saying for sayings in done[-1:] for saying in sayings] if survived else everything
    _redo_queues(folders, records, sayings)
    fates = fates_of(sayings)
    newest = max((record.flushed for record in live), default=0)
    unsure = {
        id_of(saying.path)
        for (sequence, _), sayings in zip(told, done, strict=True)
        for saying in sayings
        if isinstance(saying, Wrote) and sequence > newest
    }
    redone = _redo_messages(folders, fates, set() if survived else unsure) if fates else Redone()
    _redo_records(records, everything)
    _write_again(folders, records, everything, unsure)
    if any(redone):
        counts = {what: count for what, count in redone._asdict().items() if what != "lost"}
        logger.warning(
            "replayed the write-ahead log after a crash: %s",
            ", ".join(f"{count} {what}" for what, count in counts.items()),
        )
    return redone


def _write_again(folders: Folders, records: Records, sayings: Sequence[Saying], unsure: Container[str]) -> None:
    """Let the next sync bring all bodies and records of the log, also those that read right.

    A sync that failed before the crash may have left them in the kernel's memory alone. The kernel takes them for
    written, so the next sync succeeds, and a power cut after that, with the log emptied, takes them. A file that was
    removed by hand stays away.

    Args:
        unsure: messages of records that may not have been flushed: of these the large bodies, too, may be in memory
            alone.
    """
    for id, fate in fates_of(sayings).items():
        if fate.place is None or fate.wrote is None:
            continue
        if fate.wrote.body is None:
            if id in unsure:
                with _unless_refused():
                    _overwrite_with_itself(folders, folders.layout.above(fate.place))
            continue
        with _unless_refused():
            _overwrite(folders, folders.layout.above(fate.place), fate.wrote.body)
            if has_side(folders, fate.wrote):
                _overwrite(folders, f"{folders.layout.properties}/{id}", _side(fate.wrote))
    unsynced = records.unsynced()
    for (kind, key), kept in last_records(sayings).items():
        if kept is not None and unsynced.get(kind, key) == kept.value:
            with _unless_refused():
                unsynced.put(kind, key, kept.value)


@contextlib.contextmanager
def _unless_refused() -> Iterator[None]:
    """Pass over errors of a full disk and of a read-only file: the root is served all the same."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_ROOM | {errno.EACCES, errno.EPERM}:
            raise


def _drop_refused(
    folders: Folders,
    records: Records,
    told: Iterable[tuple[int, Sequence[Saying]]],
    refused: Container[tuple[int, int]],
) -> None:
    """Remove what writes that were refused half-way have left: a power cut can bring back a removed name."""
    for sequence, sayings in told:
        for number, saying in enumerate(sayings):
            if (sequence, number) not in refused:
                continue
            if isinstance(saying, Kept):
                records.drop_torn(saying.kind, saying.key, saying.value)
            elif isinstance(saying, Wrote):
                entry = parse_path(saying.path)
                # A message that is whole by its checksum was there before: the write was refused for that.
                if entry is not None and folders.tear(entry) != "" and not _is_whole(folders, saying.path, saying):
                    with contextlib.suppress(FileNotFoundError):
                        folders.calls.unlink(folders.layout.above(saying.path))


def _redo_messages(folders: Folders, fates: dict[str, MessageFate], unsure: Container[str]) -> Redone:
    names = _names(folders, fates)
    done: Counter[str] = Counter()
    lost: list[str] = []
    for id, fate in fates.items():
        there = names.get(id, [])
        if _is_elsewhere(folders, id, fate, there):
            continue
        if fate.place is not None:
            if not _has_folder(folders, fate.place):
                continue  # its queue was taken away by hand
            what = _make_whole(folders, id, fate, fate.place, there, is_unsure=id in unsure)
            done[what] += 1
            if what == "damaged":
                continue  # under whichever name
            if what == "missing":
                lost.append(fate.place)
        for name in there:
            if name != fate.place:
                with contextlib.suppress(FileNotFoundError):
                    folders.calls.unlink(folders.layout.above(name))
                    done["removed"] += fate.place is None
    return Redone(done["written"], done["moved"], done["removed"], done["missing"], done["damaged"], tuple(lost))


def _is_elsewhere(folders: Folders, id: str, fate: MessageFate, there: list[str]) -> bool:
    """Whether a message is whole under a name that the log does not know: moved by hand, or by a record that was not
    flushed. Removes its other names: where names have no order, the one that it left may have come back."""
    unknown = [name for name in there if name not in fate.places]
    is_only_copy = unknown and len(there) == 1 and fate.wrote is not None and fate.wrote.body is None
    if is_only_copy and not _is_whole(folders, unknown[0], fate.wrote):
        folders.note_damage(Damage("", None, folders.layout.above(unknown[0]), _DAMAGED))
        return True
    for name in unknown:
        if fate.place is None or _is_whole(folders, name, fate.wrote):
            if fate.place is not None and fate.wrote is not None:
                _note(folders, id, name, fate.wrote)
            for other in there:
                if other != name:
                    folders.calls.unlink(folders.layout.above(other))
            return True
        folders.calls.unlink(folders.layout.above(name))
        there.remove(name)
    return False


def _make_whole(folders: Folders, id: str, fate: MessageFate, place: str, there: list[str], *, is_unsure: bool) -> str:
    """Make a message whole in its place. Returns what was done for that, in a word.

    Args:
        place: where it is in the end.
        is_unsure: whether a large body may be torn: it was never confirmed.
    """
    calls, above = folders.calls, folders.layout.above
    whole = [name for name in there if _is_whole(folders, name, fate.wrote)]
    staged = fate.wrote.staged if fate.wrote is not None else ""
    if not whole and staged and _is_whole(folders, staged, fate.wrote):
        whole = [staged]
    if place in whole:
        done = ""
    elif there and not whole and not is_unsure and fate.wrote is not None and fate.wrote.body is None:
        folders.note_damage(Damage("", None, above(there[0]), _DAMAGED))
        return "damaged"
    else:
        if place in there:
            calls.unlink(above(place))
        if whole:
            calls.rename(above(whole[0]), above(place))
            done = "moved"
        elif fate.wrote is not None and fate.wrote.body is not None:
            _write(folders, above(place), fate.wrote.body)
            done = "written"
        else:
            return "missing"
    if fate.wrote is not None:
        _note(folders, id, place, fate.wrote)
    return done


def _is_whole(folders: Folders, name: str, wrote: Wrote | None) -> bool:
    """Whether a file has its bytes. Files older than the log are on the medium for long."""
    if wrote is None:
        return True
    size = crc = 0
    try:
        with opened(folders.calls, folders.layout.above(name), OPEN_READ) as fd:
            while chunk := folders.read_chunk(fd):
                size, crc = size + len(chunk), checksum(chunk, crc)
    except FileNotFoundError:
        return False
    return (size, crc) == (wrote.size, wrote.crc)


def _write(folders: Folders, path: str, body: bytes) -> None:
    with opened(folders.calls, path, OPEN_NEW) as fd:
        write_all(folders.calls, fd, body)


def _overwrite(folders: Folders, path: str, content: bytes) -> None:
    """Write the same bytes over those of a file. Cut off at any byte, the file still has them."""
    calls = folders.calls
    if calls.kind(path) is not FileKind.FILE:
        return
    with opened(calls, path, OPEN_READ) as fd:
        if b"".join(iter(partial(folders.read_chunk, fd), b"")) != content:
            return
    with opened(calls, path, OPEN_WRITE) as fd:
        write_all_at(calls, fd, content, 0)


def _overwrite_with_itself(folders: Folders, path: str) -> None:
    """Write a large file's own bytes over it."""
    calls = folders.calls
    if calls.kind(path) is not FileKind.FILE:
        return
    fds: list[int] = []
    try:
        fds += (calls.open(path, flags) for flags in (OPEN_READ, OPEN_WRITE))
        offset = 0
        while chunk := folders.read_chunk(fds[0]):
            write_all_at(calls, fds[1], chunk, offset)
            offset += len(chunk)
    finally:
        close_all(calls, fds)


def _note(folders: Folders, id: str, place: str, wrote: Wrote) -> None:
    """Set the properties of a message's file as they were when it was written."""
    with opened(folders.calls, folders.layout.above(place), OPEN_READ) as fd:
        attributes, noted, _ = noted_of(wrote.attributes, wrote.size, wrote.crc, folders.largest_attributes)
        set_properties(folders.calls, fd, attributes, noted)
    if has_side(folders, wrote):
        folders.has_side_files = True
        path = f"{folders.layout.properties}/{id}"
        with contextlib.suppress(FileNotFoundError):
            folders.calls.unlink(path)
        _write(folders, path, _side(wrote))


def has_side(folders: Folders, wrote: Wrote) -> bool:
    """Whether a message has a side file, for attributes that are long or cannot be the file's own."""
    return len(wrote.attributes) > folders.largest_attributes


def _side(wrote: Wrote) -> bytes:
    attributes = json.loads(wrote.attributes) if wrote.attributes else {}
    return encode_side(Properties(wrote.size, wrote.crc, attributes))


def _has_folder(folders: Folders, place: str) -> bool:
    if not place.startswith("queues/"):
        return True
    return folders.calls.kind(folders.layout.above(place.rpartition("/")[0])) is FileKind.FOLDER


def _names(folders: Folders, fates: dict[str, MessageFate]) -> dict[str, list[str]]:
    """The paths below the root under which those messages are."""
    layout, found = folders.layout, dict[str, list[str]]()
    for folder, state in ((layout.new, State.NEW), (layout.delay, State.DELAYED), (layout.remove, State.REMOVED)):
        for name, kind in folders.calls.names(folder):
            entry = parse_flat(name, state) if kind is FileKind.FILE else None
            if entry is not None and entry.id in fates:
                found.setdefault(entry.id, []).append(layout.below_root(f"{folder}/{name}"))
    for queue in sorted(folders.queues()):
        for name, kind in folders.calls.names(f"{layout.queues}/{queue}"):
            entry = parse_leaf(name, queue, State.READY) if kind is FileKind.FILE else None
            if entry is not None and entry.id in fates:
                found.setdefault(entry.id, []).append(layout.below_root(f"{layout.queues}/{queue}/{name}"))
    return found


def _redo_queues(folders: Folders, records: Records, sayings: Iterable[Saying]) -> None:
    """Move away the folders of removed queues, and make those that are missing."""
    calls, layout = folders.calls, folders.layout
    made: dict[str, bool] = {}
    for saying in sayings:
        match saying:
            case QueueRemoved(queue, path):
                # The folder stays in remove/ for as long as the log has this, so a queue's folder is the removed one's.
                is_there = calls.kind(layout.above(path)) is FileKind.FOLDER
                if not is_there and calls.kind(f"{layout.queues}/{queue}") is FileKind.FOLDER:
                    calls.rename(f"{layout.queues}/{queue}", layout.above(path))
                made[queue] = False
            case Kept(kind, key) if kind == QUEUE and is_queue_name(key):
                made[key] = True
    for queue, is_made in made.items():
        if is_made and calls.kind(f"{layout.queues}/{queue}") is None:
            logger.warning(
                "created the missing folder for queue %s, because the queue is recorded in the write-ahead log",
                queue,
            )
            calls.mkdir(f"{layout.queues}/{queue}")


def _redo_records(records: Records, sayings: Iterable[Saying]) -> None:
    for (kind, key), kept in last_records(sayings).items():
        if kept is None:
            records.drop(kind, key)
        elif records.get(kind, key) != kept.value:
            logger.info("used the write-ahead log to restore a missing record: type %s, key %s", kind, shorten(key))
            records.put(kind, key, kept.value)
