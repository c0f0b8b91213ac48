"""Repairs a root before it is served, when no other process serves it: brings every state that a crash can leave back
to one that the rest of mq knows. Interrupted anywhere, it does the same again at the next start.

* A message under several names keeps one: REMOVED before READY, DELAYED, NEW; of several leases the latest.
* A torn message in NEW was never acknowledged: it goes. So does one in DELAYED, where its own batch may have leased it.
  Not where the root was left settled: after a clean stop, and once a log is done again, no message can be torn.
* A message in NEW or DELAYED goes with its queue, once that queue's folder is in remove/. If a queue of that name
  exists again, all messages are its own: it was not made before the others had gone.
* Bodies that were still arriving, side files without a message, records without a queue: they go.

It leaves alone what it does not understand. All repairs are durable when it returns.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from mq.lifecycle import State
from mq.message import MessageId
from mq.storage.files.calls import OPEN_READ, FileKind, opened
from mq.storage.files.folders import EMPTY, Folders
from mq.storage.files.layout import flat_name, parse_flat
from mq.storage.files.records import Records
from mq.storage.files.sync import make_folder, sync_folder
from mq.storage.interface import MOST_MOVED_ON, QUEUE, Damage, Entry

logger = logging.getLogger("mq.storage")


class Repairs(NamedTuple):
    """What recovery did.

    Attributes:
        torn: messages that were half written, taken away.
        doubled: second names of a message, taken away.
        orphaned: messages of deleted queues, taken away.
        leftovers: temporary files, taken away.
    """

    torn: int = 0
    doubled: int = 0
    orphaned: int = 0
    leftovers: int = 0


def recover(folders: Folders, records: Records, opened: Mapping[str, int], *, is_settled: bool) -> Repairs:
    """Repair a root that no other process serves.

    Args:
        is_settled: whether its last daemon stopped cleanly, or its log was done again: then no crash can have left a
            torn file, or a queue's record without its folder. What looks so was damaged later, and stays.
    """
    # A killed process may have left names in memory only: no repair, and nothing later, relies on those.
    syncs = folders.volume.syncs
    syncs.whole(partial(_sync_folders, folders))
    syncs.one_of(records.sync)
    queues = set(folders.queues())
    deleted = _deleted(folders)
    for name in sorted(records.all(QUEUE).keys() - queues):
        created = (records.get(QUEUE, name) or {}).get("created", 0)
        if deleted.get(name, 0) > created:
            records.drop(QUEUE, name)  # there was no room for that
        elif is_settled and _make_queue_again(folders, name):
            queues.add(name)
        elif not is_settled:
            why = (
                f"queue {name} has a record but no folder: either the creation of the queue was interrupted, or "
                "the folder was deleted"
            )
            folders.note_damage(Damage("", None, folders.layout.folder(State.READY, name), why))
            records.drop(QUEUE, name)
    moving = {state: folders.scan(state) for state in (State.REMOVED, State.DELAYED, State.NEW)}
    orphaned = _drop_orphans(folders, moving, queues)
    doubled = _drop_doubles(folders, moving, queues)
    suspects = moving[State.NEW] if is_settled else [*moving[State.NEW], *_moved_on(moving[State.DELAYED])]
    torn = _drop_torn(folders, suspects, but_empty=is_settled)
    leftovers = _clear(folders, opened[folders.layout.stage])
    leftovers += _drop_sides(folders, opened[folders.layout.properties], queues)
    repairs = Repairs(torn, doubled, orphaned, leftovers)
    if any(repairs):
        syncs.whole(partial(_sync_folders, folders))
        logger.warning(
            "repaired the root after a crash: %s", ", ".join(f"{n} {what}" for what, n in repairs._asdict().items())
        )
    return repairs


def _make_queue_again(folders: Folders, name: str) -> bool:
    """Make the folder of a queue that has lost it. False if something else is in its place."""
    path = folders.layout.folder(State.READY, name)
    kind = folders.calls.kind(path)
    if kind is not None:
        folders.note_damage(Damage("", None, path, "this file is not a folder: move it elsewhere, then restart mq"))
        return False
    folders.note_damage(
        Damage(
            "",
            None,
            path,
            f"the folder of queue {name} was missing with all its messages, so an empty folder was created",
        )
    )
    make_folder(folders.calls, path)
    sync_folder(folders.calls, folders.layout.queues)
    return True


def _drop_orphans(folders: Folders, moving: dict[State, list[Entry]], queues: set[str]) -> int:
    deleted = _deleted(folders).keys() - queues
    dropped = 0
    for state in (State.DELAYED, State.NEW):
        kept = []
        for entry in moving[state]:
            if entry.queue in deleted:
                folders.calls.unlink(folders.layout.path(entry))
                dropped += 1
            else:
                kept.append(entry)
        moving[state] = kept
    return dropped


def _deleted(folders: Folders) -> dict[str, int]:
    """The queues that were deleted, with a folder in remove/, and when last, in UUID ticks."""
    # A folder that is only missing may have been moved away by hand.
    there = folders.calls.names(folders.layout.remove)
    found = (parse_flat(name, State.REMOVED) for name, kind in there if kind is FileKind.FOLDER)
    return {entry.queue: entry.id.time for entry in sorted(filter(None, found), key=lambda entry: entry.id.time)}


def _drop_doubles(folders: Folders, moving: dict[State, list[Entry]], queues: set[str]) -> int:
    """Keep one name of each message. Returns how many names went."""
    # READY is compared as it is listed. Held in memory are only the ids outside it, those in it that came from another
    # queue (they may still stand there, too), and, of one queue at a time, those that were given back with their count.
    losers: dict[Entry, None] = {}  # in the order in which they were found, so that a simulation repeats
    best: dict[MessageId, Entry] = {}
    for state in (State.REMOVED, State.DELAYED, State.NEW):
        _compare(moving[state], best, losers)
    ready = sorted(queues)
    moved: list[Entry] = []
    for queue in ready:
        listed = folders.scan(State.READY, queue)
        moved += [entry for entry in listed if entry.meta.order is not None]
        counted = {entry.id for entry in listed if entry.meta.receives}
        _compare([entry for entry in listed if entry.id in counted], {}, losers)
    _compare(moved, best, losers)
    if best:
        for queue in ready:
            listed = folders.scan(State.READY, queue)
            _compare([entry for entry in listed if entry.id in best and entry.meta.order is None], best, losers)
    for entry in losers:
        with contextlib.suppress(FileNotFoundError):
            folders.calls.unlink(folders.layout.path(entry))
    for state, entries in moving.items():
        moving[state] = [entry for entry in entries if entry not in losers]
    return len(losers)


def _compare(entries: list[Entry], best: dict[MessageId, Entry], losers: dict[Entry, None]) -> None:
    """Add messages to `best`, each under the name that counts, and their other names to `losers`."""
    for entry in entries:
        other = best.setdefault(entry.id, entry)
        if other != entry:
            loser, best[entry.id] = sorted((entry, other), key=rank)
            losers[loser] = None


def rank(entry: Entry) -> tuple[bool, int, int, int, int, str]:
    """The rank of a name: the name in the queue that the message joined last counts, and there the later state."""
    # no two are equal: racers of one batch differ in their receipts, which are in the name
    is_removed = entry.state is State.REMOVED
    place = (State.NEW, State.DELAYED, State.READY, State.REMOVED).index(entry.state)
    name = flat_name(entry.queue, entry.id, entry.meta)
    return is_removed, entry.joined, place, entry.meta.receives, entry.meta.deadline_ms or 0, name


def _moved_on(delayed: list[Entry]) -> list[Entry]:
    """Messages that one batch may have written and leased: leased once, and among the newest."""
    # a message that a later batch leased was written before all that was under way at the crash
    leased_once = (entry for entry in delayed if entry.meta.receipt is not None and entry.meta.receives == 1)
    return heapq.nlargest(MOST_MOVED_ON, leased_once, key=lambda entry: entry.id.key)


def _drop_torn(folders: Folders, entries: list[Entry], *, but_empty: bool) -> int:
    """Take torn messages away; if `but_empty`, only files to which nothing was ever written. How many went."""
    dropped = 0
    for entry in entries:
        flaw = folders.tear(entry)
        if but_empty and flaw != EMPTY:
            continue
        if flaw:
            logger.warning(
                "deleted an incomplete message that was never confirmed (%s): queue %s, message %s",
                flaw,
                entry.queue,
                entry.id,
            )
            folders.health.torn += 1
            with contextlib.suppress(FileNotFoundError):
                folders.calls.unlink(folders.layout.path(entry))
            dropped += 1
        else:  # whole in memory, perhaps, since only the process died
            folders.volume.syncs.one_of(partial(_sync_file, folders, entry))
    return dropped


def _sync_file(folders: Folders, entry: Entry) -> None:
    with opened(folders.calls, folders.layout.path(entry), OPEN_READ) as fd:
        folders.calls.fsync(fd)


def _clear(folders: Folders, folder: int) -> int:
    """Empty an open folder, wherever its name leads now. Returns how many files went."""
    listed = [name for name, kind in folders.calls.names(folder) if kind is FileKind.FILE]
    for name in listed:
        folders.calls.unlink(name, dir_fd=folder)
    return len(listed)


def _drop_sides(folders: Folders, sides: int, queues: set[str]) -> int:
    """Remove side files of messages that are nowhere, from their open folder."""
    listed = {name for name, kind in folders.calls.names(sides) if kind is FileKind.FILE}
    if not listed:
        return 0
    folders.has_side_files = True
    for state in (State.NEW, State.DELAYED, State.REMOVED):
        listed -= {str(entry.id) for entry in folders.scan(state)}
    for queue in sorted(queues):  # one order, here and below, so that a simulation repeats
        listed -= {str(entry.id) for entry in folders.scan(State.READY, queue)}
    for name in sorted(listed):
        folders.calls.unlink(name, dir_fd=sides)
    return len(listed)


def _sync_folders(folders: Folders) -> None:
    for folder in folders.layout.all():
        sync_folder(folders.calls, folder)
    for queue in folders.queues():
        sync_folder(folders.calls, f"{folders.layout.queues}/{queue}")
